"""Routers: which replica a request goes to, and what that does to hits and queues."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import paleo_lite as pl
from paleo_lite.errors import BadValue
from paleo_lite.questions.serve_deployment import make_deployment
from paleo_lite.serving.lengths import Lengths
from paleo_lite.serving.prepared import prepare
from paleo_lite.serving.requests import generate_traffic
from paleo_lite.serving.routers import ROUTERS, router_generator
from paleo_lite.serving.workloads import parse_workload

SESSIONS = "conversation:turns=5,question=640,output=1"
COMMON: dict[str, Any] = {"gpu": "h100-sxm", "replicas": 4, "num_requests": 100}


def hit_rate(answer: Any) -> float:
    """Return the share of the prompts' tokens that were found."""
    return float(answer.figures["prefix_hit_rate"].value)


@pytest.mark.spread(1)
@pytest.mark.parametrize(("router", "least"), [("prefix", 0.5), ("sticky", 0.65), ("scored", 0.6)])
def test_sessions_find_their_history_at_one_replica_only(router: str, least: float) -> None:
    """Round r finds (r - 1) / r of its prompt, all five rounds 4 / 6; one of four replicas in turn finds less.

    A router that weighs prefixes against blocks in use moves some sessions.
    """
    home = pl.serve("llama-3.1-8b", **COMMON, workload=SESSIONS, concurrency=8, router=router)
    in_turn = pl.serve("llama-3.1-8b", **COMMON, workload=SESSIONS, concurrency=8)
    assert least < hit_rate(home) < 0.67
    assert hit_rate(in_turn) < 0.6 * hit_rate(home)
    assert home.prefix_hit_rates is not None and len(home.prefix_hit_rates) == 4


@dataclass(eq=False)
class Busy:
    """A replica as routers see it."""

    waiting_requests: int
    running_requests: int
    blocks: float = 0.0
    used_blocks: int = 0
    total_blocks: int = 100

    def cost_blocks(self, request: int) -> float:
        """Return what there is to do."""
        return self.blocks


def choose(
    router: str, replicas: list[Busy], requests: int = 1, traffic: Any = None, *, seed: int = 0, stage: int = 0
) -> list[int]:
    """Return the replicas that a router chooses for some requests."""
    made = ROUTERS[router].make(traffic, router_generator(seed, stage))
    return [made.choose(replicas, request) for request in range(requests)]  # type: ignore[arg-type]


def test_what_routers_choose() -> None:
    """A waiting request counts as much as four that run (vLLM, waiting * 4 + running)."""
    assert choose("round-robin", [Busy(9, 9), Busy(0, 0)], 4) == [0, 1, 0, 1]
    assert choose("least-loaded", [Busy(1, 2), Busy(0, 7), Busy(0, 5)]) == [2]
    waits = Busy(1, 0)
    assert [choose("least-loaded", [waits, Busy(0, running)]) for running in (3, 5)] == [[1], [0]]
    assert [choose("least-loaded", [Busy(0, running), waits]) for running in (3, 5)] == [[0], [1]]
    traffic = parse_workload("shared-prefix:groups=1,prompts=1").traffic(
        4, rate_per_s=1.0, concurrency=None, arrivals="fixed", seed=0
    )
    assert choose("prefix", [Busy(0, 0, 90.0), Busy(5, 5, 40.0), Busy(0, 0, 60.0)], traffic=traffic) == [1]
    assert sorted(choose("least-loaded", [Busy(0, 0)] * 3, 3)) == [0, 1, 2]


def test_a_random_router_chooses_each_replica_as_often() -> None:
    """Of 8,000 requests each of eight replicas gets 1,000 in the mean, with a deviation of 30 (binomial distribution).

    Two of them in a row go to the same replica in one of eight cases.
    """
    chosen = choose("random", [Busy(9, 9)] + [Busy(0, 0)] * 7, 8000)
    counts = [chosen.count(replica) for replica in range(8)]
    assert all(1000 - 4 * 30 < count < 1000 + 4 * 30 for count in counts)
    repeated = sum(first == second for first, second in itertools.pairwise(chosen))
    assert 1000 - 4 * 30 < repeated < 1000 + 4 * 30


def test_seeds_and_stages_draw_other_replicas() -> None:
    """Two independent choices among eight replicas are the same in one of eight cases: 1,000 of 8,000, +- 30.

    One seed draws the same ones again.
    """
    idle = [Busy(0, 0)] * 8
    first, again = (choose("random", idle, 8000, seed=1) for _ in range(2))
    assert first == again
    for other in (choose("random", idle, 8000, seed=2), choose("random", idle, 8000, seed=1, stage=1)):
        same = sum(one == another for one, another in zip(first, other))
        assert 1000 - 4 * 30 < same < 1000 + 4 * 30


def test_the_seed_of_a_question_is_that_of_a_random_router(tmp_path: Path) -> None:
    """Requests of a file are not drawn."""
    requests = tmp_path / "requests.csv"
    lines = [f"{0.05 * number},2000,64" for number in range(64)]
    requests.write_text("\n".join(["arrival_s,input_tokens,output_tokens", *lines]))
    asked: dict[str, Any] = {"gpu": "h100-sxm", "replicas": 4, "requests": requests}
    first, again, other = (pl.serve("llama-3.1-8b", **asked, router="random", seed=seed) for seed in (1, 1, 2))
    assert first.latencies == again.latencies
    assert first.latencies["ttft_s"]["mean"].value != other.latencies["ttft_s"]["mean"].value


@pytest.mark.parametrize(
    ("router", "decoding"), [("round-robin", "round-robin"), ("random", "random"), ("prefix", "least-loaded")]
)
def test_replicas_that_decode_are_chosen_without_prefixes(router: str, decoding: str) -> None:
    """A router of prefixes finds none where prompts come computed; one in turn or at random needs none."""
    question = pl.Serve("llama-3.1-8b", gpu="h100-sxm", prefill_pool="replicas=2", router=router, rate=1)
    prepared = prepare(make_deployment(question), generate_traffic(Lengths(100), Lengths(2), count=2, rate_per_s=1.0))
    assert prepared.pool("expected").that_decodes().router == decoding


def test_scores_are_those_of_the_endpoint_picker() -> None:
    """Twice the share of the prompt, the share of the cache that is free, and the queue from the longest, 0, to 1.

    After the first request its replica has all of the prompt: 2 + 0.2 + 0 are less than 1 + 1.2, and more than 1 + 1.
    """
    traffic = parse_workload("shared-prefix:groups=1,prompts=1").traffic(
        4, rate_per_s=1.0, concurrency=None, arrivals="fixed", seed=0
    )
    router = ROUTERS["scored"].make(traffic, router_generator(0))
    first, second = Busy(0, 0), Busy(0, 0, used_blocks=50)
    assert router.choose([first, second], 0) == 0  # type: ignore[list-item]
    first.waiting_requests, first.used_blocks, second.used_blocks = 3, 80, 0
    assert router.choose([first, second], 1) == 0  # type: ignore[list-item]
    first.used_blocks = 90
    assert router.choose([second, first], 2) == 1  # type: ignore[list-item]


@pytest.mark.parametrize("router", ["prefix", "scored"])
def test_routers_that_look_for_prefixes_need_some(router: str) -> None:
    with pytest.raises(BadValue, match=f"`--router {router}` needs prefixes"):
        pl.serve("llama-3.1-8b", **COMMON, rate=1, router=router)


@pytest.mark.thorough
@pytest.mark.slow
def test_a_router_by_scores_sustains_twice_as_much_as_one_in_turn() -> None:
    """8,730 tokens/s instead of 4,429 (llm-d's cache manager, benchmark 73-capacity, Qwen3 32B on eight pairs of H100).

    Sequences that share their prompts take only the room of their own tokens, so that the caches hold more of them.
    """
    sustained = {
        router: pl.serve(
            "qwen3-32b", gpu="h100-sxm", tensor=2, replicas=8, router=router, workload="shared-prefix", rate=60,
            num_requests=3000,
        ).figures["saturation_tokens_per_s"].value
        for router in ("round-robin", "scored")
    }  # fmt: skip
    assert sustained["scored"] / sustained["round-robin"] == pytest.approx(8730 / 4429, rel=1 / 3)


def test_shared_prompts_do_not_limit_the_sequences() -> None:
    """298,640 tokens hold 36 prompts of 8,200 tokens; of prompts in common more sequences run."""
    found = pl.serve(
        "qwen3-32b", gpu="h100-sxm", tensor=2, concurrency=100, num_requests=200,
        workload="shared-prefix:groups=1,prompts=1,system=6000,question=1200,output=1000",
    )  # fmt: skip
    assert found.cache_tokens / 8200 < 40 and found.figures["mean_sequences"].value > 60


def test_a_session_leaves_the_longest_queue() -> None:
    """SGLang's gateway: a queue that is 32 requests and 1.5 times longer than the shortest is left."""
    traffic = parse_workload("conversation:turns=2").traffic(
        2, rate_per_s=1, concurrency=None, arrivals="fixed", seed=0
    )
    made = ROUTERS["sticky"].make(traffic, router_generator(0))
    first, second = Busy(0, 0), Busy(0, 0)
    chosen = []
    for request, running in ((0, (5, 3)), (1, (3, 30)), (1, (3, 60))):
        first.running_requests, second.running_requests = running
        chosen.append(made.choose([first, second], request))  # type: ignore[list-item]
    assert chosen == [1, 1, 0]
    assert made.choose([second, first], 1) == 1  # type: ignore[list-item]  # that with the shorter queue, in any order
    first.running_requests = second.running_requests = 3
    assert made.choose([second, first], 1) == 0  # type: ignore[list-item]  # its home again
    assert made.choose([first], 1) == 0  # type: ignore[list-item]  # where its home has failed
    assert made.choose([second, first], 1) == 1  # type: ignore[list-item]


def test_one_shared_prefix_does_not_go_to_one_replica() -> None:
    """A router that looks at prefixes only sends all requests to one replica: those that weigh loads do not."""
    answer = pl.serve(
        "llama-3.1-8b", **COMMON, workload="shared-prefix:groups=1,prompts=200,question=64,output=50", rate=40,
        router="prefix",
    )  # fmt: skip
    assert answer.prefix_hit_rates is not None and len(answer.prefix_hit_rates) == 4


def test_sticky_routers_need_sessions() -> None:
    with pytest.raises(BadValue, match="`--router sticky` needs sessions"):
        pl.serve("llama-3.1-8b", **COMMON, rate=5, router="sticky")

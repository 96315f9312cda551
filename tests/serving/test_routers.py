"""Routers: which replica a request goes to, and what that does to hits and queues."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest

import paleo_lite as pl
from paleo_lite.errors import BadValue
from paleo_lite.serving.routers import ROUTERS
from paleo_lite.serving.workloads import parse_workload

SESSIONS = "conversation:turns=5,question=640,output=1"
COMMON: dict[str, Any] = {"gpu": "h100-sxm", "replicas": 4, "num_requests": 100}


def hit_rate(answer: Any) -> float:
    """Return the share of the prompts' tokens that were found."""
    return float(answer.figures["prefix_hit_rate"].value)


@pytest.mark.parametrize(("router", "least"), [("prefix", 0.5), ("sticky", 0.65)])
def test_sessions_find_their_history_at_one_replica_only(router: str, least: float) -> None:
    """Round r finds (r - 1) / r of its prompt, all five rounds 4 / 6; one of four replicas in turn finds less.

    A router that weighs prefixes against blocks in use moves some sessions.
    """
    home = pl.serve("llama-3.1-8b", **COMMON, workload=SESSIONS, concurrency=8, router=router)
    in_turn = pl.serve("llama-3.1-8b", **COMMON, workload=SESSIONS, concurrency=8)
    assert least < hit_rate(home) < 0.67
    assert hit_rate(in_turn) < 0.5 * hit_rate(home)
    assert home.prefix_hit_rates is not None and len(home.prefix_hit_rates) == 4


class Busy(NamedTuple):
    """A replica as routers see it."""

    waiting_requests: int
    running_requests: int
    blocks: float = 0.0

    def cost_blocks(self, request: int) -> float:
        """Return what there is to do."""
        return self.blocks


def choose(router: str, replicas: list[Busy], requests: int = 1, traffic: Any = None) -> list[int]:
    """Return the replicas that a router chooses for some requests."""
    made = ROUTERS[router].make(traffic)
    return [made.choose(replicas, request) for request in range(requests)]  # type: ignore[arg-type]


def test_what_routers_choose() -> None:
    """A waiting request counts as much as four that run (vLLM, waiting * 4 + running)."""
    assert choose("round-robin", [Busy(9, 9), Busy(0, 0)], 4) == [0, 1, 0, 1]
    assert choose("least-loaded", [Busy(1, 2), Busy(0, 7), Busy(0, 5)]) == [2]
    assert choose("prefix", [Busy(0, 0, 90.0), Busy(5, 5, 40.0), Busy(0, 0, 60.0)]) == [1]
    assert sorted(choose("least-loaded", [Busy(0, 0)] * 3, 3)) == [0, 1, 2]


def test_a_session_leaves_the_longest_queue() -> None:
    """SGLang's gateway: a queue that is 32 requests and 1.5 times longer than the shortest is left."""
    traffic = parse_workload("conversation:turns=2").traffic(
        2, rate_per_s=1, concurrency=None, arrivals="fixed", seed=0
    )
    made = ROUTERS["sticky"].make(traffic)
    assert made.choose([Busy(0, 5), Busy(0, 3)], 0) == 1  # type: ignore[list-item]
    assert made.choose([Busy(0, 3), Busy(0, 30)], 1) == 1  # type: ignore[list-item]
    assert made.choose([Busy(0, 3), Busy(0, 60)], 1) == 0  # type: ignore[list-item]


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

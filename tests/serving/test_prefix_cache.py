"""Prefix caching: what a cache of blocks finds, alone and in a simulated server.

Tests: serving/prefix_cache.py, and its use in serving/simulator.py and serving/requests.py.
"""

from __future__ import annotations

import gzip
import json
import random
from pathlib import Path

import msgspec
import pytest

import paleo_lite as pl
from measured import DATA
from paleo_lite.errors import BadFile, BadValue
from paleo_lite.serving.deployment import Deployment
from paleo_lite.serving.lengths import Lengths
from paleo_lite.serving.prefix_cache import BlocksOfRequests, PrefixCache, PrefixesOfRequests, prefix_hit_rate
from paleo_lite.serving.prepared import prepare
from paleo_lite.serving.requests import generate_traffic, read_trace

SERVER = {"network": "llama-3.2-1b", "gpu": "a100-sxm-80gb"}


def turns(users: int, rounds: int) -> list[list[int]]:
    """Conversations in which every turn adds a block to the prompt, the users one after another in every round."""
    return [[1000 * user + block for block in range(turn)] for turn in range(1, rounds + 1) for user in range(users)]


@pytest.mark.parametrize("rounds", [2, 5, 8])
def test_conversations_find_all_but_their_last_turn(rounds: int) -> None:
    """Turn r finds r - 1 of its r blocks."""
    found, total = sum(range(rounds)), sum(range(1, rounds + 1))
    assert prefix_hit_rate(turns(7, rounds)) == pytest.approx(found / total)


def test_a_cache_that_is_smaller_than_all_conversations_finds_nothing_from_then_on() -> None:
    """Seven users take turns: what the others used last is evicted before a user comes again."""
    prompts = turns(7, 6)
    assert prefix_hit_rate(prompts, blocks=7 * 6) == prefix_hit_rate(prompts)
    assert prefix_hit_rate(prompts, blocks=7) < 0.25 * prefix_hit_rate(prompts)


def test_the_ends_of_prompts_go_before_their_beginnings() -> None:
    cache = PrefixCache()
    cache.hold([1, 2, 3, 4])
    assert cache.release([1, 2, 3, 4]) == 4
    cache.evict(2)
    assert cache.count_found([1, 2, 3, 4]) == 2


def test_blocks_that_a_request_holds_are_not_evicted() -> None:
    cache = PrefixCache()
    assert cache.hold([1, 2]) == 2 and cache.hold([1, 2, 3]) == 1
    assert cache.release([1, 2, 3]) == 1
    cache.evict(0)
    assert cache.count_found([1, 2, 3]) == 2


def test_a_part_of_a_block_takes_less_room_and_goes_first() -> None:
    """Blocks of 32 blocks of the KV cache, but for the last one of two, which has 18."""
    cache = PrefixCache(size=32, lacking={(9, 300): 14})
    assert cache.hold([1, (9, 300)]) == 32 + 18 and cache.hold([1, (9, 300)]) == 0
    assert cache.release([1, (9, 300)]) == 0 and cache.release([1, (9, 300)]) == 32 + 18
    assert cache.unused_size == 50 and cache.measure_unheld([1, (9, 300)]) == 50
    cache.evict(50)
    assert cache.count_found([1, (9, 300)]) == 2
    cache.evict(49)
    assert cache.count_found([1, (9, 300)]) == 1 and cache.unused_size == 32


@pytest.mark.spread(2)
@pytest.mark.needs_data
@pytest.mark.parametrize(
    ("blocks", "rate"), [(1_000, 0.0445), (10_000, 0.2116), (50_000, 0.3546), (None, 0.3664)]
)  # fmt: skip
def test_hit_rates_of_an_hour_of_conversations(blocks: int | None, rate: float) -> None:
    """Dynamo's documentation states 36.64% for Mooncake's conversation trace without a limit."""
    traffic = read_trace(DATA / "traffic/mooncake_conversation.jsonl.gz")
    assert traffic.hashes is not None and len(traffic) == 12_031
    assert round(prefix_hit_rate(traffic.hashes, blocks), 4) == rate


def write_trace(path: Path, lines: list[dict[str, object]]) -> Path:
    content = "".join(json.dumps(line) + "\n" for line in lines)
    if path.suffix == ".gz":
        path.write_bytes(gzip.compress(content.encode()))
    else:
        path.write_text(content)
    return path


def line(timestamp: float, hashes: list[int] | None, tokens: int | None = None, answer: int = 4) -> dict[str, object]:
    length = 512 * len(hashes or [0]) if tokens is None else tokens
    found: dict[str, object] = {"timestamp": timestamp, "input_length": length, "output_length": answer}
    return found if hashes is None else {**found, "hash_ids": hashes}


@pytest.mark.parametrize("name", ["trace.jsonl", "trace.jsonl.gz"])
def test_a_server_computes_what_its_cache_does_not_find(tmp_path: Path, name: str) -> None:
    """The second request finds two of four blocks, the third all but the last of vLLM's blocks, of 16 tokens."""
    lines = [line(0, [1, 2, 3, 4]), line(60_000, [1, 2, 5, 6]), line(120_000, [1, 2, 3, 4])]
    serving = pl.serve(**SERVER, requests=write_trace(tmp_path / name, lines))
    assert serving.figures["prefix_hit_rate"].value == pytest.approx((0 + 1024 + 2048 - 16) / (3 * 2048))
    assert any(note.startswith("50.0% of the blocks of these prompts were in earlier ones") for note in serving.notes)
    without = pl.serve(
        **SERVER, requests=write_trace(tmp_path / "plain.jsonl", [line(0, None, 2048) for _ in range(3)])
    )
    assert "prefix_hit_rate" not in without.figures


@pytest.mark.parametrize(
    ("engine", "settings", "computed_tokens"),
    [
        ("vllm", "", 16),  # get_computed_blocks: whole blocks of the first 1,023 tokens
        ("vllm", "block-size=128", 128),
        ("sglang", "", 1),  # init_next_round_input: pages of one token
        ("tensorrt-llm", "", 1),  # addSequence: also a part of a block, up to the last token
    ],
)
def test_of_a_prompt_that_is_there_an_engine_computes_its_own_last_block(
    tmp_path: Path, engine: str, settings: str, computed_tokens: int
) -> None:
    """The blocks of the trace have 512 tokens, those of engines fewer; only the first prompt is computed whole."""
    trace = write_trace(tmp_path / "trace.jsonl", [line(10_000 * number, [1, 2]) for number in range(4)])
    options = {"engine_settings": settings} if settings else {}
    serving = pl.serve(**SERVER, engine=engine, requests=trace, **options)
    assert serving.figures["prefix_hit_rate"].value == pytest.approx(3 * (1024 - computed_tokens) / (4 * 1024))


def test_a_trace_finds_what_prompts_end_with(tmp_path: Path) -> None:
    """Of a prompt of 812 tokens that was there before all blocks of 16 but the last token's, 800, are found.

    Where the part of a block of 512 differs, 512 are. Of 300 tokens 288 are; equal hashes of parts of another length
    are hashes of something else. vLLM's `get_computed_blocks` looks for the blocks of all tokens but the last.
    """
    prompts = [(812, [1, 2]), (812, [1, 2]), (812, [1, 3]), (300, [4]), (300, [4]), (299, [4]), (8, [5]), (8, [5])]
    path = write_trace(tmp_path / "trace.jsonl", [line(0, hashes, tokens) for tokens, hashes in prompts])
    prefixes = PrefixesOfRequests(BlocksOfRequests(read_trace(path), 16), 16, reuses_parts=False)
    found_tokens = []
    for request, (tokens, _) in enumerate(prompts):
        found_tokens.append(prefixes.find(request, tokens)[0])
        prefixes.hold_found(request)
        shared_tokens, _ = prefixes.hold_computed(request)
        assert shared_tokens == tokens // 16 * 16  # full blocks, which others may find
        prefixes.release(request)
    assert found_tokens == [0, 800, 512, 0, 288, 0, 0, 0]
    assert prefixes.cache.unused_size == 32 + 2 * 18 + 18 + 18  # blocks of 16 in 512, twice in 300, and in 300 and 299


def test_common_prefixes_make_first_tokens_earlier(tmp_path: Path) -> None:
    system = list(range(16))
    shared = [line(200 * number, [*system, 100 + number]) for number in range(40)]
    apart = [line(200 * number, [1000 * number + block for block in range(17)]) for number in range(40)]
    fast, slow = (
        pl.serve(**SERVER, requests=write_trace(tmp_path / f"{name}.jsonl", lines))
        for name, lines in (("shared", shared), ("apart", apart))
    )
    assert fast.figures["prefix_hit_rate"].value == pytest.approx(39 * 16 / (40 * 17))
    assert fast.latencies["ttft_s"]["mean"].value < slow.latencies["ttft_s"]["mean"].value / 3


@pytest.mark.parametrize(
    ("lines", "sentence"),
    [
        ([line(0, [1], 600)], "line 1: a prompt of 600 tokens has 2 blocks of 512 tokens, but hash_ids has 1"),
        ([line(5, [1]), line(3, [2])], "line 2: timestamp must not be below that of the line before"),
        ([line(0, [1]), line(1, None)], "line 2: all lines have hash_ids, or none has"),
        ([line(0, [1], 0)], "line 1: Expected `int` >= 1 - at `\\$.input_length`"),
        ([{"timestamp": 0}], "line 1: Object missing required field `input_length`"),
        ([], "the trace has no requests"),
    ],
)
def test_bad_traces_get_one_sentence(tmp_path: Path, lines: list[dict[str, object]], sentence: str) -> None:
    with pytest.raises(BadFile, match=sentence):
        read_trace(write_trace(tmp_path / "trace.jsonl", lines))


def test_what_cannot_be_read_gets_one_sentence(tmp_path: Path) -> None:
    damaged = tmp_path / "trace.jsonl.gz"
    damaged.write_bytes(gzip.compress(b'{"timestamp": 0}\n')[:-12])
    with pytest.raises(BadFile, match=r"trace\.jsonl\.gz"):
        read_trace(damaged)
    with pytest.raises(BadFile, match="there is no such file"):
        read_trace(tmp_path / "missing.jsonl")
    with pytest.raises(BadValue, match="a prefix cache holds at least 1 block"):
        prefix_hit_rate([[1]], 0)
    with pytest.raises(BadValue, match="`--prefix-hit-rate` is for requests of which no prefixes are known"):
        trace = write_trace(tmp_path / "trace.jsonl", [line(0, [1])])
        pl.serve(**SERVER, requests=trace, prefix_hit_rate=0.5)


def test_a_trace_that_swells_when_it_is_unpacked_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("paleo_lite.serving.requests._LARGEST_TRACE", 10_000)
    swelling = tmp_path / "trace.jsonl.gz"
    swelling.write_bytes(gzip.compress(b"\n" * 20_000))
    with pytest.raises(BadFile, match="a trace of JSON lines has at most 10,000 bytes: cut it"):
        read_trace(swelling)


def test_a_waiting_request_without_room_is_looked_up_once(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Room is only given back when an answer ends, so that other steps need not look for the blocks of a prompt again.

    Without that, the request is looked up in every step, 600 times.
    """
    looks: list[int] = []
    find = PrefixesOfRequests.find

    def noted(self: PrefixesOfRequests, request: int, tokens: int) -> tuple[int, int]:
        looks.append(request)
        return find(self, request, tokens)

    monkeypatch.setattr(PrefixesOfRequests, "find", noted)
    traffic = generate_traffic(Lengths(1024), Lengths(200, 50), count=40, concurrency=16)
    hashes = tuple((2 * request, 2 * request + 1) for request in range(40))
    traffic = msgspec.structs.replace(traffic, hashes=hashes, hashed_tokens=512)
    fleet = prepare(msgspec.structs.replace(deployment, replicas=2, router="prefix"), traffic)
    room = msgspec.structs.replace(fleet.room, blocks=4 * 1300 // fleet.room.block_tokens)
    outcomes = msgspec.structs.replace(fleet, room=room).run(traffic)
    preemptions = sum(outcome.preemptions for outcome in outcomes)
    assert len(looks) < 3 * (40 + preemptions)


def test_bisection_finds_what_looking_at_each_block_finds() -> None:
    """Two sessions of a common beginning, whose requests begin, end and keep their answers in any order."""
    generator = random.Random(0)
    chains = [[*range(6), *range(100 * number, 100 * number + 20)] for number in (1, 2)]
    bisecting, looking = PrefixCache(is_chained=True), PrefixCache()
    held: list[list[int]] = []
    for _ in range(400):
        chain = generator.choice(chains)
        prompt = chain[: generator.randrange(1, len(chain))]
        found_blocks = looking.count_found(prompt)
        assert bisecting.count_found(prompt) == found_blocks
        assert bisecting.measure_unheld(prompt[:found_blocks]) == looking.measure_unheld(prompt[:found_blocks])
        ends = held and generator.random() < 0.5
        ending = held.pop(generator.randrange(len(held))) if ends else []
        answer = next((chain[len(ending) : len(ending) + 3] for chain in chains if chain[: len(ending)] == ending), [])
        most = generator.randrange(30)
        for cache in (bisecting, looking):
            if ends:
                for block in reversed(answer):
                    cache.keep(block)
                cache.release(ending)
            else:
                cache.hold(prompt)
            cache.evict(most)
        held += [] if ends else [prompt]

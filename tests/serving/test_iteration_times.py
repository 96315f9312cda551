"""Tables of iteration times, against `predict` at single points, and the room of the cache.

Tests: serving/cache.py, serving/layer_timer.py.
"""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

import paleo_lite as pl
from asked import scaling
from paleo_lite.api.question import Question, resolve_question
from paleo_lite.engines.records import find_server
from paleo_lite.errors import BadValue, DoesNotFit
from paleo_lite.serving.cache import cached_bytes, measure_room
from paleo_lite.serving.deployment import timer_of
from paleo_lite.serving.iteration_times import IterationTimes, ScheduledTokens, as_table, slowest_stages
from paleo_lite.serving.placement import ModelOnDevice
from paleo_lite.serving.timer import tabulate


@pytest.fixture(scope="module")
def times(on_device: ModelOnDevice) -> IterationTimes:
    return tabulate(timer_of(on_device), max_new_tokens=8192, max_sequences=512, max_prompt=4096, max_context=4352)


@pytest.mark.parametrize(("batch_size", "context"), [(1, 1000), (64, 1024), (128, 700), (256, 3000)])
def test_a_decode_iteration_is_that_of_predict(times: IterationTimes, batch_size: int, context: int) -> None:
    single = pl.predict(
        "llama-3-8b", gpu="h100-sxm", precision="bf16", phase="decode", context=context, batch_size=batch_size,
        execution="engine",
    )  # fmt: skip
    expected_s = single.time_s - single.terms.overhead_s
    assert times.decode_s(batch_size, batch_size * context) == pytest.approx(expected_s, rel=0.01)


@pytest.mark.parametrize("tokens", [64, 200, 1024, 1500, 3000])
def test_a_prompt_takes_as_long_as_prefill(times: IterationTimes, tokens: int) -> None:
    asked = {"precision": "bf16", "phase": "prefill", "sequence_length": tokens, "execution": "engine"}
    single = pl.predict("llama-3-8b", gpu="h100-sxm", **asked)
    expected_s = single.time_s - single.terms.overhead_s
    prompt_s = times.decode_s(0, 0, tokens, 1) + times.chunk_s(0, tokens)
    assert prompt_s == pytest.approx(expected_s, rel=0.02)


def test_chunks_of_a_prompt_add_up_to_its_attention(times: IterationTimes) -> None:
    whole_s = times.chunk_s(0, 4096)
    chunks_s = sum(times.chunk_s(start, start + 1024) for start in range(0, 4096, 1024))
    assert whole_s <= chunks_s < 1.1 * whole_s


def test_the_ends_of_the_interval_are_below_and_above(times: IterationTimes) -> None:
    low, high = times.scaled("low"), times.scaled("high")
    for sequences in (1, 100, 500):
        seconds = [table.decode_s(sequences, sequences * 500) for table in (low, times, high)]
        assert seconds == sorted(seconds) and seconds[0] < seconds[2]


def test_a_narrower_cache_shortens_attention_only(on_device: ModelOnDevice, times: IterationTimes) -> None:
    narrow = tabulate(
        timer_of(on_device._replace(kv_cache="fp8")),
        max_new_tokens=8192,
        max_sequences=512,
        max_prompt=64,
        max_context=4352,
    )
    assert narrow.token_s == times.token_s
    attention_s, narrow_s = times.decode_attention_s[256][-1], narrow.decode_attention_s[256][-1]
    assert narrow_s == pytest.approx(attention_s / 2, rel=0.05)  # half the bytes of a memory-bound kernel


@pytest.mark.thorough
def test_tensor_parallelism_is_that_of_scale() -> None:
    settings = pl.Settings(parallel=pl.ParallelConfig(tensor=4))
    row = scaling(
        "llama-3-70b",
        platform="p5.48xlarge",
        workers=4,
        precision="bf16",
        phase="decode",
        context=1024,
        batch_size=64,
        settings=settings,
        calibration=None,
        time_model="roofline",
    )[0]
    workload, machine, model = resolve_question(
        Question("llama-3-70b", "h100-sxm", precision="bf16", phase="decode", time_model="roofline")
    )
    from paleo_lite.distributed.platforms import find_platform

    group = find_platform("p5.48xlarge").topology(4).with_workers(4)
    placed = ModelOnDevice(workload, machine, model, group, "bf16")
    table = tabulate(timer_of(placed), max_new_tokens=128, max_sequences=64, max_prompt=64, max_context=2048)
    assert table.decode_s(64, 64 * 1024) == pytest.approx(row.time_s, rel=0.02)


def test_cache_bytes_of_grouped_query_attention(on_device: ModelOnDevice) -> None:
    """Llama 3 8B: 32 layers, 8 key and value heads of 128, 2 bytes: 128 KiB per token (its config.json)."""
    layers = on_device.decode_workload(1023).layers
    assert cached_bytes(layers, "bf16") == 1024 * 32 * 2 * 8 * 128 * 2
    assert cached_bytes(layers, "fp8") == 1024 * 32 * 2 * 8 * 128


def test_room_is_memory_without_weights_and_activations(on_device: ModelOnDevice) -> None:
    engine = find_server("vllm", on_device.machine.device)
    room = measure_room(on_device, engine, mean_tokens=1280, prompt_tokens=1024)
    assert room.weights_bytes == pytest.approx(8.03e9 * 2, rel=0.001)  # 8.03 G parameters in 2 bytes
    total = room.weights_bytes + room.activations_bytes + room.cache_bytes
    context_bytes = (
        0.25 * 2**30
    )  # of an H100 under vLLM 0.19: https://github.com/llm-d-incubation/llm-d-planner/pull/205
    assert total == pytest.approx(0.9 * 85_018_279_936 - context_bytes, rel=0.001)  # bytes that its driver reports
    assert room.blocks == int(room.cache_bytes // (16 * 131072))


def test_a_network_that_does_not_fit() -> None:
    workload, machine, model = resolve_question(
        Question("llama-3-70b", "h100-sxm", precision="bf16", phase="decode", execution="engine")
    )
    placed = ModelOnDevice(workload, machine, model, None, "bf16")
    with pytest.raises(DoesNotFit, match="--tensor"):
        measure_room(placed, find_server("vllm", machine.device), mean_tokens=1280, prompt_tokens=1024)


def test_only_networks_from_configs() -> None:
    with pytest.raises(BadValue, match="resnet18"):
        pl.serve("resnet18", gpu="h100-sxm", rate=1)


@pytest.mark.thorough
def test_a_cache_with_states_says_how_many_sequences_of_these_requests_it_holds() -> None:
    """Qwen3-Next 80B: 36 of 48 layers keep a state of 32 heads of 128 x 128 numbers in fp32 (config.json)."""
    asked = {"gpu": "h200-sxm", "tensor": 2, "concurrency": 2, "num_requests": 4, "output_tokens": 16}
    short, long = (pl.serve("qwen3-next-80b-a3b", input_tokens=tokens, **asked) for tokens in (128, 4096))
    assert short.cache_tokens < long.cache_tokens and short.cache_bytes == long.cache_bytes
    state_bytes = 36 * 32 // 2 * 128 * 128 * 4
    for found in (short, long):
        (note,) = [note for note in found.notes if note.startswith("the cache has room for")]
        assert f"{state_bytes / 1e6:.1f} MB of each do not grow" in note
    dense = pl.serve("llama-3.2-1b", input_tokens=128, **asked | {"tensor": 1})
    assert not [note for note in dense.notes if note.startswith("the cache has room for")]


def test_iterations_with_prompts_are_scaled_as_the_others() -> None:
    """Their tables differ in tokens and experts alone, and have the others in common, in eight bytes a number."""
    plain = IterationTimes(
        token_s=as_table([0.0, 0.1, 0.2, 0.3]),
        head_s=as_table([0.0, 0.01, 0.02, 0.03]),
        contexts=[1.0, 2.0],
        decode_attention_s=[[0.0, 0.0], [0.5, 0.7]],
        prompt_attention_s=as_table([0.0, 0.25, 0.5]),
        relative_low=(),
        relative_high=(),
    )
    with_prompts = msgspec.structs.replace(plain, token_s=as_table([0.0, 0.4, 0.6, 0.8]))
    times = msgspec.structs.replace(plain, with_prompts=with_prompts)
    scheduled = ScheduledTokens(1, 2.0, [(0, 2)], 1)
    scaled = times.times_factors([1.5])
    assert scaled.iteration_s(scheduled) == pytest.approx(1.5 * times.iteration_s(scheduled))
    assert times.iteration_s(scheduled) == pytest.approx(0.8 + 0.02 + 0.7 + 0.5)
    assert scaled.with_prompts is not None and scaled.with_prompts.head_s is scaled.head_s
    assert memoryview(scaled.token_s).nbytes == 8 * len(plain.token_s)  # type: ignore[arg-type]


def test_groups_of_attention_compute_their_own_chunks() -> None:
    """Each of two groups decodes one of two sequences; one computes a token of a prompt, the other two.

    The iteration takes the tokens of the busier group, 1 + 2, and its attention; of the three sampled tokens a group
    has two at the most.
    """
    times = IterationTimes(
        token_s=as_table([0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7]),
        head_s=as_table([0.0, 0.01, 0.02, 0.03]),
        contexts=[1.0, 2.0],
        decode_attention_s=[[0.0, 0.0], [0.5, 0.7]],
        prompt_attention_s=as_table([0.0, 1.0, 3.0, 7.0]),
        relative_low=(),
        relative_high=(),
        attention_data=2,
    )
    scheduled = ScheduledTokens(2, 4.0, [(2, 3), (0, 2)], 1, [0, 1])
    assert times.iteration_s(scheduled) == pytest.approx(0.3 + 0.02 + 0.7 + 4.0)
    scheduled = ScheduledTokens(2, 4.0, [(2, 3), (0, 2)], 1, [0, 0])  # both in one group: 1 + 3 tokens
    assert times.iteration_s(scheduled) == pytest.approx(0.4 + 0.02 + 0.7 + 7.0)


def test_links_of_a_node_take_memory_for_their_communicators() -> None:
    """vLLM 0.18 prints 2.07 GiB outside of PyTorch on each of two H100 over NVLink, and 0.25 on one."""
    asked = {
        "gpu": "h100-sxm",
        "tensor": 2,
        "concurrency": 2,
        "num_requests": 4,
        "input_tokens": 128,
        "output_tokens": 16,
    }
    joined, apart = (pl.serve("llama-3.1-8b", **asked, **link) for link in ({}, {"link": "pcie5-x16"}))
    assert (apart.cache_bytes - joined.cache_bytes) / 2**30 == pytest.approx(2.07 - 0.25)


TABLES = IterationTimes(
    token_s=[1.0, 2.0, 3.0, 5.0], head_s=[0.5, 1.0, 1.5, 2.5], contexts=[0.0, 100.0],
    decode_attention_s=[[0.0, 0.0], [1.0, 3.0], [2.0, 6.0], [3.0, 9.0]], prompt_attention_s=[0.0, 0.1, 0.4, 0.9],
    relative_low=[0.5] * 4, relative_high=[2.0] * 4, experts_s=[0.0, 7.0, 11.0, 13.0], prompt_s=0.25,
)  # fmt: skip
WITH_PROMPTS = msgspec.structs.replace(TABLES, token_s=[10.0, 20.0, 30.0, 50.0], experts_s=[0.0, 70.0, 110.0, 130.0])
BOTH = msgspec.structs.replace(TABLES, with_prompts=WITH_PROMPTS)
DECODING = ScheduledTokens(2, 100.0)
MIXED = ScheduledTokens(1, 50.0, [(0, 2)], 1)
ITERATIONS = [(DECODING, 3.0 + 1.5 + 4.0 + 11.0), (MIXED, 50.0 + 1.5 + 2.0 + 130.0 + 0.4 + 0.25)]
"""Iterations with the sums of tokens, heads, attention of half the largest context, experts and prompts."""


@pytest.mark.parametrize(("scheduled", "expected_s"), ITERATIONS)
def test_an_iteration_is_the_sum_of_its_parts(scheduled: ScheduledTokens, expected_s: float) -> None:
    """Iterations with prompts have tables of their own."""
    assert BOTH.iteration_s(scheduled) == pytest.approx(expected_s)


@pytest.mark.parametrize(("scheduled", "expected_s"), ITERATIONS)
def test_tables_times_a_factor_have_iterations_times_the_factor(scheduled: ScheduledTokens, expected_s: float) -> None:
    assert BOTH.times_factors([3.0] * 4).iteration_s(scheduled) == pytest.approx(3 * expected_s)
    assert BOTH.scaled("low").iteration_s(scheduled) == pytest.approx(expected_s / 2)
    assert BOTH.scaled("high").iteration_s(scheduled) == pytest.approx(expected_s * 2)


@pytest.mark.parametrize(("scheduled", "expected_s"), ITERATIONS)
def test_a_share_of_the_blocks_takes_its_share_beside_the_whole_head(
    scheduled: ScheduledTokens, expected_s: float
) -> None:
    head_s = 1.5
    assert BOTH.of_blocks(0.25).iteration_s(scheduled) == pytest.approx(head_s + (expected_s - head_s) / 4)


@pytest.mark.parametrize("field", ["token_s", "head_s", "decode_attention_s", "prompt_attention_s", "prompt_s"])
def test_a_stage_that_is_slower_in_one_place_is_kept(field: str) -> None:
    slower = msgspec.structs.replace(TABLES, **{field: (1.01 * np.asarray(getattr(TABLES, field))).tolist()})
    assert TABLES.is_never_slower_than(slower) and not slower.is_never_slower_than(TABLES)
    assert slowest_stages([TABLES, slower]) == slowest_stages([slower, TABLES]) == (slower,)
    assert slowest_stages([TABLES, TABLES]) == (TABLES,)


def test_groups_of_attention_wait_for_the_one_with_the_most_sequences() -> None:
    """Three sequences on two groups: two of them on one; all of them pass the experts, and are divided for the head."""
    groups = msgspec.structs.replace(TABLES, attention_data=2)
    assert groups.iteration_s(ScheduledTokens(3, 150.0)) == pytest.approx(3.0 + 1.5 + 4.0 + 13.0)
    by_rank = ScheduledTokens(0, 0.0, [(0, 1), (0, 2)], 1, [0, 1])
    assert groups.iteration_s(by_rank) == pytest.approx(3.0 + 1.0 + 13.0 + 0.4 + 0.25)

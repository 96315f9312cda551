"""Stages of a pipeline: blocks, weights, links, sends, cache, and the limits of latency and throughput."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import paleo_lite as pl
from paleo_lite.api.question import Question, resolve_question
from paleo_lite.distributed.links import link_rate
from paleo_lite.distributed.platforms import find_platform
from paleo_lite.errors import BadValue
from paleo_lite.questions.serve_deployment import make_deployment
from paleo_lite.serving.cache import measure_room
from paleo_lite.serving.deployment import Deployment, timer_of
from paleo_lite.serving.lengths import Lengths
from paleo_lite.serving.pipeline import PipelineStages, connect_stages, send_time_s, split_blocks, stage_workloads
from paleo_lite.serving.placement import ModelOnDevice
from paleo_lite.serving.prepared import prepare
from paleo_lite.serving.requests import generate_traffic
from paleo_lite.serving.timer import tabulate
from paleo_lite.timing.memory import model_bytes


def with_stages(on_device: ModelOnDevice, degree: int, link: str = "nvlink4") -> ModelOnDevice:
    return on_device._replace(pipeline=connect_stages(degree, 1, device_link=link))


def test_blocks_are_divided_as_vllm_does() -> None:
    # test_uneven_auto_partition in tests/distributed/test_pipeline_partition.py of vLLM
    assert split_blocks(2, 2) == [1, 1]
    assert split_blocks(3, 2) == [2, 1]
    assert split_blocks(3, 3) == [1, 1, 1]
    assert split_blocks(4, 3) == [1, 2, 1]
    assert split_blocks(5, 3) == [2, 2, 1]
    with pytest.raises(BadValue, match="`--pipeline` must be <= 3"):
        split_blocks(3, 4)


def test_weights_of_stages_add_up_to_those_of_the_network(on_device: ModelOnDevice) -> None:
    decode = on_device.decode_workload(100)
    for degree in (2, 3, 8):
        stages = stage_workloads(decode, on_device.workload.network, with_stages(on_device, degree).pipeline)
        assert sum(model_bytes(stage)[0] for stage in stages) == model_bytes(decode)[0]
        # Embedding and head of Llama 3 8B: 128,256 x 4,096 each, in 16 bits.
        first, last = model_bytes(stages[0])[0], model_bytes(stages[-1])[0]
        assert min(first, last) > 128256 * 4096 * 2


def test_a_tied_head_is_a_copy_on_the_last_stage() -> None:
    workload, _, _ = resolve_question(Question("llama-3.2-1b", "h100-sxm", precision="bf16", phase="decode"))
    stages = stage_workloads(workload, workload.network, connect_stages(2, 1, device_link="nvlink4"))
    # The shared matrix of Llama 3.2 1B: 128,256 x 2,048 in 16 bits.
    assert sum(model_bytes(stage)[0] for stage in stages) == model_bytes(workload)[0] + 128256 * 2048 * 2


def test_a_send_takes_latency_and_bytes_over_bandwidth(on_device: ModelOnDevice) -> None:
    link = link_rate("25 GB/s")
    workload = on_device.decode_workload(100)
    tokens = np.array([1, 1000])
    # hidden size 4,096, 2 bytes, 3 boundaries at 25 GB/s without latency
    expected = 3 * tokens * 4096 * 2 / 25e9
    assert send_time_s(PipelineStages((link,) * 3), workload, tokens) == pytest.approx(expected)
    assert send_time_s(PipelineStages(), workload, tokens) == 0.0


def test_boundaries_between_nodes_use_their_link() -> None:
    topology = find_platform("p5.48xlarge").topology(16)
    assert topology.inside is not None and topology.between is not None
    inside, between = topology.inside.name, topology.between.name
    names = [link.name for link in connect_stages(4, 4, device_link=None, topology=topology).boundaries]
    assert names == [inside, between, inside]
    assert [link.name for link in connect_stages(2, 8, device_link=None, topology=topology).boundaries] == [between]
    with pytest.raises(BadValue, match="`--tensor` must divide the 8 devices"):
        connect_stages(4, 3, device_link=None, topology=topology)
    for degree in (0, -1, True):
        with pytest.raises(BadValue, match="`--pipeline` must be an integer >= 1"):
            connect_stages(degree, 1, device_link="nvlink4")


def test_stages_add_up_to_the_iteration_without_a_pipeline(on_device: ModelOnDevice) -> None:
    sizes = {"max_new_tokens": 300, "max_sequences": 20, "max_prompt": 256, "max_context": 512}
    whole = tabulate(timer_of(on_device), **sizes)
    pipelined = on_device._replace(pipeline=PipelineStages((link_rate("1000000 GB/s"),)))
    divided = tabulate(timer_of(pipelined), **sizes)
    assert not whole.stages and whole.pipeline == 1 and divided.pipeline == 2
    for sequences, cached in ((1, 100), (20, 9000)):
        together = divided.decode_s(sequences, cached)
        assert together == pytest.approx(whole.decode_s(sequences, cached), rel=1e-6)
        slowest = max(stage.decode_s(sequences, cached) for stage in divided.stages)
        assert together / 2 <= slowest * (1 + 1e-9) <= together
    assert divided.chunk_s(100, 200) == pytest.approx(whole.chunk_s(100, 200), rel=1e-6)
    low = divided.scaled("low")
    assert all(scaled.decode_s(5, 1000) < stage.decode_s(5, 1000) for scaled, stage in zip(low.stages, divided.stages))


def test_the_cache_holds_no_more_than_the_memory_of_all_stages(deployment: Deployment) -> None:
    engine = deployment.engine
    one = measure_room(deployment.on_device, engine, mean_tokens=500, prompt_tokens=400)
    token_bytes = 2 * 32 * 8 * 128 * 2  # keys and values of 32 layers with 8 heads of 128 in 16 bits
    for degree in (2, 4):
        on_device = with_stages(deployment.on_device, degree)
        room = measure_room(on_device, engine, mean_tokens=500, prompt_tokens=400)
        # Weights are there once, so that more than the same multiple is free, but no more than all memory.
        assert room.tokens > degree * one.tokens
        device_bytes = on_device.machine.device.memory_bytes
        assert room.tokens * token_bytes + model_bytes(on_device.decode_workload(10))[0] < degree * device_bytes


def test_latency_and_throughput_of_a_pipeline(deployment: Deployment) -> None:
    lengths = Lengths(200), Lengths(50)
    on_device = with_stages(deployment.on_device, 4)
    pipelined = Deployment(on_device, deployment.engine)
    single = generate_traffic(*lengths, count=3, concurrency=1)
    many = generate_traffic(*lengths, count=1500, rate_per_s=float("inf"))
    prepared = prepare(pipelined, many)
    (outcome,) = prepared.run(single)
    tpot_s = (outcome.finish_s - outcome.first_token_s) / (outcome.output_tokens - 1)
    # One user: every token passes all stages, which takes at least as long as on one device.
    assert tpot_s.min() >= prepare(deployment, single).tables.decode_s(1, 200) * (1 - 1e-6)
    (outcome,) = prepared.run(many)
    (alone,) = prepare(deployment, many).run(many)
    assert outcome.peak_blocks <= outcome.blocks
    # Four devices are at most four times as fast, but for the smaller batches that a cache of four devices allows.
    assert 2 * outcome.finish_s.max() < alone.finish_s.max() < 4 * outcome.finish_s.max()
    # Little's law: mean number of decoding sequences = rate of requests x mean time in decoding.
    decoding_s = float((outcome.finish_s - outcome.first_token_s).sum())
    assert outcome.sequence_s == pytest.approx(decoding_s, rel=0.02)


def test_stages_have_the_blocks_that_are_stated(on_device: ModelOnDevice) -> None:
    """Weights of a block of Llama 3 8B: 218,112,000 numbers (its config) in 16 bits; the ends have a table of words."""
    decode, table_bytes, block_bytes = on_device.decode_workload(100), 128256 * 4096 * 2, 218_112_000 * 2
    pipeline = connect_stages(3, 1, device_link="nvlink4", blocks=(14, 12, 6))
    first, middle, last = (model_bytes(stage)[0] for stage in stage_workloads(decode, decode.network, pipeline))
    assert (first, middle) == (table_bytes + 14 * block_bytes, 12 * block_bytes)
    assert last == table_bytes + 6 * block_bytes + 4096 * 2  # with the final norm
    with pytest.raises(BadValue, match="has 31 blocks, but llama-3-8b has 32"):
        stage_workloads(decode, decode.network, connect_stages(2, 1, device_link="nvlink4", blocks=(16, 15)))


@pytest.mark.thorough
def test_a_server_with_stated_stages_is_as_slow_as_the_longest() -> None:
    asked = {"gpu": "l4", "pipeline": 2, "concurrency": 8, "num_requests": 40, "input_tokens": 256, "output_tokens": 32}
    usual, uneven = (
        pl.serve("llama-3.1-8b", **asked, **more) for more in ({}, {"engine_settings": "stage-blocks=22+10"})
    )
    assert uneven.tokens_per_s < 0.85 * usual.tokens_per_s
    assert "VLLM_PP_LAYER_PARTITION=22,10 vllm serve" in uneven.launch_command
    even = pl.serve("llama-3.1-8b", **asked, engine_settings="stage-blocks=16+16")
    assert even.tokens_per_s == usual.tokens_per_s


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"engine_settings": "stage-blocks=16+x"}, r"blocks of every stage, such as 42\+36 \(got '16\+x'\)"),
        ({"engine_settings": "stage-blocks=32"}, r"one number for each of the 2 stages of `--pipeline` \(got 32\)"),
        (
            {"engine_settings": "stage-blocks=16+16", "engine": "tensorrt-llm"},
            "is for vllm and sglang, not for tensorrt",
        ),
    ],
)
def test_stages_that_cannot_be(options, message) -> None:
    with pytest.raises(BadValue, match=message):
        pl.serve("llama-3.1-8b", gpu="l4", pipeline=2, rate=1, **options)


def test_stages_in_several_computers_send_over_their_network() -> None:
    """A DGX H100 holds eight devices: two stages of eight are in two of them, two of four in one."""

    def boundaries(**options: Any) -> list[str]:
        question = pl.Serve("llama-3-70b", pipeline=2, **options)
        return [link.name for link in make_deployment(question).on_device.pipeline.boundaries]

    stated = boundaries(platform="dgx-h100", tensor=8)
    assert boundaries(gpu="h100-sxm", tensor=8) == stated == ["8x infiniband-ndr"]
    assert boundaries(gpu="h100-sxm", tensor=4) == ["nvlink4-x18"]
    assert boundaries(gpu="h100-sxm", tensor=8, link="nvlink4-x18") == ["nvlink4-x18"]

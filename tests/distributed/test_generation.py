"""Text generation on several devices: published times, communication volumes, `serve`, and invalid arguments.

Tests: distributed/generation.py, distributed/replica.py.
"""

from __future__ import annotations

import json

import numpy as np
import pytest

import paleo_lite as pl
from asked import scaling
from paleo_lite.api.question import Question, resolve_question
from paleo_lite.architectures import find_network
from paleo_lite.architectures.network import SequenceOptions
from paleo_lite.distributed import clusters, generation
from paleo_lite.distributed.links import link_rate
from paleo_lite.distributed.parallel_config import ParallelConfig
from paleo_lite.distributed.platforms import parse_topology
from paleo_lite.distributed.replica import link_devices
from paleo_lite.distributed.request import Feed
from paleo_lite.distributed.settings import Settings
from paleo_lite.engines.division import Division
from paleo_lite.engines.memory import activation_bytes
from paleo_lite.engines.records import find_server
from paleo_lite.engines.routing import parse_expert_load
from paleo_lite.errors import PaleoError
from paleo_lite.serving import iteration as serving_iteration
from paleo_lite.serving.cache import measure_room
from paleo_lite.serving.iteration import with_fitted_host
from paleo_lite.serving.iteration_times import ScheduledTokens
from paleo_lite.serving.kernel_timer import KernelTimer
from paleo_lite.serving.placement import ModelOnDevice, tensor_group, with_kernels
from paleo_lite.serving.timer import tabulate

# Published: devices, sequences per batch, tokens in the KV cache, seconds per token; no fit used them. InternLM's
# lmdeploy 0.1 (docs/en/benchmark/a100_fp16.md, medians; the cache in the middle of the answer), and meta-pytorch's
# gpt-fast (README.md and mixtral-moe/README.md: one sequence, short prompts).
LMDEPLOY = {
    "llama-2-7b": [(1, 1, 1152, 0.010), (1, 32, 1152, 0.021)],
    "llama-2-70b": [(4, 1, 192, 0.029), (4, 16, 1152, 0.033), (4, 64, 192, 0.037), (4, 64, 1152, 0.043)],
}
GPT_FAST = {
    "llama-2-7b": [(2, 1, 100, 1 / 168.84)],
    "llama-2-70b": [(2, 1, 100, 1 / 21.32), (4, 1, 100, 1 / 38.01), (8, 1, 100, 1 / 62.5)],
    "mixtral-8x7b": [(2, 1, 100, 1 / 78.75), (4, 1, 100, 1 / 118.23)],
}

# NVIDIA's TensorRT-LLM 0.5 (docs/source/performance.md, A100, FP16): devices, tokens of the prompt, seconds.
FIRST_TOKENS = {
    "llama-2-7b": [(1, 128, 0.016), (1, 2048, 0.133)],
    "llama-2-70b": [(4, 128, 0.047), (4, 2048, 0.377)],
}

# meta-llama/Llama-2-70b-hf, config.json.
LLAMA_2_70B = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 8192, "intermediate_size": 28672,
    "num_hidden_layers": 80, "num_attention_heads": 64, "num_key_value_heads": 8, "vocab_size": 32000,
    "max_position_embeddings": 4096, "hidden_act": "silu",
}  # fmt: skip


@pytest.fixture(scope="module")
def llama_2_70b(tmp_path_factory):
    path = tmp_path_factory.mktemp("configs") / "llama-2-70b.json"
    path.write_text(json.dumps(LLAMA_2_70B))
    return str(path)


@pytest.mark.spread(1)
@pytest.mark.slow
@pytest.mark.parametrize(("source", "most"), [(LMDEPLOY, 0.1), (GPT_FAST, 0.1)])
def test_forecasts_agree_with_published_times_per_token(llama_2_70b, source, most):
    errors, inside = [], []
    for name, points in source.items():
        network = llama_2_70b if name == "llama-2-70b" else name
        for workers, sequences, context, seconds in points:
            row = generate(network, workers, batch_size=sequences, context=context, execution="engine")
            errors.append(abs(row.time_s / seconds - 1))
            inside.append(row.interval[0] < seconds < row.interval[1])
    assert np.mean(errors) < most
    assert np.mean(inside) > 0.85


@pytest.mark.spread(1)
@pytest.mark.slow
@pytest.mark.parametrize(
    ("asked", "most"), [({"execution": "engine"}, 0.18), ({"policy": "tensorrt-llm"}, 0.13)], ids=["layers", "kernels"]
)
def test_forecasts_agree_with_published_times_to_first_token(llama_2_70b, asked, most):
    errors = []
    for name, points in FIRST_TOKENS.items():
        network = llama_2_70b if name == "llama-2-70b" else name
        for workers, tokens, seconds in points:
            row = generate(network, workers, phase="prefill", sequence_length=tokens, **asked)
            errors.append(abs(row.time_s / seconds - 1))
            assert errors[-1] < most
            assert row.interval[0] < seconds < row.interval[1]
    assert np.mean(errors) < 0.08


def generate(network, workers, **asked):
    question = {"platform": "dgx-a100", "precision": "fp16", "phase": "decode", **asked}
    return scaling(network, workers=workers, **question)[-1]


@pytest.mark.parametrize(
    ("network", "asked"),
    [
        ("llama-3-8b", {"context": 2000, "batch_size": 8}),
        ("mixtral-8x7b", {"context": 100, "batch_size": 4}),
        ("gpt2", {"phase": "prefill", "sequence_length": 512}),
    ],
)
def test_a_single_device_agrees_with_predict(network, asked):
    """Extrapolation from few blocks gives the time, interval and memory that `predict` gives for the whole network."""
    question = {"gpu": "a100-sxm-80gb", "precision": "fp16", "phase": "decode", "execution": "engine", **asked}
    whole, (row,) = pl.predict(network, memory=True, **question), scaling(network, workers=1, **question)
    assert row.time_s == pytest.approx(whole.time_s, rel=1e-8)  # the host is a billionth of the time
    assert row.interval == pytest.approx(whole.interval, rel=1e-9)
    assert row.memory_bytes == pytest.approx(whole.memory.memory.total_bytes, rel=1e-4)


def test_weights_and_kv_cache_are_sharded():
    """LLaMA 2's 32 heads, 11008 columns and KV cache are divided by 2; its 2 x 32 + 1 norms of 4096 are replicated."""
    question = {"batch_size": 8, "context": 1023, "execution": "engine"}
    one, two = (generate("llama-2-7b", workers, **question) for workers in (1, 2))
    cache = 2 * 32 * 4096 * 1024 * 2 * 8
    norms = 2 * 65 * 4096
    parameters = 2 * find_network("llama-2-7b").parameters
    assert one.memory_bytes > cache + parameters
    assert two.memory_bytes == pytest.approx((cache + parameters + norms) / 2, rel=1e-3)


def test_communication_is_two_all_reduces_per_block_and_the_logits():
    """Shoeybi et al. 2019, section 3; a ring all-reduce of n moves 2 (n - 1) / n of the bytes, an all-gather half."""
    row = generate("llama-2-7b", 4, platform=None, gpu="a100-sxm-80gb", link="100 GB/s", batch_size=16,
                  time_model="roofline", ppp_comm=1.0, settings=Settings(collective="ring"))  # fmt: skip
    sums, logits = 2 * 32 + 1, 32000
    sent = 16 * 2 * (sums * 4096 + logits / 2)
    assert link_rate("100 GB/s", 1.0).bandwidth_bytes_per_s == 100e9
    assert row.exposed_s == pytest.approx(2 * 3 / 4 * sent / 100e9)


@pytest.mark.spread(2)
@pytest.mark.parametrize(
    ("network", "gpu", "asked", "degrees"),
    [
        ("llama-3.1-70b", "h100-sxm", {"precision": "fp8"}, (4, 1, 1)),
        ("deepseek-r1", "h200-sxm", {"precision": "fp8"}, (8, 1, 1)),
        ("deepseek-r1", "h200-sxm", {"precision": "fp8", "policy": "tensorrt-llm"}, (8, 8, 8)),
        ("qwen3-235b-a22b", "b200", {"precision": "fp4", "expert_load": "power-law:1.2"}, (8, 8, 4)),
        ("gpt-oss-120b", "b200", {"weights": "mxfp4", "kv_cache": "fp8", "policy": "sglang"}, (2, 2, 1)),
    ],
)
def test_a_step_is_the_iteration_that_serve_simulates(network, gpu, asked, degrees):
    """Decoding and prompts take the time of the simulator's tables and of its host, in the same memory."""
    tensor, experts, groups = degrees
    settings = Settings(parallel=ParallelConfig(tensor, expert=experts, attention_data=groups))
    question = {"precision": "bf16", **asked}
    on_device = placed_as_served(network, gpu, degrees, **question)
    policy = with_fitted_host(find_server(question.get("policy", "vllm"), on_device.machine.device), on_device.kernels)
    sequences, context = 64, 2000
    times = tabulate(
        KernelTimer(on_device), max_new_tokens=4096, max_sequences=sequences, max_prompt=2048, max_context=context + 1
    )
    host_s = policy.overhead_s + policy.sequence_overhead_s * sequences / groups
    decoded_s = times.iteration_s(ScheduledTokens(sequences, float(sequences * context))) + host_s
    step = {"gpu": gpu, "workers": tensor, "settings": settings, **question}
    (row,) = scaling(network, phase="decode", batch_size=sequences, context=context, **step)
    assert row.time_s == pytest.approx(decoded_s, rel=1e-9)
    prompt_s = times.iteration_s(ScheduledTokens(0, 0.0, [(0, 1024)], 1)) + policy.overhead_s
    (prompt,) = scaling(network, phase="prefill", batch_size=1, sequence_length=1024, **step)
    assert prompt.time_s == pytest.approx(prompt_s, rel=0.015)  # tables interpolate, and time the head as in decoding
    room = measure_room(on_device, policy, mean_tokens=context + 1, prompt_tokens=context)
    cached_bytes = room.sequence_bytes * sequences / groups
    kernels = on_device.kernels.of_iteration("decode", context)
    own = sequences // groups
    activations_bytes = activation_bytes(on_device.kernels.step, kernels, own, own, policy.logit_bytes)
    assert row.memory_bytes == pytest.approx(room.weights_bytes + cached_bytes + activations_bytes)
    assert prompt.bound_s < prompt.time_s and row.bound_s < row.time_s
    assert row.interval[0] < row.time_s < row.interval[1]


def placed_as_served(network, gpu, degrees, *, precision, weights=None, kv_cache="bf16", policy="vllm",
                     expert_load="uniform"):  # fmt: skip
    workload, machine, model = resolve_question(
        Question(network, gpu, precision=precision, phase="decode", weights=weights)
    )
    tensor, experts, groups = degrees
    alone = ModelOnDevice(workload, machine, model, tensor_group(machine.device, Division(tensor)), kv_cache)
    alpha = parse_expert_load(expert_load)
    return with_kernels(alone, policy, expert_parallel=experts, attention_data_parallel=groups, alpha=alpha)


def test_time_per_output_token_of_serve_is_that_of_scale():
    """Of 32 users whose requests differ in nothing, at the mean context of an answer."""
    question = {"gpu": "h200-sxm", "precision": "fp8"}
    served = pl.serve("deepseek-r1", tensor=8, expert_parallel=8, concurrency=32, input_tokens=128, output_tokens=512,
                      num_requests=32, **question)  # fmt: skip
    settings = Settings(parallel=ParallelConfig(expert=8))
    (row,) = scaling("deepseek-r1", workers=8, phase="decode", batch_size=32, context=128 + 256, settings=settings,
                      **question)  # fmt: skip
    assert served.latencies["tpot_s"]["p50"].value == pytest.approx(row.time_s, rel=0.03)


def test_uneven_loads_of_experts_take_longer_on_many_devices():
    """All wait for the device with the most rows; a single device has all of them, and meets fewer experts."""

    def step_s(load, workers):
        config = ParallelConfig(workers, expert=workers, attention_data=workers)
        question = {"gpu": "b200", "precision": "fp8", "phase": "prefill", "sequence_length": 4096, "batch_size": 8}
        return scaling("qwen3-30b-a3b", workers=workers, expert_load=load, settings=Settings(parallel=config),
                        **question)[0].time_s  # fmt: skip

    uniform, mild, strong = (step_s(load, 8) for load in ("uniform", "power-law:1.01", "power-law:1.2"))
    assert uniform < mild and uniform < strong
    assert step_s("power-law:1.2", 1) < 1.02 * step_s("uniform", 1)


def test_the_host_limits_scaling_and_no_single_device():
    """Eight H100 decode Llama 3.2 1B in a millisecond, to which the host adds what it takes on one."""
    rows = scaling("llama-3.2-1b", gpu="h100-sxm", workers="1,8", precision="bf16", phase="decode", batch_size=32)
    assert rows[0].limited_by == "compute" and rows[0].overheads_s["host of the engine"] == 0
    assert rows[1].overheads_s["host of the engine"] > 0.1 * rows[1].time_s


def test_devices_of_a_node_share_the_link_between_nodes():
    topology = parse_topology("8x h200-sxm @ nvlink4-x18, 2 nodes @ 400 GB/s")
    division = Division(16, expert_parallel=16, attention_data_parallel=16)
    devices = link_devices(topology, division)
    assert (devices.nodes, devices.link_bytes_per_s, devices.node_link_bytes_per_s) == (2, 450e9, 50e9)


def test_attention_groups_lie_on_several_nodes():
    """Tensor parallelism stays within a node of 8; tokens are sent to experts over the slower link."""
    config = ParallelConfig(16, expert=16, attention_data=16)
    question = {"precision": "fp8", "phase": "decode", "batch_size": 512, "settings": Settings(parallel=config)}
    (inside,) = scaling("deepseek-r1", gpu="h200-sxm", link="nvlink4-x18", workers=16, **question)
    topology = "8x h200-sxm @ nvlink4-x18, 2 nodes @ infiniband-ndr"
    (between,) = scaling("deepseek-r1", topology=topology, workers=16, **question)
    assert between.compute_s == pytest.approx(inside.compute_s) and between.exposed_s > inside.exposed_s
    with pytest.raises(PaleoError, match=r"`--tensor` must be <= 8, the devices per node \(got 16\)"):
        scaling("deepseek-r1", topology=topology, workers=16, precision="fp8", phase="decode")


def test_replicas_share_the_batch():
    half = generate("llama-2-7b", 4, batch_size=8)
    both = generate("llama-2-7b", 8, batch_size=16, settings=Settings(parallel=ParallelConfig(tensor=4)))
    assert both.time_s == pytest.approx(half.time_s)
    assert both.tokens_per_s == pytest.approx(2 * half.tokens_per_s)


def test_advice_compares_every_power_of_two():
    table = scaling("llama-3-8b", platform="dgx-a100", workers=8, precision="bf16", phase="decode", batch_size=64,
                     advise="time")  # fmt: skip
    assert {row.strategy.split(",")[0] for row in table.rows} == {"tensor 1", "tensor 2", "tensor 4", "tensor 8"}
    assert [row.time_s for row in table.rows] == sorted(row.time_s for row in table.rows)


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"workers": 16}, r"`--tensor` must be <= 8, the devices per node \(got 16\)"),
        ({"workers": 3}, "`--tensor 3` does not divide the 32 attention heads of llama-2-7b"),
        (
            {"workers": 8, "settings": Settings(parallel=ParallelConfig(3))},
            r"`--tensor 3` times `--pipeline 1` must divide the number of workers, .* \(got 8\)",
        ),
        (
            {"workers": 8, "settings": Settings(parallel=ParallelConfig(4))},
            r"divisible by the 2 replicas of `--tensor 4`: give `--batch-size 2` \(got 1\)",
        ),
        (
            {"workers": 8, "settings": Settings(parallel=ParallelConfig(2, 2))},
            "`paleo-lite serve` simulates pipelines",
        ),
        (
            {"workers": 8, "settings": Settings(parallel=ParallelConfig(8, expert=8))},
            "`--expert-parallel` needs a mixture of experts; llama-2-7b is not one",
        ),
        (
            {"workers": 8, "settings": Settings(parallel=ParallelConfig(8, attention_data=3))},
            r"`--attention-data-parallel` must divide the 8 devices of `--tensor` \(got 3\)",
        ),
        (
            {"workers": 8, "execution": "engine", "settings": Settings(parallel=ParallelConfig(8, attention_data=2))},
            "`--attention-data-parallel` needs the kernels of an engine, .* and without `--execution`",
        ),
        (
            {"workers": 8, "settings": Settings(collective="ring")},
            "`--communication collective` is not for the kernels of vllm",
        ),
        ({"workers": 8, "execution": "engine", "policy": "sglang"}, "`--engine` needs the kernels of an engine"),
        ({"workers": 8, "policy": "llama.cpp"}, "`--engine llama.cpp` is for `serve` and `local`"),
        (
            {"workers": 8, "phase": "training", "context": None, "kv_cache": "fp8"},
            "`--kv-cache` is for `--phase prefill`",
        ),
        ({"workers": 8, "expert_load": "zipf"}, "`--expert-load` must be uniform or power-law:ALPHA"),
        (
            {"workers": 8, "settings": Settings(overlap=False)},
            "`--communication overlap`, .* are for `--phase training`",
        ),
        ({"workers": 8, "feed": Feed("hdd")}, "`--feed` are for `--phase training`"),
    ],
)
def test_invalid_arguments(asked, message):
    with pytest.raises(PaleoError, match=message):
        generate("llama-2-7b", **{"context": 100, **asked})


@pytest.mark.parametrize(
    ("asked", "factor"),
    [({"phase": "decode"}, 1.3), ({"scaling": "strong", "settings": Settings(parallel=ParallelConfig(2))}, 1.2)],
)
def test_forecasts_follow_measurements(asked, factor):
    """For networks of blocks, too: a measurement sets the computation time."""
    question = {"platform": "dgx-a100", "workers": 2, "precision": "fp16", "batch_size": 4, **asked}
    measured_s = factor * scaling("gpt3-1.3b", **question)[0].time_s
    refined = scaling("gpt3-1.3b", **question, measured=[f"2 workers: {1e3 * measured_s:.6g} ms"])[0]
    assert refined.time_s == pytest.approx(measured_s, rel=0.05)


def test_draws_of_links_share_the_times_of_the_kernels(monkeypatch):
    """What links reach is no trait of an engine's kernels: measurements place them on as many devices as none do."""
    placed = []

    def iteration_of(workload, device, devices, **options):
        placed.append(devices)
        return serving_iteration.iteration_of(workload, device, devices, **options)

    monkeypatch.setattr(generation, "iteration_of", iteration_of)
    monkeypatch.setattr(clusters, "_DRAWS", 8)
    question = {"gpu": "h100-sxm", "workers": 2, "precision": "bf16", "phase": "decode"}
    plain = scaling("llama-3.1-8b", **question)[0]
    without_measurements = placed.copy()
    placed.clear()
    scaling("llama-3.1-8b", **question, measured=[f"2 workers: {1.2e3 * plain.time_s:.6g} ms"])
    assert sorted(map(repr, placed)) == sorted(map(repr, without_measurements))


SERVED = {
    "llama-3.1-70b": {"precision": "fp8"},
    "llama-3.1-8b": {"precision": "bf16"},
    "gpt-oss-120b": {"precision": "bf16", "weights": "mxfp4"},
    "mixtral-8x7b": {"precision": "bf16"},
    "qwen3-235b-a22b": {"precision": "bf16", "weights": "int4"},
}
ENGINES_OF = dict.fromkeys(SERVED, ("vllm",)) | {"mixtral-8x7b": ("vllm", "sglang", "tensorrt-llm")}
"""Engines that `make test` asks; `make thorough` asks every one for every network."""


@pytest.mark.spread(3)
@pytest.mark.parametrize(
    ("network", "policy"),
    [
        pytest.param(network, policy, marks=() if policy in ENGINES_OF[network] else pytest.mark.thorough)
        for network in SERVED
        for policy in ("vllm", "sglang", "tensorrt-llm")
    ],
)
def test_pcie_serves_one_user_no_faster_than_nvlink(network, policy):
    """Eight L40S have a quarter of the bandwidth of eight H100, and all-reduces over PCIe instead of NVLink."""
    l40s, h100 = (
        scaling(network, gpu=gpu, workers=8, phase="decode", context=1024, policy=policy, **SERVED[network])[0]
        for gpu in ("l40s", "h100-sxm")
    )
    assert l40s.time_s > h100.time_s and l40s.exposed_s > 5 * h100.exposed_s


@pytest.mark.parametrize("network", ["llama-3.1-70b", "gpt-oss-120b"])
def test_a_server_on_pcie_serves_one_user_no_faster_than_on_nvlink(network):
    question = {"tensor": 8, "concurrency": 1, "num_requests": 4, "output_tokens": 64,
                "weights": "mxfp4" if network == "gpt-oss-120b" else "fp8"}  # fmt: skip
    l40s, h100 = (
        pl.serve(network, gpu=gpu, **question).figures["output_tokens_per_s_per_user"].value
        for gpu in ("l40s", "h100-sxm")
    )
    assert l40s < h100


def test_a_network_that_cannot_be_rebuilt_is_replicated_and_not_divided() -> None:
    """As a traced one: with whole replicas it takes as long as the same from its config, and has no parts."""
    from_config = find_network("llama-3.2-1b", options=SequenceOptions(phase="decode", context=128))
    traced = from_config._replace(rebuild=None)
    asked = {
        "gpu": "h100-sxm", "workers": 2, "precision": "bf16", "phase": "decode", "batch_size": 4,
        "time_model": "roofline", "link": "nvlink4-x18",
    }  # fmt: skip
    replicas = Settings(parallel=ParallelConfig(tensor=1))
    one, other = (scaling(network, replicas, **asked)[0].time_s for network in (traced, from_config))
    assert one == pytest.approx(other, rel=1e-9)
    with pytest.raises(PaleoError, match="tensor parallelism in decode needs a network from a config"):
        scaling(traced, Settings(parallel=ParallelConfig(tensor=2)), **asked)

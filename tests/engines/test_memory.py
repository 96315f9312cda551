"""Memory under an engine: weights and caches by hand, and the capacities that vLLM's users publish.

Tests: engines/memory.py, engines/placed.py.
"""

from __future__ import annotations

import pytest

from paleo_lite.api.question import Question, resolve_question
from paleo_lite.engines.division import Division
from paleo_lite.engines.kernels import ExpertsKernel
from paleo_lite.engines.memory import activation_bytes, sequence_bytes, stored_weight_bytes
from paleo_lite.engines.records import find_server
from paleo_lite.errors import BadValue, DoesNotFit
from paleo_lite.machines import find_device
from paleo_lite.serving.cache import CacheRoom, NoCacheRoom, measure_room, sufficient_fraction
from paleo_lite.serving.kernel_timer import device_kernels
from paleo_lite.serving.pipeline import connect_stages
from paleo_lite.serving.placement import ModelOnDevice, check_undivided, tensor_group, with_kernels
from paleo_lite.timing.workload import UnderEngine


def placed(
    network: str,
    gpu: str,
    devices: int = 1,
    *,
    precision: str = "bf16",
    weights: str | None = None,
    kv_cache: str = "bf16",
    experts: int = 1,
    attention_data: int = 1,
    engine: str = "vllm",
) -> ModelOnDevice:
    workload, machine, model = resolve_question(
        Question(network, gpu, precision=precision, phase="decode", weights=weights)
    )
    alone = ModelOnDevice(workload, machine, model, tensor_group(machine.device, Division(devices)), kv_cache)
    return with_kernels(alone, engine, expert_parallel=experts, attention_data_parallel=attention_data)


def per_token(on_device: ModelOnDevice, tokens: int = 1000) -> float:
    assert on_device.kernels is not None
    return sequence_bytes(on_device.kernels.step, device_kernels(on_device, "decode", tokens - 1), tokens) / tokens


def reserved_bytes(on_device: ModelOnDevice, engine: str, tokens: int) -> float:
    assert on_device.kernels is not None
    kernels = device_kernels(on_device, "decode", tokens - 1)
    return sequence_bytes(on_device.kernels.step, kernels, tokens, find_server(engine).kernels)


def weights_of(on_device: ModelOnDevice) -> float:
    assert on_device.kernels is not None
    return stored_weight_bytes(on_device.kernels.step, device_kernels(on_device, "decode", 100))


def room(on_device: ModelOnDevice, fraction: float, policy: str = "vllm", **limits: int) -> CacheRoom:
    engine = find_server(policy, on_device.machine.device, memory_fraction=fraction, **limits)
    return measure_room(on_device, engine, mean_tokens=2048, prompt_tokens=1024)


# Caches and weights by hand ------------------------------------------------------------------------------------------


def test_a_token_of_llama_3_8b_takes_131072_bytes() -> None:
    """Keys and values of 32 blocks, 8 heads of 128, in 16 bits; half of it in 8 bits, and an eighth on 8 devices."""
    assert per_token(placed("llama-3-8b", "h100-sxm")) == 2 * 32 * 8 * 128 * 2 == 131_072
    assert per_token(placed("llama-3-8b", "h100-sxm", kv_cache="fp8")) == 65_536
    assert per_token(placed("llama-3-8b", "h100-sxm", 8)) == 16_384


@pytest.mark.parametrize(("devices", "attention_data"), [(8, 1), (8, 8), (16, 2)])
def test_every_device_keeps_the_latent_vectors_of_deepseek(devices: int, attention_data: int) -> None:
    """61 blocks of 512 + 64 numbers in 16 bits, which tensor parallelism cannot divide."""
    on_device = placed("deepseek-r1", "b200", devices, precision="fp8", attention_data=attention_data)
    assert per_token(on_device) == 61 * 576 * 2 == 70_272


@pytest.mark.parametrize("tokens", [1000, 100_000])
def test_sparse_attention_keeps_the_tokens_that_it_does_not_read(tokens: int) -> None:
    """DeepSeek-V3.2 reads 2,048 selected tokens, and keeps 61 blocks of 576 numbers and an indexer's key of 128."""
    on_device = placed("deepseek-v3.2", "b200", 8, precision="fp8")
    assert per_token(on_device, tokens) == pytest.approx(61 * (576 + 128) * 2, rel=1e-3)


def test_a_window_keeps_no_more_tokens_than_it_sees() -> None:
    """gpt-oss-120b: 18 blocks keep all tokens, 18 keep 128: 2 x 8 heads of 64 numbers each."""
    on_device = placed("gpt-oss-120b", "b200", weights="mxfp4")
    assert per_token(on_device, 4096) * 4096 == 2 * 8 * 64 * 2 * 18 * (4096 + 128)


@pytest.mark.parametrize(("engine", "share"), [("vllm", 0.0), ("sglang", 0.8), ("tensorrt-llm", 1.0)])
def test_engines_set_aside_more_than_a_window(engine: str, share: float) -> None:
    """TensorRT-LLM 1.2 has one pool for all layers; SGLang's pool of windows has 0.8 of the tokens of the other pool.

    Sources: KVCacheManager in tensorrt_llm/_torch/pyexecutor/resource_manager.py, `--swa-full-tokens-ratio` of SGLang.
    """
    on_device = placed("gpt-oss-120b", "b200", weights="mxfp4", engine=engine)
    assert reserved_bytes(on_device, engine, 4096) == pytest.approx(
        2 * 8 * 64 * 2 * 18 * (4096 + max(128, share * 4096))
    )


@pytest.mark.parametrize(
    ("engine", "share"), [("vllm", 0.0), ("vllm-0.13", 1.0), ("sglang", 0.8), ("tensorrt-llm", 1.0)]
)
def test_engines_set_aside_more_than_a_chunk(engine: str, share: float) -> None:
    """Llama 4 Scout: 12 blocks keep all tokens, 36 those of a chunk of 8,192: 2 x 8 heads of 128 numbers each.

    vLLM had one pool of blocks for both from 0.10.1 (pull request 21761) to 0.13 (29627); others as for windows.
    """
    on_device = placed("llama-4-scout", "b200", weights="fp8", engine=engine)
    expected = 2 * 8 * 128 * 2 * (12 * 32768 + 36 * max(8192, share * 32768))
    assert reserved_bytes(on_device, engine, 32768) == pytest.approx(expected)
    assert reserved_bytes(on_device, engine, 4096) == pytest.approx(2 * 8 * 128 * 2 * 48 * 4096)


def test_attention_groups_hold_sequences_of_their_own() -> None:
    """Eight groups of one device: each has the latent vectors of its own sequences, so that there is room for more."""
    whole = placed("deepseek-r1", "b200", 8, precision="fp8")
    groups = placed("deepseek-r1", "b200", 8, precision="fp8", experts=8, attention_data=8)
    together, apart = room(whole, 0.9), room(groups, 0.9)
    assert apart.cache_bytes < together.cache_bytes  # each has all weights of attention
    expected = 8 * apart.cache_bytes / (61 * 576 * 2)
    assert apart.tokens == pytest.approx(expected, rel=0.001) and apart.tokens > 5 * together.tokens


@pytest.mark.parametrize(
    ("network", "parameters", "weights", "bytes_per_parameter"),
    [
        ("llama-3-8b", 8_030_261_248, None, 2),
        ("qwen2.5-14b", 14_770_033_664, None, 2),
        ("qwen3-30b-a3b", 30_532_122_624, None, 2),
    ],
)
def test_weights_take_16_bits_per_published_parameter(network, parameters, weights, bytes_per_parameter) -> None:
    on_device = placed(network, "h100-sxm", weights=weights)
    assert weights_of(on_device) == pytest.approx(bytes_per_parameter * parameters, rel=0.001)


def test_weights_of_gpt_oss_are_those_of_its_files() -> None:
    """OpenAI's model card: 116.83 billion parameters, of which 114.71 billion in experts at 4.25 bits: 60.8 GiB."""
    assert weights_of(placed("gpt-oss-120b", "h100-sxm", weights="mxfp4")) == pytest.approx(60.8 * 2**30, rel=0.01)


def test_a_head_and_an_embedding_stay_in_16_bits() -> None:
    """Llama 3.1 70B: 2 x 128256 x 8192 parameters in 16 bits, the other 68.45 billion in 8."""
    plain = 2 * 128_256 * 8192
    on_device = placed("llama-3.1-70b", "h100-sxm", weights="int8")
    assert weights_of(on_device) == pytest.approx(2 * plain + 70_553_706_496 - plain, rel=0.003)


def test_experts_are_divided_among_all_devices_whichever_way() -> None:
    """By their width or by their number: each of 8 devices has an eighth."""
    by_width = weights_of(placed("qwen3-235b-a22b", "h100-sxm", 8))
    by_number = weights_of(placed("qwen3-235b-a22b", "h100-sxm", 8, experts=8))
    assert by_number == pytest.approx(by_width)
    assert by_width == pytest.approx(2 * 235_093_634_560 / 8, rel=0.01)


# What drivers and vLLM report ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("network", "policy", "fraction", "published_gib"),
    [("gpt-oss-20b", "vllm-0.13", 0.9, 50.28), ("gpt-oss-120b", "vllm-0.13", 0.95, 3.33)],
)
def test_the_cache_has_the_memory_that_vllm_reports(network, policy, fraction, published_gib) -> None:
    """vLLM 0.11 on an H100, by llm-d-benchmark, config_explorer/empirical-vllm-memory-results.md.

    Tokens of models with windows depend on the blocks of each kind of layer; `validation.serving.cache_capacity` has
    those of others.
    """
    found = room(placed(network, "h100-sxm", weights="mxfp4"), fraction, policy)
    assert found.cache_bytes == pytest.approx(published_gib * 2**30, rel=0.1)


def test_gpt_oss_120b_starts_on_an_h100() -> None:
    assert room(placed("gpt-oss-120b", "h100-sxm", weights="mxfp4"), 0.95).tokens > 8192


def test_llama_3_70b_in_16_bits_does_not_start_on_an_h100() -> None:
    with pytest.raises(DoesNotFit, match="leaves no memory for a KV cache"):
        room(placed("llama-3-70b", "h100-sxm"), 0.95)


def test_activations_are_those_of_the_widest_kernel_or_of_the_sampler() -> None:
    """Llama 3 8B: three hidden states, 28672 out and 14336 in; or bytes for each of 128,256 logits."""
    on_device = placed("llama-3-8b", "h100-sxm")
    assert on_device.kernels is not None
    found, step = device_kernels(on_device, "decode", 100), on_device.kernels.step
    assert activation_bytes(step, found, 8192, 0, 42.0) == 8192 * 2 * (3 * 4096 + 28672 + 14336)
    assert activation_bytes(step, found, 8192, 1024, 42.0) == 42 * 1024 * 128_256


@pytest.mark.parametrize(
    ("policy", "network", "published_gib"),
    [("vllm", "llama-3.1-8b", 1.89), ("vllm", "qwen3-8b", 2.21), ("vllm-0.13", "llama-3.1-8b", 4.76),
     ("vllm-0.13", "qwen3-32b", 5.64)],
)  # fmt: skip
def test_the_sampler_takes_what_vllm_measures(policy, network, published_gib) -> None:
    """Peaks of vLLM 0.19 and 0.11 on an H100, of the reports of llm-d-planner and llm-d-benchmark."""
    found = room(placed(network, "h100-sxm"), 0.95, policy)
    assert found.activations_bytes == pytest.approx(published_gib * 2**30, rel=0.02)


@pytest.mark.parametrize(("tokens", "published_gib"), [(20_000, 17.06 - 14.99), (29_000, 17.98 - 14.99)])
def test_activations_are_those_that_vllm_measures(tokens, published_gib) -> None:
    """Peak memory and weights of Llama 3.1 8B: https://github.com/vllm-project/vllm/issues/10517."""
    on_device = placed("llama-3.1-8b", "rtx3090", precision="fp16", kv_cache="fp16")
    assert on_device.kernels is not None
    found = activation_bytes(on_device.kernels.step, device_kernels(on_device, "decode", 100), tokens, 0, 0.0)
    assert found == pytest.approx(published_gib * 2**30, rel=0.01)


def test_gpt_oss_120b_does_not_start_on_an_h100_at_the_default_share() -> None:
    """ "Available KV cache memory: -2.14 GiB" at 0.9: https://github.com/vllm-project/vllm/issues/23278."""
    on_device = placed("gpt-oss-120b", "h100-sxm", weights="mxfp4")
    with pytest.raises(NoCacheRoom, match="leaves no memory for a KV cache") as refused:
        room(on_device, 0.9, "vllm-0.13")
    engine = find_server("vllm-0.13", on_device.machine.device, memory_fraction=0.9)
    longest = 4000
    sufficient = sufficient_fraction(
        lambda larger: room(on_device, larger.memory_fraction, "vllm-0.13"), engine, longest
    )
    assert sufficient is not None and room(on_device, sufficient, "vllm-0.13").tokens >= longest
    with pytest.raises(NoCacheRoom):
        room(on_device, sufficient - 0.01, "vllm-0.13")
    asked = (
        f"B too little, with what its runtime takes; use `--memory-fraction {sufficient}` or more, a larger `--tensor`"
    )
    assert asked in str(refused.value.with_fraction(sufficient))


# Placements ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("network", "devices", "degrees", "sentence"),
    [
        ("llama-3-8b", 8, {"attention_data": 3}, "`--attention-data-parallel` must divide the 8 devices of `--tensor`"),
        ("qwen3-30b-a3b", 8, {"experts": 3}, "`--expert-parallel` must divide the 8 devices of `--tensor`"),
        ("llama-3-8b", 4, {"experts": 4}, "`--expert-parallel` needs a mixture of experts; llama-3-8b is not one"),
        ("mixtral-8x7b", 16, {"experts": 16, "attention_data": 2},
         "`--expert-parallel 16` does not divide the 8 experts of mixtral-8x7b"),
    ],
)  # fmt: skip
def test_a_bad_degree_raises_one_sentence(network, devices, degrees, sentence) -> None:
    with pytest.raises(BadValue) as raised:
        placed(network, "b200", devices, **degrees)
    assert sentence in str(raised.value) and "\n" not in str(raised.value)


def test_heads_that_devices_do_not_divide_raise_one_sentence() -> None:
    """Llama 3 8B has 32 heads, which 24 devices do not divide."""
    with pytest.raises(BadValue) as raised:
        placed("llama-3-8b", "b200", 24)
    assert "24" in str(raised.value) and "\n" not in str(raised.value)


def test_attention_groups_and_a_pipeline_raise_one_sentence() -> None:
    alone = placed("llama-3-8b", "b200", 8)._replace(
        kernels=None, pipeline=connect_stages(2, 8, device_link="nvlink5-x18")
    )
    with pytest.raises(BadValue, match="is not modelled with `--pipeline`: leave one of them out"):
        with_kernels(alone, "vllm", attention_data_parallel=2)


def test_division_needs_the_kernels_of_an_engine() -> None:
    device = find_device("mi300x")
    check_undivided(Division(2), device)
    with pytest.raises(BadValue, match=r"`--expert-parallel` needs the kernels of an engine.*MI300X"):
        check_undivided(Division(2, expert_parallel=2), device)
    with pytest.raises(BadValue, match="`--attention-data-parallel` needs"):
        check_undivided(Division(2, attention_data_parallel=2), device)


def test_engines_speak_for_measured_devices_in_low_precision() -> None:
    def asked(gpu: str, precision: str = "bf16") -> UnderEngine | None:
        return resolve_question(Question("llama-3-8b", gpu, precision=precision, phase="decode"))[0].engine

    assert asked("h100-sxm") == UnderEngine("vllm", "bf16")
    assert asked("h100-sxm", "fp32") is asked("mi210") is None


def test_the_division_is_the_one_that_was_asked_for() -> None:
    on_device = placed("deepseek-r1", "b200", 8, precision="fp8", experts=4, attention_data=2)
    assert on_device.kernels is not None
    division = on_device.kernels.step.devices.division
    assert division == Division(8, expert_parallel=4, attention_data_parallel=2)
    assert (division.attention_tensor, division.expert_tensor) == (4, 2)
    experts = [one.kernel for one in device_kernels(on_device, "decode", 100) if isinstance(one.kernel, ExpertsKernel)]
    assert [(kernel.experts, kernel.inner_size) for kernel in experts] == [(256, 2048)]
    assert on_device.kernels.step.formats.experts == "fp8-block"

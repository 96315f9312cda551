"""Seconds of kernels and of steps, composed of formulas and constants by hand.

Tests: engines/step.py.
"""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from paleo_lite.api.question import Question, resolve_question
from paleo_lite.engines.constants import EFFECTS, CellFit, ClassFit, EngineConstants, MeasuredServers, ServerSpread
from paleo_lite.engines.division import Division, LinkedDevices
from paleo_lite.engines.formulas import KERNEL_CLASSES
from paleo_lite.engines.kernel_formats import Formats, kernel_rates
from paleo_lite.engines.kernels import (
    AttentionKernel,
    CountedKernel,
    ExchangeKernel,
    ExpertsKernel,
    Load,
    Pointwise,
    ProductKernel,
    causal_pairs,
    decoded_keys,
    prompt_pairs,
)
from paleo_lite.engines.records import find_server
from paleo_lite.engines.step import EMPTY_ROW_POWER, EngineStep
from paleo_lite.errors import BadValue
from paleo_lite.machines import find_device
from paleo_lite.serving.iteration_times import ScheduledTokens
from paleo_lite.serving.kernel_timer import KernelTimer, device_kernels
from paleo_lite.serving.layer_timer import LayerTimer
from paleo_lite.serving.placement import ModelOnDevice, with_kernels
from paleo_lite.serving.timer import tabulate
from validation.engines.priors import PRIORS

H100 = find_device("h100-sxm")
FORMATS = Formats("fp8", "fp8", "fp8-block", "bf16", "bf16/bf16")


def constants(variance: float, scatter: float, **changed: dict[str, float]) -> EngineConstants:
    """Typical constants everywhere, some changed, each with the same variance; the fitted cell is of other devices."""
    classes = {}
    for name, kernels in KERNEL_CLASSES.items():
        typical = {parameter: PRIORS[name][parameter].typical for parameter in kernels.parameters} | changed.get(
            name.replace(" ", "_"), {}
        )
        count = len(kernels.parameters)
        spread = {effect: (*(variance if effect == "cell" else 0.0,) * count, 0.0) for effect in EFFECTS}
        mean = tuple(float(np.log(value)) for value in (*typical.values(), scatter))
        other = CellFit("arc-pro-b60", "other", "other", mean, (1.0,) * (count + 1), 1, 0.1)
        classes[name] = ClassFit((*kernels.parameters, "scatter"), mean, spread, (other,))
    return EngineConstants(classes)


ALONE = LinkedDevices()


def step(devices: LinkedDevices = ALONE, variance: float = 0.0, scatter: float = 1e-12, **changed) -> EngineStep:
    return EngineStep(H100, "vllm", FORMATS, devices, constants(variance, scatter, **changed))


POINTWISE = {"bandwidth_share": 0.5, "floor_cycles": 2e-6 * 1.98e9}


def test_a_pointwise_kernel_of_two_launches_has_two_floors() -> None:
    """100 tokens of 1 MB over half of 3.35 TB/s, and twice 2 us at 1.98 GHz."""
    kernel = Pointwise("norm", 1e6, launches=2)
    seconds = step(pointwise=POINTWISE).kernel_s(kernel, Load(tokens=100.0))
    assert float(seconds) == pytest.approx(2 * 2e-6 + 100e6 / (0.5 * 3.35e12), rel=1e-3)


def test_a_kernel_that_another_one_does_takes_no_time() -> None:
    assert float(step().kernel_s(Pointwise("norm", 1e6, launches=0), Load(tokens=100.0))) == 0


@pytest.mark.parametrize(
    ("kernel", "cell"),
    [
        (ProductKernel("QKV projection", 64, 64, part="attention"), ("products", "fp8")),
        (ProductKernel("router", 64, 64, part="plain"), ("products", "bf16")),
        (ExpertsKernel("experts", 64, 64, 8, 2, 3), ("experts", "fp8-block")),
        (AttentionKernel("attention", 8, 8, 64, 64), ("decode attention", "bf16/bf16")),
        (AttentionKernel("attention", 8, 2, 64, 64), ("decode attention", "bf16/bf16")),
        (AttentionKernel("attention", 8, 8, 64, 64, rows="prompts"), ("prompt attention", "bf16/bf16")),
        (AttentionKernel("attention", 8, 1, 576, 0, is_latent=True), ("latent decode attention", "bf16/bf16")),
        (Pointwise("norm", 1.0), ("pointwise", "bf16")),
        (ExchangeKernel("all-reduce", "all-reduce", 1.0), ("all-reduce", "bf16")),
        (ExchangeKernel("dispatch", "dispatch", 1.0), ("expert exchange", "dispatch")),
        (ExchangeKernel("dispatch", "low-latency combine", 1.0), ("expert exchange", "low-latency combine")),
    ],
)
def test_a_kernel_has_the_constants_of_its_class_and_format(kernel, cell) -> None:
    assert step().cell_of(kernel) == cell


@pytest.mark.parametrize(("kv_heads", "kernels"), [(8, "single decode attention"), (2, "decode attention")])
def test_tensorrt_llm_decodes_with_another_kernel_where_no_heads_share_keys(kv_heads: int, kernels: str) -> None:
    """Masked multi-head attention and XQA (TensorRT-LLM, docs/source/advanced/gpt-attention.md)."""
    under = EngineStep(H100, "tensorrt-llm", FORMATS, ALONE, constants(0.0, 1e-12))
    assert under.cell_of(AttentionKernel("attention", 8, kv_heads, 64, 64))[0] == kernels


def test_kernels_without_rows_take_no_time() -> None:
    rows = ("tokens", "sampled", "decoding", "prompts")
    kernels = [ProductKernel("product", 4096, 4096, rows=row) for row in rows]
    kernels += [AttentionKernel("attention", 8, 8, 64, 64, rows=row) for row in ("decoding", "prompts")]
    kernels += [
        ExpertsKernel("experts", 64, 64, 8, 2, 3),
        Pointwise("norm", 1e6),
        ExchangeKernel("sum", "all-reduce", 1e6),
    ]
    devices = LinkedDevices(Division(2), link_bytes_per_s=450e9)
    assert [float(step(devices).kernel_s(kernel, Load())) for kernel in kernels] == [0.0] * len(kernels)


def test_an_all_gather_takes_half_of_an_all_reduce() -> None:
    """Half of its ring traffic: (n - 1) / n of the message."""
    one = step(LinkedDevices(Division(8), link_bytes_per_s=450e9))
    seconds = [
        float(one.kernel_s(ExchangeKernel("any", name, 1e6), Load(tokens=8.0))) for name in ("all-reduce", "all-gather")
    ]
    assert seconds[0] == pytest.approx(2 * seconds[1])


@pytest.mark.parametrize(
    ("length", "cached", "window", "pairs"),
    [(4, 0, None, 10), (4, 3, None, 22), (5, 0, 2, 9), (3, 4, 2, 6), (4, 1, 3, 11)],
)
def test_pairs_are_those_of_the_mask(length: int, cached: int, window: int | None, pairs: int) -> None:
    """Counted in a mask of queries and keys: no key after its query, and none further back than the window."""
    query, key = np.indices((length, length + cached))
    distance = query + cached - key
    mask = (distance >= 0) & (distance < (window or 10**9))
    assert causal_pairs(length, cached, window) == pairs == mask.sum()


@pytest.mark.parametrize(("length", "cached", "chunk"), [(5, 0, 2), (3, 4, 5), (4, 6, 3), (4, 0, 8)])
def test_pairs_of_a_chunked_prompt_are_those_of_the_mask(length: int, cached: int, chunk: int) -> None:
    """Counted in a mask of queries and keys: no key after its query, and none of another chunk."""
    query, key = np.indices((length, length + cached))
    mask = (key <= query + cached) & (key // chunk == (query + cached) // chunk)
    kernel = AttentionKernel("attention", 8, 1, 128, 128, chunk=chunk, rows="prompts")
    assert prompt_pairs(kernel, length, cached) == mask.sum()


@pytest.mark.parametrize(("context", "spread"), [(3, 0), (7, 0), (10, 6), (9, 9), (100, 8)])
def test_a_token_sees_the_chunk_that_it_is_in(context: int, spread: int) -> None:
    """The mean over contexts of the tokens since the last multiple of the chunk, the new one among them."""
    kernel = AttentionKernel("attention", 8, 1, 128, 128, chunk=8)
    seen = [length % 8 + 1 for length in range(context - spread, context + spread + 1)]
    assert float(decoded_keys(kernel, Load(context=context, spread=spread))) == pytest.approx(np.mean(seen))


def test_a_token_beyond_the_first_chunk_sees_half_of_a_chunk() -> None:
    """The mean of 1 to 8 keys, also where the context is a multiple of the chunk."""
    kernel = AttentionKernel("attention", 8, 1, 128, 128, chunk=8)
    assert decoded_keys(kernel, Load(context=np.array([8, 16, 20]))).tolist() == [4.5, 4.5, 4.5]


@pytest.mark.parametrize(
    ("gpu", "chunk", "kernels"),
    [("h200-sxm", None, ""), ("h200-sxm", 8192, "single "), ("b200", 8192, ""), ("rtx-pro-6000", 8192, "single ")],
)
def test_xqa_of_tensorrt_llm_knows_no_chunks(gpu: str, chunk: int | None, kernels: str) -> None:
    """NVIDIA/TensorRT-LLM, pull request 6306, and xqaDispatcher.cpp: the kernels of SM100 know them."""
    engine = EngineStep(find_device(gpu), "tensorrt-llm", FORMATS)
    kernel = AttentionKernel("attention", 40, 8, 128, 128, chunk=chunk)
    assert engine.cell_of(kernel) == (f"{kernels}decode attention", "bf16/bf16")


def test_heads_that_decode_apart_read_their_keys_for_themselves() -> None:
    """Five heads of queries on each head of keys read them five times."""
    engine = EngineStep(H100, "tensorrt-llm", FORMATS)
    load = Load(sequences=64.0, context=8191.0)
    shared, own = (AttentionKernel("attention", 40, heads, 128, 128, chunk=8192) for heads in (8, 40))
    assert engine.kernel_s(shared, load) == engine.kernel_s(own, load)


def test_the_variance_of_a_single_term_is_that_of_its_constants() -> None:
    """A kernel that is all bandwidth has the variance of its share's logarithm, and the scatter."""
    kernels = [CountedKernel(Pointwise("norm", 1e9), 10)]
    found = step(variance=0.04, scatter=0.3, pointwise={"floor_cycles": 1e-3}).variance(kernels, Load(tokens=8.0))
    assert float(found) == pytest.approx(0.04 + 0.09, rel=0.03)


def test_servers_of_mixtures_deviate_by_more_than_dense_ones() -> None:
    """Beside kernels that are known exactly: the root of 0.12^2 + 0.09^2, and with experts of 0.12^2 + 0.16^2."""
    exact = step()
    known = msgspec.structs.replace(
        exact.constants, dense_spread=ServerSpread(0.12, 0.09), spread=ServerSpread(0.12, 0.16)
    )
    of_server = EngineStep(H100, "vllm", FORMATS, ALONE, known)
    dense = [CountedKernel(Pointwise("norm", 1e5), 10)]
    experts = CountedKernel(ExpertsKernel("experts", 64, 4, 2048, 768, 3), 10)
    load = Load(tokens=8.0, all_tokens=8.0)
    assert of_server.deviation(dense, load) == pytest.approx(0.15, rel=1e-6)
    assert of_server.deviation([*dense, experts], load) == pytest.approx(0.2, rel=1e-6)


def test_kernels_add_no_more_than_the_steps_that_were_measured_under_the_engine_on_the_device() -> None:
    """Kernels off by 0.5: of measured servers the root of 2 * 0.12^2 + 0.09^2, of others of 0.5^2 + 0.12^2 + 0.09^2."""
    spread = ServerSpread(0.12, 0.09)
    measured = (MeasuredServers("vllm", "h100-sxm", has_experts=False),)
    known = msgspec.structs.replace(constants(0.0, 0.5), dense_spread=spread, measured=measured)
    kernels, load = [CountedKernel(Pointwise("norm", 1e5), 1)], Load(tokens=8.0)
    deviations = [
        EngineStep(device, engine, FORMATS, ALONE, known).deviation(kernels, load)
        for device, engine in ((H100, "vllm"), (H100, "sglang"), (find_device("h200-sxm"), "vllm"))
    ]
    assert deviations == pytest.approx([(2 * 0.12**2 + 0.09**2) ** 0.5, *[(0.5**2 + 0.15**2) ** 0.5] * 2], rel=1e-6)


def test_the_deviation_of_measured_steps_contains_that_of_a_server() -> None:
    """On an MI300X steps were measured, not kernels: 0.12 of a step, and 0.09 of what a source has in common."""
    spread = ServerSpread(0.5, 0.09)
    known = msgspec.structs.replace(constants(0.0, 1e-12), dense_spread=spread, served={"CDNA3 gfx942": 0.12})
    served = EngineStep(find_device("mi300x"), "vllm", FORMATS, ALONE, known)
    deviation = served.deviation([CountedKernel(Pointwise("norm", 1e5), 10)], Load(tokens=8.0))
    assert deviation == pytest.approx(0.15, rel=1e-6)


def test_errors_of_two_classes_are_independent() -> None:
    """Two kernels of the same time with a relative deviation of 0.3 each: 0.3^2 / 2 of the sum."""
    one = step(scatter=0.3, pointwise={"floor_cycles": 1e-3})
    load = Load(tokens=1.0)
    pointwise = CountedKernel(Pointwise("norm", 1e9), 1)
    product = ProductKernel("product", 4096, 4096)
    ratio = float(one.kernel_s(pointwise.kernel, load)) / float(one.kernel_s(product, load))
    assert ratio > 10
    kernels = [CountedKernel(Pointwise("norm", 1e9), 1), CountedKernel(product, round(ratio))]
    assert float(one.variance(kernels, load)) == pytest.approx(0.09 / 2, rel=0.1)


# Tables of the time of an iteration ----------------------------------------------------------------------------------

LIMITS = {"max_new_tokens": 1024, "max_sequences": 128, "max_prompt": 1024, "max_context": 2048}


@pytest.fixture(scope="module")
def kernels_on_device(on_device: ModelOnDevice) -> ModelOnDevice:
    return with_kernels(on_device, "vllm")


@pytest.mark.parametrize(("sequences", "context"), [(1, 512), (16, 1024), (64, 2000), (128, 2047)])
def test_a_decode_step_in_the_table_is_the_sum_of_its_kernels(kernels_on_device, sequences, context) -> None:
    """Kernels of all tokens, the head, and attention; the table interpolates between sizes."""
    assert kernels_on_device.kernels is not None
    tables = tabulate(KernelTimer(kernels_on_device), **LIMITS)
    found = device_kernels(kernels_on_device, "decode", 2047)
    load = Load(tokens=sequences, all_tokens=sequences, sampled=sequences, sequences=sequences, context=context)
    expected_s = float(kernels_on_device.kernels.step.total_s(found, load))
    assert tables.decode_s(sequences, sequences * context) == pytest.approx(expected_s, rel=0.02)


def test_a_table_of_kernels_answers_where_there_are_kernels(on_device, kernels_on_device) -> None:
    by_kernels = tabulate(KernelTimer(kernels_on_device), **LIMITS)
    assert tabulate(LayerTimer(on_device), **LIMITS).decode_s(64, 65536) != by_kernels.decode_s(64, 65536)


def test_layers_are_not_tabulated_where_kernels_are_timed(kernels_on_device) -> None:
    with pytest.raises(BadValue, match="is timed by the kernels of vllm, not by its layers"):
        LayerTimer(kernels_on_device)


def test_the_interval_of_a_decode_step_contains_it(kernels_on_device) -> None:
    """Its ends are factors of one size, where the lower one is not moved up to the traffic of the memory."""
    tables = tabulate(KernelTimer(kernels_on_device), **LIMITS)
    low, high = np.array(tables.relative_low), np.array(tables.relative_high)
    assert np.all((low < 1) & (high > 1) & (low * high > 0.98))
    assert low[:32] * high[:32] == pytest.approx(np.ones(32), rel=0.02)


def test_iterations_with_prompts_have_factors_of_their_own(kernels_on_device) -> None:
    """Products of 4,096 tokens are limited by arithmetic: in company they gain nothing from captured graphs."""
    step = kernels_on_device.kernels.step
    found = [one for one in device_kernels(kernels_on_device, "decode", 2047) if isinstance(one.kernel, ProductKernel)]
    load = Load(tokens=4096.0, all_tokens=4096.0)
    alone_s = sum(one.count * sum(step.kernel_parts_s(one.kernel, load)) for one in found)
    together_s = step.total_s(found, msgspec.structs.replace(load, has_prompts=True))
    launch, work = step.constants.company_of("products", step.device, "vllm", "bf16", True)
    assert launch == 1.0 and together_s == pytest.approx(work * alone_s, rel=0.01)
    tables = tabulate(KernelTimer(kernels_on_device), **LIMITS)
    assert tables.with_prompts is not None
    chunks = ((0, 512),)
    scheduled = ScheduledTokens(0, 0.0, chunks, 1)
    assert tables.iteration_s(scheduled) == tables.with_prompts.iteration_s(scheduled)


def test_overheads_are_not_in_the_tables(kernels_on_device) -> None:
    """They belong to the engine, so that kernels can be compared alone."""
    engine = find_server("vllm", H100)
    assert engine.overhead_s > 0
    empty = msgspec.structs.asdict(tabulate(KernelTimer(kernels_on_device), **LIMITS))
    assert empty["token_s"][0] == 0 and empty["head_s"][0] == 0


@pytest.mark.parametrize(
    ("gpu", "engine", "form"),
    [
        ("h100-sxm", "vllm-0.13", "fp8-block-tiles"),  # 0.11 logs "Using DeepGEMM backend for FP8 MoE": PR 29346
        ("b200", "vllm-0.13", "fp8-block-tiles"),
        ("l40s", "vllm-0.13", "fp8-block"),  # DeepGEMM has kernels for Hopper and Blackwell only
        ("h100-sxm", "vllm", "fp8-block"),  # Triton unless DeepGEMM is asked for: PR 39331
        ("h100-sxm", "vllm-0.7", "fp8-block"),
        ("h100-sxm", "sglang", "fp8-block"),
    ],
)
def test_some_versions_compute_whole_tiles_of_every_expert(gpu, engine, form) -> None:
    workload, machine, model = resolve_question(Question("qwen3-30b-a3b", gpu, precision="fp8", phase="decode"))
    alone = ModelOnDevice(workload, machine, model, None, "bf16")
    placed = with_kernels(alone, engine)
    assert placed.kernels is not None
    found = placed.kernels.step
    assert found.formats.experts == form and found.engine == engine.partition("-")[0]
    rates = [kernel_rates(machine.device, name) for name in (form, "fp8-block")]
    assert rates[0] == rates[1]


@pytest.mark.parametrize(("engine", "rows"), [("vllm-0.13", 16 * 8 + 128 * 127), ("vllm", 16 * 8)])
def test_tiles_of_experts_have_the_rows_of_the_largest_possible_buffer(engine, rows) -> None:
    """`M_sum = M * num_topk + local_num_experts * (alignment - 1)` (vLLM 0.11.1, `compute_aligned_M`): 128 experts."""
    workload, machine, model = resolve_question(Question("qwen3-30b-a3b", "h100-sxm", precision="fp8", phase="decode"))
    placed = with_kernels(ModelOnDevice(workload, machine, model, None, "bf16"), engine)
    assert placed.kernels is not None
    experts = ExpertsKernel("experts", hidden_size=2048, inner_size=768, experts=128, active=8, matrices=3)
    sizes = placed.kernels.step.expert_sizes(experts, np.array([16.0]))
    assert sizes.rows == pytest.approx(rows)
    assert sizes.distinct < 128  # tiles without a token read no weights


def test_rows_without_a_token_draw_a_part_of_the_power() -> None:
    """With 100,000 tokens all 128 experts have some: of each expert's 127 empty rows, a constant part draws nothing."""
    workload, machine, model = resolve_question(Question("qwen3-30b-a3b", "h100-sxm", precision="fp8", phase="decode"))
    alone = ModelOnDevice(workload, machine, model, None, "bf16")
    experts = ExpertsKernel("experts", hidden_size=2048, inner_size=768, experts=128, active=8, matrices=3)
    for engine, empty in (("vllm-0.13", 127), ("vllm", 0)):
        placed = with_kernels(alone, engine)
        assert placed.kernels is not None
        drawn = placed.kernels.step.drawing_share(experts, Load(tokens=1e5, all_tokens=1e5))
        saved = 128 * empty * (1 - EMPTY_ROW_POWER)
        assert drawn == pytest.approx(1 - saved / (8e5 + 128 * empty), rel=1e-6)
    # A single token has rows of eight experts, so that 120 / 128 of the constant part is missing, too.
    placed = with_kernels(alone, "vllm-0.13")
    assert placed.kernels is not None
    saved = 128 * 127 * (1 - EMPTY_ROW_POWER * 8 / 128)
    drawn = placed.kernels.step.drawing_share(experts, Load(tokens=1.0, all_tokens=1.0))
    assert drawn == pytest.approx(1 - saved / (8 + 128 * 127), rel=1e-6)


@pytest.mark.parametrize(
    ("gpu", "engine", "precision", "products"),
    [
        # Norms and activations quantise, attention does not (vLLM, docs/design/fusions: `fuse_attn_quant` is off).
        ("h100-sxm", "vllm", "fp8", ["QKV projection", "gate and up projection", "down projection"]),
        ("h100-sxm", "vllm", "bf16", []),
        ("h100-sxm", "vllm-0.7", "fp8", []),
        # Kernels by themselves: https://github.com/ROCm/vllm/pull/789, https://github.com/sgl-project/sglang/issues/31504
        ("mi300x", "vllm", "fp8", []),
        ("h100-sxm", "sglang", "fp8", []),
    ],
)
def test_vllm_quantises_to_fp8_in_the_kernel_before_a_product(gpu, engine, precision, products) -> None:
    workload, machine, model = resolve_question(Question("llama-3-8b", gpu, precision=precision, phase="decode"))
    placed = with_kernels(ModelOnDevice(workload, machine, model, None, "bf16"), engine)
    assert placed.kernels is not None
    listed = [counted.kernel for counted in placed.kernels.of_iteration("decode", 512)]
    kernels = [kernel for kernel in listed if isinstance(kernel, ProductKernel)]
    formats = placed.kernels.step.formats
    quantised = [kernel.name for kernel in kernels if formats.has_quantised_operand(kernel)]
    assert quantised == products


@pytest.mark.parametrize(("gpu", "factor"), [("a100-sxm-80gb", 2.9), ("h100-sxm", 1.0)])
def test_attention_with_sinks_has_a_kernel_of_its_own_before_hopper(gpu, factor) -> None:
    """FlashAttention 3 knows sinks, FlashAttention 2 does not."""
    step = EngineStep(find_device(gpu), "vllm", Formats("bf16", "bf16", "bf16", "bf16", "bf16/bf16"))
    plain = AttentionKernel("attention", 64, 8, 64, 64, rows="prompts")
    load = Load.of_prompts(1, 32_000)
    with_sinks = step.kernel_s(msgspec.structs.replace(plain, has_sinks=True), load)
    assert with_sinks / step.kernel_s(plain, load) == pytest.approx(factor, rel=0.01)


def test_a_token_reads_its_experts_whoever_else_is_there() -> None:
    """Mixtral 8x7B in 16 bits on an H100: 2 experts of three matrices of 4096 by 14336 numbers, at 3.35 TB/s."""
    experts = ExpertsKernel("experts", 4096, 14_336, experts=8, active=2, matrices=3)
    formats = Formats("bf16", "bf16", "bf16", "bf16", "bf16/bf16")
    read_s = 2 * 3 * 4096 * 14_336 * 2 / 3.35e12
    for division, devices in ((Division(), 1), (Division(4), 4), (Division(4, expert_parallel=2), 4)):
        step = EngineStep(H100, "vllm", formats, LinkedDevices(division))
        assert step.one_token_s(experts, Load.of_decoding(1, 100)) == pytest.approx(read_s / devices, rel=1e-3)

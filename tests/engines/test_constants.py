"""Constants of cells that were fitted, and of those that were not, against the posterior of a mixed model by hand.

Tests: engines/constants.py, engines/kernel_formats.py.
"""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

import paleo_lite as pl
from paleo_lite.engines.constants import (
    EFFECTS,
    CellFit,
    CellTraits,
    ClassFit,
    engine_constants,
    generation_of,
    predict_constants,
    same_effects,
    traits_of,
)  # fmt: skip
from paleo_lite.engines.formulas import KERNEL_CLASSES
from paleo_lite.engines.kernel_formats import KERNEL_FORMATS, choose_formats, has_constants, kernel_rates
from paleo_lite.errors import BadValue, UnknownPrecision
from paleo_lite.machines import find_device

H100 = traits_of(find_device("h100-sxm"), "vllm", "bf16")
B200 = traits_of(find_device("b200"), "vllm", "bf16")


def fit(cells: list[tuple[float, float]], **variances: float) -> ClassFit:
    """One constant, fitted in some cells as (logarithm, standard deviation), with the variances of some effects.

    The scatter is 0.2 everywhere.
    """
    scatter = float(np.log(0.2))
    fitted = [CellFit("any", "any", "any", (theta, scatter), (error, 0.1), 100, 0.1) for theta, error in cells]
    named = {name.replace("_", " "): value for name, value in variances.items()}
    effects = {name: (named.get(name, 0.0), 0.0) for name in EFFECTS}
    return ClassFit(("one", "scatter"), (1.0, scatter), effects, tuple(fitted))


def test_traits_are_those_of_the_data_sheet() -> None:
    assert CellTraits("vllm", "bf16", "h100-sxm", "GH100", "Hopper 9", "NVIDIA HBM") == H100
    l40s = CellTraits("sglang", "fp8", "l40s", "AD102", "Ada 8", "NVIDIA GDDR")
    assert traits_of(find_device("l40s"), "sglang", "fp8") == l40s


def test_devices_share_the_family_of_their_memory() -> None:
    """One device was written HBM3E, another HBM3e: its kernels were those of a device without any relative."""
    devices = [
        "h200-nvl",
        "h200-sxm",
        "h100-pcie",
        "b200",
        "l40s",
        "rtx-pro-6000",
        "rtx3090",
        "dgx-spark",
        "jetson-thor",
    ]
    families = [traits_of(find_device(name), "vllm", "bf16").memory.split()[1] for name in devices]
    assert families == ["HBM"] * 4 + ["GDDR"] * 3 + ["LPDDR"] * 2
    memory = find_device("h100-sxm").memory
    assert msgspec.structs.replace(memory, type="hbm3").family == memory.family == "HBM"  # of a user's own file


@pytest.mark.parametrize("precision", ["fp8", "int8"])
def test_4_bit_floating_point_is_not_multiplied_in_8_bits(precision: str) -> None:
    with pytest.raises(BadValue, match=f"not in {precision}: leave `--precision {precision}` out"):
        choose_formats(precision, "nvfp4", "bf16", has_experts=False, has_latent_attention=False)


def test_a_generation_has_the_same_instructions() -> None:
    """Compute capability 10 of B200 and B300, 12 of RTX PRO 6000 (CUDA C++ Programming Guide, compute capabilities)."""
    generations = [generation_of(find_device(name)) for name in ("b200", "gb200", "b300", "rtx-pro-6000")]
    assert generations == ["Blackwell 10", "Blackwell 10", "Blackwell 10", "Blackwell 12"]


def test_a_cell_that_is_known_exactly_keeps_its_constants() -> None:
    constants = predict_constants(fit([(3.0, 1e-6), (0.0, 1e-6)], cell=1.0, engine=0.5), H100, [H100, B200])
    assert constants.theta[0] == pytest.approx(3.0, abs=1e-6)
    assert constants.deviation[0] == pytest.approx(0.0, abs=1e-5) and constants.scatter == pytest.approx(0.2)


def test_a_cell_that_shares_nothing_gets_the_mean_and_all_the_variance() -> None:
    alone = CellTraits("other", "fp4", "other", "other", "Other", "AMD HBM")
    constants = predict_constants(fit([(3.0, 0.1)], cell=0.25, device=0.11), alone, [H100])
    assert constants.theta[0] == pytest.approx(1.0)
    assert constants.deviation[0] == pytest.approx(np.sqrt(0.25 + 0.11))


def test_one_measurement_is_weighed_against_the_mean() -> None:
    """A normal prior (mean 1, variance 0.6) and an observation 3 of variance 0.2: 1 + 2 x 0.6 / 0.8 = 2.5."""
    constants = predict_constants(fit([(3.0, np.sqrt(0.2))], cell=0.6), H100, [H100])
    assert constants.theta[0] == pytest.approx(2.5)
    assert constants.deviation[0] ** 2 == pytest.approx(1 / (1 / 0.6 + 1 / 0.2))


def test_two_cells_of_an_engine_speak_for_a_third_device() -> None:
    """Engine variance 0.3, device variance 0.2, errors 0.1, observations 1.5 and 2.5 on two devices.

    The covariance of the observations is [[0.6, 0.3], [0.3, 0.6]], theirs with the wanted cell (0.3, 0.3), so that both
    weigh 0.3 / 0.9 = 1/3: 1 + (0.5 + 1.5) / 3, with variance 0.5 - 2 x 0.3 / 3.
    """
    wanted = traits_of(find_device("a100-sxm-80gb"), "vllm", "bf16")
    error = np.sqrt(0.1)
    constants = predict_constants(fit([(1.5, error), (2.5, error)], engine=0.3, device=0.2), wanted, [H100, B200])
    assert constants.theta[0] == pytest.approx(1 + 2 / 3)
    assert constants.deviation[0] ** 2 == pytest.approx(0.5 - 0.2)


def test_effects_are_what_cells_have_in_common() -> None:
    others = [H100, B200, traits_of(find_device("h200-sxm"), "sglang", "bf16")]
    same = {name: matrix[0].tolist() for name, matrix in same_effects([H100], others).items()}
    assert same == {
        "format": [1, 1, 1],
        "engine": [1, 1, 0],
        "engine and format": [1, 1, 0],
        "generation": [1, 0, 1],
        "generation and format": [1, 0, 1],
        "memory": [1, 1, 1],
        "chip": [1, 0, 1],
        "device": [1, 0, 0],
        "engine, format and generation": [1, 0, 0],
        "cell": [1, 0, 0],
    }


@pytest.mark.parametrize("name", sorted(engine_constants().classes))
def test_a_device_that_was_held_out_has_wider_intervals(name: str) -> None:
    """The first cell of every class, with its own measurements and without all those of its device."""
    whole = engine_constants().classes[name]
    cell = whole.cells[0]
    own = traits_of(find_device(cell.gpu), cell.engine, cell.format)
    all_traits = [traits_of(find_device(one.gpu), one.engine, one.format) for one in whole.cells]
    others = [index for index, one in enumerate(whole.cells) if one.gpu != cell.gpu]
    held_out = msgspec.structs.replace(whole, cells=tuple(whole.cells[index] for index in others))
    known = predict_constants(whole, own, all_traits)
    unknown = predict_constants(held_out, own, [all_traits[index] for index in others])
    assert np.all(unknown.deviation >= known.deviation) and unknown.deviation.sum() > 1.2 * known.deviation.sum()


@pytest.mark.parametrize("name", sorted(engine_constants().classes))
def test_shipped_constants_are_those_of_the_formulas(name: str) -> None:
    shipped, kernels = engine_constants().classes[name], KERNEL_CLASSES[name]
    assert shipped.parameters == (*kernels.parameters, "scatter")
    assert set(shipped.variances) == set(EFFECTS)
    count = len(shipped.parameters)
    lists = [shipped.mean, *shipped.variances.values()]
    lists += [getattr(cell, field) for cell in shipped.cells for field in ("theta", "deviation")]
    assert {len(values) for values in lists} == {count}
    assert len({(cell.gpu, cell.engine, cell.format) for cell in shipped.cells}) == len(shipped.cells)


@pytest.mark.parametrize(
    ("form", "peak_per_s", "weight_bytes", "operand_bytes"),
    [
        ("bf16", 989e12, 2, 2),
        ("fp8", 1979e12, 1, 1),
        ("int8", 989e12, 1, 2),
        ("w8a8", 1979e12, 1, 1),
        ("mxfp4", 989e12, 4.25 / 8, 2),  # a scale of 8 bits for each 32 numbers
    ],
)
def test_rates_of_an_h100_are_those_of_its_data_sheet(form, peak_per_s, weight_bytes, operand_bytes) -> None:
    rates, weights, operands = kernel_rates(find_device("h100-sxm"), form)
    assert rates.peak_per_s == pytest.approx(peak_per_s, rel=0.001)
    assert rates.bandwidth_bytes_per_s == pytest.approx(3.35e12, rel=0.001) and rates.multiprocessors == 132
    assert (weights, operands) == pytest.approx((weight_bytes, operand_bytes), rel=0.01)


def test_an_a100_has_no_products_in_8_bit_floats() -> None:
    with pytest.raises(UnknownPrecision):
        kernel_rates(find_device("a100-sxm-80gb"), "fp8")


@pytest.mark.parametrize(
    ("asked", "has_experts", "has_latent_attention", "expected"),
    [
        (("bf16", None), False, False, ("bf16", "bf16", "bf16")),
        (("fp8", None), False, False, ("fp8", "fp8", "fp8")),
        (("fp8", None), True, True, ("fp8-block", "fp8-block", "fp8-block")),  # DeepSeek-V3: scales of 128 x 128
        (("bf16", "fp8"), False, False, ("w8a16", "w8a16", "w8a16")),  # 8 bits that are converted
        (("bf16", "int4"), False, False, ("int4", "int4", "int4")),
        (("bf16", "awq"), False, False, ("int4", "int4", "int4")),
        (("bf16", "int4"), True, True, ("bf16", "bf16", "int4")),  # Kimi K2.5
        (("bf16", "mxfp4"), True, False, ("bf16", "bf16", "mxfp4")),  # gpt-oss
        (("fp4", None), True, True, ("bf16", "nvfp4", "nvfp4")),  # DeepSeek-V3.1-NVFP4
        (("fp4", None), True, False, ("nvfp4", "nvfp4", "nvfp4")),
    ],
)
def test_formats_are_those_of_published_checkpoints(asked, has_experts, has_latent_attention, expected) -> None:
    precision, weights = asked
    formats = choose_formats(
        precision, weights, "bf16", has_experts=has_experts, has_latent_attention=has_latent_attention
    )
    assert (formats.projections, formats.feed_forward, formats.experts) == expected
    assert formats.plain == "bf16" and formats.attention == "bf16/bf16"
    assert {*expected} <= set(KERNEL_FORMATS)


def test_a_format_without_kernels_raises_one_sentence() -> None:
    with pytest.raises(
        BadValue,
        match=r"no kernels for `--weights q4_k_m` with `--precision bf16`: use fp16, .*; `paleo-lite local` answers",
    ):
        choose_formats("bf16", "q4_k_m", "bf16", has_experts=False, has_latent_attention=False)


def test_constants_speak_for_measured_architectures_only() -> None:
    assert has_constants(find_device("rtx4090")) and has_constants(find_device("b200"))
    assert has_constants(find_device("mi300x"))  # from its servers
    assert not has_constants(find_device("mi210")) and not has_constants(find_device("v100-sxm2"))


def test_servers_speak_for_the_formats_that_they_ran_in() -> None:
    """AMD's tables of MI300X are of a dense network in fp8: intervals of int4 and of mixtures stay wide."""

    def width(network: str, **asked: object) -> float:
        low_s, high_s = pl.predict(network, gpu="mi300x", phase="decode", batch_size=8, **asked).interval
        return high_s / low_s

    assert width("llama-3.1-8b", precision="fp8") < 3.5 < width("llama-3.1-8b", weights="int4")
    assert width("qwen3-30b-a3b", precision="fp8") > 3.5


def test_pointwise_kernels_of_prompts_reach_no_more_than_the_memory() -> None:
    """Activations of long prompts are in memory, whose bandwidth the data sheet states."""
    constants = engine_constants()
    for cell in constants.classes["pointwise"].cells:
        device = find_device(cell.gpu)
        for engine in ("vllm", "sglang", "tensorrt-llm"):
            log_share, _ = constants.of("pointwise", device, engine, "bf16").theta
            _, work = constants.company_of("pointwise", device, engine, "bf16", is_prompt=True)
            assert np.exp(log_share) / work < 1, (cell.gpu, engine)


def test_tensorrt_llm_runs_on_nvidia_alone() -> None:
    with pytest.raises(BadValue, match="`--engine tensorrt-llm` is for devices of NVIDIA, not for Instinct MI300X"):
        pl.serve("llama-3.1-8b", gpu="mi300x", engine="tensorrt-llm", rate=1)

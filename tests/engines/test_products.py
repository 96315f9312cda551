"""Products by the kernels of engines: bytes by hand, published tables, power limits and options that do not fit."""

from __future__ import annotations

import numpy as np
import pytest

import paleo_lite as pl
from measured import DATA
from paleo_lite.engines.products import EngineProductTimer, has_product_kernels
from paleo_lite.errors import BadValue, UnknownName
from paleo_lite.machines import Machine, find_device
from paleo_lite.timing.energy import MEMORY_CLOCK


@pytest.mark.parametrize(
    ("precision", "weights", "bytes_per_weight", "bytes_per_operand"),
    [
        ("bf16", None, 2.0, 2.0),
        ("fp8", None, 1.0, 1.0),
        ("fp4", None, 0.5 + 1 / 16, 0.5 + 1 / 16),  # nvfp4: four bits, and a scale of eight per 16 numbers
        ("bf16", "mxfp4", 0.5 + 1 / 32, 2.0),  # a scale of eight bits per 32 numbers
    ],
)
def test_bytes_of_formats(precision, weights, bytes_per_weight, bytes_per_operand):
    """Both operands once, and the result in 16 bits."""
    m, n, k = 256, 4096, 8192
    times = pl.gemm(m, n, k, gpu="b200", precision=precision, weights=weights)
    assert times.bytes == m * k * bytes_per_operand + k * n * bytes_per_weight + 2 * m * n
    assert times.model == "kernels" and times.flops == 2 * m * n * k


def test_launches_follow_one_another():
    times = pl.gemm(16, 4096, 4096, gpu="h100-sxm", precision="bf16", count=8)
    (one,) = pl.gemm(16, 4096, 4096, gpu="h100-sxm", precision="bf16").variants
    separate, stacked, batched = times.variants
    assert separate.time_s == pytest.approx(8 * one.time_s)
    assert stacked.time_s < batched.time_s < separate.time_s  # the right operand once, and eight times in one launch


def test_a_power_limit_slows_large_products_only():
    def time_s(m: int, power_limit: str | None) -> float:
        return pl.gemm(m, 8192, 8192, gpu="h100-sxm", precision="bf16", power_limit=power_limit).variants[0].time_s

    assert time_s(8192, "350 W") > 1.1 * time_s(8192, None)
    assert time_s(1, "600 W") == pytest.approx(time_s(1, None), rel=0.02)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"gpu": "v100-sxm2", "precision": "fp16", "engine": "vllm"}, BadValue, "`--engine` is for products in fp16"),
        ({"gpu": "h100-sxm", "precision": "tf32", "weights": "int4"}, BadValue, "`--weights` is for products"),
        ({"gpu": "h100-sxm", "precision": "fp8", "weights": "q4_k_m"}, BadValue, "no kernels for `--weights q4_k_m`"),
        ({"gpu": "h100-sxm", "precision": "bf16", "engine": "llama.cpp"}, UnknownName, "llama.cpp"),
        ({"peak": "1 TFLOP/s", "precision": "fp8", "weights": "fp8-block"}, BadValue, "`--weights` is for products"),
    ],
)
def test_options_without_kernels(options, error, message):
    with pytest.raises(error, match=message):
        pl.gemm(16, 4096, 4096, **options)


def test_a_clock_slows_arithmetic_in_proportion_and_memory_below_four_fifths():
    """See `MEMORY_CLOCK`; a product is never faster at a lower clock."""
    tensor_hz = 1.83e9  # clock of the tensor cores' peak, NVIDIA's data sheet: 989.4e12 / (132 x 4096)
    for size, slowdown in ((8192, 0.6), (16, 0.6 / MEMORY_CLOCK)):
        free_s, high_s, slow_s = (
            EngineProductTimer(Machine(find_device("h100-sxm"), clock), "bf16").time_s(size, 8192, 8192, 1, 1)[0]
            for clock in (None, f"{0.9 * tensor_hz:.0f} Hz", f"{0.6 * tensor_hz:.0f} Hz")
        )
        assert free_s <= high_s <= slow_s
        assert slow_s == pytest.approx(free_s / slowdown, rel=0.1)


def test_a_unit_or_model_of_ones_own_is_that_of_layers():
    device = find_device("h100-sxm")
    assert has_product_kernels(Machine(device), "bf16")
    assert has_product_kernels(Machine(device, "1.2 GHz"), "bf16")
    assert not has_product_kernels(Machine(device, unit="vector"), "bf16")
    assert not has_product_kernels(Machine(device), "fp32")
    assert pl.gemm(16, 4096, 4096, gpu="h100-sxm", precision="bf16", time_model="roofline").model == "roofline"


# Median errors of docs/gemm.md and those that hold for each engine apart; aiconfigurator's tables of products.
@pytest.mark.spread(2)
@pytest.mark.needs_data
@pytest.mark.parametrize(
    ("gpu", "device", "dtype", "precision", "weights", "at_most"),
    [
        ("h100_sxm", "h100-sxm", "bfloat16", "bf16", None, 0.15),
        ("b200_sxm", "b200", "bfloat16", "bf16", None, 0.15),
        ("h100_sxm", "h100-sxm", "fp8", "fp8", None, 0.2),
        ("h200_sxm", "h200-sxm", "fp8_block", "fp8", "fp8-block", 0.2),
        ("b200_sxm", "b200", "nvfp4", "fp4", None, 0.2),
    ],
)
def test_published_products(gpu, device, dtype, precision, weights, at_most):
    pandas = pytest.importorskip("pandas")
    rows = pandas.read_csv(DATA / "engines/gemm.csv.gz", low_memory=False)
    rows = rows[(rows["gpu"] == gpu) & (rows["gemm_dtype"] == dtype)]
    rows = rows[~rows["kernel_source"].str.contains("Triton|Fp8BlockScaledMM")]  # fallbacks that servers do not use
    rows = rows.sample(300, random_state=1)
    timer = EngineProductTimer(Machine(find_device(device)), precision, weights)
    found = [timer.time_s(int(m), int(n), int(k), 1, 1) for m, n, k in zip(rows["m"], rows["n"], rows["k"])]
    measured_s = rows["latency"].to_numpy() / 1e3
    ratios = np.array([time_s for time_s, _ in found]) / measured_s
    inside = [low <= time_s <= high for time_s, (_, (low, high)) in zip(measured_s, found)]
    assert np.median(np.abs(ratios - 1)) < at_most
    assert np.mean(inside) > 0.85


def test_the_time_of_a_layer_of_pytorch_is_named_beside_that_of_kernels() -> None:
    """A product of FLUX.1: the note has the answer to its own option."""
    asked = {"gpu": "h100-sxm", "precision": "bf16"}
    kernels = pl.gemm(4608, 12288, 3072, **asked)
    layer = pl.gemm(4608, 12288, 3072, **asked, time_model="calibrated")
    (note,) = [note for note in kernels.notes if "`--time-model calibrated`" in note]
    assert f"{layer.variants[0].time_s * 1e6:.1f} µs (" in note
    assert not any("calibrated" in note for note in pl.gemm(64, 64, 64, gpu="h100-sxm", precision="int8").notes)

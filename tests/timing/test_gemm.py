"""Matrix products: published arithmetic, tiles by hand, both models by their own formulas, and what batching gains."""

from __future__ import annotations

import math

import numpy as np
import pytest

import paleo_lite as pl
from measured import DATA
from paleo_lite.calibration.choose import choose_model
from paleo_lite.errors import BadValue, UnknownPrecision
from paleo_lite.machines import Machine, find_device
from paleo_lite.timing import TimeModel, find_model
from paleo_lite.timing.calibrated import CalibratedModel
from paleo_lite.timing.gemm import ModelTimer, PeakTimer, compute_tiling, time_gemms
from paleo_lite.timing.parameters import NAMES

PEAK, ROOFLINE = find_model("peak"), find_model("roofline")


def model(**parameters: float) -> CalibratedModel:
    """A calibrated model: every share and efficiency 1, every time next to nothing, but for those given."""
    values = [parameters.get(name, 1e-12 if name.endswith("_s") or name.startswith("half") else 1.0) for name in NAMES]
    return CalibratedModel("by hand", np.log(values), np.zeros((len(NAMES), len(NAMES))), 0.1)


def fp32_timer(time_model: TimeModel) -> ModelTimer:
    """Products in fp32 on a V100."""
    return ModelTimer(time_model, Machine(find_device("v100-sxm2")), "fp32")


def test_a_published_bound_and_what_was_measured():
    """Slides "Profiling DNN workloads": 0.03 GFLOP at 6000 GFLOP/s, ~5.6 us; 8 x 71.964 us became 2 x 99.057 us."""
    times = time_gemms(512, 64, 512, "fp32", PeakTimer(6000e9, "fp32"), products=8, into=2)
    assert times.flops == 2 * 512 * 512 * 64 == 33_554_432
    assert times.peak_time_s == pytest.approx(5.6e-6, abs=0.05e-6)
    separate, stacked, batched = times.variants
    # The same arithmetic in two launches of four times the rows, as in the slides' [A] h = [x] stacked.
    assert (separate.launches, stacked.launches, stacked.m, batched.groups) == (8, 2, 4 * 512, 8)
    assert separate.flops == stacked.flops == batched.flops == 8 * 33_554_432
    assert separate.time_s == stacked.time_s == batched.time_s == pytest.approx(8 * 33_554_432 / 6000e9)
    before, after = 8 * 71.964e-6, 2 * 99.057e-6
    assert (before, after) == (pytest.approx(575.72e-6, rel=1e-4), pytest.approx(198.11e-6, rel=1e-4))  # its totals
    assert before / after == pytest.approx(2.906, abs=0.001)  # the slides say 2.5x: their own figures give 2.9
    assert separate.flops / before == pytest.approx(0.466e12, rel=1e-3)  # 7.8% of the peak before,
    assert stacked.flops / after / 6000e9 == pytest.approx(0.226, abs=0.001)  # 22.6% after


def test_what_the_slides_measured_lies_in_the_interval_of_a_maxwell_card():
    """The slides name no device, the kernel is Maxwell's; no single product went into the M40's calibration."""
    m40 = find_device("m40")
    timer = ModelTimer(choose_model(m40, "fp32"), Machine(m40), "fp32")
    separate, stacked, _ = time_gemms(512, 64, 512, "fp32", timer, products=8, into=2).variants
    assert separate.interval[0] < 8 * 71.964e-6 < separate.interval[1]
    assert stacked.interval[0] < 2 * 99.057e-6 < stacked.interval[1]
    assert 2 < separate.time_s / stacked.time_s < 4  # it measured 2.9


@pytest.mark.parametrize(
    ("m", "n", "multiprocessors", "tile", "tiles", "waves", "last", "covered"),
    [
        (512, 64, 24, (64, 64), 8, 1, 8, 1.0),
        (512, 64, 24, (128, 64), 4, 1, 4, 1.0),  # maxwell_sgemm_128x64, the slides' kernel
        (4096, 4096, 108, (128, 256), 512, 5, 80, 1.0),  # 4 * 108 = 432
        (65, 65, 4, (64, 64), 4, 1, 4, 65 * 65 / (128 * 128)),
        (1, 1, 80, (64, 64), 1, 1, 1, 1 / 4096),
    ],
)
def test_tiles_and_waves(m, n, multiprocessors, tile, tiles, waves, last, covered):
    found = compute_tiling(m, n, multiprocessors, tile)
    assert (found.tiles, found.waves, found.last_wave_tiles) == (tiles, waves, last)
    assert found.tile_efficiency == pytest.approx(covered)
    assert found.wave_efficiency == pytest.approx(tiles / (waves * multiprocessors))


def test_the_roofline_gains_the_memory_traffic_that_stacking_saves():
    # 15.7 TFLOP/s, 900 GB/s
    times = time_gemms(512, 8, 512, "fp32", fp32_timer(ROOFLINE), products=4)
    separate, stacked, batched = times.variants
    one = 4 * (512 * 512 + 512 * 8 + 512 * 8)  # left, right, output, 4 bytes each
    assert separate.bytes == batched.bytes == 4 * one
    assert stacked.bytes == 4 * (4 * 512 * 512 + 512 * 8 + 4 * 512 * 8)  # the right operand once, not four times
    assert separate.time_s == pytest.approx(4 * one / 900e9)  # 4 FLOP per byte: memory bounds it
    assert separate.time_s / stacked.time_s == pytest.approx(separate.bytes / stacked.bytes)
    assert times.intensity == pytest.approx(2 * 512 * 512 * 8 / one) and times.ridge_point == pytest.approx(
        15.7e12 / 900e9
    )
    assert "only memory traffic" in times.notes[0]


@pytest.mark.parametrize("time_model", [PEAK, ROOFLINE], ids=lambda model: model.name)
def test_large_products_take_their_flops_at_the_peak_in_any_number_of_launches(time_model) -> None:
    """15.7 TFLOP/s in fp32; the products of 4096 are far above the ridge point of 17 FLOP per byte."""
    times = time_gemms(4096, 4096, 4096, "fp32", fp32_timer(time_model), products=4)
    for variant in times.variants:
        assert variant.time_s == pytest.approx(4 * 2 * 4096**3 / 15.7e12)
    assert [variant.launches for variant in times.variants] == [4, 1, 1]


def test_the_calibrated_model_by_hand():
    """compute = FLOPs / (peak * efficiency * tiles / (tiles + half * multiprocessors)), then the norm with p = 4."""
    # 80 multiprocessors
    slow = model(efficiency_gemm=0.5, half=0.2)
    (way,) = time_gemms(1024, 1024, 4096, "fp32", fp32_timer(slow)).variants
    filled = 256 / (256 + 0.2 * 80)
    compute = 2 * 1024 * 1024 * 4096 / (15.7e12 * 0.5 * filled)
    memory = 4 * (2 * 1024 * 4096 + 1024 * 1024) / 900e9
    assert way.time_s == pytest.approx((compute**4 + memory**4) ** 0.25, rel=1e-6)
    low, high = way.interval  # how wide is the model's own affair
    assert low < way.time_s < high and low * high == pytest.approx(way.time_s**2)


def test_rows_state_tiles_and_waves() -> None:
    """256 tiles of 64 by 64 on the 80 multiprocessors of a V100: three full waves and 16 tiles."""
    times = time_gemms(1024, 1024, 4096, "fp32", fp32_timer(model()))
    (row,) = times.rows()
    assert (row["launches"], row["groups"], row["m"], row["n"], row["k"]) == (1, 1, 1024, 1024, 4096)
    assert (row["tiles"], row["waves"], row["last_wave_tiles"]) == (256, 4, 16)
    assert (row["filled"], row["covered"]) == (pytest.approx(256 / 320), 1.0)
    assert row["flops"] == 2 * 1024 * 1024 * 4096 and row["bytes"] == 4 * (2 * 1024 * 4096 + 1024 * 1024)
    assert row["share_of_peak"] == pytest.approx(row["flops"] / row["time_s"] / 15.7e12)
    assert row["gain"] == 1 and tuple(row["interval"]) == times.variants[0].interval
    (without,) = time_gemms(1024, 1024, 4096, "fp32", PeakTimer(1e12, "fp32")).rows()
    untold = ("tiles", "waves", "last_wave_tiles", "filled", "covered", "interval")
    assert [without[name] for name in untold] == [None] * len(untold)


def test_no_framework_goes_around_a_product():
    (plain,) = time_gemms(512, 512, 512, "fp32", fp32_timer(model())).variants
    (with_constant,) = time_gemms(512, 512, 512, "fp32", fp32_timer(model(step_s=5e-3))).variants
    assert with_constant.time_s == pytest.approx(plain.time_s, rel=1e-6)
    low, high = with_constant.interval
    assert low * high == pytest.approx(with_constant.time_s**2)


def test_launches_that_the_host_pays_for_are_what_batching_saves():
    """NVIDIA's kernels follow one another every 3.8 us, whatever the host of a framework takes (10 us here)."""
    times = time_gemms(64, 64, 64, "fp32", fp32_timer(model(overhead_s=10e-6)), products=10)
    separate, stacked, batched = times.variants
    assert (separate.time_s, stacked.time_s) == (pytest.approx(38e-6, rel=1e-3), pytest.approx(3.8e-6, rel=1e-3))
    assert times.rows()[2]["gain"] == pytest.approx(10, rel=0.01) and batched.launches == 1


@pytest.mark.parametrize(
    ("sizes", "options", "message"),
    [
        ((0, 1, 1), {}, r"M must be an integer >= 1 \(got 0\)"),
        ((1, 1, 1), {"products": 8, "into": 3}, "3 does not divide 8"),
        ((2**32, 2**32, 8), {}, "are too many to count"),
        ((1, 1, 1), {"products": 10**7}, "are too many to count"),
        ((1, 1, 1), {"tile": (0, 64)}, "tile must be an integer"),
    ],
)
def test_products_that_cannot_be_timed_are_refused(sizes, options, message):
    with pytest.raises(BadValue, match=message):
        time_gemms(*sizes, "fp32", PeakTimer(1e12, "fp32"), **options)


def test_a_product_needs_a_device_or_a_peak():
    with pytest.raises(BadValue, match="give either a device or a peak"):
        pl.gemm(1, 1, 1)
    with pytest.raises(BadValue, match="give either a device or a peak"):
        pl.gemm(1, 1, 1, gpu="k80", peak="1 TFLOP/s")


def test_any_peak_above_0_is_a_peak():
    """2 FLOPs at 1 and at half a FLOP/s."""
    for peak_per_s in (1, 0.5):
        assert time_gemms(1, 1, 1, "fp32", PeakTimer(peak_per_s, "fp32")).peak_time_s == 2 / peak_per_s
    for peak_per_s in (0.0, math.inf):
        with pytest.raises(BadValue, match=r"must be above 0 \(got (0|inf) FLOP/s\)"):
            PeakTimer(peak_per_s, "fp32")


def test_a_precision_that_the_device_lacks():
    with pytest.raises(UnknownPrecision, match="Tesla K80 has no fp16 peak"):
        ModelTimer(ROOFLINE, Machine(find_device("k80")), "fp16")


@pytest.mark.spread(1)
@pytest.mark.needs_data
@pytest.mark.parametrize(
    ("gpu", "device", "precision", "at_most"),
    [
        ("M40", "m40", "fp32", 0.5),
        ("T4", "t4", "fp16", 0.23),
        ("V100", "v100-sxm2", "fp16", 0.27),
    ],
)
def test_products_of_deepbench(gpu, device, precision, at_most):
    """The training set, timed one by one: the median error is that of docs/gemm.md, and less than the roofline's."""
    pandas = pytest.importorskip("pandas")
    path = DATA / "measured" / "deepbench_gemm.csv.gz"
    rows = pandas.read_csv(path).query("mode == 'train' and unit == 'ms' and gpu == @gpu")
    rows = rows[rows["precision"].str.startswith(precision)]
    assert len(rows) == 160
    found = find_device(device)

    def error(model) -> float:
        timer = ModelTimer(model, Machine(found), precision)
        predicted = [
            time_gemms(int(m), int(n), int(k), precision, timer).variants[0].time_s
            for m, n, k in zip(rows["M"], rows["N"], rows["K"])
        ]
        return float(np.median(np.abs(np.array(predicted) / (rows["value"] / 1e3) - 1)))

    own = error(choose_model(found, precision))
    assert own < at_most and own < error(ROOFLINE)


def test_a_capped_card_multiplies_more_slowly():
    free, capped = (
        pl.gemm(4096, 4096, 4096, gpu="l4", precision="bf16", power_limit=limit).variants[0].time_s
        for limit in (72, 40)
    )
    assert capped > 1.1 * free  # 40 of 72 W
    with pytest.raises(BadValue, match="cannot be combined"):
        pl.gemm(8, 8, 8, peak="1 TFLOP/s", power_limit=40)


def test_several_sizes_are_a_table_of_all_products() -> None:
    """Every row is what the product takes alone."""
    asked = {"gpu": "h100-sxm", "precision": "bf16"}
    table = pl.gemm("1,2,4,...,16", [4096, 14336], 4096, **asked)
    sizes = [(row["m"], row["n"], row["k"]) for row in table.rows()]
    assert sizes == [(m, n, 4096) for m in (1, 2, 4, 8, 16) for n in (4096, 14336)]
    alone = pl.gemm(8, 14336, 4096, **asked)
    assert table.rows()[7]["time_s"] == alone.variants[0].time_s
    row = table.to_dict()["products"][7]
    assert row == {**alone.to_dict(), "notes": row["notes"]}  # those of one product name what it takes as a layer
    document = table.document()
    assert "products of 10 sizes on H100 SXM5 80GB, bf16" in document.title
    assert [row["m"] for row in document.tables[0].rows][-2:] == [16, 16]


def test_a_product_has_a_time_and_a_table_says_where_its_times_are() -> None:
    alone = pl.gemm(512, 64, 512, count=8, gpu="m40")
    assert (alone.time_s, alone.interval) == (alone.rows()[0]["time_s"], tuple(alone.rows()[0]["interval"]))
    for table, place in (
        (pl.gemm([64, 128], 64, 512, gpu="m40"), "products"),
        (pl.predict("resnet50", gpu=["t4", "l4"]), "answers"),
        (pl.local("llama-3.1-8b", gpu=["rtx-4090", "rtx-3090"]), "rows"),
    ):
        assert not hasattr(table, "time_s") and getattr(table, place)[0].time_s > 0
        with pytest.raises(AttributeError, match=rf"is a table of several answers, .*: \.{place}\[0\]\.time_s"):
            _ = table.time_s


def test_invalid_sizes_are_named() -> None:
    for sizes, message in (
        ((0, 8, 8), "`M` must be"),
        ((8, "8,x", 8), "`N` '8,x': 'x' is not an integer"),
        ((8, 8, []), "`K` must be"),
    ):
        with pytest.raises(BadValue, match=message):
            pl.gemm(*sizes, peak="6 TFLOP/s")
    with pytest.raises(BadValue, match="4,000 products are too many for a table"):
        pl.gemm("1:20", "1:20", "1:10", peak="6 TFLOP/s")

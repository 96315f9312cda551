"""Choice of the time model: the requested one, else the device's calibration, else the pool, else a marked bound."""

from __future__ import annotations

import msgspec
import numpy as np
import pandas as pd
import pytest

import paleo_lite as pl
from measured import DATA
from paleo_lite.calibration.choose import choose_model
from paleo_lite.calibration.pool import why_not_pooled
from paleo_lite.calibration.store import find_calibration, shipped_calibrations
from paleo_lite.errors import BadValue, CalibrationFailed, UnknownName
from paleo_lite.machines import find_device, list_devices
from paleo_lite.timing.parameters import NAMES


def test_a_device_that_was_measured_answers_for_itself() -> None:
    for name in shipped_calibrations():
        device, precision = name.rsplit("-", 1)
        model = choose_model(find_device(device), precision)
        assert model.name == "calibrated" and model.label.startswith(f"{device} {precision}, ")
        # With the host of everybody, not with that of the source.
        assert model.theta[-1] != find_calibration(name).model().theta[-1], name


@pytest.mark.parametrize(
    ("device", "precision", "name", "note"),
    [
        ("k80-die", "fp32", "calibrated", None),
        ("k80", "fp32", "bound", "only single devices were measured, k80 is a board of 2"),
        ("p4", "fp32", "calibrated", None),  # pooled from its neighbours
        ("mi210", "fp32", "calibrated", None),
        ("xeon-8380", "fp32", "bound", "only GPUs of NVIDIA and AMD were measured"),
        ("epyc-9654", "fp32", "bound", "only GPUs of NVIDIA and AMD were measured"),
        ("ryzen-9-7950x", "fp32", "bound", "only GPUs of NVIDIA and AMD were measured"),
    ],
)
def test_who_answers_for_a_device(device, precision, name, note) -> None:
    model = choose_model(find_device(device), precision)
    assert model.name == name
    if note:
        assert model.notes == (f"a bound, not a forecast: {note}",)
        with pytest.raises(BadValue, match=note):
            choose_model(find_device(device), precision, "calibrated")


def test_every_device_has_a_prediction_and_bounds_are_marked() -> None:
    for device in list_devices([]):
        model = choose_model(device, "fp32")
        assert model.name == "calibrated" or model.notes[0].startswith("a bound, not a forecast: ")
        assert (model.name == "bound") >= bool(why_not_pooled(device))


@pytest.mark.parametrize(
    ("asked", "name"),
    [({"ppp": 0.5}, "ppp"), ({"time_model": "peak"}, "peak"), ({"time_model": "roofline"}, "roofline")],
)
def test_requested_model_is_used(asked, name) -> None:
    model = choose_model(find_device("k80-die"), "fp32", **asked)
    assert (model.name, model.ppp) == (name, asked.get("ppp"))


def test_calibration_as_object() -> None:
    found = find_calibration("k80-die-fp32")
    other = msgspec.structs.replace(found, scatter=found.scatter * 2)
    assert choose_model(find_device("k80-die"), "fp32", calibration=other).scatter == found.scatter * 2


@pytest.mark.parametrize(
    ("device", "asked", "error", "message"),
    [
        ("k80-die", {"calibration": "k80-die-fp32", "ppp": 0.5}, BadValue, "is a time model of its own"),
        (
            "k80-die",
            {"calibration": "k80-die-fp32", "time_model": "ppp-overlap"},
            BadValue,
            "is a time model of its own",
        ),
        ("k40m", {"calibration": "k80-die-fp32"}, CalibrationFailed, "for k80-die in fp32, not for k40m"),
        ("k40m", {"calibration": "k40m-fp31"}, UnknownName, "did you mean k40m-fp32"),
        ("k40m", {"time_model": "magic"}, UnknownName, "no time model is called 'magic'"),
    ],
)
def test_contradicting_options_are_an_error(device, asked, error, message) -> None:
    with pytest.raises(error, match=message):
        choose_model(find_device(device), "fp32", **asked)


# ryujaehun/pytorch-gpu-benchmark 3f47a9e, "TITAN V double": batch 12, milliseconds.
TITAN_V_FP64 = [
    ("resnet152", "inference", 448.64),
    ("resnet34", "training", 194.7),
    ("squeezenet1_0", "inference", 42.358),
    ("densenet121", "training", 139.85),
]


def test_fp64_at_half_rate_is_between_the_two_devices_that_were_measured():
    """The four steps of a TITAN V take 1.1 to 3.7 times the forecast, which an A100 would exceed by a third."""
    inside = 0
    for network, phase, milliseconds in TITAN_V_FP64:
        prediction = pl.predict(network, gpu="titan-v", precision="fp64", batch_size=12, phase=phase)
        low_s, high_s = prediction.interval
        assert prediction.time_s < milliseconds / 1e3 < 4 * prediction.time_s
        assert low_s >= prediction.bound_s and high_s / low_s < 10
        assert any("fp64 at a third of the fp32 rate or more" in note for note in prediction.notes)
        inside += low_s <= milliseconds / 1e3 <= high_s
    assert inside >= 2


@pytest.mark.parametrize(("gpu", "is_shifted"), [("v100-sxm2", True), ("a100-pcie-40gb", False), ("rtx3090", False)])
def test_fp64_is_shifted_unless_the_chip_was_measured_or_is_slow(gpu, is_shifted):
    notes = choose_model(find_device(gpu), "fp64").notes
    assert any("fp64 at a third" in note for note in notes) == is_shifted


def test_measured_fp64_has_its_own_interval():
    prediction = pl.predict("resnet50", gpu="a100-sxm-40gb", precision="fp64", batch_size=12)
    assert prediction.interval[1] < 2 * prediction.time_s


@pytest.mark.parametrize("gpu", ["v100-sxm2", "t4"])
def test_intervals_of_encoders_are_as_sharp_as_those_of_decoders(gpu: str, tmp_path) -> None:
    """BERT and GPT-2 consist of the same products; BERT's interval was 3.7 to 4 wide, where GPT-2's is 1.4 to 1.5."""
    asked = {"gpu": gpu, "precision": "fp32", "batch_size": 8}
    bert, gpt2 = (pl.predict(name, sequence_length=128, **asked) for name in ("bert-base", "gpt2"))
    ratios = [prediction.interval[1] / prediction.interval[0] for prediction in (bert, gpt2)]
    assert ratios[1] < ratios[0] < 2.1
    plain = choose_model(find_device(gpu), "fp32")
    assert bert.model.theta == pytest.approx(plain.theta)  # the expected time is the same
    path = tmp_path / "sweep.parquet"
    names = ["bert-base", "gpt2"]
    question = pl.Predict(names, gpu=gpu, precision="fp32", batch_size=8, sequence_length=128)
    rows = pl.sweep(question, path, jobs=1).to_frame().set_index("network")
    assert (rows.low_s["bert-base"], rows.high_s["bert-base"]) == pytest.approx(bert.interval)


@pytest.mark.needs_data
def test_engines_keep_the_share_of_peak_of_16_bits_in_int8() -> None:
    """TensorRT-LLM's w8a8 products on an A100 ("sq", from 100 GFLOP on) are within the interval of their forecast."""
    table = pd.read_csv(DATA / "engines" / "gemm.csv.gz", usecols=["gpu", "gemm_dtype", "m", "n", "k", "latency"])
    products = table[(table.gpu == "a100_sxm") & (table.gemm_dtype == "sq") & (table.m * table.n * table.k > 5e10)]
    device = find_device("a100-sxm-80gb")
    model = choose_model(device, "int8", execution="engine")
    assert any("16 bits" in note for note in model.notes)
    gemm = NAMES.index("efficiency_gemm")
    shares = (
        2 * products.m * products.n * products.k / (products.latency / 1e3) / device.find_peak("int8", "tensor").per_s
    )
    low, high = np.exp(model.theta[gemm] + np.array([-1.645, 1.645]) * model.covariance[gemm, gemm] ** 0.5)
    assert len(shares) > 50
    assert ((low <= shares) & (shares <= high)).mean() > 0.9


def test_networks_in_int8_have_a_forecast_on_matrix_units_alone() -> None:
    """A Tesla T4 multiplies int8 on matrix units, a GTX 1080 Ti four bytes at a time on vector units."""
    on_t4 = pl.predict("resnet50", gpu="t4", precision="int8", batch_size=128)
    assert any(note.startswith("`--execution engine` is assumed") for note in on_t4.notes)
    assert on_t4.bound_s < on_t4.interval[0] < on_t4.time_s < on_t4.interval[1]
    in_16_bits = pl.predict("resnet50", gpu="t4", precision="fp16", batch_size=128, execution="engine")
    assert 1.5 < in_16_bits.time_s / on_t4.time_s < 2.2  # DeepBench timed a convolution 2.17 times as fast
    for asked in ({"gpu": "gtx1080ti"}, {"gpu": "t4", "execution": "eager"}):
        assert pl.predict("resnet50", precision="int8", **asked).interval is None


def test_narrow_products_of_a_device_without_their_measurements_follow_the_devices_most_like_it() -> None:
    """Products timed one by one reach 0.84 (L40S) and 0.90 (RTX PRO 6000) of their share of the peak in bf16 in fp8."""
    geforce, int8 = (
        choose_model(find_device("rtx4090"), "bf16", products=name).narrow_relative_efficiency
        for name in ("fp8", "int8")
    )
    assert geforce == pytest.approx(0.87, abs=0.02)
    assert int8 == pytest.approx(geforce**2, rel=0.001)  # 4 times the peak of bf16
    for gpu in ("h100-sxm", "b200"):
        assert 0.7 < choose_model(find_device(gpu), "bf16", products="fp8").narrow_relative_efficiency < 0.8


@pytest.mark.parametrize(
    ("network", "measured_ms"),  # torch2trt, benchmarks/JETSON_XAVIER.md (4e820ae): latency of PyTorch in fp16
    [("squeezenet1_0", 8.04), ("resnet50", 17.9), ("densenet201", 79.1), ("mobilenet_v2", 15.4), ("vgg16", 16.5)],
)
def test_the_processor_of_an_embedded_board_launches_slowly(network: str, measured_ms: float) -> None:
    eager = pl.predict(network, gpu="jetson-agx-xavier", precision="fp16", batch_size=1, execution="eager")
    low_s, high_s = eager.intervals["90"]
    assert low_s < measured_ms * 1e-3 < high_s and abs(np.log(eager.time_s / measured_ms * 1e3)) < np.log(2)
    assert any("launch kernels 3.0 times as slowly" in note for note in eager.notes)


def test_hosts_are_those_of_desktops_elsewhere_and_engines_keep_their_own() -> None:
    for gpu, execution in (("jetson-agx-xavier", "folded"), ("dgx-spark", "eager")):
        notes = pl.predict("resnet50", gpu=gpu, precision="fp16", batch_size=1, execution=execution).notes
        assert not any("as slowly" in note for note in notes)

"""PALEO's platform percent of peak from measurements.

Tests: calibration/from_profiles.py.
"""

from __future__ import annotations

import json
import math

import msgspec
import pytest
from click.testing import CliRunner

from measured import DATA
from paleo_lite.architectures import find_network
from paleo_lite.calibration.comparison import compare_with_profile
from paleo_lite.calibration.from_profiles import ppp_shares
from paleo_lite.calibration.measurements import Measurement, Provenance, provenance_of
from paleo_lite.calibration.ppp import (
    AT_PEAK,
    BETWEEN_NETWORKS_DEVIATION,
    PRIOR_NETWORKS,
    REPEAT_DEVIATION,
    PppRun,
    fit_ppp,
    ppp_run_of,
)
from paleo_lite.calibration.store import find_calibration, write_calibration
from paleo_lite.cli import main
from paleo_lite.errors import BadFile, CalibrationFailed
from paleo_lite.machines import Machine, find_device
from paleo_lite.profile_analysis.pass_times import PassTimes
from paleo_lite.reporting.calibrations import ppp_page
from paleo_lite.timing import Workload, predict

RUN = DATA / "surfboard" / "pyprof_kernels" / "run_0_config_8_2_ib_nvprof_2_resnet50_dali-gpu_32_fp16_fp32_ret_0_0.gzip"
NOTHING = Provenance(1, [], [], [])

pytest.importorskip("tomli_w")


def invoke(*words: object):
    return CliRunner().invoke(main, [str(word) for word in words], prog_name="paleo-lite")


def test_a_step_at_half_the_speed_of_the_peaks_has_a_ppp_of_one_half() -> None:
    """PALEO's equation: (FLOPs / peak + bytes / bandwidth) / PPP, layer by layer; here by the counts themselves."""
    device = find_device("k40m")
    work = Workload(find_network("alexnet"), "fp32").work
    flops, moved = work.column("flops", "inference", 4).sum(), work.column("bytes", "inference", 4).sum()
    peak = Machine(device).peak("fp32")
    assert peak.per_s == Machine(device).vector_peak("fp32").per_s  # no tensor cores: one peak for all
    at_peak_s = flops / peak.per_s + moved / device.bandwidth_bytes_per_s
    run = ppp_run_of(Measurement("k40m", "alexnet", 4, "inference", "fp32", 2 * at_peak_s), Machine(device))
    assert run.ppp == pytest.approx(0.5, rel=1e-12)


@pytest.mark.needs_data
def test_the_ppp_of_a_profile_predicts_it() -> None:
    """SURFBoard's ResNet-50 on a K40m: an iteration's kernels take 773.1 ms, at peak it would take 290.8 ms."""
    pytest.importorskip("pyarrow")
    found = invoke(
        "calibrate", RUN, "--gpu", "k40m", "--network", "resnet50", "--time-model", "ppp", "--format", "json"
    )
    assert found.exit_code == 0, found.output
    ppp = json.loads(found.stdout)["ppp"]
    assert ppp == pytest.approx(290.8 / 773.1, rel=1e-3)
    shares = {(row["part"], row["kind"]): row for row in json.loads(found.stdout)["shares"]}
    assert sum(shares[part, "all"]["share"] for part in ("forward", "backward", "update")) == pytest.approx(1, rel=0.01)
    words = f"predict resnet50 --gpu k40m --batch-size 32 --phase training --ppp {ppp} --format json".split()
    assert json.loads(invoke(*words).stdout)["time_s"] == pytest.approx(0.7731, rel=1e-3)


def test_networks_count_alike_however_often_they_were_run() -> None:
    """The geometric mean of 0.2 and 0.8 is 0.4."""
    runs = [PppRun("vgg16", batch, "training", 0.2, 1.0) for batch in (8, 16, 32)]
    found = fit_ppp("k40m", "fp32", [*runs, PppRun("alexnet", 8, "training", 0.8, 1.0)], NOTHING)
    assert found.ppp == pytest.approx(0.4)
    assert found.low < 0.4 < found.high
    repeated = fit_ppp("k40m", "fp32", [PppRun("vgg16", 8, "training", 0.2, time) for time in (0.9, 1.0, 5.0)], NOTHING)
    assert repeated.ppp == pytest.approx(0.2)  # the median of repeated runs


def test_uncertainty_grows_with_distance_from_measurements() -> None:
    found = fit_ppp("k40m", "fp32", [PppRun("resnet50", 32, "training", 0.29, 0.77)], NOTHING)
    deviations = [
        found.deviation_of(Workload(find_network(network), "fp32", batch, "training"))
        for network, batch in (("resnet50", 32), ("resnet50", 64), ("vgg16", 64))
    ]
    assert deviations == sorted(deviations) and deviations[0] < deviations[1] < deviations[2]


def test_deviations_within_and_between_networks_by_hand() -> None:
    """A network at 0.5 and 0.7, and one at 0.4: a prior of as many networks counts beside the measurements."""
    runs = [
        PppRun("resnet50", 32, "training", 0.1, 0.2), PppRun("resnet50", 64, "training", 0.21, 0.3),
        PppRun("vgg16", 32, "training", 0.4, 1.0),
    ]  # fmt: skip
    found = fit_ppp("k40m", "fp32", runs, NOTHING)
    resnet, vgg = math.log(math.sqrt(0.5 * 0.7)), math.log(0.4)
    mean = (resnet + vgg) / 2
    assert found.ppp == pytest.approx(math.exp(mean))
    within = 2 * (math.log(0.7) - resnet) ** 2  # with one degree of freedom
    expected_within = math.sqrt((within + PRIOR_NETWORKS * REPEAT_DEVIATION**2) / (1 + PRIOR_NETWORKS))
    assert found.within == pytest.approx(expected_within)
    between = (resnet - mean) ** 2 + (vgg - mean) ** 2
    between = math.sqrt((between + PRIOR_NETWORKS * BETWEEN_NETWORKS_DEVIATION**2) / (1 + PRIOR_NETWORKS))
    assert found.deviation == pytest.approx(between * math.sqrt(1 + 1 / 2))
    assert found.high / found.ppp == pytest.approx(found.ppp / found.low)
    assert found.high / found.ppp == pytest.approx(math.exp(2.015 * between / math.sqrt(2)), rel=1e-3)


def test_a_written_ppp_is_a_calibration_for_every_command(tmp_path) -> None:
    steps = [Measurement("k40m", "resnet50", 32, "inference", "fp32", 0.25)]
    device = Machine(find_device("k40m"))
    found = fit_ppp("k40m", "fp32", [ppp_run_of(step, device) for step in steps], provenance_of(steps))
    path = tmp_path / "k40m.toml"
    write_calibration(found, path)
    assert find_calibration(str(path)) == found
    asked = Workload(find_network("resnet50"), "fp32", 32)
    prediction = predict(asked, device, found.model())
    assert prediction.time_s == pytest.approx(0.25)
    low, high = prediction.interval
    assert low < 0.25 < high
    result = invoke("predict", "resnet50", "--gpu", "k40m", "--batch-size", 32, "--calibration", path)
    assert result.exit_code == 0 and "250 ms" in result.stdout, result.output
    shown = invoke("calibrations", "show", path)
    assert shown.exit_code == 0 and f"--ppp {found.ppp:.3g}" in shown.stdout


@pytest.mark.parametrize(
    ("field", "value", "sentence"),
    [
        ("ppp", -1.0, "ppp is -1.0: expected a number above 0"),
        ("deviation", math.inf, r"\$\.deviation is inf, expected a finite number"),
        ("runs", [], "runs is empty"),
    ],
)
def test_impossible_numbers_in_a_file_are_named(tmp_path, field, value, sentence) -> None:
    found = fit_ppp("k40m", "fp32", [PppRun("resnet50", 32, "training", 0.29, 0.77)], NOTHING)
    path = tmp_path / "bad.toml"
    write_calibration(msgspec.structs.replace(found, **{field: value}), path)
    with pytest.raises(BadFile, match=sentence):
        find_calibration(str(path))


def test_an_unknown_field_in_a_file_is_named(tmp_path) -> None:
    found = fit_ppp("k40m", "fp32", [PppRun("resnet50", 32, "training", 0.29, 0.77)], NOTHING)
    path = tmp_path / "k40m.toml"
    write_calibration(found, path)
    path.write_text("pppp = 0.5\n" + path.read_text())
    with pytest.raises(BadFile, match="pppp"):
        find_calibration(str(path))


def test_fit_without_measurements_is_an_error() -> None:
    with pytest.raises(CalibrationFailed, match="no measurement of k40m in fp32"):
        fit_ppp("k40m", "fp32", [], NOTHING)


def test_ppp_above_one_lists_the_value_for_each_algorithm() -> None:
    """A 3x3 convolution by Winograd's F(4x4, 3x3) takes a quarter of the multiplications (Lavin and Gray 2016)."""
    vgg = predict(Workload(find_network("vgg16"), "fp32", 32), Machine(find_device("k40m")), AT_PEAK)
    convolutions = [index for index, kind in enumerate(vgg.kinds) if kind == "conv2d"]
    at_peak_s = float(vgg.terms.layers_s[:, convolutions].sum())
    measured = PassTimes("inference", 3, 3, {("convolution", "forward"): at_peak_s / 1.5}, {}, True)
    share = next(row for row in ppp_shares([compare_with_profile("run", measured, vgg)]) if row.kind == "convolution")
    assert share.ppp == pytest.approx(1.5)
    assert 1.5 / 4 < share.by_algorithm["Winograd F(4x4, 3x3)"] < share.by_algorithm["Winograd F(2x2, 3x3)"] < 1.5
    page = ppp_page(fit_ppp("k40m", "fp32", [PppRun("vgg16", 32, "inference", 1.5, 1.0)], NOTHING, [share]))
    assert any("Winograd F(4x4, 3x3)" in note for note in page.notes)

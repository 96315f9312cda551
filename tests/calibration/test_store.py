"""Calibration files: what is written is read again, and a damaged file is named with its field."""

from __future__ import annotations

import math
import re
from pathlib import Path

import numpy as np
import pytest

from paleo_lite.calibration.fit import Fit
from paleo_lite.calibration.measurements import Measurement, Provenance
from paleo_lite.calibration.store import make_calibration, read_calibration, shipped_calibrations, write_calibration
from paleo_lite.errors import BadFile, CalibrationFailed
from paleo_lite.timing.parameters import NAMES

COVARIANCE = r'^(covariance = \[\n    ")[^ ]+ '
"""The first number of the covariance."""

COVARIANCE_START = r'(covariance = \[\n *")\S+ '
WRONG_COVARIANCE = f"covariance must have {len(NAMES)} rows of {len(NAMES)} numbers"

FILE = shipped_calibrations()["gtx1080ti-fp32"]


@pytest.mark.parametrize(
    ("pattern", "replacement", "message"),
    [
        (r"^format = 2", "format = 3", "format is 3, this version of paleo-lite reads 2"),
        (
            r"^format = 2",
            "format = 1",
            "format is 1, with the parameters of an earlier formula: fit the measurements again",
        ),
        (r"value = [\d.e-]+", "value = 0.0", r"parameters\.[a-z_0-9]+\.value must be above 0"),
        (r"value = [\d.e-]+", "value = 1e300", r"parameters\.[a-z_0-9]+\.value must be above 0 and at most 1e20"),
        (r"value = [\d.e-]+", "value = inf", r"\$\.parameters\.[a-z_0-9]+\.value is inf, expected a finite number"),
        (r"^scatter = .*", "scatter = -1.0", "scatter must be from 0 to 10"),
        (COVARIANCE_START, r"\1-1 ", "the variance of efficiency_conv_3x3 must be from 0 to 100"),
        (COVARIANCE_START, r"\g<1>1e308 ", "the variance of efficiency_conv_3x3 must be from 0 to 100"),
        (COVARIANCE_START, r"\g<1>1e-9 ", "covariance must be symmetric, and no covariance larger"),
        (r"\[parameters\.step_s\]", "[parameters.steps]", "parameters: step_s missing"),
        (COVARIANCE, r"\1", WRONG_COVARIANCE),
        (COVARIANCE, r"\1much ", WRONG_COVARIANCE),
        (COVARIANCE, r"\1nan ", WRONG_COVARIANCE),
        (
            r"^covariance = \[\n.*\n",
            "covariance = [\n",
            WRONG_COVARIANCE,
        ),
    ],
)
def test_a_damaged_file_is_named_with_its_field(tmp_path: Path, pattern: str, replacement: str, message: str) -> None:
    path = tmp_path / "damaged.toml"
    text, count = re.subn(pattern, replacement, FILE.read_text(), count=1, flags=re.MULTILINE)
    assert count == 1
    path.write_text(text)
    with pytest.raises(BadFile, match=message) as raised:
        read_calibration(path)
    assert str(raised.value).startswith(str(path))


def test_a_fit_is_written_with_its_intervals_and_worst_measurements(tmp_path: Path) -> None:
    """The 90% interval is 2.015 deviations on either side: Student's distribution with five degrees of freedom."""
    pytest.importorskip("tomli_w")
    deviations = np.linspace(0.1, 0.3, len(NAMES))
    residuals = np.log([1.1, 0.7, 1.2, 0.98, 1.0, 1.5])
    fit = Fit(np.log(np.arange(1.0, len(NAMES) + 1)), np.diag(deviations**2), 0.0512345, residuals, np.full(18, 0.25))
    steps = [Measurement("k40m", "alexnet", size, "training", "fp32", 0.01 * size) for size in range(1, 7)]
    made = make_calibration("k40m", "fp32", steps, fit, Provenance(6, [], [], []), held_out_error=0.123456)
    for number, (name, deviation) in enumerate(zip(NAMES, deviations), 1):
        parameter = made.parameters[name]
        assert parameter.value == pytest.approx(number, rel=1e-5)
        assert parameter.low == pytest.approx(number * math.exp(-2.015 * deviation), rel=1e-5)
        assert parameter.high == pytest.approx(number * math.exp(2.015 * deviation), rel=1e-5)
        assert parameter.moved == 0.25
    assert (made.scatter, made.held_out_error) == (0.0512, 0.1235)
    assert made.worst == [
        "alexnet, batch 6, training: measured 60 ms, fitted +50.0%",
        "alexnet, batch 2, training: measured 20 ms, fitted -30.0%",
        "alexnet, batch 3, training: measured 30 ms, fitted +20.0%",
        "alexnet, batch 1, training: measured 10 ms, fitted +10.0%",
        "alexnet, batch 4, training: measured 40 ms, fitted -2.0%",
    ]
    path = tmp_path / "k40m-fp32.toml"
    write_calibration(made, path)
    assert read_calibration(path) == made
    assert np.diag(made.model().covariance) == pytest.approx(deviations**2, rel=1e-3)
    with pytest.raises(CalibrationFailed, match="already exists"):
        write_calibration(made, path)
    write_calibration(made, path, force=True)


@pytest.mark.parametrize(
    ("file", "what"),
    [
        ("calibrations/energy.toml", "another file of constants"),
        ("calibrations/clusters.toml", "the prior of clusters"),
        ("calibrations/evidence.toml", "the prior of causes"),
        ("hardware/k80.toml", "the data of a device, which `--hardware-file` takes"),
    ],
)
def test_other_toml_files_are_named(file: str, what: str) -> None:
    path = Path(__file__).parents[2] / file
    with pytest.raises(BadFile, match=f"is not a calibration but {re.escape(what)}"):
        read_calibration(path)

"""Measured watts in `calibrate` and `validate`: columns, logs of nvidia-smi, the fit, and bad input.

Tests: calibration/power.py, calibration/power_logs.py.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from pathlib import Path

import pytest

import paleo_lite as pl
from asked import scaling
from paleo_lite.calibration.measurements import Measurement, format_csv, read_measurements
from paleo_lite.calibration.power_logs import is_power_log, read_power_log
from paleo_lite.errors import BadFile, BadValue, CalibrationFailed
from validation.power_limits import limited_steps

HEADER = "gpu,network,batch_size,phase,precision,time_s,power_w\n"
IMAGENET_IMAGES = 1_281_167


def zeus_steps() -> list[Measurement]:
    """Return Zeus's ResNet-50 on a V100 at the rated limit: the times of epochs and the measured watts."""
    return [
        Measurement(
            gpu="v100-pcie", network="resnet50", batch_size=step.batch_size, phase="training", precision="fp32",
            time_s=step.epoch_s / IMAGENET_IMAGES * step.batch_size, power_w=step.power_w,
        )
        for step in limited_steps()
        if step.is_rated and step.device.id == "v100-pcie" and step.network == "resnet50"
    ]  # fmt: skip


def write_log(path: Path, watts: list[float], header: str = "timestamp, power.draw [W]") -> Path:
    """Write a log with a sample every 100 ms, as nvidia-smi does."""
    start = datetime(2026, 1, 31, 12)
    times = [(start + timedelta(seconds=0.1 * index)).strftime("%Y/%m/%d %H:%M:%S.%f")[:-3] for index in range(9999)]
    lines = [header, *(f"{time}, {value:.2f} W" for time, value in zip(times, watts, strict=False))]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def test_the_power_of_a_log_is_that_of_its_busy_part(tmp_path) -> None:
    """Idle at 60 W before and after; in between 300 W for 1 s and 310 W for 2 s, with a ramp of one sample."""
    log = write_log(tmp_path / "power.csv", [60.0] * 20 + [300.0] * 11 + [310.0] * 20 + [60.0] * 9)
    assert is_power_log(log)
    assert read_power_log(log).busy_w() == pytest.approx((300 * 1.0 + 305 * 0.1 + 310 * 1.9) / 3.0)


def test_a_log_without_idle_time_is_averaged_as_a_whole(tmp_path) -> None:
    log = write_log(tmp_path / "power.csv", [290.0, 300.0, 310.0])
    assert read_power_log(log).busy_w() == pytest.approx(300.0)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("power.draw [W]\n300.0 W\n", "no column timestamp"),
        ("timestamp, temperature.gpu\n2026/01/31 12:00:00.000, 50\n", "no column power.draw"),
        ("timestamp, power.draw [W]\n2026/01/31 12:00:00.000, -3.00 W\n", "line 2: power.draw is '-3.00 W': expected"),
        ("timestamp, power.draw [W]\n2026/01/31 12:00:00.000, [N/A]\n", "line 2: power.draw is"),
        ("timestamp, power.draw [W]\nnoon, 300 W\n", "line 2: timestamp is 'noon': expected a time such as"),
        ("timestamp, power.draw [W]\n2026/01/31 12:00:00.000\n", "line 2: 1 values, expected 2"),
        ("timestamp, power.draw [W]\n2026/01/31 12:00:00.000, 300 W\n", "1 samples, expected 3 or more"),
        (
            "timestamp, index, power.draw [W]\n"
            + "".join(f"2026/01/31 12:00:0{i}.000, {i}, 300 W\n" for i in (0, 1, 2)),
            "a log of 3 devices: log one with",
        ),
        (
            "timestamp, power.draw [W]\n2026/01/31 12:00:01.000, 300 W\n2026/01/31 12:00:00.000, 300 W\n",
            "line 3: timestamp 2026/01/31 12:00:00.000 is before",
        ),
    ],
)
def test_bad_logs_get_one_sentence(tmp_path, text: str, message: str) -> None:
    path = tmp_path / "power.csv"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(BadFile, match=r"power\.csv") as caught:
        read_power_log(path)
    assert message in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize("value", ["-5", "0", "nan", "many", "1e9"])
def test_impossible_watts_are_named(tmp_path, value: str) -> None:
    path = tmp_path / "measured.csv"
    path.write_text(f"{HEADER}v100-pcie,resnet50,32,training,fp32,0.1,{value}\n", encoding="utf-8")
    with pytest.raises(BadFile, match=f"line 2: power_w is '{value}': expected watts above 0"):
        read_measurements(path)


def test_watts_are_read_from_a_column_and_from_the_log_that_a_row_names(tmp_path) -> None:
    write_log(tmp_path / "run.csv", [250.0] * 5)
    path = tmp_path / "measured.csv"
    rows = ["v100-pcie,resnet50,32,training,fp32,0.1,244.5,", "v100-pcie,resnet50,64,training,fp32,0.2,,run.csv"]
    rows.append("v100-pcie,resnet50,128,training,fp32,0.4,,")
    path.write_text(HEADER.replace("\n", ",power_log\n") + "\n".join(rows), encoding="utf-8")
    steps = read_measurements(path)
    assert [step.power_w for step in steps] == [244.5, 250.0, None]
    path.write_text(format_csv(steps), encoding="utf-8")
    assert read_measurements(path) == steps


def test_a_log_beside_one_step_belongs_to_it_and_beside_two_to_none(tmp_path) -> None:
    log = write_log(tmp_path / "power.csv", [222.0] * 5)
    path = tmp_path / "measured.csv"
    row = "v100-pcie,resnet50,128,training,fp32,0.36,\n"
    path.write_text(HEADER + row, encoding="utf-8")
    fitted = pl.calibrate([path, log], gpu="v100-pcie")
    assert fitted.power is not None and fitted.power.points == 1
    assert [text.split()[0] for text in fitted.provenance.inputs] == ["measured.csv", "power.csv"]
    path.write_text(HEADER + 2 * row, encoding="utf-8")
    with pytest.raises(BadValue, match="there are 2 steps and 1 logs: name the log of each step"):
        pl.calibrate([path, log], gpu="v100-pcie")


def predicted_steps(factor: float) -> list[Measurement]:
    """Return steps of four networks whose powers are those of the shipped constants times a factor."""
    steps = []
    for network in ("resnet50", "vgg16", "alexnet", "densenet121"):
        for batch_size in (16, 64):
            predicted = pl.predict(network, gpu="v100-pcie", batch_size=batch_size)
            power_w = factor * predicted.power_w
            step = Measurement("v100-pcie", network, batch_size, "inference", "fp32", predicted.time_s, power_w=power_w)
            steps.append(step)
    return steps


def test_measured_watts_move_the_power_of_predictions(tmp_path) -> None:
    """A card that draws 15% less than the shipped constants say, as one with a better chip and cooler would."""
    path = tmp_path / "cool.toml"
    fitted = pl.calibrate(predicted_steps(0.85), gpu="v100-pcie", output=path)
    assert fitted.power is not None and fitted.power.held_out_error is not None
    assert fitted.power.error < fitted.power.held_out_error < 0.1 < fitted.power.prior_error
    assert "8 measured powers" in dict(fitted.document().facts)["power"]
    asked = {"gpu": "v100-pcie", "batch_size": 128, "phase": "training"}
    shipped, own = pl.predict("resnet50", **asked), pl.predict("resnet50", calibration=str(path), **asked)
    assert 0.8 < own.power_w / shipped.power_w < 0.93
    (row,) = scaling("resnet50", workers=[1], samples="1M", gpu="v100-pcie", batch_size=128, calibration=str(path))
    assert row.power_w == pytest.approx(own.power_w, rel=0.03)


def test_zeus_watts_are_close_to_what_is_known_of_the_device() -> None:
    fitted = pl.calibrate(zeus_steps(), gpu="v100-pcie")
    assert fitted.power is not None and fitted.power.points == 3
    assert fitted.power.error < 0.06 and fitted.power.prior_error < 0.06


def _fields(step: Measurement) -> dict[str, object]:
    return {name: getattr(step, name) for name in step.__struct_fields__}


def test_watts_above_the_limit_are_of_several_devices(tmp_path) -> None:
    (step, *_) = zeus_steps()
    with pytest.raises(CalibrationFailed, match=r"480 W are above the 250 W of .*: a calibration needs the watts of"):
        pl.calibrate([Measurement(**{**_fields(step), "power_w": 480.0})], gpu="v100-pcie")


def test_validate_holds_watts_out_by_network() -> None:
    """Powers of the shipped constants; with each network left out the others say the same."""
    validation = pl.validate(predicted_steps(1.0))
    (row,) = validation.powers
    assert row.points == 8 and row.mape < 0.02 and row.shipped < 0.001 and row.coverage_90 == 1
    assert "Held-out watts, at measured times" in [table.title for table in validation.document().content]

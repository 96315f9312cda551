"""Suggested measurements narrow the interval most, by the formula and in fits to simulated measurements."""

from __future__ import annotations

import re
import subprocess
import sys

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

import paleo_lite as pl
from paleo_lite.architectures import find_network, network_names
from paleo_lite.calibration.measurements import Measurement
from paleo_lite.calibration.pool import POOL_SCATTER
from paleo_lite.calibration.suggest import (
    NETWORKS,
    SETUP_S,
    SMALL_NETWORKS,
    TYPICAL_NETWORKS,
    candidate_steps,
    choose_measurements,
    most_informative_measurement,
    suggest,
    typical_steps,
)
from paleo_lite.cli import main
from paleo_lite.errors import BadValue, UnknownPrecision
from paleo_lite.machines import Machine, find_device
from paleo_lite.timing.calibrated import CalibratedModel
from paleo_lite.timing.memory import peak_memory, usable_bytes

K80 = Machine(find_device("k80-die"))


@pytest.mark.slow
@given(st.integers(0, 2**32 - 1), st.integers(1, 4))
def test_each_is_the_one_after_which_least_is_left(seed: int, count: int) -> None:
    """Compare with the definition: invert the sum of the precision matrices for each candidate."""
    draws = np.random.default_rng(seed)
    root, slopes, targets = (draws.normal(size=shape) for shape in ((5, 5), (7, 5), (3, 5)))
    covariance = root @ root.T + 0.1 * np.eye(5)
    measuring_s = draws.uniform(0.1, 100, size=7)

    def left(places: list[int]) -> tuple[float, np.ndarray]:
        rows = slopes[places]
        after = np.linalg.inv(np.linalg.inv(covariance) + rows.T @ rows / POOL_SCATTER**2)
        return float(np.mean([target @ after @ target for target in targets])), after

    places: list[int] = []
    for place, after in choose_measurements(covariance, slopes, targets, measuring_s, count):
        before = left(places)[0]
        worth = {
            other: (before - left([*places, other])[0]) / (SETUP_S + measuring_s[other])
            for other in range(7)
            if other not in places
        }
        assert worth[place] == pytest.approx(max(worth.values()), rel=1e-6, abs=1e-9)
        places.append(place)
        assert after == pytest.approx(left(places)[1], rel=1e-5, abs=1e-8)
    assert len(set(places)) == count


@pytest.mark.slow
@pytest.mark.parametrize(("gpu", "precision"), [("k80", "fp64"), ("a100-sxm-40gb", "fp16")])
def test_the_interval_is_the_one_promised(gpu: str, precision: str) -> None:
    """Measured with the times that were expected, `calibrate` gives the interval that was promised.

    A fit trusts measurements that agree with it by 0.05, the promise by the 0.07 that strangers' scatter.
    """
    pytest.importorskip("scipy")
    found = pl.calibrate(suggest=2, gpu=gpu, precision=precision, network="vgg16")
    device = found.gpu
    measured = [
        Measurement(device, step.network, step.batch_size, step.phase, precision, step.time_s)
        for step in found.suggestions
    ]
    before = pl.predict("vgg16", gpu=device, precision=precision)
    assert before.time_s == pytest.approx(found.time_s) and before.interval == pytest.approx(found.interval)
    for count in (1, 2):
        own = pl.calibrate(measured[:count], gpu=device, precision=precision)
        low, high = pl.predict("vgg16", gpu=device, precision=precision, calibration=own).interval or (0, 0)
        assert np.log(high / low) == pytest.approx(np.log(found.suggestions[count - 1].factor), rel=0.12)
    factors = [found.factor, *(step.factor for step in found.suggestions)]
    assert factors == sorted(factors, reverse=True) and factors[1] < 0.8 * factors[0]


@pytest.mark.slow
def test_measured_steps_are_not_suggested_again() -> None:
    """The value of repeating a measurement follows from the uncertainty that remains after it."""
    pytest.importorskip("scipy")
    first = pl.calibrate(suggest=1, gpu="k40m", network="mobilenet_v2").suggestions[0]
    step = Measurement("k40m", first.network, first.batch_size, first.phase, "fp32", first.time_s)
    after = pl.calibrate([step], suggest=1, gpu="k40m", network="mobilenet_v2")
    assert after.factor == pytest.approx(first.factor, rel=0.1)
    assert after.known == "k40m fp32, 1 measurement"
    assert after.suggestions[0].factor > 0.8 * after.factor


@pytest.mark.slow
def test_steps_fit_and_can_be_run() -> None:
    assert all(find_network(name).source.startswith("torchvision") for name in NETWORKS)
    assert {*SMALL_NETWORKS} < {*NETWORKS} and {*TYPICAL_NETWORKS} <= {*network_names()}
    numbers = {}
    for gpu in ("gtx770", "k80-die", "h100-sxm"):
        device = find_device(gpu)
        steps = candidate_steps(device, "fp64")
        assert all(peak_memory(step).total_bytes <= usable_bytes(device) for step in steps)
        numbers[gpu] = len(steps)
    assert numbers["gtx770"] < numbers["k80-die"] < numbers["h100-sxm"]
    assert {step.phase for step in candidate_steps(K80.device, "fp32", "compiled")} == {"inference"}
    assert {step.batch_size for step in typical_steps("fp32", "training", 64)} == {64}


def test_predicted_step_is_not_suggested() -> None:
    found = pl.calibrate(suggest=90, gpu="h100-sxm", network="vgg16", batch_size=16)
    steps = [each.step for each in found.suggestions]
    assert "vgg16:16:inference" not in steps and "vgg16:1:inference" in steps and len(set(steps)) == 90


@pytest.mark.parametrize(
    ("question", "message"),
    [
        ({"gpu": "xeon-8380"}, "only GPUs of NVIDIA and AMD were measured.*'paleo-lite measure'"),
        ({"gpu": "k80", "suggest": 1000}, "1000 measurements cannot be suggested: the number must be between 1 and"),
        ({"gpu": "k80", "time_model": "ppp"}, "leave `--time-model` and `--output` out"),
        ({"gpu": "k80", "suggest": None, "phase": "training"}, "requires `--suggest`"),
    ],
)
def test_refusals(question, message) -> None:
    with pytest.raises(BadValue, match=message):
        pl.calibrate(**{"suggest": 2, **question})


def test_message_names_an_unsupported_precision() -> None:
    with pytest.raises(UnknownPrecision, match="has no fp16 peak"):
        pl.calibrate(suggest=2, gpu="xeon-8380", precision="fp16")


def run(*arguments: str, columns: int = 80) -> str:
    result = CliRunner(env={"COLUMNS": str(columns)}).invoke(main, list(arguments), prog_name="paleo-lite")
    assert result.exit_code == 0, result.output
    return result.stdout


def test_command_in_a_prediction_is_valid() -> None:
    text = " ".join(run("predict", "mobilenet_v2", "--gpu", "k40m", "--phase", "training", "--top", "0").split())
    command = re.search(r"paleo-lite (calibrate --suggest 3 .*? --phase training)", text)
    assert command is not None and "mobilenet_v2 on k40m, fp32 training" in run(*command[1].split())


@pytest.mark.slow
def test_page_shows_the_command_to_run() -> None:
    text = run("calibrate", "--suggest", "2", "--gpu", "k80", "--network", "vgg16", "--precision", "fp64")
    found = pl.calibrate(suggest=2, gpu="k80", network="vgg16", precision="fp64")
    assert max(map(len, text.splitlines()[1:])) <= 80
    said = " ".join(text.split())
    assert found.command in said and f"{found.suggestions[1].factor:.2f}" in said
    typical = run("calibrate", "--suggest", "1", "--gpu", "k80", "--precision", "fp64", columns=120)
    assert "would narrow typical networks on k80-die, fp64 inference" in typical and "then at 90%" not in typical


@pytest.mark.parametrize("phase", ["inference", "training"])
def test_suggested_measurement_narrows_the_interval_as_expected(phase: str) -> None:
    """The expected width equals that of the search over all steps when restricted to this step."""
    prediction = pl.predict("mobilenet_v2", gpu="k40m", phase=phase, batch_size=4)
    found = most_informative_measurement(prediction)
    assert found is not None
    step, (low, high) = found
    assert isinstance(prediction.model, CalibratedModel) and step.phase == phase
    alone = suggest(prediction.model, prediction.machine, [prediction.workload], 1, [step])
    assert alone.suggestions[0].interval == pytest.approx((low, high))
    assert most_informative_measurement(pl.predict("mobilenet_v2", gpu="k40m", time_model="roofline")) is None
    assert most_informative_measurement(pl.predict("mobilenet_v2", gpu="k40m", execution="folded")) is None


NO_HEAVY = """
import sys
from paleo_lite.cli import main
try:
    main(["predict", "vgg16", "--gpu", "k80", "--precision", "fp64"], prog_name="paleo-lite")
except SystemExit:
    pass
print({"scipy", "pandas", "torch"} & {*sys.modules})
"""


def test_uncertain_prediction_suggests_a_measurement_without_heavy_libraries() -> None:
    out = subprocess.run([sys.executable, "-c", NO_HEAVY], capture_output=True, text=True, check=True).stdout
    assert out.endswith("set()\n") and "narrower" in out and "paleo-lite calibrate --suggest" in out
    low, high = pl.predict("resnet50", gpu="titan-rtx", batch_size=12).interval or (0, 0)
    assert high < 2 * low and "narrower" not in run("predict", "resnet50", "--gpu", "titan-rtx", "--batch-size", "12")
    assert "narrower" not in run("predict", "vgg16", "--gpu", "k80", "--precision", "fp64", "--time-model", "roofline")


@pytest.mark.parametrize(("precision", "option"), [("fp32", ""), ("fp64", " --precision fp64")])
def test_the_command_names_a_precision_other_than_fp32(precision: str, option: str) -> None:
    suggestions = pl.calibrate(gpu="k80-die", precision=precision, suggest=1)
    assert suggestions.command.startswith("paleo-lite measure ")
    assert suggestions.command.endswith(f" --device cuda --gpu k80-die{option} -o measured.csv")

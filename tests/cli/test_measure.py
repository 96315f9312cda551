"""``paleo-lite measure``: a tiny real run, and errors that are reported before it starts.

Tests: api/measuring.py, reporting/measure.py.
"""

from __future__ import annotations

import csv
import importlib
import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner, Result

from paleo_lite.cli import main

pytest.importorskip("torch")
pytest.importorskip("scipy")
pytest.importorskip("tomli_w")

from paleo_lite.calibration.measurements import read_measurements
from paleo_lite.calibration.store import read_calibration
from paleo_lite.errors import BadValue
from paleo_lite.machines.registry import read_device
from paleo_lite.measurement.clock import Effort, HostClock
from paleo_lite.measurement.running import Setup, convolution, elementwise, gemm

pytestmark = pytest.mark.slow

command = importlib.import_module("paleo_lite.api.measuring")


def run(*arguments: str) -> Result:
    return CliRunner(env={"COLUMNS": "80"}).invoke(main, ["measure", *arguments], prog_name="paleo-lite")


@pytest.fixture(scope="module")
def small() -> Any:
    """Use few small networks and repetitions: the tests check the output, not the times."""
    patch = pytest.MonkeyPatch()
    patch.setattr(command, "FITTED_QUICK", ("shufflenet_v2_x1_0", "shufflenet_v2_x0_5", "mnasnet0_5"))
    patch.setattr(command, "HELD_OUT_QUICK", ("mobilenet_v3_small",))
    patch.setattr(command, "QUICK", Effort(tolerance=1, samples_at_least=3, sample_s=1e-6, limit_s=0.01))
    few = [
        gemm(128, 128, 128), convolution(16, 16, 14, 3, 1), convolution(16, 32, 14, 1, 1),
        elementwise("stream", "copy", 2**18), elementwise("launch", "relu", 16),
    ]  # fmt: skip
    patch.setattr(command, "probes", lambda quick, scale: few)
    yield
    patch.undo()


shown = importlib.import_module("paleo_lite.cli.measure")
MEASURED: list[Any] = []
"""What the only run measured."""


@pytest.fixture(scope="module")
def outcome(small: None, tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], Path, Result]:
    folder = tmp_path_factory.mktemp("measured")
    answer = shown.answer

    def kept(question: Any) -> Any:
        MEASURED[:] = [answer(question)]
        return MEASURED[0]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shown, "answer", kept)
        result = run(
            "--quick", "--threads", "1", "-o", str(folder / "mine.csv"), "--calibration-out", str(folder / "mine.toml"),
            "--hardware-out", str(folder / "mine-hw.toml"), "--format", "json",
        )  # fmt: skip
    assert result.exit_code == 0, result.stderr
    return json.loads(result.stdout), folder, result


@pytest.mark.thorough
def test_held_out_steps_are_not_fitted(outcome: tuple[dict[str, Any], Path, Result]) -> None:
    answer, _, _ = outcome
    fitted = {row["network"] for row in answer["measurements"]}
    unseen = {row["network"] for row in answer["held_out"]}
    assert fitted == {"shufflenet_v2_x1_0", "shufflenet_v2_x0_5", "mnasnet0_5"}
    assert unseen == {"mobilenet_v3_small"}
    assert set(answer["calibration"]["provenance"]["networks"]) == fitted
    assert [row["batch_size"] for row in answer["held_out"]] == [1, 2, 4]


def test_error_is_of_predicted_against_measured(outcome: tuple[dict[str, Any], Path, Result]) -> None:
    answer, _, _ = outcome
    errors = []
    for row in answer["held_out"]:
        assert row["error"] == pytest.approx(row["predicted_s"] / row["measured_s"] - 1)
        assert row["low_s"] < row["predicted_s"] < row["high_s"]
        assert row["within"] == (row["low_s"] <= row["measured_s"] <= row["high_s"])
        errors.append(abs(row["error"]))
    assert answer["mape"] == pytest.approx(sum(errors) / len(errors))
    assert answer["within_90"] == sum(row["within"] for row in answer["held_out"])


def test_files_serve_a_prediction(outcome: tuple[dict[str, Any], Path, Result]) -> None:
    """What was written is read by the other commands, and gives the prediction that was printed."""
    answer, folder, _ = outcome
    rows = read_measurements(folder / "mine.csv")
    assert len(rows) == 3 * 2 + 3
    assert {row.gpu for row in rows} == {answer["device"]}
    device = read_device(folder / "mine-hw.toml")
    assert device.id == answer["device"]
    assert device.find_peak("fp32").per_s == pytest.approx(answer["peak_flops"], rel=1e-3)
    assert device.bandwidth_bytes_per_s == pytest.approx(answer["bandwidth_bytes_per_s"], rel=1e-3)
    assert read_calibration(folder / "mine.toml").device == device.id
    again = CliRunner().invoke(
        main,
        ["predict", "mobilenet_v3_small", "--gpu", device.id, "--hardware-file", str(folder / "mine-hw.toml"),
         "--calibration", str(folder / "mine.toml"), "--batch-size", "4", "--format", "json"],
    )  # fmt: skip
    assert again.exit_code == 0, again.stderr
    printed, row = json.loads(again.stdout), answer["held_out"][-1]
    assert printed["time_s"] == pytest.approx(row["predicted_s"], rel=1e-3)
    assert printed["interval"] == pytest.approx([row["low_s"], row["high_s"]], rel=1e-2)


def test_progress_is_not_in_the_answer(outcome: tuple[dict[str, Any], Path, Result]) -> None:
    _, _, result = outcome
    assert "round 2 of 2: mobilenet_v3_small" in result.stderr


@pytest.fixture
def measured_once(outcome: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Answer with what was measured before, as if it were not written."""
    measured = msgspec.structs.replace(MEASURED[0], files=[])
    monkeypatch.setattr(shown, "answer", lambda question: measured)


def test_page(measured_once: None) -> None:
    result = run("--quick", "--threads", "1", "--phase", "inference")
    assert result.exit_code == 0, result.stderr
    assert "held-out networks" in result.stdout
    assert "nothing was written" in result.stdout
    assert "mobilenet_v3_small" in result.stdout
    tables = [line for line in result.stdout.splitlines() if not line.startswith("note:")][1:]
    assert max(map(len, tables)) <= 80


def test_chosen_steps_are_compared_with_expectations(small: None, tmp_path: Path) -> None:
    """Only they are run, in the rounds that all have; a row each in the file, and the fit starts before them."""
    steps = ["shufflenet_v2_x1_0:2:inference", "mnasnet0_5:1:training"]
    result = run(*steps, "--quick", "--threads", "1", "-o", str(tmp_path / "mine.csv"), "--format", "json")
    assert result.exit_code == 0, result.stderr
    answer, rows = json.loads(result.stdout), read_measurements(tmp_path / "mine.csv")
    assert {f"{row.network}:{row.batch_size}:{row.phase}" for row in rows} == {*steps} and len(rows) == 2
    assert {row["measured_s"] for row in answer["held_out"]} == {row.time_s for row in rows}
    assert answer["calibration"]["provenance"]["points"] == 2
    for row in answer["held_out"]:
        assert row["low_s"] < row["predicted_s"] < row["high_s"]
        assert row["error"] == pytest.approx(row["predicted_s"] / row["measured_s"] - 1)
    assert "mobilenet_v3_small" not in result.stderr
    page = run(steps[0], "--quick", "--threads", "1")
    assert "1 step, predicted before running" in page.stdout


def test_csv_holds_plain_numbers(measured_once: None) -> None:
    result = run("--quick", "--threads", "1", "--phase", "inference", "--format", "csv")
    assert result.exit_code == 0, result.stderr
    rows = list(csv.DictReader(result.stdout.splitlines()))
    assert len(rows) == 3
    for row in rows:
        assert float(row["low_s"]) < float(row["predicted_s"]) < float(row["high_s"])
        assert float(row["measured_s"]) > 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--precision", "tf32"], "tensor cores"),
        (["--gpu", "k40m", "--hardware-out", "x.toml"], "give one"),
        (["--gpu", "k44m"], "no GPU is called 'k44m'"),
        (["--threads", "0"], "integer >= 1"),
        (["--phase", "backward"], "'backward'"),
        (["resnet18:16"], "'resnet18:16' is not a step: expected network, batch size and phase"),
        (["resnet18:0:inference"], "not a step"),
        (["resnet18:1:backward"], "(inference, forward+backward, training)"),
        (["resnet81:1:inference"], "no network is called 'resnet81'"),
        (["resnet18:1:inference", "--phase", "inference"], "leave `--phase` out"),
    ],
)
def test_refusals(arguments: list[str], message: str) -> None:
    result = run(*arguments)
    assert result.exit_code == 2
    assert message in result.stderr


@pytest.mark.parametrize("option", ["-o", "--calibration-out", "--hardware-out"])
def test_existing_files_are_not_overwritten(tmp_path: Path, option: str) -> None:
    path = tmp_path / "mine.toml"
    path.write_text("mine")
    result = run(option, str(path))
    assert result.exit_code == 2
    assert "--force" in result.stderr
    assert path.read_text() == "mine"


@pytest.mark.parametrize(("module", "extra"), [("torch", "torch"), ("scipy", "calibrate"), ("tomli_w", "calibrate")])
def test_missing_extra(monkeypatch: pytest.MonkeyPatch, module: str, extra: str) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    result = run("--quick")
    assert result.exit_code == 1
    assert f"paleo-lite[{extra}]" in result.stderr


@pytest.mark.parametrize(
    ("name", "identity"),
    [("Tesla K80", "k80-die"), ("NVIDIA GeForce RTX 3090", "rtx3090"), ("NVIDIA Future GPU", None)],
)
def test_gpu_by_the_name_that_its_driver_gives(name: str, identity: str | None) -> None:
    """A K80 is a board of two devices, and torch runs on one of them."""
    cuda = SimpleNamespace(get_device_name=lambda: name)
    setup = Setup(SimpleNamespace(cuda=cuda), "cuda", "fp32", 1, False, False, HostClock())
    found = command._find_shipped_device(setup)
    assert (found and found.id) == identity


def test_ambiguous_gpu_name() -> None:
    cuda = SimpleNamespace(get_device_name=lambda: "NVIDIA A100")
    setup = Setup(SimpleNamespace(cuda=cuda), "cuda", "fp32", 1, False, False, HostClock())
    with pytest.raises(BadValue, match="give `--gpu`"):
        command._find_shipped_device(setup)


def test_cpu_is_never_a_shipped_one() -> None:
    """A process may use only some cores of a socket, so a CPU is never identified with a shipped device."""
    assert command._find_shipped_device(Setup(None, "cpu", "fp32", 1, False, False, HostClock())) is None


def test_a_device_without_room_for_any_step_is_an_error(monkeypatch: pytest.MonkeyPatch, small: None) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise command.OutOfMemory("the device is full")

    monkeypatch.setattr(command, "time_step", full)
    result = run("--quick")
    assert result.exit_code == 1
    assert "do not fit into" in result.stderr

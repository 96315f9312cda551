"""Command line of ``python -m validation``: options, and messages for invalid input."""

from __future__ import annotations

import shutil
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner

import validation.profiles.published
import validation.ship
import validation.steps.published
from measured import DATA
from paleo_lite.calibration.validate import SPLITS as STEP_SPLITS
from paleo_lite.reporting.charts.accuracy import Pair
from paleo_lite.reporting.document import Document
from validation.__main__ import SPLITS, main
from validation.comparisons import COMPARISONS, page_function
from validation.steps.dataset import MeasuredSteps


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["--split", "network"], 1, "torchvision_fp16_fp32_fp64.csv: cannot be read"),
        (["--split", "profile", "--gpu", "t4"], 2, "no measurement of t4 in"),
        (["--split", "scaling", "--precision", "fp16"], 2, "no measurement of fp16 in"),
        (["--split", "weather"], 2, "'weather' is not one of"),
        (["--plot", "chart.gif"], 2, "chart.gif: a chart file must end in .png, .svg, .html"),
    ],
)
def test_invalid_input_gets_one_sentence(tmp_path: Path, arguments: list[str], code: int, message: str) -> None:
    result = CliRunner().invoke(main, ["accuracy", "--data", str(tmp_path), *arguments])
    assert (result.exit_code, message in result.output) == (code, True), result.output
    assert "Traceback" not in result.output


def test_the_folder_comes_from_an_option_or_the_environment(tmp_path: Path) -> None:
    result = CliRunner(env={"PALEO_LITE_DATA": None}).invoke(main, ["accuracy"])
    assert result.exit_code == 2 and "Missing option '--data' (env var: 'PALEO_LITE_DATA')" in result.output
    result = CliRunner(env={"PALEO_LITE_DATA": str(tmp_path)}).invoke(main, ["accuracy"])
    assert result.exit_code == 1 and f"{tmp_path}/torchvision_fp16_fp32_fp64.csv: cannot be read" in result.output


def test_ship_requires_both_folders(tmp_path: Path) -> None:
    result = CliRunner().invoke(main, ["ship", str(tmp_path), str(tmp_path / "absent")])
    assert result.exit_code == 2 and "does not exist" in result.output
    result = CliRunner().invoke(main, ["ship", str(tmp_path), str(tmp_path)])
    assert result.exit_code == 1 and "cannot be read" in result.output
    assert list(tmp_path.iterdir()) == []


class Group(msgspec.Struct, frozen=True):
    """Accuracy of a group of held-out measurements."""

    points: int
    mape: float
    coverage_90: float


def test_splits_include_all_splits_of_the_public_command() -> None:
    assert set(STEP_SPLITS) < set(SPLITS)


@pytest.mark.parametrize(
    ("split", "title"),
    [
        ("layers", "Mean error 30.0% over 2 groups of measurements; 90% intervals contain 75%"),
        ("collectives", "Mean error 20.0% over 1 point; 90% intervals contain 100%"),
    ],
)
def test_plot_has_the_figures_of_its_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, split: str, title: str
) -> None:
    """Groups have the same weight: (20% + 40%) / 2, and (1 + 2) of 4 points are inside."""
    pytest.importorskip("altair")
    rows = [Group(1, 0.2, 1.0), Group(3, 0.4, 2 / 3)]
    pairs = [Pair("a layer", "conv", 0.001, 0.0012, (0.0009, 0.0016))]
    monkeypatch.setitem(SPLITS, split, lambda asked: (rows, lambda: Document("one layer", (), []), lambda: pairs))
    picture = tmp_path / "drawn.svg"
    words = ["accuracy", "--data", str(tmp_path), "--split", split, "--plot", str(picture)]
    result = CliRunner().invoke(main, words)
    drawn = picture.read_text("utf-8")
    assert result.exit_code == 0 and f"Predicted against measured: {split}" in drawn and title in drawn


@pytest.mark.spread(1)
@pytest.mark.needs_data
@pytest.mark.slow
@pytest.mark.parametrize("split", ["own", "order", "transformers", "operations", "profile", "ppp"])
def test_tables_of_the_accuracy_page_can_be_written(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, split: str
) -> None:
    """Of a few devices, networks, operations and profiles; `make accuracy` writes them of all."""
    devices = ("titan-xp", "titan-rtx") if split == "own" else ("titan-xp", "titan-rtx", "rtx4090")
    networks = {
        "densenet121", "mnasnet1_0", "mobilenet_v2", "resnet18", "resnet50", "resnet101", "vgg11", "vgg16", "vit_b_16",
        "vit_b_32", "swin_t",
    }  # fmt: skip
    steps = validation.steps.published.published_steps(DATA / "measured")
    few = [step for step in steps.measurements if step.gpu in devices and step.network in networks]
    monkeypatch.setattr(
        validation.steps.published, "published_steps", lambda folder: MeasuredSteps(few, steps.left_out)
    )
    if split in ("profile", "ppp"):  # of two numbers of nodes, both loaders and both batch sizes
        (every,) = validation.profiles.published.PROFILE_SETS
        for nodes in (8, 16):
            for path in every.path(DATA).glob(f"run_0_config_{nodes}_2_ib_nvprof_2_*_fp32_fp32_ret_0_0.gzip"):
                shutil.copy(path, tmp_path)
        few_profiles = msgspec.structs.replace(every, folder=str(tmp_path))
        monkeypatch.setattr(validation.profiles.published, "PROFILE_SETS", (few_profiles,))
    if split == "operations":
        monkeypatch.setattr(validation.ship, "OPERATIONS", ("deepbench_gemm.csv.gz",))
        every_operation = validation.ship.operations_of
        monkeypatch.setattr(validation.ship, "operations_of", lambda folder: every_operation(folder)[::6])
    else:
        monkeypatch.setattr(validation.ship, "operations_of", lambda folder: ())
    result = CliRunner().invoke(main, ["accuracy", "--data", str(DATA), "--split", split, "--format", "markdown"])
    assert result.exit_code == 0, result.output
    assert result.output.startswith("**") and "| --:" in result.output


def test_comparisons_print_their_errors(tmp_path: Path) -> None:
    """Speeds with layers on the host, of which the table and the headline say the same."""
    result = CliRunner().invoke(main, ["compare", "offloaded", "--format", "json"])
    assert result.exit_code == 0, result.output
    rows = msgspec.json.decode(result.output)["rows"]
    errors = [abs(row["rate_per_s"] / row["measured_per_s"] - 1) for row in rows]
    table = CliRunner().invoke(main, ["compare", "offloaded"])
    assert f"6 forecasts, {sum(errors) / 6:.1%} off in the mean" in table.output
    missing = CliRunner(env={"PALEO_LITE_DATA": None}).invoke(main, ["compare", "wall"])
    assert (missing.exit_code, "give `--data`" in missing.output) == (2, True)


@pytest.mark.parametrize("name", COMPARISONS)
def test_every_comparison_has_a_page(name: str) -> None:
    assert callable(page_function(name))

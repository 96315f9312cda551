"""Sweeps over pipelines for pictures and videos.

Tests: sweeps/pictures.py.
"""

from __future__ import annotations

from pathlib import Path

import pytest

import paleo_lite as pl
from paleo_lite.api.prediction import predict as predict_any
from paleo_lite.errors import BadValue, UnknownName
from paleo_lite.sweeps.pictures import PictureSpace

ASKED = {"networks": "sd-1.5", "gpus": "a100-sxm-80gb,t4"}


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("sweep") / "pictures.csv"
    pl.sweep(**ASKED, output=path, image_sizes="512,500", steps="10,20", batch_sizes="1,64", samples=1000, jobs=1)
    return path


def test_every_row_is_the_prediction_of_its_combination(file: Path) -> None:
    best = pl.best(file, minimise="time_s", where="gpu == a100-sxm-80gb and batch_size == 64")
    row = best.rows[0]
    prediction = predict_any("sd-1.5", gpu="a100-sxm-80gb", precision="bf16", steps=10, image_size=512, images=64)
    assert row["time_s"] == pytest.approx(prediction.time_s)
    assert row["memory_bytes"] == pytest.approx(prediction.memory.total_bytes)
    assert row["energy_j"] == pytest.approx(prediction.energy_j * 1000 / 64)
    assert row["hours"] == pytest.approx(1000 / 64 * prediction.time_s / 3600)
    assert (row["image_size"], row["steps"], row["frames"], row["devices"]) == ("512x512", 10, 1, 1)


def test_what_is_impossible_gets_a_row_with_the_reason(file: Path) -> None:
    text = file.read_text()
    assert text.count("width is a multiple of 8") == 8  # 2 devices x 2 numbers of steps x 2 batches of 500 pixels
    assert len(text.splitlines()) == 1 + 16


def test_costs_are_those_of_a_cloud(tmp_path: Path) -> None:
    """AWS asks 55.04 USD/h for the eight H100 of p5.48xlarge, and has no RTX 4090."""
    asked = {"networks": "sd-1.5", "gpus": "h100-sxm,rtx4090", "steps": 10, "price_of": "aws", "jobs": 1}
    pl.sweep(**asked, output=tmp_path / "prices.csv")
    (row,) = pl.best(tmp_path / "prices.csv", minimise="cost").rows
    assert row["gpu"] == "h100-sxm" and row["price"].startswith("6.88 USD/h (AWS")
    assert row["cost"] == pytest.approx(row["hours"] * 55.04 / 8)


def test_a_dry_run_counts_the_combinations() -> None:
    space = pl.sweep(**ASKED, output="unused.csv", steps="10,20,30", ulysses="1,2", dry_run=True)
    assert isinstance(space, PictureSpace) and (space.size, space.chunk_count) == (12, 2)
    assert space.describe() == "2 gpus x 3 steps x 2 Ulysses degrees"


@pytest.mark.parametrize(
    "asked, message",
    [
        ({"networks": "sd-1.5,resnet50"}, r"either pipelines .* or other networks \(got resnet50\)"),
        ({"workers": 2}, "`--workers` does not apply to pictures and videos"),
        ({"clocks": "base"}, "`--clock` does not apply to pictures and videos"),
        ({"rates": 2}, "`--rate` does not apply to pictures and videos"),
        ({"networks": "resnet50", "steps": 20}, "`--steps` is for pipelines"),
        ({"image_sizes": "big"}, "--image-size must be pixels"),
    ],
)
def test_bad_sweeps_get_one_sentence(asked: dict, message: str) -> None:
    with pytest.raises(BadValue, match=message):
        pl.sweep(**{**ASKED, **asked}, output="unused.csv", dry_run=True)


def test_unknown_names_are_refused() -> None:
    with pytest.raises(UnknownName, match="precision"):
        pl.sweep(**ASKED, precisions="bf17", output="unused.csv", dry_run=True)
    with pytest.raises(UnknownName, match="execution"):
        pl.sweep(**ASKED, executions="tensor-rt", output="unused.csv", dry_run=True)
    with pytest.raises(UnknownName, match="offload of a pipeline"):
        pl.sweep(**ASKED, offloads="cpu", output="unused.csv", dry_run=True)


def test_power_limits_trade_time_for_energy(tmp_path: Path) -> None:
    """Each row is the prediction under its limit."""
    limits = [200, 300, 400]
    asked = {"networks": "sdxl", "gpus": "a100-sxm-80gb", "steps": 4, "power_limits": limits, "jobs": 1}
    pl.sweep(**asked, output=tmp_path / "limits.csv")
    best = pl.best(tmp_path / "limits.csv", pareto="time_s,energy_j")
    by_limit = {row["power_limit_w"]: row for row in best.rows}
    alone = predict_any("sdxl", gpu="a100-sxm-80gb", precision="bf16", steps=4, power_limit=300)
    assert by_limit[300]["time_s"] == pytest.approx(alone.time_s)
    assert by_limit[300]["energy_j"] == pytest.approx(1e6 * alone.energy_j)
    assert by_limit[200]["time_s"] > alone.time_s and by_limit[200]["energy_j"] < by_limit[300]["energy_j"]

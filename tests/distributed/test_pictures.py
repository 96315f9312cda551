"""Pipelines for pictures and videos on several devices."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

import paleo_lite as pl
from asked import predict_any, scaling
from paleo_lite.cli import main
from paleo_lite.errors import BadValue

ASKED = {"gpu": "h100-sxm", "precision": "bf16", "phase": "inference"}


def test_devices_are_divided_among_copies_guidance_and_sequence() -> None:
    table = scaling("sd-3.5-medium", workers="1,2,4", batch_size=2, **ASKED)
    rows = table.rows()
    assert [row["workers"] for row in rows] == [1, 2, 4]
    for row in rows:
        assert row["replicas"] * row["guidance"] * row["ulysses"] * row["ring"] == row["workers"]
        assert row["low_s"] < row["time_s"] < row["high_s"]
    assert rows[0]["time_s"] > rows[1]["time_s"] > rows[2]["time_s"]
    assert rows[0]["speedup"] == pytest.approx(1) and rows[2]["efficiency"] < 1


def test_a_given_split_holds_in_each_copy() -> None:
    """24 heads of FLUX.1 over two devices; four devices hold two copies with half of the pictures each."""
    row = scaling("flux.1-dev", workers=4, batch_size=4, ulysses=2, steps=4, **ASKED).rows()[0]
    half = predict_any("flux.1-dev", gpu="h100-sxm", precision="bf16", steps=4, batch_size=2, ulysses=2)
    assert (row["replicas"], row["ulysses"], row["images"]) == (2, 2, 4)
    assert row["time_s"] == pytest.approx(half.time_s) and row["energy_j"] == pytest.approx(2 * half.energy_j)


def test_guidance_in_parallel_halves_the_samples() -> None:
    one, two = (
        predict_any("sdxl", gpu="h100-sxm", precision="bf16", guidance_parallel=parallel) for parallel in (False, True)
    )
    assert (one.denoiser.prediction.batch_size, two.denoiser.prediction.batch_size) == (2, 1)
    assert two.macs == one.macs and one.time_s / 2 < two.time_s < one.time_s
    wan = predict_any("wan-2.1-1.3b", gpu="h100-sxm", precision="bf16", guidance_parallel=True, steps=10)
    assert wan.denoiser.runs == 10


@pytest.mark.parametrize(
    "name, asked, message",
    [
        ("resnet50", {}, "need a pipeline such as flux.1-dev"),
        ("sdxl", {"workers": 5000}, "--workers must be from 1 to 4,096 devices"),
        (
            "flux.1-dev",
            {"workers": 7, "ulysses": 2},
            "`--workers` must be 2 for a batch of 1 picture of flux.1-dev, of which 2 devices share each .got 7.",
        ),
        (
            "sdxl",
            {"phase": "training", "steps": 4},
            "--steps is for `--phase inference` of sdxl",
        ),
        ("sdxl", {"gpu": None}, "needs a device: give `--gpu`"),
    ],
)
def test_bad_questions_get_one_sentence(name: str, asked: dict, message: str) -> None:
    with pytest.raises(BadValue, match=message):
        scaling(name, **{**ASKED, **asked})


@pytest.mark.parametrize("workers", [None, 2])
def test_pictures_have_no_gradients_to_keep_on_the_host(workers: int | None) -> None:
    with pytest.raises(BadValue, match="`--offload cpu` is for a training step: give `--phase training`, or"):
        pl.diffusion("sdxl", gpu="h100-sxm", workers=workers, offload="cpu")


def test_the_command_prints_a_row_per_number_of_devices() -> None:
    asked = ["--gpu", "h100-sxm", "--precision", "bf16", "--phase", "inference", "--workers", "1,2", "--steps", "10"]
    arguments = ["diffusion", "wan-2.1-1.3b", *asked]
    text = CliRunner().invoke(main, arguments).output
    assert "Time by number of devices" in text and "Ulysses" in text
    answer = json.loads(CliRunner().invoke(main, [*arguments, "--format", "json"]).output)
    assert [row["workers"] for row in answer["rows"]] == [1, 2] and answer["steps"] == 10


def test_the_command_places_parameters_and_refuses_options_of_training() -> None:
    words = ["diffusion", "sd-3.5-medium", "--gpu", "h100-sxm", "--precision", "bf16", "--workers", "1", "--steps", "4"]
    placed = CliRunner().invoke(main, [*words, "--offload", "model", "--format", "json"])
    expected = scaling("sd-3.5-medium", workers=1, steps=4, offload="model", **ASKED)
    assert json.loads(placed.stdout)["rows"] == expected.rows()
    refused = CliRunner().invoke(main, [*words, "--optimizer", "adam"])
    assert refused.exit_code != 0 and "is for a training step: give `--phase training`" in refused.stderr


def test_a_power_limit_of_every_device() -> None:
    """The same as `predict` of the same division."""
    row = scaling("flux.1-dev", workers=4, power_limit="400W", **ASKED).rows()[0]
    split = {"ulysses": row["ulysses"], "ring": row["ring"]}
    alone = predict_any("flux.1-dev", power_limit="400W", **{k: v for k, v in ASKED.items() if k != "phase"}, **split)
    assert row["time_s"] == pytest.approx(alone.time_s)
    assert row["time_s"] > scaling("flux.1-dev", workers=4, **ASKED).rows()[0]["time_s"]

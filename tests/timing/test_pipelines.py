"""Time and memory of pipelines.

Tests: timing/pipelines.py, reporting/pipelines.py, api/pipelines.py.
"""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from click.testing import CliRunner

import paleo_lite as pl
from paleo_lite.cli import main
from paleo_lite.errors import BadValue, UnknownName
from paleo_lite.timing.pipelines import on_several_devices

SD = {"gpu": "a100-sxm-80gb", "precision": "fp16"}


def test_time_and_energy_are_the_sums_of_the_parts() -> None:
    prediction = pl.predict("sd-1.5", **SD)
    rows = prediction.rows()
    assert prediction.time_s == pytest.approx(sum(row["runs"] * row["run_s"] for row in rows))
    assert prediction.energy_j == pytest.approx(sum(row["energy_j"] for row in rows))
    assert prediction.time_per_image_s == prediction.time_s
    low_s, high_s = prediction.interval
    assert low_s < prediction.time_s < high_s and prediction.bound_s < prediction.time_s


def test_the_denoiser_takes_the_time_of_its_steps() -> None:
    few, many = (pl.predict("sd-1.5", steps=steps, **SD) for steps in (10, 40))
    of_denoiser = [
        next(part for part in prediction.parts if part.part.role == "denoiser").time_s for prediction in (few, many)
    ]
    assert of_denoiser[1] == pytest.approx(4 * of_denoiser[0])


def test_offloaded_parts_take_less_memory_and_more_time() -> None:
    """FLUX.1-dev has 33.8 GB of parameters in 16 bits, of which the transformer has 23.8 GB."""
    resident, model, sequential = (
        pl.predict("flux.1-dev", gpu="rtx4090", precision="bf16", steps=4, offload=offload)
        for offload in ("none", "model", "sequential")
    )
    assert resident.memory.parameters_bytes == pytest.approx(33.8e9, rel=0.01)
    assert not resident.memory.fits and sequential.memory.fits
    assert model.memory.total_bytes > 2 * 11_901_408_320
    assert resident.time_s < model.time_s < sequential.time_s
    assert resident.memory.by_offload["model"] == model.memory.total_bytes


def test_the_largest_batch_fits_and_the_next_does_not() -> None:
    largest = pl.predict("sd-1.5", **SD).memory.largest_batch
    assert pl.predict("sd-1.5", images=largest, **SD).memory.fits
    assert not pl.predict("sd-1.5", images=largest + 1, **SD).memory.fits


def test_sdxl_decodes_in_fp32_where_fp16_overflows() -> None:
    precisions = {part.part.role: part.prediction.precision for part in pl.predict("sdxl", **SD).parts}
    assert precisions["denoiser"] == "fp16" and precisions["decoder"] == "fp32"


@pytest.mark.parametrize(
    "options, message",
    [
        ({"phase": "training"}, "--phase"),
        ({"sequence_length": 77}, "--sequence-length"),
        ({"images": 2, "batch_size": 2}, "leave --batch-size out"),
    ],
)
def test_options_of_other_networks_are_refused(options: dict[str, object], message: str) -> None:
    with pytest.raises(BadValue, match=message):
        pl.predict("sd-1.5", **SD, **options)


def test_options_of_pipelines_are_refused_elsewhere() -> None:
    with pytest.raises(BadValue, match="--steps is for pipelines"):
        pl.predict("resnet50", gpu="t4", steps=20)
    with pytest.raises(BadValue, match="only pipelines take width x height"):
        pl.predict("resnet50", gpu="t4", image_size="224x448")
    with pytest.raises(UnknownName, match="offload of a pipeline"):
        pl.predict("sd-1.5", offload="cpu", **SD)


def test_other_commands_say_what_a_pipeline_is() -> None:
    with pytest.raises(BadValue, match="sdxl is a pipeline of several networks"):
        pl.layers("sdxl")
    with pytest.raises(UnknownName, match=r"did you mean flux\.1-dev"):
        pl.predict("flux.1-dex", gpu="t4")


def test_the_command_prints_parts_and_json() -> None:
    arguments = ["predict", "flux.1-dev", "--gpu", "rtx4090", "--precision", "bf16", "--steps", "28"]
    text = CliRunner().invoke(main, [*arguments, "--image-size", "1024x768", "--memory"]).output
    assert "1024x768, 28 steps" in text and "Time by part" in text and "sequential" in text
    answer = json.loads(CliRunner().invoke(main, [*arguments, "--images", "2", "--format", "json"]).output)
    assert answer["images"] == 2 and answer["time_s"] == pytest.approx(2 * answer["time_per_image_s"])
    assert {"interval", "energy_j", "parts", "memory", "fits"} <= answer.keys()


def test_an_answer_needs_no_torch() -> None:
    code = (
        "import sys, paleo_lite as pl; pl.predict('flux.1-dev', gpu='rtx4090', precision='bf16'); "
        "print(sorted({'torch', 'diffusers', 'pandas', 'scipy'} & {*sys.modules}))"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_devices_that_share_a_sequence_draw_less_each_and_more_together() -> None:
    """ML.ENERGY's H100 draw 687 W alone and 490 W in eights with FLUX.1-dev: they wait for exchanges."""
    asked = {"gpu": "h100-sxm", "precision": "bf16", "steps": 50}
    alone, eight = pl.predict("flux.1-dev", **asked), pl.predict("flux.1-dev", ulysses=8, **asked)
    assert alone.power_w > 1.15 * eight.power_w and eight.energy_j > alone.energy_j
    low_j, high_j = eight.energy_interval_j
    assert low_j < eight.energy_j < high_j
    assert on_several_devices(alone, eight.split).energy_j == pytest.approx(eight.energy_j)
    assert sum(eight.parts_energy_j) == pytest.approx(eight.energy_j)


def test_the_energy_at_the_meter_has_all_devices_and_their_hosts() -> None:
    asked = {"gpu": "h100-sxm", "precision": "bf16", "ulysses": 2}
    alone = pl.predict("sd-3.5-medium", **asked)
    metered = pl.predict("sd-3.5-medium", host_watts=100, pue=1.2, electricity=0.2, **asked)
    assert alone.site is None
    assert metered.site.energy_j == pytest.approx(1.2 * (alone.energy_j + 2 * 100 * alone.time_s))
    assert metered.site.usd == pytest.approx(0.2 * metered.site.energy_j / 3.6e6)

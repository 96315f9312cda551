"""Measured pictures as evidence, and pictures calibrated by them."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import msgspec
import pytest

import paleo_lite as pl
from paleo_lite.api.pipelines import resolve_pipeline
from paleo_lite.api.question import PictureOptions, Question
from paleo_lite.architectures.pipelines.sampling import find_pipeline
from paleo_lite.calibration.evidence_file import EvidenceCalibration
from paleo_lite.calibration.picture_causes import CAUSES, KIND, TIME, learned_run, picture_shares, picture_traits
from paleo_lite.calibration.posterior import Observation
from paleo_lite.errors import BadValue
from paleo_lite.result_files.beside import MeasuredBesideForecast
from paleo_lite.timing.causes import MovedCauses
from paleo_lite.timing.pipelines import predict_pipeline

PIPELINE = "pixart-sigma"


def resolved(**changes: Any) -> Any:
    """Return the run, the machine and the time models of a few steps of a small pipeline."""
    pipeline = find_pipeline(PIPELINE)
    assert pipeline is not None
    options: dict[str, Any] = {"precision": "bf16", "pictures": PictureOptions(steps=4), **changes}
    return resolve_pipeline(pipeline, Question(PIPELINE, "a100-sxm-80gb", **options))


def seconds(logs: dict[str, float], **changes: Any) -> tuple[float, float]:
    """Return the seconds of a step, and of the device in it, with factors of causes."""
    run, machine, model_in = resolved(**changes)
    moved = msgspec.structs.replace(run, moved=MovedCauses(logs))
    denoiser = predict_pipeline(moved, machine, model_in).denoiser
    return denoiser.run_s, float(denoiser.prediction.terms.layers_s.sum())


@pytest.mark.parametrize("attention", [None, "eager"])
@pytest.mark.parametrize("execution", ["eager", "compiled"])
def test_twice_the_seconds_of_all_causes_are_twice_the_time(execution: str, attention: str | None) -> None:
    changes = {"execution": execution, "attention": attention}
    alone, _ = seconds({}, **changes)
    twice, _ = seconds(dict.fromkeys(CAUSES, math.log(2)), **changes)
    assert twice == pytest.approx(2 * alone, rel=0.02)  # short kernels and launches of a step keep a little
    for cause in CAUSES:
        assert alone <= seconds({cause: math.log(2)}, **changes)[0] < twice


def test_shares_add_up() -> None:
    run, machine, model_in = resolved()
    for is_step in (False, True):
        shares = picture_shares(run, machine, model_in, is_step=is_step)
        assert sum(shares.values()) == pytest.approx(1)
        assert min(shares.values()) > 0


def rows_of(factor: float, device: str = "a100-sxm-80gb") -> EvidenceCalibration:
    """Return a calibration by pictures that take `factor` times their forecast."""
    run, machine, model_in = resolved()
    shares, traits = picture_shares(run, machine, model_in), picture_traits(run, device)
    return EvidenceCalibration(1, "evidence", [Observation(KIND, TIME, "4 steps", traits, factor, 1.0, shares)])


def test_slow_pictures_make_the_same_ones_slower() -> None:
    asked: dict[str, Any] = {"gpu": "a100-sxm-80gb", "steps": 4}
    shipped = pl.diffusion(PIPELINE, **asked)
    moved = pl.diffusion(PIPELINE, calibration=rows_of(1.5), **asked)
    assert moved.time_s == pytest.approx(1.5 * shipped.time_s, rel=0.08)
    assert moved.bound_s == shipped.bound_s
    assert moved.interval is not None and shipped.interval is not None
    assert moved.interval[1] / moved.interval[0] < shipped.interval[1] / shipped.interval[0]
    assert moved.calibration is not None and moved.calibration.endswith("calibrated by 1 measured figure")
    several = pl.diffusion(PIPELINE, workers="1,2", calibration=rows_of(1.5), **asked)
    assert several.found[0].time_s == pytest.approx(moved.time_s)


def test_pictures_on_another_device_say_nothing_of_this_one() -> None:
    run, machine, model_in = resolved()
    learned = learned_run(run, machine, model_in, rows_of(1.5, device="h100-sxm"))
    assert "another device (h100-sxm): only what both have in common moves" in learned.label
    assert learned.moved is not None and learned.moved.logs == pytest.approx(dict.fromkeys(learned.moved.logs, 0.0))


@pytest.mark.parametrize("workers", [None, 8])
def test_pictures_say_nothing_of_a_training_step(workers: int | None) -> None:
    """Neither of one device nor of several, where the command was told to use itself."""
    with pytest.raises(BadValue, match=r"measurements of steps of training, .* leave `--calibration` out"):
        pl.diffusion(
            PIPELINE, phase="training", gpu="h100-sxm", workers=workers, calibration=rows_of(1.5), mixed_precision=True
        )


def test_bounds_have_no_causes() -> None:
    with pytest.raises(BadValue, match="the roofline model has no causes that it could move"):
        pl.diffusion(PIPELINE, gpu="a100-sxm-80gb", time_model="roofline", calibration=rows_of(1.5))


def test_a_table_of_pictures_calibrates_and_is_compared(tmp_path: Path) -> None:
    runs = [
        {"gpu_model": gpu, "num_gpus": gpus, "batch_size": batch, "image_width": 1024, "image_height": 1024,
         "inference_steps": 20, "batch_latency_s": 3.0 * batch, "avg_power_watts": 300}
        for batch, gpus, gpu in ((1, 1, "A100-SXM4-80GB"), (2, 1, "A100-SXM4-80GB"), (1, 2, "A100-SXM4-80GB"))
    ]  # fmt: skip
    path = tmp_path / "pictures.json"
    path.write_text(json.dumps({"model_id": PIPELINE, "weight_precision": "bf16", "configurations": runs}))
    found = pl.calibrate(path)
    assert isinstance(found, EvidenceCalibration)
    assert [(row.figure, row.measured) for row in found.observations if row.kind == KIND] == [(TIME, 3.0), (TIME, 6.0)]
    forecast = pl.diffusion(PIPELINE, gpu="a100-sxm-80gb", steps=20)
    assert next(row.forecast for row in found.observations if row.kind == KIND) == pytest.approx(forecast.time_s)
    assert any("pictures that several devices make together have no forecast" in note for note in found.notes)
    beside = pl.compare(path)
    assert isinstance(beside, MeasuredBesideForecast)
    assert beside.rows[0].forecast == pytest.approx(forecast.time_s)
    assert (beside.rows[0].low, beside.rows[0].high) == pytest.approx(forecast.interval)
    with pytest.raises(BadValue, match="no network of the name sd-nothing is shipped"):
        path.write_text(json.dumps({"model_id": "sd-nothing", "weight_precision": "bf16", "configurations": runs}))
        pl.calibrate(path)

"""Measured pictures and videos as evidence: the shares of the causes in their times, and runs calibrated by them."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec

from ..errors import BadValue
from ..timing.calibrated import CalibratedModel
from ..timing.causes import ATTENTION, HOST, MEMORY, PRODUCTS, MovedCauses
from ..timing.pipelines import predict_pipeline
from .posterior import elasticities, remaining_width

if TYPE_CHECKING:
    from ..machines import Machine
    from ..timing.diffusion import DiffusionConstants
    from ..timing.models import TimeModel
    from ..timing.pipeline_prediction import PipelinePrediction
    from ..timing.pipeline_run import PipelineRun
    from .evidence_file import EvidenceCalibration

KIND = "picture"

TIME = "picture_s"
"""Figure of pictures that is evidence: seconds of a batch, or of a step of the denoiser."""

CAUSES = (PRODUCTS, ATTENTION, MEMORY, HOST)
"""Causes of the times of pictures: products, attention, what is between products, and the host."""


def picture_traits(run: PipelineRun, device: str, source: str = "") -> dict[str, str]:
    """Return the traits by which pictures are compared: engine, device, format, network."""
    return {
        "source": source,
        "engine": run.execution,
        "device": device,
        "format": f"{run.precision} {run.weights or ''}".strip(),
        "network": run.pipeline.name,
    }


def seconds_of(prediction: PipelinePrediction, *, is_step: bool) -> float:
    """Return the seconds of a batch, or of a step of the denoiser."""
    return float(prediction.denoiser.run_s if is_step else prediction.time_s)


def picture_shares(
    run: PipelineRun,
    machine: Machine,
    model_in: Callable[..., TimeModel],
    *,
    is_step: bool = False,  # whether the time is that of a step of the denoiser
    constants: DiffusionConstants | None = None,  # other ones than those that are shipped
) -> dict[str, float]:
    """Return by how much the logarithm of a time moves with that of the factor of each cause; together 1."""

    def log_time(logs: dict[str, float]) -> float:
        moved = msgspec.structs.replace(run, moved=MovedCauses(logs))
        return math.log(seconds_of(predict_pipeline(moved, machine, model_in, constants), is_step=is_step))

    return elasticities(CAUSES, log_time)


def learned_run(
    run: PipelineRun, machine: Machine, model_in: Callable[..., TimeModel], evidence: EvidenceCalibration
) -> PipelineRun:
    """Return a run with the factors of its causes calibrated by measured pictures.

    Raise BadValue if the calibration has no measured pictures, or the time model has no causes.
    """
    evidence.check_kinds((KIND,), "diffusion")
    model = model_in(run.tensor_precision)
    if not isinstance(model, CalibratedModel):
        raise BadValue(
            f"a calibration from result files moves the calibrated time model, and the {model.name} model has no "
            "causes that it could move: leave `--calibration` out"
        )
    traits = picture_traits(run, machine.device.id)
    posterior = evidence.posterior(KIND)
    factors = posterior.factors(traits)
    shares = picture_shares(run, machine, model_in)
    _, after, before = factors.log_time(shares, posterior.prior.noise[TIME])
    stated = predict_pipeline(run, machine, model_in).interval
    width = 1.0
    if stated is not None:
        width = float(remaining_width(after, before, (math.log(stated[0]), math.log(stated[1]))))
    moved = MovedCauses(dict(zip(factors.causes, factors.mean.tolist())), width)
    return msgspec.structs.replace(run, moved=moved, label=evidence.describe_distance(KIND, traits))

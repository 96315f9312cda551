"""Predictions of pipelines for pictures and videos, from the arguments of `predict`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..architectures.pipelines.records import Pipeline
from ..architectures.pipelines.sampling import make_sampling
from ..calibration.choose import choose_model
from ..errors import BadValue
from ..machines import Device, Machine, find_device
from ..timing import TimeModel
from ..timing.models import CALIBRATED
from ..timing.pipelines import PIPELINE_OFFLOADS, PipelinePrediction
from ..timing.pipelines import predict_pipeline as time_pipeline
from ..timing.sequence_parallel import make_split
from ..units import element_bytes
from .arguments import Paths, to_paths


def predict_pipeline(
    pipeline: Pipeline,
    gpu: str | Device,
    *,
    precision: str,
    steps: int | None,
    image_size: int | str | None,
    frames: int | None,
    guidance: float | None,
    images: int | None,
    offload: str | None,
    ulysses: int | None,
    ring: int | None,
    batch_size: int,
    time_model: str | None,
    ppp: float | None,
    concurrent: bool,
    clock: str | None,
    unit: str | None,
    hardware_files: Paths,
    calibration: Any,
    execution: str | None,
    attention: str | None,
    weights: str | None,
    others: Mapping[str, tuple[Any, Any]],
) -> PipelinePrediction:
    """Predict the time of a batch of pictures or videos; see `paleo_lite.predict`.

    Parameters
    ----------
    pipeline : Pipeline
        The pipeline.
    gpu, precision, ...
        Arguments of `predict`.
    others : mapping of str to (value, default)
        Arguments of `predict` that pipelines do not have.

    Raises
    ------
    BadValue
        If an argument does not belong to pipelines, or `images` and `batch_size` are both given.
    """
    for name, (value, default) in others.items():
        if value != default:
            raise BadValue(f"{pipeline.name} is a pipeline for pictures or videos, which {name} is not for: remove it")
    if images is not None and batch_size != 1:
        raise BadValue("--images is the batch size of a pipeline: leave --batch-size out")
    sampling = make_sampling(
        pipeline,
        steps=steps,
        image_size=image_size,
        frames=frames,
        guidance=guidance,
        images=batch_size if images is None else images,
    )
    device = find_device(gpu, to_paths(hardware_files))
    # The time models that need only the data sheet describe the whole board, the calibrated model one of its devices.
    whole_board = ppp is not None or time_model not in (None, CALIBRATED)
    machine = Machine(device, clock, unit) if whole_board else Machine.single_device(device, clock, unit)
    element_bytes(precision)
    execution = execution or "eager"
    if attention is not None:
        from ..timing.attention import resolve_attention

        resolve_attention(attention, machine.device)

    def model_in(part_precision: str) -> TimeModel:
        return choose_model(
            machine.device,
            part_precision,
            time_model=time_model,
            execution=execution,
            ppp=ppp,
            concurrent=concurrent,
            calibration=calibration,
        )

    return time_pipeline(
        pipeline,
        sampling,
        machine,
        model_in(precision),
        precision=precision,
        execution=execution,
        attention=attention,
        weights=weights,
        offload=offload or PIPELINE_OFFLOADS[0],
        split=make_split(ulysses, ring),
        part_model=model_in,
    )

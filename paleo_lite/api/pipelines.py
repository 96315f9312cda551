"""Pipelines for pictures and videos: from the arguments of `predict` to the nouns of a prediction."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from ..architectures.pipelines.records import Pipeline
from ..architectures.pipelines.sampling import make_sampling
from ..errors import BadValue
from ..machines import Machine
from ..timing import TimeModel
from ..timing.pipelines import PIPELINE_OFFLOADS, PipelinePrediction, PipelineRun
from ..timing.pipelines import predict_pipeline as time_pipeline
from ..timing.sequence_parallel import make_split
from ..units import element_bytes


class PictureOptions(msgspec.Struct, frozen=True):
    """What is asked of a pipeline and of no other network; None and False where nothing is.

    The fields are those arguments of `predict`, where they are explained.
    """

    steps: int | None = None
    guidance: float | None = None
    frames: int | None = None
    images: int | None = None
    offload: str | None = None
    ulysses: int | None = None
    ring: int | None = None
    tiled: bool = False
    step_caching: float | None = None

    def check_absent(self, network: object) -> None:
        """Check that no option is given for a network that is no pipeline."""
        for name, value in msgspec.structs.asdict(self).items():
            if value is not None and value is not False:
                option = "--" + name.replace("_", "-")
                name_of_network = network if isinstance(network, str) else "the network"
                raise BadValue(
                    f"{option} is for pipelines such as flux.1-dev or wan-2.1-1.3b; {name_of_network} is none"
                )


def check_others(pipeline: Pipeline, others: Mapping[str, tuple[Any, Any]]) -> None:
    """Check that arguments of `predict` that pipelines do not have are at their defaults.

    Parameters
    ----------
    others : mapping of str to (value, default)
        Arguments by the name of their option.
    """
    for name, (value, default) in others.items():
        if value != default:
            raise BadValue(f"{pipeline.name} is a pipeline for pictures or videos, which {name} is not for: remove it")


def make_run(
    pipeline: Pipeline,
    options: PictureOptions,
    *,
    precision: str,
    image_size: int | str | None = None,
    batch_size: int = 1,
    execution: str | None = None,
    attention: str | None = None,
    weights: str | None = None,
) -> PipelineRun:
    """Return a pipeline with what is asked of it.

    Raises
    ------
    BadValue
        If an option is out of its range, or `images` and `batch_size` are both given.
    """
    if options.images is not None and batch_size != 1:
        raise BadValue("--images is the batch size of a pipeline: leave --batch-size out")
    element_bytes(precision)
    sampling = make_sampling(
        pipeline,
        steps=options.steps,
        image_size=image_size,
        frames=options.frames,
        guidance=options.guidance,
        images=batch_size if options.images is None else options.images,
        tiled=options.tiled,
        step_caching=options.step_caching,
    )
    return PipelineRun(
        pipeline,
        sampling,
        precision,
        execution or "eager",
        attention,
        weights,
        options.offload or PIPELINE_OFFLOADS[0],
        make_split(options.ulysses, options.ring),
    )


def predict_run(run: PipelineRun, machine: Machine, model_in: Callable[[str], TimeModel]) -> PipelinePrediction:
    """Predict a run of a pipeline on a machine, with the time model of each precision."""
    if run.attention is not None:
        from ..timing.attention import resolve_attention

        resolve_attention(run.attention, machine.device)
    return time_pipeline(run, machine, model_in)

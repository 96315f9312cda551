"""Pipelines for pictures and videos: from the arguments of `predict` to the nouns of a prediction."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import msgspec

from ..architectures import Network
from ..architectures.pipelines.records import Pipeline
from ..architectures.pipelines.sampling import make_sampling, part_runs
from ..calibration.choose import choose_model
from ..errors import BadValue
from ..machines import Device, Machine, find_device
from ..timing import TimeModel
from ..timing.attention import EAGER, has_fused_attention, is_blackwell, resolve_attention
from ..timing.models import CALIBRATED
from ..timing.pipeline_run import EXECUTIONS, PIPELINE_OFFLOADS, PipelineRun
from ..timing.sequence_parallel import make_split
from ..units import element_bytes
from .arguments import Paths, to_paths


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
    guidance_parallel: bool = False
    tiled: bool = False
    step_caching: float | None = None

    def first_given(self) -> str | None:
        """Return the first option that is given; None if there is none."""
        for name, value in msgspec.structs.asdict(self).items():
            if value is not None and value is not False:
                return "--" + name.replace("_", "-")
        return None

    def check_absent(self, network: object) -> None:
        """Check that no option is given for a network that is no pipeline."""
        option = self.first_given()
        if option is not None:
            name = network if isinstance(network, str) else "the network"
            raise BadValue(f"{option} is for pipelines such as flux.1-dev or wan-2.1-1.3b; {name} is none")

    def check_absent_in_training(self, pipeline: Pipeline) -> None:
        """Check that no option is given for a training step of a pipeline's denoiser."""
        option = self.first_given()
        if option is not None:
            raise BadValue(
                f"{option} is for `--phase inference` of {pipeline.name}; a training step is of its denoiser"
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
        make_split(options.ulysses, options.ring, options.guidance_parallel),
    )


def denoiser_network(pipeline: Pipeline, image_size: int | str | None, frames: int | None) -> Network:
    """Return the denoiser of a pipeline as a network, for a training step on samples that are encoded beforehand."""
    sampling = make_sampling(pipeline, image_size=image_size, frames=frames, guidance=1.0)
    network = next(runs.network for runs in part_runs(pipeline, sampling) if runs.part.role == "denoiser")
    note = (
        f"the denoiser of {pipeline.name} alone, at {sampling.width}x{sampling.height} pixels: text and pictures are "
        "encoded beforehand"
    )
    return network._replace(notes=(*network.notes, note))


def pipeline_question(
    pipeline: Pipeline,
    options: PictureOptions,
    gpu: str | Device,
    *,
    clock: str | None = None,
    unit: str | None = None,
    hardware_files: Paths = (),
    time_model: str | None = None,
    ppp: float | None = None,
    concurrent: bool = False,
    calibration: Any = None,
    **asked: Any,
) -> tuple[PipelineRun, Machine, Callable[[str], TimeModel]]:
    """Return a run of a pipeline, its machine, and the time model of each precision, from arguments of `predict`.

    Parameters
    ----------
    pipeline, options
        As for `make_run`.
    gpu, clock, unit, hardware_files, time_model, ppp, concurrent, calibration
        As for `predict`.
    **asked
        Further arguments of `make_run`.
    """
    run = make_run(pipeline, options, **asked)
    device = find_device(gpu, to_paths(hardware_files))
    # The time models that need only the data sheet describe the whole board, the calibrated model one of its devices.
    whole_board = ppp is not None or time_model not in (None, CALIBRATED)
    machine = Machine(device, clock, unit) if whole_board else Machine.single_device(device, clock, unit)
    if run.attention == "flash2" and is_blackwell(machine.device):
        # The kernels run there without being written for it, which is what pipelines are timed with by default.
        run = msgspec.structs.replace(run, attention=None)
    elif run.attention is not None:
        resolve_attention(run.attention, machine.device)
    elif not has_fused_attention(machine.device):
        run = msgspec.structs.replace(run, attention=EAGER)
    model_in = partial(
        choose_model,
        machine.device,
        time_model=time_model,
        execution=EXECUTIONS.get(run.execution, run.execution),
        ppp=ppp,
        concurrent=concurrent,
        calibration=calibration,
    )
    return run, machine, model_in

"""Pipelines for pictures and videos: from a question to the nouns of a prediction."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from ..architectures.pipelines.records import Pipeline
from ..architectures.pipelines.sampling import denoiser_network, make_sampling
from ..calibration.choose import choose_model
from ..errors import BadValue
from ..formats import split_format
from ..machines import Device, Machine
from ..timing import TimeModel
from ..timing.attention import EAGER, has_fused_attention, is_blackwell, resolve_attention
from ..timing.pipeline_run import EXECUTIONS, PIPELINE_OFFLOADS, PipelineRun
from ..timing.sequence_parallel import make_split
from ..units import element_bytes
from .question import Question

if TYPE_CHECKING:
    from ..calibration.evidence_file import EvidenceCalibration


def make_run(pipeline: Pipeline, question: Question) -> PipelineRun:
    """Return a pipeline with what is asked of it.

    Raise BadValue if an option is out of its range.
    """
    options = question.pictures
    precision, weights = split_format(question.precision, question.weights)
    element_bytes(precision)
    sampling = make_sampling(
        pipeline,
        steps=options.steps,
        image_size=question.image_size,
        frames=options.frames,
        guidance=options.guidance,
        images=question.batch_size,
        tiled=options.tiled,
        step_caching=options.step_caching,
    )
    return PipelineRun(
        pipeline,
        sampling,
        precision,
        question.execution or "eager",
        question.attention,
        weights,
        options.offload or PIPELINE_OFFLOADS[0],
        make_split(options.ulysses, options.ring, options.guidance_parallel),
    )


def check_evidence_of_denoiser(pipeline: Pipeline, evidence: EvidenceCalibration | None, kinds: Sequence[str]) -> None:
    """Raise BadValue if measurements have none of the kinds that a training step of a denoiser learns from."""
    if evidence is not None and not set(kinds) & set(evidence.kinds):
        raise BadValue(
            f"a step of the denoiser of {pipeline.name} learns from measurements of steps of training, and the "
            f"calibration is of {evidence.subject}: leave `--calibration` out"
        )


def of_denoiser(pipeline: Pipeline, question: Question) -> Question:
    """Return the question of a pipeline's training step as that of its denoiser, a network.

    Raise BadValue for an option of inference.
    """
    msgspec.structs.replace(question.pictures, frames=None, offload=None).check_absent_in_training(pipeline)
    network = denoiser_network(pipeline, question.image_size, question.pictures.frames)
    return msgspec.structs.replace(question, network=network, image_size=None)


def resolve_pipeline(pipeline: Pipeline, question: Question) -> tuple[PipelineRun, Machine, Callable[..., TimeModel]]:
    """Return a run of a pipeline, its machine, and the time model of each precision."""
    run = make_run(pipeline, question)
    evidence = question.find_evidence()
    machine = question.machine(whole_board=question.asks_for_board)
    if run.attention == "flash2" and is_blackwell(machine.device):
        # The kernels run there without being written for it, which is what pipelines are timed with by default.
        run = msgspec.structs.replace(run, attention=None)
    elif run.attention is not None:
        resolve_attention(run.attention, machine.device)
    elif not has_fused_attention(machine.device):
        run = msgspec.structs.replace(run, attention=EAGER)
    if run.products is not None:
        run = msgspec.structs.replace(run, wide_precision=machine.wide_peak().peak.precision)
    model_in = partial(
        choose_model,
        machine.device,
        time_model=question.time_model,
        execution=EXECUTIONS.get(run.execution, run.execution),
        ppp=question.ppp,
        calibration=None if evidence is not None else question.calibration,
    )
    if evidence is not None:
        from ..calibration.picture_causes import KIND, learned_run
        from ..calibration.power_causes import KIND as POWER
        from ..calibration.power_causes import learned_device

        evidence.check_kinds((KIND, POWER), "diffusion")
        machine = msgspec.structs.replace(machine, device=learned_device(machine.device, pipeline.name, evidence))
        if KIND in evidence.kinds:
            run = learned_run(run, machine, model_in, evidence)
    return run, machine, model_in


def notes_on_pictures(question: Question, device: Device, pipeline: str) -> tuple[str, ...]:
    """Return what a calibration from result files says of pictures, and which of its figures are not used."""
    evidence = question.find_evidence()
    if evidence is None:
        return ()
    from ..calibration.evidence_notes import notes_on_calibration

    return notes_on_calibration(evidence, "diffusion", device, pipeline, {"picture"}, learns_links=False)

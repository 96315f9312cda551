"""A prediction of one device: of a network or a count, of a pipeline's pictures, and of training its denoiser."""

from __future__ import annotations

from datetime import date
from functools import partial
from typing import TYPE_CHECKING, Any

# Import numpy before msgspec: with typing_extensions installed, the other order makes the import of numpy 60 ms slower.
import numpy  # noqa: F401
from msgspec import structs

from ..architectures.catalog import networks_with_macs
from ..architectures.pipelines.records import Pipeline
from ..architectures.pipelines.sampling import find_pipeline
from ..counting import GENERATION_PHASES
from ..counting.work import PHASES_WITH_GRADIENTS
from ..errors import BadValue
from ..machines import Machine
from ..timing import Prediction, TimeModel, Workload, find_model
from ..timing import predict as predict_workload
from ..timing.notes import range_notes
from ..units import parse_quantity
from .question import Question, default_execution, resolve_question, square_size

if TYPE_CHECKING:
    from ..calibration.evidence_file import EvidenceCalibration
    from ..timing.budget import Amount
    from ..timing.pipeline_prediction import PipelinePrediction


def predict_pass(question: Question) -> Prediction:
    """Return the prediction of a network, of a FLOP or MAC count, or of a training step of a pipeline's denoiser.

    Raise PaleoError for an unknown name, an invalid value, a precision that the device lacks, or a malformed file.
    """
    network = question.network
    if (network, question.flops, question.macs).count(None) != 2:
        raise BadValue("give a network, `flops` or `macs`: exactly one of the three")
    pipeline = find_pipeline(network) if isinstance(network, str) else None
    if network is None:
        prediction = _predict_count(question)
    elif pipeline is None:
        prediction = _predict_layers(question)
    elif question.phase in PHASES_WITH_GRADIENTS or question.phase == "forward":
        prediction = _predict_denoiser(pipeline, question)
    else:
        raise BadValue(f"{network} is a pipeline for pictures or videos: this needs a single network")
    ranges = range_notes(prediction, prediction.device, workloads=[prediction.workload])
    notes = (
        *prediction.notes,
        *_notes_on_execution(question, prediction),
        *ranges,
        *_notes_on_calibration(question, prediction),
    )
    prediction = structs.replace(prediction, facility=question.facility, notes=notes)
    return prediction if question.amount is None else _with_budget(prediction, question.amount)


def _notes_on_execution(question: Question, prediction: Prediction) -> tuple[str, ...]:
    """Return a note on an execution that was not asked for and that other precisions do not have."""
    is_of_integers = question.precision == "int8" and question.phase == "inference" and question.network is not None
    if question.execution is not None or not is_of_integers:
        return ()
    return (
        f"`--execution {prediction.execution}` is assumed, as PyTorch has no convolutions in int8 on GPUs: state it "
        "for other precisions, too, to compare them under one software",
    )


def _notes_on_calibration(question: Question, prediction: Prediction) -> tuple[str, ...]:
    """Return what a calibration from result files says of one device, and which of its figures are not used."""
    evidence = question.find_evidence()
    if evidence is None or question.network is None:
        return ()
    from ..calibration.evidence_notes import notes_on_calibration

    command = "train" if question.phase == "training" else f"predict --phase {question.phase}"
    used = {"training": {"train"}, **{phase: {"server"} for phase in GENERATION_PHASES}}.get(question.phase, set())
    return notes_on_calibration(evidence, command, prediction.device, prediction.workload.network.name, used)


def predict_pictures(question: Question) -> PipelinePrediction:
    """Return the prediction of pictures or videos; the network of the question is a pipeline."""
    from ..timing.pipelines import predict_pipeline
    from .pipelines import notes_on_pictures, resolve_pipeline

    pipeline = find_pipeline(question.network) if isinstance(question.network, str) else None
    if pipeline is None:
        raise BadValue(f"pictures and videos need a pipeline such as flux.1-dev; {question.network} is not one")
    prediction = predict_pipeline(*resolve_pipeline(pipeline, question))
    notes = (*prediction.notes, *notes_on_pictures(question, prediction.device, pipeline.name))
    prediction = structs.replace(prediction, facility=question.facility, notes=notes)
    return prediction if question.amount is None else _with_budget(prediction, question.amount)


def _with_budget(prediction: Any, amount: Amount) -> Any:
    """Return the prediction of a training step or of pictures with hours, cost and energy of the whole run."""
    from ..timing.budget import make_budget

    tokens = prediction.workload.network.tokens if isinstance(prediction, Prediction) else None
    budget = make_budget(prediction.device, amount, sequence_tokens=tokens)
    notes = (*prediction.notes, *budget.price_notes(date.today()))
    return structs.replace(prediction, budget=budget, notes=notes)


def _predict_count(question: Question) -> Prediction:
    """Predict the time of a FLOP or MAC count on the whole board.

    A FLOP count equal to the MAC count of a shipped network gets a note, as it probably is a MAC count.
    """
    if question.calibration is not None or question.fit_batch or question.memory:
        raise BadValue(
            "`--calibration`, `--batch-size fit` and `--memory` require a network; "
            "they cannot be used with `--flops` or `--macs`"
        )
    time_model = question.time_model
    if question.ppp is None:
        time_model = time_model or "peak"
    model = find_model(time_model, question.ppp)
    if question.macs is not None:
        count = 2 * parse_quantity(question.macs, "MAC")
        notes: tuple[str, ...] = ()
    else:
        count = parse_quantity(question.flops or 0, "FLOP")
        notes = tuple(
            f"{name} has about this number of multiply-accumulates, of 2 FLOPs each: "
            f"if this is a MAC count, use `--macs {question.flops}`"
            for name in networks_with_macs(count)[:1]
        )
    workload = Workload.from_flops(
        count,
        precision=question.precision,
        batch_size=question.batch_size,
        notes=notes,
        # The remaining arguments need layers: `from_flops` rejects everything but their defaults.
        phase=question.phase,
        execution=question.execution or "eager",
        convention=question.convention,
        training=question.training,
        image_size=square_size(question.image_size, None),
        inputs=question.inputs,
        sequence_length=question.sequence_length,
        context=question.context,
        weights=question.weights,
    )
    return predict_workload(workload, question.machine(whole_board=True), model)


def _predict_denoiser(pipeline: Pipeline, question: Question) -> Prediction:
    """Predict a training step of a pipeline's denoiser, or its forward pass."""
    from ..calibration.power_causes import KIND as POWER
    from ..distributed.step_causes import KIND as TRAINING
    from .pipelines import check_evidence_of_denoiser, of_denoiser

    check_evidence_of_denoiser(pipeline, question.find_evidence(), (TRAINING, POWER))
    return _predict_layers(of_denoiser(pipeline, question), is_denoiser=True)


def _predict_layers(question: Question, *, is_denoiser: bool = False) -> Prediction:
    """Predict a network, with its memory."""
    if question.fit_batch and question.batch_size != 1:
        raise BadValue("the largest batch that fits takes the place of a number of samples")
    evidence = question.find_evidence() if question.phase == "training" else None
    if evidence is not None:
        evidence.check_kinds(("train", "link", "power"), "train")
        question = structs.replace(question, calibration=None, evidence=evidence)
    workload, machine, model = resolve_question(question, whole_board=question.asks_for_board)
    if not is_denoiser and workload.phase == "training":
        from ..distributed.one_device import runs_in_blocks

        if runs_in_blocks(workload):
            return _predict_blocks(question, evidence)
    if evidence is not None and "train" in evidence.kinds:
        model = _learn_steps(evidence, workload, machine, model)
    if is_denoiser:
        from ..timing.diffusion import pipeline_model

        model = pipeline_model(model, machine.device, is_measured=False)
    from ..timing.capacity import predict_with_memory

    return predict_with_memory(
        workload,
        machine,
        model,
        fit_batch=question.fit_batch,
        names_remedies=question.names_remedies,
        answers=question.remedy_answers,
    )


def _predict_blocks(question: Question, evidence: EvidenceCalibration | None) -> Prediction:
    """Predict a training step of a language model in blocks, as a device alone and one of many compute it."""
    from ..distributed.fitting import fitting_note
    from ..distributed.job import Job
    from ..distributed.one_device import ALONE, predict_alone, predict_largest
    from ..distributed.parallel_config import ParallelConfig
    from ..distributed.remedies import step_of_shards
    from ..distributed.settings import Settings
    from ..distributed.step_causes import learned_job
    from ..timing.training_options import TrainingOptions

    execution = question.execution or default_execution(question.phase, question.precision)
    # The model is that of PyTorch: stacks in blocks have kernels of their own, and no hosts of convolutional networks.
    stackless = structs.replace(question, execution=None, training=question.training or TrainingOptions())
    workload, machine, model = resolve_question(stackless, whole_board=question.asks_for_board)
    parallel, options = question.parallel, workload.options
    if parallel is None:
        options.micro_batch(workload.batch_size)  # raises BadValue for a batch that does not divide
        recompute = "full" if options.checkpointing == "block" else ""
        parallel = ParallelConfig(
            sharding="ddp", execution=execution, micro_batches=options.accumulation, recompute=recompute
        )
        checkpointing = "none" if recompute else options.checkpointing
        options = structs.replace(options, accumulation=1, checkpointing=checkpointing)
    settings = Settings(parallel=structs.replace(parallel, attention=question.attention))
    job = Job(workload.with_changes(training=options), machine, model)
    if evidence is not None and "train" in evidence.kinds:
        job = learned_job(job, evidence, ALONE, settings, workload.batch_size, "3d")
    step = predict_largest(job, settings) if question.fit_batch else predict_alone(job, workload.batch_size, settings)
    if not question.names_remedies:
        return step.prediction
    shard = partial(step_of_shards, job, question.attention, question.execution)
    prediction = step.with_remedies(question.remedy_answers, shard)
    fit = prediction.memory
    if fit is None or fit.fits or fit.remedies:
        return prediction
    note = fitting_note(job, ALONE, settings, prediction.batch_size, "3d")
    return structs.replace(prediction, notes=(*prediction.notes, note))


def _learn_steps(evidence: EvidenceCalibration, workload: Workload, machine: Machine, model: TimeModel) -> TimeModel:
    """Return the model of a step of training on one device that measured steps lead to."""
    from ..distributed.job import Job
    from ..distributed.links import Topology
    from ..distributed.settings import Settings
    from ..distributed.step_causes import learned_job

    alone = Topology(None, 1, None, 1, None)
    job = learned_job(Job(workload, machine, model), evidence, alone, Settings(), workload.batch_size, "data")
    return job.move(job.model)

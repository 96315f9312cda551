"""Alternatives to a prediction: the same workload with one thing changed, predicted by the same kind of time model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from ..engines.placed import engine_speaks_for
from ..errors import PaleoError
from ..machines import Machine, list_devices
from ..serving.engine_model import EngineModel
from ..timing import Prediction, TimeModel, Workload, predict
from ..timing.capacity import predict_with_memory
from ..timing.training_options import TrainingOptions
from .choose import choose_model
from .evidence_file import EvidenceCalibration

NARROWER_PRECISIONS = {
    "fp64": ("fp32", "tf32", "bf16", "fp16"),
    "fp32": ("tf32", "bf16", "fp16"),
    "tf32": ("bf16", "fp16"),
}
"""Precisions in which networks usually keep their accuracy. 8-bit precisions are left out: they need a quantized
network."""

FUSED_EXECUTIONS = {
    "compiled": "compiled: pointwise chains fused",
    "folded": "folded: batch norms in convolutions, chains fused",
}

BATCH_MULTIPLES = (2, 4, 8)
"""Multiples of the batch size to try."""


class Alternative(msgspec.Struct, frozen=True):
    """Prediction of the same network with one thing changed."""

    change: str  # kind of the change
    name: str  # description of the new value
    prediction: Prediction
    note: str = ""  # caveat of the change


class Alternatives(msgspec.Struct, frozen=True):
    """Predicted alternatives, and descriptions of those that could not be predicted."""

    tried: Sequence[Alternative] = ()
    left_out: Sequence[str] = ()


def try_alternatives(
    prediction: Prediction, time_model: str | None = None, hardware_files: Sequence[Path] = ()
) -> Alternatives:
    """Predict the workload with larger batches, narrower precisions, fused kernels, and on every other device.

    The prediction is one of a network, with its memory; `time_model` is the one requested by name, if any, and
    `hardware_files` are further hardware TOMLs.
    """
    workload, machine, model = prediction.workload, prediction.machine, prediction.model
    # A calibration holds for one device and precision; elsewhere the best available model is used.
    model_elsewhere = time_model if model.label else model.name
    evidence = _evidence_of(model)
    default_model = _model_of_kind(model.name, workload, machine, model_elsewhere, evidence)
    is_default_model = default_model is not None and default_model.label == model.label
    tried: list[Alternative] = []
    left_out: list[str] = []

    def attempt(change: str, name: str, changed: Workload, other: Machine = machine, note: str = "") -> None:
        try:
            same_precision = changed.precision == workload.precision
            same_execution = changed.execution == workload.execution
            # A user's own calibration holds for the software it was measured with, under any execution.
            if same_precision and (same_execution or not is_default_model):
                used_model = model
            else:
                used_model = _choose_model(changed, machine, model_elsewhere, evidence)
            alternative = predict_with_memory(changed, other, used_model, names_remedies=False)
        except PaleoError as error:
            left_out.append(f"{name}: {error}")
            return
        if used_model.name == model.name:
            tried.append(Alternative(change, name, alternative, note))
        else:
            left_out.append(
                f"{name}: only the {used_model.name} bound is available, which cannot be compared with a forecast"
            )

    for size, name in _larger_batches(prediction):
        attempt("batch", name, workload.with_changes(batch_size=size))
    if prediction.phase == "inference" and prediction.execution == "eager":
        for execution, name in FUSED_EXECUTIONS.items():
            attempt("execution", name, workload.with_changes(execution=execution))
    if model.ppp is not None:
        left_out.append("other precisions and devices: a PPP holds only for the platform on which it was measured")
        return Alternatives(tried, left_out)
    supported = {peak.precision for peak in machine.device.peaks}
    for precision in NARROWER_PRECISIONS.get(workload.precision, ()):
        if precision not in supported:
            continue
        narrower = _in_precision(workload, precision)
        mixed = "mixed precision in " if narrower.options.mixed_precision else ""
        # The chosen arithmetic unit is not passed on: it may not support the other precision.
        attempt("precision", mixed + precision, narrower, Machine(machine.device, machine.clock), "other rounding")
    others, number_without_model = _on_other_devices(prediction, model_elsewhere, hardware_files)
    if number_without_model:
        left_out.append(
            f"{number_without_model} further devices: they lack the precision, or no measurement covers them"
        )
    return Alternatives([*tried, *others], left_out)


def _in_precision(workload: Workload, precision: str) -> Workload:
    """Return the workload in another precision; training in 16 bits becomes mixed precision with master weights."""
    if workload.phase != "training" or precision not in ("bf16", "fp16"):
        return workload.with_changes(precision=precision)
    training = msgspec.structs.replace(workload.training or TrainingOptions("sgd"), mixed_precision=True)
    return workload.with_changes(precision=precision, training=training)


def _larger_batches(prediction: Prediction) -> Iterator[tuple[int, str]]:
    """Yield larger batch sizes that fit into memory; the largest that fits where the predicted one does not."""
    largest = None if prediction.memory is None else prediction.memory.largest_batch
    if largest is None:
        return
    if prediction.batch_size > largest:
        yield largest, f"batch {largest:,}, the largest that fits"
        return
    for multiple in BATCH_MULTIPLES:
        batch_size = prediction.batch_size * multiple
        if batch_size <= largest:
            yield batch_size, f"batch {batch_size:,}"


def _on_other_devices(
    prediction: Prediction, time_model: str | None, hardware_files: Sequence[Path]
) -> tuple[list[Alternative], int]:
    """Predict the workload on every other device that the same kind of model covers, and count the devices left out.

    Work and memory do not depend on the device and are counted once.
    """
    workload, evidence = prediction.workload, _evidence_of(prediction.model)
    alternatives: list[Alternative] = []
    number_without_model = 0
    for device in list_devices(hardware_files):
        if device.id == prediction.device.id:
            continue
        machine = Machine(device)
        model = _model_of_kind(prediction.model.name, workload, machine, time_model, evidence)
        other = None
        if model is not None:
            try:
                other = predict(workload, machine, model)
            except PaleoError:  # the device lacks the precision
                other = None
        if other is None:
            number_without_model += 1
            continue
        memory = prediction.memory
        if memory is not None:
            memory = msgspec.structs.replace(memory, capacity_bytes=device.reported_memory_bytes)
        alternatives.append(Alternative("device", device.name, msgspec.structs.replace(other, memory=memory)))
    return alternatives, number_without_model


def _choose_model(
    workload: Workload, machine: Machine, time_model: str | None, evidence: EvidenceCalibration | None
) -> TimeModel:
    """Return the requested time model of a machine for a workload, or the best available one."""
    if workload.engine is not None and engine_speaks_for(workload.network, workload.precision, machine.device):
        return EngineModel() if evidence is None else EngineModel.by_servers(evidence, workload, machine.device)
    return choose_model(
        machine.device,
        workload.precision,
        time_model,
        execution=workload.execution,
        network=workload.network,
    )


def _evidence_of(model: TimeModel) -> EvidenceCalibration | None:
    """Return the measured servers that a model learned from, which also speak of other devices."""
    return model.evidence if isinstance(model, EngineModel) else None


def _model_of_kind(
    kind: str, workload: Workload, machine: Machine, time_model: str | None, evidence: EvidenceCalibration | None
) -> TimeModel | None:
    """Return the time model of a machine if it is of the given kind, else None."""
    try:
        model = _choose_model(workload, machine, time_model, evidence)
    except PaleoError:
        return None
    return model if model.name == kind else None

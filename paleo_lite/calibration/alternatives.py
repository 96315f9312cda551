"""What else could be tried: the same workload predicted again with one thing changed, by the same kind of model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from ..errors import PaleoError
from ..machines import Machine, list_devices
from ..timing import Prediction, TimeModel, Workload, predict
from ..timing.capacity import predict_with_memory
from ..timing.workload import TrainingOptions
from .choose import choose_model

NARROWER = {
    "fp64": ("fp32", "tf32", "bf16", "fp16"),
    "fp32": ("tf32", "bf16", "fp16"),
    "tf32": ("bf16", "fp16"),
}
"""Precisions that networks usually survive; 8 bits ask for a network that was made for them."""

FUSED = {"compiled": "compiled: pointwise chains fused", "folded": "folded: batch norms in convolutions, chains fused"}

LARGER = (2, 4, 8)
"""Times the batch."""


class Alternative(msgspec.Struct, frozen=True):
    """The same network predicted with one thing changed.

    Attributes
    ----------
    change : {"batch", "precision", "execution", "device"}
        What was changed.
    name : str
        To what, in words.
    note : str
        What to mind.
    """

    change: str
    name: str
    prediction: Prediction
    note: str = ""


class Alternatives(msgspec.Struct, frozen=True):
    """What was tried, and in words what was not."""

    tried: Sequence[Alternative] = ()
    left_out: Sequence[str] = ()


def try_alternatives(
    prediction: Prediction, time_model: str | None = None, hardware_files: Sequence[Path] = ()
) -> Alternatives:
    """The same question with a larger batch, narrower numbers, fused kernels, and on every other device.

    Parameters
    ----------
    prediction : Prediction
        Of a network, with its memory.
    time_model : str, optional
        The model that was asked for by name, if any.
    hardware_files : sequence of Path
        Further hardware TOMLs.
    """
    machine, model = prediction.machine, prediction.model
    # A calibration is of one device and precision: elsewhere the best that is known there answers.
    elsewhere = time_model if model.label else model.name
    usual = _model_of_kind(model.name, prediction.workload, machine, elsewhere)
    is_default = usual is not None and usual.label == model.label
    tried, left_out = [], []

    def attempt(change: str, name: str, workload: Workload, other: Machine = machine, note: str = "") -> None:
        try:
            asked_alike = (workload.precision, workload.execution) == (prediction.precision, prediction.execution)
            # What somebody calibrated holds for the software that they ran, however it is executed.
            same = asked_alike or (workload.precision == prediction.precision and not is_default)
            used = (
                model
                if same
                else choose_model(machine.device, workload.precision, elsewhere, execution=workload.execution)
            )
            answer = predict_with_memory(workload, other, used)
        except PaleoError as error:
            left_out.append(f"{name}: {error}")
            return
        if used.name == model.name:
            tried.append(Alternative(change, name, answer, note))
        else:
            left_out.append(f"{name}: only the {used.name} bound is known, which cannot be compared with a forecast")

    asked = prediction.workload
    for size, name in _batches(prediction):
        attempt("batch", name, asked.with_changes(batch_size=size))
    if prediction.phase == "inference" and prediction.execution == "eager":
        for execution, name in FUSED.items():
            attempt("execution", name, asked.with_changes(execution=execution))
    if model.ppp is not None:
        left_out.append("other precisions and devices: a PPP holds for the one platform that it was measured on")
        return Alternatives(tried, left_out)
    peaks = {peak.precision for peak in machine.device.peaks}
    for precision in NARROWER.get(asked.precision, ()):
        if precision in peaks:
            narrower = _in_precision(asked, precision)
            mixed = "mixed precision in " if narrower.options.mixed_precision else ""
            # Another precision may have other units.
            attempt("precision", mixed + precision, narrower, Machine(machine.device, machine.clock), "other rounding")
    others, unknown = _on_other_devices(prediction, elsewhere, hardware_files)
    if unknown:
        left_out.append(f"{unknown} further devices: they lack the precision, or no measurement covers them")
    return Alternatives([*tried, *others], left_out)


def _in_precision(workload: Workload, precision: str) -> Workload:
    """The same in another precision; training in 16 bits keeps master weights."""
    if workload.phase != "training" or precision not in ("bf16", "fp16"):
        return workload.with_changes(precision=precision)
    training = msgspec.structs.replace(workload.training or TrainingOptions("sgd"), mixed_precision=True)
    return workload.with_changes(precision=precision, training=training)


def _batches(prediction: Prediction) -> Iterator[tuple[int, str]]:
    """Larger batches that fit; where the one asked for does not, the largest that does."""
    most = None if prediction.memory is None else prediction.memory.largest_batch
    if most is None:
        return
    if prediction.batch_size > most:
        yield most, f"batch {most:,}, the largest that fits"
        return
    for times in LARGER:
        if prediction.batch_size * times <= most:
            yield prediction.batch_size * times, f"batch {prediction.batch_size * times:,}"


def _on_other_devices(
    prediction: Prediction, time_model: str | None, hardware_files: Sequence[Path]
) -> tuple[list[Alternative], int]:
    """The same work on every other device that the same kind of model covers, and how many it does not.

    Counted once: neither work nor memory depends on the device.
    """
    workload, found, unknown = prediction.workload, [], 0
    for device in list_devices(hardware_files):
        if device.id == prediction.device.id:
            continue
        model = _model_of_kind(prediction.model.name, workload, Machine(device), time_model)
        try:
            other = None if model is None else predict(workload, Machine(device), model)
        except PaleoError:  # it lacks the precision
            other = None
        if other is None:
            unknown += 1
            continue
        held = prediction.memory and msgspec.structs.replace(prediction.memory, capacity_bytes=device.memory_bytes)
        found.append(Alternative("device", device.name, msgspec.structs.replace(other, memory=held)))
    return found, unknown


def _model_of_kind(kind: str, workload: Workload, machine: Machine, time_model: str | None) -> TimeModel | None:
    """The model of a machine where it is of that kind; None where nothing is known but another."""
    try:
        model = choose_model(machine.device, workload.precision, time_model, execution=workload.execution)
    except PaleoError:
        return None
    return model if model.name == kind else None

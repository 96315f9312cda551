"""What else could be tried: the same question asked again with one thing changed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from ..api import predict
from ..calibration.choose import choose_model
from ..errors import PaleoError
from ..hardware import Machine, list_devices
from ..report.page.alternatives import Alternative, Alternatives
from ..timing import Prediction
from ..timing import predict as predict_workload
from ..timing.options import TrainingOptions

NARROWER = {
    "fp64": ("fp32", "tf32", "bf16", "fp16"),
    "fp32": ("tf32", "bf16", "fp16"),
    "tf32": ("bf16", "fp16"),
}
"""Precisions that networks usually survive; 8 bits ask for a network that was made for them."""

LARGER = (2, 4, 8)
"""Times the batch."""


def try_alternatives(asked: dict[str, Any], prediction: Prediction) -> Alternatives:
    """The same question with a larger batch, narrower numbers, fused kernels, and on every other device.

    Parameters
    ----------
    asked : dict
        What `paleo_lite.predict` was asked; ``network`` already found.
    prediction : Prediction
        Its answer.
    """
    tried, left_out = [], []
    for change, name, changed, note in _changes(asked, prediction):
        try:
            found = predict(**{**asked, "batch_size": prediction.batch_size, **changed, "fit_batch": False})
        except PaleoError as error:
            left_out.append(f"{name}: {error}")
            continue
        if found.model.name == prediction.model.name:
            tried.append(Alternative(change, name, found, note))
        else:
            left_out.append(
                f"{name}: only the {found.model.name} bound is known, which cannot be compared with a forecast"
            )
    if asked["ppp"] is not None:
        left_out.append("other precisions and devices: a PPP holds for the one platform that it was measured on")
        return Alternatives(tried, left_out)
    others, unknown = _on_other_devices(asked, prediction)
    if unknown:
        left_out.append(f"{unknown} further devices: they lack the precision, or no measurement covers them")
    return Alternatives([*tried, *others], left_out)


_Change = tuple[str, str, dict[str, Any], str]


def _changes(asked: dict[str, Any], prediction: Prediction) -> Iterator[_Change]:
    """Kind of change, its name, what is asked otherwise, and what to mind."""
    for size, name in _batches(prediction):
        yield "batch", name, {"batch_size": size}, ""
    if prediction.phase == "inference":
        for execution, name in (("compiled", "compiled: pointwise chains fused"),
                                ("folded", "folded: batch norms in convolutions, chains fused")):  # fmt: skip
            if prediction.execution == "eager":
                yield "execution", name, {"execution": execution}, ""
    if asked["ppp"] is not None:
        return
    peaks = {peak.precision for peak in prediction.device.peaks}
    for precision in NARROWER.get(prediction.precision, ()):
        if precision not in peaks:
            continue
        changed: dict[str, Any] = {"precision": precision, **_same_model(asked, prediction)}
        mixed = prediction.phase == "training" and precision in ("bf16", "fp16")
        if mixed:
            options = asked["training"] or TrainingOptions("sgd")
            changed["training"] = msgspec.structs.replace(options, mixed_precision=True)
        yield "precision", f"{'mixed precision in ' if mixed else ''}{precision}", changed, "other rounding"


def _same_model(asked: dict[str, Any], prediction: Prediction) -> dict[str, Any]:
    """What is asked otherwise of another precision or device, for which the same calibration and units do not hold."""
    learnt = bool(prediction.model.label)
    return {"calibration": None, "unit": None, "time_model": asked["time_model"] if learnt else prediction.model.name}


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


def _on_other_devices(asked: dict[str, Any], prediction: Prediction) -> tuple[list[Alternative], int]:
    """The same work on every other device that the same kind of model covers, and how many it does not.

    Counted once: neither work nor memory depends on the device.
    """
    named, workload = _same_model(asked, prediction)["time_model"], prediction.workload
    found, unknown = [], 0
    for device in list_devices(asked["hardware_files"]):
        if device.id == prediction.device.id:
            continue
        try:
            model = choose_model(device, workload.precision, named)
            if model.name != prediction.model.name:
                unknown += 1
                continue
            other = predict_workload(workload, Machine(device), model)
        except PaleoError:  # it lacks the precision, or the model that was asked for
            unknown += 1
            continue
        held = prediction.memory and msgspec.structs.replace(prediction.memory, capacity_bytes=device.memory_bytes)
        found.append(Alternative("device", device.name, msgspec.structs.replace(other, memory=held)))
    return found, unknown

"""A prediction that also says what memory it takes, and whether that fits."""

from __future__ import annotations

import msgspec

from ..errors import BadValue, DoesNotFit
from ..hardware import Machine
from ..units import format_si
from .capacity import MemoryFit, fit_memory
from .models import TimeModel
from .predict import predict
from .prediction import Prediction
from .workload import Workload


def predict_with_memory(
    workload: Workload, machine: Machine, model: TimeModel, *, fit_batch: bool = False
) -> Prediction:
    """A prediction that also says what memory it takes, and whether that fits.

    Parameters
    ----------
    workload : Workload
    machine : Machine
    model : TimeModel
    fit_batch : bool
        Look for the largest batch that fits, in place of the workload's.

    Raises
    ------
    DoesNotFit
        If the largest batch was asked for and not even one sample fits.
    """
    if not workload.has_layers:
        raise BadValue("memory and training options need the layers of a network, not a bare FLOP count")
    if fit_batch:
        workload = workload.but(batch_size=workload.options.accumulation)
        fit = fit_memory(workload, machine.device)
        if fit.largest_batch is None:
            raise DoesNotFit(_too_large(workload, machine, fit))
        workload = workload.but(batch_size=fit.largest_batch)
    return msgspec.structs.replace(predict(workload, machine, model), memory=fit_memory(workload, machine.device))


def _too_large(workload: Workload, machine: Machine, fit: MemoryFit) -> str:
    least = "one sample" if workload.options.accumulation == 1 else "one sample per micro-batch"
    text = f"{workload.network.name} in {workload.precision} does not fit on {machine.device.name}: {least} needs "
    text += f"{format_si(fit.memory.total_bytes, 'B')} of {format_si(fit.usable_bytes, 'B')} "
    text += f"({format_si(fit.capacity_bytes, 'B')} less {format_si(fit.reserve_bytes, 'B')} of reserve)"
    helps = [remedy for remedy in fit.remedies if remedy.fits]
    if not helps:
        return f"{text}; no single remedy makes it fit"
    named = "; ".join(f"{remedy.name} ({format_si(remedy.total_bytes, 'B')})" for remedy in helps)
    return f"{text}; what would make it fit: {named}"

"""A prediction that also says what memory it takes, and whether that fits."""

from __future__ import annotations

import msgspec

from ..counting import Work
from ..errors import BadValue, DoesNotFit
from ..hardware import Device
from ..networks import Network
from ..units import format_si
from .capacity import MemoryFit, fit_memory
from .models import TimeModel
from .options import TrainingOptions
from .predict import predict_work
from .prediction import Prediction
from .training import train


def predict_with_memory(
    network: Network,
    work: Work,
    device: Device,
    precision: str,
    model: TimeModel,
    *,
    batch_size: int | None,
    phase: str,
    options: TrainingOptions | None = None,
    clock: str | None = None,
    unit: str | None = None,
) -> Prediction:
    """A prediction that also says what memory it takes, and whether that fits.

    Parameters
    ----------
    network, work, device, precision, model, clock, unit
        As for `predict_work`.
    batch_size : int or None
        None looks for the largest batch that fits.
    phase : str
    options : TrainingOptions, optional
        For the phase ``training`` only; without them plain gradient descent.

    Raises
    ------
    BadValue
        If there are options for another phase, or they do not go together.
    DoesNotFit
        If the largest batch was asked for and not even one sample fits.
    """
    if options is not None and phase != "training":
        raise BadValue(
            f"optimizer, checkpointing, accumulation and mixed precision belong to --phase training, not to {phase}"
        )
    chosen = options or TrainingOptions("sgd")
    fit = fit_memory(network.layers, work, device, precision, batch_size or chosen.accumulation, phase, chosen)
    if batch_size is None:
        if fit.largest_batch is None:
            raise DoesNotFit(_too_large(network, device, precision, chosen, fit))
        batch_size = fit.largest_batch
        fit = fit_memory(network.layers, work, device, precision, batch_size, phase, chosen)
    if options is not None:
        made = train(network, device, precision, batch_size, model, chosen, clock, unit, work=work).prediction
    else:
        made = predict_work(
            network, work, device, precision, model, batch_size=batch_size, phase=phase, clock=clock, unit=unit
        )
    return msgspec.structs.replace(made, memory=fit)


def _too_large(network: Network, device: Device, precision: str, options: TrainingOptions, fit: MemoryFit) -> str:
    least = "one sample" if options.accumulation == 1 else "one sample per micro-batch"
    text = f"{network.name} in {precision} does not fit on {device.name}: {least} needs "
    text += f"{format_si(fit.memory.total_bytes, 'B')} of {format_si(fit.usable_bytes, 'B')} "
    text += f"({format_si(fit.capacity_bytes, 'B')} less {format_si(fit.reserve_bytes, 'B')} of reserve)"
    helps = [remedy for remedy in fit.remedies if remedy.fits]
    if not helps:
        return f"{text}; no single remedy makes it fit"
    named = "; ".join(f"{remedy.name} ({format_si(remedy.total_bytes, 'B')})" for remedy in helps)
    return f"{text}; what would make it fit: {named}"

"""The passes of a phase, each once: what every prediction is put together from."""

from __future__ import annotations

import numpy as np

from ..counting.kinds import missing_note
from ..errors import BadValue
from ..hardware import Machine
from .models import TimeModel
from .prediction import Prediction
from .workload import Workload


def predict_passes(workload: Workload, machine: Machine, model: TimeModel) -> Prediction:
    """Time each pass of the phase once; see `predict.predict` for what it raises."""
    if model.needs_bytes and not workload.has_layers:
        raise BadValue(f"the {model.name} model needs the bytes of a network: a bare FLOP count takes peak or ppp")
    work, phase, batch_size = workload.work, workload.phase, workload.batch_size
    terms = model.evaluate(workload, machine)
    if not workload.has_layers:
        none = np.zeros((1, 1), dtype=np.int64)
        counts, notes = work.counts_by_pass(phase, batch_size), machine.notes(workload.precision)
        return Prediction(workload, machine, model, terms, counts, none, none, work.matrix, None, tuple(notes))
    notes = [*workload.network.notes, *model.notes, *machine.notes(workload.precision)]
    notes += _notes(workload, machine, model)
    if terms.waiting > 1.05:
        notes.append(
            f"the host launches kernels more slowly than the device runs them: {terms.waiting:.2g} times as long"
        )
    return Prediction(
        workload,
        machine,
        model,
        terms,
        counts_by_pass=work.counts_by_pass(phase, batch_size),
        macs_by_pass=work.column("macs", phase, batch_size),
        bytes_by_pass=work.column("bytes", phase, batch_size),
        matrix=work.matrix,
        kernels=int(work.column("kernels", phase, batch_size).sum()),
        notes=tuple(notes),
    )


def _notes(workload: Workload, machine: Machine, model: TimeModel) -> list[str]:
    """What somebody who uses the number should know of how it was counted."""
    work, notes = workload.work, []
    peak, vector = model.peak(machine, workload.precision), machine.vector_peak(workload.precision)
    if work.convention.unit != "FLOP":  # a convention in FLOPs goes with the peak
        notes.append(
            f"the {work.convention.name} convention counts a multiply-accumulate as 1, the peak counts it as 2: "
            "compute times come out about half as long as they should"
        )
    if work.unknown:
        notes.append(missing_note(work.unknown))
    if (vector.peak.precision, vector.peak.unit) != (peak.peak.precision, peak.peak.unit):
        notes.append(f"all but convolution, linear, matmul and attention are held against the {vector.describe()}")
    return notes

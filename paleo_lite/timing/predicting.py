"""`predict`, which times a workload on a machine."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

import msgspec
import numpy as np

from ..errors import BadValue, CountFailed
from ..machines import Machine
from .models import PeakModel, TimeModel
from .notes import faster_than_bound_note, notes_of
from .prediction import Prediction
from .terms import Terms
from .training import assemble_step, execution_notes, micro_batch
from .workload import Workload

if TYPE_CHECKING:
    from numpy.typing import NDArray


class StackOfStep(NamedTuple):
    """What a software stack does in a training step beside the kernels of the layers."""

    # Times a micro-batch on a machine by a time model, with the kernels that the stack launches.
    evaluate: Callable[[Workload, Machine, TimeModel], Terms]
    # Share of the forward pass of each layer that recomputation repeats, shape (layers,); None for what the
    # checkpointing of the workload says.
    recomputed: NDArray[np.float64] | None


def predict(workload: Workload, machine: Machine, model: TimeModel, stack: StackOfStep | None = None) -> Prediction:
    """Predict the time of a workload on a machine, with its lower bound.

    The stack is that of a training step; None launches one kernel or chain per layer.
    """
    prediction = _time_workload(workload, machine, model, stack)
    bound = model.bound_model if workload.has_layers else PeakModel()
    if model.is_forecast:
        bound_terms = _time_workload(workload, machine, bound, stack).terms
        prediction = msgspec.structs.replace(prediction, bound_terms=bound_terms)
        if prediction.time_s < bound_terms.time_s:
            note = faster_than_bound_note(prediction)
            prediction = msgspec.structs.replace(prediction, notes=(*prediction.notes, note))
    if machine.board is not None:
        board = Machine(machine.board, machine.clock, machine.unit)
        board_bound_s = _time_workload(workload, board, bound, stack).time_s
        prediction = msgspec.structs.replace(prediction, board_bound_s=board_bound_s)
    return prediction


def _describe_no_work(workload: Workload) -> str:
    """Return the sentence for a network in which no layer has a rule, or none computes or moves anything."""
    assert workload.network is not None
    kinds = sorted({layer.kind for layer in workload.layers})
    shown = ", ".join(kinds[:5]) + (", ..." if len(kinds) > 5 else "")
    return f"{workload.network.name}: nothing of it is counted in {workload.phase}; its layers are {shown or 'none'}"


def _time_workload(workload: Workload, machine: Machine, model: TimeModel, stack: StackOfStep | None) -> Prediction:
    """Time the passes of the phase by one model, and assemble a training step from them."""
    if model.needs_bytes and not workload.has_layers:
        raise BadValue(f"the {model.name} model requires a network: use the peak or ppp model for a FLOP count alone")
    whole_step = workload
    if workload.training is not None:
        workload = micro_batch(workload, machine)
    phase, batch_size = workload.phase, workload.batch_size
    if workload.has_layers and not workload.unfused_work.column("bytes", phase, batch_size).any():
        raise CountFailed(_describe_no_work(workload))
    terms = model.evaluate(workload, machine) if stack is None else stack.evaluate(workload, machine, model)
    # The kernels of an engine move bytes in place of layers.
    work = workload.work if terms.launched is None else workload.unfused_work
    if workload.has_layers:
        macs = work.column("macs", phase, batch_size)
        moved_bytes = work.column("bytes", phase, batch_size)
        launches = work.column("kernels", phase, batch_size) if terms.launched is None else terms.launched.launches
        kernels = int(launches.sum())
    else:
        macs = moved_bytes = np.zeros((1, 1), dtype=np.int64)
        kernels = None
    prediction = Prediction(
        workload,
        machine,
        model,
        terms,
        counts_by_pass=work.counts_by_pass(phase, batch_size),
        macs_by_pass=macs,
        bytes_by_pass=moved_bytes,
        matrix=work.matrix,
        kernels=kernels,
        notes=notes_of(workload, machine, model, terms),
    )
    if whole_step.training is None:
        notes = (*prediction.notes, *execution_notes(workload))
        return msgspec.structs.replace(prediction, notes=notes)
    return assemble_step(prediction, whole_step, None if stack is None else stack.recomputed)

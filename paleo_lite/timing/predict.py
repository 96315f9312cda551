"""From a workload and a machine to a prediction."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from ..counting import GENERATING, Layer, Work
from ..counting.kinds import gemm_of, is_attention, missing_note, own_note
from ..errors import BadValue, DoesNotFit
from ..hardware import Machine
from ..units import element_bytes, format_si
from .generating import STATIC
from .models import PeakModel, RooflineModel, TimeModel
from .options import with_update
from .prediction import Prediction
from .workload import Workload

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from .capacity import MemoryFit

RECOMPUTE = "recompute"
"""The pass of what is computed again."""


def predict(workload: Workload, machine: Machine, model: TimeModel) -> Prediction:
    """Time a workload on a machine."""
    time = _predict_passes if workload.training is None else _predict_training
    prediction = time(workload, machine, model)
    bound = RooflineModel() if workload.has_layers else PeakModel()
    if model.is_forecast:
        prediction = msgspec.structs.replace(prediction, bound_terms=time(workload, machine, bound).terms)
        if prediction.time_s < prediction.bound_s:
            prediction = msgspec.structs.replace(prediction, notes=(*prediction.notes, _why_faster(prediction)))
    if machine.board is not None:
        whole = Machine(machine.board, machine.clock, machine.unit)
        prediction = msgspec.structs.replace(prediction, board_bound_s=time(workload, whole, bound).time_s)
    return prediction


def _why_faster(prediction: Prediction) -> str:
    """Why a forecast may beat the data sheet's bound: by the layers that do."""
    from ..counting.algorithms import algorithms_of

    peak, reasons = prediction.peak.peak, dict[str, None]()
    for row, layer in zip(prediction.rows(), prediction.layers):
        if row["time_s"] >= row["bound_s"]:
            continue
        if len(algorithms_of(layer, prediction.batch_size, prediction.precision, peak.unit)) > 1:
            reasons["convolutions by an algorithm with fewer multiplications"] = None
        elif layer.attributes.get("causal"):
            reasons["attention without the scores that its mask hides"] = None
        else:
            reasons["such devices were measured above the clock of the data sheet"] = None
    return f"faster than the bound: {'; '.join(reasons)}"


def _predict_training(workload: Workload, machine: Machine, model: TimeModel) -> Prediction:
    """Time a training step: one prediction of a micro-batch's passes, put together as the options say.

    Forward and backward count once for each micro-batch, the update once, and with checkpointing there is a second
    forward pass of what was not saved.
    """
    options, layers, precision = workload.options, workload.layers, workload.precision
    passed = micro_batch(workload, machine)
    micro, notes = passed.batch_size, []
    if _leaves_products(workload, machine):
        notes += tensor_notes(layers, workload.work, takes_tensor_cores(layers, micro), model)
    one = _predict_passes(passed, machine, model)
    again = np.zeros(len(layers), dtype=bool)
    if options.checkpointing != "none":
        # Where tensors live is asked of a network's graph: only then, as an inference should not wait for it.
        from .checkpointing import find_segments, recomputed
        from .liveness import make_plan

        plan = make_plan(layers, element_bytes(precision))
        again = np.array(recomputed(layers, find_segments(layers, plan, options.checkpointing)), dtype=bool)
        notes.append(f"checkpointing: {int(again.sum())} of {len(layers)} layers are computed twice")
    if options.accumulation > 1:
        notes.append(f"{options.accumulation} micro-batches of {micro}, one update")

    # forward and gradients once for each micro-batch, the update once
    often = np.array([[1 if name == "update" else options.accumulation] for name in one.terms.passes])
    forward = one.terms.passes.index("forward")

    def of_step(passes: Any) -> Any:
        if passes is None:
            return None
        parts = passes * often
        if not again.any():
            return parts
        return np.concatenate([parts, options.accumulation * np.where(again, passes[forward : forward + 1], 0)])

    terms = msgspec.structs.replace(
        one.terms,
        passes=(*one.terms.passes, RECOMPUTE) if again.any() else one.terms.passes,
        overhead_s=one.terms.overhead_s * options.accumulation,
        **{name: of_step(getattr(one.terms, name)) for name in ("compute_s", "memory_s", "floor_s", "layers_s")},
    )
    return msgspec.structs.replace(
        one,
        workload=workload,
        terms=terms,
        notes=(*one.notes, *notes),
        **{name: of_step(getattr(one, name)) for name in ("counts_by_pass", "macs_by_pass", "bytes_by_pass")},
    )


def micro_batch(workload: Workload, machine: Machine) -> Workload:
    """One micro-batch of a training step and the update, with what tensor cores take of it."""
    options = workload.options
    micro = options.micro_batch(workload.batch_size)
    work = with_update(workload.work, workload.precision, options)
    if _leaves_products(workload, machine):
        work = msgspec.structs.replace(work, matrix=work.matrix & takes_tensor_cores(workload.layers, micro))
    return workload.but(batch_size=micro).doing(work)


def _leaves_products(workload: Workload, machine: Machine) -> bool:
    """Whether some products are not for tensor cores: those of Volta and Turing, under libraries of their years.

    Later ones have known nothing but cuBLAS 11 and cuDNN 8, which give them every product (NVIDIA, "Matrix
    Multiplication Background User's Guide", table 1), and a bound has to allow for it.
    """
    on_tensor = machine.peak(workload.precision).peak.unit == "tensor"
    return workload.options.mixed_precision and on_tensor and machine.device.capability.startswith("7.")


def _predict_passes(workload: Workload, machine: Machine, model: TimeModel) -> Prediction:
    """Time each pass of the phase once."""
    if model.needs_bytes and not workload.has_layers:
        raise BadValue(f"the {model.name} model needs the bytes of a network: a bare FLOP count takes peak or ppp")
    work, phase, batch_size = workload.work, workload.phase, workload.batch_size
    terms = model.evaluate(workload, machine)
    if not workload.has_layers:
        none = np.zeros((1, 1), dtype=np.int64)
        counts = work.counts_by_pass(phase, batch_size)
        notes = [*workload.network.notes, *machine.notes(workload.precision)]
        return Prediction(workload, machine, model, terms, counts, none, none, work.matrix, None, tuple(notes))
    notes = [
        *workload.network.notes,
        *model.notes,
        *machine.notes(workload.precision),
        *_notes(workload, machine, model),
    ]
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
    work, notes = workload.work, [STATIC] if workload.phase in GENERATING else []
    notes += _in_fp32(workload, machine)
    peak, vector = model.peak(machine, workload.precision), machine.vector_peak(workload.precision)
    if work.convention.unit != "FLOP" and model.takes_count:  # a convention in FLOPs goes with the peak
        notes.append(
            f"the {work.convention.name} convention counts a multiply-accumulate as 1, the peak counts it as 2: "
            "compute times come out about half as long as they should"
        )
    if work.unknown:
        notes.append(missing_note(work.unknown))
    if own := own_note(work.kinds):
        notes.append(own)
    if (vector.peak.precision, vector.peak.unit) != (peak.peak.precision, peak.peak.unit):
        notes.append(f"all but convolution, linear, matmul and attention are held against the {vector.describe()}")
    return notes


def _in_fp32(workload: Workload, machine: Machine) -> list[str]:
    """What somebody should know who leaves out the precision of a large language model."""
    narrow = [precision for precision in ("bf16", "fp16") if precision in machine.device.precisions]
    is_large = workload.phase in GENERATING or (workload.phase == "training" and workload.network.blocks)
    if not is_large or workload.precision != "fp32" or workload.options.products or not narrow:
        return []
    return [f"in fp32: language models mostly run in 16 bits, --precision {narrow[0]}"]


TENSOR_MULTIPLE = 8
"""Tensor cores take fp16 and bf16 products whose sizes are multiples of 8 (NVIDIA, "Train with mixed precision")."""


def takes_tensor_cores(layers: Sequence[Layer], batch_size: int) -> NDArray[np.bool_]:
    """Layers whose products tensor cores take in fp16 and bf16, shape (layers,).

    Convolutions with input and output channels per group that are multiples of 8; linear layers and other products
    whose three sizes are; attention whose heads are that wide. Newer libraries (cuBLAS 11, cuDNN 7.6.3) pad what is
    not, and lose what they pad: see `_leaves_products`.
    """
    return np.array([_fits_tensor_cores(layer, batch_size) for layer in layers], dtype=bool)


def _fits_tensor_cores(layer: Layer, batch_size: int) -> bool:
    if layer.kind.startswith("conv"):
        sizes: tuple[int, ...] = (layer.weights[0][0] // layer.attributes.get("groups", 1), layer.weights[0][1])
    elif is_attention(layer):
        sizes = (layer.inputs[0][-1], layer.inputs[2][-1])
    else:
        gemm = gemm_of(layer, "forward")
        if gemm is None:
            return False
        sizes = (gemm.rows * (batch_size if gemm.grows == "rows" else 1), gemm.columns, gemm.inner)
    return all(size % TENSOR_MULTIPLE == 0 for size in sizes)


def tensor_notes(layers: Sequence[Layer], work: Work, taken: NDArray[np.bool_], model: TimeModel) -> list[str]:
    """What somebody who trains in mixed precision should know of the layers that tensor cores do not take."""
    macs = work.column("macs", "forward").sum(axis=0)
    total = int(macs.sum())
    left = [layer.name for layer, takes, multiplies in zip(layers, taken, macs) if multiplies and not takes]
    if not total or not left:
        return ["mixed precision: every product takes the tensor cores"]
    named = ", ".join(left[:3]) + (", ..." if len(left) > 3 else "")
    note = f"mixed precision: {float(macs[taken].sum()) / total:.1%} of the products take the tensor cores"
    note += f", {len(left)} layers do not (sizes that are not multiples of {TENSOR_MULTIPLE}: {named})"
    if model.label:  # learnt from what was measured, such layers included
        note += "; what that costs is part of the calibration"
    return [note]


def predict_with_memory(
    workload: Workload, machine: Machine, model: TimeModel, *, fit_batch: bool = False
) -> Prediction:
    """A prediction that also says what memory it takes, and whether that fits.

    Parameters
    ----------
    fit_batch : bool
        Look for the largest batch that fits, in place of the workload's.

    Raises
    ------
    DoesNotFit
        If the largest batch was asked for and not even one sample fits.
    """
    from .capacity import fit_memory  # with what it needs, and only then

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

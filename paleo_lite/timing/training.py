"""Training steps: the workload of a micro-batch, and the step that the predictions of its passes make."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from ..counting import Layer, Work
from ..counting.kinds import gemm_of, is_attention, is_convolution
from ..counting.work import MIXED_EXECUTIONS, passes_of
from ..machines import Machine
from ..units import element_bytes, format_si
from .models import TimeModel
from .optimizers import OPTIMIZERS
from .terms import RECOMPUTE
from .training_options import bytes_per_state, with_update
from .workload import Workload, cached_for_layers

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from .prediction import Prediction


def micro_batch(workload: Workload, machine: Machine) -> Workload:
    """Return one micro-batch of a training step with the update, and without tensor cores for unsuitable sizes."""
    options = workload.options
    size = options.micro_batch(workload.batch_size)
    work = with_update(workload.work, workload.layers, workload.precision, options)
    if _has_tensor_core_size_limits(workload, machine):
        work = msgspec.structs.replace(work, matrix=work.matrix & takes_tensor_cores(workload.layers, size))
    return workload.with_changes(batch_size=size).with_work(work)


def assemble_step(passes: Prediction, workload: Workload, recomputed: NDArray[np.float64] | None) -> Prediction:
    """Return the prediction of a training step from the prediction of the passes of one micro-batch.

    Forward and backward pass count once per micro-batch, the update once. With recomputation there is a second forward
    pass of a share of each layer, shape (layers,), by default of the layers that the checkpointing of the workload
    computes again. With offloading the update takes place on the host. The workload is that of the whole step.
    """
    options, layers = workload.options, workload.layers
    micro_batch_size, notes = passes.batch_size, fine_tuning_notes(workload) + precision_notes(workload)
    notes += execution_notes(workload)
    if _has_tensor_core_size_limits(workload, passes.machine):
        notes += tensor_core_notes(layers, workload.work, takes_tensor_cores(layers, micro_batch_size), passes.model)
    if recomputed is None:
        recomputed = recomputed_layers(workload).astype(np.float64)
    if recomputed.any():
        notes.append(f"recomputation: {int((recomputed > 0).sum())} of {len(layers)} layers are computed twice")
    if options.accumulation > 1:
        notes.append(f"{options.accumulation} micro-batches of {micro_batch_size}, one update")

    repetitions = np.array([[1 if name == "update" else options.accumulation] for name in passes.terms.passes])
    forward = passes.terms.passes.index("forward")

    def repeat(by_pass: Any) -> Any:
        """Return the values of all passes of the step, given those of one micro-batch."""
        if by_pass is None:
            return None
        repeated = by_pass * repetitions
        if not recomputed.any():
            return repeated
        again = options.accumulation * recomputed * by_pass[forward : forward + 1]
        if by_pass.dtype.kind == "i":
            again = np.rint(again).astype(by_pass.dtype)
        return np.concatenate([repeated, again])

    step_passes = passes.terms.passes
    if recomputed.any():
        step_passes = (*step_passes, RECOMPUTE)
    terms = msgspec.structs.replace(
        passes.terms,
        passes=step_passes,
        overhead_s=passes.terms.overhead_s * options.accumulation,
        **{name: repeat(getattr(passes.terms, name)) for name in ("compute_s", "memory_s", "floor_s", "layers_s")},
    )
    if options.offload != "none":
        notes.append(_offload_note(workload))
        terms = _offload_update(terms, workload, passes.machine)
    paged_bytes = paged_state_bytes(workload, passes.machine)
    if paged_bytes:
        terms = _page_update(terms, workload, passes.machine, paged_bytes, is_forecast=passes.model.is_forecast)
        notes.append(paging_note(options.optimizer, paged_bytes))
    return msgspec.structs.replace(
        passes,
        workload=workload,
        terms=terms,
        notes=(*passes.notes, *notes),
        **{name: repeat(getattr(passes, name)) for name in ("counts_by_pass", "macs_by_pass", "bytes_by_pass")},
    )


def recomputed_layers(workload: Workload) -> NDArray[np.bool_]:
    """Return which layers activation checkpointing computes again, boolean of shape (layers,)."""
    layers, checkpointing = workload.layers, workload.options.checkpointing
    is_recomputed = np.zeros(len(layers), dtype=bool)
    if checkpointing == "none":
        return is_recomputed
    # Imported on demand: the memory plan of a network is needed for checkpointing only.
    from .liveness import make_plan
    from .segments import find_segments

    plan = cached_for_layers(make_plan, layers, element_bytes(workload.precision))
    segments = find_segments(layers, plan, checkpointing)
    is_recomputed[: segments[-1].start] = True  # the forward pass of the last segment has just finished
    return is_recomputed


def recomputed_fraction(workload: Workload) -> float:
    """Return the FLOPs that activation checkpointing computes again, as a fraction of those of the passes."""
    is_recomputed = recomputed_layers(workload)
    if not is_recomputed.any():
        return 0.0
    flops_by_pass = workload.work.column("flops", workload.phase, 1)
    forward = passes_of(workload.phase).index("forward")
    return float(flops_by_pass[forward, is_recomputed].sum() / flops_by_pass.sum())


def execution_notes(workload: Workload) -> list[str]:
    """Return a note on an execution that fuses no layers of a network, which is then timed as in eager execution."""
    if workload.execution in ("eager", *MIXED_EXECUTIONS) or workload.engine is not None or not workload.has_layers:
        return []
    if not np.array_equal(workload.work.per_sample, workload.unfused_work.per_sample):
        return []
    return [
        f"`--execution {workload.execution}` fuses no layers of {workload.network.name}, which take the time of eager "
        "execution"
    ]


def precision_notes(workload: Workload) -> list[str]:
    """Return the notes on the precisions of a training step: of its products, and of what it keeps."""
    return _narrow_products_notes(workload) + _state_notes(workload)


def _state_notes(workload: Workload) -> list[str]:
    """Return a note on 16-bit weights: that their state has 16 bits, where most users keep 32-bit copies, or 32."""
    options = workload.options
    optimizer = OPTIMIZERS[options.optimizer]
    states, own_bytes = optimizer.state_per_parameter, bytes_per_state(options, workload.precision)
    is_wide = element_bytes(workload.precision) != 2
    if options.mixed_precision or options.fine_tuning is not None or is_wide or not states:
        return []
    kept_bytes = 2 * (2 + states)
    if own_bytes == 4:
        return [
            f"the state of {options.optimizer} is fp32, as bitsandbytes keeps it: {2 * 2 + 4 * states:g} bytes per "
            f"parameter with weights and gradients in {workload.precision}; adamw keeps all in {workload.precision}, "
            f"{kept_bytes:g} bytes"
        ]
    if own_bytes != 2:
        return []
    return [
        f"weights, gradients and the state of {options.optimizer} are {workload.precision}, {kept_bytes:g} bytes per "
        f"parameter: `--mixed-precision` keeps fp32 weights and state beside them, {2 + 2 + 4 * (1 + states):g} bytes"
    ]


def _narrow_products_notes(workload: Workload) -> list[str]:
    """Return a note on products in a narrower precision than everything else."""
    products = workload.options.recipe or workload.options.products
    if products is None:
        return []
    return [
        f"matrix products are computed in {products}, except for the logits; all other operations are in "
        f"{workload.precision}"
    ]


def fine_tuning_notes(workload: Workload) -> list[str]:
    """Return the notes about the trained parameters, if some are frozen."""
    if workload.options.fine_tuning is None:
        return []
    from .fine_tuning import ADAPTER, SUMS

    trainable = workload.trainable_parameters
    total = sum(layer.parameters for layer in workload.trained_layers)
    note = f"{trainable:,} of {total:,} parameters are trained ({trainable / total:.2%})"
    if workload.options.lora_rank:
        adapters = sum(layer.attributes.get(ADAPTER) in SUMS for layer in workload.trained_layers)
        note += f": LoRA of rank {workload.options.lora_rank} on {adapters} layers"
    if workload.weights is not None:
        note += f"; frozen matrices are stored in {workload.weights}"
        if workload.multiplies_int8:
            note += ", and multiplied as bitsandbytes' LLM.int8() does: forward in int8, backward in 16 bits"
    return [note]


def _offload_note(workload: Workload) -> str:
    from .memory import model_bytes
    from .offload import offload_note

    _, gradient_bytes, state_bytes = model_bytes(workload)
    return offload_note(workload.options.offload, gradient_bytes + state_bytes)


def paging_note(optimizer: str, paged_bytes: float) -> str:
    """Return the note on paged optimizer state for which the device has no room."""
    return (
        f"{optimizer}: {format_si(paged_bytes, 'B')} of its state do not fit beside the step: they go to the memory of "
        "the host, and come back for every update"
    )


def _offload_update(terms: Any, workload: Workload, machine: Machine) -> Any:
    """Return the terms with the time of an update on the host, which is divided among layers by parameters."""
    from .memory import model_bytes
    from .offload import host_transfers

    options, number_bytes = workload.options, element_bytes(workload.precision)
    _, gradient_bytes, state_bytes = model_bytes(workload)
    work = with_update(workload.work, workload.layers, workload.precision, options)
    update_bytes_by_layer = work.column("bytes", "update")[0].astype(np.float64)
    transfers = host_transfers(
        machine.device,
        options.offload,
        gradient_bytes=gradient_bytes,
        parameter_bytes=workload.trainable_parameters * number_bytes,
        update_bytes=float(update_bytes_by_layer.sum()),
        state_bytes=state_bytes,
    )
    backward_s = float(terms.seconds_of("backward_data", "backward_weight").sum())
    return _with_update_s(terms, transfers.exposed_s(backward_s), update_bytes_by_layer, is_on_device=False)


def paged_state_bytes(workload: Workload, machine: Machine) -> int:
    """Return the bytes of paged optimizer state that leave the device between updates; 0 without such an optimizer."""
    if not OPTIMIZERS[workload.options.optimizer].is_paged:
        return 0
    from .memory import paged_out_bytes

    return paged_out_bytes(workload, machine.device)


def _page_update(terms: Any, workload: Workload, machine: Machine, paged_bytes: int, *, is_forecast: bool) -> Any:
    """Return the terms with the time in which paged state comes back for the update, and leaves the device again.

    The prefetch of a tensor overlaps with the update of those before it; what leaves makes room for activations, which
    wait for it. At least, the link moves both ways at once at the rate of its data sheet.
    """
    from .offload import LINK_SHARE, host_bandwidth_bytes_per_s

    copy_s = paged_bytes / host_bandwidth_bytes_per_s(machine.device)
    work = with_update(workload.work, workload.layers, workload.precision, workload.options)
    update_bytes_by_layer = work.column("bytes", "update")[0].astype(np.float64)
    update_s = float(terms.seconds_of("update").sum())
    seconds = max(update_s, copy_s) + copy_s if is_forecast else max(update_s, LINK_SHARE * copy_s)
    return _with_update_s(terms, seconds, update_bytes_by_layer, is_on_device=True)


def _with_update_s(terms: Any, seconds: float, bytes_by_layer: NDArray[np.float64], *, is_on_device: bool) -> Any:
    """Return the terms with an update of this length, which is divided among layers by the bytes that it moves.

    An update on the device computes and moves in it as much as without waiting for its state, and waits for the rest;
    during one on the host the device waits for all of it.
    """
    update, shares = terms.passes.index("update"), bytes_by_layer / bytes_by_layer.sum()
    changed = {name: getattr(terms, name).copy() for name in ("compute_s", "memory_s", "layers_s")}
    own_s = min(float(terms.seconds_of("update").sum()), seconds) if is_on_device else 0.0
    changed["layers_s"][update] = seconds * shares
    changed["offloaded_s"] = np.zeros_like(changed["layers_s"])
    changed["offloaded_s"][update] = (seconds - own_s) * shares
    if not is_on_device:
        changed["memory_s"][update] = seconds * shares
        changed["compute_s"][update] = 0.0
    return msgspec.structs.replace(terms, **changed)


# Tensor cores.


def _has_tensor_core_size_limits(workload: Workload, machine: Machine) -> bool:
    """Return whether tensor cores take only products of suitable sizes: on Volta and Turing, with libraries of their
    years.

    Later devices were only used with cuBLAS 11 and cuDNN 8, which compute every product on tensor cores (NVIDIA,
    "Matrix Multiplication Background User's Guide", table 1), and a bound has to allow for it.
    """
    if not (workload.options.mixed_precision and machine.device.capability.startswith("7.")):
        return False
    return machine.peak(workload.precision).peak.unit == "tensor"


TENSOR_MULTIPLE = 8
"""Tensor cores take fp16 and bf16 products whose sizes are multiples of 8 (NVIDIA, "Train with mixed precision")."""


def takes_tensor_cores(layers: Sequence[Layer], batch_size: int) -> NDArray[np.bool_]:
    """Return which layers have products that tensor cores take in fp16 and bf16, boolean of shape (layers,).

    These are convolutions with input and output channels per group that are multiples of 8; linear layers and other
    products with three such sizes; attention with such heads. Newer libraries (cuBLAS 11, cuDNN 7.6.3) pad other sizes
    and lose the padded part.
    """
    return np.array([_fits_tensor_cores(layer, batch_size) for layer in layers], dtype=bool)


def _fits_tensor_cores(layer: Layer, batch_size: int) -> bool:
    sizes: tuple[int, ...]
    if is_convolution(layer):
        sizes = (layer.weights[0][0] // layer.attributes.get("groups", 1), layer.weights[0][1])
    elif is_attention(layer):
        sizes = (layer.inputs[0][-1], layer.inputs[2][-1])
    else:
        gemm = gemm_of(layer, "forward")
        if gemm is None:
            return False
        rows = gemm.rows * batch_size if gemm.grows == "rows" else gemm.rows
        sizes = (rows, gemm.columns, gemm.inner)
    return all(size % TENSOR_MULTIPLE == 0 for size in sizes)


def tensor_core_notes(
    layers: Sequence[Layer], work: Work, on_tensor_cores: NDArray[np.bool_], model: TimeModel
) -> list[str]:
    """Return the notes about layers that tensor cores do not take in mixed precision; the mask is by layer."""
    macs = work.column("macs", "forward").sum(axis=0)
    total = int(macs.sum())
    other_names = [layer.name for layer, taken, number in zip(layers, on_tensor_cores, macs) if number and not taken]
    if not total or not other_names:
        return ["mixed precision: every product takes the tensor cores"]
    names = ", ".join(other_names[:3]) + (", ..." if len(other_names) > 3 else "")
    note = f"mixed precision: {float(macs[on_tensor_cores].sum()) / total:.1%} of the products take the tensor cores"
    note += f", {len(other_names)} layers do not (sizes that are not multiples of {TENSOR_MULTIPLE}: {names})"
    if model.label:  # the measurements that it was fitted to included such layers
        note += "; the calibration includes their cost"
    return [note]

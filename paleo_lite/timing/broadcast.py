"""Times of many configurations at once, with the formulas of `predict` broadcast over layers x configurations.

The counts of a layer depend on network, phase and batch size, and are affine in the batch size; the rates depend on
device, precision and calibration. A `CaseStack` concatenates the entries of several networks and phases, with identical
layers merged. `CaseStack.at_batch_sizes` adds an axis of batch sizes, and `TimeModel.evaluate_many` times the result on
a machine.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import msgspec
import numpy as np

from ..counting import Layer, Work
from ..counting.kinds import class_of
from ..counting.kinds.products import MATRIX_CLASSES
from ..counting.recurrent import count_gradients, is_looped
from ..counting.work import COLUMNS, GENERATION_PHASES, PASSES, passes_of
from ..errors import BadValue
from .features import (
    CLASS_INDEX,
    PASS_NUMBERS,
    UPDATE,
    Features,
    GroupSums,
    are_products,
    form_of,
    inverse_keys,
    padding_and_tiles,
)
from .parameters import StepPlan, Steps, plan_steps, prepare_steps

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
    Ints = NDArray[np.int64]


class Case(NamedTuple):
    """A network in a phase, to be timed at several batch sizes and on several devices."""

    layers: Sequence[Layer]  # layers of the network
    work: Work  # counts of the layers
    phase: str  # one of `paleo_lite.counting.PHASES`
    # Piece of the forward and backward pass that each layer belongs to, counted from 0, such as a bucket of
    # gradients. Empty for a single piece.
    pieces: Sequence[int] = ()

    @property
    def pieces_per_pass(self) -> int:
        """Number of pieces of the forward pass, and of the backward pass."""
        return 1 + max(self.pieces, default=0)


class Passes(NamedTuple):
    """Seconds of the passes of a case. Their sum is the step without the overhead of a time model."""

    forward_s: Floats  # seconds of each piece of the forward pass; shape (pieces, batch sizes)
    update_s: Floats  # seconds of the update; shape (batch sizes,)
    backward_s: Floats  # likewise of the backward pass


class CaseStack(msgspec.Struct, frozen=True, eq=False):
    """The entries of several cases, concatenated."""

    cases: int  # number of cases
    run: Ints  # case of each entry; shape (entries,)
    # Piece of each entry. Pieces are numbered over all cases: for each case its forward pieces, its update, and
    # its backward pieces; shape (entries,).
    piece: Ints
    first_piece: Ints  # number of the first piece of each case, and the total number of pieces; shape (cases + 1,)
    # FLOPs, bytes and kernels are ``fixed + batch size * per_sample``, summed over merged layers; shape (3,
    # entries).
    fixed: Floats
    per_sample: Floats
    called: NDArray[np.bool_]  # entries whose kernels the framework launches, see `Features.calls`; shape (entries,)
    gradients: Floats  # parameter tensors for which the host handles a gradient; shape (entries,)
    # As in `Features`; shape (entries,).
    work_class: Ints
    pass_number: Ints
    wide: NDArray[np.bool_]  # products in 16 bits in a narrower precision, as in `Work.wide`; shape (entries,)
    # As in `Features`; shape (entries,).
    update_products: Floats
    inverse_keys: Floats
    # Merged layers that may find their input in a cache: none of a step of generation; shape (entries,).
    kept_layers: Floats
    weights: Floats  # parameters of the merged layers; shape (entries,)
    # A layer and a pass of each entry, which determine the sizes of its matrix product.
    products: tuple[tuple[Layer, str], ...]
    plan: StepPlan  # assignment of entries to steps

    def at_batch_sizes(self, batch_sizes: Ints) -> BatchedStack:
        """Return all entries at several batch sizes; raise BadValue if one is below 1, or the counts overflow."""
        smallest, largest = int(batch_sizes.min()), int(batch_sizes.max())
        if smallest < 1 or self.per_sample.max(initial=0) * largest > 2.0**62:
            raise BadValue(f"batch sizes must be >= 1 and small enough for 64-bit counts (got {smallest} to {largest})")
        flops, moved, kernels = (
            fixed[:, None] + per_sample[:, None] * batch_sizes for fixed, per_sample in zip(self.fixed, self.per_sample)
        )
        has_constant_kernels = not self.per_sample[2].any()
        if has_constant_kernels:  # the usual case: one column serves all batch sizes
            kernels = kernels[:, :1]
        padding, tiles = np.ones_like(flops), np.full_like(flops, np.inf)
        for entry in np.flatnonzero(are_products(self.work_class, self.pass_number)):
            padding[entry], tiles[entry] = padding_and_tiles(*self.products[entry], batch_sizes)
        features = Features(
            flops=flops,
            bytes=moved,
            kernels=kernels,
            calls=kernels * self.called[:, None],
            gradients=np.where(kernels > 0, self.gradients[:, None], 0.0),
            padding=padding,
            tiles=tiles,
            work_class=self.work_class[:, None],
            pass_number=self.pass_number[:, None],
            position=np.empty((0, 2), dtype=np.int64),
            wide=self.wide[:, None],
            update_products=self.update_products[:, None],
            inverse_keys=self.inverse_keys[:, None],
        )
        run = self.run[:, None]
        return BatchedStack(
            cases=self.cases,
            run=run,
            piece=self.piece[:, None],
            num_pieces=int(self.first_piece[-1]),
            features=features,
            steps=prepare_steps(features, run, self.cases, self.plan),
            kept_layers=self.kept_layers[:, None],
            weights=self.weights[:, None],
        )

    def passes_of(self, case: int, pieces_s: Floats) -> Passes:
        """Return the passes of a case, from the seconds of all pieces of all cases, shape (pieces, batch sizes)."""
        case_pieces_s = pieces_s[self.first_piece[case] : self.first_piece[case + 1]]
        pieces_per_pass = len(case_pieces_s) // 2
        return Passes(
            forward_s=case_pieces_s[:pieces_per_pass],
            update_s=case_pieces_s[pieces_per_pass],
            backward_s=case_pieces_s[pieces_per_pass + 1 :],
        )


class BatchedStack(NamedTuple):
    """Several cases at several batch sizes: everything that does not depend on the device."""

    cases: int  # number of cases
    # Case and piece of each entry; shape (entries, 1).
    run: Ints
    piece: Ints
    num_pieces: int  # total number of pieces
    features: Features  # features of shape (entries, batch sizes)
    steps: Steps  # result of `prepare_steps`
    # As in `CaseStack`; shape (entries, 1).
    kept_layers: Floats
    weights: Floats

    def sum_by_case(self, seconds: Floats) -> Floats:
        """Return the sums over the entries of each case, shape (cases, batch sizes)."""
        sums: Floats = self.steps.plan.by_step.sum(seconds)
        return sums

    def sum_by_piece(self, seconds: Floats) -> Floats:
        """Return the sums over the entries of each piece, shape (pieces, batch sizes)."""
        return GroupSums(self.num_pieces, self.piece).sum(seconds)


class _StackEntry(NamedTuple):
    """One entry of a `CaseStack` before it becomes a row of its arrays; see there."""

    run: int
    piece: int
    work_class: int
    pass_number: int
    num_gradients: int  # parameter tensors with a gradient, per layer
    is_wide: bool  # whether it is a product in 16 bits in a narrower precision
    multiplicity: int  # number of merged layers
    # For each of `COLUMNS`, the count per batch and per sample of one layer; shape (columns, 2).
    counts: NDArray[np.int64]
    product: tuple[Layer, str]  # one of the layers, and the pass
    is_kept: bool  # whether a cache may keep what it reads and writes


def stack_cases(cases: Sequence[Case]) -> CaseStack:
    """Concatenate the entries of several cases, with identical layers of a piece merged into one entry.

    Merging changes no time: every model times n identical layers as n times one of them.
    """
    entries: list[_StackEntry] = []
    first_piece = [0]
    for run, case in enumerate(cases):
        entries += _entries_of(case, run, first_piece[-1])
        first_piece.append(first_piece[-1] + 1 + 2 * case.pieces_per_pass)
    entries.sort(key=_sort_key)
    numbers = np.array([entry[:_NUMBERS] for entry in entries], dtype=np.int64).reshape(-1, _NUMBERS)
    run_of_entry, piece, work_class, pass_number, num_gradients, is_wide, multiplicity = numbers.T
    counts = np.array([entry.counts for entry in entries], dtype=np.float64).reshape(-1, len(COLUMNS), 2)
    flops, macs, bytes_read, bytes_written, kernels = (counts * multiplicity[:, None, None]).transpose(1, 2, 0)
    fixed, per_sample = np.stack([flops, bytes_read + bytes_written, kernels], axis=1)
    return CaseStack(
        cases=len(cases),
        run=run_of_entry,
        piece=piece,
        first_piece=np.array(first_piece, dtype=np.int64),
        fixed=fixed,
        per_sample=per_sample,
        called=np.array([not is_looped(entry.product[0]) for entry in entries], dtype=bool),
        gradients=(num_gradients * multiplicity).astype(np.float64),
        work_class=work_class,
        pass_number=pass_number,
        wide=is_wide.astype(bool),
        update_products=np.where(pass_number == UPDATE, 2.0 * macs[0], 0.0),
        inverse_keys=np.array([inverse_keys(entry.product[0]) for entry in entries], dtype=np.float64),
        kept_layers=np.array([entry.multiplicity * entry.is_kept for entry in entries], dtype=np.float64),
        weights=np.array([entry.multiplicity * entry.product[0].parameters for entry in entries], dtype=np.float64),
        products=tuple(entry.product for entry in entries),
        plan=plan_steps(work_class[:, None], pass_number[:, None], run_of_entry[:, None], len(cases)),
    )


_NUMBERS = 1 + _StackEntry._fields.index("multiplicity")
"""Fields of an entry that are numbers, which are the first ones."""


def _sort_key(entry: _StackEntry) -> tuple[bool, tuple[int, ...]]:
    """Return a key that puts products first, so that a slice selects them (`StepPlan.products`)."""
    is_product = entry.work_class < len(MATRIX_CLASSES) and entry.pass_number < UPDATE
    return not is_product, (entry.run, entry.piece, entry.work_class, entry.pass_number)


def _entries_of(case: Case, run: int, first_piece: int) -> list[_StackEntry]:
    """Return the entries of a case, given its index and the number of its first piece."""
    layers, work, phase, pieces = case
    work_classes = [CLASS_INDEX[class_of(layer)] for layer in layers]
    merged: dict[tuple[object, ...], _StackEntry] = {}
    update_piece = first_piece + case.pieces_per_pass
    for pass_name in passes_of(phase):
        pass_index = PASSES.index(pass_name)
        counts = np.stack([work.fixed[:, pass_index], work.per_sample[:, pass_index]]).T  # (layers, columns, 2)
        first_of_pass = update_piece + 1 if pass_name.startswith("backward") else first_piece
        has_kernel = counts[:, COLUMNS.index("kernels")].any(axis=1)  # other layers are fused into a kernel
        for index in np.flatnonzero(has_kernel).tolist():
            layer, work_class = layers[index], work_classes[index]
            is_update = pass_name == "update"
            is_wide = work.wide is not None and pass_name == "inference" and bool(work.wide[index])
            piece = update_piece if is_update else first_of_pass + (pieces[index] if pieces else 0)
            num_gradients = count_gradients(layer) if pass_name == "backward_weight" else 0
            # The form matters only for products: `padding_and_tiles` depends on it.
            form = () if is_update or work_class >= len(MATRIX_CLASSES) else form_of(layer)
            key = (
                piece, work_class, pass_name, num_gradients, is_wide, counts[index].tobytes(), form, is_looped(layer),
                layer.parameters,
            )  # fmt: skip
            multiplicity = merged[key].multiplicity + 1 if key in merged else 1
            merged[key] = _StackEntry(
                run=run,
                piece=piece,
                work_class=work_class,
                pass_number=PASS_NUMBERS[pass_name],
                num_gradients=num_gradients,
                is_wide=is_wide,
                multiplicity=multiplicity,
                counts=counts[index],
                product=(layer, pass_name),
                is_kept=phase not in GENERATION_PHASES,
            )
    return list(merged.values())


def equivalence_classes(layers: Sequence[Layer], work: Work) -> list[int]:
    """Return for each layer the index of its equivalence class: layers that every model times identically in every
    pass."""
    counts = np.stack([work.fixed, work.per_sample])
    index_of_class: dict[tuple[object, ...], int] = {}
    indices = []
    for position, layer in enumerate(layers):
        work_class = CLASS_INDEX[class_of(layer)]
        form = form_of(layer) if work_class < len(MATRIX_CLASSES) else ()
        key = work_class, count_gradients(layer), form, is_looped(layer), counts[..., position].tobytes()
        indices.append(index_of_class.setdefault(key, len(index_of_class)))
    return indices


def keep_freed_memory() -> None:
    """Make the C library keep freed memory, because blocks of the same size are allocated repeatedly.

    glibc returns the top of the heap to the kernel whenever more than 128 KiB of it are free, and the resulting page
    faults take three times as long as the arithmetic. After a larger block has been freed, glibc keeps twice its size
    (see M_MMAP_THRESHOLD in mallopt(3)). With other C libraries this has no effect.
    """
    block = np.empty(2**21)
    del block

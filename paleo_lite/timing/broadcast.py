"""One broadcast over arrays (layers x configurations): the times of `predict`, for many configurations at once.

What a layer computes and moves depends on network, phase and batch size, and is affine in the batch; what a device
offers depends on device, precision and calibration. A `Stack` holds the first for several networks and phases as one
long column of entries, layers that are alike merged; `Stack.at` lays all batch sizes beside it, and
`TimeModel.evaluate_many` a machine against both, by the formulas of one prediction.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import msgspec
import numpy as np

from ..counting import Layer, Work
from ..counting.kinds import class_of
from ..counting.kinds.products import MATRIX_CLASSES
from ..counting.work import COLUMNS, PASSES, passes_of
from ..errors import BadValue
from .calibrated import StepPlan, Steps, plan_of, steps_of
from .features import CLASS_PLACES, PARTS, Features, Sums, sizes_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
    Ints = NDArray[np.int64]


class Case(NamedTuple):
    """A network's layers and work in a phase: one whole-network prediction for each batch size and device.

    `pieces` says of each layer to which piece of forward and backward pass it belongs, from 0; without it there is one.
    """

    layers: Sequence[Layer]
    work: Work
    phase: str
    pieces: Sequence[int] = ()

    @property
    def many(self) -> int:
        """How many pieces each of the two passes has."""
        return 1 + max(self.pieces, default=0)


class Passes(NamedTuple):
    """Seconds of a case: of its update, shape (batch sizes,), and of each piece of its forward and backward pass, shape
    (pieces, batch sizes); together the step without a model's overhead."""

    forward_s: Floats
    update_s: Floats
    backward_s: Floats


class Stack(msgspec.Struct, frozen=True, eq=False):
    """The entries of several cases, one after the other.

    Attributes
    ----------
    run : ndarray of int, shape (entries,)
        The case of each entry.
    piece : ndarray of int, shape (entries,)
        The piece of each entry: of all cases together, each case's forward pieces, update and backward pieces in turn.
    first_piece : ndarray of int, shape (cases + 1,)
        Where each case's pieces begin.
    fixed, per_sample : ndarray, shape (3, entries)
        FLOPs, bytes and kernels: ``fixed + batch size * per_sample``; of merged entries the sums.
    gradients : ndarray, shape (entries,)
        Parameter tensors whose gradient the host hands over.
    work_class, part : ndarray of int, shape (entries,)
        As in `Features`.
    products : tuple of (Layer, str)
        A layer and pass of each entry: what says the size of its matrix product.
    plan : StepPlan
        How the entries make whole steps.
    """

    cases: int
    run: Ints
    piece: Ints
    first_piece: Ints
    fixed: Floats
    per_sample: Floats
    gradients: Floats
    work_class: Ints
    part: Ints
    products: tuple[tuple[Layer, str], ...]
    plan: StepPlan

    def at(self, batch_sizes: Ints) -> Laid:
        """All entries at some batch sizes.

        Raises
        ------
        BadValue
            If a batch size is below 1 or overflows the counts.
        """
        least, most = int(batch_sizes.min()), int(batch_sizes.max())
        if least < 1 or self.per_sample.max(initial=0) * most > 2.0**62:
            raise BadValue(f"batch sizes from {least} to {most} are below 1 or overflow the counts")
        flops, moved, kernels = (
            fixed[:, None] + per_sample[:, None] * batch_sizes for fixed, per_sample in zip(self.fixed, self.per_sample)
        )
        if not self.per_sample[2].any():  # as almost always: one column does for all batch sizes
            kernels = kernels[:, :1]
        padding, tiles = np.ones_like(flops), np.full_like(flops, np.inf)
        for entry in np.flatnonzero((self.work_class < len(MATRIX_CLASSES)) & (self.part < 3)):
            padding[entry], tiles[entry] = sizes_of(*self.products[entry], batch_sizes)
        features = Features(
            flops=flops,
            bytes=moved,
            kernels=kernels,
            gradients=np.where(kernels > 0, self.gradients[:, None], 0.0),
            padding=padding,
            tiles=tiles,
            work_class=self.work_class[:, None],
            part=self.part[:, None],
            place=np.empty((0, 2), dtype=np.int64),
        )
        run = self.run[:, None]
        pieces = (self.piece[:, None], int(self.first_piece[-1]))
        return Laid(self.cases, run, pieces, features, steps_of(features, run, self.cases, self.plan))

    def passes_of(self, case: int, pieces_s: Floats) -> Passes:
        """The passes of a case among the seconds of all pieces."""
        own = pieces_s[slice(*self.first_piece[case : case + 2])]
        half = len(own) // 2
        return Passes(own[:half], own[half], own[half + 1 :])


class Laid(NamedTuple):
    """Several cases at several batch sizes: all that does not depend on the device.

    `features` have the shape (entries, batch sizes), `run` (entries, 1); `pieces` are the piece of each entry,
    (entries, 1), and how many there are.
    """

    cases: int
    run: Ints
    pieces: tuple[Ints, int]
    features: Features
    steps: Steps

    def by_case(self, seconds: Floats) -> Floats:
        """Sums of the entries of each case, shape (cases, batch sizes)."""
        sums: Floats = self.steps.plan.by_step.of(seconds)
        return sums

    def by_piece(self, seconds: Floats) -> Floats:
        """Sums of the entries of each piece, shape (pieces, batch sizes)."""
        return Sums(self.pieces[1], self.pieces[0]).of(seconds)


class _Entry(NamedTuple):
    """One entry while it is put together; the numbers first, which become columns."""

    run: int
    piece: int
    work_class: int
    part: int
    tensors: int
    alike: int
    counts: NDArray[np.int64]
    product: tuple[Layer, str]


def stack(cases: Sequence[Case]) -> Stack:
    """The entries of several cases; what is alike within a piece of a case becomes one entry with the sums.

    That changes no time: n alike layers take n times as long as one of them, by every model.
    """
    entries: list[_Entry] = []
    first_piece = [0]
    for run, case in enumerate(cases):
        entries += _entries(case, run, first_piece[-1])
        first_piece.append(first_piece[-1] + 1 + 2 * case.many)
    # Products first: what only they have is computed of a slice.
    entries.sort(key=lambda entry: (entry.work_class >= len(MATRIX_CLASSES) or entry.part == 3, entry[:4]))
    numbers = np.array([entry[:6] for entry in entries], dtype=np.int64).reshape(-1, 6)
    run, piece, classes, part, tensors, alike = numbers.T
    counts = np.array([entry.counts for entry in entries], dtype=np.float64).reshape(-1, len(COLUMNS), 2)
    flops, _, read, written, kernels = (counts * alike[:, None, None]).transpose(1, 2, 0)
    both = np.stack([flops, read + written, kernels], axis=1)
    products = tuple(entry.product for entry in entries)
    gradients = (tensors * alike).astype(np.float64)
    first = np.array(first_piece, dtype=np.int64)
    plan = plan_of(classes[:, None], part[:, None], run[:, None], len(cases))
    return Stack(len(cases), run, piece, first, both[0], both[1], gradients, classes, part, products, plan)


def _entries(case: Case, run: int, first_piece: int) -> list[_Entry]:
    layers, work, phase, pieces = case
    classes = [CLASS_PLACES[class_of(layer)] for layer in layers]
    merged: dict[tuple[object, ...], _Entry] = {}
    for part in passes_of(phase):
        place = PASSES.index(part)
        counts = np.stack(
            [work.fixed[:, place], work.per_sample[:, place]]
        ).T  # (layers, columns, fixed and per sample)
        first = first_piece + (1 + case.many) * part.startswith("backward")
        for index in np.flatnonzero(counts[:, COLUMNS.index("kernels")].any(axis=1)).tolist():  # others are fused away
            layer = layers[index]
            piece = first_piece + case.many if part == "update" else first + (pieces[index] if pieces else 0)
            tensors = len(layer.weights) if part == "backward_weight" else 0
            # What `sizes_of` may look at, where it looks at all.
            form = () if part == "update" or classes[index] >= len(MATRIX_CLASSES) else _form(layer)
            key = (piece, classes[index], part, tensors, counts[index].tobytes(), form)
            same = merged.get(key)
            merged[key] = _Entry(
                run, piece, classes[index], PARTS[part], tensors, same.alike + 1 if same else 1, counts[index],
                (layer, part),
            )  # fmt: skip
    return list(merged.values())


def alike(layers: Sequence[Layer], work: Work) -> list[int]:
    """Of each layer, from 0, the group of those that take as long as it in every pass, by every model."""
    counts, groups = np.stack([work.fixed, work.per_sample]), dict[tuple[object, ...], int]()
    numbers = []
    for place, layer in enumerate(layers):
        of_class = CLASS_PLACES[class_of(layer)]
        form = _form(layer) if of_class < len(MATRIX_CLASSES) else ()
        key = of_class, len(layer.weights), form, counts[..., place].tobytes()
        numbers.append(groups.setdefault(key, len(groups)))
    return numbers


def _form(layer: Layer) -> tuple[object, ...]:
    """All of a layer but its name and place."""
    return layer.kind, layer.inputs, layer.outputs, layer.weights, repr(sorted(layer.attributes.items()))


def keep_memory() -> None:
    """Tell the C library to keep freed memory, as blocks of the same size come again and again.

    glibc hands the top of the heap back to the kernel whenever more than 128 KiB of it are free, and the page faults
    that follow take three times as long as the arithmetic; once a larger block was freed it keeps twice as much (see
    M_MMAP_THRESHOLD in mallopt(3)). Elsewhere this does nothing.
    """
    block = np.empty(2**21)
    del block

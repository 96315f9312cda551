"""What the operations of one iteration compute and move: the profiler's counts, and the rules' where it has none."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from ..counting import MATRIX_KINDS
from .parameters import UNKNOWN, Counted, count_operation, output_shape
from .runs import Runs, Signature

if TYPE_CHECKING:
    from numpy.typing import NDArray


class Missing(msgspec.Struct, frozen=True):
    """Time of an iteration in operations whose FLOPs neither the profiler nor a rule counts."""

    op: str
    time_s: float
    share: float


class Run(NamedTuple):
    """A run of the sampled iteration.

    Attributes
    ----------
    signature : Signature
    part : int
        As the caller numbers the parts of an iteration.
    duration_ns : float
    cost, profiler : Counted
        What it takes as far as anybody knows, and what the profiler counted of it.
    """

    signature: Signature
    part: int
    duration_ns: float
    cost: Counted
    profiler: Counted


def count_sample(runs: Runs, table: NDArray[Any], forward: NDArray[Any], parts: list[int]) -> list[Run]:
    """The runs of one iteration with FLOPs and bytes.

    Parameters
    ----------
    runs : Runs
        Of the whole profile.
    table : structured ndarray
        Those of the iteration, in their order.
    forward : ndarray of bool, shape (runs of the iteration,)
        Which are of the forward pass.
    parts : list of int
        The part of the iteration that each belongs to.
    """
    signatures = [runs.signatures[place] for place in table["signature"].tolist()]
    given = _given([signature for signature, is_forward in zip(signatures, forward) if is_forward])
    known: dict[tuple[Signature, int], Counted] = {}
    sample = []
    fields = ("rows", "duration_ns", "flops", "bytes", "flops_rows", "bytes_rows", "mix")
    for entry, part, signature in zip(zip(*(table[name].tolist() for name in fields)), parts, signatures):
        rows, duration_ns, flops, moved, flops_rows, bytes_rows, mix = entry
        key = (signature, mix)
        if key not in known:
            known[key] = _count(signature, runs.mixes[mix], given.get((signature.op, signature.params)))
        profiler = Counted(flops if flops_rows else None, moved if bytes_rows else None)
        whole = Counted(flops if flops_rows == rows else None, moved if bytes_rows == rows else None)
        cost = _filled(whole, known[key], signature.op in MATRIX_KINDS)
        sample.append(Run(signature, part, duration_ns, cost, profiler))
    return sample


def list_missing(sample: list[Run], total_ns: float) -> list[Missing]:
    """What has no FLOPs, by operation (by kernel where none is named), longest first; shares of `total_ns`."""
    times: dict[str, float] = {}
    for run in sample:
        if run.cost.flops is None:
            name = run.signature.op or run.signature.kernel or "unnamed"
            times[name] = times.get(name, 0.0) + run.duration_ns
    longest = sorted(times.items(), key=lambda item: -item[1])
    return [Missing(name, time * 1e-9, time / total_ns) for name, time in longest]


def _given(forward: list[Signature]) -> dict[tuple[str | None, str | None], Any]:
    """For every pooling of the forward pass the shape that it gave, which is what a later operation read."""
    shapes: dict[tuple[str | None, str | None], Any] = {}
    for place, signature in enumerate(forward):
        if "pool" in (signature.op or "") and (signature.op, signature.params) not in shapes:
            later = (output_shape(s.op or "", s.params or "") for s in forward[place + 1 : place + 5])
            shapes[signature.op, signature.params] = next((shape for shape in later if shape), None)
    return shapes


def _count(signature: Signature, mix: dict[str, int], after: Any) -> Counted:
    if signature.op is None or signature.params is None:
        return UNKNOWN
    one = count_operation(signature.op, signature.params, signature.direction, mix, after)
    # Operations alike that follow each other are one run: each brought its rarest kernel once. Not so convolutions,
    # which other layers part, and whose algorithms launch a kernel several times for parts of the batch.
    times = 1 if signature.op.startswith("conv") else min(mix.values())
    return Counted(*(None if value is None else value * times for value in (one.flops, one.bytes)))


def _filled(profiler: Counted, ruled: Counted, once: bool) -> Counted:
    """The profiler's count where it has one for every kernel; else the rules'; None where neither has.

    What is counted `once` per operation, however many kernels run it, comes from the rules where they have one.
    """
    first, second = (ruled, profiler) if once else (profiler, ruled)
    return Counted(
        second.flops if first.flops is None else first.flops, second.bytes if first.bytes is None else first.bytes
    )

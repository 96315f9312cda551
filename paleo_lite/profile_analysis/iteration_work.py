"""What the operations of one iteration compute and move: the profiler's counts, and the rules' where it has none."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from ..counting import MATRIX_KINDS
from ..profiles.names import classify
from .evidence import dominant_precision
from .parameters import (
    FLOAT_PRECISIONS,
    UNKNOWN,
    CountedOperation,
    count_printed,
    input_shape,
    is_convolution,
    is_traced,
    read_call,
    shapes_in,
)
from .runs import Runs, Signature
from .traced_operators import count_traced

if TYPE_CHECKING:
    from numpy.typing import NDArray


OUTSIDE_MODULES = "outside of all modules and ranges"
"""Where time is summed by module, the rest."""

_MOSTLY = 0.9
_SHAPES = 4  # of an operation's tensors are shown
_COMPUTES_NOTHING = ("memcpy", "memset", "communication")


class UncountedOperation(msgspec.Struct, frozen=True):
    """Time of an iteration in operations whose FLOPs neither the profiler nor a rule counts."""

    op: str
    time_s: float
    share: float


class OperatorWork(msgspec.Struct, frozen=True):
    """What one operation takes of an iteration, all its executions together.

    Attributes
    ----------
    op : str
        Its name; the kernel's where no operation is named. Or what else time was to be summed by (`BY`).
    calls : int
        Runs: executions, where the profiler tells them apart.
    time_s, share : float
        Summed kernel time, and its share of the iteration's.
    flops, bytes : float or None
        None where they are unknown of any of its calls.
    precision : str or None
        That all of its products are in, as far as a trace says.
    """

    op: str
    calls: int
    time_s: float
    share: float
    flops: float | None
    bytes: float | None
    precision: str | None = None


class CountedRun(NamedTuple):
    """A run of the sampled iteration.

    Attributes
    ----------
    part : int
        As the caller numbers the parts of an iteration.
    cost, profiler : CountedOperation
        What it takes as far as anybody knows, and what the profiler counted of it.
    kernels : dict of str to int
        By name how many.
    layer : str or None
        The module or range that it is in.
    """

    signature: Signature
    part: int
    duration_ns: float
    cost: CountedOperation
    profiler: CountedOperation
    kernels: Mapping[str, int] = MappingProxyType({})
    layer: str | None = None


def count_sample(runs: Runs, chosen: NDArray[Any], parts: list[int], forward: int) -> list[CountedRun]:
    """The runs of one iteration with FLOPs and bytes.

    Parameters
    ----------
    runs : Runs
        Of the whole profile.
    chosen : ndarray of int
        Places of those of the iteration, in their order.
    parts : list of int
        The part of the iteration that each belongs to.
    forward : int
        That of the forward pass.
    """
    numbers = runs.table["signature"][chosen].tolist()
    signatures = [runs.signatures[number] for number in numbers]
    told = _told_beside(signatures, [part == forward for part in parts])
    known: dict[tuple[int, int, Any], CountedOperation] = {}
    sample = []
    fields = ("rows", "duration_ns", "flops", "bytes", "flops_rows", "bytes_rows", "mix", "execution", "layer")
    seen: set[int] = set()
    entries = zip(*(runs.table[name][chosen].tolist() for name in fields))
    for entry, part, number, after in zip(entries, parts, numbers, told):
        rows, duration_ns, flops, moved, flops_rows, bytes_rows, mix, execution, layer = entry
        signature, key = runs.signatures[number], (number, mix, after)
        ruled = known.get(key)
        if ruled is None:
            ruled = known[key] = _count(signature, runs.mixes[mix], after, execution >= 0)
        if execution in seen and ruled.flops is not None:  # its kernels lie apart: what it takes is counted once
            ruled = CountedOperation(0.0, None if ruled.bytes is None else 0.0)
        elif execution >= 0:
            seen.add(execution)
        profiler, cost = UNKNOWN, ruled
        if flops_rows or bytes_rows:
            profiler = CountedOperation(flops if flops_rows else None, moved if bytes_rows else None)
            whole = CountedOperation(flops if flops_rows == rows else None, moved if bytes_rows == rows else None)
            # The profiler's count where it has one for every kernel, else the rules'; the other way round for what is
            # counted once per operation, however many kernels run it.
            first, second = (ruled, whole) if signature.op in MATRIX_KINDS else (whole, ruled)
            cost = CountedOperation(
                second.flops if first.flops is None else first.flops,
                second.bytes if first.bytes is None else first.bytes,
                ruled.precision,
            )
        inside = runs.layers[layer] if layer >= 0 else None
        sample.append(CountedRun(signature, part, duration_ns, cost, profiler, runs.mixes[mix], inside))
    return sample


def summarise_work(sample: list[CountedRun], by: str) -> tuple[float, dict[str, Any]]:
    """The share of a sample's time that computes, and its work as `Steady` has it, time summed by one of `BY`."""
    total_ns = sum(run.duration_ns for run in sample)
    compute_ns = flops_ns = bytes_ns = 0.0
    missing: dict[str, float] = {}
    in_precision: dict[str, float] = {}
    for run in sample:
        cost = run.cost
        if cost.flops is None:
            name = _name(run.signature)
            missing[name] = missing.get(name, 0.0) + run.duration_ns
        else:
            flops_ns += run.duration_ns
        if cost.bytes is not None:
            bytes_ns += run.duration_ns
        if cost.flops:
            compute_ns += run.duration_ns
            if cost.precision is not None:
                in_precision[cost.precision] = in_precision.get(cost.precision, 0.0) + cost.flops
    most = max(in_precision, key=lambda name: in_precision[name], default="")
    is_most = most and in_precision[most] >= _MOSTLY * sum(in_precision.values())
    longest = sorted(missing.items(), key=lambda item: -item[1])
    whole = total_ns or 1.0  # where nothing took time, no share of it is known
    return compute_ns / whole, {
        "flops": known_sum(run.cost.flops for run in sample) or None,  # where only copies are counted, nothing is
        "bytes": known_sum(run.cost.bytes for run in sample),
        "flops_covered": flops_ns / whole,
        "bytes_covered": bytes_ns / whole,
        "profiler_flops": known_sum(run.profiler.flops for run in sample),
        "profiler_bytes": known_sum(run.profiler.bytes for run in sample),
        "precision": most if is_most else None,
        "operators": _operators(sample, whole, by),
        "missing": [UncountedOperation(name, time_ns * 1e-9, time_ns / whole) for name, time_ns in longest],
    }


def _operators(sample: list[CountedRun], total_ns: float, by: str) -> list[OperatorWork]:
    """All operations (kernels where none is named), or what else of `BY`, longest first; shares of `total_ns`."""
    groups: dict[str, list[CountedRun]] = {}
    for run in sample:
        groups.setdefault(_NAMERS[by](run), []).append(run)
    operators = []
    for name, runs in groups.items():
        time_ns = sum(run.duration_ns for run in runs)
        flops, moved = [run.cost.flops for run in runs], [run.cost.bytes for run in runs]
        precisions = {run.cost.precision for run in runs if run.cost.precision}
        operators.append(
            OperatorWork(
                name,
                len(runs),
                time_ns * 1e-9,
                time_ns / total_ns,
                None if None in flops else known_sum(flops),
                None if None in moved else known_sum(moved),
                precisions.pop() if len(precisions) == 1 else None,
            )
        )
    return sorted(operators, key=lambda operator: (-operator.time_s, operator.op))


def name_with_shapes(op: str, params: str | None) -> str:
    """An operation's name with the shapes and the types of what it is given."""
    if not params or not is_traced(params):
        return f"{op} {params or ''}".rstrip()
    call = read_call(op, params)
    if call is None:
        return op
    shapes = ["x".join(map(str, shape)) or "scalar" for shape in call.tensors]
    types = dict.fromkeys(FLOAT_PRECISIONS[kind] for kind in call.types if kind in FLOAT_PRECISIONS)
    more = [f"and {len(shapes) - _SHAPES} more"] if len(shapes) > _SHAPES else []
    return " ".join([op, *shapes[:_SHAPES], *more, *types])


def _by_kernels(run: CountedRun) -> str:
    return " + ".join(sorted({classify(name).name for name in run.kernels})) or "unnamed"


_NAMERS: dict[str, Callable[[CountedRun], str]] = {
    "op": lambda run: _name(run.signature),
    "shape": lambda run: name_with_shapes(_name(run.signature), run.signature.params if run.signature.op else None),
    "module": lambda run: run.layer or OUTSIDE_MODULES,
    "kernel": _by_kernels,
}


def known_sum(values: Iterable[float | None]) -> float | None:
    """The sum of what is known; None where nothing is."""
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def _name(signature: Signature) -> str:
    return signature.op or classify(signature.kernel or "unnamed").name


def _told_beside(signatures: list[Signature], is_forward: list[bool]) -> list[Any]:
    """For every operation the shape that others tell of it, None where they do not.

    What a pooling or convolution of the forward pass gave, a later operation read. In traces of 2021 the gradient of a
    convolution's weight was an operator that is given no weight: it follows that of the input, which is; the first
    layer, which has none, is found by what it read and gave in the forward pass.
    """
    forward = [signature for signature, is_in in zip(signatures, is_forward) if is_in]
    given: dict[tuple[str | None, str | None], Any] = {}
    for index, (_, _, op, params, _) in enumerate(forward):
        if ("pool" in (op or "") or is_convolution(op)) and (op, params) not in given:
            later = (input_shape(s.op or "", s.params or "") for s in forward[index + 1 : index + 5])
            given[op, params] = next((shape for shape in later if shape), None)
    told = [given.get((signature.op, signature.params)) for signature in signatures]
    ends = ("convolution_backward_input", "convolution_backward_weight")
    gradients = [index for index, signature in enumerate(signatures) if (signature.op or "").endswith(ends)]
    weights: dict[tuple[Any, Any], Any] = {}
    for (op, params), output in given.items() if gradients else ():
        shapes = shapes_in(params or "") if is_convolution(op) else []
        if output and len(shapes) > 1:
            weights[shapes[0], output] = shapes[1]
    last: dict[Any, Any] = {}
    for index in gradients:
        shapes = shapes_in(signatures[index].params or "")
        if len(shapes) < 2:
            continue
        gradient, other = shapes[:2]
        if (signatures[index].op or "").endswith("input"):
            last[gradient] = told[index] = other
        else:
            told[index] = last.pop(gradient, None) or weights.get((other, gradient))
    return told


def _count(signature: Signature, mix: dict[str, int], after: Any, alone: bool) -> CountedOperation:
    """What a run takes; `alone` is one execution of its operation, and no other."""
    if all(classify(name).label in _COMPUTES_NOTHING for name in mix):
        return CountedOperation(0.0)
    if signature.op is None or signature.params is None:
        return UNKNOWN
    if is_traced(signature.params):
        one = _traced(signature.op, signature.params, after)
    else:
        one = _printed(signature.op, signature.params, signature.direction, frozenset(mix), after)
    if one.precision == "fp32" and dominant_precision(mix) == "tf32":
        one = msgspec.structs.replace(one, precision="tf32")
    if alone:
        return one
    # Operations alike that follow each other are one run: each brought its rarest kernel once. Not so convolutions,
    # which other layers part, and whose algorithms launch a kernel several times for parts of the batch.
    times = 1 if signature.op.startswith("conv") else min(mix.values())
    flops, moved = (None if value is None else value * times for value in (one.flops, one.bytes))
    return CountedOperation(flops, moved, one.precision)


# A folder of profiles of one network asks of the same operations again and again.
_traced, _printed = lru_cache(2**12)(count_traced), lru_cache(2**12)(count_printed)

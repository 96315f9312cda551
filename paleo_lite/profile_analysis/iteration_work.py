"""FLOPs and bytes of the operations of one iteration, from the profiler's counts or from the counting rules."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from ..counting import MATRIX_KINDS
from ..profiles.names import CLASSES_WITHOUT_ARITHMETIC, classify, multiplies_matrices
from .contradictions import operand_precision, precision_in_names
from .parameters import (
    FLOAT_PRECISIONS,
    UNKNOWN,
    CountedOperation,
    count_printed,
    input_shape,
    is_convolution,
    is_traced,
    parse_parameters,
    read_call,
    shapes_in,
)
from .runs import Runs, Signature
from .traced_operators import count_traced

if TYPE_CHECKING:
    from numpy.typing import NDArray


OUTSIDE_MODULES = "outside of all modules and ranges"
"""Group of the time outside all modules, if time is summed by module."""

_MOSTLY = 0.9
_SHAPES = 4  # shapes shown per operation


class UncountedOperation(msgspec.Struct, frozen=True):
    """Time of an iteration in operations with FLOPs known neither from the profiler nor from a rule."""

    op: str
    time_s: float
    share: float


class OperatorWork(msgspec.Struct, frozen=True):
    """Time and work of all executions of one operation in an iteration."""

    op: str  # name of the operation, or of the kernel without an operation; or the name of another group (`GROUPINGS`)
    calls: int  # number of runs; executions if the profiler records them
    # Sum of kernel times, and its fraction of the iteration.
    time_s: float
    share: float
    # None if unknown for any of its calls.
    flops: float | None
    bytes: float | None
    precision: str | None = None  # common precision of its matrix products, if the profile records it
    kernels: tuple[str, ...] = ()  # distinct printed names of its kernels
    has_profiler_flops: bool = False  # whether the profiler counted FLOPs of any of its kernels


class CountedRun(NamedTuple):
    """A run of the sampled iteration."""

    signature: Signature
    part: int  # index of the part of the iteration, as numbered by the caller
    duration_ns: float
    # Best known work, and the count of the profiler.
    cost: CountedOperation
    profiler: CountedOperation
    kernels: Mapping[str, int]  # number of launches by kernel name
    layer: str | None  # enclosing module or range


def count_sample(runs: Runs, chosen: NDArray[Any], parts: list[int], forward: int) -> list[CountedRun]:
    """Return the runs of one iteration with FLOPs and bytes.

    `chosen` are the indices of its runs in `runs`, those of the whole profile, in order of time. `parts` has the part
    of the iteration of each run, of which `forward` is the number of the forward pass.
    """
    numbers = runs.table["signature"][chosen].tolist()
    signatures = [runs.signatures[number] for number in numbers]
    inferred_shapes = _infer_shapes(signatures, [part == forward for part in parts])
    counted: dict[tuple[int, int, Any], CountedOperation] = {}
    sample = []
    fields = ("rows", "duration_ns", "flops", "bytes", "flops_rows", "bytes_rows", "mix", "execution", "layer")
    executions: set[int] = set()
    entries = zip(*(runs.table[name][chosen].tolist() for name in fields))
    for entry, part, number, after in zip(entries, parts, numbers, inferred_shapes):
        rows, duration_ns, flops, moved, flops_rows, bytes_rows, mix, execution, layer = entry
        signature, key = runs.signatures[number], (number, mix, after)
        by_rule = counted.get(key)
        if by_rule is None:
            by_rule = counted[key] = _count(signature, runs.mixes[mix], after, execution >= 0)
        if execution in executions and by_rule.flops is not None:  # a later run of an execution that is already counted
            by_rule = CountedOperation(0.0, None if by_rule.bytes is None else 0.0)
        elif execution >= 0:
            executions.add(execution)
        profiler, cost = UNKNOWN, by_rule
        if flops_rows or bytes_rows:
            profiler = CountedOperation(flops if flops_rows else None, moved if bytes_rows else None)
            complete = CountedOperation(flops if flops_rows == rows else None, moved if bytes_rows == rows else None)
            # The profiler's count has priority if it covers every kernel. Matrix operations are the exception: pyprof
            # repeats their count for every kernel of the operation.
            first, second = (by_rule, complete) if signature.op in MATRIX_KINDS else (complete, by_rule)
            cost = CountedOperation(
                second.flops if first.flops is None else first.flops,
                second.bytes if first.bytes is None else first.bytes,
                by_rule.precision,
            )
        inside = runs.layers[layer] if layer >= 0 else None
        sample.append(CountedRun(signature, part, duration_ns, cost, profiler, runs.mixes[mix], inside))
    return sample


def summarise_work(sample: list[CountedRun], by: str) -> tuple[float, dict[str, Any]]:
    """Return the fraction of time in computing operations, and the work as fields of `SteadyIteration`."""
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
    longest = sorted(missing.items(), key=lambda item: -item[1])
    divisor_ns = total_ns or 1.0  # avoids a division by zero
    return compute_ns / divisor_ns, {
        "flops": known_sum(run.cost.flops for run in sample) or None,  # 0 means that only copies were counted
        "bytes": known_sum(run.cost.bytes for run in sample),
        "flops_covered": flops_ns / divisor_ns,
        "bytes_covered": bytes_ns / divisor_ns,
        "profiler_flops": known_sum(run.profiler.flops for run in sample),
        "profiler_bytes": known_sum(run.profiler.bytes for run in sample),
        "precision": _precision_of(in_precision, sample),
        "operators": _operators(sample, divisor_ns, by),
        "missing": [UncountedOperation(name, time_ns * 1e-9, time_ns / divisor_ns) for name, time_ns in longest],
    }


def _precision_of(in_precision: Mapping[str, float], sample: Sequence[CountedRun]) -> str | None:
    """Return the precision of most FLOPs, or without counted ones of most matrix kernels by their names."""
    if in_precision:
        main_precision = max(in_precision, key=lambda name: in_precision[name])
        is_dominant = in_precision[main_precision] >= _MOSTLY * sum(in_precision.values())
        return main_precision if is_dominant else None
    seconds: dict[str, float] = defaultdict(float)
    for run in sample:
        launches = sum(run.kernels.values())
        for name, count in run.kernels.items():
            seconds[name] += run.duration_ns * 1e-9 * count / launches
    return precision_in_names(seconds)


def _operators(sample: list[CountedRun], total_ns: float, by: str) -> list[OperatorWork]:
    """Return the work by group (one of `GROUPINGS`), longest first, with fractions of `total_ns`."""
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
                kernels=tuple(dict.fromkeys(name for run in runs for name in run.kernels)),
                has_profiler_flops=any(run.profiler.flops is not None for run in runs),
            )
        )
    return sorted(operators, key=lambda operator: (-operator.time_s, operator.op))


def name_with_shapes(op: str, params: str | None) -> str:
    """Return the name of an operation with the shapes and types of its inputs."""
    if not params or not is_traced(params):
        return f"{op} {params or ''}".rstrip()
    call = read_call(op, params)
    if call is None:
        return op
    shapes = ["x".join(map(str, shape)) or "scalar" for shape in call.tensors]
    types = dict.fromkeys(FLOAT_PRECISIONS[kind] for kind in call.types if kind in FLOAT_PRECISIONS)
    omitted = [f"and {len(shapes) - _SHAPES} more"] if len(shapes) > _SHAPES else []
    return " ".join([op, *shapes[:_SHAPES], *omitted, *types])


def _by_kernels(run: CountedRun) -> str:
    return " + ".join(sorted({classify(name).name for name in run.kernels})) or "unnamed"


_NAMERS: dict[str, Callable[[CountedRun], str]] = {
    "op": lambda run: _name(run.signature),
    "shape": lambda run: name_with_shapes(_name(run.signature), run.signature.params if run.signature.op else None),
    "module": lambda run: run.layer or OUTSIDE_MODULES,
    "kernel": _by_kernels,
}


def known_sum(values: Iterable[float | None]) -> float | None:
    """Return the sum of the values other than None; None if there are none."""
    present = [value for value in values if value is not None]
    return sum(present) if present else None


def _name(signature: Signature) -> str:
    return signature.op or classify(signature.kernel or "unnamed").name


def _infer_shapes(signatures: list[Signature], is_forward: list[bool]) -> list[Any]:
    """Return for every operation a shape that follows from other operations, or None.

    The output shape of a forward pooling or convolution is the input shape of a later operation. In traces of 2021 the
    operator for the weight gradient of a convolution has no weight among its arguments: the shape is taken from the
    preceding input gradient, or, for the first layer (which has no input gradient), from the forward pass.
    """
    forward = [signature for signature, is_in in zip(signatures, is_forward) if is_in]
    outputs: dict[tuple[str | None, str | None], Any] = {}
    for index, (_, _, op, params, _) in enumerate(forward):
        if ("pool" in (op or "") or is_convolution(op)) and (op, params) not in outputs:
            later = (input_shape(s.op or "", s.params or "") for s in forward[index + 1 : index + 5])
            outputs[op, params] = next((shape for shape in later if shape), None)
    inferred = [outputs.get((signature.op, signature.params)) for signature in signatures]
    ends = ("convolution_backward_input", "convolution_backward_weight")
    gradients = [index for index, signature in enumerate(signatures) if (signature.op or "").endswith(ends)]
    weights: dict[tuple[Any, Any], Any] = {}
    for (op, params), output in outputs.items() if gradients else ():
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
            last[gradient] = inferred[index] = other
        else:
            inferred[index] = last.pop(gradient, None) or weights.get((other, gradient))
    return inferred


def _count(signature: Signature, mix: dict[str, int], after: Any, is_single: bool) -> CountedOperation:
    """Count the work of a run; `is_single` means that the run is one execution of its operation."""
    work = _count_work(signature, mix, after, is_single)
    return msgspec.structs.replace(work, precision=_find_precision(signature, mix, work.precision))


def _find_precision(signature: Signature, mix: dict[str, int], traced: str | None) -> str | None:
    """Return the precision of the operands of a run's matrix products; None of other runs, and if it is not recorded.

    A PyTorch trace records their types; other profilers print them with the shapes, or the names of kernels tell them.
    """
    if not any(map(multiplies_matrices, mix)):
        return traced
    recorded = traced
    if recorded is None and signature.params is not None and not is_traced(signature.params):
        recorded = parse_parameters(signature.params).precision
    return operand_precision(recorded, precision_in_names(mix))


def _count_work(signature: Signature, mix: dict[str, int], after: Any, is_single: bool) -> CountedOperation:
    """Count the FLOPs and bytes of a run, and the precision that a PyTorch trace records."""
    if all(classify(name).label in CLASSES_WITHOUT_ARITHMETIC for name in mix):
        return CountedOperation(0.0)
    if signature.op is None or signature.params is None:
        return UNKNOWN
    if is_traced(signature.params):
        work = _traced(signature.op, signature.params, after)
    else:
        work = _printed(signature.op, signature.params, signature.direction, frozenset(mix), after)
    if is_single:
        return work
    # Consecutive equal operations form one run; the rarest kernel gives their number. Convolutions are an exception:
    # other layers lie between them, and some algorithms launch a kernel several times per operation.
    times = 1 if signature.op.startswith("conv") else min(mix.values())
    flops, moved = (None if value is None else value * times for value in (work.flops, work.bytes))
    return CountedOperation(flops, moved, work.precision)


# Profiles of one network repeat the same operations.
_traced, _printed = lru_cache(2**12)(count_traced), lru_cache(2**12)(count_printed)

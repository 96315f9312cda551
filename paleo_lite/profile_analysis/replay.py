"""A script that runs one operator of a trace again, with the shapes and types that the trace recorded.

The script is text made of numbers and checked names: nothing of the trace is run while it is written.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from typing import Any, NamedTuple

from ..errors import BadProfile, BadValue, UnknownName
from ..profiles.detect import Profile
from ..profiles.table import device_rows
from .parameters import decode_arguments, is_shape

_OPERATOR = re.compile(r"([a-z_][a-z0-9_]{0,63})::([A-Za-z_][A-Za-z0-9_]{0,99})")
_NUMBER = re.compile(r"-?\d{1,18}(?:\.\d{1,18})?(?:e-?\d{1,3})?|True|False")
_NUMBERS = re.compile(r"\[(?:-?\d{1,18}|True|False)?(?:, ?(?:-?\d{1,18}|True|False)){0,15}\]")

_TYPES = {
    "float": "float32", "double": "float64", "c10::Half": "float16", "c10::BFloat16": "bfloat16", "int": "int32",
    "long int": "int64", "long": "int64", "longint": "int64", "bool": "bool", "unsigned char": "uint8",
    "unsignedchar": "uint8", "signed char": "int8", "signedchar": "int8", "c10::Float8_e4m3fn": "float8_e4m3fn",
    "c10::Float8_e5m2": "float8_e5m2",
}  # fmt: skip
"""PyTorch's names of element types, by those that its profiler writes."""

_MOST_ELEMENTS = 2**36


class RecordedCalls(NamedTuple):
    """The calls of an operator with equal arguments."""

    operator: str  # as the trace names it, such as ``aten::mm``
    params: str  # shapes, types and numbers
    calls: int
    time_s: float  # of their kernels, of all calls


def recorded_calls(profiles: Iterable[Profile]) -> list[RecordedCalls]:
    """Return the calls of all operators of some profiles with their time on the device, the longest first.

    A call is an execution of an operator with all its kernels. Raise BadProfile if no operator has shapes.
    """
    seconds: dict[tuple[str, str], float] = {}
    executions: dict[tuple[str, str], set[tuple[int, Any]]] = {}
    for number, profile in enumerate(profiles):
        for batch in profile.batches(("category", "kernel", "op", "params", "duration_ns", "execution")):
            for row in device_rows(batch).to_pylist():
                if not row.get("op") or not row.get("params") or row["category"] != "kernel":
                    continue
                key = row["op"], row["params"]
                seconds[key] = seconds.get(key, 0.0) + row["duration_ns"] * 1e-9
                executions.setdefault(key, set()).add((number, row.get("execution")))
    if not seconds:
        raise BadProfile("no operator with shapes: record the trace with `record_shapes=True`")
    recorded = [RecordedCalls(*key, len(executions[key]), time_s) for key, time_s in seconds.items()]
    return sorted(recorded, key=lambda calls: (-calls.time_s, calls.operator, calls.params))


def replay_script(calls: Iterable[RecordedCalls], operator: str | None, source: str) -> str:
    """Return a Python script that runs an operator again and compares its time with the recorded one.

    Without a name it is the operator with most time that can be run. Raise UnknownName if no operator has the name, and
    BadValue if its arguments are not recorded completely.
    """
    calls = list(calls)
    if operator is None:
        for call in calls:
            try:
                return _script(call, source)
            except BadValue:
                continue  # the next one may have all its arguments
        raise BadValue(f"no operator of {source} has all its arguments: newer versions of PyTorch record them")
    named = [call for call in calls if operator in (call.operator, call.operator.removeprefix("aten::"))]
    if not named:
        raise UnknownName("operator", operator, {call.operator for call in calls})
    return _script(named[0], source)


def _script(call: RecordedCalls, source: str) -> str:
    match = _OPERATOR.fullmatch(call.operator)
    decoded = decode_arguments(call.params)
    if match is None or decoded is None:
        raise BadValue(f"the trace does not record the arguments of a PyTorch operator {call.operator[:100]!r}")
    library, name = match.groups()
    dims, types, numbers = decoded
    arguments = [
        _argument(call, dims[index], *(texts[index] if index < len(texts) else "" for texts in (types, numbers)))
        for index in range(len(dims))
    ]
    lines = "\n".join(f"    {argument}," for argument in arguments)
    microseconds = 1e6 * call.time_s / call.calls
    times = "once" if call.calls == 1 else f"{call.calls:,} times"
    title = (
        f"Run {call.operator} again, which {_printable(source)} recorded {times}: {microseconds:,.1f} us on the device"
    )
    return f'''"""{title} each."""

import time

import torch

device = "cuda" if torch.cuda.is_available() else "cpu"


def numbers(dtype, *shape):
    """Return random numbers of a type."""
    if dtype.is_floating_point:
        return torch.randn(shape, device=device).to(dtype)
    return torch.ones(shape, dtype=dtype, device=device)


arguments = [
{lines}
]
operator = torch.ops.{library}.{name}


def seconds_of(runs):
    """Return the seconds of some runs."""
    if device == "cuda":
        torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(runs):
        operator(*arguments)
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - start


seconds_of(3)
runs = max(3, min(1000, int(0.5 / max(seconds_of(1), 1e-6))))
print(f"{{1e6 * seconds_of(runs) / runs:.1f}} us per call on {{device}}, recorded {microseconds:.1f} us")
'''


def _argument(call: RecordedCalls, dims: Any, type_name: str, number: str) -> str:
    """Return the text of an argument; raise BadValue if it was not recorded."""
    dtype = _TYPES.get(type_name.replace("std::", "").strip())
    if is_shape(dims) and dtype is not None:
        if math.prod(dims) > _MOST_ELEMENTS:
            raise BadValue(f"{call.operator}: a tensor of {math.prod(dims):,} elements is too large to be made again")
        return f"numbers(torch.{dtype}{''.join(f', {size}' for size in dims)})"
    if isinstance(dims, list) and dims and all(is_shape(shape) for shape in dims) and type_name == "TensorList":
        raise BadValue(f"{call.operator}: the types of a list of tensors are not recorded")
    if _NUMBER.fullmatch(number) or _NUMBERS.fullmatch(number):
        return number.replace(" ", "").replace(",", ", ")
    if type_name == "" and number == "":
        return "None"
    raise BadValue(f"{call.operator}: argument of type {type_name[:40]!r} has no recorded value")


def _printable(text: str) -> str:
    return re.sub(r"[^\w.()+-]", "_", text)[:100]

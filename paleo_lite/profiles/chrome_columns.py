"""Columns of the events of a Chrome trace, as arrays: kinds, sizes, grids, counters and identifiers."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from .chrome_events import (
    CATEGORIES,
    DMA,
    LARGEST,
    MTIA,
    Args,
    Decoded,
    Whole,
    bad_event,
    counters_of,
)
from .json_stream import Elements
from .launches import (
    Integers,
)
from .names import communicates
from .ncu import counted_flops
from .table import encode_names, encode_text, from_numpy, to_numpy

ABSENT = -(2**63)
"""Marks an absent integer before the columns are built; no id or size is so low."""

_DIGITS = re.compile(r"-?\d{1,18}", re.ASCII)

KINDS = ("kernel", "memcpy", "memset", "communication", "cpu", "api", "marker")

CODES = {cat: code for code, cat in enumerate(CATEGORIES)}
"""Codes of the categories."""

_KIND_OF_CODE = np.array([KINDS.index(of) for of in CATEGORIES.values()], np.int8)
"""Kinds of events (indices in `KINDS`), by the codes of categories."""

KERNEL, MEMCPY, COMMUNICATION, CPU, API, MARKER = map(
    KINDS.index, ("kernel", "memcpy", "communication", "cpu", "api", "marker")
)

IS_ON_DEVICE = np.array(
    [of in ("kernel", "memcpy", "memset") or cat == "gpu_user_annotation" for cat, of in CATEGORIES.items()]
)
"""Whether events are of a device, by the codes of categories."""


def kinds_of(category: NDArray[np.int64], name_codes: NDArray[np.int32], names: list[str]) -> NDArray[np.int8]:
    """Return the index of each event's kind in `KINDS`, from the codes of its category and its name."""
    kind = _KIND_OF_CODE[category]
    is_kernel = kind == KERNEL
    kernel_codes = np.unique(name_codes[is_kernel])
    communicating = [code for code in kernel_codes.tolist() if communicates(names[code])]
    kind[is_kernel & np.isin(name_codes, communicating)] = COMMUNICATION
    of_copies = np.array([name == DMA for name in names])
    kind[(category == CODES[MTIA]) & of_copies[name_codes]] = MEMCPY
    return kind


def device_columns(
    path: Path, piece: Elements[Decoded], args: list[Args], on_device: NDArray[np.bool_]
) -> dict[str, pa.Array]:
    """Return the columns of device events; stream and device default to the thread and process of the event.

    Raise BadProfile if a size is negative or larger than any memory.
    """
    events = piece.decoded.wanted
    at = np.flatnonzero(on_device)
    device_events, device_args = [events[i] for i in at], [args[i] for i in at]
    sizes = to_integers([of.size if of.bytes is None else of.bytes for of in device_args])
    known_sizes = fill_absent(sizes, 0)
    wrong = (known_sizes < 0) | (known_sizes > LARGEST)
    if wrong.any():
        first = int(wrong.argmax())
        problem = f"an event of {known_sizes[first]:,} bytes, expected 0 to {LARGEST:,}"
        raise bad_event(path, piece, int(at[first]), problem)
    occupancy = np.array([np.nan if of.occupancy is None else of.occupancy / 100 for of in device_args])
    integers = {
        "stream": to_integers(
            [event.tid if of.stream is None else of.stream for event, of in zip(device_events, device_args)]
        ),
        "device": to_integers(
            [event.pid if of.device is None else of.device for event, of in zip(device_events, device_args)]
        ),
    }
    columns = {name: integer_column(_spread(values, on_device, ABSENT)) for name, values in integers.items()}
    sizes = _spread(sizes, on_device, ABSENT)
    columns["bytes"] = from_numpy(sizes.astype(np.float64), pa.float64(), sizes != ABSENT)
    occupancy = _spread(occupancy, on_device, np.nan)
    columns["metric.est_achieved_occupancy"] = from_numpy(occupancy, pa.float64(), ~np.isnan(occupancy))
    for name, raws in (("grid", [of.grid for of in device_args]), ("block", [of.block for of in device_args])):
        texts = encode_names(_dimensions(raws))
        codes = _spread(to_numpy(texts.indices, -1), on_device, -1)
        columns[name] = encode_text(codes, texts.dictionary.to_pylist())
    return columns


def _spread(values: NDArray[Any], rows: NDArray[np.bool_], absent: float) -> NDArray[Any]:
    """Return an array with values in the selected rows, in order, and another value in all others."""
    spread = np.full(len(rows), absent, values.dtype)
    spread[rows] = values
    return spread


def launch_columns(args: list[Args], grid_on_device: pa.Array) -> dict[str, pa.Array]:
    """Return `launched`, and `grid` with the grids of launches that record them."""
    names: list[str | None] = [None] * len(args)
    recorded = [index for index, arg in enumerate(args) if arg.kernel]
    if not recorded:
        return {"launched": encode_names(names), "grid": grid_on_device}
    grids = grid_on_device.to_pylist()
    for index in recorded:
        text = bytes(args[index].kernel)
        if text[:1] == b'"':
            names[index] = msgspec.json.decode(text)
            grids[index] = _dimensions([args[index].grid])[0]
    return {"launched": encode_names(names), "grid": encode_names(grids)}


def flops_column(text: bytes, counted: NDArray[np.bool_]) -> pa.Array:
    """Return the FLOPs of the events with hardware counters."""
    flops = np.full(len(counted), np.nan)
    if counted.any():
        of_event = [counted_flops(counters) for counters in counters_of(text)]
        flops[counted] = [np.nan if value is None else value for value in of_event]
    return from_numpy(flops, pa.float64(), ~np.isnan(flops))


def to_integers(values: list[Whole]) -> Integers:
    """Return integers from numbers or texts ("stream 7" is 7); `ABSENT` for anything else."""
    if {*map(type, values)} <= {int, type(None)}:
        numbers = np.array([ABSENT if value is None else value for value in values])
        if numbers.dtype == np.int64:  # it is another type if a number has more than 64 bits
            return numbers
    converted = {value: _integer(value) for value in {*values}}
    return np.array([converted[value] for value in values], dtype=np.int64)


def _integer(value: Whole) -> int:
    if isinstance(value, str):
        value = int(match.group()) if (match := _DIGITS.fullmatch(value.removeprefix("stream "))) else None
    if value is None or not abs(value) < 2**63 or value != int(value):  # also false for NaN
        return ABSENT
    return int(value)


def fill_absent(values: Integers, absent: int) -> Integers:
    """Return the integers with another number in place of `ABSENT`."""
    return np.where(values == ABSENT, absent, values)


def integer_column(values: Integers) -> pa.Array:
    """Return a column that is null where a value is `ABSENT`."""
    return from_numpy(values, pa.int64(), values != ABSENT)


def _dimensions(raws: list[msgspec.Raw]) -> list[str | None]:
    """Return the texts of grids or blocks, such as "64,1,1"."""
    texts = [bytes(raw) for raw in raws]
    extents: dict[bytes, str | None] = {}
    for text in {*texts}:
        extents[text] = b"".join(text.strip(b"[]").split()).decode("utf-8", "replace") or None
    return [extents[text] for text in texts]

"""Between Arrow and NumPy without pandas, which pyarrow's own conversions import: a third of a second per process."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

if TYPE_CHECKING:
    from numpy.typing import NDArray


def from_numpy(values: NDArray[Any], kind: pa.DataType, valid: NDArray[np.bool_] | None = None) -> pa.Array:
    """An array that shares the memory of contiguous numbers.

    Parameters
    ----------
    values : ndarray, shape (n,)
        Of the width of `kind`.
    kind : pyarrow.DataType
        A fixed-width type other than bool.
    valid : ndarray of bool, shape (n,), optional
        Where False the array is null.
    """
    bitmap = None if valid is None else pa.py_buffer(np.packbits(valid, bitorder="little"))
    return pa.Array.from_buffers(kind, len(values), [bitmap, pa.py_buffer(np.ascontiguousarray(values))])


def to_numpy(array: pa.Array, absent: Any = None) -> NDArray[Any]:
    """The numbers of an array, read-only where they share its memory.

    Parameters
    ----------
    array : pyarrow.Array, shape (n,)
        Of a fixed-width type other than bool.
    absent : number, optional
        What stands where the array is null; without it, what happens to be there.
    """
    kind = np.dtype(array.type.to_pandas_dtype())
    _, data = array.buffers()
    if data is None or not len(array):
        return np.zeros(len(array), kind)
    values: NDArray[Any] = np.frombuffer(data, kind, len(array), array.offset * kind.itemsize)
    return values if absent is None or not array.null_count else np.where(known_in(array), values, absent)


def known_in(array: pa.Array) -> NDArray[np.bool_]:
    """Where an array is not null."""
    bitmap = array.buffers()[0]
    if bitmap is None or not array.null_count:
        return np.full(len(array), not array.null_count)
    bits = np.unpackbits(np.frombuffer(bitmap, np.uint8), count=array.offset + len(array), bitorder="little")
    return bits[array.offset :].view(bool)


def words(values: list[str]) -> pa.Array:
    """A short array of text."""
    encoded = [value.encode() for value in values]
    ends = np.cumsum([0, *map(len, encoded)], dtype=np.int32)
    return pa.StringArray.from_buffers(len(values), pa.py_buffer(ends), pa.py_buffer(b"".join(encoded)))

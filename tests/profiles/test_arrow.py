"""Arrow and NumPy without pandas, against pyarrow's own conversions.

Tests: profiles/table.py.
"""

from __future__ import annotations

import math

import numpy as np
import pytest

pytest.importorskip("pyarrow")

import pyarrow as pa

from paleo_lite.profiles.table import from_numpy, text_array, to_numpy

NUMBERS = [3, None, -1, 0, None, 7, 127, None, -128, 5]


@pytest.mark.parametrize("kind", [pa.int8(), pa.int32(), pa.int64(), pa.float32(), pa.float64()])
@pytest.mark.parametrize("part", [slice(0, 10), slice(1, 9), slice(2, 4), slice(9, 10), slice(4, 4)])
def test_numbers_and_missing_values_are_preserved(kind, part) -> None:
    """Slices begin in the middle of a byte of the validity bitmap."""
    array = pa.array(NUMBERS, kind)[part]
    found = to_numpy(array, 99)
    assert found.tolist() == [99 if value is None else value for value in array.to_pylist()]
    assert found.dtype == array.drop_null().to_numpy(zero_copy_only=False).dtype
    there = array.drop_null()
    assert to_numpy(there).tolist() == there.to_numpy(zero_copy_only=False).tolist()


def test_array_of_missing_numbers() -> None:
    assert to_numpy(pa.nulls(3, pa.float64()), math.nan).shape == (3,)
    assert to_numpy(pa.array([None, None], pa.float64()), 5.0).tolist() == [5.0, 5.0]


@pytest.mark.parametrize("kind", [pa.uint64(), pa.int32(), pa.float64()])
def test_there_and_back(kind) -> None:
    values = np.arange(20, dtype=kind.to_pandas_dtype())[::2]  # not contiguous
    valid = np.arange(10) % 3 != 0
    assert from_numpy(values, kind).equals(pa.array(values, kind))
    made = from_numpy(values, kind, valid)
    made.validate(full=True)
    assert made.equals(pa.array(values, kind, mask=~valid))
    assert to_numpy(made, 0).tolist() == np.where(valid, values, 0).tolist()


@pytest.mark.parametrize("texts", [[], [""], ["kernel", "", "µs", "memcpy"]])
def test_words(texts) -> None:
    made = text_array(texts)
    made.validate(full=True)
    assert made.equals(pa.array(texts, pa.string()))

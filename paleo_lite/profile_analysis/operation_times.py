"""Operations of a language model in the runs of a profile, and the gaps between kernels."""

from __future__ import annotations

import re
from math import prod
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from .parameters import read_call
from .runs import Runs, Signature

if TYPE_CHECKING:
    from numpy.typing import NDArray


class ProductSizes(NamedTuple):
    """Rows, columns and inner size of a matrix product in ascending order.

    The forward product of a linear layer and its two gradients have the same three sizes in different roles.
    """

    smallest: int
    middle: int
    largest: int

    @classmethod
    def of(cls, rows: int, columns: int, inner: int) -> ProductSizes:
        """Return the sizes in ascending order."""
        return cls(*sorted((rows, columns, inner)))

    def describe(self) -> str:
        """Return the sizes as text, such as ``16 x 1024 x 4096``."""
        return f"{self.smallest} x {self.middle} x {self.largest}"


Operation = str | ProductSizes
"""Name of an operation, or the sizes of the matrix product of a linear layer."""

RunOperation = tuple[str, str]
"""Name of an operation, and pass."""

OPERATION_OF_KIND = {
    "attention": "attention",
    "softmax": "attention",
    "linear": "linear",
    "convolution": "convolution",
    "gemm": "linear",
    "normalization": "norms",
    "batch_norm": "norms",
    "norm": "norms",
    "communication": "collectives",
    "elementwise": "elementwise",
    "pooling": "elementwise",
    "copy": "copies",
}
"""Operation of each kind of a profile."""

_BATCHED_PRODUCT = re.compile(r"(?:^|::)_?b(?:addb)?mm(?:$|_)")
_NORM_MODULE = re.compile(r"norm|(?:^|[./])ln_", re.I)


def operation_of_run(signature: Signature, kind: str, layer: str | None) -> Operation:
    """Return the operation of a run from the attributes of its rows, and its kind in `PassTimes.seconds`.

    `layer` is the path of its module; None if the profile does not record modules.
    """
    op = signature.op or ""
    if kind == "linear" and _BATCHED_PRODUCT.search(op):
        return "attention"
    if kind == "linear" and signature.params:
        sizes = _product_sizes(op, signature.params)
        if sizes is not None:
            return sizes
    operation = OPERATION_OF_KIND.get(kind, kind)
    if operation in ("elementwise", "copies", "other") and layer and _NORM_MODULE.search(layer):
        return "norms"
    return operation


def _product_sizes(op: str, params: str) -> ProductSizes | None:
    """Return the sizes of a product of two matrices, from the shapes of its operands; None if they are unknown."""
    call = read_call(op, params)
    if call is None:
        return None
    shapes = [shape for shape in call.shapes if shape is not None and len(shape) >= 2]
    if len(shapes) < 2:
        return None
    left, right = shapes[:2] if call.name == "linear" else shapes[-2:]  # addmm: after the added matrix
    if len(right) != 2:
        return None
    rows, inner = prod(left[:-1]), left[-1]
    other = [size for size in right if size != inner]
    if inner not in right:
        return None
    return ProductSizes.of(rows, other[0] if other else inner, inner)


def gap_of_iteration(runs: Runs, rows: NDArray[np.int64]) -> float | None:
    """Return the seconds between the first and last kernel of an iteration in which no kernel runs.

    It is None without start times. `rows` are the positions of the rows of the iteration in ``runs.spans_ns``.
    """
    if runs.spans_ns is None:
        return None
    spans_ns = runs.spans_ns[rows]
    if not len(spans_ns):
        return None
    spans_ns = spans_ns[np.argsort(spans_ns[:, 0])]
    latest_end_ns = np.maximum.accumulate(spans_ns[:, 1])
    idle_ns = np.maximum(spans_ns[1:, 0] - latest_end_ns[:-1], 0)
    return float(idle_ns.sum()) * 1e-9

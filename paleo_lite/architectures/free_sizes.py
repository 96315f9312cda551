"""Networks for pictures and videos of any size: every size in them is a polynomial of a few free sizes.

The free sizes have symbols of one letter: ``h`` and ``w`` for the height and width of a picture in steps of the
network's finest grid that all its maps divide, ``f`` for frames and ``t`` for tokens of text. A polynomial is stored as
its coefficients by monomial, ``{"hw": 1, "1": 512}`` for h * w + 512. Traces at a few values of each free size
determine the coefficients, which must be whole numbers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from math import prod
from pathlib import Path
from typing import Annotated, Any

import msgspec

from ..errors import BadDescriptor, BadValue, TraceFailed

Coefficient = Annotated[int, msgspec.Meta(ge=-(2**53), le=2**53)]
Polynomial = dict[str, Coefficient]
"""Coefficients by monomial; the monomial of the constant is ``"1"``, that of a square ``"tt"``."""

Nodes = Mapping[str, Sequence[int]]
"""Traced values of each free size by symbol; one more than the degree of the polynomials in it."""

_LARGEST = 2**40


def combinations(nodes: Nodes) -> list[dict[str, int]]:
    """Return all combinations of the values of the free sizes, in the order in which `polynomial` reads them."""
    return [dict(zip(nodes, values)) for values in product(*nodes.values())]


def polynomial(values: Sequence[int], nodes: Nodes) -> Polynomial:
    """Return the polynomial through the values at all `combinations` of the nodes.

    Raises
    ------
    TraceFailed
        If a coefficient is not a whole number, or a value is not a size.
    """
    import numpy as np

    exponents = list(product(*(range(len(points)) for points in nodes.values())))
    rows = [
        [prod(value**power for value, power in zip(sizes.values(), powers)) for powers in exponents]
        for sizes in combinations(nodes)
    ]
    if not all(isinstance(value, int) for value in values):
        raise TraceFailed(f"an attribute depends on the size of the picture, but is no size: {values[0]!r}")
    solution = np.linalg.solve(np.array(rows, dtype=float), np.array(values, dtype=float))
    coefficients = [round(number) for number in solution]
    fitted = {
        "".join(symbol * power for symbol, power in zip(nodes, powers)) or "1": coefficient
        for powers, coefficient in zip(exponents, coefficients)
        if coefficient
    }
    for sizes, value in zip(combinations(nodes), values):
        if _value(fitted, sizes) != value:
            raise TraceFailed(f"a size is not a polynomial with whole coefficients: {list(values)} at {dict(nodes)}")
    return fitted


def check_sizes(sizes: Mapping[str, int], free: Mapping[str, list[int]], path: Path) -> Mapping[str, int]:
    """Return the values of the free sizes of a descriptor.

    Raises
    ------
    BadValue
        If a value is missing or out of its range.
    """
    for symbol, (smallest, largest) in free.items():
        if symbol not in sizes:
            raise BadValue(f"{path}: the network has the free sizes {', '.join(free)}; {symbol} is not given")
        if not smallest <= sizes[symbol] <= largest:
            raise BadValue(f"{path}: {symbol} must be from {smallest} to {largest} (got {sizes[symbol]})")
    return sizes


def evaluate(terms: Any, sizes: Mapping[str, int], path: Path) -> int:
    """Return the value of a polynomial.

    Raises
    ------
    BadDescriptor
        If it has an unknown symbol, or the value is no size.
    """
    try:
        value = _value(terms, sizes)
    except (AttributeError, KeyError, TypeError):
        raise BadDescriptor(f"{path}: {terms!r} is not a polynomial of {', '.join(sizes)}") from None
    if not 0 <= value <= _LARGEST:
        raise BadDescriptor(f"{path}: {terms!r} is {value} at {dict(sizes)}, which is no size")
    return value


def _value(terms: Polynomial, sizes: Mapping[str, int]) -> int:
    total = 0
    for monomial, coefficient in terms.items():
        if monomial == "1":
            total += coefficient
        else:
            total += coefficient * prod([sizes[symbol] for symbol in monomial])
    return total

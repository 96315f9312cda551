"""Networks for pictures and videos of any size: every size in them is a polynomial of a few free sizes.

The free sizes have symbols of one letter: ``h`` and ``w`` for the height and width of a picture in steps of the
network's finest grid, ``f`` for frames and ``t`` for tokens of text. A polynomial is stored as its coefficients by
monomial, ``{"hw": 1, "1": 512}`` for h * w + 512. Where a network rounds, as a U-Net does with every map of half the
size, further symbols stand for quotients that are rounded up: ``{"i": ["h", 2]}`` for half of h. Traces at a few values
of the free sizes determine the coefficients, which must be whole numbers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from math import prod
from operator import mul
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import msgspec

from ..errors import BadDescriptor, BadValue, TraceFailed

Coefficient = Annotated[int, msgspec.Meta(ge=-(2**53), le=2**53)]
Polynomial = dict[str, Coefficient]
"""Coefficients by monomial; the monomial of the constant is ``"1"``, that of a square ``"tt"``."""

Quotients = Mapping[str, tuple[str, Annotated[int, msgspec.Meta(ge=1, le=2**20)]]]
"""Monomial of free sizes and divisor by the symbol of their quotient, which is rounded up."""

_LARGEST = 2**40


class Basis(NamedTuple):
    """Sizes at which a network is traced, and the monomials whose coefficients follow from them."""

    samples: list[dict[str, int]]  # values of the free sizes by symbol, the largest last
    monomials: list[str]  # at most as many as samples, and linearly independent on them
    quotients: Quotients  # further symbols in the monomials


def all_monomials(nodes: Mapping[str, Sequence[int]]) -> Basis:
    """Return all combinations of a few values of each free size, for polynomials of a degree one less in each."""
    samples = [dict(zip(nodes, values)) for values in product(*nodes.values())]
    powers = product(*(range(len(values)) for values in nodes.values()))
    return Basis(samples, ["".join(map(mul, nodes, exponents)) or "1" for exponents in powers], {})


def polynomial(values: Sequence[int], basis: Basis) -> Polynomial:
    """Return the polynomial through the values at all samples of a basis.

    Raise TraceFailed if a coefficient is not a whole number, or a value is not a size.
    """
    import numpy as np

    if not all(isinstance(value, int) for value in values):
        raise TraceFailed(f"an attribute depends on the size of the picture, but is not a size: {values[0]!r}")
    samples = [with_quotients(sizes, basis.quotients) for sizes in basis.samples]
    rows = [[_value({monomial: 1}, sizes) for monomial in basis.monomials] for sizes in samples]
    solution = np.linalg.lstsq(np.array(rows, dtype=float), np.array(values, dtype=float))[0]
    fitted = {name: round(number) for name, number in zip(basis.monomials, solution) if round(number)}
    for sizes, value in zip(samples, values):
        if _value(fitted, sizes) != value:
            raise TraceFailed(f"a size is not a polynomial with whole coefficients: {list(values)} at {basis.samples}")
    return fitted


def with_quotients(sizes: Mapping[str, int], quotients: Quotients) -> dict[str, int]:
    """Return the values of free sizes and of their quotients, rounded up."""
    values = dict(sizes)
    for symbol, (monomial, divisor) in quotients.items():
        values[symbol] = -(-_value({monomial: 1}, sizes) // divisor)
    return values


def check_sizes(sizes: Mapping[str, int], free: Mapping[str, list[int]], path: Path) -> Mapping[str, int]:
    """Return the values of the free sizes of a descriptor.

    Raise BadValue if a value is missing or out of its range.
    """
    for symbol, (smallest, largest) in free.items():
        if symbol not in sizes:
            raise BadValue(f"{path}: the network has the free sizes {', '.join(free)}; {symbol} is not given")
        if not smallest <= sizes[symbol] <= largest:
            raise BadValue(f"{path}: {symbol} must be from {smallest} to {largest} (got {sizes[symbol]})")
    return sizes


def evaluate(terms: Any, sizes: Mapping[str, int], path: Path) -> int:
    """Return the value of a polynomial.

    Raise BadDescriptor if it has an unknown symbol, or the value is not a size.
    """
    try:
        value = _value(terms, sizes)
    except (AttributeError, KeyError, TypeError):
        raise BadDescriptor(f"{path}: {terms!r} is not a polynomial of {', '.join(sizes)}") from None
    if not 0 <= value <= _LARGEST:
        raise BadDescriptor(f"{path}: {terms!r} is {value} at {dict(sizes)}, which is not a size")
    return value


def _value(terms: Polynomial, sizes: Mapping[str, int]) -> int:
    total = 0
    for monomial, coefficient in terms.items():
        if monomial == "1":
            total += coefficient
        else:
            total += coefficient * prod([sizes[symbol] for symbol in monomial])
    return total

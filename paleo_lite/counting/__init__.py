"""Floor 2: what one operation costs, from its shapes."""

from .conventions import CONVENTIONS, Convention, find_convention, known_kinds
from .layer import CONSTANT, INPUT, Layer, Shape
from .rules import MATRIX_KINDS
from .work import PASSES, PHASES, Work, count

__all__ = [
    "CONSTANT",
    "CONVENTIONS",
    "INPUT",
    "MATRIX_KINDS",
    "PASSES",
    "PHASES",
    "Convention",
    "Layer",
    "Shape",
    "Work",
    "count",
    "find_convention",
    "known_kinds",
]

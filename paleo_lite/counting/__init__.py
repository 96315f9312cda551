"""Floor 2: the cost of a single operation, from its shapes."""

from .kinds import KINDS, MATRIX_KINDS
from .layer import CONSTANT, INPUT, Layer, Shape
from .work import CONVENTIONS, GENERATION_PHASES, PASSES, PHASES, Convention, Work, count, find_convention

__all__ = [
    "CONSTANT",
    "CONVENTIONS",
    "GENERATION_PHASES",
    "INPUT",
    "KINDS",
    "MATRIX_KINDS",
    "PASSES",
    "PHASES",
    "Convention",
    "Layer",
    "Shape",
    "Work",
    "count",
    "find_convention",
]

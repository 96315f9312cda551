"""Floor 2: what one operation costs, from its shapes."""

from .conventions import CONVENTIONS, Convention, find_convention
from .kinds import KINDS, MATRIX_KINDS
from .layer import CONSTANT, INPUT, Layer, Shape
from .work import GENERATING, PASSES, PHASES, Work, count

__all__ = [
    "CONSTANT",
    "CONVENTIONS",
    "GENERATING",
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

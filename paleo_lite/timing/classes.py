"""Classes of work: layers whose share of peak is one number, because libraries run them alike."""

from __future__ import annotations

from ..counting import Layer
from ..counting.kinds import class_of
from ..counting.kinds.products import MATRIX_CLASSES

MEMORY_CLASSES = ("norm", "elementwise", "pool", "copy")
"""Classes that memory bounds."""

CLASSES = (*MATRIX_CLASSES, *MEMORY_CLASSES)


def class_index(layer: Layer) -> int:
    """The place of a layer's class in `CLASSES`.

    A layer of a kind without a record takes no time but that of its update, which is elementwise work on its weights.
    """
    return CLASSES.index(class_of(layer) or "elementwise")


__all__ = ["CLASSES", "MATRIX_CLASSES", "MEMORY_CLASSES", "class_index", "class_of"]

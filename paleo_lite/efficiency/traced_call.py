"""An operator's arguments, from the text that a PyTorch trace has of them.

A trace tells of each operator of ATen the shapes and types of its arguments, in the order of ATen's
``native_functions.yaml``. Its own names for what torch calls otherwise (``cudnn_convolution``, ``_softmax``,
``threshold_backward``) are undone here.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec

from ..counting.layer import Shape
from ..units import element_bytes

LONGEST = 2**20
"""Characters of a text of shapes that are looked at; optimizers name the tensors of all parameters."""

FLOATS = {
    "double": "fp64", "float": "fp32", "c10::Half": "fp16", "c10::BFloat16": "bf16", "c10::Float8_e4m3fn": "fp8",
    "c10::Float8_e5m2": "fp8", "c10::Float8_e4m3fnuz": "fp8", "c10::Float8_e5m2fnuz": "fp8",
}  # fmt: skip
"""Types of tensors of floating-point numbers, as traces spell them, and their precision."""

WHOLE = {
    "longint": 8, "long": 8, "int": 4, "short": 2, "shortint": 2, "char": 1, "signedchar": 1, "unsignedchar": 1,
    "bool": 1,
}  # fmt: skip
"""Types of tensors of whole numbers, and the bytes of one."""

WIDTHS = {name: element_bytes(precision) for name, precision in FLOATS.items()} | WHOLE
"""Bytes of a number of a type."""

ATTENTION = re.compile(r"attention\w*")
CONVOLUTION = re.compile(r"conv(?:olution)?(?:[123]d|_|$)")
_LIBRARY = re.compile(
    r"^(?:cudnn|miopen|mkldnn|native|fused|mps)_(?=\w*norm|(?:adaptive_)?\w*pool|dropout|gelu|linear)"
)
_ALIASES = {"scaled_mm": "mm", "addmm_activation": "addmm", "to_copy": "clone"}
_BACKWARD = re.compile(r"_(?:dense_)?backward(?:_data|_input|_weight)?$|_jvp$")


class Call(NamedTuple):
    """An operator's arguments.

    Attributes
    ----------
    name : str
        As the records of kinds have it: without ``aten::``, the library, and what makes it private, in place, backward.
    shapes : tuple of (shape or None)
        Of each argument; None of those that are no tensors.
    numbers : tuple of str
        Texts of those that are no tensors; empty where the trace does not say.
    part : str
        Which gradient an operator for a single one gives.
    """

    name: str
    backward: bool
    shapes: tuple[Shape | None, ...]
    types: tuple[str, ...]
    numbers: tuple[str, ...]
    part: str = "backward_data"

    @property
    def tensors(self) -> list[Shape]:
        """Shapes of the tensors; a tensor without dimensions is a number, unless there are no others."""
        known = [shape for shape in self.shapes if shape is not None]
        return [shape for shape in known if shape] or known

    def lists(self) -> list[list[int]]:
        """Arguments that are lists of whole numbers, in their order."""
        texts = [text[1:-1] for text in self.numbers if re.fullmatch(r"\[-?\d+(?:,-?\d+)*\]", text)]
        return [[int(number) for number in text.split(",")] for text in texts]

    def says(self, index: int) -> str:
        """The text of an argument, empty where there is none."""
        return self.numbers[index] if index < len(self.numbers) else ""

    def mask(self) -> list[bool]:
        """Which gradients a backward operator is to give: all where it does not say."""
        flags = next(
            (t for t in reversed(self.numbers) if re.fullmatch(r"\[(?:True|False)(?:,(?:True|False))*\]", t)), ""
        )
        return [word == "True" for word in flags[1:-1].split(",")] if flags else [True, True, True]


def is_traced(params: str) -> bool:
    """Whether a text of parameters is one of a PyTorch trace."""
    return params.startswith("[")


def shapes_in(params: str) -> list[Shape]:
    """The tensors that an operator is given, in the order of its arguments."""
    call = read_call("", params)
    return [] if call is None else call.tensors


def is_convolution(operator: str | None) -> bool:
    """Whether an operator is a convolution, by its name."""
    return CONVOLUTION.search(operator or "") is not None


def read_call(operator: str, params: str) -> Call | None:
    """An operator's call; None where the text is none of a trace."""
    decoded = decode(params)
    if decoded is None:
        return None
    dims, types, numbers = decoded
    shapes = tuple(
        tuple(shape) if is_shape(shape) and (shape or _is_tensor(types, index)) else None
        for index, shape in enumerate(dims)
    )
    name = operator.removeprefix("aten::").removeprefix("_foreach").strip("_")
    backward = _BACKWARD.search(name) is not None
    name = _BACKWARD.sub("", name)
    if not CONVOLUTION.search(name):
        name = _LIBRARY.sub("", name).removesuffix("_with_indices").removesuffix("_forward")
    part = "backward_weight" if operator.endswith("_weight") else "backward_data"
    return Call(_ALIASES.get(name, name), backward, shapes, types, numbers, part)


def decode(params: str) -> tuple[list[Any], tuple[str, ...], tuple[str, ...]] | None:
    """Dimensions, types and numbers of the arguments; None where the text is none of a trace."""
    if len(params) > LONGEST:
        return None
    try:
        dims, *rest = (msgspec.json.decode(text, type=list) for text in params.split(" "))
    except msgspec.DecodeError:
        return None
    types, numbers = (tuple(map(str, texts)) for texts in [*rest, [], []][:2])
    return dims, types, numbers


def is_shape(value: Any) -> bool:
    """Whether it is the dimensions of one tensor."""
    return isinstance(value, list) and all(isinstance(size, int) and 0 <= size < 2**40 for size in value)


def _is_tensor(types: Sequence[str], index: int) -> bool:
    return index < len(types) and (types[index] in FLOATS or types[index] in WHOLE)

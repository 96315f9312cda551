"""Which of ONNX's operators are which kinds of layers, and what their attributes say."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

from ..counting import KINDS, Shape

Read = Callable[[dict[str, Any], Sequence[Shape], Sequence[Shape], str], tuple[str, dict[str, Any]]]
"""From an operator's attributes, the shapes that it reads and writes, and its kind: its kind and attributes here."""

KINDS_OF = {operator: kind.name for kind in KINDS.values() for operator in kind.onnx.split()}
LIKE_WEIGHTS = {kind.name: kind.onnx_weights for kind in KINDS.values() if kind.onnx_weights is not None}


def _convolution(
    attributes: dict[str, Any], reads: Sequence[Shape], writes: Sequence[Shape], kind: str
) -> tuple[str, dict[str, Any]]:
    rank = len(reads[1]) - 2
    made: dict[str, Any] = {
        "stride": list(attributes.get("strides", [1] * rank)),
        "padding": list(attributes.get("pads", [0] * rank))[:rank],
    }
    if any(step != 1 for step in attributes.get("dilations", ())):
        made["dilation"] = list(attributes["dilations"])
    if attributes.get("group", 1) != 1:
        made["groups"] = attributes["group"]
    if "transpose" in kind:
        made["transposed"] = True
    return f"{kind.removesuffix('2d')}{rank}d", made


def _pool(
    attributes: dict[str, Any], reads: Sequence[Shape], writes: Sequence[Shape], kind: str
) -> tuple[str, dict[str, Any]]:
    kernel = list(attributes["kernel_shape"])
    made = {"kernel": kernel, "stride": list(attributes.get("strides", [1] * len(kernel)))}
    padding = list(attributes.get("pads", []))[: len(kernel)]
    return kind, made | ({"padding": padding} if any(padding) else {})


def _mean(
    attributes: dict[str, Any], reads: Sequence[Shape], writes: Sequence[Shape], kind: str
) -> tuple[str, dict[str, Any]]:
    """The mean of images is what torch computes it as: an adaptive pooling to one position."""
    if len(reads[0]) == len(writes[0]) == 4 and prod(writes[0][2:]) == 1 and reads[0][:2] == writes[0][:2]:
        return "adaptive_avg_pool", {}
    return kind, {"function": "mean"}


def _resize(
    attributes: dict[str, Any], reads: Sequence[Shape], writes: Sequence[Shape], kind: str
) -> tuple[str, dict[str, Any]]:
    mode = str(attributes.get("mode", b"nearest"), "utf-8")
    return kind, {"mode": "linear" if mode == "bilinear" else mode}


def _attention(
    attributes: dict[str, Any], reads: Sequence[Shape], writes: Sequence[Shape], kind: str
) -> tuple[str, dict[str, Any]]:
    """Of queries with heads apart; those whose heads lie side by side keep their name."""
    if len(reads[0]) != 4:
        return "onnx.Attention", {}
    return kind, {"causal": True} if attributes.get("is_causal") else {}


def _einsum(
    attributes: dict[str, Any], reads: Sequence[Shape], writes: Sequence[Shape], kind: str
) -> tuple[str, dict[str, Any]]:
    """Of two operands a matrix product: what is in neither the result nor alike in both is summed over."""
    before, _, after = str(attributes["equation"], "utf-8").replace(" ", "").partition("->")
    terms = before.replace("...", "").split(",")
    after = after.replace("...", "") or "".join(one for one in before if before.count(one) == 1)
    if len(terms) != 2:
        return kind, {}
    # What an ellipsis stands for comes first, as in the result.
    sizes = {one: size for term, shape in zip(terms, reads) for one, size in zip(reversed(term), reversed(shape))}
    return "matmul", {"inner": prod(sizes[one] for one in set("".join(terms)) - set(after))}


RECURRENT = {"LSTM": (4, (3, 2, 3, 5)), "GRU": (3, (2, 1, 2, 5)), "RNN": (1, (0, 1, 0, 1))}
"""Gates; and of each step so many times the state in sigmoids, tanhs, products, and sums (ONNX's formulas)."""


READERS: dict[str, Read] = {
    "Conv": _convolution, "ConvTranspose": _convolution, "MaxPool": _pool, "AveragePool": _pool,
    "ReduceMean": _mean, "Resize": _resize, "Upsample": _resize, "GridSample": _resize, "Attention": _attention,
    "Einsum": _einsum,
    "MatMul": lambda attributes, reads, writes, kind: (kind, {"inner": reads[0][-1]}),
    "LRN": lambda attributes, reads, writes, kind: (kind, {"size": attributes["size"]}),
    "GroupNormalization": lambda attributes, reads, writes, kind: (kind, {"num_groups": attributes["num_groups"]}),
    "Gelu": lambda attributes, reads, writes, kind: (
        "gelu_tanh" if attributes.get("approximate") == b"tanh" else kind, {}
    ),
}  # fmt: skip

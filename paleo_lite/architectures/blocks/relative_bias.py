"""T5's bias of attention scores: learned by the distance of two tokens, shared by all blocks (Raffel et al. 2020)."""

from __future__ import annotations

from typing import Any

from ...counting import Shape
from ..builder import Blob
from ..tape import Tape
from .block_records import RelativeBias


def add_relative_bias(
    tape: Tape,
    name: str,  # name of the attention module
    bias: RelativeBias,
    shape: Shape,  # shape of the scores, (1, heads, queries, keys)
    is_causal: bool,  # whether tokens attend to earlier ones only, so that the classes need no sign
) -> Blob:
    """Add a row of a table for each distance of two tokens, with the distances put into classes."""
    _, heads, queries, keys = shape
    classes = _distance_classes(tape, name, queries, keys, is_causal)
    rows = tape.module(
        f"{name}.relative_attention_bias",
        "embedding",
        classes,
        out=(queries, keys, heads),
        weights=((bias.buckets, heads),),
    )
    rows = tape.view(name, rows, (heads, queries, keys), "permute")
    return tape.view(name, rows, shape, "unsqueeze")


def add_zero_bias(tape: Tape, name: str, shape: Shape) -> Blob:
    """Add the bias of attention to the encoder, which is zero."""
    return tape.op(f"{name}.zeros", "fill", out=shape, origin="function", function="zeros")


def add_masked_bias(
    tape: Tape,
    name: str,  # name of the attention module
    bias: Blob,  # relative bias, (1, heads, queries, keys)
    # Causal mask, where attention is not one kernel. A fused kernel needs a contiguous bias, masked by the block.
    mask: Blob | None,
    is_causal: bool,  # whether tokens attend to earlier ones only
) -> Blob:
    """Add the causal mask to the relative bias in a block."""
    _, _, queries, keys = bias.shape
    if not tape.fused:
        return bias if mask is None else tape.op(f"{name}.add", "add", bias, mask)
    if is_causal and queries > 1:
        bias = _add_causal_bias(tape, name, bias)
    if queries * keys > 1:
        bias = tape.view(name, bias, bias.shape, "contiguous", "copy")
    return bias


def _add_causal_bias(tape: Tape, name: str, bias: Blob) -> Blob:
    """Replace the bias of later tokens by a large negative number."""
    queries, keys = bias.shape[-2:]
    rows = _indices(tape, name, (queries, 1))
    columns = _indices(tape, name, (1, keys))
    allowed = tape.op(
        f"{name}.ge", "compare", rows, columns, out=(queries, keys), origin="method", no_gradient=True, function="ge"
    )
    allowed = tape.view(name, allowed, (1, 1, queries, keys))
    return tape.op(f"{name}.where", "where", allowed, bias, origin="function", out=bias.shape)


def _distance_classes(tape: Tape, name: str, queries: int, keys: int, is_causal: bool) -> Blob:
    """Add the class of each distance: its own for near tokens, logarithmically wider ones for far tokens."""
    square = (queries, keys)

    def add(kind: str, *inputs: Blob, out: Shape = square, function: str = "", **options: Any) -> Blob:
        """Add an operation that is called after its kind or its function."""
        options.setdefault("origin", "operator")
        if function:
            options["function"] = function
        return tape.op(f"{name}.{function or kind}", kind, *inputs, out=out, **options)

    rows = add("add", _indices(tape, name, (queries, 1)), out=(queries, 1))
    distance = add("sub", _indices(tape, name, (1, keys)), rows)
    later = None
    if is_causal:
        zeros = add("fill", distance, origin="function", function="zeros_like")
        size = add("neg", add("minimum", distance, zeros, origin="function"))
    else:
        is_later = add("compare", distance, origin="method", no_gradient=True, function="gt")
        later = add("mul", tape.view(name, is_later, square, "to", "copy"))
        later = add("add", later)
        size = add("abs", distance, origin="function")
    is_near = add("compare", size, origin="method", no_gradient=True, function="lt")
    far = tape.view(name, size, square, "float", "copy")
    far = add("log", add("div", far), origin="function")
    far = add("mul", add("div", far))
    far = add("add", tape.view(name, far, square, "to", "copy"))
    largest = add("fill", far, origin="function", function="full_like")
    far = add("minimum", far, largest, origin="function")
    classes = add("where", is_near, size, far, origin="function")
    if later is None:
        return add("add", classes)
    return add("add", later, classes)


def _indices(tape: Tape, name: str, shape: Shape) -> Blob:
    """Add the indices of tokens, as a row or a column."""
    indices = tape.op(f"{name}.arange", "fill", out=(max(shape),), origin="function", function="arange")
    return tape.view(name, indices, shape, "getitem", "slice")

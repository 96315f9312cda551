"""Scaled dot-product attention, as one fused kernel or as the kernels of an eager framework."""

from __future__ import annotations

from typing import Any, NamedTuple

from ...counting import Shape
from ..builder import Blob
from ..tape import Tape


class Scores(NamedTuple):
    """How the scores of queries and keys become the weights of values."""

    mask: Blob | None = None  # additive mask of the scores
    is_causal: bool = True  # whether a token attends only to itself and earlier tokens
    window: int | None = None  # tokens of the sliding window
    chunk: int | None = None  # length of the chunks within which tokens attend to each other
    dropout: float = 0.0  # dropout probability of the weights, applied where attention is not fused
    # Whether a scaled hyperbolic tangent limits the scores; a fused kernel applies it on chip.
    has_softcap: bool = False
    # Whether the softmax is computed in fp32 and its result converted back where attention is not fused.
    has_wide_softmax: bool = True
    # Whether every head has one learned score in addition to those of the keys (attention sink).
    has_sinks: bool = False


def add_dot_product_attention(
    tape: Tape,
    name: str,  # name of the module
    # Tensors of shape (1, heads, tokens, size); keys and values may have fewer heads (grouped-query attention).
    query: Blob,
    key: Blob,
    value: Blob,
    scores: Scores,
    *,
    # The call that copies the heads back into one dimension where attention is not fused.
    merge_heads_with: str = "contiguous",
    fused: bool | None = None,  # whether attention is one kernel; as the whole network by default
) -> Blob:
    """Add attention, and return its result of shape (1, tokens, heads * size)."""
    fused = tape.fused if fused is None else fused
    queries_per_key = query.shape[1] // key.shape[1]
    if queries_per_key > 1 and (scores.mask is not None or not fused):
        key = _repeat_heads(tape, name, key, queries_per_key)
        value = _repeat_heads(tape, name, value, queries_per_key)
    add_kernels = _add_fused if fused else _add_unfused
    result = add_kernels(tape, name, query, key, value, scores)
    _, heads, tokens, size = result.shape
    result = tape.view(name, result, (1, tokens, heads, size), "transpose")
    if fused or merge_heads_with == "contiguous":
        result = tape.view(name, result, result.shape, "contiguous", "copy")
        return tape.view(name, result, (1, tokens, heads * size), "reshape")
    return tape.view(name, result, (1, tokens, heads * size), "reshape", "copy")


def _repeat_heads(tape: Tape, name: str, blob: Blob, times: int) -> Blob:
    """Repeat key or value heads so that there are as many as query heads."""
    _, heads, tokens, size = blob.shape
    wide = tape.view(name, blob, (1, heads, 1, tokens, size), "getitem", "slice")
    wide = tape.view(name, wide, (1, heads, times, tokens, size), "expand")
    return tape.view(name, wide, (1, heads * times, tokens, size), "reshape", "copy")


def _sinks(query: Blob, scores: Scores) -> tuple[Shape, ...]:
    """Return the shapes of the learned scores of the heads."""
    return ((query.shape[1],),) if scores.has_sinks else ()


def _add_fused(tape: Tape, name: str, query: Blob, key: Blob, value: Blob, scores: Scores) -> Blob:
    """Add attention as one kernel."""
    out = (*query.shape[:-1], value.shape[-1])
    attributes: dict[str, Any] = {}
    if scores.is_causal and scores.mask is None and query.shape[2] > 1:
        attributes["causal"] = True
    if scores.window is not None and scores.window < tape.lengths.keys:
        attributes["window"] = scores.window
    if scores.chunk is not None and scores.chunk < tape.lengths.keys:
        attributes["attention_chunk"] = scores.chunk
    if tape.options.context_parallel > 1:
        attributes["ring"] = tape.options.context_parallel
    operands = [query, key, value]
    if scores.mask is not None:
        operands.append(scores.mask)
    sinks = _sinks(query, scores)
    result = tape.op(
        f"{name}.attention", "attention", *operands, out=out, weights=sinks, origin="function", **attributes
    )
    return tape.view(name, result, out, "reshape")


def _add_unfused(tape: Tape, name: str, query: Blob, key: Blob, value: Blob, scores: Scores) -> Blob:
    """Add attention as separate kernels: a product, scale, mask, softmax, dropout and a product."""
    *batch, keys, size = key.shape
    transposed = tape.view(name, key, (*batch, size, keys), "transpose")
    shape = (*query.shape[:-1], keys)
    state = tape.op(f"{name}.matmul", "matmul", query, transposed, out=shape, origin="function", inner=size)
    state = tape.op(f"{name}.mul", "mul", state)
    if scores.has_softcap:
        state = tape.op(f"{name}.div", "div", state)
        state = tape.op(f"{name}.tanh", "tanh", state, origin="function")
        state = tape.op(f"{name}.mul", "mul", state)
    if scores.mask is not None:
        state = tape.op(f"{name}.add", "add", state, scores.mask)
    if scores.has_sinks:
        with_sinks, sinks = (*state.shape[:-1], keys + 1), _sinks(query, scores)
        state = tape.op(f"{name}.sinks", "concat", state, out=with_sinks, weights=sinks, origin="function")
        largest = tape.op(f"{name}.max", "reduce", state, out=(*state.shape[:-1], 1), function="max")
        state = tape.op(f"{name}.sub", "sub", state, largest)
    # With sinks the softmax is computed in the numbers of the scores.
    weights = tape.softmax(name, state, is_wide=scores.has_wide_softmax and not scores.has_sinks)
    if scores.has_sinks:
        weights = tape.view(name, weights, shape, "getitem", "slice")
    weights = tape.dropout(f"{name}.dropout", weights, scores.dropout, "function")
    out = (*query.shape[:-1], value.shape[-1])
    return tape.op(f"{name}.matmul", "matmul", weights, value, out=out, origin="function", inner=keys)

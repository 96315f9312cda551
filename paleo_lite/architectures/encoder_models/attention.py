"""Attention layers of an encoder and of a decoder that also attends to an encoder."""

from __future__ import annotations

from typing import NamedTuple

from ...counting import CONSTANT
from ..builder import Blob
from ..tape import Tape
from .relative_bias import add_causal_bias, add_relative_bias, add_zero_bias
from .traits import Blocks


class SelfAttentionInputs(NamedTuple):
    """Tensors of self-attention that blocks share.

    Attributes
    ----------
    mask : Blob or None
        Mask of the scores, or their relative bias.
    tables : (Blob, Blob) or None
        Cosines and sines of rotary embeddings.
    """

    mask: Blob | None = None
    tables: tuple[Blob, Blob] | None = None


def add_self_attention(tape: Tape, name: str, blocks: Blocks, x: Blob, shared: SelfAttentionInputs) -> Blob:
    """Add self-attention without its output projection; return ``(1, tokens, heads * head_size)``.

    Parameters
    ----------
    name : str
        Name of the attention module.
    blocks : Blocks
    x : Blob
        Input, ``(1, tokens, hidden_size)``.
    shared : SelfAttentionInputs
    """
    if blocks.names.packed:
        query, key, value = _add_packed_projection(tape, name, blocks, x)
    else:
        query, key, value = _add_projections(tape, name, blocks, x, x)
    if shared.tables is not None:
        query, key = tape.apply_rotary_embedding(name, (query, key), shared.tables)
    has_bias = blocks.relative_bias is not None
    return tape.attention(
        name,
        query,
        key,
        value,
        mask=shared.mask,
        causal=blocks.is_causal and not has_bias,
        dropout=blocks.attention_dropout,
        writes_cache=blocks.is_causal,
    )


def add_cross_attention(tape: Tape, name: str, blocks: Blocks, x: Blob, memory: Blob, bias: Blob | None) -> Blob:
    """Add attention to the output of an encoder, without its output projection.

    Where text is generated, keys and values are computed once, in the prefill phase, and then read from a cache.

    Parameters
    ----------
    name : str
        Name of the attention module.
    blocks : Blocks
    x : Blob
        Source of the queries, ``(1, tokens, hidden_size)``.
    memory : Blob
        Output of the encoder, a constant in the decode phase.
    bias : Blob or None
        Bias of the scores.
    """
    cached = (1, blocks.heads, memory.shape[1], blocks.head_size)
    if memory.parent == CONSTANT:
        query = _add_query(tape, name, blocks, x)
        key = _add_memory_cache(tape, name, cached)
        value = key
    else:
        query, key, value = _add_projections(tape, name, blocks, x, memory)
        if tape.lengths.uses_cache:
            key = _add_memory_cache(tape, name, cached, key, value)
            value = key
    return tape.attention(
        name, query, key, value, mask=bias, causal=False, dropout=blocks.attention_dropout, writes_cache=False
    )


def _add_memory_cache(tape: Tape, name: str, shape: tuple[int, ...], *new: Blob) -> Blob:
    """Add the cache of the keys and values of the encoder's output, which is written once and then only read."""
    cached = tape.op(f"{name}.cache", "cache", *new, out=shape, origin="method")
    tape.layers[-1] = tape.layers[-1]._replace(outputs=(shape, shape))
    return cached


def add_bias(tape: Tape, name: str, blocks: Blocks, queries: int, keys: int) -> Blob | None:
    """Add the relative bias of self-attention, which the first block makes for all; None where there is none.

    Returns
    -------
    Blob or None
        Bias of shape (1, heads, queries, keys).
    """
    if blocks.relative_bias is None:
        return None
    shape = (1, blocks.heads, queries, keys)
    return add_relative_bias(tape, name, blocks.relative_bias, shape, blocks.is_causal)


def mask_bias(tape: Tape, name: str, blocks: Blocks, bias: Blob, mask: Blob | None) -> Blob:
    """Add the causal mask to the relative bias in a block.

    Parameters
    ----------
    name : str
        Name of the attention module.
    blocks : Blocks
    bias : Blob
        Relative bias, (1, heads, queries, keys).
    mask : Blob or None
        Causal mask, where attention is not one kernel. A fused kernel needs a contiguous bias, masked by the block.
    """
    _, _, queries, keys = bias.shape
    if not tape.fused:
        return bias if mask is None else tape.op(f"{name}.add", "add", bias, mask)
    if blocks.is_causal and queries > 1:
        bias = add_causal_bias(tape, name, bias)
    if queries * keys > 1:
        bias = tape.view(name, bias, bias.shape, "contiguous", "copy")
    return bias


def add_cross_bias(tape: Tape, name: str, blocks: Blocks, queries: int, keys: int) -> Blob | None:
    """Add the bias of attention to the encoder, which the first block makes for all; None where there is none."""
    if blocks.relative_bias is None:
        return None
    return add_zero_bias(tape, name, (1, blocks.heads, queries, keys))


def _add_query(tape: Tape, name: str, blocks: Blocks, x: Blob) -> Blob:
    """Add the query projection; return ``(1, heads, tokens, head_size)``."""
    query = tape.linear(f"{name}.{blocks.names.query}", x, blocks.heads * blocks.head_size, blocks.has_query_bias)
    if blocks.scales_queries:
        query = tape.op(f"{name}.mul", "mul", query)
    return _split_heads(tape, name, blocks, query)


def _add_projections(tape: Tape, name: str, blocks: Blocks, x: Blob, source: Blob) -> tuple[Blob, Blob, Blob]:
    """Add the projections of queries from `x` and of keys and values from `source`."""
    width = blocks.heads * blocks.head_size
    has_bias = blocks.has_query_bias
    query = _add_query(tape, name, blocks, x)
    key = tape.linear(f"{name}.{blocks.names.key}", source, width, has_bias and blocks.has_key_bias)
    key = _split_heads(tape, name, blocks, key)
    value = tape.linear(f"{name}.{blocks.names.value}", source, width, has_bias)
    return query, key, _split_heads(tape, name, blocks, value)


def _split_heads(tape: Tape, name: str, blocks: Blocks, blob: Blob) -> Blob:
    blob = tape.split_heads(name, blob, blocks.heads)
    if blocks.scales_queries and blob.shape[2] > 1:
        return tape.view(name, blob, blob.shape, "contiguous", "copy")
    return blob


def _add_packed_projection(tape: Tape, name: str, blocks: Blocks, x: Blob) -> list[Blob]:
    """Add one linear layer for queries, keys and values."""
    tokens = x.shape[1]
    heads, size = blocks.heads, blocks.head_size
    packed = tape.linear(f"{name}.{blocks.names.packed}", x, 3 * heads * size, blocks.has_query_bias)
    packed = tape.view(name, packed, (1, tokens, 3, heads, size))
    parts = tape.split_tensor(f"{name}.unbind", packed, "unbind", ((1, tokens, heads, size),) * 3, "method")
    return [tape.view(name, part, (1, heads, tokens, size), "transpose") for part in parts]

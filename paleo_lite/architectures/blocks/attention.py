"""Multi-head, grouped-query and multi-query attention: to the own sequence, and to the output of an encoder."""

from __future__ import annotations

from typing import Literal

import msgspec

from ...counting import CONSTANT
from ..builder import Blob
from ..tape import Tape
from .block_records import Attention, Indexer
from .disentangled import RelativePositions, add_disentangled_attention
from .dot_product import Scores, add_dot_product_attention
from .feed_forward import add_adapter, add_expert_outputs, add_expert_queries
from .norms import add_norm, rotate_complex
from .relative_bias import add_masked_bias, add_relative_bias, add_zero_bias


class Positions(msgspec.Struct, frozen=True, kw_only=True):
    """Tensors that the blocks of a model share; created once, before the first block."""

    tables: dict[int, tuple[Blob, Blob]] = {}  # cosines and sines for each size of rotated heads
    masks: dict[int | None, Blob | None] = {}  # the mask for each window; None where the kernel masks by itself
    alibi: Blob | None = None  # the bias of the scores, linear in the distance
    # Keys and values of the last layer of each window that made its own, which later layers reuse.
    stored: dict[int | None, tuple[Blob, Blob]] = {}
    biases: dict[str, Blob] = {}  # learned biases of the scores, of self-attention and of attention to an encoder
    relative: RelativePositions | None = None  # of disentangled attention
    memory: Blob | None = None  # output of an encoder; a constant in the decode phase
    embedding: Blob | None = None  # of the tokens, which shared transformers read again (Zamba2)
    per_layer: Blob | None = None  # per-layer embeddings of all blocks (Gemma 3n)


def add_attention(
    tape: Tape,
    name: str,  # name of the attention module
    attention: Attention,
    x: Blob,  # input, ``(1, tokens, hidden_size)``
    positions: Positions,
) -> Blob:
    """Add an attention layer, and return its output, which has the shape of its input."""
    hidden_size = attention.output_size or x.shape[-1]
    heads, kv_heads = device_heads(tape, attention)
    x = tape.column_parallel_input(name, x)
    if attention.disentangled is not None:
        assert positions.relative is not None
        output = add_disentangled_attention(tape, name, attention, attention.disentangled, x, positions.relative)
        return _add_output(tape, name, attention, output, hidden_size)
    gate, routes = None, None
    if attention.experts is not None:
        with tape.role("experts", f"{name}.{attention.experts.module}"):
            query, routes = add_expert_queries(tape, name, attention.experts, x, heads * attention.head_size)
        query = tape.split_heads(name, query, heads)
        key, value = _packed_keys_and_values(tape, name, attention, x, kv_heads)
    elif attention.projections.packed and not attention.reuses_cache:
        query, key, value = _packed_projection(tape, name, attention, x, heads, kv_heads)
    else:
        query, gate = _add_query(tape, name, attention, x, heads)
        if attention.reuses_cache:
            key, value = _stored_states(tape, attention, kv_heads, positions)
        else:
            key, value = _add_key_and_value(tape, name, attention, x, kv_heads)
    if attention.reuses_cache:
        query = _rotate(tape, name, attention, (query,), positions)[0]
    else:
        query, key = _rotate(tape, name, attention, (query, key), positions)
        if attention.query_key_norm == "after_rotary":
            query = add_norm(tape, f"{name}.qk_norm", attention.norm, query, has_weight=False)
            key = add_norm(tape, f"{name}.qk_norm", attention.norm, key, has_weight=False)
        if attention.query_key_norm == "per_head_after_rotary":
            query = add_norm(tape, f"{name}.query_layernorm", attention.norm, query)
            key = add_norm(tape, f"{name}.key_layernorm", attention.norm, key)
        if tape.lengths.uses_cache and attention.is_causal:
            key, value = tape.append_to_cache(name, key, value, attention.window or attention.chunk)
        positions.stored[attention.window] = key, value
    if attention.indexer is not None:
        with tape.role("indexer", f"{name}.{attention.indexer.module}"):
            _add_indexer(tape, f"{name}.{attention.indexer.module}", attention, attention.indexer, x, positions)
    if attention.is_differential:  # two heads of values are read by the pair, so that each product is of both
        value = value._replace(shape=(*value.shape[:-1], 2 * attention.head_size))
    output = _add_kernels(tape, name, attention, (query, key, value), positions)
    if attention.is_differential:
        output = _add_difference(tape, name, attention, output, heads)
    if attention.windows > 1:
        output = tape.view(name, output, (*x.shape[:-1], heads * attention.head_size))
    output = _add_gate(tape, name, attention, x, output, gate)
    if attention.output_norm:
        output = add_norm(tape, f"{name}.{attention.output_norm}", attention.norm, output)
    if attention.experts is not None and routes is not None:
        with tape.role("experts", f"{name}.{attention.experts.module}"):
            output = add_expert_outputs(tape, name, attention.experts, output, routes, hidden_size)
        return tape.row_parallel_output(name, output)
    return _add_output(tape, name, attention, output, hidden_size)


def _add_kernels(
    tape: Tape, name: str, attention: Attention, states: tuple[Blob, Blob, Blob], positions: Positions
) -> Blob:
    """Add attention to the keys and values of all tokens so far; return ``(1, tokens, heads * value_size)``."""
    if attention.windows > 1:  # the last windows may be smaller
        tokens = -(-states[0].shape[2] // attention.windows)
        shapes = [(1, blob.shape[1] * attention.windows, tokens, blob.shape[3]) for blob in states]
        first, second, third = (tape.view(name, blob, shape, "split") for blob, shape in zip(states, shapes))
        states = first, second, third
    query, key, value = states
    window = attention.window if attention.is_causal else None
    if attention.indexer is not None:
        selected = attention.selected_blocks * attention.indexer.block_size
        if query.shape[2] > 1:  # every query has a selection of its own among all tokens
            window = selected
        elif selected < key.shape[2]:
            key, value = (blob._replace(shape=(*blob.shape[:2], selected, blob.shape[3])) for blob in (key, value))
    scores = Scores(
        mask=_add_mask(tape, name, attention, query, key, positions),
        is_causal=attention.is_causal,
        window=window,
        chunk=attention.chunk if attention.is_causal else None,
        dropout=attention.dropout,
        has_softcap=attention.has_softcap,
        has_wide_softmax=attention.has_wide_softmax,
        has_sinks=attention.has_sinks,
    )
    fused = False if attention.is_always_unfused and not tape.lengths.uses_cache else None
    merge_heads_with = "reshape" if attention.transposed_weights else "contiguous"
    return add_dot_product_attention(
        tape, name, query, key, value, scores, merge_heads_with=merge_heads_with, fused=fused
    )


def _add_indexer(tape: Tape, name: str, attention: Attention, indexer: Indexer, x: Blob, positions: Positions) -> None:
    """Add the scores of all tokens for each query and indexer head, their largest in each block, and the selection."""
    heads, size, tokens, keys = indexer.heads, indexer.head_size, tape.lengths.queries, tape.lengths.keys
    query = tape.split_heads(name, tape.linear(f"{name}.q_proj", x, heads * size, bias=False), heads)
    query = add_norm(tape, f"{name}.q_norm", attention.norm, query)
    key = tape.split_heads(name, tape.linear(f"{name}.k_proj", x, size, bias=False), 1)
    key = add_norm(tape, f"{name}.k_norm", attention.norm, key)
    query, key = tape.apply_rotary_embedding(name, [query, key], positions.tables[attention.rotary_size])
    if tape.lengths.uses_cache:
        key = tape.op(f"{name}.cache", "cache", key, out=(1, 1, keys, size), origin="method")
    scores = tape.op(
        f"{name}.matmul", "matmul", query, key, out=(1, heads, tokens, keys), origin="function", inner=size,
        function="matmul",
    )  # fmt: skip
    chosen = (1, heads, tokens, min(attention.selected_blocks, -(-keys // indexer.block_size)))
    tape.split_tensor(f"{name}.topk", scores, "topk", (chosen, chosen), "method")


def _add_gate(tape: Tape, name: str, attention: Attention, x: Blob, output: Blob, gate: Blob | None) -> Blob:
    """Add the gate of the output: made by the query projection, or by one of its own, for each head or each value."""
    heads, _ = device_heads(tape, attention)
    if attention.gate_projection:
        width = heads if attention.gate_is_per_head else output.shape[-1]
        gate = tape.linear(f"{name}.{attention.gate_projection}", x, width, bias=False)
    if gate is None:
        return output
    shape = output.shape
    if attention.gate_is_per_head:
        gate = tape.view(name, gate, (*gate.shape, 1), "unsqueeze")
        output = tape.view(name, output, (*shape[:-1], heads, shape[-1] // heads))
    gate = tape.op(f"{name}.sigmoid", "sigmoid", gate, origin="function")
    output = tape.op(f"{name}.mul", "mul", output, gate, out=output.shape)
    return tape.view(name, output, shape) if attention.gate_is_per_head else output


def _add_difference(tape: Tape, name: str, attention: Attention, output: Blob, heads: int) -> Blob:
    """Add the difference of each pair of heads, weighted by four learned vectors, and its norm (Ye et al. 2024)."""
    size, tokens = attention.head_size, output.shape[1]
    for pair in "12":
        weights = ((size,), (size,))
        tape.op(f"{name}.lambda_{pair}", "mul", out=(size,), weights=weights, origin="function")
    shape = (1, tokens, heads // 2, 2 * size)
    first, second = tape.split_tensor(f"{name}.chunk", output, "chunk", (shape, shape))
    second = tape.op(f"{name}.mul", "mul", second)
    output = tape.op(f"{name}.sub", "sub", first, second, out=shape)
    output = add_norm(tape, f"{name}.subln", "rms", output)
    return tape.view(name, output, (1, tokens, heads * size), "reshape")


def add_cross_attention(
    tape: Tape,
    name: str,  # name of the attention module
    attention: Attention,
    x: Blob,  # source of the queries, ``(1, tokens, hidden_size)``
    positions: Positions,
) -> Blob:
    """Add attention to the output of an encoder.

    Where text is generated, keys and values are computed once, in the prefill phase, and then read from a cache.
    """
    memory = positions.memory
    assert memory is not None
    heads, kv_heads = device_heads(tape, attention)
    query, _ = _add_query(tape, name, attention, x, heads)
    if memory.parent == CONSTANT:
        key = value = _add_memory_cache(tape, name, attention, memory)
    else:
        key, value = _add_key_and_value(tape, name, attention, memory, kv_heads)
        if tape.lengths.uses_cache:
            key = value = _add_memory_cache(tape, name, attention, memory, key, value)
    bias = None
    if attention.relative_bias is not None:  # the first block makes it for all
        if "memory" not in positions.biases:
            shape = (1, heads, x.shape[1], memory.shape[1])
            positions.biases["memory"] = add_zero_bias(tape, name, shape)
        bias = positions.biases["memory"]
    scores = Scores(mask=bias, is_causal=False, dropout=attention.dropout, has_wide_softmax=attention.has_wide_softmax)
    output = add_dot_product_attention(tape, name, query, key, value, scores)
    return _add_output(tape, name, attention, output, x.shape[-1])


def _add_memory_cache(tape: Tape, name: str, attention: Attention, memory: Blob, *projected: Blob) -> Blob:
    """Add the cache of the keys and values of the encoder's output, which is written once and then only read."""
    shape = (1, attention.heads, memory.shape[1], attention.head_size)
    cached = tape.op(f"{name}.cache", "cache", *projected, out=shape, origin="method")
    tape.layers[-1] = tape.layers[-1]._replace(outputs=(shape, shape))
    return cached


def _add_mask(tape: Tape, name: str, attention: Attention, query: Blob, key: Blob, positions: Positions) -> Blob | None:
    """Add the bias and the mask of the attention scores; None if the kernel applies the mask itself."""
    if attention.has_alibi:
        return positions.alibi
    mask = positions.masks.get(attention.window)
    if attention.relative_bias is None:
        return mask
    if "own" not in positions.biases:  # the first block makes it for all
        shape = (1, attention.heads, query.shape[2], key.shape[2])
        bias = add_relative_bias(tape, name, attention.relative_bias, shape, attention.is_causal)
        positions.biases["own"] = bias
    return add_masked_bias(tape, name, positions.biases["own"], mask, attention.is_causal)


def _add_output(tape: Tape, name: str, attention: Attention, output: Blob, hidden_size: int) -> Blob:
    """Add the projection after attention."""
    projection = f"{name}.{attention.projections.output}"
    if attention.outer_projection:
        projection = f"{name.removesuffix(attention.module)}{attention.outer_projection}"
    if attention.transposed_weights:
        output = tape.transposed_linear(projection, output, hidden_size, "attention output")
    else:
        output = tape.linear(projection, output, hidden_size, attention.output_bias, matrix="attention output")
    if attention.output_dropout is not None:
        output = tape.dropout(f"{name}.out_drop", output, attention.output_dropout)
    return tape.row_parallel_output(name, output)


def device_heads(tape: Tape, attention: Attention) -> tuple[int, int]:
    """Return the query heads and the key and value heads of one device under tensor parallelism.

    Key and value heads fewer than the devices are replicated, as Megatron-LM and inference engines do.
    """
    heads = tape.shard_size(attention.heads)
    kv_heads = max(attention.kv_heads // tape.ranks, 1)
    return heads, kv_heads


def _add_query(tape: Tape, name: str, attention: Attention, x: Blob, heads: int) -> tuple[Blob, Blob | None]:
    """Add the query projection; return ``(1, heads, tokens, head_size)``, and the gate of the output."""
    size, tokens = attention.head_size, x.shape[1]
    if attention.query_rank is not None:
        x = tape.linear(f"{name}.q_down_proj", x, attention.query_rank, bias=False)
        x = add_norm(tape, f"{name}.inter_norm", "rms", x)
    if not attention.has_output_gate:
        query = _project(tape, name, attention, x, "query", heads * size, attention.bias)
        if attention.scales_queries:
            query = tape.op(f"{name}.mul", "mul", query)
        return _separate_heads(tape, name, attention, query, heads, "q_norm"), None
    query_and_gate = _project(tape, name, attention, x, "query", 2 * heads * size, attention.bias)
    query_and_gate = tape.view(name, query_and_gate, (1, tokens, heads, 2 * size))
    query, gate = tape.split_tensor(f"{name}.chunk", query_and_gate, "chunk", ((1, tokens, heads, size),) * 2)
    gate = tape.view(name, gate, (1, tokens, heads * size), "reshape", "copy")
    query = tape.view(name, query, (1, tokens, heads * size), "reshape", "copy")
    return _separate_heads(tape, name, attention, query, heads, "q_norm"), gate


def _add_key_and_value(tape: Tape, name: str, attention: Attention, x: Blob, kv_heads: int) -> tuple[Blob, Blob]:
    """Add the projections of keys and values; return ``(1, kv_heads, tokens, head_size)`` each."""
    size, bias = attention.head_size, attention.bias
    projected = _project(tape, name, attention, x, "key", kv_heads * size, bias and attention.has_key_bias)
    key = _separate_heads(tape, name, attention, projected, kv_heads, "k_norm")
    if not attention.shares_key_and_value:
        width = kv_heads * (attention.value_size or size)
        projected = _project(tape, name, attention, x, "value", width, bias)
    value = _separate_heads(tape, name, attention, projected, kv_heads)
    if attention.has_value_norm:
        value = add_norm(tape, f"{name}.v_norm", "rms", value, has_weight=False)
    if attention.has_value_scale:
        value = tape.op(f"{name}.mul", "mul", value)
    return key, value


def _project(
    tape: Tape, name: str, attention: Attention, x: Blob, role: Literal["query", "key", "value"], width: int, bias: bool
) -> Blob:
    """Add one projection, with the adapter beside it."""
    projection: str = getattr(attention.projections, role)
    output = tape.linear(f"{name}.{projection}", x, width, bias, matrix=role)
    if attention.adapter_rank is None:
        return output
    return add_adapter(tape, f"{name}.linear_{projection[0]}_adapter_list", x, attention.adapter_rank, output)


def _separate_heads(tape: Tape, name: str, attention: Attention, state: Blob, count: int, norm: str = "") -> Blob:
    """Add the separation of heads, and the norm of queries or keys, if they have one before their rotation."""
    _, tokens, width = state.shape
    size = width // count
    if norm and attention.query_key_norm == "per_head":
        state = tape.view(name, state, (1, tokens, count, size))
        state = add_norm(tape, f"{name}.{norm}", attention.norm, state)
        return tape.view(name, state, (1, count, tokens, size), "transpose")
    if norm and attention.query_key_norm == "full_width":
        state = add_norm(tape, f"{name}.{norm}", attention.norm, state)
    state = tape.split_heads(name, state, count)
    if attention.scales_queries and tokens > 1:
        return tape.view(name, state, state.shape, "contiguous", "copy")
    return state


def _stored_states(tape: Tape, attention: Attention, kv_heads: int, positions: Positions) -> tuple[Blob, Blob]:
    """Return the keys and values of the last layer with the same window; a block alone reads them from outside."""
    if attention.window in positions.stored:
        return positions.stored[attention.window]
    keys = max(min(tape.lengths.keys, attention.window or tape.lengths.keys), tape.lengths.queries)
    blob = Blob((1, kv_heads, keys, attention.head_size), CONSTANT)
    return blob, blob


def _packed_keys_and_values(tape: Tape, name: str, attention: Attention, x: Blob, kv_heads: int) -> tuple[Blob, Blob]:
    """Add the joint projection of keys and values."""
    width = kv_heads * attention.head_size
    keys_and_values = tape.linear(f"{name}.{attention.projections.packed}", x, 2 * width, attention.bias)
    halves = tape.split_tensor(f"{name}.chunk", keys_and_values, "chunk", ((*x.shape[:-1], width),) * 2, "method")
    key, value = (tape.split_heads(name, half, kv_heads) for half in halves)
    return key, value


def _packed_projection(
    tape: Tape, name: str, attention: Attention, x: Blob, heads: int, kv_heads: int
) -> tuple[Blob, Blob, Blob]:
    """Add the joint projection of queries, keys and values, and split its output."""
    size, tokens = attention.head_size, x.shape[1]
    width = (heads + 2 * kv_heads) * size
    projection = f"{name}.{attention.projections.packed}"
    if attention.transposed_weights:
        packed = tape.transposed_linear(projection, x, width, "query, key and value")
    else:
        packed = tape.linear(projection, x, width, attention.bias, matrix="query, key and value")
    if attention.packed_layout == "heads":
        packed = tape.view(name, packed, (1, tokens, heads, 3 * size))
        packed = tape.view(name, packed, (1, heads, tokens, 3 * size), "transpose")
        query, key, value = tape.split_tensor(
            f"{name}.chunk", packed, "chunk", ((1, heads, tokens, size),) * 3, "method"
        )
        return query, key, value
    if attention.packed_layout == "groups":
        group = heads // kv_heads + 2
        packed = tape.view(name, packed, (1, tokens, kv_heads, group, size))
        shapes = ((1, tokens, heads, size), (1, tokens, kv_heads, size), (1, tokens, kv_heads, size))
        parts = [tape.op(f"{name}.getitem", "slice", packed, out=shape, function="getitem") for shape in shapes]
        transposed = [
            tape.view(name, part, (1, part.shape[2], tokens, size), "transpose", "copy" if index == 0 else "view")
            for index, part in enumerate(parts)
        ]
        return transposed[0], transposed[1], transposed[2]
    if attention.packed_layout == "parts":
        packed = tape.view(name, packed, (1, tokens, 3, heads, size))
        parts = tape.split_tensor(f"{name}.unbind", packed, "unbind", ((1, tokens, heads, size),) * 3, "method")
        query, key, value = (tape.view(name, part, (1, heads, tokens, size), "transpose") for part in parts)
        return query, key, value
    widths = (heads * size, kv_heads * size, kv_heads * size)
    function = attention.packed_layout
    parts = tape.split_tensor(f"{name}.{function}", packed, function, tuple((1, tokens, part) for part in widths))
    if attention.transposed_weights:  # GPT-2 splits off the query last
        key = tape.split_heads(name, parts[1], kv_heads)
        value = tape.split_heads(name, parts[2], kv_heads)
        return tape.split_heads(name, parts[0], heads), key, value
    query = _separate_heads(tape, name, attention, parts[0], heads, "q_norm")
    key = _separate_heads(tape, name, attention, parts[1], kv_heads, "k_norm")
    return query, key, tape.split_heads(name, parts[2], kv_heads)


def _rotate(
    tape: Tape, name: str, attention: Attention, blobs: tuple[Blob, ...], positions: Positions
) -> tuple[Blob, ...]:
    """Rotate queries and keys by their positions; of a partly rotated head only the first elements."""
    rotated = attention.rotary_size
    if rotated == 0:
        return blobs
    tables = positions.tables[rotated]
    if attention.rotary_style == "complex":
        return tuple(rotate_complex(tape, name, blob, tables[0]) for blob in blobs)
    if rotated == attention.head_size:
        return tuple(tape.apply_rotary_embedding(name, blobs, tables))
    rest = attention.head_size - rotated
    turned, plain = [], []
    for blob in blobs:
        turned.append(tape.view(name, blob, (*blob.shape[:-1], rotated), "getitem", "slice"))
        plain.append(tape.view(name, blob, (*blob.shape[:-1], rest), "getitem", "slice"))
    turned = tape.apply_rotary_embedding(name, turned, tables)
    return tuple(
        tape.op(f"{name}.concat", "concat", first, second, out=blob.shape, origin="function")
        for first, second, blob in zip(turned, plain, blobs)
    )

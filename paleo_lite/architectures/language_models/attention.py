"""Attention layers of a decoder: multi-head, grouped-query and latent attention, with their positions and cache."""

from __future__ import annotations

from typing import Any, NamedTuple

from ...counting import CONSTANT
from ..builder import Blob
from ..tape import Tape
from .feed_forward import add_adapter
from .head_experts import add_expert_outputs, add_expert_queries
from .norms import add_norm
from .traits import Attention, LatentAttention


class Positions(NamedTuple):
    """Tensors that all attention layers of a model share; created once, before the first block.

    Attributes
    ----------
    tables : dict of int to (Blob, Blob)
        Cosines and sines for each size of rotated heads.
    masks : dict of (int or None) to (Blob or None)
        The mask for each window; None where the kernel masks by itself.
    alibi : Blob or None
        The bias of the scores, linear in the distance.
    stored : dict of (int or None) to (Blob, Blob)
        Keys and values of the last layer of each window that made its own, which later layers reuse.
    embedding : Blob
        Embedding of the tokens, which shared transformers read again (Zamba2).
    """

    tables: dict[int, tuple[Blob, Blob]]
    masks: dict[int | None, Blob | None]
    alibi: Blob | None
    stored: dict[int | None, tuple[Blob, Blob]]
    embedding: Blob


def add_attention(tape: Tape, name: str, attention: Attention, x: Blob, positions: Positions) -> Blob:
    """Add a multi-head, grouped-query or multi-query attention layer.

    Parameters
    ----------
    name : str
        Name of the attention module.
    x : Blob
        Input, ``(1, tokens, hidden_size)``.

    Returns
    -------
    Blob
        Output, of the same shape.
    """
    hidden_size = attention.output_size or x.shape[-1]
    heads, kv_heads = device_heads(tape, attention)
    x = tape.column_parallel_input(name, x)
    gate, routes = None, None
    if attention.experts is not None:
        query, routes = add_expert_queries(tape, name, attention.experts, x, heads * attention.head_size)
        query = tape.split_heads(name, query, heads)
        key, value = _packed_keys_and_values(tape, name, attention, x, kv_heads)
    elif attention.reuses_cache:
        query = _add_query(tape, name, attention, x, heads, positions)
        key, value = _stored_states(tape, attention, kv_heads, positions)
    elif attention.projections.packed:
        query, key, value = _packed_projection(tape, name, attention, x, heads, kv_heads)
    else:
        query, key, value, gate = _separate_projections(tape, name, attention, x, heads, kv_heads)
    if not attention.reuses_cache:
        query, key = _rotate(tape, name, attention, (query, key), positions)
        if attention.query_key_norm == "after_rotary":
            query = add_norm(tape, f"{name}.qk_norm", attention.norm, query, has_weight=False)
            key = add_norm(tape, f"{name}.qk_norm", attention.norm, key, has_weight=False)
        if attention.query_key_norm == "per_head_after_rotary":
            query = add_norm(tape, f"{name}.query_layernorm", attention.norm, query)
            key = add_norm(tape, f"{name}.key_layernorm", attention.norm, key)
        if tape.lengths.uses_cache:
            key, value = tape.append_to_cache(name, key, value, _reach(attention))
        positions.stored[attention.window] = key, value
    mask = positions.alibi if attention.has_alibi else positions.masks.get(attention.window)
    output = tape.attention(
        name,
        query,
        key,
        value,
        mask=mask,
        window=_reach(attention),
        dropout=attention.dropout,
        has_softcap=attention.has_softcap,
        has_sinks=attention.has_sinks,
        fused=False if attention.is_always_unfused and not tape.lengths.uses_cache else None,
        merge_heads_with="reshape" if attention.transposed_weights else "contiguous",
        writes_cache=False,
    )
    if attention.gate_projection:
        gate = tape.linear(f"{name}.{attention.gate_projection}", x, heads * attention.head_size, bias=False)
    if gate is not None:
        gate = tape.op(f"{name}.sigmoid", "sigmoid", gate, origin="function")
        output = tape.op(f"{name}.mul", "mul", output, gate)
    if attention.output_norm:
        output = add_norm(tape, f"{name}.{attention.output_norm}", attention.norm, output)
    projection = f"{name}.{attention.projections.output}"
    if attention.experts is not None and routes is not None:
        output = add_expert_outputs(tape, name, attention.experts, output, routes, hidden_size)
    elif attention.transposed_weights:
        output = tape.transposed_linear(projection, output, hidden_size)
    else:
        output = tape.linear(projection, output, hidden_size, attention.output_bias)
    return tape.row_parallel_output(name, output)


def device_heads(tape: Tape, attention: Attention) -> tuple[int, int]:
    """Return the query heads and the key and value heads of one device under tensor parallelism.

    Key and value heads fewer than the devices are replicated, as Megatron-LM and inference engines do.
    """
    heads = tape.shard_size(attention.heads)
    kv_heads = max(attention.kv_heads // tape.ranks, 1)
    return heads, kv_heads


def _reach(attention: Attention) -> int | None:
    """Return how many tokens back a query sees: the window, or the chunk as its upper limit."""
    return attention.window if attention.chunk is None else attention.chunk


def _separate_projections(
    tape: Tape, name: str, attention: Attention, x: Blob, heads: int, kv_heads: int
) -> tuple[Blob, Blob, Blob, Blob | None]:
    """Add the query, key and value projections; return ``(1, heads, tokens, head_size)`` each, and the output gate."""
    names = attention.projections
    size, tokens = attention.head_size, tape.lengths.queries
    gate = None
    states: list[Blob] = []
    projected: dict[str, Blob] = {}
    for projection, count in ((names.query, heads), (names.key, kv_heads), (names.value, kv_heads)):
        is_query = projection == names.query
        if projection == names.value:
            size = attention.value_size or size
        is_gated = is_query and attention.has_output_gate
        width = count * size * (2 if is_gated else 1)
        if projection == names.value and attention.shares_key_and_value:
            state = projected[names.key]
        else:
            state = tape.linear(f"{name}.{projection}", x, width, attention.bias)
        if attention.adapter_rank is not None:
            state = add_adapter(tape, f"{name}.linear_{projection[0]}_adapter_list", x, attention.adapter_rank, state)
        projected[projection] = state
        if is_gated:
            both = tape.view(name, state, (1, tokens, count, 2 * size))
            state, gate = tape.split_tensor(f"{name}.chunk", both, "chunk", ((1, tokens, count, size),) * 2)
            gate = tape.view(name, gate, (1, tokens, count * size), "reshape", "copy")
            state = tape.view(name, state, (1, tokens, count * size), "reshape", "copy")
        has_norm = projection != names.value and attention.query_key_norm in ("per_head", "full_width")
        if has_norm and attention.query_key_norm == "full_width":
            norm = f"{name}.{'q' if is_query else 'k'}_norm"
            state = add_norm(tape, norm, attention.norm, state)
        if has_norm and attention.query_key_norm == "per_head":
            norm = f"{name}.{'q' if is_query else 'k'}_norm"
            state = tape.view(name, state, (1, tokens, count, size))
            state = add_norm(tape, norm, attention.norm, state)
            state = tape.view(name, state, (1, count, tokens, size), "transpose")
        else:
            state = tape.split_heads(name, state, count)
        if projection == names.value and attention.has_value_norm:
            state = add_norm(tape, f"{name}.v_norm", "rms", state, has_weight=False)
        if projection == names.value and attention.has_value_scale:
            state = tape.op(f"{name}.mul", "mul", state)
        states.append(state)
    return states[0], states[1], states[2], gate


def _add_query(tape: Tape, name: str, attention: Attention, x: Blob, heads: int, positions: Positions) -> Blob:
    """Add the query projection alone, where keys and values are those of a layer before."""
    size, tokens = attention.head_size, tape.lengths.queries
    query = tape.linear(f"{name}.{attention.projections.query}", x, heads * size, attention.bias)
    if attention.query_key_norm == "per_head":
        query = tape.view(name, query, (1, tokens, heads, size))
        query = add_norm(tape, f"{name}.q_norm", attention.norm, query)
        query = tape.view(name, query, (1, heads, tokens, size), "transpose")
    else:
        query = tape.split_heads(name, query, heads)
    return _rotate(tape, name, attention, (query,), positions)[0]


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
    both = tape.linear(f"{name}.{attention.projections.packed}", x, 2 * width, attention.bias)
    halves = tape.split_tensor(f"{name}.chunk", both, "chunk", ((*x.shape[:-1], width),) * 2, "method")
    key, value = (tape.split_heads(name, half, kv_heads) for half in halves)
    return key, value


def _packed_projection(
    tape: Tape, name: str, attention: Attention, x: Blob, heads: int, kv_heads: int
) -> tuple[Blob, Blob, Blob]:
    """Add the joint projection of queries, keys and values, and split its output."""
    size, tokens = attention.head_size, tape.lengths.queries
    width = (heads + 2 * kv_heads) * size
    projection = f"{name}.{attention.projections.packed}"
    if attention.transposed_weights:
        packed = tape.transposed_linear(projection, x, width)
    else:
        packed = tape.linear(projection, x, width, attention.bias)
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
    widths = (heads * size, kv_heads * size, kv_heads * size)
    function = attention.packed_layout
    parts = tape.split_tensor(f"{name}.{function}", packed, function, tuple((1, tokens, part) for part in widths))
    if attention.transposed_weights:  # GPT-2 splits off the query last
        key = tape.split_heads(name, parts[1], kv_heads)
        value = tape.split_heads(name, parts[2], kv_heads)
        return tape.split_heads(name, parts[0], heads), key, value
    query, key, value = (tape.split_heads(name, part, count) for part, count in zip(parts, (heads, kv_heads, kv_heads)))
    return query, key, value


def _rotate(
    tape: Tape, name: str, attention: Attention, blobs: tuple[Blob, ...], positions: Positions
) -> tuple[Blob, ...]:
    """Rotate queries and keys by their positions; of a partly rotated head only the first elements."""
    rotated = attention.rotary_size
    if rotated == 0:
        return blobs
    tables = positions.tables[rotated]
    if attention.rotary_style == "complex":
        return tuple(_rotate_complex(tape, name, blob, tables[0]) for blob in blobs)
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


def rotate_part(tape: Tape, name: str, blob: Blob, rotary_size: int, tables: tuple[Blob, Blob]) -> Blob:
    """Rotate some elements of each head by their positions, and put them together with the others."""
    shapes = tuple((*blob.shape[:-1], part) for part in (rotary_size, blob.shape[-1] - rotary_size))
    rotated, plain = tape.split_tensor(f"{name}.split", blob, "split", shapes)
    rotated = tape.apply_rotary_embedding(name, [rotated], tables)[0]
    return tape.op(f"{name}.concat", "concat", rotated, plain, out=blob.shape, origin="function")


def _rotate_complex(tape: Tape, name: str, blob: Blob, frequencies: Blob) -> Blob:
    """Rotate pairs of neighbouring elements by multiplying complex numbers, in fp32 (Llama 4, DeepSeek-V2)."""
    pairs = (*blob.shape[:-1], blob.shape[-1] // 2, 2)
    wide = tape.view(name, blob, blob.shape, "float", "copy")
    wide = tape.view(name, wide, pairs, "reshape")
    numbers = tape.view(name, wide, pairs[:-1], "view_as_complex")
    factors = tape.view(name, frequencies, (1, 1, *frequencies.shape[1:]), "getitem", "slice")
    product = tape.op(f"{name}.mul", "mul", numbers, factors, complex=True)
    real = tape.view(name, product, pairs, "view_as_real")
    real = tape.view(name, real, blob.shape, "flatten")
    return tape.view(name, real, blob.shape, "type_as", "copy")


def add_latent_attention(tape: Tape, name: str, attention: LatentAttention, x: Blob, positions: Positions) -> Blob:
    """Add a multi-head latent attention layer (DeepSeek-V2, section 2.1).

    Without a cache, and in a prompt, keys and values are expanded from the latent vectors. In ``decode`` the expansion
    is absorbed: queries are projected into the latent space, every head attends to the one cached latent vector per
    token, and the result is projected to values, as inference engines do. So it is wherever a query attends to a
    selection of the tokens, which has no expanded keys and values in common with that of the next query.
    """
    hidden_size = x.shape[-1]
    heads, tokens = tape.shard_size(attention.heads), tape.lengths.queries
    query_size = attention.plain_size + attention.rotary_size
    query_latent = None
    if attention.query_rank is None:
        query = tape.linear(f"{name}.q_proj", tape.column_parallel_input(name, x), heads * query_size, bias=False)
    else:
        query = tape.linear(f"{name}.q_a_proj", x, attention.query_rank, attention.bias)
        query = add_norm(tape, f"{name}.q_a_layernorm", attention.norm, query)
        query = query_latent = tape.column_parallel_input(name, query)
        query = tape.linear(f"{name}.q_b_proj", query, heads * query_size, bias=False)
    query = tape.split_heads(name, query, heads)
    shapes = ((1, heads, tokens, attention.plain_size), (1, heads, tokens, attention.rotary_size))
    plain, turned = tape.split_tensor(f"{name}.split", query, "split", shapes)
    latent_size = attention.kv_rank + attention.rotary_size
    latent = tape.linear(f"{name}.kv_a_proj_with_mqa", x, latent_size, attention.bias)
    shapes_of_latent = ((1, x.shape[1], attention.kv_rank), (1, x.shape[1], attention.rotary_size))
    latent, key_turned = tape.split_tensor(f"{name}.split", latent, "split", shapes_of_latent)
    latent = add_norm(tape, f"{name}.kv_a_layernorm", attention.norm, latent)
    latent = tape.column_parallel_input(name, latent)
    if tape.is_sequence_parallel:
        key_turned = tape.column_parallel_input(name, key_turned)
    key_turned = tape.view(name, key_turned, (1, 1, tokens, attention.rotary_size))
    if attention.is_rotated:
        turned, key_turned = _rotate_latent(tape, name, attention, turned, key_turned, positions)
    if attention.indexer is not None and query_latent is not None:
        _add_indexer(tape, f"{name}.{attention.indexer.module}", attention, query_latent, x, positions)
    is_sparse = attention.selected is not None and tape.lengths.keys > attention.selected
    if (tape.lengths.uses_cache and tokens == 1) or is_sparse:
        output = _absorbed_attention(tape, name, attention, plain, turned, latent, key_turned)
    else:
        output = _expanded_attention(tape, name, attention, plain, turned, latent, key_turned, positions)
    output = tape.linear(f"{name}.o_proj", output, hidden_size, attention.bias)
    return tape.row_parallel_output(name, output)


def _add_indexer(
    tape: Tape, name: str, attention: LatentAttention, query_latent: Blob, x: Blob, positions: Positions
) -> None:
    """Add the indexer of sparse attention (DeepSeek-V3.2, 2025, section 2.1), which every device computes as a whole.

    One product gives the scores of a kernel that keeps those of the heads on chip: for each pair of tokens `heads`
    products of queries and keys, and their weighted sum.
    """
    indexer = attention.indexer
    assert indexer is not None
    heads, size, tokens = indexer.heads, indexer.head_size, tape.lengths.queries
    query = tape.linear(f"{name}.wq_b", query_latent, heads * size, bias=False)
    key = add_norm(tape, f"{name}.k_norm", "layer", tape.linear(f"{name}.wk", x, size, bias=False))
    weights = tape.linear(f"{name}.weights_proj", x, heads, bias=False)
    if tape.is_sequence_parallel:
        key = tape.column_parallel_input(name, key)
        weights = tape.column_parallel_input(name, weights)
    query = tape.split_heads(name, query, heads)
    key = tape.view(name, key, (1, 1, tokens, size))
    tables = positions.tables[attention.rotary_size]
    query = rotate_part(tape, name, query, attention.rotary_size, tables)
    key = rotate_part(tape, name, key, attention.rotary_size, tables)
    keys = tape.lengths.keys
    if tape.lengths.uses_cache:
        key = tape.op(f"{name}.cache", "cache", key, out=(1, 1, keys, size), origin="method")
    query = tape.view(name, query, (1, tokens, heads * size), "transpose")
    pairs = (1, tokens, keys)
    inner = heads * (size + 1)
    scores = tape.op(
        f"{name}.matmul", "matmul", query, key, out=pairs, origin="function", inner=inner, function="matmul"
    )
    chosen = (1, tokens, min(attention.selected or keys, keys))
    tape.split_tensor(f"{name}.topk", scores, "topk", (chosen, chosen), "method")


def _rotate_latent(
    tape: Tape, name: str, attention: LatentAttention, query: Blob, key: Blob, positions: Positions
) -> tuple[Blob, Blob]:
    tables = positions.tables[attention.rotary_size]
    if attention.rotary_style == "complex":
        return (
            _rotate_complex(tape, name, query, tables[0]),
            _rotate_complex(tape, name, key, tables[0]),
        )
    query, key = tape.apply_rotary_embedding(name, [query, key], tables)
    return query, key


def _expanded_attention(
    tape: Tape, name: str, attention: LatentAttention, plain: Blob, turned: Blob, latent: Blob, key_turned: Blob,
    positions: Positions,
) -> Blob:  # fmt: skip
    """Add attention to expanded keys and values; return ``(1, tokens, heads * value_size)``."""
    heads, tokens = plain.shape[1], plain.shape[2]
    query_size = attention.plain_size + attention.rotary_size
    query = tape.op(f"{name}.concat", "concat", plain, turned, out=(1, heads, tokens, query_size), origin="function")
    width = heads * (attention.plain_size + attention.value_size)
    expanded = tape.linear(f"{name}.kv_b_proj", latent, width, bias=False)
    expanded = tape.split_heads(name, expanded, heads)
    shapes = ((1, heads, tokens, attention.plain_size), (1, heads, tokens, attention.value_size))
    key, value = tape.split_tensor(f"{name}.split", expanded, "split", shapes)
    key_turned = tape.view(name, key_turned, (1, heads, tokens, attention.rotary_size), "expand")
    key = tape.op(f"{name}.concat", "concat", key, key_turned, out=query.shape, origin="function")
    if tape.lengths.uses_cache:
        rotated_part = Blob((1, 1, tokens, attention.rotary_size), key_turned.parent)
        tape.append_to_cache(name, tape.view(name, latent, (1, 1, tokens, attention.kv_rank)), rotated_part)
    return tape.attention(
        name, query, key, value, mask=positions.masks.get(None), dropout=attention.dropout, writes_cache=False
    )


def _absorbed_attention(
    tape: Tape, name: str, attention: LatentAttention, plain: Blob, turned: Blob, latent: Blob, key_turned: Blob
) -> Blob:
    """Add attention in the latent space to the cached latent vectors; return ``(1, tokens, heads * value_size)``."""
    heads, tokens = plain.shape[1], plain.shape[2]
    rank = attention.kv_rank
    up = (attention.plain_size, rank)
    absorbed = tape.op(
        f"{name}.kv_b_proj.key", "matmul", plain, out=(1, heads, tokens, rank), weights=((heads, *up),),
        origin="function", inner=attention.plain_size, function="matmul",
    )  # fmt: skip
    latent_size = rank + attention.rotary_size
    query = tape.op(
        f"{name}.concat", "concat", absorbed, turned, out=(1, heads, tokens, latent_size), origin="function"
    )
    values = tape.view(name, latent, (1, 1, tokens, rank))
    if tape.lengths.uses_cache:
        values, key_turned = tape.append_to_cache(name, values, key_turned)
    # One kernel reads the cached vectors once, as keys and, without their rotated part, as values.
    attributes: dict[str, Any] = {"shares_keys_and_values": True}
    read = values.shape[2]
    if attention.selected is not None and attention.selected < read:
        if tokens == 1:
            read = attention.selected
        else:  # every query has a selection of its own among all tokens
            attributes.update(causal=True, window=attention.selected)
    keys = Blob((1, 1, read, latent_size), key_turned.parent)
    values = Blob((1, 1, read, rank), values.parent)
    output = tape.op(
        f"{name}.attention", "attention", query, keys, values, out=(1, heads, tokens, rank), origin="function",
        **attributes,
    )  # fmt: skip
    down = (rank, attention.value_size)
    values = tape.op(
        f"{name}.kv_b_proj.value", "matmul", output, out=(1, heads, tokens, attention.value_size),
        weights=((heads, *down),), origin="function", inner=rank, function="matmul",
    )  # fmt: skip
    values = tape.view(name, values, (1, tokens, heads, attention.value_size), "transpose")
    return tape.view(name, values, (1, tokens, heads * attention.value_size), "reshape", "copy")

"""Multi-head latent attention (DeepSeek-V2, 2024), and the selection of tokens by an indexer (DeepSeek-V3.2, 2025)."""

from __future__ import annotations

from typing import Any

from ..builder import Blob
from ..tape import Tape
from .attention import Positions
from .block_records import LatentAttention
from .dot_product import Scores, add_dot_product_attention
from .norms import add_norm, rotate_complex, rotate_part


def add_latent_attention(tape: Tape, name: str, attention: LatentAttention, x: Blob, positions: Positions) -> Blob:
    """Add a multi-head latent attention layer (DeepSeek-V2, section 2.1).

    Without a cache, and in a prompt, keys and values are expanded from the latent vectors. In ``decode`` the expansion
    is absorbed: queries are projected into the latent space, every head attends to the one cached latent vector per
    token, and the result is projected to values, as inference engines do. So it is wherever a query attends to a
    selection of the tokens, which has no expanded keys and values in common with that of the next query.
    """
    plain, turned, query_latent = _add_query(tape, name, attention, x)
    latent, key_turned = _add_latent(tape, name, attention, x)
    if attention.is_rotated:
        turned, key_turned = _rotate_latent(tape, name, attention, turned, key_turned, positions)
    if attention.indexer is not None and query_latent is not None:
        module = f"{name}.{attention.indexer.module}"
        with tape.role("indexer", module):
            _add_indexer(tape, module, attention, query_latent, x, positions)
    is_single_query = tape.lengths.uses_cache and tape.lengths.queries == 1
    is_sparse = attention.selected is not None and tape.lengths.keys > attention.selected
    if is_single_query or is_sparse:
        output = _absorbed_attention(tape, name, attention, plain, turned, latent, key_turned)
    else:
        output = _expanded_attention(tape, name, attention, plain, turned, latent, key_turned, positions)
    if attention.gate_projection:
        read = tape.column_parallel_input(name, x)
        gate = tape.linear(f"{name}.{attention.gate_projection}", read, output.shape[-1], bias=False)
        gate = tape.op(f"{name}.sigmoid", "sigmoid", gate, origin="function")
        output = tape.op(f"{name}.mul", "mul", output, gate)
    hidden_size = x.shape[-1]
    output = tape.linear(f"{name}.o_proj", output, hidden_size, attention.bias)
    return tape.row_parallel_output(name, output)


def _add_query(tape: Tape, name: str, attention: LatentAttention, x: Blob) -> tuple[Blob, Blob, Blob | None]:
    """Add the query; return its plain and its rotated part, ``(1, heads, tokens, size)``, and its latent vectors.

    The latent vectors are None where queries are projected at once.
    """
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
    return plain, turned, query_latent


def _add_latent(tape: Tape, name: str, attention: LatentAttention, x: Blob) -> tuple[Blob, Blob]:
    """Add the vectors that are cached: latent ones ``(1, tokens, rank)`` and rotated keys ``(1, 1, tokens, size)``."""
    latent_size = attention.kv_rank + attention.rotary_size
    latent = tape.linear(f"{name}.kv_a_proj_with_mqa", x, latent_size, attention.bias)
    shapes_of_latent = ((1, x.shape[1], attention.kv_rank), (1, x.shape[1], attention.rotary_size))
    latent, key_turned = tape.split_tensor(f"{name}.split", latent, "split", shapes_of_latent)
    latent = add_norm(tape, f"{name}.kv_a_layernorm", attention.norm, latent)
    latent = tape.column_parallel_input(name, latent)
    if tape.is_sequence_parallel:
        key_turned = tape.column_parallel_input(name, key_turned)
    return latent, tape.view(name, key_turned, (1, 1, tape.lengths.queries, attention.rotary_size))


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
            rotate_complex(tape, name, query, tables[0]),
            rotate_complex(tape, name, key, tables[0]),
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
    scores = Scores(mask=positions.masks.get(None), dropout=attention.dropout)
    return add_dot_product_attention(tape, name, query, key, value, scores)


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

"""Attention to a window of tokens and to compressed ones (DeepSeek-V4, 2026).

Sections and equations are those of its report. A compressor makes one key of every few tokens, which serves as value,
too: the weighted mean of projected tokens, with weights from a softmax over them (equations 9 to 12 and 20 to 23).
"""

from __future__ import annotations

from typing import Any

from ..builder import Blob
from ..tape import Tape
from .attention import Positions
from .block_records import CompressedAttention, Compression
from .dot_product import Scores, add_dot_product_attention
from .norms import add_norm, rotate_part


def add_compressed_attention(
    tape: Tape, name: str, attention: CompressedAttention, x: Blob, positions: Positions
) -> Blob:
    """Add attention with one key and value head, to the last tokens and to the compressed ones (section 2.3).

    Every device has the keys; queries are divided among the devices.
    """
    heads, size, tokens = tape.shard_size(attention.heads), attention.head_size, tape.lengths.queries
    tables = positions.tables[attention.rotary_size]
    x = tape.column_parallel_input(name, x)
    latent = tape.linear(f"{name}.q_a_proj", x, attention.query_rank, bias=False)
    latent = add_norm(tape, f"{name}.q_a_norm", "rms", latent)
    query = tape.linear(f"{name}.q_b_proj", latent, heads * size, bias=False)
    query = add_norm(tape, f"{name}.q_b_norm", "rms", tape.split_heads(name, query, heads), has_weight=False)
    query = rotate_part(tape, name, query, attention.rotary_size, tables)
    key = add_norm(tape, f"{name}.kv_norm", "rms", tape.linear(f"{name}.kv_proj", x, size, bias=False))
    key = rotate_part(tape, name, tape.view(name, key, (1, 1, tokens, size)), attention.rotary_size, tables)
    if tape.lengths.uses_cache:
        near = max(min(tape.lengths.keys, attention.window), tokens)
        key = tape.op(f"{name}.cache", "cache", key, out=(1, 1, near, size), origin="method")
    reach = attention.window
    if attention.compression is not None:
        part = attention.compression
        far = _add_compressor(tape, f"{name}.compressor", part, size, attention.rotary_size, x, tables)
        read = far.shape[2]
        if part.indexer is not None and part.selected is not None:
            module = f"{name}.compressor.indexer"
            with tape.role("indexer", module):
                _add_selection(tape, module, part, attention.rotary_size, latent, x, tables)
            read = min(read, part.selected)
        reach += read
        if tokens == 1:
            far = Blob((1, 1, read, size), far.parent)
        shape = (1, 1, key.shape[2] + far.shape[2], size)
        key = tape.op(f"{name}.concat", "concat", key, far, out=shape, origin="function")
    output = _add_kernel(tape, name, query, key, reach, positions.masks.get(attention.window))
    output = rotate_part(tape, name, output, attention.rotary_size, tables)
    groups = tape.shard_size(attention.output_groups)
    width = heads * size // groups
    grouped = tape.view(name, output, (1, tokens, groups, width), "reshape", "copy")
    ranks = (1, tokens, groups, attention.output_rank)
    output = tape.op(
        f"{name}.o_a_proj", "matmul", grouped, out=ranks, weights=((groups, attention.output_rank, width),),
        origin="function", inner=width, function="bmm",
    )  # fmt: skip
    output = tape.view(name, output, (1, tokens, groups * attention.output_rank), "flatten")
    return tape.row_parallel_output(name, tape.linear(f"{name}.o_b_proj", output, x.shape[-1], bias=False))


def _add_kernel(tape: Tape, name: str, query: Blob, key: Blob, reach: int, mask: Blob | None) -> Blob:
    """Add attention to keys that are values, too, with a sink for each head; return ``(1, heads, tokens, size)``."""
    _, heads, tokens, size = query.shape
    if not tape.fused:
        output = add_dot_product_attention(tape, name, query, key, key, Scores(mask=mask, has_sinks=True))
        return tape.view(name, output, (1, heads, tokens, size), "transpose")
    attributes: dict[str, Any] = {"shares_keys_and_values": True}
    if tokens > 1:  # every query has the last tokens before it, and its own selection of compressed ones
        attributes.update(causal=True, window=min(reach, key.shape[2]))
    return tape.op(
        f"{name}.attention", "attention", query, key, key, out=query.shape, weights=((heads,),), origin="function",
        **attributes,
    )  # fmt: skip


def _add_compressor(
    tape: Tape, name: str, part: Compression, size: int, rotary_size: int, x: Blob, tables: tuple[Blob, Blob]
) -> Blob:
    """Add a compressor; return the compressed keys of all tokens, ``(1, 1, keys / rate, size)``.

    Projections run for every token. In decode, a mean over `rate` tokens is due once in `rate` steps; its few
    operations are counted in each.
    """
    tokens = tape.lengths.queries
    width = size * (2 if part.overlaps else 1)
    values = tape.linear(f"{name}.kv_proj", x, width, bias=False)
    gates = tape.linear(f"{name}.gate_proj", x, width, bias=False)
    windows, span = tokens // part.rate, part.rate * (2 if part.overlaps else 1)
    gates = tape.op(f"{name}.position_bias", "add", gates, weights=((part.rate, width),))
    shape = (1, max(windows, 1), span, size)
    if part.overlaps:  # a window reads half of the features of its tokens, and the other half of those before
        values = tape.view(name, values, shape, "new_zeros", "copy")
        gates = tape.view(name, gates, shape, "new_full", "copy")
    else:
        values, gates = tape.view(name, values, shape), tape.view(name, gates, shape)
    weights = tape.softmax(name, gates)
    weighted = tape.op(f"{name}.mul", "mul", values, weights)
    means = (1, max(windows, 1), size)
    compressed = tape.op(f"{name}.sum", "reduce", weighted, out=means, origin="method", function="sum")
    compressed = add_norm(tape, f"{name}.kv_norm", "rms", compressed)
    compressed = tape.view(name, compressed, (1, 1, *means[1:]), "unsqueeze")
    compressed_tables = tuple(Blob((1, means[1], rotary_size), table.parent) for table in tables)
    compressed = rotate_part(tape, name, compressed, rotary_size, (compressed_tables[0], compressed_tables[1]))
    count = tape.lengths.keys // part.rate
    if tape.lengths.uses_cache:
        return tape.op(f"{name}.cache", "cache", compressed, out=(1, 1, count, size), origin="method")
    return Blob((1, 1, count, size), compressed.parent)


def _add_selection(
    tape: Tape, name: str, part: Compression, rotary_size: int, latent: Blob, x: Blob, tables: tuple[Blob, Blob]
) -> None:
    """Add the indexer that selects compressed keys for each query, which every device computes as a whole."""
    indexer = part.indexer
    assert indexer is not None
    heads, size, tokens = indexer.heads, indexer.head_size, tape.lengths.queries
    keys = _add_compressor(tape, name, part, size, rotary_size, x, tables)
    query = tape.split_heads(name, tape.linear(f"{name}.q_b_proj", latent, heads * size, bias=False), heads)
    query = rotate_part(tape, name, query, rotary_size, tables)
    weights = tape.linear(f"{name}.scorer.weights_proj", x, heads, bias=False)
    count = keys.shape[2]
    if not count:
        return
    # One product for a kernel that keeps the scores of the heads on chip.
    query = tape.view(name, query, (1, tokens, heads * size), "transpose")
    scores = tape.op(
        f"{name}.scorer.matmul", "matmul", query, keys, out=(1, tokens, count), origin="function",
        inner=heads * size, function="matmul",
    )  # fmt: skip
    scores = tape.op(f"{name}.scorer.mul", "mul", scores, weights, out=scores.shape)
    chosen = (1, tokens, min(part.selected or count, count))
    tape.split_tensor(f"{name}.topk", scores, "topk", (chosen, chosen), "method")

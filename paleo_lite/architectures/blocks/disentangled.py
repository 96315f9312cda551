"""Disentangled attention of contents and relative positions (DeBERTa, He et al. 2021)."""

from __future__ import annotations

from typing import Any, NamedTuple

from ...counting import Shape
from ..builder import Blob
from ..tape import Tape
from .block_records import Attention, Disentangled


class RelativePositions(NamedTuple):
    """Tensors that the attention layers of all blocks read."""

    mask: Blob  # the padding mask of pairs of tokens, (1, 1, tokens, tokens)
    distances: Blob | None = None  # the relative position of each pair of tokens, (1, tokens, tokens)
    table: Blob | None = None  # the embedding of relative positions, (2 span, hidden_size)


def add_relative_positions(
    tape: Tape, root: str, part: Disentangled, tokens: int, hidden_size: int
) -> RelativePositions:
    """Add the padding mask, the relative positions and their embedding, once for all blocks."""
    name = f"{root}encoder"
    padding = Blob((1, tokens), _layer_index(tape, f"{root}ones"))
    row = tape.view(name, padding, (1, 1, tokens), "unsqueeze")
    row = tape.view(name, row, (1, 1, 1, tokens), "unsqueeze")
    column = tape.view(name, row, (1, 1, tokens), "squeeze")
    column = tape.view(name, column, (1, 1, tokens, 1), "unsqueeze")
    mask = tape.op(f"{name}.mul", "mul", row, column, out=(1, 1, tokens, tokens))
    if not part.span:
        return RelativePositions(mask)
    distances = _add_distances(tape, name, part, tokens)
    shape = (2 * part.span, hidden_size)
    table = tape.op(f"{root}{part.table}", "view", out=shape, weights=(shape,), origin="module:LayerNorm")
    if part.has_norm:
        table = tape.layer_norm(f"{root}{part.norm}", table)
    return RelativePositions(mask, distances, table)


def _layer_index(tape: Tape, name: str) -> int:
    """Return the index of the layer with a name."""
    return next(index for index, layer in enumerate(tape.layers) if layer.name == name)


def _add_distances(tape: Tape, name: str, part: Disentangled, tokens: int) -> Blob:
    """Add the distance of each pair of tokens, far ones in logarithmic classes."""
    square = (tokens, tokens)
    rows = tape.op(f"{name}.arange", "fill", out=(tokens,), origin="function", function="arange")
    columns = tape.op(f"{name}.arange", "fill", out=(tokens,), origin="function", function="arange")
    rows = tape.view(name, rows, (tokens, 1), "getitem", "slice")
    columns = tape.view(name, columns, (1, tokens), "getitem", "slice")
    distances = tape.op(f"{name}.sub", "sub", rows, columns, out=square)
    if part.has_log_buckets:
        distances = _add_log_classes(tape, name, distances)
        distances = tape.view(name, distances, square, "to", "copy")
    distances = tape.view(name, distances, square, "getitem", "slice")
    return tape.view(name, distances, (1, *square), "unsqueeze")


def _add_log_classes(tape: Tape, name: str, distances: Blob) -> Blob:
    """Add the classes of distances (``make_log_bucket_position``)."""
    square = distances.shape

    def add(kind: str, *inputs: Blob, function: str = "", out: Shape = square, **options: Any) -> Blob:
        """Add an operation that is called after its kind or its function."""
        options.setdefault("origin", "operator")
        if function:
            options["function"] = function
        return tape.op(f"{name}.{function or kind}", kind, *inputs, out=out, **options)

    sign = add("round", distances, function="sign", origin="function")
    below = add("compare", distances, function="lt", origin="method", no_gradient=True)
    above = add("compare", distances, function="gt", origin="method", no_gradient=True)
    is_near = add("logical", below, above, function="logical_and", no_gradient=True)
    limit = add("fill", function="tensor", out=(), origin="function")
    size = add("abs", distances, origin="function")
    size = add("where", is_near, limit, size, origin="function")
    far = add("log", add("div", size), origin="function")
    ratio = add("fill", function="tensor", out=(), origin="function")
    ratio = add("log", ratio, out=(), origin="function")
    far = add("mul", add("div", far, ratio))
    far = add("add", add("round", far, function="ceil", origin="function"))
    is_exact = add("compare", size, function="le", origin="method", no_gradient=True)
    exact = tape.view(name, distances, square, "type_as", "copy")
    far = add("mul", far, sign)
    return add("where", is_exact, exact, far, origin="function")


def add_disentangled_attention(
    tape: Tape, name: str, attention: Attention, part: Disentangled, x: Blob, shared: RelativePositions
) -> Blob:
    """Add attention in the separate kernels of ``transformers``; return ``(1, tokens, heads * head_size)``."""
    names = attention.projections
    heads, size, tokens = attention.heads, attention.head_size, x.shape[1]
    query = _heads_first(tape, name, tape.linear(f"{name}.{names.query}", x, heads * size), heads)
    key = _heads_first(tape, name, tape.linear(f"{name}.{names.key}", x, heads * size), heads)
    value = _heads_first(tape, name, tape.linear(f"{name}.{names.value}", x, heads * size), heads)
    square = (heads, tokens, tokens)
    scale = _scale(tape, name)
    keys = tape.view(name, key, (heads, size, tokens), "transpose")
    keys = tape.op(f"{name}.div", "div", keys, scale)
    scores = _product(tape, name, query, keys)
    if shared.table is not None:
        bias = _position_terms(tape, name, attention, part, query, key, shared)
        scores = tape.op(f"{name}.add", "add", scores, bias)
    scores = tape.view(name, scores, (1, *square))
    mask = tape.view(name, shared.mask, shared.mask.shape, "to_copy", "copy")
    masked = tape.op(f"{name}.logical_not", "logical", mask, no_gradient=True, function="logical_not")
    scores = tape.op(f"{name}.where", "where", scores, masked, origin="method")
    weights = tape.softmax(name, scores)
    weights = tape.dropout(f"{name}.dropout", weights, attention.dropout)
    weights = tape.view(name, weights, square)
    mixed = _product(tape, name, weights, value)
    mixed = tape.view(name, mixed, (1, heads, tokens, size))
    mixed = tape.view(name, mixed, (1, tokens, heads, size), "permute")
    mixed = tape.view(name, mixed, mixed.shape, "contiguous", "copy")
    return tape.view(name, mixed, (1, tokens, heads * size))


def _heads_first(tape: Tape, name: str, blob: Blob, heads: int) -> Blob:
    """Add a copy of (1, tokens, heads * size) as (heads, tokens, size)."""
    _, tokens, width = blob.shape
    size = width // heads
    blob = tape.view(name, blob, (1, tokens, heads, size))
    blob = tape.view(name, blob, (1, heads, tokens, size), "permute")
    blob = tape.view(name, blob, blob.shape, "contiguous", "copy")
    return tape.view(name, blob, (heads, tokens, size))


def _scale(tape: Tape, name: str) -> Blob:
    """Add the square root of the head size times the number of terms."""
    size = tape.op(f"{name}.tensor", "fill", out=(), origin="function", function="tensor")
    size = tape.op(f"{name}.mul", "mul", size)
    return tape.op(f"{name}.sqrt", "sqrt", size, origin="function")


def _product(tape: Tape, name: str, left: Blob, right: Blob) -> Blob:
    """Add a matrix product for each head."""
    out = (*left.shape[:-1], right.shape[-1])
    inner = left.shape[-1]
    return tape.op(f"{name}.bmm", "matmul", left, right, out=out, origin="function", inner=inner, function="bmm")


def _position_terms(
    tape: Tape, name: str, attention: Attention, part: Disentangled, query: Blob, key: Blob, shared: RelativePositions
) -> Blob:
    """Add the terms of the scores between contents and positions, and their sum."""
    assert shared.table is not None and shared.distances is not None
    heads, tokens = query.shape[:2]
    names = attention.projections
    table = tape.dropout(f"{name}.pos_dropout", shared.table, part.dropout)
    distances = tape.view(name, shared.distances, (1, 1, tokens, tokens), "unsqueeze")
    distances = tape.view(name, distances, distances.shape, "to", "copy")
    table = tape.view(name, table, table.shape, "getitem", "slice")
    table = tape.view(name, table, (1, *table.shape), "unsqueeze")
    width = heads * query.shape[-1]
    projections = [("c2p", "pos_key_proj"), ("p2c", "pos_query_proj")]
    if part.shares_projections:
        projections = [("p2c", names.query), ("c2p", names.key)]
    projected = {}
    for term, projection in projections:
        if not part.shares_projections and term not in part.terms:
            continue
        new_parameters = 0 if part.shares_projections else None
        rows = _heads_first(
            tape, name, tape.linear(f"{name}.{projection}", table, width, new_parameters=new_parameters), heads
        )
        projected[term] = tape.view(name, rows, rows.shape, "repeat", "copy", scales=True)
    total = None
    for term, contents in (("c2p", query), ("p2c", key)):
        if term in part.terms:
            score = _position_term(tape, name, contents, projected[term], distances, term)
            terms = [score] if total is None else [total, score]
            total = tape.op(f"{name}.add", "add", *terms)
    assert total is not None
    return total


def _position_term(tape: Tape, name: str, contents: Blob, rows: Blob, distances: Blob, term: str) -> Blob:
    """Add one term: the product of contents and all positions, and the choice of one position per pair of tokens."""
    heads, tokens, _ = contents.shape
    scale = _scale(tape, name)
    if term == "p2c":
        distances = tape.op(f"{name}.neg", "neg", distances)
    places = tape.op(f"{name}.add", "add", distances)
    places = tape.op(f"{name}.clamp", "clamp", places, origin="function")
    transposed = tape.view(name, rows, (heads, rows.shape[2], rows.shape[1]), "transpose")
    scores = _product(tape, name, contents, transposed)
    places = tape.view(name, places, (1, tokens, tokens), "squeeze")
    places = tape.view(name, places, (heads, tokens, tokens), "expand", scales=True)
    scores = tape.op(f"{name}.gather", "gather", scores, places, out=places.shape, origin="function")
    if term == "p2c":
        scores = tape.view(name, scores, scores.shape, "transpose")
    return tape.op(f"{name}.div", "div", scores, scale)

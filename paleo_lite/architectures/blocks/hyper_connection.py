"""Hyper-connections: several residual streams that every part of a block reads and mixes (Xie et al. 2026)."""

from __future__ import annotations

from ...counting import CONSTANT
from ..builder import Blob
from ..tape import Tape
from .block_records import HyperConnection
from .norms import add_norm


def add_streams(tape: Tape, name: str, x: Blob, streams: int) -> Blob:
    """Add the residual streams, each at first a copy of the embedding: ``(1, tokens, streams, hidden_size)``."""
    _, tokens, size = x.shape
    return tape.view(name, x, (1, tokens, streams, size), "contiguous", "copy")


def add_collapse(tape: Tape, name: str, connection: HyperConnection, x: Blob) -> tuple[Blob, Blob, Blob]:
    """Add the weights of a hyper-connection, and the weighted sum of the streams (section 2.2; Xie et al. 2026).

    A product of all streams gives weights of the input, of the output, and of the streams among themselves, of which
    the Sinkhorn-Knopp algorithm makes a doubly stochastic matrix; its few numbers per token are counted as one softmax.

    Return the sum, the weights of the output, and the matrix that mixes the streams.
    """
    streams, tokens = connection.streams, x.shape[1]
    count = (2 + streams) * streams
    mixes = _add_mixes(tape, name, x, count, 3)
    shapes = ((1, tokens, streams), (1, tokens, streams), (1, tokens, streams * streams))
    before, after, mixing = tape.split_tensor(f"{name}.split", mixes, "split", shapes, "method")
    before = tape.op(f"{name}.sigmoid", "sigmoid", before, origin="function")
    after = tape.op(f"{name}.sigmoid", "sigmoid", after, origin="function")
    matrix = tape.view(name, mixing, (1, tokens, streams, streams))
    matrix = tape.softmax(name, matrix)
    return _add_weighted_sum(tape, name, before, x), after, matrix


def add_expansion(tape: Tape, name: str, output: Blob, after: Blob, matrix: Blob, x: Blob) -> Blob:
    """Add the output of a part to the mixed streams."""
    streams = x.shape[2]
    weights = tape.view(name, after, (*after.shape, 1), "unsqueeze")
    expanded = tape.op(f"{name}.mul", "mul", weights, output, out=x.shape)
    mixed = tape.op(
        f"{name}.matmul", "matmul", matrix, x, out=x.shape, origin="function", inner=streams, function="matmul"
    )
    return tape.op(f"{name}.add", "add", expanded, mixed)


def add_final_collapse(tape: Tape, name: str, x: Blob) -> Blob:
    """Add the weighted sum of the streams after the last block."""
    weights = tape.op(f"{name}.sigmoid", "sigmoid", _add_mixes(tape, name, x, x.shape[2], 1), origin="function")
    return _add_weighted_sum(tape, name, weights, x)


def _add_mixes(tape: Tape, name: str, x: Blob, count: int, scales: int) -> Blob:
    """Add the product of the normalised streams with a matrix, a scale for each kind of weight, and a bias."""
    _, tokens, streams, size = x.shape
    flat = tape.view(name, x, (1, tokens, streams * size), "flatten")
    flat = add_norm(tape, f"{name}.input_norm", "rms", flat, has_weight=False)
    mixes = tape.linear(f"{name}.fn", flat, count, bias=False)
    mixes = tape.op(f"{name}.scale", "mul", mixes, Blob((count,), CONSTANT), weights=((scales,),))
    return tape.op(f"{name}.base", "add", mixes, weights=((count,),))


def _add_weighted_sum(tape: Tape, name: str, weights: Blob, x: Blob) -> Blob:
    _, tokens, _, size = x.shape
    weights = tape.view(name, weights, (*weights.shape, 1), "unsqueeze")
    weighted = tape.op(f"{name}.mul", "mul", weights, x, out=x.shape)
    return tape.op(f"{name}.sum", "reduce", weighted, out=(1, tokens, size), origin="method", function="sum")

"""Blocks with alternating updates of several streams (AltUp, Baykal et al. 2023), as in Gemma 3n.

A block predicts all streams from each other, computes attention and feed-forward part of one stream, and corrects the
others by its error. Beside attention runs a low-rank residual (LAuReL, Menghani et al. 2024).
"""

from __future__ import annotations

from ...counting import CONSTANT
from ..builder import Blob
from ..tape import Tape
from .block_records import Alternating, PerLayerInput
from .norms import add_norm


def add_alternating_streams(tape: Tape, root: str, alternating: Alternating, x: Blob) -> Blob:
    """Add the streams: the embedding, and projections of it with its magnitude."""
    _, tokens, size = x.shape
    name = f"{root}.altup_projections" if root else "altup_projections"
    streams = [x, *(_add_projection(tape, f"{name}.{index}", x) for index in range(alternating.streams - 1))]
    shape = (1, tokens, alternating.streams, size)
    return tape.op(f"{name}.stack", "concat", *streams, out=shape, origin="function")


def add_mean_of_streams(tape: Tape, root: str, alternating: Alternating, x: Blob) -> Blob:
    """Add the mean of the streams after the last block, each but the first projected back."""
    _, tokens, streams, size = x.shape
    name = f"{root}.altup_unembed_projections" if root else "altup_unembed_projections"
    separate = [tape.view(name, x, (1, tokens, size), "getitem", "slice") for _ in range(streams)]
    projected = [_add_projection(tape, f"{name}.{index}", blob) for index, blob in enumerate(separate[1:])]
    stacked = tape.op(f"{name}.stack", "concat", separate[0], *projected, out=x.shape, origin="function")
    return tape.op(f"{name}.mean", "reduce", stacked, out=(1, tokens, size), origin="function", function="mean")


def add_prediction(tape: Tape, name: str, alternating: Alternating, x: Blob) -> tuple[Blob, Blob]:
    """Add the prediction of all streams; return it, and that of the active stream."""
    _, tokens, streams, size = x.shape
    active = tape.view(name, x, (1, tokens, size), "getitem", "slice")
    modalities = _add_router(tape, name, alternating, active, is_first=True)
    coefficients = tape.linear(f"{name}.prediction_coefs", modalities, streams**2, bias=False)
    matrix = tape.view(name, coefficients, (1, tokens, streams, streams), "permute")
    predicted = tape.op(
        f"{name}.matmul", "matmul", x, matrix, out=x.shape, origin="function", inner=streams, function="matmul"
    )
    predicted = tape.op(f"{name}.add", "add", predicted, x)
    return predicted, tape.view(name, predicted, (1, tokens, size), "getitem", "slice")


def add_laurel(tape: Tape, name: str, alternating: Alternating, x: Blob) -> Blob:
    """Add the low-rank residual of attention."""
    left = tape.linear(f"{name}.linear_left", x, alternating.laurel_rank, bias=False)
    right = tape.linear(f"{name}.linear_right", left, x.shape[-1], bias=False)
    right = add_norm(tape, f"{name}.post_laurel_norm", "rms", right)
    return tape.op(f"{name}.add", "add", x, right)


def add_correction(
    tape: Tape, name: str, alternating: Alternating, predicted: Blob, output: Blob, active: Blob
) -> Blob:
    """Add the correction of all streams by the error of the prediction of the active one."""
    modalities = _add_router(tape, name, alternating, output, is_first=False)
    error = tape.op(f"{name}.sub", "sub", output, active)
    errors = tape.view(name, error, predicted.shape, "repeat", "copy")
    coefficients = tape.linear(f"{name}.correction_coefs", modalities, predicted.shape[2], bias=False)
    coefficients = tape.op(f"{name}.add", "add", coefficients)
    coefficients = tape.view(name, coefficients, (*coefficients.shape, 1), "unsqueeze")
    scaled = tape.op(f"{name}.mul", "mul", errors, coefficients)
    return tape.op(f"{name}.add", "add", scaled, predicted)


def add_gated_embedding(
    tape: Tape, block: str, part: PerLayerInput, corrected: Blob, embedding: Blob, module: str
) -> Blob:
    """Add the per-layer embedding of a block, gated by the active stream, to the other streams."""
    _, tokens, streams, size = corrected.shape
    first = tape.view(block, corrected, (1, tokens, size), "clone", "copy")
    first = tape.op(f"{block}.{module}", "mul", first, weights=((size,),))
    gate = tape.linear(f"{block}.per_layer_input_gate", first, part.size, bias=False)
    gate = tape.activation(f"{block}.act_fn", gate, part.activation)
    block_embedding = tape.view(block, embedding, (1, tokens, part.size), "getitem", "slice")
    gated = tape.op(f"{block}.mul", "mul", gate, block_embedding)
    output = tape.linear(f"{block}.per_layer_projection", gated, size, bias=False)
    output = add_norm(tape, f"{block}.post_per_layer_input_norm", "rms", output)
    others = (1, tokens, streams - 1, size)
    rest = tape.view(block, corrected, others, "getitem", "slice")
    changed = tape.op(f"{block}.add", "add", rest, output, out=others)
    return Blob(corrected.shape, changed.parent)


def _add_projection(tape: Tape, name: str, x: Blob) -> Blob:
    """Add a projection, scaled to the magnitude of its input."""
    projected = tape.linear(name, x, x.shape[-1], bias=False)
    squared = tape.op(f"{name}.pow", "pow", projected, origin="operator")
    per_token = (*x.shape[:-1], 1)
    mean = tape.op(f"{name}.mean", "reduce", squared, out=per_token, origin="function", function="mean")
    magnitude = tape.op(f"{name}.sqrt", "sqrt", mean, origin="function")
    scaled = tape.op(f"{name}.mul", "mul", projected, Blob(per_token, CONSTANT))
    return tape.op(f"{name}.div", "div", scaled, magnitude)


def _add_router(tape: Tape, name: str, alternating: Alternating, x: Blob, is_first: bool) -> Blob:
    """Add the weights of the streams; the router runs twice in a block."""
    new_parameters = None if is_first else 0
    normal = add_norm(tape, f"{name}.router_norm", "rms", x, has_weight=False)
    normal = tape.op(f"{name}.router_norm", "mul", normal, weights=((x.shape[-1],),), new_parameters=new_parameters)
    normal = tape.op(f"{name}.mul", "mul", normal)
    routed = tape.linear(
        f"{name}.modality_router", normal, alternating.streams, bias=False, new_parameters=new_parameters
    )
    return tape.op(f"{name}.tanh", "tanh", routed, origin="function")

"""Normalisation layers, by the kinds of `paleo_lite.architectures.blocks.block_records`."""

from __future__ import annotations

from ..builder import Blob
from ..tape import Tape
from .block_records import NormKind


def add_norm(
    tape: Tape,
    name: str,  # name of the module
    kind: NormKind,
    x: Blob,
    *,
    has_weight: bool = True,  # whether a root-mean-square norm is followed by its weight
) -> Blob:
    """Add a norm over the last dimension."""
    with tape.role("norm", name):
        return _add_norm(tape, name, kind, x, has_weight)


def _add_norm(tape: Tape, name: str, kind: NormKind, x: Blob, has_weight: bool) -> Blob:
    size = x.shape[-1]
    if kind == "rms":
        return tape.rms_norm(name, x) if has_weight else _unscaled_rms(tape, name, x)
    if kind == "rms_one_plus":
        return tape.rms_norm(name, x, unit_offset=True)
    if kind == "layer":
        return tape.layer_norm(name, x)
    if kind == "layer_no_bias":
        return tape.module(name, "layer_norm", x, weights=((size,),))
    if kind == "layer_plain":
        return tape.op(f"{name}.layer_norm", "layer_norm", x, origin="function")
    if kind == "layer_one_plus":
        weight = tape.op(name, "add", out=(size,), weights=((size,),))
        return tape.op(f"{name}.layer_norm", "layer_norm", x, weight, weights=((size,),), origin="function")
    return _written_out_layer_norm(tape, name, x)


def _unscaled_rms(tape: Tape, name: str, x: Blob) -> Blob:
    squared = tape.op(f"{name}.pow", "pow", x, origin="method")
    per_row = (*x.shape[:-1], 1)
    mean = tape.op(f"{name}.mean", "reduce", squared, out=per_row, origin="method", function="mean")
    shifted = tape.op(f"{name}.add", "add", mean)
    factor = tape.op(f"{name}.rsqrt", "rsqrt", shifted, origin="function")
    return tape.op(f"{name}.mul", "mul", x, factor)


def _written_out_layer_norm(tape: Tape, name: str, x: Blob) -> Blob:
    """Add a layer norm as Cohere's models write it: eight operations and a weight."""
    per_row = (*x.shape[:-1], 1)
    mean = tape.op(f"{name}.mean", "reduce", x, out=per_row, origin="method", function="mean")
    centred = tape.op(f"{name}.sub", "sub", x, mean)
    squared = tape.op(f"{name}.pow", "pow", centred, origin="method")
    variance = tape.op(f"{name}.mean", "reduce", squared, out=per_row, origin="method", function="mean")
    centred = tape.op(f"{name}.sub", "sub", x, mean)
    shifted = tape.op(f"{name}.add", "add", variance)
    factor = tape.op(f"{name}.rsqrt", "rsqrt", shifted, origin="function")
    scaled = tape.op(f"{name}.mul", "mul", centred, factor)
    weight = (x.shape[-1],) if len(x.shape) == 3 else x.shape[2:]  # of queries and keys, one row per head
    return tape.op(name, "mul", scaled, weights=(weight,))


def rotate_part(tape: Tape, name: str, blob: Blob, rotary_size: int, tables: tuple[Blob, Blob]) -> Blob:
    """Rotate some elements of each head by their positions, and put them together with the others."""
    shapes = tuple((*blob.shape[:-1], part) for part in (rotary_size, blob.shape[-1] - rotary_size))
    rotated, plain = tape.split_tensor(f"{name}.split", blob, "split", shapes)
    rotated = tape.apply_rotary_embedding(name, [rotated], tables)[0]
    return tape.op(f"{name}.concat", "concat", rotated, plain, out=blob.shape, origin="function")


def rotate_complex(tape: Tape, name: str, blob: Blob, frequencies: Blob) -> Blob:
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

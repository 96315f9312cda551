"""Rotation of queries and keys by their positions, where it is not of a whole head by real numbers."""

from __future__ import annotations

from ..builder import Blob
from ..tape import Tape


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

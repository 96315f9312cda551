"""Matrices of a network by their type and place, and those of a GGUF file."""

from __future__ import annotations

import re
from collections.abc import Sequence

import msgspec

from ..architectures.gguf_file import StoredTensor
from ..errors import BadFile

GROUPS = ("wide", "legacy", "k", "table")
"""Groups of tensor types with kernels alike: 16 bits and more; one scale per block; scales in two levels; look-ups."""


def group_of(name: str) -> str:
    """Return the group of a tensor type."""
    if name in ("f32", "f16", "bf16"):
        return "wide"
    if name.startswith("iq") and name != "iq4_nl":
        return "table"
    return "k" if name.endswith("_k") else "legacy"


class Piece(msgspec.Struct, frozen=True):
    """Matrices of one type in one place."""

    block: int  # transformer block; -1 for the table and the head
    type: str  # one of `paleo_lite.gguf_types.TENSOR_TYPES`
    is_expert: bool  # whether they are experts, of which a token reads a few
    # Bytes in memory, and bytes that one token reads.
    stored_bytes: float
    read_bytes: float
    numbers: float  # numbers that one token multiplies
    rows: str = "tokens"  # tokens of a prompt that are multiplied: "tokens", "last" (head) or "none" (table)

    @property
    def resident_bytes(self) -> float:
        """Bytes on a device: a head that shares the table of the embedding is there besides it."""
        return self.stored_bytes or self.read_bytes

    @property
    def group(self) -> str:
        """Group of the type, one of `GROUPS`."""
        return group_of(self.type)


_BLOCK = re.compile(r"blk\.(\d{1,6})\.")
_TABLE, _HEAD = "token_embd.weight", "output.weight"
_NOT_READ = re.compile(r"rope_freqs|rope_factors|\.nextn\.")
"""Tensors that no product reads: factors of positions, and layers that predict further tokens."""


def pieces_of_tensors(name: str, tensors: Sequence[StoredTensor], active_share: float) -> list[Piece]:
    """Return the matrices of a GGUF file, with the bytes that it stores.

    Parameters
    ----------
    name : str
        Name of the network, for messages.
    tensors : sequence of StoredTensor
        Tensors of the file.
    active_share : float
        Share of the experts that a token selects.

    Raises
    ------
    BadFile
        If the file has no table of tokens, or nothing besides.
    """
    by_name = {tensor.name: tensor for tensor in tensors}
    table = by_name.get(_TABLE)
    if table is None or len(by_name) == 1:
        raise BadFile(f"{name}: the file has {len(by_name)} tensors, and needs {_TABLE} and those of the blocks")
    pieces = [_piece_of(tensor, active_share) for tensor in tensors]
    if _HEAD not in by_name:  # the head shares the table
        pieces.append(Piece(-1, table.type, False, 0.0, table.bytes, table.numbers, "last"))
    return pieces


def _piece_of(tensor: StoredTensor, active_share: float) -> Piece:
    """Return a tensor as a matrix."""
    match = _BLOCK.match(tensor.name)
    is_expert = "_exps." in tensor.name
    rows = "last" if tensor.name == _HEAD else "tokens"
    share = active_share if is_expert else 1.0
    if tensor.name == _TABLE or _NOT_READ.search(tensor.name):
        rows, share = "none", 0.0
    block = int(match[1]) if match else -1
    return Piece(block, tensor.type, is_expert, tensor.bytes, tensor.bytes * share, tensor.numbers * share, rows)


def commonest_type(pieces: Sequence[Piece]) -> str:
    """Return the type in which most numbers are stored."""
    sums: dict[str, float] = {}
    for piece in pieces:
        sums[piece.type] = sums.get(piece.type, 0.0) + piece.stored_bytes
    return max(sums, key=lambda kind: sums[kind])

"""What llama.cpp reads and computes for a token of a network in a GGUF format."""

from __future__ import annotations

from math import prod

import msgspec

from ..architectures import Network
from ..architectures.network import SequenceOptions
from ..counting.kinds import is_attention, is_embedding
from ..errors import BadValue
from ..formats import FORMATS
from ..gguf_types import CACHE_TYPES, TENSOR_TYPES, tensor_type
from ..timing.quantization import proportions_of, row_length, tensor_roles

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
    """Matrices of one type in one place.

    Attributes
    ----------
    block : int
        Transformer block; -1 for the table and the head.
    type : str
        One of `paleo_lite.gguf_types.TENSOR_TYPES`.
    is_expert : bool
        Whether they are experts, of which a token reads a few.
    stored_bytes, read_bytes : float
        Bytes in memory, and bytes that one token reads.
    numbers : float
        Numbers that one token multiplies.
    rows : {"tokens", "last", "none"}
        Tokens of a prompt that are multiplied: all, the last (head) or none (table).
    """

    block: int
    type: str
    is_expert: bool
    stored_bytes: float
    read_bytes: float
    numbers: float
    rows: str = "tokens"

    @property
    def resident_bytes(self) -> float:
        """Bytes on a device: a head that shares the table of the embedding is there besides it."""
        return self.stored_bytes or self.read_bytes

    @property
    def group(self) -> str:
        """Group of the type, one of `GROUPS`."""
        return group_of(self.type)


class Contents(msgspec.Struct, frozen=True):
    """A network in a GGUF format.

    Attributes
    ----------
    name, weights, cache : str
        Network, mixture, and type of keys and values.
    blocks : int
        Transformer blocks.
    pieces : tuple of Piece
        All matrices.
    token_cache_bytes : tuple of float
        Bytes of keys and values of a token by layer of attention.
    windows : tuple of int or None
        Tokens back that each layer of attention reaches.
    pair_flops : tuple of float
        FLOPs of a query and a key by layer of attention.
    """

    name: str
    weights: str
    cache: str
    blocks: int
    pieces: tuple[Piece, ...]
    token_cache_bytes: tuple[float, ...]
    windows: tuple[int | None, ...]
    pair_flops: tuple[float, ...]

    def merged(self) -> Contents:
        """Return the same with one piece per type and kind of rows, whose time is the sum of theirs."""
        sums: dict[tuple[str, bool, str], list[float]] = {}
        for piece in self.pieces:
            total = sums.setdefault((piece.type, piece.is_expert, piece.rows), [0.0, 0.0, 0.0])
            for index, value in enumerate((piece.stored_bytes, piece.read_bytes, piece.numbers)):
                total[index] += value
        pieces = tuple(
            Piece(-1, kind, is_expert, stored_bytes, read_bytes, numbers, rows)
            for (kind, is_expert, rows), (stored_bytes, read_bytes, numbers) in sums.items()
        )
        return msgspec.structs.replace(self, pieces=pieces)

    @property
    def stored_bytes(self) -> float:
        """Bytes of all weights: the size of the file without its vocabulary."""
        return sum(piece.stored_bytes for piece in self.pieces)

    def cache_bytes(self, tokens: float) -> float:
        """Return the bytes of the KV cache at a context; llama.cpp keeps whole windows only."""
        return sum(
            size * (tokens if window is None else min(tokens, window))
            for size, window in zip(self.token_cache_bytes, self.windows)
        )


def read_contents(network: Network, weights: str, cache: str = "f16") -> Contents:
    """Return what a token of a network reads and computes in a GGUF format.

    Raises
    ------
    BadValue
        If the network is no language model from a config, or a format is none of llama.cpp's.
    """
    if network.rebuild is None or not network.is_language_model:
        raise BadValue(f"llama.cpp runs language models from a config or a GGUF file, not {network.name}")
    mixture = FORMATS[weights].mixture if weights in FORMATS else None
    if mixture is None:
        names = ", ".join(name for name, stored in FORMATS.items() if stored.mixture is not None)
        raise BadValue(f"llama.cpp stores weights in {names} (got {weights!r})")
    if cache not in CACHE_TYPES:
        raise BadValue(f"llama.cpp keeps keys and values in {', '.join(CACHE_TYPES)} (got {cache!r})")
    layers = network.rebuild(SequenceOptions(context=1, phase="decode")).layers
    proportions = proportions_of(layers)
    pieces = []
    for layer, role in zip(layers, tensor_roles(layers, True)):
        if not layer.weights:
            continue
        block = next((int(part) for part in layer.name.split(".") if part.isdigit()), -1)
        numbers, others = prod(layer.weights[0]), sum(prod(shape) for shape in layer.weights[1:])
        kind = "f32"
        if role is not None and len(layer.weights[0]) > 1:
            kind = tensor_type(mixture, role, block, row_length(layer), proportions)
        size = TENSOR_TYPES[kind].bytes_per_number
        is_table = is_embedding(layer) or layer.kind == "gather"
        active = layer.attributes.get("active")
        share = active / layer.weights[0][0] if active else 0.0 if is_table else 1.0
        is_head = role == "output" and not is_table
        pieces.append(
            Piece(
                block,
                kind,
                bool(active),
                (numbers * size + 4 * others) * bool(layer.parameters),
                numbers * size * share,
                numbers * share,
                "none" if is_table else "last" if is_head else "tokens",
            )
        )
    attended = [layer for layer in layers if is_attention(layer)]
    cache_size = TENSOR_TYPES[cache].bytes_per_number
    sizes, flops = [], []
    for layer in attended:
        query, key = layer.inputs[0], layer.inputs[1]
        value = 0 if layer.attributes.get("shares_keys_and_values") else layer.inputs[2][-1]
        sizes.append(cache_size * key[1] * (key[-1] + value))
        flops.append(2.0 * query[1] * (key[-1] + (value or key[-1])))
    windows = tuple(layer.attributes.get("window") for layer in attended)
    return Contents(network.name, weights, cache, network.blocks, tuple(pieces), tuple(sizes), windows, tuple(flops))

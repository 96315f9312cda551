"""Matrices of a network in a format of llama.cpp and its like or of a GGUF file, and what a token reads of them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from math import prod

import msgspec

from ..architectures import Network
from ..architectures.gguf_file import StoredTensor
from ..architectures.locate import SHARED_CONFIG
from ..architectures.network import SequenceOptions
from ..counting import Layer
from ..counting.kinds import is_attention, is_embedding
from ..engines.records import LOCAL_ENGINES
from ..engines.records.record import LocalEngine
from ..errors import BadFile, BadValue
from ..gguf_types import TENSOR_TYPES, Mixture, tensor_type
from ..timing.quantization import proportions_of, row_length, tensor_roles

EXPERT_ROLES = ("experts", "experts_down")
"""Roles of the matrices of experts."""

MXFP4 = "mxfp4"
MXFP4_FILE = "mxfp4_moe"
"""Files whose experts are mxfp4, in which gpt-oss is published (ggml-org's on the Hugging Face Hub)."""

GROUPS = ("wide", "legacy", "k", "table", MXFP4)
"""Groups of tensor types with kernels alike: 16 bits and more; one scale per block; scales in two levels; look-ups of
several numbers; and MXFP4, whose kernels look up single numbers."""


def group_of(name: str) -> str:
    """Return the group of a tensor type."""
    if name in ("f32", "f16", "bf16"):
        return "wide"
    if name.startswith("iq") and name != "iq4_nl":
        return "table"
    if name == MXFP4:
        return MXFP4
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
        """Bytes on a device; a head tied to the embedding is stored a second time there."""
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
    """Return the matrices of a GGUF file, with the bytes that it stores; a token selects a share of the experts.

    Raise BadFile if the file has no table of tokens, or nothing but that.
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


MOST_CONTEXT = 1 << 20
"""Longest context considered for networks that state none."""

KERNELS_PER_BLOCK = 10
"""Seven products, two norms and attention."""

MOST_DIFFERENCE = 0.02
"""Relative difference of the parameters of a file from those of its settings, above which a note says so."""


class Contents(msgspec.Struct, frozen=True):
    """A network in a format."""

    # Network, mixture (or the commonest type of a file), and type of keys and values.
    name: str
    weights: str
    cache: str
    blocks: int  # transformer blocks
    launches: float  # kernels of a token besides elementwise ones, in units of the blocks of a dense transformer
    vocabulary: int  # rows of the head
    pieces: tuple[Piece, ...]  # all matrices
    token_cache_bytes: tuple[float, ...]  # bytes of keys and values of a token by layer of attention
    windows: tuple[int | None, ...]  # tokens back that each layer of attention reaches
    pair_flops: tuple[float, ...]  # FLOPs of a query and a key by layer of attention
    positions: int | None = None  # longest context that the network knows
    notes: tuple[str, ...] = ()  # notes on a file or a release

    def merged(self) -> Contents:
        """Return a copy in which matrices of one type are merged into one; its time is the same."""
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
    def has_experts(self) -> bool:
        """Whether a token reads some experts of many."""
        return any(piece.is_expert for piece in self.pieces)

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


def read_contents(
    network: Network,  # a language model from a config or a GGUF file
    # A format of the engine, as which the network is quantized. By default a file has the types of its own tensors, and
    # any other network is in the usual format.
    weights: str | None = None,
    cache: str | None = None,  # type of keys and values; by default the usual one
    engine: LocalEngine = LOCAL_ENGINES["llama.cpp"],  # program that runs the network
) -> Contents:
    """Return what a token of a network reads and computes in a format.

    Raise BadValue if the network is no language model from a config, or a format is none of the engine's, and BadFile
    if the tensors of a file are not those of a network.
    """
    if network.rebuild is None or not network.is_language_model:
        raise BadValue(f"{engine.name} runs language models from a config or a file, not {network.name}")
    cache = cache or engine.caches[0]
    if cache not in engine.caches:
        raise BadValue(f"{engine.name} keeps keys and values in {', '.join(engine.caches)} (got {cache!r})")
    rebuilt = network.rebuild(SequenceOptions(context=1, phase="decode"))
    layers, positions = rebuilt.layers, rebuilt.lengths.longest if rebuilt.lengths else None
    # Windows show only where the context is longer than they are.
    longest = network.rebuild(SequenceOptions(context=(positions or MOST_CONTEXT) - 1, phase="decode"))
    notes = tuple(note for note in network.notes if SHARED_CONFIG in note)
    if network.stored_tensors is not None and not engine.places:
        raise BadValue(f"{engine.name} does not read GGUF files, such as {network.name}: give the network by name")
    if weights is None and network.stored_tensors is not None:
        pieces = pieces_of_tensors(network.name, network.stored_tensors, _active_share(layers))
        weights = f"mostly {commonest_type(pieces)}"
        notes += _notes_of_file(network)
    else:
        keeps_experts = engine.keeps_mxfp4 and _has_mxfp4_experts(network)
        published = MXFP4_FILE if keeps_experts and MXFP4_FILE in engine.mixtures else engine.default_weights
        weights = published if weights is None else engine.aliases.get(weights, weights)
        if weights not in engine.mixtures:
            raise BadValue(f"{engine.name} stores weights in {', '.join(engine.mixtures)} (got {weights!r})")
        pieces = _pieces_of_layers(layers, engine.mixtures[weights], MXFP4 if keeps_experts else None)
    attended = [layer for layer in longest.layers if is_attention(layer)]
    cache_size = TENSOR_TYPES[cache].bytes_per_number
    sizes, flops = [], []
    for layer in attended:
        query, key = layer.inputs[0], layer.inputs[1]
        value = 0 if layer.attributes.get("shares_keys_and_values") else layer.inputs[2][-1]
        sizes.append(cache_size * key[1] * (key[-1] + value))
        flops.append(2.0 * query[1] * (key[-1] + (value or key[-1])))
    # The kernels pass over all tokens of the cache, which keeps a whole chunk (llama.cpp, llama_kv_cache_iswa).
    windows = tuple(layer.attributes.get("window", layer.attributes.get("attention_chunk")) for layer in attended)
    vocabulary = next((layer.weights[0][0] for layer in layers if is_embedding(layer) and layer.weights), 0)
    return Contents(
        network.name, weights, cache, network.blocks, _launches(layers), vocabulary, tuple(pieces), tuple(sizes),
        windows, tuple(flops), positions, notes,
    )  # fmt: skip


def _launches(layers: Sequence[Layer]) -> float:
    """Return the kernels with weights, or that mix tokens, in units of the ten of a block of a dense transformer.

    Blocks with experts or linear attention launch up to twice as many.
    """
    kernels = sum(bool(layer.weights) or is_attention(layer) for layer in layers)
    return kernels / KERNELS_PER_BLOCK


def _active_share(layers: Sequence[Layer]) -> float:
    """Return the share of the experts that a token selects; 1 without experts."""
    for layer in layers:
        active = layer.attributes.get("active")
        if active:
            return float(active / layer.weights[0][0])
    return 1.0


def _notes_of_file(network: Network) -> tuple[str, ...]:
    """Return a note if a file has other parameters than its settings describe."""
    stored = sum(tensor.numbers for tensor in network.stored_tensors or ())
    if abs(stored / max(network.parameters, 1) - 1) <= MOST_DIFFERENCE:
        return ()
    return (
        f"the tensors of the file have {stored:,} parameters, but its settings describe {network.parameters:,}: "
        "the bytes are those of the tensors",
    )


def _has_mxfp4_experts(network: Network) -> bool:
    """Return whether the published checkpoint of a network stores its experts in mxfp4."""
    stored = network.stored_weights
    if stored is not None:
        return stored.stored is not None and stored.stored.name == MXFP4
    return network.publication is not None and network.publication.weights == MXFP4


def _pieces_of_layers(layers: Sequence[Layer], mixture: Mixture, experts: str | None) -> list[Piece]:
    """Return the matrices of layers, quantized as a mixture; experts in a type of their own if one is given."""
    proportions = proportions_of(layers)
    pieces = []
    for layer, role in zip(layers, tensor_roles(layers, True)):
        if not layer.weights:
            continue
        block = -1 if layer.place.number is None else layer.place.number
        numbers, other_numbers = prod(layer.weights[0]), sum(prod(shape) for shape in layer.weights[1:])
        kind = "f32"
        if role is not None and len(layer.weights[0]) > 1:
            kind = tensor_type(mixture, role, block, row_length(layer), proportions)
            if experts is not None and role in EXPERT_ROLES:
                kind = experts
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
                (numbers * size + 4 * other_numbers) * bool(layer.parameters),
                numbers * size * share,
                numbers * share,
                "none" if is_table else "last" if is_head else "tokens",
            )
        )
    return pieces

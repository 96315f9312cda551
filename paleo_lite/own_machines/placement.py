"""What of a network is on the device, and what is in the memory of the host."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

import msgspec

from .contents import Contents, Piece


class BlockPlacement(msgspec.Struct, frozen=True):
    """Blocks and matrices on a device, and those in the memory of the host."""

    layers: int  # on the device as llama.cpp counts them, from the last: the head, and the blocks before it
    of_blocks: int  # transformer blocks of the network
    expert_blocks: int  # first blocks of the network whose experts are on the host (``--n-cpu-moe``)
    cache_share: float  # share of the keys and values on the device
    # Matrices on the device, and on the host; the table of the embedding is among the latter.
    device: tuple[Piece, ...]
    host: tuple[Piece, ...]

    @property
    def blocks(self) -> int:
        """Transformer blocks on the device."""
        return max(self.layers - 1, 0)

    @property
    def block_share(self) -> float:
        """Share of the blocks on the device."""
        return self.blocks / self.of_blocks

    @property
    def weight_bytes(self) -> float:
        """Bytes of weights on the device."""
        return sum(piece.resident_bytes for piece in self.device)

    @property
    def host_weight_bytes(self) -> float:
        """Bytes of weights in the memory of the host."""
        return sum(piece.stored_bytes for piece in self.host)

    @property
    def computed_on_host(self) -> tuple[Piece, ...]:
        """Matrices that the processor of the host multiplies."""
        return tuple(piece for piece in self.host if piece.rows != "none")

    @property
    def is_whole(self) -> bool:
        """Whether everything that is multiplied or attended to is on the device."""
        return self.cache_share == 1 and not self.computed_on_host


def place(contents: Contents, layers: int, expert_blocks: int, cpu_cache: bool) -> BlockPlacement:
    """Return the placement of some last layers on the device, of which the head is the last.

    The experts of some first blocks, and all keys and values, may be on the host. So llama.cpp counts its
    ``--n-gpu-layers`` (``i_gpu_start = n_layer + 1 - n_gpu_layers``, src/llama-model.cpp; until 2025 the head was the
    last layer to come to the device).
    """
    first = contents.blocks + 1 - layers
    device: list[Piece] = []
    host: list[Piece] = []
    for piece in contents.pieces:
        is_outside = piece.block < 0 and layers > 0
        is_there = piece.rows != "none" and (piece.block >= first or is_outside)
        if piece.is_expert and piece.block < expert_blocks:
            is_there = False
        (device if is_there else host).append(piece)
    share = 0.0 if cpu_cache else max(layers - 1, 0) / contents.blocks
    return BlockPlacement(layers, contents.blocks, expert_blocks, share, tuple(device), tuple(host))


def candidates(
    contents: Contents,
    free_bytes: float,
    context: int,
    *,
    gpu_layers: int | None = None,
    cpu_expert_blocks: int | None = None,
    cpu_cache: bool = False,
) -> Iterator[BlockPlacement]:
    """Yield the placements that fit into the memory of a device: the most layers, and all without some experts.

    Numbers of layers that the question states are kept.
    """
    total = contents.blocks + 1
    expert_blocks = cpu_expert_blocks or 0
    cache_bytes = 0.0 if cpu_cache else contents.cache_bytes(context) / contents.blocks
    block_bytes: dict[int, float] = defaultdict(float)
    expert_bytes: dict[int, float] = defaultdict(float)
    for piece in contents.pieces:
        if piece.rows != "none":
            (expert_bytes if piece.is_expert else block_bytes)[max(piece.block, -1)] += piece.resident_bytes

    def size_of(layers: int, without_experts: int) -> float:
        first = total - layers
        chosen = [block for block in block_bytes if block >= first or (block < 0 and layers > 0)]
        dense = sum(block_bytes[block] for block in chosen)
        experts = sum(size for block, size in expert_bytes.items() if block >= max(first, without_experts))
        return dense + experts + max(layers - 1, 0) * cache_bytes

    requested = range(total, -1, -1) if gpu_layers is None else [gpu_layers]
    most_layers = next((layers for layers in requested if size_of(layers, expert_blocks) <= free_bytes), None)
    if most_layers is not None:
        yield place(contents, most_layers, expert_blocks, cpu_cache)
    if most_layers == total or gpu_layers is not None or cpu_expert_blocks is not None or not expert_bytes:
        return
    for without in range(1, contents.blocks + 1):
        if size_of(total, without) <= free_bytes:
            yield place(contents, total, without, cpu_cache)
            return


def needed_bytes(contents: Contents, placement: BlockPlacement, context: int) -> float:
    """Return the bytes of weights and cache of a placement on the device."""
    return placement.weight_bytes + contents.cache_bytes(context) * placement.cache_share

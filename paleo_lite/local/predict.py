"""Prompt, answer and memory of a language model under llama.cpp, on a device and the memory of its host."""

from __future__ import annotations

from typing import ClassVar

import msgspec

from ..architectures import Network
from ..errors import BadValue, DoesNotFit
from ..machines import Device
from ..result import Result
from .contents import Contents, read_contents
from .pieces import Piece
from .step import (
    UBATCH,
    backend_of,
    cache_read_s,
    interval_of,
    local_constants,
    piece_s,
    prompt_s,
)  # fmt: skip

EXECUTIONS = {"llama.cpp": "llama.cpp on a GGUF file, for one request at a time"}
"""Executions of this room."""

DEFAULT_CONTEXT, DEFAULT_PROMPT, DEFAULT_CPU = 4096, UBATCH, "ryzen-9-7950x"

RESERVED_BYTES = 0.5e9
"""What a driver and llama.cpp's context take on a device."""

UNIFIED_SHARES = {"Apple": 0.75}
"""Share of a memory that CPU and GPU share which the GPU may use: Metal's recommended working set of 48 GB and more
(two thirds below)."""


class LocalPrediction(Result, msgspec.Struct, frozen=True):
    """What llama.cpp does on a machine.

    Attributes
    ----------
    network, device, backend, weights, kv_cache : str
        Question: network, device, backend, and formats of weights and cache.
    gpus : int
        Devices that the layers are split over.
    context, prompt_tokens : int
        Tokens in the cache, and of the prompt.
    blocks, gpu_blocks : int
        Transformer blocks, and those on the device.
    cpu : str or None
        Processor that computes what is not on the device; None if all is.
    token_s, prompt_s : float
        Seconds per token of the answer behind the context, and of the prompt.
    token_interval_s, prompt_interval_s : tuple of float
        Their intervals at 90%.
    weight_bytes, cache_bytes, buffer_bytes, host_bytes : float
        Bytes on the devices of weights, cache at the context, and buffers; bytes in the memory of the host.
    usable_bytes : float
        Memory of the devices that llama.cpp may use.
    largest_context : int
        Largest context with which the same layers fit.
    notes : tuple of str
        Notes.
    """

    network: str
    device: str
    backend: str
    weights: str
    kv_cache: str
    gpus: int
    context: int
    prompt_tokens: int
    blocks: int
    gpu_blocks: int
    cpu: str | None
    token_s: float
    prompt_s: float
    token_interval_s: tuple[float, float]
    prompt_interval_s: tuple[float, float]
    weight_bytes: float
    cache_bytes: float
    buffer_bytes: float
    host_bytes: float
    usable_bytes: float
    largest_context: int
    notes: tuple[str, ...] = ()

    _page: ClassVar[str] = "paleo_lite.reporting.local:local_page"


def usable_bytes(device: Device) -> float:
    """Return the memory of a device that weights, cache and buffers may take.

    What data sheets call a gigabyte is a gibibyte; Metal recommends two thirds of a memory up to 36 GB, and three
    quarters of a larger one.
    """
    stated = device.memory_bytes / 1e9 * 2**30
    if device.vendor in UNIFIED_SHARES:
        return stated * (UNIFIED_SHARES[device.vendor] if stated > 36 * 2**30 else 2 / 3)
    return stated - RESERVED_BYTES


def predict_local(
    network: Network,
    device: Device,
    cpu: Device,
    *,
    weights: str | None = None,
    kv_cache: str = "f16",
    context: int = DEFAULT_CONTEXT,
    prompt_tokens: int = DEFAULT_PROMPT,
    gpus: int = 1,
    gpu_layers: int | None = None,
    cpu_experts: bool = False,
    link_bytes_per_s: float = 25e9,
) -> LocalPrediction:
    """Predict a network under llama.cpp.

    Parameters
    ----------
    network : Network
        Language model from a config.
    device, cpu : Device
        Device, and the processor for what is not on it.
    weights : str, optional
        Mixture of llama.cpp; by default the types of a file's tensors, and for any other network ``q4_k_m``.
    kv_cache : str
        Type of keys and values.
    context, prompt_tokens : int
        Tokens in the cache, and of the prompt.
    gpus : int
        Devices that the layers are split over: they take turns, so that a token is no faster.
    gpu_layers : int or None
        Blocks on the device, ``-ngl``; None for as many as fit.
    cpu_experts : bool
        Whether experts are in the memory of the host.
    link_bytes_per_s : float
        Bandwidth from the memory of the host to the device.

    Raises
    ------
    BadValue
        If a number or a format is not possible.
    DoesNotFit
        If the requested layers do not fit.
    """
    contents = read_contents(network, weights, kv_cache)
    if gpu_layers is not None and not 0 <= gpu_layers <= contents.blocks:
        raise BadValue(f"`--gpu-layers` must be 0 to {contents.blocks} for {network.name} (got {gpu_layers})")
    if cpu_experts and not any(piece.is_expert for piece in contents.pieces):
        raise BadValue(f"`--cpu-experts` is for mixtures of experts: {network.name} is none")
    budget = usable_bytes(device) * gpus
    buffer_bytes = UBATCH * 4.0 * contents.vocabulary
    candidates = range(contents.blocks, -1, -1) if gpu_layers is None else [gpu_layers]
    placed = None
    for blocks in candidates:
        placed = _place(contents, blocks, cpu_experts)
        if placed.bytes_at(contents, context) + buffer_bytes <= budget:
            break
    else:
        raise DoesNotFit(
            f"{network.name} in {contents.weights} with {candidates[-1]} blocks and a context of {context} needs "
            f"{(placed.bytes_at(contents, context) + buffer_bytes) / 1e9:.1f} GB, and {device.name} has "  # type: ignore[union-attr]
            f"{budget / 1e9:.1f} GB: use fewer `--gpu-layers`, narrower weights or a shorter context"
        )
    assert placed is not None
    constants = local_constants()
    backend = backend_of(device)
    own, other = constants.backends[backend], constants.backends["cpu"]
    share = placed.blocks / contents.blocks
    on_host = [piece for piece in contents.pieces if piece not in placed.pieces and piece.rows != "none"]
    device_s = sum(piece_s(piece, device, own) for piece in placed.pieces)
    device_s += share * (cache_read_s(contents, device, own, context) + contents.blocks * own.block_s)
    host_s = sum(piece_s(piece, cpu, other) for piece in on_host)
    host_s += (1 - share) * (cache_read_s(contents, cpu, other, context) + contents.blocks * other.block_s)
    if cpu_experts:
        host_s += share * contents.blocks * other.block_s
    seconds = device_s + host_s
    first_s = prompt_s(contents.merged(), device, own, prompt_tokens, gpus=gpus, pipeline=constants.pipeline)
    copied_bytes = sum(piece.stored_bytes for piece in on_host)
    first_s += -(-prompt_tokens // UBATCH) * copied_bytes / link_bytes_per_s
    deviation = own.deviation if not host_s else max(own.deviation, other.deviation)
    notes = [
        *contents.notes,
        f"one request at a time; constants of the backend {backend}, fitted to published tables of other devices",
    ]
    if host_s:
        notes.append(f"what is not on the device is computed by {cpu.name}; prompts copy it over the link")
    weight_bytes = sum(piece.resident_bytes for piece in placed.pieces)
    host_bytes = sum(piece.stored_bytes for piece in contents.pieces if piece not in placed.pieces)
    free = budget - buffer_bytes - weight_bytes
    largest = _largest_context(contents, share, free)
    return LocalPrediction(
        network.name, device.name, backend, contents.weights, kv_cache, gpus, context, prompt_tokens, contents.blocks,
        placed.blocks, cpu.name if host_s else None, seconds, first_s, interval_of(seconds, deviation),
        interval_of(first_s, own.prompt_deviation), weight_bytes, contents.cache_bytes(context) * share, buffer_bytes,
        host_bytes + contents.cache_bytes(context) * (1 - share), budget, largest,
        tuple(notes),
    )  # fmt: skip


class _Placement(msgspec.Struct, frozen=True):
    """Blocks on the device, and the matrices there."""

    blocks: int
    total: int
    pieces: tuple[Piece, ...]

    def bytes_at(self, contents: Contents, context: float) -> float:
        """Return the bytes of weights and cache on the device."""
        stored = sum(piece.resident_bytes for piece in self.pieces)
        return stored + contents.cache_bytes(context) * self.blocks / self.total


def _place(contents: Contents, blocks: int, cpu_experts: bool) -> _Placement:
    """Return the placement of the last blocks on the device, and of the head if all blocks are there.

    The table of the embedding stays in the memory of the host.
    """
    first = contents.blocks - blocks
    pieces = tuple(
        piece
        for piece in contents.pieces
        if piece.rows != "none"
        and not (cpu_experts and piece.is_expert)
        and (piece.block >= first or (piece.block < 0 and blocks == contents.blocks))
    )
    return _Placement(blocks, contents.blocks, pieces)


def _largest_context(contents: Contents, share: float, free_bytes: float) -> int:
    """Return the largest context whose cache fits into some bytes, in steps of 256 tokens."""
    low, high = 0, 1 << 20
    while high - low > 256:
        middle = (low + high) // 2
        if contents.cache_bytes(middle) * share <= free_bytes:
            low = middle
        else:
            high = middle
    return low // 256 * 256

"""Room of the paged KV cache: device memory without weights and activations, in blocks of tokens."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence

import msgspec

from ..counting import Layer
from ..counting.kinds import cached_elements, is_cache
from ..engines.memory import activation_bytes, sequence_bytes
from ..engines.records.record import Server
from ..errors import DoesNotFit
from ..formats import bytes_per_number
from ..timing.memory import RESERVE_BYTES, model_bytes, peak_memory
from ..timing.notes import published_weights_note
from ..units import format_si
from .pipeline import stage_workloads
from .placement import ModelOnDevice


class NoCacheRoom(DoesNotFit):
    """A server whose memory holds no block of a KV cache: what takes it, what is lacking, and remedies.

    Among them are a larger fraction of the memory and the sentence about a division, where any is sufficient.
    """

    def __init__(
        self,
        taken: str,
        lack: str,
        remedies: str,
        sufficient_fraction: float | None = None,
        sufficient_division: str | None = None,
    ) -> None:
        super().__init__(taken, lack, remedies, sufficient_fraction, sufficient_division)
        self.taken, self.lack, self.remedies = taken, lack, remedies
        self.sufficient_fraction, self.sufficient_division = sufficient_fraction, sufficient_division

    def __str__(self) -> str:
        fraction = self.sufficient_fraction
        larger = "" if fraction is None else f"`--memory-fraction {fraction:g}` or more, "
        division = "" if self.sufficient_division is None else f": {self.sufficient_division}"
        return f"{self.describe('--memory-fraction')}; use {larger}{self.remedies}{division}"

    def with_fraction(self, sufficient: float | None) -> NoCacheRoom:
        """Return the error with the fraction of the memory that is sufficient."""
        return NoCacheRoom(self.taken, self.lack, self.remedies, sufficient, self.sufficient_division)

    def with_division(self, sufficient: str | None) -> NoCacheRoom:
        """Return the error with a sentence about a division that is sufficient."""
        return NoCacheRoom(self.taken, self.lack, self.remedies, self.sufficient_fraction, sufficient)

    def describe(self, option: str) -> str:
        """Return the sentence without remedies, for a command whose option states the fraction of the memory."""
        return f"{self.taken} (`{option}`): {self.lack}"


class CacheRoom(msgspec.Struct, frozen=True):
    """Memory of one device, and the blocks of its KV cache."""

    # Bytes of weights, of the activations of the largest iteration, and what remains for the cache; with pipeline
    # parallelism those of the stage that limits the number of blocks.
    weights_bytes: float
    activations_bytes: float
    cache_bytes: float
    sequence_bytes: float  # bytes of keys and values of one sequence of the mean length of the traffic
    sequence_tokens: int  # tokens of such a sequence
    block_tokens: int  # tokens per block
    blocks: int  # number of blocks
    # Bytes set aside for such a sequence that a longer one would not need twice: recurrent states, and full windows.
    fixed_bytes: float = 0.0
    first_bytes: float = 0.0  # bytes of a sequence before its first token: recurrent states, keys of an encoder

    @property
    def memory_bytes(self) -> float:
        """Bytes of weights, activations and cache."""
        return self.weights_bytes + self.activations_bytes + self.cache_bytes

    @property
    def tokens(self) -> int:
        """Tokens that the cache holds."""
        return self.blocks * self.block_tokens

    def holds_prompts(self, tokens: int) -> int:
        """Return the sequences that fit with no more than a prompt of so many tokens."""
        if not self.first_bytes:
            return self.tokens // max(tokens, 1)
        token_bytes = (self.sequence_bytes - self.first_bytes) / self.sequence_tokens
        return int(self.cache_bytes // (self.first_bytes + tokens * token_bytes))

    def beside(self, taken_bytes: float, more_cached: float = 0.0) -> CacheRoom:
        """Return the room beside further weights, which raise the keys and values of a token by a share."""
        left_bytes = self.cache_bytes - taken_bytes
        return msgspec.structs.replace(
            self,
            weights_bytes=self.weights_bytes + taken_bytes,
            cache_bytes=left_bytes,
            sequence_bytes=self.sequence_bytes * (1 + more_cached),
            blocks=int(self.blocks * max(left_bytes, 0.0) / self.cache_bytes / (1 + more_cached)),
        )


def cached_bytes(layers: tuple[Layer, ...], kv_cache: str) -> float:
    """Return the bytes of keys and values that the cache layers of a network hold for one sequence.

    Grouped-query attention has fewer heads, latent attention one vector per token, and a sliding window at most as many
    tokens as its width: all of them are in the shapes of the cache layers.
    """
    return cached_elements(layers) * bytes_per_number(kv_cache)


def cached_tensors(layers: Sequence[Layer]) -> int:
    """Return the number of tensors in which an engine keeps what the cache layers of a network hold.

    Keys and values are two; a latent vector and its rotary part, of different sizes, are one.
    """
    shapes = [layer.outputs for layer in layers if is_cache(layer)]
    return sum(len(of_layer) if len(set(of_layer)) == 1 else 1 for of_layer in shapes)


def measure_room(on_device: ModelOnDevice, engine: Server, *, mean_tokens: float, prompt_tokens: int) -> CacheRoom:
    """Compute how many blocks the cache of one device has, for requests of a mean length and prompts up to the longest.

    Layers with a sliding window hold fewer tokens than others; a block has the mean bytes per token of a request of the
    mean length. The longest prompt limits the activations of an iteration, together with the tokens per iteration.

    With pipeline parallelism a block has the keys and values of a stage's layers, and the stage with room for the
    fewest blocks limits all of them, as in vLLM, which takes the smallest number over its workers. Raise DoesNotFit if
    weights and activations leave no room for a single block.
    """
    if on_device.kernels is not None:
        return _measure_kernel_room(on_device, engine, mean_tokens=mean_tokens)
    context = max(round(mean_tokens) - 1, 1)
    decode = on_device.decode_workload(context)
    sampled = min(prompt_tokens, engine.max_batched_tokens)
    memory = peak_memory(on_device.prefill_workload(sampled))
    activations_bytes = (memory.activations_bytes + memory.workspace_bytes) * engine.max_batched_tokens / sampled
    rooms = []
    for stage in stage_workloads(decode, on_device.workload.network, on_device.pipeline):
        weights_bytes = float(model_bytes(stage)[0])
        cache_bytes = _cache_bytes(on_device, engine, weights_bytes, activations_bytes)
        sequence_bytes = cached_bytes(stage.layers, on_device.kv_cache)
        block_bytes = sequence_bytes / (context + 1) * engine.block_tokens
        blocks = _count_blocks(cache_bytes, block_bytes)
        rooms.append(
            CacheRoom(
                weights_bytes, activations_bytes, cache_bytes, sequence_bytes, context + 1, engine.block_tokens, blocks
            )
        )
    return _smallest_room(on_device, rooms, engine)


def _measure_kernel_room(on_device: ModelOnDevice, engine: Server, *, mean_tokens: float) -> CacheRoom:
    """Compute the blocks of a device from the kernels of its engine.

    Every attention group has a cache of its own; the room is that of all groups of a replica together.
    """
    assert on_device.kernels is not None
    step = on_device.kernels.step
    groups = step.devices.division.attention_data_parallel
    tokens = max(round(mean_tokens), 2)
    kernels = on_device.kernels.of_iteration("decode", tokens - 1)
    weights_bytes = on_device.kernels.weight_bytes(kernels)
    activations_bytes = activation_bytes(
        step, kernels, engine.max_batched_tokens, engine.max_sequences, engine.logit_bytes
    )
    cache_bytes = _cache_bytes(on_device, engine, weights_bytes, activations_bytes)
    per_sequence = sequence_bytes(step, kernels, tokens)
    reserved = sequence_bytes(step, kernels, tokens, engine.kernels)
    blocks = _count_blocks(cache_bytes, reserved / tokens * engine.block_tokens)
    if blocks > 0:
        blocks *= groups
    fixed_bytes = max(2 * reserved - sequence_bytes(step, kernels, 2 * tokens, engine.kernels), 0.0)
    room = CacheRoom(
        weights_bytes, activations_bytes, cache_bytes, per_sequence, tokens, engine.block_tokens, blocks, fixed_bytes,
        sequence_bytes(step, kernels, 0),
    )  # fmt: skip
    return _smallest_room(on_device, [room], engine)


def _cache_bytes(on_device: ModelOnDevice, engine: Server, weights_bytes: float, activations_bytes: float) -> float:
    """Return the bytes of a device that an engine leaves for the cache."""
    memory_bytes = on_device.machine.device.reported_memory_bytes
    reserve_bytes = engine.context_share * memory_bytes or RESERVE_BYTES
    link = None if on_device.group is None else on_device.group.inside
    if link is not None and link.is_nvlink:
        reserve_bytes += engine.communicator_bytes
    if engine.is_fraction_of_free:
        free_bytes = memory_bytes - reserve_bytes - weights_bytes - activations_bytes
        return engine.memory_fraction * free_bytes
    if not engine.profiles_activations:  # a fraction of what is free before the weights are loaded
        return engine.memory_fraction * (memory_bytes - reserve_bytes) - weights_bytes
    return engine.memory_fraction * memory_bytes - reserve_bytes - weights_bytes - activations_bytes


def _count_blocks(cache_bytes: float, block_bytes: float) -> int:
    """Return the blocks that fit; a cache that takes nothing holds any number."""
    if block_bytes:
        return int(cache_bytes // block_bytes)
    return sys.maxsize if cache_bytes >= 0 else -1


HIGHEST_FRACTION = 0.97
"""Fraction of the memory up to which a message proposes one: the driver and other processes take a little."""


def sufficient_fraction(measure: Callable[[Server], CacheRoom], engine: Server, longest_tokens: int) -> float | None:
    """Return the least fraction of the memory, in hundredths, with room for the longest request; None if none has.

    `measure` returns the room under an engine.
    """
    for hundredths in range(math.ceil(100 * engine.memory_fraction), round(100 * HIGHEST_FRACTION) + 1):
        try:
            room = measure(msgspec.structs.replace(engine, memory_fraction=hundredths / 100))
        except NoCacheRoom:
            continue
        if room.tokens >= longest_tokens:
            return hundredths / 100
    return None


def _smallest_room(on_device: ModelOnDevice, rooms: Sequence[CacheRoom], engine: Server) -> CacheRoom:
    """Return the room of the stage that limits the number of blocks."""
    device = on_device.machine.device
    if not any(room.sequence_bytes for room in rooms):
        raise DoesNotFit(f"{on_device.workload.network.name} has no KV cache, which limits the batch of a server")
    smallest = min(rooms, key=lambda room: room.blocks)
    if smallest.blocks < 1:
        published = published_weights_note(on_device.workload)
        lack = "too little for a block"
        if smallest.cache_bytes < 0:
            lack = f"{format_si(-smallest.cache_bytes, 'B', 3)} too little, with what its runtime takes"
        raise NoCacheRoom(
            f"{on_device.workload.network.name} leaves no memory for a KV cache on {device.name}: weights take "
            f"{format_si(smallest.weights_bytes, 'B', 3)}, activations {format_si(smallest.activations_bytes, 'B', 3)} "
            f"of {format_si(device.reported_memory_bytes, 'B', 3)}, of which the engine uses "
            f"{engine.memory_fraction:.0%}",
            lack,
            "a larger `--tensor` or `--pipeline`, or narrower `--weights`"
            f"{'' if published is None else f' ({published})'}",
        )
    return smallest

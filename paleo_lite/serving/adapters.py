"""Several LoRA adapters of one network: their memory, their kernels, and the slots in which they are used.

The engine adds the adapter of each token to every product in the blocks, by two more kernels (vLLM's `lora_shrink` and
`lora_expand`; Chen et al. 2023, Punica; Sheng et al. 2023, S-LoRA). They are limited by memory traffic: the inputs are
read again, and the outputs read and written. A batch has no more adapters than there are slots on the devices
(`--max-loras`); what waits for a slot lets others pass. An adapter that is in none is copied from the host's memory.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from ..counting import Layer
from ..errors import BadValue
from ..machines import Device
from .iteration_times import IterationTimes
from .requests import Traffic
from .stores import host_bytes_per_s

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]

ADAPTER_RANK = 16
"""Rank where none is given, vLLM's default of `--max-lora-rank`."""

NUMBER_BYTES = 2
"""Bytes of a number of adapters and activations, which are in 16 bits."""

KERNELS_PER_BLOCK = 8
"""Two kernels each for the fused projections of queries, keys and values, the output projection, the fused gate and up
projections, and the down projection."""

KERNEL_S = 4e-6
"""Seconds of a kernel with little to do in a captured graph, as those of norms, activations and rotary embeddings in
decode steps on an H100 (4.5 to 5.5 us with their own work).

vLLM's first engine launched them from the host, which cost a third of the throughput of Llama 2 7B on an A100, with one
slot as with four (https://github.com/vllm-project/vllm/pull/11267).
"""

BANDWIDTH_SHARE = 0.7
"""Share of the memory bandwidth that these kernels reach.

Qwen2.5 7B with adapters, prompts of 2,048 tokens and answers of 256, has 11.4% less throughput under vLLM 0.25
(https://github.com/vllm-project/vllm/pull/48887); the traffic of a prompt is 12% of its time on an H100 at this share.
"""


class Adapters(msgspec.Struct, frozen=True):
    """Adapters of a deployment."""

    count: int  # of which each request asks for one
    rank: int = ADAPTER_RANK
    slots: int = 1  # adapters in the devices' memory, and in a batch, at a time
    skew: float = 0.0  # exponent of their popularity by rank (Zipf); 0 where all are as popular

    def describe(self) -> str:
        """Return the adapters as text."""
        return f"{self.count} of rank {self.rank}, {self.slots} of them at a time"


def parse_adapters(settings: Mapping[str, Any]) -> Adapters | None:
    """Return the adapters of the settings of an engine; None without any."""
    of_adapters = [key for key in settings if key.startswith("adapter-")]
    count = settings.get("adapters")
    if count is None:
        if of_adapters:
            raise BadValue(f"`--engine-settings {of_adapters[0]}` needs adapters=N, those that requests ask for")
        return None
    slots = settings.get("adapter-slots", 1)
    if slots > count:
        raise BadValue(f"`--engine-settings` needs no more adapter-slots than adapters={count} (got {slots})")
    return Adapters(count, settings.get("adapter-rank", ADAPTER_RANK), slots, settings.get("adapter-skew", 0.0))


def with_adapters(traffic: Traffic, adapters: Adapters, seed: int) -> Traffic:
    """Return traffic whose requests ask for adapters by chance."""
    generator = np.random.default_rng(np.random.SeedSequence(seed).spawn(4)[3])
    shares = 1.0 / np.arange(1, adapters.count + 1) ** adapters.skew
    drawn = generator.choice(adapters.count, size=len(traffic), p=shares / shares.sum())
    return msgspec.structs.replace(traffic, adapters=drawn.astype(np.int64))


class AdapterCost(msgspec.Struct, frozen=True):
    """What adapters of a network take on each device that shares it."""

    slot_bytes: float  # memory of a slot
    launches: int  # kernels of an iteration
    token_bytes: float  # traffic of a token
    bandwidth_bytes_per_s: float  # that the kernels reach
    host_bytes_per_s: float  # at which a device reads the host's memory

    def time_s(self, tokens: int, adapters: int) -> float:
        """Return the seconds of an iteration with some tokens of some adapters."""
        traffic_bytes = tokens * self.token_bytes + adapters * self.slot_bytes
        return self.launches * KERNEL_S + traffic_bytes / self.bandwidth_bytes_per_s

    @property
    def load_s(self) -> float:
        """Seconds in which an adapter is copied to a slot, on all devices at the same time."""
        return self.slot_bytes / self.host_bytes_per_s


def cost_of_adapters(
    adapters: Adapters, layers: Sequence[Layer], blocks: int, devices: int, device: Device
) -> AdapterCost:
    """Return what adapters of some layers of a network take, of which each of some devices has a part.

    Of a product that is divided by its outputs a device has the first matrix of the adapter and its part of the second,
    of one that is divided by its inputs the other way round; the layers are taken to be as many of both.
    """
    inputs = sum(layer.weights[0][1] for layer in layers)
    outputs = sum(layer.weights[0][0] for layer in layers)
    part = (1 + 1 / devices) / 2
    return AdapterCost(
        slot_bytes=adapters.rank * (inputs + outputs) * NUMBER_BYTES * part,
        launches=blocks * KERNELS_PER_BLOCK,
        token_bytes=(inputs + 2 * outputs) * NUMBER_BYTES * part,
        bandwidth_bytes_per_s=BANDWIDTH_SHARE * device.bandwidth_bytes_per_s,
        host_bytes_per_s=host_bytes_per_s(device),
    )


def times_with(times: IterationTimes, cost: AdapterCost, slots: int) -> IterationTimes:
    """Return the times of iterations with the kernels of adapters, of which each token may have another one."""
    token_s = [
        0.0 if not tokens else time_s + cost.time_s(tokens, min(tokens, slots))
        for tokens, time_s in enumerate(times.token_s)
    ]
    with_prompts = None if times.with_prompts is None else times_with(times.with_prompts, cost, slots)
    return msgspec.structs.replace(times, token_s=token_s, with_prompts=with_prompts)


class AdapterSlots:
    """Adapters in the slots of a replica, of which the least recently used one without running requests goes."""

    def __init__(self, traffic: Traffic, slots: int, load_s: float) -> None:
        assert traffic.adapters is not None
        self.of_request: list[int] = traffic.adapters.tolist()
        self.slots, self.load_s = slots, load_s
        self.running: dict[int, int] = {}  # running requests of each adapter that has any
        self.resident: OrderedDict[int, None] = OrderedDict()  # the least recently used first
        self.loads = 0
        self.is_waited_for = False  # whether no waiting request has a place, though the batch has one

    def has_place(self, request: int) -> bool:
        """Return whether the adapter of a request may be in the batch."""
        return self.of_request[request] in self.running or len(self.running) < self.slots

    def admit(self, request: int) -> float:
        """Let a request run; return the seconds in which its adapter is copied to a slot."""
        adapter = self.of_request[request]
        self.running[adapter] = self.running.get(adapter, 0) + 1
        is_there = adapter in self.resident
        self.resident[adapter] = None
        self.resident.move_to_end(adapter)
        if is_there:
            return 0.0
        self.loads += 1
        if len(self.resident) > self.slots:
            del self.resident[next(resident for resident in self.resident if resident not in self.running)]
        return self.load_s

    def leave(self, request: int) -> None:
        """Note that a request runs no longer."""
        adapter = self.of_request[request]
        self.running[adapter] -= 1
        if not self.running[adapter]:
            del self.running[adapter]

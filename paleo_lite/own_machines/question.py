"""What is asked of a language model on one's own machine."""

from __future__ import annotations

import msgspec

from ..calibration.evidence_file import EvidenceCalibration
from ..engines.records import LOCAL_ENGINES
from ..engines.records.record import LocalEngine
from ..errors import BadValue
from ..machines import Device
from ..timing.facility import Facility
from ..units import check_integer, format_si, parse_quantity
from .contents import Contents
from .step import UBATCH

DEFAULT_CONTEXT = 4096

LEAST_MEMORY_BYTES = 1e9
"""Smallest memory of a device: with less, the unit is missing."""


class LocalQuestion(msgspec.Struct, frozen=True, kw_only=True):
    """What is asked of a language model on one's own machine, besides which network and which device.

    Raise BadValue if a number or a name is not possible, or an option has no meaning for the program.
    """

    execution: str = "llama.cpp"  # engine that runs it
    backend: str | None = None  # backend of the program, such as ``"rocm"``; None for the usual one of the device
    # Format of the weights, such as ``"q4_k_m"``; None for the types of a file's tensors, and the usual format of the
    # program for any other network.
    weights: str | None = None
    kv_cache: str | None = None  # type of keys and values; None for 16 bits
    context: int | None = None  # tokens in the cache; None for 4,096, or as many as the network knows
    prompt_tokens: int = UBATCH
    # Devices of one kind that the layers are split over: they take turns, so that a token is no faster.
    gpus: int = 1
    tensor_split: tuple[float, ...] | None = None  # proportions of the blocks on each of them, ``--tensor-split``
    # Memory of a device in bytes, or as text such as ``"16GB"``, if it is not the one on record: Macs come with
    # several.
    device_memory: float | str | None = None
    # Layers on the device as ``-ngl`` counts them, from the last: the head, and blocks. None for the fastest that fits.
    gpu_layers: int | None = None
    # Whether the experts (``--cpu-moe``), and keys and values (``--no-kv-offload``), are in the memory of the host.
    cpu_experts: bool = False
    cpu_cache: bool = False
    cpu_expert_blocks: int | None = None  # first blocks whose experts are in the memory of the host, ``--n-cpu-moe``
    # Processor of the host; None for one with two channels of DDR5, and none beside a device that shares its memory
    # with its processor.
    cpu: str | Device | None = None
    power_limit: float | str | None = None  # limit of each device in watts; None for that of its data sheet
    facility: Facility | None = None  # what surrounds the devices, for energy and cost
    calibration: EvidenceCalibration | None = None  # measured speeds that move the constants of the backend

    def __post_init__(self) -> None:
        if self.execution not in LOCAL_ENGINES:
            raise BadValue(f"`--engine` must be one of {', '.join(LOCAL_ENGINES)} (got {self.execution!r})")
        numbers = {"--context": self.context, "--prompt": self.prompt_tokens, "--workers": self.gpus}
        for name, number in numbers.items():
            if number is not None:
                check_integer(f"`{name}`", number, 1)
        if self.tensor_split is not None and not self.engine.places:
            raise BadValue(f"`--tensor-split` is for `--engine llama.cpp` (got {self.execution})")
        if self.gpu_layers is not None:
            check_integer("`--gpu-layers`", self.gpu_layers, 0)
        if self.cpu_experts and self.cpu_expert_blocks is not None:
            raise BadValue("give only one of `--cpu-experts` and `--cpu-expert-blocks`")
        _ = self.memory_bytes
        placements = {
            "--gpu-layers": self.gpu_layers is not None,
            "--cpu-experts": self.cpu_experts,
            "--cpu-expert-blocks": self.cpu_expert_blocks is not None,
            "--cpu-cache": self.cpu_cache,
            "--cpu": self.cpu is not None,
        }
        placement_option = next((name for name, is_given in placements.items() if is_given), None)
        if placement_option is not None and not self.engine.places:
            placing = next(name for name, engine in LOCAL_ENGINES.items() if engine.places)
            raise BadValue(
                f"`{placement_option}` is for `--engine {placing}`: under {self.execution} everything is on the device"
            )
        if self.kv_cache is not None and self.kv_cache not in self.engine.caches:
            raise BadValue(
                f"{self.execution} keeps keys and values in {', '.join(self.engine.caches)} (got {self.kv_cache!r})"
            )

    @property
    def engine(self) -> LocalEngine:
        """The program."""
        return LOCAL_ENGINES[self.execution]

    @property
    def memory_bytes(self) -> float | None:
        """Memory of a device; None for the one on record."""
        if self.device_memory is None:
            return None
        memory_bytes = parse_quantity(self.device_memory, "B")
        if memory_bytes < LEAST_MEMORY_BYTES:
            size = format_si(memory_bytes, "B")
            raise BadValue(f"`--device-memory` must be at least 1 GB, such as 16GB (got {size})")
        return memory_bytes

    def context_of(self, contents: Contents) -> int:
        """Return the tokens in the cache for a network, by default enough for the prompt.

        Raise BadValue if the network does not know as many.
        """
        if contents.positions is not None and self.prompt_tokens > contents.positions:
            raise BadValue(
                f"{contents.name} knows {contents.positions} positions; a prompt of {self.prompt_tokens} is too long"
            )
        if self.context is None:
            least = max(DEFAULT_CONTEXT, self.prompt_tokens)
            return min(least, contents.positions or least)
        if contents.positions is not None and self.context > contents.positions:
            raise BadValue(
                f"{contents.name} knows {contents.positions} positions; a context of {self.context} is too long"
            )
        return self.context

    def check(self, contents: Contents) -> None:
        """Raise BadValue if an option is not possible for a network."""
        self.context_of(contents)
        option = "--cpu-experts" if self.cpu_experts else "--cpu-expert-blocks"
        if self.expert_blocks_of(contents) is not None and not contents.has_experts:
            raise BadValue(f"`{option}` is for mixtures of experts: {contents.name} is not one")

    @property
    def expert_blocks_are_free(self) -> bool:
        """Whether the fastest placement of the experts is asked for."""
        return not self.cpu_experts and self.cpu_expert_blocks is None

    def expert_blocks_of(self, contents: Contents) -> int | None:
        """Return how many first blocks have their experts in the memory of the host; None for the fastest that fits."""
        if self.cpu_experts:
            return contents.blocks
        return None if self.cpu_expert_blocks is None else min(self.cpu_expert_blocks, contents.blocks)

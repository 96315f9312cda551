"""`Space`: the combinations that a sweep predicts, their number, and their division into chunks."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from datetime import date
from functools import lru_cache
from itertools import product
from math import prod
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import msgspec

from ..architectures import find_network, is_network_file, path_of_network
from ..architectures.catalog import find_network_name
from ..architectures.network import SequenceOptions
from ..counting import GENERATION_PHASES, PHASES
from ..distributed.collectives import COLLECTIVES
from ..distributed.links import link_rate
from ..distributed.settings import SCALINGS
from ..distributed.strategies import STRATEGIES, resolve_strategy
from ..errors import BadValue, UnknownName
from ..files import FileVersion, version_of
from ..formats import FORMATS_OF_PRODUCTS, split_format
from ..machines import find_device
from ..machines.device import check_clock
from ..timing.models import TIME_MODELS
from ..timing.optimizers import DEFAULT_OPTIMIZERS, OPTIMIZERS
from ..units import PRECISION_BYTES
from .axes import AxisSpace

AUTOMATIC = "default"
"""Time model that `predict` chooses: calibrated where measurements cover the device, else roofline."""

CHUNK_ROWS = 2**18
"""Maximum rows of a chunk, which takes about 100 MB while it is computed."""


class SizedNetwork(NamedTuple):
    """A network by name, with its sequence length."""

    name: str
    # Tokens per sequence, in ``decode`` tokens in the KV cache; None uses the network's default.
    length: int | None = None
    phase: str = ""  # a phase of `GENERATION_PHASES` for a network with a KV cache, else empty

    @property
    def options(self) -> SequenceOptions | None:
        """Options for building the network; None if everything is at its default."""
        if self.phase == "decode":
            return SequenceOptions(context=self.length, phase=self.phase)
        if self.length or self.phase:
            return SequenceOptions(self.length, phase=self.phase or "inference")
        return None


class DeviceSetting(NamedTuple):
    """A device by name, its power limit in watts and its clock; None for those of its data file."""

    gpu: str
    power_limit_w: float | None = None
    clock: str | None = None


class Chunk(NamedTuple):
    """A part of a space: some cases, devices and batch sizes in one precision, with all values of the other axes."""

    number: int
    precision: str  # of the arithmetic
    weights: str | None  # format of both operands of products, if the requested precision names one
    cases: tuple[tuple[SizedNetwork, str], ...]
    devices: tuple[DeviceSetting, ...]
    batch_sizes: tuple[int, ...]


class Space(AxisSpace, msgspec.Struct, frozen=True):
    """All combinations of these values."""

    kind: ClassVar[str] = "steps"
    dimensions: ClassVar[tuple[str, ...]] = (
        "networks",
        "gpus",
        "power_limits_w",
        "clocks",
        "precisions",
        "phases",
        "sequence_lengths",
        "batch_sizes",
        "time_models",
        "workers",
        "strategies",
        "scalings",
        "links",
        "collectives",
    )
    # Including writing.
    rows_per_s: ClassVar[float] = 150_000
    row_bytes: ClassVar[float] = 40

    networks: tuple[str, ...]  # names of the registries
    gpus: tuple[str, ...]
    # Power limits of every device in watts; None for that of its data sheet.
    power_limits_w: tuple[float | None, ...] = (None,)
    # Clocks of every device, as `machines.Machine` has them; None for that of its data file.
    clocks: tuple[str | None, ...] = (None,)
    precisions: tuple[str, ...] = ("fp32",)
    phases: tuple[str, ...] = ("inference",)
    # Tokens per sequence for networks that read tokens; in ``decode`` tokens in the KV cache.
    sequence_lengths: tuple[int | None, ...] = (None,)
    batch_sizes: tuple[int, ...] = (1,)  # samples per worker for weak scaling, of all workers for strong scaling
    time_models: tuple[str, ...] = (AUTOMATIC,)  # names in `TIME_MODELS`, or `AUTOMATIC`
    workers: tuple[int, ...] = (1,)  # numbers of workers
    # Parallelization; a link is a name or a rate, an empty collective stands for the fastest.
    strategies: tuple[str, ...] = ("data",)
    scalings: tuple[str, ...] = ("strong",)
    links: tuple[str, ...] = ("",)
    collectives: tuple[str, ...] = ("",)
    ppp: float | None = None  # PPP of the ppp model
    optimizer: str = "sgd"  # optimizer of training steps; empty for the default of each network
    samples: float = 1e6  # number of samples that hours, cost and energy refer to
    # Price and power of one device; None uses the price on record and the power model.
    price_usd_per_h: float | None = None
    price_of: str | None = None  # cloud whose prices are used, as for `machines.prices.choose_price`
    power_w: float | None = None
    hardware_files: tuple[str, ...] = ()  # files with further devices
    as_of: date | None = None  # day of the first run, which decides what prices are old; set by `run.run_sweep`

    def check(self) -> None:
        """Raise BadValue or UnknownName if no combination can be predicted.

        That is if an axis is empty or has a duplicate, several workers have no link, a value is impossible, or a name
        is unknown.
        """
        check_precisions(self.precisions)
        check_names("phase", self.phases, (*PHASES, *GENERATION_PHASES))
        check_names("time model", self.time_models, (AUTOMATIC, *TIME_MODELS))
        check_names("scaling", self.scalings, SCALINGS)
        check_names("collective", self.collectives, ("", *COLLECTIVES))
        check_names("optimizer", (self.optimizer,), ("", *OPTIMIZERS))
        for clock in self.clocks:
            check_clock(clock)
        if any(STRATEGIES[resolve_strategy(name)].divides_blocks for name in self.strategies):
            raise BadValue("`sweep` does not support tensor or pipeline parallelism of blocks; use `paleo-lite train`")
        self.check_axes()
        if max(self.workers) > 1 and "" in self.links:
            raise BadValue("several workers need a link: give `--link`, such as `--link pcie3-x16,ethernet100`")
        for link in self.links:
            if link:
                link_rate(link)
        if any(self.links) and self.workers == (1,):
            raise BadValue("`--link` needs several workers: give `--workers`, such as `--workers 1,2,4,8`")
        if "ppp" in self.time_models and self.ppp is None:
            raise BadValue("the ppp model needs the share of peak that is reached: give `--ppp`, such as `--ppp 0.62`")
        if "ppp" not in self.time_models and self.ppp is not None:
            raise BadValue("`--ppp` is for the ppp model: add `--time-model ppp`")

    def resolve_names(self) -> Space:
        """Return the space with the registries' names of networks, devices and strategies.

        Raise UnknownName for one that is unknown, and BadValue if a network does not support a phase or a length.
        """
        self._check_lengths()
        networks = tuple(find_network_name(name) for name in self.networks)
        files = [Path(file) for file in self.hardware_files]
        gpus: dict[str, None] = {}  # without duplicates, in order
        for name in self.gpus:
            board = find_device(name, files)
            gpus[board.parts.device if board.parts else board.id] = None  # a worker is one device of a board
        strategies = tuple(resolve_strategy(name) for name in self.strategies)
        return msgspec.structs.replace(self, networks=networks, gpus=tuple(gpus), strategies=strategies)

    def _check_lengths(self) -> None:
        """Refuse phases and lengths that a network does not support."""
        longest = max(length or 0 for length in self.sequence_lengths)
        for cases in self._case_groups:
            for network, _ in cases:
                if network.options is None or (network.phase and 0 < (network.length or 0) < longest):
                    continue  # a check of the longest sequence covers all lengths
                find_network(network.name, options=network.options)

    @property
    def metadata(self) -> dict[str, Any]:
        """Properties of the sweep that its file states."""
        return {"samples": self.samples, "optimizer": self.optimizer or DEFAULT_OPTIMIZERS, "ppp": self.ppp}

    @property
    def inner_shape(self) -> tuple[int, ...]:
        """Lengths of the axes that every chunk has in full, in the order of its rows."""
        return (
            len(self.time_models),
            len(self.scalings),
            len(self.strategies),
            len(self.links),
            len(self.collectives),
            len(self.workers),
        )

    @property
    def _case_groups(self) -> list[tuple[tuple[SizedNetwork, str], ...]]:
        """Networks in phases, grouped by the time model that they need.

        The groups are encoders of text, language models and other networks, executed layer by layer, and text
        generation in an inference engine.
        """
        sizes = list(product(self.networks, self.sequence_lengths))
        other_networks: list[tuple[SizedNetwork, str]] = []
        text_encoders: list[tuple[SizedNetwork, str]] = []
        language_models: list[tuple[SizedNetwork, str]] = []
        versions = {name: _version_of_file(name) for name in self.networks}
        for name, length in sizes:
            group = other_networks
            if _is_language_model(name, versions[name]):
                group = language_models
            elif _is_text_encoder(name, versions[name]):
                group = text_encoders
            group += [(SizedNetwork(name, length), phase) for phase in self.phases if phase not in GENERATION_PHASES]
        generation = []
        for name, length in sizes:
            generation += [
                (SizedNetwork(name, length, phase), phase) for phase in self.phases if phase in GENERATION_PHASES
            ]
        return [tuple(cases) for cases in (other_networks, text_encoders, language_models, generation) if cases]

    @property
    def devices(self) -> tuple[DeviceSetting, ...]:
        """Every device under every power limit, at every clock."""
        return tuple(DeviceSetting(*setting) for setting in product(self.gpus, self.power_limits_w, self.clocks))

    def max_chunk_lengths(self) -> tuple[int, int, int]:
        """Return the maximum number of cases, devices and batch sizes of a chunk."""
        combinations = max(CHUNK_ROWS // prod(self.inner_shape), 1)
        devices = min(len(self.devices), combinations)
        batch_sizes = min(len(self.batch_sizes), max(combinations // devices, 1))
        cases = len(self.networks) * len(self.sequence_lengths) * len(self.phases)
        return min(cases, max(combinations // (devices * batch_sizes), 1)), devices, batch_sizes

    @property
    def chunk_count(self) -> int:
        """Number of chunks."""
        max_cases, max_devices, max_batch_sizes = self.max_chunk_lengths()
        case_chunks = sum(-(-len(cases) // max_cases) for cases in self._case_groups)
        device_chunks = -(-len(self.devices) // max_devices)
        batch_chunks = -(-len(self.batch_sizes) // max_batch_sizes)
        return len(self.precisions) * case_chunks * device_chunks * batch_chunks

    def chunks(self) -> Iterator[Chunk]:
        """Iterate over all chunks in their order."""
        max_cases, max_devices, max_batch_sizes = self.max_chunk_lengths()
        number = 0
        for name in self.precisions:
            precision, weights = split_format(name, None)
            for group in self._case_groups:
                for cases in _slices(group, max_cases):
                    for devices in _slices(self.devices, max_devices):
                        for batch_sizes in _slices(self.batch_sizes, max_batch_sizes):
                            yield Chunk(number, precision, weights, cases, devices, batch_sizes)
                            number += 1


def _version_of_file(name: str) -> FileVersion | None:
    """Return the version of a network's file; None for a shipped network."""
    return version_of(path_of_network(name)) if is_network_file(name) else None


@lru_cache(4096)
def _is_language_model(name: str, version: FileVersion | None) -> bool:
    return find_network(name).is_language_model


@lru_cache(4096)
def _is_text_encoder(name: str, version: FileVersion | None) -> bool:
    return find_network(name).is_text_encoder


def check_names(category: str, names: Iterable[str], valid_names: Collection[str]) -> None:
    """Raise `UnknownName` for the first name that is not valid."""
    for name in names:
        if name not in valid_names:
            raise UnknownName(category, name, valid_names)


def check_precisions(names: Iterable[str]) -> None:
    """Raise an error for the first name that is neither a precision nor a format of both operands of a product."""
    for name in names:
        split_format(name, None)  # says what to give for a format of weights alone
    check_names("precision", names, (*PRECISION_BYTES, *FORMATS_OF_PRODUCTS))


def _slices(values: tuple, length: int) -> Iterator[tuple]:  # type: ignore[type-arg]
    for start in range(0, len(values), length):
        yield values[start : start + length]


def parse_columns(names: str | Sequence[str]) -> tuple[str, ...]:
    """Return names of columns from a sequence or a text with commas; raise BadValue if one is empty."""
    if not isinstance(names, str):
        return tuple(names)
    parts = tuple(name.strip() for name in names.split(","))
    if not all(parts):
        raise BadValue(f"columns must be names separated by commas, such as time_s,cost_usd (got {names!r})")
    return parts

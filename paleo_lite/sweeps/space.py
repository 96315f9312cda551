"""`Space`: the combinations of a sweep, how many there are, and how they are cut into chunks, before anything runs."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from itertools import product
from math import prod
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import msgspec

from ..architectures import find_network, is_network_file
from ..architectures.network import Tokens
from ..counting import GENERATING, PHASES
from ..distributed.collectives import COLLECTIVES
from ..distributed.links import link_rate
from ..distributed.scale import SCALINGS
from ..distributed.strategies import STRATEGIES
from ..errors import BadValue, UnknownName
from ..machines import find_device
from ..result import Result
from ..timing.models import TIME_MODELS
from ..timing.workload import OPTIMIZERS
from ..units import PRECISION_BYTES, parse_range

AUTOMATIC = "default"
"""The time model that `predict` takes: calibrated where measurements cover the device, else roofline."""

CHUNK_ROWS = 2**18
"""Rows of a chunk: some 100 MB while it is computed."""

ROWS_UNASKED = 10**9
"""Larger sweeps say how large they are and want a yes: it is about two core hours and 40 GB."""


ROWS_PER_S, ROW_BYTES = 150_000, 40
"""Of one core with everything written, and of a row in Parquet: measured, for estimates."""

_DIMENSIONS = (
    "networks", "gpus", "precisions", "phases", "sequence_lengths", "batch_sizes", "time_models", "workers",
    "strategies", "scalings", "links", "collectives",
)  # fmt: skip


class Sized(NamedTuple):
    """A network by name, and the tokens of a sequence; None: as many as the network says.

    In a phase of `GENERATING`, which it names then, it has a cache; in ``decode`` the tokens are those in the cache.
    """

    name: str
    length: int | None = None
    phase: str = ""

    @property
    def tokens(self) -> Tokens | None:
        """What is asked of the network; None: nothing."""
        if self.phase == "decode":
            return Tokens(context=self.length, phase=self.phase)
        return Tokens(self.length, phase=self.phase or "inference") if self.length or self.phase else None


class Chunk(NamedTuple):
    """A part of a space: some cases on some devices at some batch sizes in one precision, all else in full."""

    number: int
    precision: str
    cases: tuple[tuple[Sized, str], ...]
    gpus: tuple[str, ...]
    batch_sizes: tuple[int, ...]


class Space(Result, msgspec.Struct, frozen=True):
    """Every combination of these is predicted.

    Attributes
    ----------
    networks, gpus, precisions, phases : tuple of str
        Names as their registries have them.
    sequence_lengths : tuple of int or None
        Tokens of a sequence, of networks that read them; in ``decode`` those in the cache.
    batch_sizes : tuple of int
        Samples per worker for weak scaling, of all workers together for strong scaling.
    time_models : tuple of str
        `AUTOMATIC` or of `TIME_MODELS`.
    strategies, scalings, links, collectives : tuple of str
        How several workers share the work; a link is a name or a rate, an empty collective the fastest.
    ppp : float or None
        For the ppp model.
    optimizer : str
        Of training steps; plain gradient descent is what `predict` counts.
    samples : float
        That hours, cost and energy are those of.
    price_usd_per_h, power_w : float or None
        Of one device, in place of what its file says.
    """

    _page: ClassVar[str] = "paleo_lite.reporting.sweep:size_lines"

    networks: tuple[str, ...]
    gpus: tuple[str, ...]
    precisions: tuple[str, ...] = ("fp32",)
    phases: tuple[str, ...] = ("inference",)
    sequence_lengths: tuple[int | None, ...] = (None,)
    batch_sizes: tuple[int, ...] = (1,)
    time_models: tuple[str, ...] = (AUTOMATIC,)
    workers: tuple[int, ...] = (1,)
    strategies: tuple[str, ...] = ("data",)
    scalings: tuple[str, ...] = ("strong",)
    links: tuple[str, ...] = ("",)
    collectives: tuple[str, ...] = ("",)
    ppp: float | None = None
    optimizer: str = "sgd"
    samples: float = 1e6
    price_usd_per_h: float | None = None
    power_w: float | None = None
    hardware_files: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """How large it is."""
        return {"rows": self.size, "chunks": self.chunk_count}

    def check(self) -> None:
        """Refuse what no combination could be predicted of.

        Raises
        ------
        BadValue
            If a dimension is empty or says something twice, several workers have no link, or values are impossible.
        UnknownName
            If a precision, phase, time model, strategy, scaling or collective is unknown.
        """
        for what, given, known in (
            ("precision", self.precisions, PRECISION_BYTES), ("phase", self.phases, (*PHASES, *GENERATING)),
            ("time model", self.time_models, (AUTOMATIC, *TIME_MODELS)), ("strategy", self.strategies, STRATEGIES),
            ("scaling", self.scalings, SCALINGS), ("collective", self.collectives, ("", *COLLECTIVES)),
            ("optimizer", (self.optimizer,), OPTIMIZERS),
        ):  # fmt: skip
            for name in given:
                if name not in known:
                    raise UnknownName(what, name, known)
        if blocks := [name for name in self.strategies if STRATEGIES[name].in_blocks]:
            raise BadValue(
                f"a sweep has no --tensor and --pipeline, which {blocks[0]} divides by: ask 'paleo-lite scale'"
            )
        for name in _DIMENSIONS:
            values = getattr(self, name)
            if not values:
                raise BadValue(f"the sweep has no {name.replace('_', ' ')}: at least one is needed")
            twice = sorted({str(value) for value in values if values.count(value) > 1}) if len(values) < 1000 else []
            if twice or len(set(values)) < len(values):
                raise BadValue(
                    f"the sweep names {name.replace('_', ' ')} twice: {', '.join(twice) or 'see the ranges'}"
                )
        if max(self.workers) > 1 and "" in self.links:
            raise BadValue("several workers exchange over a link: give --links, such as --links pcie3-x16,ethernet100")
        for link in self.links:
            if link:
                link_rate(link)
        if "ppp" in self.time_models and self.ppp is None:
            raise BadValue("the ppp model needs a PPP, the share of peak that the platform reaches, such as --ppp 0.62")
        if "ppp" not in self.time_models and self.ppp is not None:
            raise BadValue("a PPP belongs to the ppp model: --time-models ppp")

    def resolved(self) -> Space:
        """The same space with networks, devices and links by the names of their registries."""
        files = [Path(file) for file in self.hardware_files]
        longest = max(length or 0 for length in self.sequence_lengths)
        for network, _ in (case for group in self._cases for case in group):
            if network.tokens is None or (network.phase and 0 < (network.length or 0) < longest):
                continue  # what writes at the longest does at others
            layers = find_network(network.name, tokens=network.tokens).layers
            if network.phase and any("active" in layer.attributes for layer in layers):
                raise BadValue(
                    f"which experts {network.name} reads depends on the batch: predict says how it writes, sweep not"
                )
        networks = tuple(name if is_network_file(name) else find_network(name).name for name in self.networks)
        boards = [find_device(name, files) for name in self.gpus]
        # The device that a worker is: of a board of several, one.
        gpus = tuple(dict.fromkeys(board.parts.device if board.parts else board.id for board in boards))
        return msgspec.structs.replace(self, networks=networks, gpus=gpus)

    def describe(self) -> str:
        """``2 networks x 70 gpus x 11 batch sizes``."""
        parts = [(name, len(getattr(self, name))) for name in _DIMENSIONS]
        return " x ".join(f"{length:,} {name.replace('_', ' ')}" for name, length in parts if length > 1) or "1 of each"

    def hours(self) -> float:
        """About how many hours one core takes."""
        return self.size / ROWS_PER_S / 3600

    def gigabytes(self) -> float:
        """About how large the output becomes, in GB; while it is put together the chunks take as much again."""
        return self.size * ROW_BYTES / 1e9

    @property
    def spread(self) -> tuple[int, ...]:
        """How many there are of what every chunk has in full, in the order of its rows."""
        return tuple(len(part) for part in (self.time_models, self.scalings, self.strategies, self.links,
                                            self.collectives, self.workers))  # fmt: skip

    @property
    def size(self) -> int:
        """Combinations."""
        return prod(len(getattr(self, name)) for name in _DIMENSIONS)

    @property
    def _cases(self) -> list[tuple[tuple[Sized, str], ...]]:
        """Networks in phases: first those that are executed layer by layer, then those of engines."""
        plain = [phase for phase in self.phases if phase not in GENERATING]
        sized = list(product(self.networks, self.sequence_lengths))
        groups = (
            tuple((Sized(*size), phase) for size in sized for phase in plain),
            tuple((Sized(*size, phase), phase) for size in sized for phase in self.phases if phase in GENERATING),
        )
        return [group for group in groups if group]

    def steps(self) -> tuple[int, int, int]:
        """How many cases, devices and batch sizes a chunk has at most."""
        most = max(CHUNK_ROWS // prod(self.spread), 1)
        gpus = min(len(self.gpus), most)
        batches = min(len(self.batch_sizes), max(most // gpus, 1))
        cases = len(self.networks) * len(self.sequence_lengths) * len(self.phases)
        return min(cases, max(most // (gpus * batches), 1)), gpus, batches

    @property
    def chunk_count(self) -> int:
        """Chunks."""
        cases, gpus, batches = self.steps()
        groups = sum(-(-len(group) // cases) for group in self._cases)
        return len(self.precisions) * groups * -(-len(self.gpus) // gpus) * -(-len(self.batch_sizes) // batches)

    def chunks(self) -> Iterator[Chunk]:
        """All chunks in their order."""
        case_step, gpu_step, batch_step = self.steps()
        number = 0
        for precision in self.precisions:
            for some_cases in (some for group in self._cases for some in _slices(group, case_step)):
                for gpus in _slices(self.gpus, gpu_step):
                    for batch_sizes in _slices(self.batch_sizes, batch_step):
                        yield Chunk(number, precision, some_cases, gpus, batch_sizes)
                        number += 1

    def digest(self) -> str:
        """A hash of everything that the results follow from but the shipped data."""
        from ..version import __version__

        text = json.dumps([__version__, msgspec.to_builtins(self)])
        for path in self.hardware_files:
            text += hashlib.sha256(Path(path).read_bytes()).hexdigest()
        return hashlib.sha256(text.encode()).hexdigest()


def _slices(values: tuple, step: int) -> Iterator[tuple]:  # type: ignore[type-arg]
    return (values[start : start + step] for start in range(0, len(values), step))


def parse_names(names: str | Sequence[str], what: str, everything: Sequence[str] = ()) -> tuple[str, ...]:
    """Names, as a sequence or with commas, or ``all``.

    Raises
    ------
    BadValue
        If a name is empty.
    """
    if not isinstance(names, str):
        return tuple(names)
    if names.strip() == "all" and everything:
        return tuple(everything)
    named = tuple(name.strip() for name in names.split(","))
    if not all(named):
        example = ",".join(everything[:2]) or "a,b"
        raise BadValue(f"{what} {names!r}: expected names with commas between them, such as {example}")
    return named


def parse_numbers(numbers: str | int | Sequence[int], what: str) -> tuple[int, ...]:
    """Numbers, and as text also ranges: ``1,2,4``, ``1:1024:x2``, ``1,2,4,...,128``, ``1:8,16:64:+16``."""
    if not isinstance(numbers, str) or ":" not in numbers:
        return tuple(parse_range(numbers, what))
    return tuple(dict.fromkeys(number for part in numbers.split(",") for number in parse_range(part, what)))

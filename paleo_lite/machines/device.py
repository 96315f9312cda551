"""`Device` and `Link`: what a data sheet says about a machine, each figure with its source.

The classes mirror the TOML files in ``hardware/`` field for field, so that a misspelt field is an error that names it.
Figures are kept as text with their unit (``"480 GB/s"``); the properties give numbers in SI units.
"""

from __future__ import annotations

from datetime import date
from typing import Literal, get_args

import msgspec

from ..errors import BadValue, UnknownPrecision
from ..units import PRECISION_BYTES, format_si, parse_quantity

Clock = Literal["base", "boost", "tensor"]
Unit = Literal["vector", "tensor"]
CLOCKS = ("base", "boost")
"""Clocks that can be asked for; the third is one that a data sheet gives for tensor cores alone."""
UNITS: tuple[str, ...] = get_args(Unit)
Precision = Literal["fp64", "fp32", "tf32", "fp16", "bf16", "fp8", "int8"]


class Figure(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One figure: a value with its unit, the key of its source, and what there is to say about it."""

    value: str
    source: str
    note: str = ""
    unverified: bool = False


class Price(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What one device costs for an hour: prices go stale, so that each carries the day it was listed.

    Attributes
    ----------
    value : str
        ``"3.06 USD/h"``, for what the file describes: of a die on a board of several, the die's share of the board.
    source : str
        Key of its source.
    date : datetime.date
        When the source listed it.
    note : str
        What it covers: on demand or not, where, and whether the host is in it.
    """

    value: str
    source: str
    date: date
    note: str = ""

    @property
    def usd_per_h(self) -> float:
        """US dollars per hour."""
        return parse_quantity(self.value, "USD/h")


class Peak(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A peak rate: it means nothing without precision, unit and clock. Always dense, never sparse.

    `accumulate` names the precision of the sums where a tensor core offers two speeds.
    """

    precision: Precision
    unit: Unit
    clock: Clock
    value: str
    source: str
    accumulate: Precision | None = None
    note: str = ""
    unverified: bool = False
    audit_exception: str = ""

    @property
    def per_s(self) -> float:
        """FLOP/s (operations per second for int8), a multiply-accumulate counted as 2."""
        return parse_quantity(self.value, "OP/s" if self.precision == "int8" else "FLOP/s")


class Cores(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How wide the machine is: multiprocessors (SM, CU, CPU core) and fp32 lanes (CUDA cores) over all of them."""

    multiprocessors: Figure
    fp32_lanes: Figure


class Clocks(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Clocks; `default` is the one that predictions use unless told otherwise."""

    default: Literal["base", "boost"]
    base: Figure | None = None
    boost: Figure | None = None
    tensor: Figure | None = None


class DeviceMemory(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Device memory: capacity and peak bandwidth; bus width and pin rate where known; L2 cache."""

    type: str
    capacity: Figure
    bandwidth: Figure
    bus: Figure | None = None
    rate: Figure | None = None
    l2: Figure | None = None
    audit_exception: str = ""


class Attachment(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A link that leaves the device: which one, and what one direction carries."""

    link: str
    per_direction: Figure


class BoardParts(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a board or package consists of, as a program sees it: `count` devices, each described by `device`."""

    count: int
    device: str


class Device(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A machine that networks run on.

    Attributes
    ----------
    id : str
        The stem of its file, ``k80``.
    scope : str
        What the figures cover: ``die`` (one device that a program sees), ``board`` or ``package`` (several), ``module``
        (a system on a chip) or ``cpu`` (one socket).
    parts : BoardParts or None
        For a board or package: what one of its devices is.
    sources : dict of str to str
        Source key to what it is and where.
    power : Figure or None
        Power limit on the data sheet.
    rent : Price or None
        What an hour of it costs.
    conflicts : list of str
        Where sources disagree, and which figure was taken and why.
    """

    name: str
    vendor: str
    architecture: str
    chip: str
    scope: Literal["die", "board", "package", "module", "cpu"]
    year: int
    cores: Cores
    clocks: Clocks
    memory: DeviceMemory
    peaks: list[Peak]
    sources: dict[str, str]
    id: str = ""
    capability: str = ""
    parts: BoardParts | None = None
    power: Figure | None = None
    rent: Price | None = None
    links: list[Attachment] = []
    measured: dict[str, Figure] = {}
    aliases: list[str] = []
    conflicts: list[str] = []

    def __repr__(self) -> str:
        return f"<Device {self.id}: {self.name}, {self.vendor} {self.architecture}, {self.year}>"

    @property
    def bandwidth_bytes_per_s(self) -> float:
        """Peak memory bandwidth in bytes per second."""
        return parse_quantity(self.memory.bandwidth.value, "B/s")

    @property
    def memory_bytes(self) -> float:
        """Memory capacity in bytes."""
        return parse_quantity(self.memory.capacity.value, "B")

    @property
    def power_w(self) -> float | None:
        """Power limit in watts, or None where no source gives it."""
        return None if self.power is None else parse_quantity(self.power.value, "W")

    @property
    def rent_usd_per_h(self) -> float | None:
        """Price of an hour in US dollars, or None where there is none on record."""
        return None if self.rent is None else self.rent.usd_per_h

    @property
    def precisions(self) -> list[str]:
        """Precisions that have a peak, widest first."""
        return [name for name in PRECISION_BYTES if any(peak.precision == name for peak in self.peaks)]

    def clock_hz(self, clock: Clock) -> float | None:
        """A clock in Hz, or None where no source gives it."""
        figure = getattr(self.clocks, clock)
        return None if figure is None else parse_quantity(figure.value, "Hz")

    def find_peak(self, precision: str, unit: str | None = None, clock: str | None = None) -> PeakRate:
        """The peak for a precision, at a clock.

        A peak that is listed at another clock only is scaled by the ratio of the clocks: a peak is lanes times clock.

        Parameters
        ----------
        precision : str
            ``"fp64"``, ``"fp32"``, ``"tf32"``, ``"fp16"``, ``"bf16"``, ``"fp8"`` or ``"int8"``.
        unit : {"vector", "tensor"}, optional
            Which unit; without it the fastest one that accumulates in fp32 or wider.
        clock : {"base", "boost"}, optional
            Without it the device's default.

        Raises
        ------
        UnknownPrecision
            If there is no such peak; the message says which there are.
        BadValue
            If clock or unit are none of these.
        """
        clock = clock or self.clocks.default
        if clock not in CLOCKS:
            raise BadValue(f"the clock is {' or '.join(CLOCKS)}, not {clock!r}")
        if unit is not None and unit not in UNITS:
            raise BadValue(f"the unit is {' or '.join(UNITS)}, not {unit!r}")
        listed = [p for p in self.peaks if p.precision == precision and unit in (None, p.unit)]
        if not listed:
            have = ", ".join(dict.fromkeys(f"{p.precision} ({p.unit})" for p in self.peaks))
            wanted = precision if unit is None else f"{precision} ({unit})"
            raise UnknownPrecision(f"{self.name} has no {wanted} peak: it has {have}")
        rates, wanted_hz = [], self.clock_hz(clock)  # type: ignore[arg-type]
        for peak in listed:
            # A tensor clock is the boost of the tensor cores: the data sheet's figure stands for boost.
            if peak.clock == clock or (peak.clock == "tensor" and clock == "boost"):
                rates.append(PeakRate(peak, peak.per_s, clock, ""))
            elif wanted_hz is not None and (listed_hz := self.clock_hz(peak.clock)) is not None:
                rates.append(PeakRate(peak, peak.per_s * wanted_hz / listed_hz, clock, peak.clock))
        if not rates:
            raise UnknownPrecision(
                f"{self.name} has no {clock} clock on record, so its {precision} peak at {clock} is unknown: "
                f"leave --clock out, or use {'base' if clock == 'boost' else 'boost'}"
            )
        # Sums in fp16 are faster on some cards but are not what frameworks ask for.
        exact = [rate for rate in rates if rate.peak.accumulate != "fp16"] or rates
        listed_here = [rate for rate in exact if not rate.scaled_from]
        by_unit = {rate.peak.unit for rate in listed_here}
        candidates = listed_here + [rate for rate in exact if rate.peak.unit not in by_unit]
        return max(candidates, key=lambda rate: rate.per_s)


class PeakRate(msgspec.Struct, frozen=True):
    """A peak at the clock that was asked for; `scaled_from` names the listed clock where it was scaled."""

    peak: Peak
    per_s: float
    clock: str
    scaled_from: str

    def describe(self) -> str:
        """``fp64 vector peak 2.91 TFLOP/s at the boost clock``."""
        unit = "OP/s" if self.peak.precision == "int8" else "FLOP/s"
        scaled = f" (scaled from the {self.scaled_from} clock)" if self.scaled_from else ""
        rate = format_si(self.per_s, unit)
        return f"{self.peak.precision} {self.peak.unit} peak {rate} at the {self.clock} clock{scaled}"


class Link(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What data crosses between devices or nodes: bandwidth of one direction, and latency where a source gives it.

    `per` says whose bandwidth it is: of one ``lane`` of several, of all that a ``device`` has, of one network ``port``.
    Of storage, `random_reads` is how many small reads a second it does at random places, many of them in flight.
    """

    name: str
    kind: Literal["host", "device", "network", "storage"]
    per_direction: Figure
    per: Literal["", "lane", "device", "port"] = ""
    latency: Figure | None = None
    random_reads: Figure | None = None
    aliases: list[str] = []
    conflicts: list[str] = []

    @property
    def bandwidth_bytes_per_s(self) -> float:
        """Bytes per second in one direction."""
        return parse_quantity(self.per_direction.value, "B/s")

    @property
    def random_reads_per_s(self) -> float | None:
        """Small reads per second at random places, or None where no source gives it."""
        return None if self.random_reads is None else parse_quantity(self.random_reads.value, "IOPS")


class LinkRegistry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The whole of ``links.toml``."""

    sources: dict[str, str]
    link: dict[str, Link]

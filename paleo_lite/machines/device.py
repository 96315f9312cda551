"""`Device` and `Link`: data-sheet figures of devices and links, each with its source.

The classes have the same fields as the TOML files in ``hardware/``, so that a misspelled field is an error that names
it. Figures are text with a unit (``"480 GB/s"``); the properties convert them to numbers in SI units.
"""

from __future__ import annotations

import datetime
from itertools import takewhile
from typing import Literal, get_args

import msgspec

from ..errors import BadQuantity, BadValue, UnknownPrecision
from ..units import PRECISION_BYTES, format_si, parse_quantity

Clock = Literal["base", "boost", "tensor"]
Unit = Literal["vector", "tensor"]
REQUESTED_LIMIT = "given power limit"
"""Source of a power limit that the user requests."""

CLOCKS = ("base", "boost")
"""Clocks that a prediction may use; the third is a separate clock of tensor cores on some data sheets."""
UNITS: tuple[str, ...] = get_args(Unit)
Precision = Literal["fp64", "fp32", "tf32", "fp16", "bf16", "fp8", "int8", "fp4"]


DAYS_OF_A_YEAR = 365
"""Age above which an answer says that its price is old."""


class SourcedFigure(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One figure: a value with its unit, the key of its source, and a note."""

    value: str
    source: str
    note: str = ""
    unverified: bool = False


GIVEN_PRICE = "given"
"""Source of a price that the user states."""


class Price(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Price of one device per hour, with the date of its listing, because prices become outdated.

    Attributes
    ----------
    value : str
        ``"3.06 USD/h"`` for the device that the file describes: for one die of a board, the die's share of the board.
    source : str
        Key of its source.
    date : datetime.date
        Date of the listing.
    note : str
        Scope of the price: on demand or reserved, region, with or without the host.
    cloud : str
        Who asks it: ``"AWS"``.
    """

    value: str
    source: str
    date: datetime.date
    note: str = ""
    cloud: str = ""

    def __post_init__(self) -> None:
        try:
            usd_per_h = self.usd_per_h
        except BadQuantity as error:
            raise ValueError(str(error)) from None  # reported with its place in the file
        if usd_per_h <= 0:
            raise ValueError(f"a price must be above 0 (got {self.value!r})")

    @property
    def usd_per_h(self) -> float:
        """US dollars per hour."""
        return parse_quantity(self.value, "USD/h")

    def per_device(self, name: str, devices: int) -> Price:
        """Return the price of one device of an instance or node that has several, of which this is the price.

        The name is that of the instance or node, for the note.
        """
        part = name if devices == 1 else f"one of the {devices} devices of {name}"
        note = ", ".join(filter(None, (part, self.note)))
        return msgspec.structs.replace(self, value=f"{self.usd_per_h / devices!r} USD/h", note=note)

    def describe(self) -> str:
        """Return the price with cloud and date, such as ``6.88 USD/h (AWS, 2026-11-09: an eighth of p5.48xlarge)``."""
        if self.source == GIVEN_PRICE:
            return f"{self.usd_per_h:g} USD/h, as given"
        listed = f"{self.cloud}, {self.date}" if self.cloud else f"{self.date}"
        return f"{self.usd_per_h:g} USD/h ({': '.join(filter(None, (listed, self.note)))})"

    def is_old(self, today: datetime.date) -> bool:
        """Return whether the price is older than a year."""
        return (today - self.date).days > DAYS_OF_A_YEAR

    def notes(self, today: datetime.date) -> list[str]:
        """Return a note if the price is older than a year."""
        if not self.is_old(today):
            return []
        return [f"the price, {self.describe()}, is older than a year: give `--price`"]


class Peak(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A dense peak rate, for one precision, arithmetic unit and clock.

    `accumulate` is the precision of the sums, where a tensor core has two rates.
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
        """FLOP/s (operations per second for int8); a multiply-accumulate counts as 2."""
        return parse_quantity(self.value, "OP/s" if self.precision == "int8" else "FLOP/s")


class Cores(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Number of multiprocessors (SM, CU, CPU core) and of all their fp32 lanes (CUDA cores).

    An accelerator without published lanes has none on record.
    """

    multiprocessors: SourcedFigure
    fp32_lanes: SourcedFigure | None = None


class Clocks(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Clocks; predictions use `default` unless another is requested."""

    default: Literal["base", "boost"]
    base: SourcedFigure | None = None
    boost: SourcedFigure | None = None
    tensor: SourcedFigure | None = None


MEASURED = "measured"
"""Source of what a machine reports of itself."""

REPORTED_SHARE = 0.9915
"""Share of the memory of a device that its driver reports, apart from `KEPT_BYTES`."""

KEPT_BYTES = 0.13 * 2**30
"""Bytes that a driver keeps on every device."""

INLINE_ECC_SHARE = 15 / 16
"""Share of a memory that error correction leaves where it has no memory of its own."""


class DeviceMemory(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Device memory: capacity and peak bandwidth, and where known bus width, pin rate and L2 cache."""

    type: str  # as HBM3e, GDDR6X, or "LPDDR5X, shared with the CPU"
    capacity: SourcedFigure
    bandwidth: SourcedFigure
    reported: SourcedFigure | None = None  # what the driver reports, where systems on a chip keep more than a GPU's
    bus: SourcedFigure | None = None
    rate: SourcedFigure | None = None
    l2: SourcedFigure | None = None
    inline_ecc: bool = False  # whether error correction, which is on by default, takes a sixteenth of the memory
    audit_exception: str = ""

    @property
    def family(self) -> str:
        """Return the letters before the generation of the type, in upper case: HBM, GDDR, LPDDR, DDR."""
        return "".join(takewhile(str.isalpha, self.type)).upper()


class Attachment(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A link of the device and its bandwidth in one direction."""

    link: str
    per_direction: SourcedFigure


class BoardParts(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Devices of a board or package that programs see: their number and the id of each."""

    count: int
    device: str


class LearnedPower(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Power of a device calibrated by measured watts."""

    logs: dict[str, float]  # logarithm of the factor of each constant of `paleo_lite.timing.energy`
    width: float  # of its interval in logarithms, over that without the watts


class Device(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A device that networks run on.

    Attributes
    ----------
    id : str
        Stem of its file, ``k80``.
    scope : str
        Scope of the figures: ``die`` (one device that a program sees), ``board`` or ``package`` (several), ``module``
        (a system on a chip), ``cpu`` (one socket) or ``accelerator`` (a chip with its own instruction set, whose makers
        publish rates without lanes and clocks).
    laptop : bool
        Whether it is built into laptops, which limit its clock and power differently.
    embedded : bool
        Whether it is a module for embedded systems, whose processor launches kernels slowly.
    parts : BoardParts or None
        Devices of a board or package.
    sources : dict of str to str
        Title and address of each source by key.
    power : SourcedFigure or None
        Power limit: that of the data sheet, or a requested one.
    rated_power : SourcedFigure or None
        Power limit on the data sheet, if `power` is a requested limit; otherwise None.
    rent : Price or None
        Price per hour.
    conflicts : list of str
        Disagreements between sources, with the chosen figure and the reason.
    """

    name: str
    vendor: str
    architecture: str
    chip: str
    scope: Literal["die", "board", "package", "module", "cpu", "accelerator"]
    year: int
    cores: Cores
    clocks: Clocks
    memory: DeviceMemory
    peaks: list[Peak]
    sources: dict[str, str]
    id: str = ""
    capability: str = ""
    parts: BoardParts | None = None
    power: SourcedFigure | None = None
    rent: Price | None = None
    links: list[Attachment] = []
    measured: dict[str, SourcedFigure] = {}
    aliases: list[str] = []
    conflicts: list[str] = []
    rated_power: SourcedFigure | None = None
    laptop: bool = False
    embedded: bool = False
    learned_power: LearnedPower | None = None  # calibrated by measured watts; no file states it
    locked_clock: float = 1.0  # requested clock relative to the default one, at most 1; no file states it

    def __repr__(self) -> str:
        return f"<Device {self.id}: {self.name}, {self.vendor} {self.architecture}, {self.year}>"

    @property
    def shares_host_memory(self) -> bool:
        """Whether its memory is that of the host: a system on a chip, or the host itself."""
        return self.scope in ("module", "cpu")

    @property
    def has_rates_alone(self) -> bool:
        """Whether its makers publish rates that follow from no number of lanes and no clock."""
        return self.scope == "accelerator"

    @property
    def bandwidth_bytes_per_s(self) -> float:
        """Peak memory bandwidth in bytes per second."""
        return parse_quantity(self.memory.bandwidth.value, "B/s")

    @property
    def memory_bytes(self) -> float:
        """Memory capacity in bytes, as the data sheet writes it."""
        return parse_quantity(self.memory.capacity.value, "B")

    @property
    def reported_memory_bytes(self) -> float:
        """Memory that the driver reports.

        What data sheets call a gigabyte of memory is a gibibyte, of which the driver keeps about 1%: an A100 of 80 GB
        reports 84,990,623,744 bytes, an H100 85,018,279,936, a B200 of 180 GB 191,503,138,816, an RTX 3090 23.69 GiB
        and an RTX 4090 23.65 GiB (messages of PyTorch). Error correction of GDDR takes a sixteenth: an L4 of 24 GB
        reports 23,034 MiB, an L40S of 48 GB 46,068 MiB and a T4 of 16 GB 15,109 MiB (nvidia-smi).
        """
        capacity, reported = self.memory.capacity, self.memory.reported
        if reported is not None:
            return parse_quantity(reported.value, "B")
        if capacity.source == MEASURED:
            return self.memory_bytes
        share = INLINE_ECC_SHARE if self.memory.inline_ecc else 1.0
        is_binary = capacity.value.endswith("iB")
        stated_bytes = self.memory_bytes if is_binary else self.memory_bytes / 1e9 * 2**30
        return REPORTED_SHARE * share * stated_bytes - KEPT_BYTES

    @property
    def power_w(self) -> float | None:
        """Power limit in watts; None if no source gives it."""
        return None if self.power is None else parse_quantity(self.power.value, "W")

    @property
    def requested_power_limit_w(self) -> float | None:
        """Power limit that the user requests, in watts; None if the device has that of its data sheet."""
        return self.power_w if self.power is not None and self.power.source == REQUESTED_LIMIT else None

    @property
    def rated_power_w(self) -> float | None:
        """Power limit of the data sheet in watts; None if no source gives it."""
        return self.power_w if self.rated_power is None else parse_quantity(self.rated_power.value, "W")

    @property
    def rent_usd_per_h(self) -> float | None:
        """Price per hour in US dollars; None if no source gives it."""
        return None if self.rent is None else self.rent.usd_per_h

    @property
    def precisions(self) -> list[str]:
        """Precisions that have a peak, widest first."""
        return [name for name in PRECISION_BYTES if any(peak.precision == name for peak in self.peaks)]

    def clock_hz(self, clock: Clock) -> float | None:
        """Return a clock in Hz; None if no source gives it."""
        figure = getattr(self.clocks, clock)
        return None if figure is None else parse_quantity(figure.value, "Hz")

    def find_peak(self, precision: str, unit: str | None = None, clock: str | None = None) -> PeakRate:
        """Return the peak rate for a precision at a clock.

        A peak that is listed only at another clock is scaled by the ratio of the clocks.

        Parameters
        ----------
        precision : str
            ``"fp64"``, ``"fp32"``, ``"tf32"``, ``"fp16"``, ``"bf16"``, ``"fp8"``, ``"int8"`` or ``"fp4"``.
        unit : {"vector", "tensor"}, optional
            Arithmetic unit; default: the fastest that accumulates in fp32 or wider.
        clock : str, optional
            ``"base"``, ``"boost"``, or a locked clock such as ``"1.2 GHz"``. Default: the device's default clock.

        Raises
        ------
        UnknownPrecision
            If there is no such peak; the message lists the available ones.
        BadValue
            If clock or unit is unknown.
        """
        clock = clock or self.clocks.default
        locked_hz = None if clock in CLOCKS else _parse_clock(clock)
        if unit is not None and unit not in UNITS:
            raise BadValue(f"the unit must be {' or '.join(UNITS)} (got {unit!r})")
        listed = [p for p in self.peaks if p.precision == precision and unit in (None, p.unit)]
        if not listed:
            available = ", ".join(dict.fromkeys(f"{p.precision} ({p.unit})" for p in self.peaks))
            requested = precision if unit is None else f"{precision} ({unit})"
            raise UnknownPrecision(f"{self.name} has no {requested} peak: it has {available}")
        rates: list[PeakRate] = []
        clock_hz = self.clock_hz(clock) if locked_hz is None else locked_hz  # type: ignore[arg-type]
        for peak in listed:
            # A tensor clock is the boost clock of the tensor cores.
            if peak.clock == clock or (peak.clock == "tensor" and clock == "boost"):
                rates.append(PeakRate(peak, peak.per_s, clock, ""))
                continue
            listed_hz = self.clock_hz(peak.clock)
            if clock_hz is not None and listed_hz is not None:
                rates.append(PeakRate(peak, peak.per_s * clock_hz / listed_hz, clock, peak.clock))
        if not rates:
            other_clock = "base" if clock == "boost" else "boost"
            raise UnknownPrecision(
                f"{self.name} has no {clock} clock on record, so its {precision} peak at {clock} is unknown: "
                f"use `--clock {other_clock}` or leave the option out"
            )
        # Accumulation in fp16 is faster on some cards, but frameworks do not use it.
        accurate = [rate for rate in rates if rate.peak.accumulate != "fp16"] or rates
        unscaled = [rate for rate in accurate if not rate.scaled_from]
        units_with_unscaled = {rate.peak.unit for rate in unscaled}
        candidates = unscaled + [rate for rate in accurate if rate.peak.unit not in units_with_unscaled]
        return max(candidates, key=lambda rate: rate.per_s)


def check_clock(clock: str | None) -> None:
    """Raise `BadValue` unless a clock is one of `CLOCKS`, a frequency, or None for that of the data file."""
    if clock is not None and clock not in CLOCKS:
        _parse_clock(clock)


def _parse_clock(clock: str) -> float:
    """Return a locked clock in Hz."""
    try:
        clock_hz = parse_quantity(clock, "Hz")
    except BadQuantity:
        clock_hz = 0.0
    if not 1e6 <= clock_hz <= 1e11:
        raise BadValue(f"the clock must be {', '.join(CLOCKS)} or a frequency such as '1.2 GHz' (got {clock!r})")
    return clock_hz


class PeakRate(msgspec.Struct, frozen=True):
    """A peak rate at the requested clock; `scaled_from` is the listed clock if it was scaled."""

    peak: Peak
    per_s: float
    clock: str
    scaled_from: str

    def describe(self) -> str:
        """Return a description such as ``fp64 vector peak 2.91 TFLOP/s at the boost clock``."""
        unit = "OP/s" if self.peak.precision == "int8" else "FLOP/s"
        scaled = f" (scaled from the {self.scaled_from} clock)" if self.scaled_from else ""
        rate = format_si(self.per_s, unit)
        is_locked = self.clock not in CLOCKS
        clock = f"a clock of {format_si(_parse_clock(self.clock), 'Hz')}" if is_locked else f"the {self.clock} clock"
        return f"{self.peak.precision} {self.peak.unit} peak {rate} at {clock}{scaled}"


class Link(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A link between devices or nodes, or a storage device.

    Attributes
    ----------
    per_direction : SourcedFigure
        Bandwidth in one direction.
    per : {"", "lane", "device", "port"}
        Unit that has this bandwidth: one lane of several, all links of a device, or one network port.
    one_per_device : bool
        Whether nodes of GPUs have a port of this network for each device.
    is_nvlink : bool
        Whether it is an NVLink, for which engines keep buffers on every device.
    sums_in_switch : bool
        Whether the switch between devices adds the messages of an all-reduce (NVLink SHARP).
    latency : SourcedFigure or None
        Latency, if a source gives it.
    random_reads : SourcedFigure or None
        For storage: small random reads per second, with many requests in flight.
    """

    name: str
    kind: Literal["host", "device", "network", "storage"]
    per_direction: SourcedFigure
    per: Literal["", "lane", "device", "port"] = ""
    one_per_device: bool = False
    is_nvlink: bool = False
    sums_in_switch: bool = False
    latency: SourcedFigure | None = None
    random_reads: SourcedFigure | None = None
    aliases: list[str] = []
    conflicts: list[str] = []

    @property
    def bandwidth_bytes_per_s(self) -> float:
        """Bytes per second in one direction."""
        return parse_quantity(self.per_direction.value, "B/s")

    @property
    def random_reads_per_s(self) -> float | None:
        """Small random reads per second; None if no source gives it."""
        return None if self.random_reads is None else parse_quantity(self.random_reads.value, "IOPS")


class LinkRegistry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Content of ``links.toml``."""

    sources: dict[str, str]
    link: dict[str, Link]

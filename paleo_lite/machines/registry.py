"""Lookup of devices and links in ``hardware/`` and in user files, and `Machine`, a device with its settings.

Names match independently of case, spaces, hyphens, underscores and manufacturer (``Tesla K80``, ``k80``), but must be
unique: an ambiguous name is an error that lists the candidates.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, TypeVar, get_args

import msgspec

from ..errors import AmbiguousName, BadDevice, BadQuantity, BadValue, UnknownName, UnknownPrecision
from ..files import read_typed, shipped_folder
from ..text import normalize_name
from ..units import check_positive, format_si, parse_quantity
from .clouds import find_instance
from .device import REQUESTED_LIMIT, Clock, Device, LinkRegistry, PeakRate, SourcedFigure

_SERIES_BEFORE_NAME = re.compile(r"^(?:(?:rtx|gtx)(?=a?\d|pro)|rx(?=\d)|(?:ai)?pro(?=[rvw]\d))")
"""Prefixes of consumer and workstation GPUs that people leave out: ``4090``, ``7900xtx``, ``w7900``."""

_MEMORY_AT_END = re.compile(r"(.*\S)[ _-]+(\d{1,4}) ?(?:GB|G)", re.IGNORECASE)
_SEVERAL = re.compile(r"(?:\d{1,4} ?x|[dh]gx) ?(?P<after>\w.*)|(?P<before>.*\d\w*) ?x ?\d{1,3}", re.IGNORECASE)
"""A number of devices before or after their name (``8xH100``, ``H100 x8``), or a node of them (``HGX H100``)."""

MEMORY_TOLERANCE = 0.05
"""Relative deviation of a memory in a name from the device's."""

_VARIANTS = {"ti", "super", "xt", "xtx", "gre"}
"""Words that make the name of another device."""

SCOPES_WITHOUT_CLOCK = ("cpu", "accelerator")
"""Scopes of devices whose peaks may be on record without a clock."""

_MAX_FILE_BYTES = 2**20
_T = TypeVar("_T")

_LEAST_FIGURE, _MOST_FIGURE = 1e-6, 1e24
"""Limits of every figure in its unit, from prices to FLOP/s, so that no time that follows is 0 or infinite."""


def read_device(path: Path) -> Device:
    """Read one hardware TOML.

    Raise BadDevice if it is malformed or a figure is not in its unit; the message names the file, the field and the
    expectation.
    """
    device = read_typed(path, Device, "hardware file", _MAX_FILE_BYTES, BadDevice)
    device = msgspec.structs.replace(device, id=device.id or path.stem)
    for field, unit, figure in list_figures(device):
        try:
            value = parse_quantity(figure.value, unit)
        except BadQuantity as error:
            raise BadDevice(f"{path}: {field}: {error}") from None
        if not value > 0:
            raise BadDevice(f"{path}: {field} must be above 0 (got {figure.value!r})")
        if not _LEAST_FIGURE <= value <= _MOST_FIGURE:
            raise BadDevice(
                f"{path}: {field} must be from {_LEAST_FIGURE:g} to {_MOST_FIGURE:g} {unit} (got {figure.value!r})"
            )
    if device.learned_power is not None:
        raise BadDevice(f"{path}: learned_power is calibrated by measured watts, and not a figure of a file")
    if not device.peaks:
        raise BadDevice(f"{path}: at least one [[peaks]] is required")
    if device.clock_hz(device.clocks.default) is None and device.scope not in SCOPES_WITHOUT_CLOCK:
        raise BadDevice(f"{path}: clocks: the default clock {device.clocks.default} has no value")
    return device


# Pages, sweeps and notebooks read the 120 shipped files repeatedly; an added file is seen by a new process.
_shipped_device = cache(read_device)


def list_figures(device: Device) -> Iterator[tuple[str, str, SourcedFigure]]:
    """Yield all figures of a device with their required units: (field, unit, figure)."""
    yield "cores.multiprocessors", "", device.cores.multiprocessors
    if device.cores.fp32_lanes is not None:
        yield "cores.fp32_lanes", "", device.cores.fp32_lanes
    for clock in get_args(Clock):
        figure = getattr(device.clocks, clock)
        if figure is not None:
            yield f"clocks.{clock}", "Hz", figure
    units = {"capacity": "B", "reported": "B", "bandwidth": "B/s", "bus": "bit", "rate": "bit/s", "l2": "B"}
    for field, unit in units.items():
        figure = getattr(device.memory, field)
        if figure is not None:
            yield f"memory.{field}", unit, figure
    if device.power is not None:
        yield "power", "W", device.power
    if device.rent is not None:
        note = "; ".join(filter(None, (f"listed {device.rent.date}", device.rent.note)))
        yield "rent", "USD/h", SourcedFigure(device.rent.value, device.rent.source, note)
    for peak in device.peaks:
        unit = "OP/s" if peak.precision == "int8" else "FLOP/s"
        yield (
            f"peaks.{peak.precision}.{peak.unit}",
            unit,
            SourcedFigure(peak.value, peak.source, peak.note, peak.unverified),
        )
    for attachment in device.links:
        yield f"links.{attachment.link}", "B/s", attachment.per_direction


def list_devices(files: Iterable[Path] = ()) -> list[Device]:
    """Return all shipped devices and those of further files, sorted by id.

    Raise BadDevice if a file is malformed, or a further file has the id of another device.
    """
    folder = shipped_folder("hardware")
    devices = {path.stem: _shipped_device(path) for path in sorted(folder.glob("*.toml")) if path.stem != "links"}
    for path in files:
        device = read_device(path)
        if device.id in devices:
            raise BadDevice(f"{path}: id: {device.id!r} is taken by another device: rename the file or give another id")
        devices[device.id] = device
    return sorted(devices.values(), key=lambda device: device.id)


@cache
def _shipped_ids() -> Mapping[str, str]:
    """Return the ids of the shipped devices by their normalized names, without reading the files."""
    stems = (path.stem for path in shipped_folder("hardware").glob("*.toml") if path.stem != "links")
    return {normalize_name(stem): stem for stem in stems}


_ID = re.compile(r"[A-Za-z0-9 _-]+")
"""Spelling of the id of a device, which is never a path."""

_INDEX = re.compile(r"[0-9]{1,2}")
"""Number that is no name of a device, though one is the name of a Gaudi without its series; 4090 is a name."""


def find_device(name: str | Device, files: Iterable[str | Path] = ()) -> Device:
    """Return the device with a name, from the registry and further files; a device is returned unchanged.

    The name of an instance of a cloud (``g5.xlarge``) stands for its device. Raise UnknownName if no device or more
    than one has the name; the message lists similar names, or the candidates.
    """
    if isinstance(name, Device):
        return name
    further = [Path(file) for file in files]
    if not further and _ID.fullmatch(name):
        device_id = _shipped_ids().get(normalize_name(name))
        if device_id is not None:  # most names are ids: the files of the other devices are not read
            return _shipped_device(shipped_folder("hardware") / f"{device_id}.toml")
    devices = {device.id: device for device in list_devices(further)}
    if _INDEX.fullmatch(name.strip()):
        raise BadValue(f"{name} is a number, and no name of a GPU: give a name, such as h100-sxm")
    if "/" in name or name.endswith(".toml"):
        raise UnknownName("GPU", name, devices, "Add a file with `--hardware-file` and use the name of its device.")
    if name in devices:
        return devices[name]
    normalized = normalize_name(name)
    matching = [device for device in devices.values() if normalized in _normalized_names(device)]
    matching = matching or [device for device in devices.values() if normalized in _names_without_series(device)]
    if len(matching) == 1:
        return matching[0]
    if matching:
        raise _ambiguous_device(name, matching)
    family, boards = _family_of(normalized, devices.values())
    if len(family) == 1 and boards == family:
        return family[0]
    if len(family) > 1:
        raise _ambiguous_device(name, family)
    instance = find_instance(name)
    if instance is not None:
        return devices[instance.device]
    described = _with_all_words(name, devices.values()) or _with_memory(name, devices.values())
    if len(described) == 1:
        return described[0]
    if described:
        raise _ambiguous_device(name, described)
    _refuse_several(name, devices.values())
    _refuse_other_memory(name, devices.values())
    near = f"The nearest is {family[0].id}. " if family else ""
    raise UnknownName("GPU", name, devices, f"{near}'paleo-lite hardware list' shows all.")


def _family_of(prefix: str, devices: Iterable[Device]) -> tuple[list[Device], list[Device]]:
    """Return the devices whose name starts with a name, and those that differ from it by a suffix of the board only.

    A number is a word: H20 is not the beginning of H200.
    """
    family, boards = [], []
    for device in devices:
        names = _normalized_names(device) | _names_without_series(device)
        endings = [full[len(prefix) :] for full in names if prefix and full.startswith(prefix)]
        is_board = prefix[-1:].isdigit() and any(_names_board(ending, device) for ending in endings)
        if prefix[-1:].isdigit():
            endings = [ending for ending in endings if not ending[:1].isdigit()]
        if endings or is_board:
            family.append(device)
        if is_board:
            boards.append(device)
    return family, boards


def _with_all_words(name: str, devices: Iterable[Device]) -> list[Device]:
    """Return the devices in whose id or name all words of a name occur: ``a100 80gb``, ``v5e``.

    A variant is a device of its own: a GTX 1660 is no GTX 1660 Ti. A plus sign joins devices unless it is in the name.
    """
    name_words = set(_words_of(name))
    matching = []
    for device in devices:
        if "+" in name and "+" not in device.name:
            continue
        words = {*_words_of(device.id), *_words_of(device.name)}
        if name_words and name_words <= words and not _VARIANTS & (words - name_words):
            matching.append(device)
    return matching


def _with_memory(name: str, devices: Iterable[Device]) -> list[Device]:
    """Return the devices of a name that ends with their memory: ``RTX 4090 24GB``."""
    match = _MEMORY_AT_END.fullmatch(name)
    if match is None:
        return []
    normalized, memory_bytes = normalize_name(match[1]), float(match[2]) * 1e9
    named = [device for device in devices if normalized in _normalized_names(device) | _names_without_series(device)]
    return [device for device in named if abs(device.memory_bytes / memory_bytes - 1) <= MEMORY_TOLERANCE]


def _refuse_other_memory(name: str, devices: Iterable[Device]) -> None:
    """Raise BadValue for a device with another memory than that on record; Apple's chips are sold with several."""
    match = _MEMORY_AT_END.fullmatch(name)
    if match is None:
        return
    normalized = normalize_name(match[1])
    named = [device for device in devices if normalized in _normalized_names(device) | _names_without_series(device)]
    if len(named) == 1:
        device = named[0]
        raise BadValue(
            f"{device.id} is on record with {device.memory_bytes / 1e9:g} GB: `local --gpu {device.id} --device-memory "
            f"{match[2]}GB` asks for one with {match[2]} GB"
        )


def _refuse_several(name: str, devices: Iterable[Device]) -> None:
    """Raise BadValue for the name of several devices: a platform (``DGX H100``), a number (``8xH100``), a list of them.

    The message names what takes a platform, a number or several devices.
    """
    normalized = normalize_name(name)
    for path in sorted((shipped_folder("hardware") / "platforms").glob("*.toml")):
        if normalize_name(path.stem) == normalized:
            device = read_typed(path, dict[str, Any], "platform", _MAX_FILE_BYTES).get("device")
            of_one = "" if device is None else f", or one of its GPUs: `--gpu {device}`"
            raise BadValue(f"{name} is a platform of several GPUs: use `--platform {path.stem}`{of_one}")
    cards = name.split("+")
    if len(cards) > 1 and all(_family_of(normalize_name(card), devices)[0] for card in cards):
        compared = ",".join(card.strip() for card in cards)
        raise BadValue(
            f"{name} names several GPUs: `local` splits a language model over different ones, and `--gpu {compared}` "
            "compares them"
        )
    several = _SEVERAL.fullmatch(name.strip())
    boards = [] if several is None else _family_of(normalize_name(several["after"] or several["before"]), devices)[0]
    if boards:
        names = ", ".join(device.id for device in boards[:4])
        raise BadValue(f"{name} names several GPUs, expected one ({names}): their number is `--workers` of `train`")


def _words_of(name: str) -> list[str]:
    return re.findall("[a-z0-9]+", name.lower())


def _names_board(ending: str, device: Device) -> bool:
    """Return whether the end of a device's name says only its form factor and its memory."""
    memory = f"{device.memory_bytes / 1e9:.0f}gb"
    return re.fullmatch(rf"(?:sxm\d?|pcie|nvl|oam|{memory})+", ending) is not None


def _ambiguous_device(name: str, devices: Sequence[Device]) -> AmbiguousName:
    """Return the error for a name of several devices: those that clouds rent out first, then by power."""
    ordered = sorted(devices, key=lambda device: (device.rent is None, -(device.power_w or 0), -device.memory_bytes))
    differences = []
    for device in ordered:
        figures = [format_si(device.memory_bytes, "B"), format_si(device.bandwidth_bytes_per_s, "B/s")]
        if device.power_w is not None:
            figures.append(f"{device.power_w:g} W")
        differences.append(f"{device.id} ({', '.join(figures)})")
    return AmbiguousName("GPU", name, [device.id for device in ordered], differences)


def _normalized_names(device: Device) -> set[str]:
    return {normalize_name(name) for name in (device.id, device.name, *device.aliases)}


def _names_without_series(device: Device) -> set[str]:
    return {_SERIES_BEFORE_NAME.sub("", name) for name in _normalized_names(device)}


@cache
def read_links(path: Path | None = None) -> LinkRegistry:
    """Read the links of ``links.toml``; raise BadDevice if the file is malformed."""
    path = path or shipped_folder("hardware") / "links.toml"
    links = read_typed(path, LinkRegistry, "hardware file", _MAX_FILE_BYTES, BadDevice)
    for identity, link in links.link.items():
        for field, unit in (("per_direction", "B/s"), ("latency", "s"), ("random_reads", "IOPS")):
            figure = getattr(link, field)
            try:
                parse_quantity(figure.value if figure else 0, unit)
            except BadQuantity as error:
                raise BadDevice(f"{path}: link.{identity}.{field}: {error}") from None
    return links


def limit_power(device: Device, power_limit: float | str) -> Device:
    """Return a device with another power limit, in watts or as text such as ``"300 W"``.

    Raise BadValue if the limit is not a power > 0.
    """
    limit = SourcedFigure(f"{parse_power_limit(power_limit):g} W", REQUESTED_LIMIT)
    return msgspec.structs.replace(device, power=limit, rated_power=device.rated_power or device.power)


def parse_power_limit(power_limit: float | str) -> float:
    """Return a power limit in watts; raise BadValue if it is not a power > 0."""
    try:
        limit_w = parse_quantity(power_limit, "W")
    except BadQuantity as error:
        raise BadValue(f"`--power-limit` must be a power such as '300 W' ({error})") from None
    check_positive("`--power-limit`", limit_w, power_limit, "> 0 W")
    return limit_w


class Machine(msgspec.Struct, frozen=True):
    """A device with a chosen clock and arithmetic unit.

    Attributes
    ----------
    clock : str or None
        ``"base"``, ``"boost"`` or a frequency; None: the device's default.
    unit : {"vector", "tensor"} or None
        Unit of multiply-accumulates; None: the fastest.
    board : Device or None
        Requested board, if `device` is one of several on it: programs see single devices.
    """

    device: Device
    clock: str | None = None
    unit: str | None = None
    board: Device | None = None

    @classmethod
    def single_device(cls, device: Device, clock: str | None = None, unit: str | None = None) -> Machine:
        """Return the machine that a program sees: one device of a board of several, else the device."""
        if device.parts is None:
            return cls(device, clock, unit)
        return cls(find_device(device.parts.device), clock, unit, device)

    @property
    def device_count(self) -> int:
        """Number of these devices on the requested board; independent programs may run on each."""
        return 1 if self.board is None or self.board.parts is None else self.board.parts.count

    @property
    def name(self) -> str:
        """Name of the requested device."""
        if self.board is None:
            return self.device.name
        return f"one of the {self.device_count} GPUs of a {self.board.name}"

    def peak(self, precision: str) -> PeakRate:
        """Return the peak rate of multiply-accumulates: that of the fastest unit with this precision.

        Cards with slower vector units in fp16 than in fp32 compute fp16 networks in fp32 (cuDNN's pseudo-half
        configuration converts on load): there it is the fp32 peak.
        """
        rate = self.device.find_peak(precision, self.unit, self.clock)
        if precision == "fp16" and rate.peak.unit == "vector":
            return max(rate, self.vector_peak(precision), key=lambda peak: peak.per_s)
        return rate

    def relative_clock(self, precision: str) -> float:
        """Return the clock of multiply-accumulates relative to that of the device's data file."""
        if self.clock is None:
            return 1.0
        return self.peak(precision).per_s / msgspec.structs.replace(self, clock=None).peak(precision).per_s

    def with_locked_clock(self, precision: str) -> Machine:
        """Return the machine with a device that knows its requested clock, as kernels fitted at the default one need.

        A clock above the default one changes nothing: the fitted times contain the clock that devices reach.
        """
        relative_clock = min(1.0, self.relative_clock(precision))
        return msgspec.structs.replace(self, device=msgspec.structs.replace(self.device, locked_clock=relative_clock))

    def wide_peak(self) -> PeakRate:
        """Return the peak rate of the products that a quantized network computes in 16 bits.

        It is that of bf16, or of fp16 or fp32 on devices without it.
        """
        for precision in ("bf16", "fp16"):
            try:
                return self.peak(precision)
            except UnknownPrecision:
                continue
        return self.peak("fp32")

    def vector_peak(self, precision: str) -> PeakRate:
        """Return the peak rate of all other arithmetic.

        Frameworks compute elementwise operations on precisions narrower than fp32 in fp32 (PyTorch's ``opmath_t``).
        """
        return self.device.find_peak("fp64" if precision == "fp64" else "fp32", "vector", self.clock)

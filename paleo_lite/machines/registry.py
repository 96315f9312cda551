"""Finding devices and links, the TOML files of ``hardware/`` and the ones a user adds; `Machine`, where a network runs.

A name is matched whatever its case, spaces, hyphens, underscores and maker (``Tesla K80``, ``k80``), but it has to mean
one device: where it could mean several, the error lists them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import TypeVar, get_args

import msgspec

from ..errors import AmbiguousName, BadDevice, BadQuantity, UnknownName
from ..files import file_exists, read_typed, shipped_folder
from ..units import parse_quantity
from .device import Clock, Device, Figure, LinkRegistry, PeakRate

_MAKERS = {"nvidia", "amd", "intel", "tesla", "geforce", "quadro", "instinct", "radeon"}
_BYTES_AT_MOST = 2**20
_T = TypeVar("_T")


def read_device(path: Path) -> Device:
    """Read one hardware TOML.

    Raises
    ------
    BadDevice
        If it is malformed or misspelt, or a figure is not in its unit; the message names file, field and expectation.
    """
    device = read_typed(path, Device, "hardware file", _BYTES_AT_MOST, BadDevice)
    device = msgspec.structs.replace(device, id=device.id or path.stem)
    for field, unit, figure in figures(device):
        try:
            value = parse_quantity(figure.value, unit)
        except BadQuantity as error:
            raise BadDevice(f"{path}: {field}: {error}") from None
        if not value > 0:
            raise BadDevice(f"{path}: {field}: {figure.value!r} is not above 0")
    if not device.peaks:
        raise BadDevice(f"{path}: peaks: at least one [[peaks]] is needed")
    if device.clock_hz(device.clocks.default) is None and device.scope != "cpu":
        raise BadDevice(f"{path}: clocks: the default is {device.clocks.default}, which has no value")
    return device


# Of 120 files, which a page, a sweep or a notebook asks again and again; who adds one starts anew.
_shipped_device = cache(read_device)


def figures(device: Device) -> Iterator[tuple[str, str, Figure]]:
    """All figures of a device with the unit each must be in: (field, unit, figure)."""
    yield "cores.multiprocessors", "", device.cores.multiprocessors
    yield "cores.fp32_lanes", "", device.cores.fp32_lanes
    for clock in get_args(Clock):
        if (figure := getattr(device.clocks, clock)) is not None:
            yield f"clocks.{clock}", "Hz", figure
    units = {"capacity": "B", "bandwidth": "B/s", "bus": "bit", "rate": "bit/s", "l2": "B"}
    for field, unit in units.items():
        if (figure := getattr(device.memory, field)) is not None:
            yield f"memory.{field}", unit, figure
    if device.power is not None:
        yield "power", "W", device.power
    if device.rent is not None:
        note = "; ".join(filter(None, (f"listed {device.rent.date}", device.rent.note)))
        yield "rent", "USD/h", Figure(device.rent.value, device.rent.source, note)
    for peak in device.peaks:
        unit = "OP/s" if peak.precision == "int8" else "FLOP/s"
        yield f"peaks.{peak.precision}.{peak.unit}", unit, Figure(peak.value, peak.source, peak.note, peak.unverified)
    for attachment in device.links:
        yield f"links.{attachment.link}", "B/s", attachment.per_direction


def list_devices(files: Iterable[Path] = ()) -> list[Device]:
    """All shipped devices and those of further files, by id.

    Raises
    ------
    BadDevice
        If a file is malformed, or a further file takes the id of another device.
    """
    folder = shipped_folder("hardware")
    devices = {path.stem: _shipped_device(path) for path in sorted(folder.glob("*.toml")) if path.stem != "links"}
    for path in files:
        device = read_device(path)
        if device.id in devices:
            raise BadDevice(
                f"{path}: id: {device.id!r} is taken by another device: name the file differently or give an id"
            )
        devices[device.id] = device
    return sorted(devices.values(), key=lambda device: device.id)


def find_device(name: str | Device, files: Iterable[str | Path] = ()) -> Device:
    """The device that a name means, of the registry and further files; a device means itself.

    Raises
    ------
    UnknownName
        If no device or more than one is called that; the message gives the nearest names, or the candidates.
    """
    if isinstance(name, Device):
        return name
    further = [Path(file) for file in files]
    direct = shipped_folder("hardware") / f"{name}.toml"
    if not further and re.fullmatch(r"[a-z0-9-]+", name) and name != "links" and file_exists(direct):
        return _shipped_device(direct)  # the plain id needs no look at all the others
    devices = {device.id: device for device in list_devices(further)}
    if "/" in name or name.endswith(".toml"):
        raise UnknownName("GPU", name, devices, "A file is added with --hardware-file and then called by its name.")
    if name in devices:
        return devices[name]
    matching = [device for device in devices.values() if key(name) in _keys(device)]
    if len(matching) == 1:
        return matching[0]
    candidates = [device.id for device in matching] or [
        device.id
        for device in devices.values()
        if key(name) and any(part.startswith(key(name)) for part in _keys(device))
    ]
    if candidates:
        raise AmbiguousName("GPU", name, candidates)
    raise UnknownName("GPU", name, devices, "'paleo-lite hardware list' shows all.")


def key(name: str) -> str:
    """A name without case, separators and maker."""
    words = [word for word in re.split(r"[^a-z0-9]+", name.lower()) if word]
    while len(words) > 1 and words[0] in _MAKERS:
        words.pop(0)
    joined = "".join(words)
    for maker in _MAKERS:
        if joined.startswith(maker) and len(joined) > len(maker):
            joined = joined.removeprefix(maker)
    return joined


def _keys(device: Device) -> set[str]:
    return {key(known) for known in (device.id, device.name, *device.aliases)}


@cache
def read_links(path: Path | None = None) -> LinkRegistry:
    """The links of ``links.toml``.

    Raises
    ------
    BadDevice
        If the file is malformed.
    """
    path = path or shipped_folder("hardware") / "links.toml"
    links = read_typed(path, LinkRegistry, "hardware file", _BYTES_AT_MOST, BadDevice)
    for identity, link in links.link.items():
        for field, unit in (("per_direction", "B/s"), ("latency", "s"), ("random_reads", "IOPS")):
            figure = getattr(link, field)
            try:
                parse_quantity(figure.value if figure else 0, unit)
            except BadQuantity as error:
                raise BadDevice(f"{path}: link.{identity}.{field}: {error}") from None
    return links


class Machine(msgspec.Struct, frozen=True):
    """A device as somebody runs it.

    Attributes
    ----------
    clock : {"base", "boost"} or None
        None: the device's default.
    unit : {"vector", "tensor"} or None
        That multiplies and accumulates; None: the fastest.
    board : Device or None
        What was asked for, where `device` is one of several on it: a program sees these, never the whole.
    """

    device: Device
    clock: str | None = None
    unit: str | None = None
    board: Device | None = None

    @classmethod
    def one_of(cls, device: Device, clock: str | None = None, unit: str | None = None) -> Machine:
        """What a program gets of a device: of a board of several, one of them."""
        if device.parts is None:
            return cls(device, clock, unit)
        return cls(find_device(device.parts.device), clock, unit, device)

    @property
    def together(self) -> int:
        """How many of the device there are on what was asked for: programs on each run beside each other."""
        return 1 if self.board is None or self.board.parts is None else self.board.parts.count

    @property
    def name(self) -> str:
        """Of what was asked for."""
        if self.board is None:
            return self.device.name
        return f"one of the {self.together} GPUs of a {self.board.name}"

    def peak(self, precision: str) -> PeakRate:
        """The peak that multiply-accumulates are held against: of the fastest unit that does them in this precision.

        Cards whose vector units are slower in fp16 than in fp32 compute fp16 networks in fp32 (cuDNN's pseudo-half
        configuration converts on load): there it is the fp32 peak.
        """
        rate = self.device.find_peak(precision, self.unit, self.clock)
        if precision == "fp16" and rate.peak.unit == "vector":
            return max(rate, self.vector_peak(precision), key=lambda one: one.per_s)
        return rate

    def vector_peak(self, precision: str) -> PeakRate:
        """The peak of all other arithmetic.

        Frameworks compute elementwise work on numbers narrower than fp32 in fp32 (PyTorch's ``opmath_t``).
        """
        return self.device.find_peak("fp64" if precision == "fp64" else "fp32", "vector", self.clock)

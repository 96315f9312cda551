"""Logs of measured power: what ``nvidia-smi --query-gpu=timestamp,power.draw --format=csv -lms 100`` writes.

A log starts before the measured steps and ends after them. The device is busy from the first to the last sample above
the middle of the lowest and the highest one; the power of the steps is the average over that time.
"""

from __future__ import annotations

import csv
import math
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ..errors import BadFile
from ..files import NOT_TEXT, check_regular, file_exists
from ..result_files.power import POWER_COLUMNS, STEADY_RATIO

HOW_TO_LOG = "log it with `nvidia-smi --id=0 --query-gpu=timestamp,power.draw --format=csv -lms 100`"

_TIME_FORMAT = "%Y/%m/%d %H:%M:%S.%f"
_MAX_ROWS = 1_000_000
_MAX_HEADER_CHARACTERS = 4096
_LEAST_SAMPLES = 3


class PowerLog(NamedTuple):
    """Power of a device over time."""

    times_s: np.ndarray  # seconds since the first sample; shape (samples,)
    watts: np.ndarray  # power at these times; shape (samples,)

    def busy_w(self) -> float:
        """Return the average power in watts from the first to the last busy sample."""
        low_w, high_w = float(self.watts.min()), float(self.watts.max())
        busy = np.arange(len(self.watts))
        if high_w > STEADY_RATIO * low_w:
            busy = np.flatnonzero(self.watts >= (low_w + high_w) / 2)
        part = slice(busy[0], busy[-1] + 1)
        times_s, watts = self.times_s[part], self.watts[part]
        if times_s[-1] == times_s[0]:
            return float(watts.mean())
        energy_j = ((watts[1:] + watts[:-1]) / 2 * np.diff(times_s)).sum()
        return float(energy_j / (times_s[-1] - times_s[0]))


def is_power_log(path: Path) -> bool:
    """Return whether the header of a file names a column of power; False for a folder or an unreadable file."""
    if file_exists(path, Path.is_dir):
        return False
    try:
        check_regular(path)
        with path.open(encoding="utf-8-sig", errors="replace") as file:
            header = file.readline(_MAX_HEADER_CHARACTERS)
    except OSError:
        return False
    return any(_name_of(column) in POWER_COLUMNS for column in header.split(","))


def _name_of(column: str | None) -> str:
    """Return the name of a column without its unit."""
    return (column or "").split("[")[0].strip()


def read_power_log(path: Path) -> PowerLog:
    """Read a log of nvidia-smi.

    Raise BadFile with the file, the line and the column if it has no times or powers, or an impossible value.
    """
    try:
        check_regular(path)
        with path.open(newline="", encoding="utf-8-sig") as file:
            return _read_rows(csv.reader(file, skipinitialspace=True), path)
    except OSError as error:
        raise BadFile(f"{path}: cannot be read ({error.strerror})") from None
    except UnicodeDecodeError:
        raise BadFile(f"{path}: {NOT_TEXT}, and therefore no log of power") from None
    except csv.Error as error:
        raise BadFile(f"{path}: not a CSV file: {error}") from None


def _read_rows(reader: Any, path: Path) -> PowerLog:
    names = [_name_of(column) for column in next(reader, [])]
    power = next((name for name in POWER_COLUMNS if name in names), None)
    if power is None:
        raise BadFile(f"{path}: line 1: no column power.draw: {HOW_TO_LOG}")
    if "timestamp" not in names:
        raise BadFile(f"{path}: line 1: no column timestamp, so that nothing says when a power was drawn: {HOW_TO_LOG}")
    times: list[datetime] = []
    watts: list[float] = []
    devices = set()
    for cells in reader:
        if not cells:
            continue
        location = f"{path}: line {reader.line_num}"
        if len(times) >= _MAX_ROWS:
            raise BadFile(f"{path}: more than {_MAX_ROWS} samples")
        if len(cells) != len(names):
            raise BadFile(f"{location}: {len(cells)} values, expected {len(names)}: the log was cut off")
        row = dict(zip(names, cells, strict=True))
        times.append(_parse_time(row["timestamp"], location))
        watts.append(_parse_watts(row[power], location, power))
        if len(times) > 1 and times[-1] < times[-2]:
            raise BadFile(f"{location}: timestamp {row['timestamp']} is before that of the line above")
        devices.add(tuple(row[name] for name in ("index", "uuid", "pci.bus_id") if name in row))
    if len(devices) > 1:
        raise BadFile(f"{path}: a log of {len(devices)} devices: log one with `nvidia-smi --id=0`")
    if len(times) < _LEAST_SAMPLES:
        raise BadFile(f"{path}: {len(times)} samples, expected {_LEAST_SAMPLES} or more: {HOW_TO_LOG}")
    return PowerLog(np.array([(time - times[0]).total_seconds() for time in times]), np.array(watts))


def _parse_time(text: str, location: str) -> datetime:
    try:
        return datetime.strptime(text.strip(), _TIME_FORMAT)
    except ValueError:
        raise BadFile(
            f"{location}: timestamp is {text.strip()!r}: expected a time such as 2026/01/31 12:00:00.000"
        ) from None


def _parse_watts(text: str, location: str, column: str) -> float:
    number = text.strip().removesuffix("W").strip()
    try:
        watts = float(number)
    except ValueError:
        watts = math.nan
    if not 0 <= watts < math.inf:  # also true for NaN
        raise BadFile(f"{location}: {column} is {text.strip()!r}: expected watts >= 0")
    return watts

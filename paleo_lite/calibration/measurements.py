"""`Measurement`, one timed step of a network, and the CSV format for measurements."""

from __future__ import annotations

import csv
import math
import os
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple, TypeVar

import msgspec

from ..counting import PHASES
from ..counting.fusion import EXECUTIONS
from ..errors import BadFile, BadValue, CalibrationFailed
from ..files import NOT_TEXT, check_regular, file_exists
from ..machines import Device, find_device
from ..text import format_plural
from ..units import PRECISION_BYTES
from .prior import SOFTWARE

COLUMNS = ("gpu", "network", "batch_size", "phase", "precision", "time_s")
OPTIONAL_COLUMNS = ("image_size", "framework", "source", "execution")
POWER_COLUMNS = ("power_w", "power_log")
"""Further columns: average watts of the device during the step, or the log of the power that contains them."""

TEMPLATE = (
    ",".join((*COLUMNS, *OPTIONAL_COLUMNS))
    + "\nk40m,resnet50,32,inference,fp32,0.235,224,pytorch 1.4,my own run"
    + "\nk40m,resnet50,32,training,fp32,0.757,224,pytorch 1.4,my own run\n"
)
"""Output of ``calibrate --template``. time_s: seconds of one step, synchronized; the median of several runs."""

_SHORTEST_S, _LONGEST_S = 1e-9, 1e9  # a clock cycle, and 30 years
_MOST_W = 1e5
_MAX_ROWS = 1_000_000
_MAX_HEADER_CHARACTERS = 4096
_MAX_SHOWN_CHARACTERS = 400
_UNDECODABLE = "\N{REPLACEMENT CHARACTER}"


class Measurement(msgspec.Struct, frozen=True, order=True):
    """One timed step of one network.

    Attributes
    ----------
    gpu, network : str
        Names that `find_device` and `find_network` accept.
    phase : str
        One of `PHASES`.
    time_s : float
        Seconds of one step.
    image_size : int
        Height and width of the images in pixels; 0 for the network's default.
    framework, source : str
        Software with its version, and the origin of the measurement.
    execution : str
        Kernel fusion of the software: one of `EXECUTIONS`.
    power_w : float or None
        Average power of the device during the step in watts; None if it was not measured.
    """

    gpu: str
    network: str
    batch_size: int
    phase: str
    precision: str
    time_s: float
    image_size: int = 0
    framework: str = ""
    source: str = ""
    execution: str = "eager"
    power_w: float | None = None

    @property
    def sort_key(self) -> tuple[Any, ...]:
        """Order of measurements, in which those without a power come first."""
        *fields, power_w = msgspec.structs.astuple(self)
        return *fields, 0.0 if power_w is None else power_w

    @property
    def software(self) -> str:
        """Name of the framework without its version; `SOFTWARE` where no framework is given."""
        words = self.framework.split()
        if not words:
            return SOFTWARE
        name = words[0].lower()
        return SOFTWARE if name == "torch" else name


class Inputs(NamedTuple):
    """What mixed inputs of a calibration are."""

    measurements: list[Measurement]  # the given ones, and the rows of the CSVs
    files: list[Path]  # CSVs, and logs of power
    others: list[Path]  # profiles and folders
    notes: list[str]  # a sentence for each file that repeats measurements of another one


def read_inputs(measured: str | os.PathLike[str] | Sequence[str | os.PathLike[str] | Measurement]) -> Inputs:
    """Read the measurements among mixed inputs, and sort the other paths.

    The inputs are measurements, measurement CSVs, profiles and folders of profiles. A measurement that several CSVs
    have to the last digit counts once.

    A log of power among the inputs belongs to the step of the CSV: BadValue if there is not one step that it could
    belong to. Raise BadFile as `read_measurements` and `read_power_log` do.
    """
    from .power_logs import is_power_log, read_power_log  # with the readers of result files

    inputs = [measured] if isinstance(measured, (str, os.PathLike)) else list(measured)
    measurements: list[Measurement] = []
    tables: list[Path] = []
    others: list[Path] = []
    logs: list[Path] = []
    for item in inputs:
        if isinstance(item, Measurement):
            measurements.append(item)
        elif is_power_log(Path(item)):
            logs.append(Path(item))
        elif is_measurements_csv(Path(item)):
            tables.append(Path(item))
        else:
            others.append(Path(item))
    notes = []
    row_origins: dict[Measurement, Path] = {}
    for table in tables:
        rows = read_measurements(table)
        repeated = [row_origins[row] for row in rows if row in row_origins]
        if repeated:
            count = format_plural(len(repeated), "measurement")
            notes.append(f"{table}: {count} of {repeated[0]}, which count once")
        measurements += [row for row in rows if row not in row_origins]
        row_origins |= {row: table for row in rows if row not in row_origins}
    for log in logs:
        if len(logs) > 1 or len(measurements) != 1:
            raise BadValue(
                f"{log}: a log of power belongs to one step, and there are {len(measurements)} steps and {len(logs)} "
                "logs: name the log of each step in the column power_log of the CSV"
            )
        measurements = [msgspec.structs.replace(measurements[0], power_w=read_power_log(log).busy_w())]
    return Inputs(measurements, [*tables, *logs], others, notes)


def is_measurements_csv(path: Path) -> bool:
    """Return whether most columns of `COLUMNS` are in the header of a file; True also for an unreadable file."""
    if file_exists(path, Path.is_dir):
        return False
    try:
        header = _read_header(path)
    except OSError:
        return True  # `read_measurements` reports the reason
    present = set(COLUMNS) & set(header)
    return len(present) > len(COLUMNS) // 2


def _read_header(path: Path) -> list[str]:
    """Return the first line of a file that is not a comment, divided at its commas."""
    check_regular(path)
    with path.open(newline="", encoding="utf-8-sig", errors="replace") as file:
        header = file.readline(_MAX_HEADER_CHARACTERS)
        while header.startswith("#"):
            header = file.readline(_MAX_HEADER_CHARACTERS)
    return header.strip().split(",")


def describe_columns(path: Path) -> str:
    """Return which columns a measurements CSV needs, and what is the first line of a file that has others."""
    return _name_columns([] if file_exists(path, Path.is_dir) else _read_header(path))


def _name_columns(columns: Iterable[str]) -> str:
    needed = f"a measurements CSV needs the columns {', '.join(COLUMNS)}"
    line = ",".join(columns)
    is_text = line.isprintable() and _UNDECODABLE not in line
    if not line or not is_text or len(line) > _MAX_SHOWN_CHARACTERS:
        return needed
    return f"{needed}, and the first line is {line}"


def read_measurements(path: Path) -> list[Measurement]:
    """Read a measurements CSV; lines that start with # are comments.

    Raise BadFile with the file, the line and the column if a column is missing or a value is impossible.
    """
    try:
        check_regular(path)
        with path.open(newline="", encoding="utf-8-sig") as file:
            lines = (line for line in file if not line.startswith("#"))
            reader = csv.DictReader(lines)
            missing = [name for name in COLUMNS if name not in (reader.fieldnames or ())]
            if missing:
                raise BadFile(
                    f"{path}: line 1: no column {', '.join(missing)}: {_name_columns(reader.fieldnames or ())}"
                )
            measurements: list[Measurement] = []
            for row in reader:
                if len(measurements) >= _MAX_ROWS:
                    raise BadFile(f"{path}: more than {_MAX_ROWS} rows")
                measurements.append(_parse_row(row, path, f"{path}: line {reader.line_num}"))
    except OSError as error:
        if file_exists(path, Path.is_dir):
            raise BadFile(
                f"{path}: a folder, not a measurements CSV: `paleo-lite calibrate --template` prints one to fill in"
            ) from None
        raise BadFile(f"{path}: cannot be read ({error.strerror})") from None
    except UnicodeDecodeError:
        raise BadFile(f"{path}: {NOT_TEXT}, and therefore no CSV of measurements") from None
    except csv.Error as error:
        raise BadFile(f"{path}: not a CSV file: {error}") from None
    if not measurements:
        raise BadFile(f"{path}: contains no measurement")
    return measurements


def _parse_row(row: dict[str, str | None], path: Path, location: str) -> Measurement:
    values = {name: (row.get(name) or "").strip() for name in (*COLUMNS, *OPTIONAL_COLUMNS)}
    for name in COLUMNS:
        if not values[name]:
            raise BadFile(f"{location}: {name} is empty")
    phase = values["phase"]
    precision = values["precision"]
    image_size = values["image_size"] or "0"
    execution = values["execution"] or "eager"
    if phase not in PHASES:
        raise BadFile(f"{location}: phase is {phase!r}: expected one of {', '.join(PHASES)}")
    if precision not in PRECISION_BYTES:
        raise BadFile(f"{location}: precision is {precision!r}: expected one of {', '.join(PRECISION_BYTES)}")
    if not values["batch_size"].isdecimal() or int(values["batch_size"]) < 1:
        raise BadFile(f"{location}: batch_size is {row['batch_size']!r}: expected an integer >= 1")
    try:
        time_s = float(values["time_s"])
    except ValueError:
        time_s = math.nan
    if not _SHORTEST_S <= time_s <= _LONGEST_S:  # also true for NaN
        raise BadFile(
            f"{location}: time_s is {row['time_s']!r}: expected a number of seconds from {_SHORTEST_S:g} to "
            f"{_LONGEST_S:g}"
        )
    if not image_size.isdecimal():
        raise BadFile(f"{location}: image_size is {image_size!r}: expected an integer >= 0")
    if execution not in EXECUTIONS:
        raise BadFile(f"{location}: execution is {execution!r}: expected one of {', '.join(EXECUTIONS)}")
    return Measurement(
        gpu=values["gpu"],
        network=values["network"],
        batch_size=int(values["batch_size"]),
        phase=phase,
        precision=precision,
        time_s=time_s,
        image_size=int(image_size),
        framework=values["framework"],
        source=values["source"],
        execution=execution,
        power_w=_parse_power(row, path, location),
    )


def _parse_power(row: dict[str, str | None], path: Path, location: str) -> float | None:
    """Return the watts of a row, or those of the log that it names beside the CSV; None if it has neither."""
    number, log = ((row.get(name) or "").strip() for name in POWER_COLUMNS)
    if number and log:
        raise BadFile(f"{location}: both power_w and power_log: expected one of them")
    if log:
        from .power_logs import read_power_log  # with the readers of result files

        return read_power_log(path.parent / log).busy_w()
    if not number:
        return None
    try:
        power_w = float(number)
    except ValueError:
        power_w = math.nan
    if not 0 < power_w < _MOST_W:  # also true for NaN
        raise BadFile(f"{location}: power_w is {number!r}: expected watts above 0 and below {_MOST_W:g}")
    return power_w


def format_csv(measurements: Iterable[Measurement]) -> str:
    """Return measurements as the text of a CSV file, with a column of watts if any were measured."""
    steps = list(measurements)
    has_power = any(step.power_w is not None for step in steps)
    columns = (*COLUMNS, *OPTIONAL_COLUMNS, *(["power_w"] if has_power else []))
    lines = [",".join(columns)]
    for step in steps:
        values = [getattr(step, name) for name in columns]
        lines.append(",".join("" if value is None else str(value) for value in values))
    return "\n".join(lines) + "\n"


Run = TypeVar("Run", bound=msgspec.Struct)


def merge_repeated_runs(runs: Iterable[Run], time_field: str = "time_s") -> list[Run]:
    """Replace runs (structs) that differ only in the field with their time by one run with the median time."""
    times: dict[Run, list[float]] = {}
    for run in runs:
        untimed = msgspec.structs.replace(run, **{time_field: 0.0})
        times.setdefault(untimed, []).append(getattr(run, time_field))
    return [msgspec.structs.replace(run, **{time_field: median(repeats)}) for run, repeats in times.items()]


def select_measurements(
    measurements: Sequence[Measurement], device: Device, precision: str, hardware_files: Iterable[Path]
) -> list[Measurement]:
    """Return the measurements of a device in a precision, under any of its names; CalibrationFailed without any."""
    device_ids = {name: find_device(name, hardware_files).id for name in {step.gpu for step in measurements}}
    selected = [step for step in measurements if device_ids[step.gpu] == device.id and step.precision == precision]
    if not measurements:
        raise CalibrationFailed(f"there are no measurements to fit {device.id} in {precision} to: give a file of them")
    if not selected:
        available = ", ".join(sorted({f"{step.gpu} {step.precision}" for step in measurements}))
        raise CalibrationFailed(
            f"no measurement of {device.id} in {precision} among {len(measurements)}: there are {available}"
        )
    return selected


def describe_others(measurements: Sequence[Measurement], selected: Sequence[Measurement]) -> list[str]:
    """Return a note on the measurements that are of another device or precision; none if all are selected."""
    of_others = Counter(f"{step.gpu} in {step.precision}" for step in measurements)
    of_others.subtract(f"{step.gpu} in {step.precision}" for step in selected)
    named = [f"{count} of {name}" for name, count in sorted(of_others.items()) if count]
    if not named:
        return []
    count, others = len(measurements) - len(selected), ", ".join(named)
    return [f"{format_plural(count, 'measurement')} of other devices or precisions left out: {others}"]


class Provenance(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Measurements that a calibration was fitted to.

    `inputs` are file names with the SHA-256 of their content, and `notes` say which files repeat others.
    """

    points: int
    networks: list[str]
    phases: list[str]
    sources: list[str]
    inputs: list[str] = []
    date: str = ""
    version: str = ""
    notes: list[str] = []


class FitOrigin(NamedTuple):
    """Origin of a calibration, beside its measurements."""

    inputs: Sequence[Path] = ()  # files of the measurements
    date: str = ""
    version: str = ""  # of paleo-lite
    notes: Sequence[str] = ()  # about files that repeat others


def provenance_of(measurements: Sequence[Measurement], origin: FitOrigin | None = None) -> Provenance:
    """Return the provenance of a calibration fitted to measurements."""
    import hashlib  # 4 ms, which reading a calibration need not spend

    origin = origin or FitOrigin()
    return Provenance(
        points=len(measurements),
        networks=sorted({m.network for m in measurements}),
        phases=sorted({m.phase for m in measurements}),
        sources=sorted({m.source for m in measurements if m.source}),
        inputs=[f"{path.name} sha256 {hashlib.sha256(path.read_bytes()).hexdigest()}" for path in origin.inputs],
        date=origin.date,
        version=origin.version,
        notes=list(origin.notes),
    )

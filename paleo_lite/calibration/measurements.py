"""`Measurement`: one timed step, and the CSV that users write them down in."""

from __future__ import annotations

import csv
import math
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import median
from typing import TypeVar

import msgspec

from ..counting import PHASES
from ..counting.fusion import EXECUTIONS
from ..errors import BadFile, CalibrationFailed
from ..machines import Device, find_device
from ..units import PRECISION_BYTES
from .prior import SOFTWARE

COLUMNS = ("gpu", "network", "batch_size", "phase", "precision", "time_s")
OPTIONAL = ("image_size", "framework", "source", "execution")

TEMPLATE = (
    ",".join((*COLUMNS, *OPTIONAL))
    + "\nk40m,resnet50,32,inference,fp32,0.235,224,pytorch 1.4,my own run"
    + "\nk40m,resnet50,32,training,fp32,0.757,224,pytorch 1.4,my own run\n"
)
"""What ``calibrate --template`` prints. time_s: seconds of one step, synchronised, the median of several."""

_ROWS_AT_MOST = 1_000_000
_HEAD = 4096


class Measurement(msgspec.Struct, frozen=True, order=True):
    """One timed step of one network.

    Attributes
    ----------
    gpu, network : str
        Names that `find_device` and `find_network` know.
    phase : str
        One of `PHASES`.
    time_s : float
        Seconds of one step.
    image_size : int
        0 for the network's own.
    framework, source : str
        The software, its first word without a version, and who measured.
    execution : str
        What the software fused: one of `EXECUTIONS`.
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

    @property
    def software(self) -> str:
        """The first word of the framework; where that is not said, what devices are compared under."""
        word = (self.framework.split() or [SOFTWARE])[0].lower()
        return SOFTWARE if word == "torch" else word


def read_given(
    measured: str | os.PathLike[str] | Sequence[str | os.PathLike[str] | Measurement],
) -> tuple[list[Measurement], list[Path], list[Path]]:
    """Measured steps that are given as such or in tables, the tables, and what is neither: profiles, folders of them.

    Raises
    ------
    BadFile
        As `read_measurements`.
    """
    several = [measured] if isinstance(measured, (str, os.PathLike)) else list(measured)
    steps = [step for step in several if isinstance(step, Measurement)]
    paths = [Path(path) for path in several if not isinstance(path, Measurement)]
    tables = [path for path in paths if is_measurements(path)]
    steps += [row for path in tables for row in read_measurements(path)]
    return steps, tables, [path for path in paths if path not in tables]


def is_measurements(path: Path) -> bool:
    """Whether a file's first line has most of the columns of measurements; True of one that cannot be read at all."""
    if path.is_dir():
        return False
    try:
        with path.open(newline="", encoding="utf-8-sig", errors="replace") as file:
            head = file.readline(_HEAD)
            while head.startswith("#"):
                head = file.readline(_HEAD)
    except OSError:
        return True  # reading it says why not
    return len(set(COLUMNS) & set(head.strip().split(","))) > len(COLUMNS) // 2


def read_measurements(path: Path) -> list[Measurement]:
    """Read a measurements CSV; lines that start with # are comments.

    Raises
    ------
    BadFile
        If a column is missing or a value impossible; the message names file, line and column.
    """
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            lines = (line for line in file if not line.startswith("#"))
            reader = csv.DictReader(lines)
            missing = [name for name in COLUMNS if name not in (reader.fieldnames or ())]
            if missing:
                raise BadFile(
                    f"{path}: line 1: no column {', '.join(missing)}: a measurements CSV has {', '.join(COLUMNS)}"
                )
            measurements: list[Measurement] = []
            for row in reader:
                if len(measurements) >= _ROWS_AT_MOST:
                    raise BadFile(f"{path}: more than {_ROWS_AT_MOST} rows")
                measurements.append(_measurement(row, f"{path}: line {reader.line_num}"))
    except OSError as error:
        if path.is_dir():
            raise BadFile(
                f"{path}: a folder, not a measurements CSV: 'paleo-lite calibrate --template' prints one to fill in"
            ) from None
        raise BadFile(f"{path}: cannot be read ({error.strerror})") from None
    except (UnicodeDecodeError, csv.Error) as error:
        raise BadFile(f"{path}: not a CSV file: {error}") from None
    if not measurements:
        raise BadFile(f"{path}: holds no measurement")
    return measurements


def _measurement(row: dict[str, str | None], place: str) -> Measurement:
    values = {name: (row.get(name) or "").strip() for name in (*COLUMNS, *OPTIONAL)}
    if empty := [name for name in COLUMNS if not values[name]]:
        raise BadFile(f"{place}: {empty[0]} is empty")
    phase, precision, size = values["phase"], values["precision"], values["image_size"] or "0"
    execution = values["execution"] or "eager"
    if phase not in PHASES:
        raise BadFile(f"{place}: phase is {phase!r}: expected one of {', '.join(PHASES)}")
    if precision not in PRECISION_BYTES:
        raise BadFile(f"{place}: precision is {precision!r}: expected one of {', '.join(PRECISION_BYTES)}")
    if not values["batch_size"].isdecimal() or int(values["batch_size"]) < 1:
        raise BadFile(f"{place}: batch_size is {row['batch_size']!r}: expected a whole number of 1 or more")
    try:
        time_s = float(values["time_s"])
    except ValueError:
        time_s = math.nan
    if not (math.isfinite(time_s) and time_s > 0):
        raise BadFile(f"{place}: time_s is {row['time_s']!r}: expected seconds, a number above 0")
    if not size.isdecimal():
        raise BadFile(f"{place}: image_size is {size!r}: expected a whole number")
    if execution not in EXECUTIONS:
        raise BadFile(f"{place}: execution is {execution!r}: expected one of {', '.join(EXECUTIONS)}")
    return Measurement(
        values["gpu"], values["network"], int(values["batch_size"]), phase, precision, time_s, int(size),
        values["framework"], values["source"], execution,
    )  # fmt: skip


def write_csv(measurements: Iterable[Measurement]) -> str:
    """The CSV of measurements."""
    lines = [",".join((*COLUMNS, *OPTIONAL))]
    lines += [",".join(str(getattr(m, name)) for name in (*COLUMNS, *OPTIONAL)) for m in measurements]
    return "\n".join(lines) + "\n"


Run = TypeVar("Run", bound=msgspec.Struct)


def medians(runs: Iterable[Run], seconds: str = "time_s") -> list[Run]:
    """Runs that are alike but for their `seconds` become one with the median of them."""
    groups: dict[Run, list[float]] = {}
    for run in runs:
        groups.setdefault(msgspec.structs.replace(run, **{seconds: 0.0}), []).append(getattr(run, seconds))
    return [msgspec.structs.replace(run, **{seconds: median(times)}) for run, times in groups.items()]


def measurements_of(
    measurements: Sequence[Measurement], device: Device, precision: str, hardware_files: Iterable[Path] = ()
) -> list[Measurement]:
    """Those of a device in a precision, whatever they call it.

    Raises
    ------
    CalibrationFailed
        If there is none.
    """
    ids = {name: find_device(name, hardware_files).id for name in {step.gpu for step in measurements}}
    own = [step for step in measurements if ids[step.gpu] == device.id and step.precision == precision]
    if not own:
        have = ", ".join(sorted({f"{step.gpu} {step.precision}" for step in measurements}))
        raise CalibrationFailed(
            f"no measurement of {device.id} in {precision} among {len(measurements)}: there are {have}"
        )
    return own


class Provenance(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """What a calibration was learnt from; `inputs` are file names with the SHA-256 of their content."""

    points: int
    networks: list[str]
    phases: list[str]
    sources: list[str]
    inputs: list[str] = []
    date: str = ""
    version: str = ""


def provenance_of(
    measurements: Sequence[Measurement], inputs: Sequence[Path] = (), date: str = "", version: str = ""
) -> Provenance:
    """What these measurements are, and the files that they stood in."""
    import hashlib  # 4 ms that reading a calibration does without

    return Provenance(
        points=len(measurements),
        networks=sorted({m.network for m in measurements}),
        phases=sorted({m.phase for m in measurements}),
        sources=sorted({m.source for m in measurements if m.source}),
        inputs=[f"{path.name} sha256 {hashlib.sha256(path.read_bytes()).hexdigest()}" for path in inputs],
        date=date,
        version=version,
    )

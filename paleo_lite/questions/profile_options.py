"""Options of several questions on profiles, and the device and format of the files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import click

from ..errors import UnknownFormat
from ..files import Paths, file_exists, to_paths
from ..machines import Device, find_device
from .completion import DEVICE
from .names import Names, PrecisionNames
from .option import Options, option
from .records import DEVICE_GROUP, HARDWARE_FILES
from .values import INTEGER

if TYPE_CHECKING:
    from ..profile_analysis.recorded_device import MissingDevice

PROFILE_GROUP = "Profiles"
PROCESS_GROUP = "Processes"

EXISTING_PATH = click.Path(path_type=Path, exists=True)
PRECISIONS = PrecisionNames("precision", ".units:PRECISION_BYTES")
DIRECTIONS = Names("direction", ".profile_analysis:DIRECTIONS")
GROUPINGS = Names("grouping", ".profile_analysis:GROUPINGS")

PROFILE_READER = ("pyarrow", "reading profiles", "profiles")
"""Arguments of `require` for the library that reads profiles."""


@dataclass(frozen=True)
class RecordedDevice(Options):
    """The device of profiles, and the precision of its peak."""

    compares: ClassVar[bool] = False

    gpu: str | Device | None = option(
        group=DEVICE_GROUP, type=DEVICE, metavar="DEVICE",
        help="Device of the profiles. [default: the one recorded in the first profile]",
    )  # fmt: skip
    precision: str = option(
        "fp32", group=DEVICE_GROUP, type=PRECISIONS,
        help="Precision of the peak, where a profile does not record that of its matrix products.",
    )  # fmt: skip
    hardware_files: Sequence[str | Path] = option((), **HARDWARE_FILES)


@dataclass(frozen=True)
class FileNames(Options):
    """Settings of a run that are read from file names."""

    name_pattern: str | None = option(
        group=PROFILE_GROUP, metavar="REGEX",
        help="Regular expression with named groups that reads the settings of a run from its file name: "
        "(?P<nodes>[0-9]+).",
    )  # fmt: skip


@dataclass(frozen=True)
class CaptureOptions(Options):
    """The captures of graphs that profiles replay."""

    capture_traces: Paths = option(
        (), group=PROFILE_GROUP, spellings=("--capture-trace",), is_repeatable=True, type=EXISTING_PATH, metavar="PATH",
        help="Trace of the capture of the CUDA or HIP graphs that the profiles replay, or a folder of such traces: "
        "kernels of the graphs get their operations and shapes.",
    )  # fmt: skip


@dataclass(frozen=True)
class ProcessOptions(Options):
    """The processes that read files."""

    jobs: int | None = option(
        group=PROCESS_GROUP, type=INTEGER, metavar="N", help="Number of processes. [default: one per core]"
    )
    scheduler: str | None = option(
        group=PROCESS_GROUP, metavar="ADDRESS",
        help="Dask scheduler, tcp://host:8786, on whose workers the computation runs.",
    )  # fmt: skip
    keep_going: bool = option(False, group=PROCESS_GROUP, help="Report unreadable files and continue with the others.")


def find_or_identify_device(
    gpu: str | Device | None, paths: Paths, name_pattern: str | None, hardware_files: Paths
) -> Device | MissingDevice:
    """Return the requested device, or the one recorded in the first profile, or why there is none."""
    files = to_paths(hardware_files)
    if gpu is not None:
        return find_device(gpu, files)
    from ..profile_analysis.recorded_device import describe_missing_device, identify_device
    from ..profiles.detect import find_files, open_profile

    profile = open_profile(find_files(to_paths(paths))[0], name_pattern)
    return identify_device(profile, files) or describe_missing_device(profile, files)


def refuse_result_file(paths: Paths) -> None:
    """Raise UnknownFormat if the first file is what a benchmark wrote, and no profile."""
    from ..profiles.detect import open_profile
    from ..result_files.detect import recognise

    first = next(iter(to_paths(paths)), None)
    if first is None or not file_exists(first, Path.is_file):
        return
    try:
        open_profile(first)
    except UnknownFormat as no_profile:
        try:
            result = recognise(first)
        except UnknownFormat:
            raise no_profile from None
        raise UnknownFormat(
            f"{first}: not a profile, but a result file of {result.tool}: `paleo-lite measurements` reads it"
        ) from None

"""Records of `efficiency`, `kernels` and `compare`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import click

from ..files import Paths
from .completion import DEVICE, NETWORK, CompletedText
from .names import Names, PrecisionNames
from .option import Options, argument, option
from .records import DEVICE_GROUP, HARDWARE_FILES, NETWORK_GROUP, DeviceOptions, PppOptions
from .values import INTEGER, CommaSeparated

if TYPE_CHECKING:
    from ..machines import Device

PROFILE_GROUP = "Profiles"
DURATION_GROUP = "Measured durations"
PROCESS_GROUP = "Processes"

EXISTING_PATH = click.Path(path_type=Path, exists=True)
PRECISIONS = PrecisionNames("precision", ".units:PRECISION_BYTES")
DIRECTIONS = Names("direction", ".profile_analysis:DIRECTIONS")
GROUPINGS = Names("grouping", ".profile_analysis:GROUPINGS")
COLUMNS = CommaSeparated(CompletedText(".questions.completion:configuration_names"))


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


@dataclass(frozen=True)
class EfficiencyQuestion(ProcessOptions, FileNames, CaptureOptions, RecordedDevice):
    """Measure how well a device was used, from profiles.

    Without a device, a profile of one that the registry lacks is analyzed without shares of peak. Unreadable files are
    listed in `failed` with ``keep_going``.
    """

    paths: Paths = argument("Profiles, or folders of profiles; several are read in parallel.")
    method: str = option(
        "steady", group=PROFILE_GROUP, type=Names("method", ".profile_analysis:METHODS"),
        help="steady analyzes one steady iteration, notebook all rows as the notebook of SURFBoard does.",
    )  # fmt: skip
    steps: str | None = option(
        group=PROFILE_GROUP, metavar="FIRST:LAST",
        help="Analyze only these iterations, by the numbers of their step markers: 3, or 2:5.",
    )  # fmt: skip
    by: str = option(
        "op", group=PROFILE_GROUP, type=GROUPINGS,
        help="Sum the time of an iteration by operation, by operation and shapes, by module (or marked range), or by "
        "kernel.",
    )  # fmt: skip
    group_by: str | Sequence[str] = option(
        (), group=PROFILE_GROUP, type=COLUMNS, metavar="COLUMNS",
        help="Also print means over these columns of the configuration, such as batch_size,nodes.",
    )  # fmt: skip
    durations: Paths = option(
        (), group=DURATION_GROUP, is_repeatable=True, type=EXISTING_PATH, metavar="FILE",
        help="Measured batch durations, used for rates instead of kernel times: CSV tables, CSVs of markers, TAU "
        "intervals, or folders of these; the shortest duration is used.",
    )  # fmt: skip
    batches: int = option(
        25, group=DURATION_GROUP, type=INTEGER,
        help="With --durations and the method notebook: number of batches in the profiles.",
    )  # fmt: skip
    tau_init: str | Path | None = option(
        group=DURATION_GROUP, type=click.Path(path_type=Path, exists=True, dir_okay=False), metavar="FILE",
        help="TAU intervals of runs with one batch; their median is subtracted as the initialization time.",
    )  # fmt: skip
    tau_batches: int = option(50, group=DURATION_GROUP, type=INTEGER, help="Number of batches of the TAU runs.")


@dataclass(frozen=True)
class KernelsQuestion(FileNames, RecordedDevice):
    """Break the time of a profile down by kernel, and rank the kernels by optimization potential.

    A profile without device activity (a trace of the CPU, hotspots of VTune) is broken down by function. Without a
    device, a profile of one that the registry lacks is analyzed without shares of peak.
    """

    paths: Paths = argument(
        "A profile; or several, or folders of them, whose kernels are added up, such as the ranks of a job."
    )
    direction: str = option("all", group=PROFILE_GROUP, type=DIRECTIONS, help="Pass of the kernels.")
    full_names: bool = option(
        False, group=PROFILE_GROUP, help="One row per full kernel name, with template arguments and parameters."
    )


@dataclass(frozen=True)
class ComparisonQuestion(FileNames, CaptureOptions, PppOptions, DeviceOptions):
    """Compare the kernels of two profiles, a prediction with a profile, or a result file with its forecasts.

    Of repeated profiles, every difference is compared with the spread between the repeats. A single result file of a
    benchmark (see `measurements`) is compared with the forecasts for its own configuration; ``predict``, ``gpu``,
    ``precision`` and ``sequence_length`` add what it lacks. With ``predict``, the time model ``ppp`` without a PPP is
    fitted to the profile.
    """

    compares: ClassVar[bool] = False

    a: Paths = argument("A profile, repeated profiles, or a result file of a benchmark.")
    b: Paths = argument("The other profile, or its repeats; omitted with `predict` and for a result file.", ())
    repeats: bool = option(
        False, group=PROFILE_GROUP,
        help="Also read the repeats in the folders of A and B, recognised by their names.",
    )  # fmt: skip
    direction: str = option("all", group=PROFILE_GROUP, type=DIRECTIONS, help="Pass of the kernels.")
    by: str = option(
        "kernel", group=PROFILE_GROUP, type=GROUPINGS,
        help="Sum the times by kernel, by operation, by operation and shapes, or by module.",
    )  # fmt: skip
    predict: str | None = option(
        group=NETWORK_GROUP, type=NETWORK, metavar="NETWORK",
        help="Compare a prediction for this network with one profile; options of networks, devices and time models are "
        "for the prediction.",
    )  # fmt: skip
    gpu: str | Device | None = option(
        group=DEVICE_GROUP, type=DEVICE, metavar="DEVICE",
        help="With --predict: device. [default: the one recorded in the profile]",
    )  # fmt: skip
    precision: str | None = option(
        group=NETWORK_GROUP, type=PRECISIONS, metavar="NAME",
        help="Precision of the arithmetic. [default: fp32, or that of a result file]",
    )  # fmt: skip
    batch_size: int | None = option(
        group=NETWORK_GROUP, type=INTEGER, metavar="N",
        help="With --predict: samples per pass. [default: as in the file name of the profile]",
    )  # fmt: skip
    sequence_length: int | None = option(
        group=NETWORK_GROUP, type=INTEGER, metavar="TOKENS",
        help="Tokens per sequence of a language model; in prefill the length of the prompt. [default: the maximum of "
        "the model, but at most 2048]",
    )  # fmt: skip
    context: int | None = option(
        group=NETWORK_GROUP, type=INTEGER, metavar="TOKENS", help="Tokens in the KV cache, for the phase decode."
    )
    phase: str | None = option(
        group=NETWORK_GROUP, type=Names("phase", ".counting:PHASES", ".counting:GENERATION_PHASES"), metavar="NAME",
        help="With --predict: phase. [default: training if the profile has backward kernels, else inference]",
    )  # fmt: skip


OF_A_PREDICTION = (
    "gpu", "batch_size", "sequence_length", "context", "phase", "time_model", "ppp", "calibration", "clock", "unit",
    "power_limit", "capture_traces",
)  # fmt: skip
"""Options of a comparison that only a prediction has."""

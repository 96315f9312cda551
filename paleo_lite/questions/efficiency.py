"""`efficiency`: how well a device was used."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ..errors import BadValue
from ..extras import require
from ..files import Paths, to_paths
from ..machines import Device
from .completion import CompletedText
from .kind import make_function
from .names import Names
from .option import argument, option
from .profile_options import (
    EXISTING_PATH,
    GROUPINGS,
    PROFILE_GROUP,
    PROFILE_READER,
    CaptureOptions,
    FileNames,
    ProcessOptions,
    RecordedDevice,
    find_or_identify_device,
    refuse_result_file,
)
from .values import INTEGER, CommaSeparated, to_list

if TYPE_CHECKING:
    from ..profile_analysis.analysis import Efficiency

DURATION_GROUP = "Measured durations"

COLUMNS = CommaSeparated(CompletedText(".questions.completion:configuration_names"))


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


def answer_efficiency(question: EfficiencyQuestion) -> Efficiency:
    """Return how well a device was used.

    Raise PaleoError for a malformed profile, or an unknown device, column or precision.
    """
    require(*PROFILE_READER)
    if not question.keep_going:
        refuse_result_file(question.paths)
    from ..profile_analysis.analysis import measure_efficiency
    from ..profile_analysis.one_file import ReadOptions

    device = find_or_identify_device(question.gpu, question.paths, question.name_pattern, question.hardware_files)
    if isinstance(device, Device):
        device.find_peak(question.precision)  # raises UnknownPrecision before any file is read
    elif question.method == "notebook":
        raise BadValue(device.request)  # its figures are shares of peak
    batch_durations = None
    initialization_path = None if question.tau_init is None else Path(question.tau_init)
    if question.durations:
        from ..profile_analysis.durations import read_durations

        batch_durations = read_durations(
            to_paths(question.durations),
            initialisation=initialization_path,
            tau_batches=question.tau_batches,
            name_pattern=question.name_pattern,
        )
    elif initialization_path is not None:
        raise BadValue("`--tau-init` requires `--durations`: it is the initialization of these TAU runs")
    reading = ReadOptions(
        method=question.method,  # type: ignore[arg-type]  # one of the names that the record has checked
        name_pattern=question.name_pattern,
        steps=question.steps,
        durations=batch_durations,
        batches=question.batches,
        keep_going=question.keep_going,
        by=question.by,
        capture_traces=tuple(to_paths(question.capture_traces)),
    )
    columns = to_list(question.group_by) if question.group_by else []
    return measure_efficiency(
        to_paths(question.paths), device, reading, question.precision, columns, question.jobs, question.scheduler
    )


efficiency = make_function("efficiency", EfficiencyQuestion, answer_efficiency)

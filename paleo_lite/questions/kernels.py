"""`kernels`: the time of a profile by kernel; its trace, and a script that runs one of its operators again."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from ..arguments import check_arguments
from ..errors import NothingOnDevice
from ..extras import require
from ..files import Paths, file_exists, to_paths, without_copies
from ..machines import Device, find_device
from .kind import make_function
from .option import argument, option
from .profile_options import (
    DIRECTIONS,
    PROFILE_GROUP,
    PROFILE_READER,
    FileNames,
    RecordedDevice,
    find_or_identify_device,
    refuse_result_file,
)

if TYPE_CHECKING:
    from ..profile_analysis.host import HostReport
    from ..profile_analysis.kernels import KernelReport
    from ..profile_analysis.merged_trace import MergedTrace
    from ..profile_analysis.recorded_device import MissingDevice


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


def answer_kernels(question: KernelsQuestion) -> KernelReport | HostReport:
    """Return the time of profiles by kernel, or by function where no device was active.

    Raise PaleoError for a malformed profile, or an unknown device or precision.
    """
    require(*PROFILE_READER)
    refuse_result_file(question.paths)
    from ..profile_analysis.contradictions import device_warnings, find_contradictions, gather_evidence
    from ..profile_analysis.host import report_host
    from ..profile_analysis.kernels import mark_device_conflict, report_kernels
    from ..profile_analysis.totals import total_kernels
    from ..profiles.detect import open_profile

    device: Device | MissingDevice | None = None
    if question.gpu is not None:
        device = find_device(question.gpu, to_paths(question.hardware_files))
        device.find_peak(question.precision)  # raises UnknownPrecision before any file is read
    files, copies = without_copies(_list_files(question.paths))
    profiles = [open_profile(file, question.name_pattern) for file in files]
    try:
        if device is None:
            total_kernels(profiles[0], question.direction)  # raises NothingOnDevice for a profile of the host
            device = find_or_identify_device(None, question.paths, question.name_pattern, question.hardware_files)
        report = report_kernels(
            profiles, device, question.precision, direction=question.direction, full_names=question.full_names
        )
        report = msgspec.structs.replace(report, notes=(*copies, *report.notes))
    except NothingOnDevice:
        if len(profiles) > 1:
            raise
        return report_host(profiles[0])
    if not isinstance(device, Device):
        return report
    evidence = gather_evidence(profiles[0], report.raw_s)
    return mark_device_conflict(report, find_contradictions(evidence, device), device_warnings(evidence, device))


kernels = make_function("kernels", KernelsQuestion, answer_kernels)


def _list_files(paths: Paths) -> list[Path]:
    """Return the given files, with folders replaced by their files."""
    from ..profiles.detect import find_files

    listed = to_paths(paths)
    if len(listed) != 1 or file_exists(listed[0], Path.is_dir):
        return find_files(listed)
    return listed


@check_arguments
def merge_traces(paths: Paths, output: str | Path, *, force: bool = False) -> MergedTrace:
    """Write the activity of the devices of several ranks into one trace for Perfetto and chrome://tracing.

    A rank is a process and a stream a thread; counters say how much each stream has in its queue, and at what rate
    copies run.

    Parameters
    ----------
    paths : path, or sequence of paths
        Profiles with start times, or folders of them: one for each rank.
    output : path
        The trace, ``.json`` or ``.json.gz``; an existing file is replaced only with `force`.

    Returns
    -------
    MergedTrace
        Path, size in bytes, and the number of events of each rank.

    Raises
    ------
    PaleoError
        For a malformed profile, one without start times, or an output that exists.
    """
    require(*PROFILE_READER)
    from ..profile_analysis.merged_trace import merge_traces as merge

    return merge(to_paths(paths), Path(output), force=force)


@check_arguments
def replay_operator(paths: Paths, operator: str | None = None) -> str:
    """Return a Python script that runs one operator of a PyTorch trace again, with the recorded shapes and types.

    Parameters
    ----------
    paths : path, or sequence of paths
        Traces with shapes (``record_shapes=True``), or folders of them.
    operator : str, optional
        Name of the operator, such as ``aten::mm``; its call with most time is run. By default the operator with most
        time of those whose arguments are all recorded.

    Returns
    -------
    str
        The script, which needs only PyTorch and prints its own time beside the recorded one.

    Raises
    ------
    PaleoError
        For a malformed profile, an unknown operator, or arguments that are not recorded.
    """
    require(*PROFILE_READER)
    from ..profile_analysis.replay import recorded_calls, replay_script
    from ..profiles.detect import find_files, open_profile

    files = find_files(to_paths(paths))
    return replay_script(recorded_calls(map(open_profile, files)), operator, files[0].name)

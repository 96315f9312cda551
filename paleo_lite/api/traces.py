"""What profiles become: `merge_traces`, one trace of several ranks, and `replay_operator`, a script of one operator."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ..extras import require
from ..files import Paths, to_paths
from .profiles import PROFILE_READER

if TYPE_CHECKING:
    from ..profile_analysis.merged_trace import MergedTrace


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

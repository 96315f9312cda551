"""The second of two steps: having seen which kernels take the time, profile those and only those.

As the slides "Profiling DNN workloads" (Argonne Leadership Computing Facility, ATPESC) do it: counters slow a program
down many times over, so the first run lists kernels by time (that is the profile in hand) and the second collects
counters for the few that matter.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence

from ..errors import BadValue
from . import TOOLS
from .kernels import NOT_PROFILED, KernelRow
from .metrics import METRICS

WANTED = ("achieved_occupancy", "ipc", "gld_efficiency", "gst_efficiency", "dram_utilization", "flop_sp_efficiency")
"""The counters that tell what bounds a kernel, by nvprof's names."""

_MOST = 8
_ENOUGH = 0.8  # of the time of all kernels


def kernels_that_matter(rows: Sequence[KernelRow]) -> list[KernelRow]:
    """The kernels with most to gain, where that is unknown all of their time: at most 8, at most 80% of the time."""
    able = [row for row in rows if row.label not in NOT_PROFILED]
    total = sum(row.time_s or 0.0 for row in able)
    chosen: list[KernelRow] = []
    for row in sorted(able, key=lambda row: -row.gain_s):
        if len(chosen) == _MOST or (total and sum(kernel.time_s or 0.0 for kernel in chosen) >= _ENOUGH * total):
            break
        chosen.append(row)
    return chosen


def next_command(rows: Sequence[KernelRow], tool: str, program: str = "python train.py") -> list[str]:
    """The commands of the selective run, quoted for a POSIX shell.

    Parameters
    ----------
    rows : sequence of KernelRow
        All kernels of the first run.
    tool : {"nvprof", "ncu", "nsys"}
    program : str
        What to run, as typed.

    Returns
    -------
    list of str
        One command per line.

    Raises
    ------
    BadValue
        If the tool is unknown, the program cannot be split into words, or no kernel is left to profile.
    """
    if tool not in TOOLS:
        raise BadValue(f"no profiler is called {tool!r}: known are {', '.join(TOOLS)}")
    try:
        words = shlex.split(program)
    except ValueError as error:
        raise BadValue(f"the program {program!r} cannot be split into words: {error}") from None
    chosen = kernels_that_matter(rows)
    if not words or not chosen:
        raise BadValue("a next command needs a program and at least one kernel that is not a copy or collective")
    pattern = "|".join(dict.fromkeys(_identifier(row.name) for row in chosen))
    if tool == "nvprof":
        # The filter is context:stream:name:invocation, each a regular expression; a name holds no colon.
        arguments = ["nvprof", "--profile-from-start", "off", "--kernels", f"::{_alternatives(pattern)}:1"]
        arguments += ["--metrics", ",".join(WANTED), "--log-file", "selective-profile.log", *words]
        return [shlex.join(arguments)]
    if tool == "ncu":
        metrics = [metric.ncu[0] for metric in METRICS if metric.name in WANTED]
        arguments = ["ncu", "--profile-from-start", "off", "--kernel-name-base", "demangled"]
        arguments += ["--kernel-name", f"regex:{pattern}", "--launch-count", str(len(chosen))]
        arguments += ["--metrics", ",".join(["gpu__time_duration.sum", *metrics]), "--csv"]
        return [shlex.join([*arguments, "--log-file", "selective-profile.csv", *words])]
    run = ["nsys", "profile", "--capture-range=cudaProfilerApi", "--trace=cuda,cudnn,cublas,nvtx"]
    stats = ["nsys", "stats", "--report", "cuda_gpu_trace", "--format", "csv", "selective-profile.nsys-rep"]
    # nsys collects all kernels: the choice is made from its table, which keeps the header.
    chosen_lines = shlex.join(["grep", "-E", f"Start|{pattern}"])
    return [shlex.join([*run, "--output=selective-profile", *words]), f"{shlex.join(stats)} | {chosen_lines}"]


def _identifier(name: str) -> str:
    """The function's own name, as a regular expression that holds nothing but letters, digits, _ and dots."""
    return re.sub(r"[^A-Za-z0-9_]", ".", name.rsplit("::", 1)[-1]) or "."


def _alternatives(pattern: str) -> str:
    return f"({pattern})" if "|" in pattern else pattern

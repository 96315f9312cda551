"""Command lines that profile only the kernels that take most of the time, with hardware counters.

The two-step procedure of the slides "Profiling DNN workloads" (Argonne Leadership Computing Facility, ATPESC): counters
slow a program down many times over, so the first run lists the kernels by time (the existing profile), and the second
run collects counters for the most important ones.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence

from ..errors import BadValue
from ..profiles.names import CLASSES_WITHOUT_ARITHMETIC
from . import TOOLS
from .kernels import KernelRow
from .metrics import METRICS

SELECTED_METRICS = (
    "achieved_occupancy",
    "ipc",
    "gld_efficiency",
    "gst_efficiency",
    "dram_utilization",
    "flop_sp_efficiency",
)
"""Counters that determine a kernel's bound, by nvprof's names."""

_MAX_KERNELS = 8
_SUFFICIENT_SHARE = 0.8  # of the time of all kernels


def kernels_to_profile(rows: Sequence[KernelRow]) -> list[KernelRow]:
    """Return the kernels with the largest possible gain: at most 8, covering 80% of the time.

    The gain of a kernel with an unknown bound is its whole time.
    """
    candidates = [row for row in rows if row.label not in CLASSES_WITHOUT_ARITHMETIC]
    total_s = sum(row.time_s or 0.0 for row in candidates)
    selected: list[KernelRow] = []
    for row in sorted(candidates, key=lambda row: -row.gain_s):
        selected_s = sum(kernel.time_s or 0.0 for kernel in selected)
        if len(selected) == _MAX_KERNELS or (total_s and selected_s >= _SUFFICIENT_SHARE * total_s):
            break
        selected.append(row)
    return selected


def next_command(rows: Sequence[KernelRow], tool: str, program: str = "python train.py") -> list[str]:
    """Return the commands that profile the selected kernels with a tool, quoted for a POSIX shell, one per line.

    `rows` are all kernels of the first run. Raise BadValue if the tool is unknown, the program cannot be split into
    words, or there is no kernel to profile. The tools are "nvprof", "ncu" and "nsys"; `program` is the command line of
    the program.
    """
    if tool not in TOOLS:
        raise BadValue(f"no profiler is called {tool!r}: known are {', '.join(TOOLS)}")
    try:
        program_arguments = shlex.split(program)
    except ValueError as error:
        raise BadValue(f"the program {program!r} cannot be split into words: {error}") from None
    selected = kernels_to_profile(rows)
    if not program_arguments or not selected:
        raise BadValue("a next command needs a program and at least one kernel that is not a copy or collective")
    pattern = "|".join(dict.fromkeys(_function_pattern(row.name) for row in selected))
    if tool == "nvprof":
        return [_nvprof_command(pattern, program_arguments)]
    if tool == "ncu":
        return [_ncu_command(pattern, len(selected), program_arguments)]
    return _nsys_commands(pattern, program_arguments)


def _nvprof_command(pattern: str, program_arguments: list[str]) -> str:
    # The filter is context:stream:name:invocation, each a regular expression; a name contains no colon.
    alternatives = f"({pattern})" if "|" in pattern else pattern
    arguments = ["nvprof", "--profile-from-start", "off", "--kernels", f"::{alternatives}:1"]
    arguments += ["--metrics", ",".join(SELECTED_METRICS), "--log-file", "selective-profile.log"]
    return shlex.join(arguments + program_arguments)


def _ncu_command(pattern: str, launch_count: int, program_arguments: list[str]) -> str:
    metrics = ["gpu__time_duration.sum"]
    metrics += [metric.ncu[0] for metric in METRICS if metric.name in SELECTED_METRICS]
    arguments = ["ncu", "--profile-from-start", "off", "--kernel-name-base", "demangled"]
    arguments += ["--kernel-name", f"regex:{pattern}", "--launch-count", str(launch_count)]
    arguments += ["--metrics", ",".join(metrics), "--csv", "--log-file", "selective-profile.csv"]
    return shlex.join(arguments + program_arguments)


def _nsys_commands(pattern: str, program_arguments: list[str]) -> list[str]:
    run = ["nsys", "profile", "--capture-range=cudaProfilerApi", "--trace=cuda,cudnn,cublas,nvtx"]
    run += ["--output=selective-profile", *program_arguments]
    stats = ["nsys", "stats", "--report", "cuda_gpu_trace", "--format", "csv", "selective-profile.nsys-rep"]
    # nsys collects all kernels, so the selection filters its table and keeps the header.
    select_lines = ["grep", "-E", f"Start|{pattern}"]
    return [shlex.join(run), f"{shlex.join(stats)} | {shlex.join(select_lines)}"]


def _function_pattern(name: str) -> str:
    """Return a regular expression for a function's name without namespaces: letters, digits, ``_`` and dots only."""
    function = name.rsplit("::", 1)[-1]
    return re.sub(r"[^A-Za-z0-9_]", ".", function) or "."

"""Timing of contestants in turns, used by all speed benchmarks, and the tables they print.

On a shared machine, a slow moment affects all contestants of a turn. Ratios are therefore computed within a turn and
carry over to other machines; seconds apply to one machine only.
"""

from __future__ import annotations

import os
import platform
import re
import statistics
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple


class Turns(NamedTuple):
    """Seconds of several contestants, turn by turn."""

    what: str  # description of the task, as the beginning of a sentence
    seconds: Mapping[str, list[float]]  # seconds by contestant, paleo-lite first; slow contestants may have fewer turns
    # Number of items (of `unit`) that a contestant processes in a turn, to print rates.
    amount: Mapping[str, float] = {}
    unit: str = ""
    remarks: Mapping[str, str] = {}  # further remarks on a contestant, such as its peak memory
    # Required minimum speedup of paleo-lite over a contestant; below 1, it may be slower.
    wanted: Mapping[str, float] = {}

    @property
    def ours(self) -> str:
        """Name of the first contestant."""
        return next(iter(self.seconds))

    def ratios(self, name: str) -> list[float]:
        """Return the time of a contestant over that of paleo-lite for the same amount of work, turn by turn."""
        same = self.amount.get(self.ours, 1.0) / self.amount.get(name, 1.0)
        return sorted(same * theirs / ours for theirs, ours in zip(self.seconds[name], self.seconds[self.ours]))

    def missed(self) -> list[str]:
        """Return descriptions of the speed requirements that are not met."""
        return [
            f"{self.what}: {statistics.median(self.ratios(name)):.2f} times as fast as {name}, wanted {wanted:g}"
            for name, wanted in self.wanted.items()
            if name in self.seconds and statistics.median(self.ratios(name)) < wanted
        ]

    def markdown(self) -> str:
        """Return a table with median and spread of each contestant and of its ratio to paleo-lite."""
        extra = ["also"] if self.remarks else []
        rows = [[self.what, "median", "spread", f"over {self.ours}", "spread of the ratio", *extra]]
        for name, seconds in self.seconds.items():
            if name in self.amount:
                rates = [self.amount[name] / value for value in seconds]
                shown = [rate(statistics.median(rates), self.unit), spread(rates, lambda x: rate(x, ""))]
            else:
                shown = [duration(statistics.median(seconds)), spread(seconds, duration)]
            ratio = self.ratios(name)
            shown += [f"{statistics.median(ratio):.3g}", spread(ratio, lambda x: f"{x:.3g}")]
            if name == self.ours:
                shown[2:] = ["1", ""]
            rows.append([name, *shown, *([self.remarks.get(name, "")] if extra else [])])
        rule = "| :-- |" + " --: |" * (len(rows[0]) - 1)
        lines = ["| " + " | ".join(row) + " |" for row in rows]
        return "\n".join([lines[0], rule, *lines[1:]])


def duration(value: float) -> str:
    """Format seconds."""
    return f"{value:.3g} s" if value >= 1 else f"{1e3 * value:.3g} ms"


def rate(value: float, unit: str) -> str:
    """Format a rate per second."""
    for size, letter in ((1e6, " M"), (1e3, " k"), (1, "")):
        if value >= size:
            return f"{value / size:.3g}{letter}{unit and ' '}{unit}"
    return f"{value:.3g}{unit and ' '}{unit}"


def spread(values: list[float], show: Callable[[float], str]) -> str:
    """Return the quartiles, or the extremes of a few values."""
    ordered = sorted(values)
    if len(ordered) < 2:
        return ""
    low, high = (ordered[0], ordered[-1]) if len(ordered) < 8 else statistics.quantiles(ordered, n=4)[::2]
    return f"{show(low)} to {show(high)}"


def take_turns(contestants: Mapping[str, Callable[[], object]], repeats: int) -> dict[str, list[float]]:
    """Time the contestants in turns, after a first call of each that fills its caches."""
    seconds: dict[str, list[float]] = {name: [] for name in contestants}
    for turn in range(repeats + 1):
        for name, contestant in contestants.items():
            start = time.perf_counter()
            contestant()
            if turn:
                seconds[name].append(time.perf_counter() - start)
    return seconds


def run(command: list[str]) -> Callable[[], object]:
    """Return a contestant that runs a command in a separate process."""
    return lambda: subprocess.run(command, check=True, capture_output=True)


def machine() -> str:
    """Describe the processor, the available cores, their load, Python and numpy."""
    import numpy

    model = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists() and (named := re.search(r"^model name\s*:\s*(.+)$", info.read_text(), re.MULTILINE)):
        model = named.group(1)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    load = f", load {os.getloadavg()[0]:.1f} before" if hasattr(os, "getloadavg") else ""
    return f"{cores} cores of {model}{load}; Python {platform.python_version()}, numpy {numpy.__version__}"

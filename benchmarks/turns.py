"""Contestants that take turns: what every benchmark measures with, and the table that it prints.

On a machine that others use too a slow moment meets all contestants of a turn alike, so ratios are taken within a turn
and hold elsewhere; seconds are those of one machine.
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
    """What several contestants took, turn by turn.

    Attributes
    ----------
    what : str
        What all of them did; a sentence's beginning.
    seconds : dict of list of float
        By contestant, ours first; a slow peer may have fewer turns.
    amount : dict of float
        How many things of `unit` a contestant did in its seconds, where rates are wanted.
    unit : str
    remarks : dict of str
        What else is to be said of a contestant, such as its peak memory.
    wanted : dict of float
        How many times as fast as this contestant ours should be at least; below 1 it may be slower.
    """

    what: str
    seconds: Mapping[str, list[float]]
    amount: Mapping[str, float] = {}
    unit: str = ""
    remarks: Mapping[str, str] = {}
    wanted: Mapping[str, float] = {}

    @property
    def ours(self) -> str:
        """The first contestant."""
        return next(iter(self.seconds))

    def ratios(self, name: str) -> list[float]:
        """How many times as long this contestant took as ours for the same amount, turn by turn."""
        same = self.amount.get(self.ours, 1.0) / self.amount.get(name, 1.0)
        return sorted(same * theirs / ours for theirs, ours in zip(self.seconds[name], self.seconds[self.ours]))

    def missed(self) -> list[str]:
        """What ours is not fast enough for."""
        return [
            f"{self.what}: {statistics.median(self.ratios(name)):.2f} times as fast as {name}, wanted {wanted:g}"
            for name, wanted in self.wanted.items()
            if name in self.seconds and statistics.median(self.ratios(name)) < wanted
        ]

    def markdown(self) -> str:
        """A table: median and spread of each contestant, and of its ratio to ours."""
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
    """Seconds as a person writes them."""
    return f"{value:.3g} s" if value >= 1 else f"{1e3 * value:.3g} ms"


def rate(value: float, unit: str) -> str:
    """A number per second as a person writes it."""
    for size, letter in ((1e6, " M"), (1e3, " k"), (1, "")):
        if value >= size:
            return f"{value / size:.3g}{letter}{unit and ' '}{unit}"
    return f"{value:.3g}{unit and ' '}{unit}"


def spread(values: list[float], show: Callable[[float], str]) -> str:
    """The quarter points, or the ends of a few."""
    ordered = sorted(values)
    if len(ordered) < 2:
        return ""
    low, high = (ordered[0], ordered[-1]) if len(ordered) < 8 else statistics.quantiles(ordered, n=4)[::2]
    return f"{show(low)} to {show(high)}"


def take_turns(contestants: Mapping[str, Callable[[], object]], repeats: int) -> dict[str, list[float]]:
    """Seconds of each, called in turn; each is called once before, so that what it keeps is there."""
    seconds: dict[str, list[float]] = {name: [] for name in contestants}
    for turn in range(repeats + 1):
        for name, contestant in contestants.items():
            start = time.perf_counter()
            contestant()
            if turn:
                seconds[name].append(time.perf_counter() - start)
    return seconds


def run(command: list[str]) -> Callable[[], object]:
    """A contestant that is a process of its own."""
    return lambda: subprocess.run(command, check=True, capture_output=True)


def machine() -> str:
    """The processor, its cores that are ours, how busy they were, Python and numpy."""
    import numpy

    model = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists() and (named := re.search(r"^model name\s*:\s*(.+)$", info.read_text(), re.MULTILINE)):
        model = named.group(1)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    load = f", load {os.getloadavg()[0]:.1f} before" if hasattr(os, "getloadavg") else ""
    return f"{cores} cores of {model}{load}; Python {platform.python_version()}, numpy {numpy.__version__}"

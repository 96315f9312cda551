"""NVTX ranges and marks: PyTorch's operations behind kernels, and the iterations and layers that a program marked.

PyTorch's ``emit_nvtx`` pushes a range per operation, ``aten::mm, seq = 3, op_id = 8, sizes = [[2, 3], [3, 4]]``. The
rest is the program's own, but for what libraries mark in domains of theirs.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from .launches import OPERATION, Links, direction_of
from .marks import Launched, find_steps
from .modules import HostRange, Places
from .table import coded

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from .launches import Integers

MARK, DOMAIN = 34, 75
_NESTED = (None, 59, 70)  # pushed and popped on one thread; older versions do not say
KINDS = (MARK, 59, 60, 70, 71)
"""Marks and ranges, of ENUM_NSYS_EVENT_TYPE; the rest declares domains and names."""

_LIBRARIES = ("NCCL", "CCCL")  # whose ranges say nothing of where in the program something is
_TORCH_RANGE = re.compile(
    r"(?P<op>.+?)(?:, seq = (?P<sequence>\d{1,18}))?(?:, op_id = \d+)?"
    r"(?:, sizes = (?P<sizes>\[[\d, \[\]]*\]))?(?:, input_op_ids.*)?"
)
_TORCH_SIGNS = (", seq = ", ", op_id = ", ", sizes = ")


class Ranges:
    """Ranges and marks, gathered one by one.

    Parameters
    ----------
    domains : mapping
        Names of the domains by their numbers.
    """

    def __init__(self, domains: Mapping[Any, str]) -> None:
        self._foreign = {number for number, name in domains.items() if name in _LIBRARIES}
        self._threads: dict[Any, int] = {}
        self.names: dict[str, int] = {}
        self.sizes: dict[str, int] = {}
        self._operations: list[tuple[Any, ...]] = []
        self._ranges: list[HostRange] = []
        self._own: list[tuple[str, int, int]] = []

    def __bool__(self) -> bool:
        return bool(self._operations or self._own)

    def thread(self, number: Any) -> int:
        """A number of ours for a thread."""
        return self._threads.setdefault(number, len(self._threads))

    def add(self, name: str | None, thread: Any, kind: int | None, domain: Any, start: int, end: int | None) -> None:
        """Add one; what has no name or was never ended says nothing."""
        if name is None or (end is None and kind != MARK) or domain in self._foreign:
            return
        match = _TORCH_RANGE.fullmatch(name) if any(sign in name for sign in _TORCH_SIGNS) else None
        code = self.thread(thread)
        if match is not None and end is not None:
            self._operations.append(self._operation(match, code, start, end))
            return
        self._own.append((name, start, start if end is None else end))
        if end is not None and kind in _NESTED:
            self._ranges.append(HostRange(name, code, start, end))

    def _operation(self, match: re.Match[str], thread: int, start: int, end: int) -> tuple[Any, ...]:
        code = self.names.setdefault(match["op"], len(self.names))
        sizes = match["sizes"]
        params = -1 if sizes is None else self.sizes.setdefault(sizes, len(self.sizes))
        sequence = -1 if match["sequence"] is None else int(match["sequence"])
        return -1, thread, start, end, code, params, sequence, direction_of(match["op"])

    def link(self, launches: NDArray[Any]) -> Linked:
        """What is behind what these calls launched (see `launches.LAUNCH`)."""
        names, starts, ends = zip(*self._own) if self._own else ((), (), ())
        steps = find_steps(names, np.array(starts, np.int64), np.array(ends, np.int64), launches["start"])
        operations = np.array(self._operations, OPERATION)
        links = Links(operations, launches, external_ids=False) if len(operations) else None
        texts = tuple(pa.array([*known], pa.string()) for known in (self.names, self.sizes))
        return Linked(Launched(steps, steps, launches), Places(self._ranges, steps), links, *texts)


class Linked:
    """What is behind events on a device, by the call that launched them."""

    def __init__(
        self, launched: Launched, places: Places, links: Links | None, names: pa.Array, sizes: pa.Array
    ) -> None:
        self._launched, self._places, self._links = launched, places, links
        self._texts = names, sizes
        of_launch = places.find(launched.launches["thread"], launched.launches["start"])
        self._of_launch = np.append(of_launch, -1)  # the last is that of what nothing launched
        self._of_operation = None if links is None else places.of(links)

    def columns(self, keys: Integers, start: Integers) -> dict[str, Any]:
        """`step`, `launch_ns`, `layer`, and those of an operation where there is one."""
        table: dict[str, Any] = self._launched.columns(keys, start)
        inside = self._of_launch[self._launched.find(keys)]
        if self._links is not None and self._of_operation is not None:
            at = self._links.find(np.full(len(keys), -1), keys)
            table |= self._links.columns(at, *self._texts)
            inside = np.where(at >= 0, self._of_operation[at], inside)
        return table | {"layer": coded(inside, self._places.names)}

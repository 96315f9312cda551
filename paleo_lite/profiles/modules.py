"""Inside which of a program's ranges each operation ran: its modules, and what it marked itself.

PyTorch's profiler writes the forward call of each module (``with_stack=True``) and the ranges of ``record_function``.
They nest, and the path of their names says where in the program a kernel comes from. A backward operation runs on
autograd's thread, outside of all of them: its place is that of the forward operation it belongs to.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from .chrome_events import MODULE
from .launches import STEP, Nest
from .marks import PROFILER_STEP

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from .launches import Integers, Links
    from .marks import MarkedSteps

_NO_PLACE = (PROFILER_STEP, STEP, "nccl:")
"""Ranges that do not say where in the program something is."""


class HostRange(NamedTuple):
    """A range on a thread of the host, in nanoseconds."""

    name: str
    thread: int
    start: int
    end: int


class Places:
    """Where in the program something is.

    Parameters
    ----------
    ranges : sequence of HostRange
        In any order.
    steps : MarkedSteps
        The iterations, whose marks are no place.

    Attributes
    ----------
    names : list of str
        Paths such as ``Model_0/Block_3/Linear_7``, each once.
    """

    def __init__(self, ranges: Sequence[HostRange], steps: MarkedSteps) -> None:
        marks = set(zip(steps.starts.tolist(), steps.ends.tolist()))
        entered = [known for known in ranges if not known.name.startswith(_NO_PLACE)]
        entered = [known for known in entered if (known.start, known.end) not in marks]
        entered.sort(key=lambda known: (known.thread, known.start, -known.end))
        codes: dict[str, int] = {}
        self._path = np.empty(len(entered) + 1, np.int64)
        self._path[-1] = -1  # of what is in none
        open_ranges: list[tuple[HostRange, str]] = []
        for index, known in enumerate(entered):
            while open_ranges and (open_ranges[-1][0].thread != known.thread or open_ranges[-1][0].end <= known.start):
                open_ranges.pop()
            own = known.name.removeprefix(MODULE).replace("/", "|")
            text = f"{open_ranges[-1][1]}/{own}" if open_ranges else own
            open_ranges.append((known, text))
            self._path[index] = codes.setdefault(text, len(codes))
        self.names = list(codes)
        self._nest = Nest(*(np.array([known[field] for known in entered], np.int64) for field in (1, 2, 3)))

    def find(self, thread: NDArray[Any], time: Integers) -> Integers:
        """The place in `names` of each thread at a time, -1 for none."""
        return self._path[self._nest.innermost(thread, time)]

    def of(self, links: Links) -> Integers:
        """The same of each of the links' operations; of a backward one that is nowhere, that of its forward one."""
        operations, forward = links.operations, links.forward
        module = self.find(operations["thread"], operations["start"])
        outside = (module < 0) & (forward >= 0)
        module[outside] = module[forward[outside]]
        return module

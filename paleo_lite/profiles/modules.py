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

_NO_PLACE = (PROFILER_STEP, STEP, "nccl:")
"""Ranges that do not say where in the program something is."""


class Range(NamedTuple):
    """A range on a thread of the host, in nanoseconds."""

    name: str
    thread: int
    start: int
    end: int


class Places:
    """Where in the program operations are.

    Parameters
    ----------
    ranges : sequence of Range
        In any order.
    links : Links

    Attributes
    ----------
    names : list of str
        Paths such as ``Model_0/Block_3/Linear_7``, each once.
    of_operation : ndarray of int64
        For each of the links' operations its place in `names`, -1 for none.
    """

    def __init__(self, ranges: Sequence[Range], links: Links) -> None:
        kept = sorted(
            (known for known in ranges if not known.name.startswith(_NO_PLACE)),
            key=lambda known: (known.thread, known.start, -known.end),
        )
        codes: dict[str, int] = {}
        path = np.empty(len(kept), np.int64)
        open_ranges: list[tuple[Range, str]] = []
        for place, known in enumerate(kept):
            while open_ranges and (open_ranges[-1][0].thread != known.thread or open_ranges[-1][0].end <= known.start):
                open_ranges.pop()
            own = known.name.removeprefix(MODULE).replace("/", "|")
            text = f"{open_ranges[-1][1]}/{own}" if open_ranges else own
            open_ranges.append((known, text))
            path[place] = codes.setdefault(text, len(codes))
        self.names = list(codes)
        operations = links.operations
        self.of_operation: Integers = np.full(len(operations), -1)
        if not kept:
            return
        nest = Nest(*(np.array([known[field] for known in kept], np.int64) for field in (1, 2, 3)))
        around = nest.innermost(operations["thread"], operations["start"])
        self.of_operation = np.where(around >= 0, path[around], -1)
        self._follow(links.forward)

    def _follow(self, forward: NDArray[Any]) -> None:
        outside = (self.of_operation < 0) & (forward >= 0)
        self.of_operation[outside] = self.of_operation[forward[outside]]

"""Groups of measurements of one server, machine or cluster."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from paleo_lite.calibration.posterior import Observation

MOST_OF_GROUP = 8
"""Rows of a group that the prior is fitted to: many loads of one server say little more than few."""


class Grouped(NamedTuple):
    """A measured figure, and what it was measured on."""

    group: tuple[str, ...]
    row: Observation


def by_group(rows: Sequence[Grouped]) -> dict[tuple[str, ...], list[Observation]]:
    """Return the rows of each group."""
    groups: dict[tuple[str, ...], list[Observation]] = {}
    for grouped in rows:
        groups.setdefault(grouped.group, []).append(grouped.row)
    return groups


def thinned(rows: Sequence[Grouped]) -> list[Observation]:
    """Return at most `MOST_OF_GROUP` rows of each group, evenly spread."""
    observations = []
    for group_rows in by_group(rows).values():
        for index in np.unique(np.linspace(0, len(group_rows) - 1, MOST_OF_GROUP).astype(int)):
            observations.append(group_rows[int(index)])
    return observations

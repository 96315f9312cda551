"""Forecasts of the rows of groups of which some measurements are known."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np

from paleo_lite.calibration.posterior import KindPrior, LeftOut, Observation, Posterior
from paleo_lite.engines.causes import FIRST_TOKEN
from paleo_lite.serving.causes import has_waited

from .groups import Grouped, by_group

KNOWN = (1, 2, 4)
"""Measurements of a group that are known."""

ANOTHER_DEVICE = 0
"""In place of a number of known measurements: none of the group, but those of the same network on other devices."""

MOST_OF_OTHERS = 4
"""Measurements of each of these that are known."""

GROUPS = 10_000
"""More than there are groups of a part."""

DRAWS = 3
"""Times that the known measurements of a group are drawn."""


class GroupForecast(msgspec.Struct, frozen=True):
    """A forecast of a row of a group of which others are known, in logarithms of measured over forecast."""

    group: int
    figure: str
    before: float
    after: float
    deviation: float  # by the posterior of the causes
    # Ends of the 90% intervals that the command states, without and with the known rows.
    ends_before: tuple[float, float]
    ends: tuple[float, float]

    @property
    def is_inside_before(self) -> bool:
        """Whether the interval that the command states without known rows contains the measurement."""
        return self.ends_before[0] <= self.before <= self.ends_before[1]

    @property
    def width(self) -> float:
        """Width of the interval with the known rows over that without them, in logarithms."""
        return (self.ends[1] - self.ends[0]) / (self.ends_before[1] - self.ends_before[0])

    @property
    def is_inside(self) -> bool:
        """Whether the interval that the command states with the known rows contains the measurement."""
        return self.ends[0] <= self.after <= self.ends[1]


def forecast_groups(rows: Sequence[Grouped], prior: KindPrior, number_known: int, seed: int) -> list[GroupForecast]:
    """Return the forecasts of all rows of groups but those that are known, which are drawn several times."""
    generator = np.random.default_rng(seed)
    points: list[GroupForecast] = []
    for number, group_rows in enumerate(by_group(rows).values()):
        situations = list(dict.fromkeys(row.situation for row in group_rows))
        if len(situations) <= number_known:
            continue
        for _ in range(DRAWS):
            drawn = generator.choice(len(situations), number_known, replace=False)
            chosen = {situations[index] for index in drawn}
            posterior = Posterior(
                tuple(row for row in group_rows if row.situation in chosen and is_evidence(row)), prior
            )
            unknown = [row for row in group_rows if row.situation not in chosen]
            points += [_forecast(row, posterior, seed * GROUPS + number) for row in unknown]
    return points


def is_evidence(row: Observation) -> bool:
    """Return whether `calibrate` learns from a row; others are forecast all the same."""
    return row.figure != FIRST_TOKEN or not has_waited(row.measured, row.forecast)


def forecast_from_other_devices(
    groups: Sequence[tuple[str, ...]], rows: Sequence[Grouped], prior: KindPrior, seed: int
) -> list[GroupForecast]:
    """Return the forecasts of the rows of some groups by those of the same network and engine on other devices."""
    everything = by_group(rows)
    points: list[GroupForecast] = []
    for number, group in enumerate(groups):
        group_rows = everything[group]
        of_other_devices: list[Observation] = []
        for others in everything.values():
            if _is_same_elsewhere(others[0], group_rows[0]):
                chosen = np.unique(np.linspace(0, len(others) - 1, MOST_OF_OTHERS).astype(int))
                of_other_devices += [others[int(index)] for index in chosen]
        if of_other_devices:
            posterior = Posterior(tuple(filter(is_evidence, of_other_devices)), prior)
            points += [_forecast(row, posterior, seed * GROUPS + number) for row in group_rows]
    return points


def _is_same_elsewhere(one: Observation, other: Observation) -> bool:
    """Return whether two rows are of the same source, engine and network on different devices."""
    same = all(one.traits.get(name) == other.traits.get(name) for name in ("source", "engine", "network", "link"))
    return same and one.traits["device"] != other.traits["device"]


def _forecast(row: Observation, posterior: Posterior, group: int) -> GroupForecast:
    noise = posterior.prior.noise[row.figure]
    log_time, after, before = posterior.factors(row.traits).log_time(row.shares, noise)
    left_out = LeftOut(row, row.log_ratio - log_time, after**0.5, before**0.5)
    return GroupForecast(
        group, row.figure, row.log_ratio, left_out.error, left_out.deviation, left_out.ends_before, left_out.ends
    )

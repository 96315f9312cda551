"""Forecasts of the rows of groups of which some measurements are known."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np

from paleo_lite.calibration.evidence import KindPrior, Posterior

from .groups import Grouped, by_group

KNOWN = (1, 2, 4)
"""Measurements of a group that are known."""

DRAWS = 3
"""Times that the known measurements of a group are drawn."""


class GroupForecast(msgspec.Struct, frozen=True):
    """A forecast of a row of a group of which others are known, in logarithms of measured over forecast."""

    group: int
    figure: str
    before: float
    after: float
    deviation_before: float
    deviation: float


def forecast_groups(rows: Sequence[Grouped], prior: KindPrior, known: int, seed: int) -> list[GroupForecast]:
    """Return the forecasts of all rows of groups but those that are known, which are drawn several times."""
    generator = np.random.default_rng(seed)
    points = []
    for number, own in enumerate(by_group(rows).values()):
        situations = list(dict.fromkeys(row.situation for row in own))
        if len(situations) <= known:
            continue
        for _ in range(DRAWS):
            drawn = generator.choice(len(situations), known, replace=False)
            chosen = {situations[index] for index in drawn}
            posterior = Posterior(tuple(row for row in own if row.situation in chosen), prior)
            for row in own:
                if row.situation in chosen:
                    continue
                log_time, after, before = posterior.factors(row.traits).log_time(row.shares, prior.noise[row.figure])
                points.append(
                    GroupForecast(
                        seed * 10_000 + number,
                        row.figure,
                        row.log_ratio,
                        row.log_ratio - log_time,
                        before**0.5,
                        after**0.5,
                    )
                )
    return points

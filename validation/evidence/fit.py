"""Prior of the causes: the deviations at which published groups are most likely.

The marginal likelihood of the logarithms of measured over forecast, linear in the logarithms of the factors, is
maximised over all deviations, with a weak prior around `TYPICAL` that keeps those that nothing informs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
from scipy.optimize import minimize

from paleo_lite.calibration.posterior import KindPrior, Observation
from paleo_lite.timing.intervals import Z_90

from .forecasts import KNOWN, forecast_groups, is_evidence
from .groups import Grouped, by_group, thinned

TYPICAL, SPREAD = 0.08, 1.0
"""Median of the deviations before any measurement, and deviation of their logarithms."""

FARTHEST = 1.2
"""Logarithm of measured over forecast beyond which a row counts no more: such rows are mistakes."""

COVERED = 0.9
"""Share of the rows that intervals cover."""

FACTORS = tuple(1.05**power for power in range(30))
"""Factors of the noise that are tried until they do."""

LIMITS = (np.log(0.0025), np.log(1.35))
ITERATIONS = 30

LEVELS = {
    "server": {
        "source": ["source", "engine"],
        "network": ["source", "engine", "network", "format"],
        "device": ["source", "engine", "device", "format"],
        "deployment": ["source", "engine", "device", "format", "network", "division", "version"],
    },
    "local": {
        "source": ["source", "engine"],
        "device": ["source", "engine", "device"],
        "experts": ["source", "engine", "device", "experts"],
        "format": ["source", "engine", "device", "format"],
        "network": ["source", "engine", "device", "format", "network"],
    },
    "train": {
        "source": ["source", "engine"],
        "device": ["source", "engine", "device"],
        "network": ["source", "engine", "device", "format", "network"],
    },
    "picture": {
        "device": ["source", "engine", "device"],
        "network": ["source", "engine", "device", "format", "network"],
    },
    "power": {
        "device": ["source", "device"],
        "network": ["source", "device", "network"],
    },
    "link": {
        "device": ["source", "link", "device"],
        "devices": ["source", "link", "device", "operation", "devices"],
    },
}
"""What rows of a kind of question share at each level."""


def fit_prior(kind: str, grouped: Sequence[Grouped]) -> KindPrior:
    """Return the prior of a kind of question at which the rows of some groups are most likely."""
    levels, rows = LEVELS[kind], list(filter(is_evidence, thinned(grouped)))
    causes = list(dict.fromkeys(cause for row in rows for cause in row.shares))
    figures = list(dict.fromkeys(row.figure for row in rows))
    model = _Likelihood(rows, causes, figures, levels)
    start = np.full(len(causes) * len(levels) + len(figures), np.log(TYPICAL))
    solution = minimize(
        model.negative_log, start, jac=True, method="L-BFGS-B", bounds=[LIMITS] * len(start),
        options={"maxiter": ITERATIONS},
    )  # fmt: skip
    deviations = [round(float(value), 4) for value in np.exp(solution.x)]
    by_cause = np.reshape(deviations[: len(causes) * len(levels)], (len(causes), len(levels))).tolist()
    prior = KindPrior(
        {level: list(names) for level, names in levels.items()},
        {cause: dict(zip(levels, values)) for cause, values in zip(causes, by_cause)},
        dict(zip(figures, deviations[len(causes) * len(levels) :])),
        len(by_group(grouped)),
        len(rows),
    )
    return with_covering_noise(prior, grouped)


def with_covering_noise(prior: KindPrior, rows: Sequence[Grouped]) -> KindPrior:
    """Return a prior whose intervals cover nine of ten rows of groups of which one, two and four others are known.

    Errors have heavier tails than a normal distribution: some rows are of other versions and settings than they say.
    """
    points = [point for number_known in KNOWN for point in forecast_groups(rows, prior, number_known, seed=0)]
    noise = {}
    for figure, deviation in prior.noise.items():
        of_figure = [point for point in points if point.figure == figure]
        errors = np.abs([point.after for point in of_figure])
        explained = np.array([point.deviation**2 for point in of_figure]) - deviation**2
        factors = (factor for factor in FACTORS if _covers(errors, explained + (factor * deviation) ** 2))
        noise[figure] = round(deviation * next(factors, FACTORS[-1]), 4)
    return msgspec.structs.replace(prior, noise=noise)


def _covers(errors: Any, variances: Any) -> bool:
    return bool(np.mean(errors <= Z_90 * np.sqrt(variances)) >= COVERED)


class _Likelihood:
    """Likelihood of rows as a function of the logarithms of all deviations."""

    def __init__(
        self, rows: Sequence[Observation], causes: list[str], figures: list[str], levels: dict[str, list[str]]
    ) -> None:
        self.ratios = np.clip([row.log_ratio for row in rows], -FARTHEST, FARTHEST)
        self.figures = np.array([figures.index(row.figure) for row in rows])
        self.figure_count = len(figures)
        same = [_same([tuple(row.traits.get(name, "") for name in names) for row in rows]) for names in levels.values()]
        self.effects = []
        for cause in causes:
            shares = np.array([row.shares.get(cause, 0.0) for row in rows])
            self.effects += [np.outer(shares, shares) * matrix for matrix in same]

    def negative_log(self, logs: Any) -> tuple[float, Any]:
        """Return the negative logarithm of the likelihood, and its gradient."""
        variances = np.exp(2 * logs)
        noise = variances[len(self.effects) :]
        covariance = np.diag(noise[self.figures])
        for variance, effect in zip(variances, self.effects):
            covariance += variance * effect
        inverse = np.linalg.inv(covariance)
        weighted = inverse @ self.ratios
        value = 0.5 * float(self.ratios @ weighted) + 0.5 * float(np.linalg.slogdet(covariance)[1])
        slope = 0.5 * (inverse - np.outer(weighted, weighted))
        gradient = [2 * variance * float((slope * effect).sum()) for variance, effect in zip(variances, self.effects)]
        diagonal = np.diag(slope)
        gradient += [2 * noise[index] * diagonal[self.figures == index].sum() for index in range(self.figure_count)]
        distance = (logs - np.log(TYPICAL)) / SPREAD
        return value + 0.5 * float(distance @ distance), np.array(gradient) + distance / SPREAD


def _same(keys: Sequence[tuple[str, ...]]) -> Any:
    """Return the matrix that is 1 where two rows have the same key."""
    numbers: dict[tuple[str, ...], int] = {}
    key_numbers = np.array([numbers.setdefault(key, len(numbers)) for key in keys])
    return (key_numbers[:, np.newaxis] == key_numbers).astype(np.float64)

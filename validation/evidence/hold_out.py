"""What one, two and four measurements of a group teach about its others, with the group held out of the prior's fit."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np

from .fit import fit_prior
from .forecasts import ANOTHER_DEVICE, KNOWN, GroupForecast, forecast_from_other_devices, forecast_groups
from .groups import Grouped, by_group

FOLDS = 5
"""Parts of the groups that are left out of the fit of the prior, one at a time."""

LARGE_ERROR = 0.10
"""Mean error of a group above which evidence has something to correct."""


class EvidenceErrors(msgspec.Struct, frozen=True):
    """Errors of a figure in groups of which some measurements are known.

    Attributes
    ----------
    kind, figure : str
        Kind of question, and figure.
    known : int
        Measurements of the group that are known; 0 if those of the same network on other devices are.
    groups, points : int
        Groups, and forecasts.
    before, after : float
        Mean absolute relative error without and with them.
    large_groups : int
        Groups that are more than 10% off in the mean before.
    large_before, large_after : float
        Mean absolute relative error in these.
    large_median_before, large_median_after : float
        Its median.
    coverage_before_90, coverage_90 : float
        Share of the measurements inside the 90% intervals that commands state, without and with known ones. Of
        collectives no command states one, and it is that of the prior.
    width : float
        Median ratio of the width of that interval, in logarithms, to that before.
    """

    kind: str
    figure: str
    known: int
    groups: int
    points: int
    before: float
    after: float
    large_groups: int
    large_before: float
    large_after: float
    large_median_before: float
    large_median_after: float
    coverage_before_90: float
    coverage_90: float
    width: float


def validate_evidence(kind: str, rows: Sequence[Grouped]) -> list[EvidenceErrors]:
    """Return the errors of groups of a kind of question, by figure and by how many measurements are known."""
    groups = list(by_group(rows))
    points: dict[int, list[GroupForecast]] = {number_known: [] for number_known in (*KNOWN, ANOTHER_DEVICE)}
    for fold in range(FOLDS):
        left_out = set(groups[fold::FOLDS])
        others = [grouped for grouped in rows if grouped.group not in left_out]
        prior = fit_prior(kind, others)
        for number_known in KNOWN:
            points[number_known] += forecast_groups(
                [grouped for grouped in rows if grouped.group in left_out], prior, number_known, fold
            )
        points[ANOTHER_DEVICE] += forecast_from_other_devices(groups[fold::FOLDS], rows, prior, fold)
    figures = list(dict.fromkeys(grouped.row.figure for grouped in rows))
    return [
        _errors(kind, figure, number_known, of_figure)
        for figure in figures
        for number_known, forecasts in points.items()
        if (of_figure := [point for point in forecasts if point.figure == figure])
    ]


def _errors(kind: str, figure: str, number_known: int, points: Sequence[GroupForecast]) -> EvidenceErrors:
    before, after = (np.abs(np.expm1([-getattr(point, name) for point in points])) for name in ("before", "after"))
    numbers = np.array([point.group for point in points])
    large = [number for number in np.unique(numbers) if before[numbers == number].mean() > LARGE_ERROR]
    is_large = np.isin(numbers, large)

    def mean(values: np.ndarray) -> float:
        return float(values.mean()) if len(values) else 0.0

    def median(values: np.ndarray) -> float:
        return float(np.median(values)) if len(values) else 0.0

    return EvidenceErrors(
        kind=kind,
        figure=figure,
        known=number_known,
        groups=len(np.unique(numbers)),
        points=len(points),
        before=mean(before),
        after=mean(after),
        large_groups=len(large),
        large_before=mean(before[is_large]),
        large_after=mean(after[is_large]),
        large_median_before=median(before[is_large]),
        large_median_after=median(after[is_large]),
        coverage_before_90=float(np.mean([point.is_inside_before for point in points])),
        coverage_90=float(np.mean([point.is_inside for point in points])),
        width=float(np.median([point.width for point in points])),
    )

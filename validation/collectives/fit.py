"""Fit of the model of `LinkRate` to published collectives.

The fit uses a robust loss (soft L1 on the logarithms of the times) and weak priors, so that the latency per step is
determined even if a platform was measured with a single number of workers.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from paleo_lite.distributed.link_calibrations import OPERATIONS
from paleo_lite.distributed.links import LinkRate, link_time_s
from paleo_lite.errors import CalibrationFailed
from paleo_lite.extras import require
from paleo_lite.timing.intervals import QUANTILES

from .published import MeasuredExchange

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
    Choice = NDArray[np.bool_]

# Medians and deviations of the logarithms.
_PRIOR = {
    "start_s": (8e-6, 1.5),
    "latency_s": (1.5e-6, 1.5),
    "ramp_s": (3e-6, 2.0),
    "switch_s": (1e-5, 1.5),
    "small_excess": (1.0, 1.0),  # relative extra time per byte in a small message: 1 / small_share - 1
    "ppp": (0.5, 2.0),
}
_NOISE = 0.05
"""Relative scatter below which residuals are squared by the loss."""

SIZE_FOLDS = 7
"""Number of folds of message sizes: every seventh size in rising order, so that neighbouring sizes are not held out."""

FEWEST = 10
"""Fewest exchanges of a platform and operation that are fitted and held out."""


def operation_cost(operation: str, workers: Floats, message_bytes: Floats) -> tuple[Floats, Floats]:
    """Return the number of steps and the sent bytes per device of an operation with the ring algorithm."""
    times, divided = OPERATIONS[operation]
    if not divided:
        return np.ones_like(workers), message_bytes
    return times * (workers - 1), times * (workers - 1) / workers * message_bytes


def _columns(exchanges: Sequence[MeasuredExchange]) -> tuple[Floats, Floats, Floats]:
    """Return workers, bytes and seconds of the exchanges, each of shape (exchanges,)."""
    table = np.array([(each.workers, each.message_bytes, each.time_s) for each in exchanges], dtype=np.float64)
    return table[:, 0], table[:, 1], table[:, 2]


def seconds_of(exchanges: Sequence[MeasuredExchange]) -> Floats:
    """Return the measured seconds of the exchanges."""
    return _columns(exchanges)[2]


def predict(link: LinkRate, exchanges: Sequence[MeasuredExchange]) -> Floats:
    """Return the predicted seconds of exchanges of one operation."""
    workers, message_bytes, _ = _columns(exchanges)
    cost = operation_cost(exchanges[0].operation, workers, message_bytes)
    return np.asarray(link.time_s(cost, workers), dtype=np.float64)


def fit_link(exchanges: Sequence[MeasuredExchange], name: str, bandwidth_bytes_per_s: float) -> LinkRate:
    """Fit latency, start, ramp and the PPP by number of workers to exchanges of one operation.

    Raises
    ------
    CalibrationFailed
        If there are no exchanges.
    """
    if not exchanges:
        raise CalibrationFailed(f"{name}: no exchange was measured")
    optimize = require("scipy.optimize", "calibrating", "calibrate")
    workers, message_bytes, measured = _columns(exchanges)
    counts = sorted(set(workers.tolist()))
    cost = operation_cost(exchanges[0].operation, workers, message_bytes)
    names = [*_PRIOR][:-1] + ["ppp"] * len(counts)
    middle = np.log([_PRIOR[each][0] for each in names])
    spread = np.array([_PRIOR[each][1] for each in names])

    ppp_index = len(_PRIOR) - 1 + np.searchsorted(counts, workers)

    def link_of(theta: Floats) -> LinkRate:
        start, latency, ramp, switch, excess, *shares = np.exp(theta).tolist()
        at = tuple((int(count), share) for count, share in zip(counts, shares))
        small = 1 / (1 + excess)
        return LinkRate(name, bandwidth_bytes_per_s, latency, shares[-1], "fit", start, ramp, switch, small, ppp_at=at)

    def residuals(theta: Floats) -> Floats:
        """Return the residuals for any number of parameter sets, with the parameters along the last axis."""
        start, latency, ramp, switch, excess, *_ = np.moveaxis(np.exp(theta), -1, 0)[..., np.newaxis]
        wire = cost[1] / (bandwidth_bytes_per_s * np.exp(theta[..., ppp_index]))
        time_s = link_time_s(wire, cost[0], start, latency, ramp, switch, 1 / (1 + excess))
        errors = (np.log(time_s) - np.log(measured)) / _NOISE
        soft = np.sign(errors) * np.sqrt(2 * (np.sqrt(1 + errors**2) - 1))
        return np.concatenate([soft, (theta - middle) / spread], axis=-1)

    def slopes(theta: Floats) -> Floats:
        """Return the Jacobian by central differences, which straddle the kink at small messages."""
        steps = np.diag(np.finfo(float).eps ** (1 / 3) * np.maximum(1, np.abs(theta)))
        low, high = theta - steps, theta + steps
        jacobian: Floats = ((residuals(high) - residuals(low)) / np.diag(high - low)[:, np.newaxis]).T
        return jacobian

    # Start from the bandwidth that the largest messages achieve, because the prior's median may be far from it.
    achieved = [np.max((cost[1] / measured)[workers == count]) / bandwidth_bytes_per_s for count in counts]
    start = np.concatenate([middle[: -len(counts)], np.log(achieved)])
    solution = optimize.least_squares(
        residuals, start, method="trf", jac=slopes, max_nfev=500, xtol=1e-14, ftol=1e-14, gtol=1e-12
    )
    return link_of(solution.x)


def size_folds(exchanges: Sequence[MeasuredExchange]) -> list[Choice]:
    """Return masks of the exchanges that are held out together: every seventh message size."""
    sizes = np.array([each.message_bytes for each in exchanges])
    rank = np.searchsorted(np.unique(sizes), sizes)
    return [rank % SIZE_FOLDS == fold for fold in range(min(SIZE_FOLDS, len(np.unique(sizes))))]


def worker_folds(exchanges: Sequence[MeasuredExchange]) -> list[Choice]:
    """Return masks of the exchanges with each number of workers; an empty list if there is only one number."""
    workers = np.array([each.workers for each in exchanges])
    return [workers == count for count in np.unique(workers)] if len(np.unique(workers)) > 1 else []


def predict_held_out(
    exchanges: Sequence[MeasuredExchange], bandwidth_bytes_per_s: float, folds: Sequence[Choice]
) -> tuple[Floats, Floats]:
    """Return the seconds of each exchange predicted by a fit to the other folds, and the scatter of that fit."""
    predicted, scatter = np.zeros(len(exchanges)), np.zeros(len(exchanges))
    for fold in folds:
        rest = [each for each, out in zip(exchanges, fold) if not out]
        link = fit_link(rest, "held out", bandwidth_bytes_per_s)
        predicted[fold] = predict(link, [each for each, out in zip(exchanges, fold) if out])
        scatter[fold] = scatter_of(predict(link, rest), seconds_of(rest))
    return predicted, scatter


def scatter_of(predicted: Floats, measured: Floats) -> float:
    """Return the standard deviation whose 90% interval contains 90% of the residuals, which have heavy tails."""
    return float(np.quantile(np.abs(np.log(predicted / measured)), 0.9)) / QUANTILES[0.9]


def by_operation(exchanges: Sequence[MeasuredExchange]) -> dict[tuple[str, str], list[MeasuredExchange]]:
    """Group exchanges by platform and operation; omit groups with fewer than `FEWEST` exchanges."""
    groups: dict[tuple[str, str], list[MeasuredExchange]] = defaultdict(list)
    for each in exchanges:
        groups[each.platform, each.operation].append(each)
    return {key: group for key, group in sorted(groups.items()) if len(group) >= FEWEST}

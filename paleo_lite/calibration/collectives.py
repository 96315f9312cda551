"""``python -m paleo_lite.calibration.collectives DATA FOLDER``: fit every link that published collectives cover.

What is fitted is the model of `LinkRate`, robustly (soft L1 on the logarithms of the times) and with weak priors, so
that a platform measured with one number of workers still gets a latency per step. The same files give the same bytes.
"""

from __future__ import annotations

import hashlib
import sys
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from ..errors import CalibrationFailed
from ..extras import need
from ..files import write_aside
from ..hardware import read_links
from ..scaling.collectives import LinkRate
from ..scaling.link_calibration import FORMAT, OPERATIONS, LinkCalibration, OperationFit
from ..timing.terms import QUANTILES
from .exchanges import FILES, PLATFORMS, Exchange, published_exchanges

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
    Choice = NDArray[np.bool_]

# Medians and deviations of the logarithms: microseconds to start a kernel and to cross a link, most of the bandwidth.
_PRIOR = {
    "start_s": (8e-6, 1.5),
    "latency_s": (1.5e-6, 1.5),
    "ramp_s": (3e-6, 2.0),
    "switch_s": (1e-5, 1.5),
    "small_excess": (1.0, 1.0),  # how much longer a byte takes in a small message: 1 / small_share - 1
    "ppp": (0.5, 2.0),
}
_NOISE = 0.05
"""Relative scatter within which residuals count squared."""
SIZE_FOLDS = 7
"""Message sizes, in rising order, are held out every seventh at a time: each lies between sizes that are not."""
FEWEST = 10


def operation_cost(operation: str, workers: Floats, message_bytes: Floats) -> tuple[Floats, Floats]:
    """Steps and sent bytes of a measured operation, over a ring."""
    times, divided = OPERATIONS[operation]
    if not divided:
        return np.ones_like(workers), message_bytes
    return times * (workers - 1), times * (workers - 1) / workers * message_bytes


def _columns(exchanges: Sequence[Exchange]) -> tuple[Floats, Floats, Floats]:
    """Workers, bytes and seconds."""
    table = np.array([(each.workers, each.message_bytes, each.time_s) for each in exchanges], dtype=np.float64)
    return table[:, 0], table[:, 1], table[:, 2]


def predict(link: LinkRate, exchanges: Sequence[Exchange]) -> Floats:
    """Seconds that a link's model gives for measured exchanges of one operation."""
    workers, message_bytes, _ = _columns(exchanges)
    cost = operation_cost(exchanges[0].operation, workers, message_bytes)
    return np.asarray(link.time_s(cost, workers), dtype=np.float64)


def fit_link(exchanges: Sequence[Exchange], name: str, bandwidth_bytes_per_s: float) -> LinkRate:
    """The link with latency, start, ramp and PPP by number of workers fitted to exchanges of one operation.

    Raises
    ------
    CalibrationFailed
        If there is nothing to fit.
    """
    if not exchanges:
        raise CalibrationFailed(f"{name}: no exchange was measured")
    optimize = need("scipy.optimize", "calibrating", "calibrate")
    workers, message_bytes, measured = _columns(exchanges)
    counts = sorted(set(workers.tolist()))
    cost = operation_cost(exchanges[0].operation, workers, message_bytes)
    names = [*_PRIOR][:-1] + ["ppp"] * len(counts)
    middle = np.log([_PRIOR[each][0] for each in names])
    spread = np.array([_PRIOR[each][1] for each in names])

    def link_of(theta: Floats) -> LinkRate:
        start, latency, ramp, switch, excess, *shares = np.exp(theta).tolist()
        at = tuple((int(count), share) for count, share in zip(counts, shares))
        small = 1 / (1 + excess)
        return LinkRate(name, bandwidth_bytes_per_s, latency, shares[-1], "fit", start, ramp, switch, small, ppp_at=at)

    def residuals(theta: Floats) -> Floats:
        away = (np.log(link_of(theta).time_s(cost, workers)) - np.log(measured)) / _NOISE
        soft = np.sign(away) * np.sqrt(2 * (np.sqrt(1 + away**2) - 1))
        return np.concatenate([soft, (theta - middle) / spread])

    # From the shares that the largest messages reach, as the prior's middle may be decades away.
    reached = [np.max((cost[1] / measured)[workers == count]) / bandwidth_bytes_per_s for count in counts]
    start = np.concatenate([middle[: -len(counts)], np.log(reached)])
    found = optimize.least_squares(
        residuals, start, method="trf", jac="3-point", max_nfev=500, xtol=1e-14, ftol=1e-14, gtol=1e-12
    )
    return link_of(found.x)


def size_folds(exchanges: Sequence[Exchange]) -> list[Choice]:
    """Which exchanges are held out at a time: every seventh message size."""
    sizes = np.array([each.message_bytes for each in exchanges])
    rank = np.searchsorted(np.unique(sizes), sizes)
    return [rank % SIZE_FOLDS == fold for fold in range(min(SIZE_FOLDS, len(np.unique(sizes))))]


def worker_folds(exchanges: Sequence[Exchange]) -> list[Choice]:
    """Which exchanges are held out at a time: all of one number of workers; empty where there is only one number."""
    workers = np.array([each.workers for each in exchanges])
    return [workers == count for count in np.unique(workers)] if len(np.unique(workers)) > 1 else []


def held_out(
    exchanges: Sequence[Exchange], bandwidth_bytes_per_s: float, folds: Sequence[Choice]
) -> tuple[Floats, Floats]:
    """Seconds of each exchange from a fit to the other folds, and the scatter which that fit had on its own."""
    predicted, scatter = np.zeros(len(exchanges)), np.zeros(len(exchanges))
    for fold in folds:
        rest = [each for each, out in zip(exchanges, fold) if not out]
        link = fit_link(rest, "held out", bandwidth_bytes_per_s)
        predicted[fold] = predict(link, [each for each, out in zip(exchanges, fold) if out])
        scatter[fold] = scatter_of(predict(link, rest), _columns(rest)[2])
    return predicted, scatter


def scatter_of(predicted: Floats, measured: Floats) -> float:
    """The deviation whose 90 % interval holds nine tenths of the residuals: their tails are longer than a normal's."""
    return float(np.quantile(np.abs(np.log(predicted / measured)), 0.9)) / QUANTILES[0.9]


def by_operation(exchanges: Sequence[Exchange]) -> dict[tuple[str, str], list[Exchange]]:
    """Exchanges by platform and operation, of those measured often enough to be fitted and held out."""
    groups: dict[tuple[str, str], list[Exchange]] = defaultdict(list)
    for each in exchanges:
        groups[each.platform, each.operation].append(each)
    return {key: group for key, group in sorted(groups.items()) if len(group) >= FEWEST}


def calibrate_operation(exchanges: Sequence[Exchange], bandwidth_bytes_per_s: float) -> OperationFit:
    """The fit of one platform's operation, with its held-out errors."""
    link = fit_link(exchanges, exchanges[0].platform, bandwidth_bytes_per_s)
    measured = _columns(exchanges)[2]
    errors: list[float | None] = []
    scatter = 0.0
    for folds in (size_folds(exchanges), worker_folds(exchanges)):
        if not folds:
            errors.append(None)
            continue
        predicted, _ = held_out(exchanges, bandwidth_bytes_per_s, folds)
        errors.append(round(float(np.mean(np.abs(predicted / measured - 1))), 3))
        scatter = scatter or scatter_of(predicted, measured)
    sizes = [each.message_bytes for each in exchanges]
    return OperationFit(
        start_s=_rounded(link.start_s),
        latency_s=_rounded(link.latency_s),
        ramp_s=_rounded(link.ramp_s),
        switch_s=_rounded(link.switch_s),
        small_share=_rounded(link.small_share),
        workers=[count for count, _ in link.ppp_at],
        ppp=[_rounded(share) for _, share in link.ppp_at],
        points=len(exchanges),
        smallest_bytes=min(sizes),
        largest_bytes=max(sizes),
        scatter=_rounded(scatter, 2),
        held_out_sizes=errors[0] or 0.0,
        held_out_workers=errors[1],
    )


def _rounded(value: float, digits: int = 3) -> float:
    """To as many digits as processors agree on, and more than the measurements know."""
    return float(f"{value:.{digits}g}")


def main() -> None:
    """Fit and write every platform."""
    if len(sys.argv) != 3:
        sys.exit("usage: python -m paleo_lite.calibration.collectives DATA FOLDER")
    data, folder = Path(sys.argv[1]) / "measured", Path(sys.argv[2])
    links = read_links().link
    operations: dict[str, dict[str, OperationFit]] = defaultdict(dict)
    groups = by_operation(published_exchanges(data).exchanges)
    for (name, operation), exchanges in groups.items():
        fit = calibrate_operation(exchanges, links[PLATFORMS[name].link].bandwidth_bytes_per_s)
        operations[name][operation] = fit
        print(f"{name} {operation}: {fit.points} measurements, held-out error {fit.held_out_sizes:.1%}", flush=True)
    inputs = [f"{file} sha256 {hashlib.sha256((data / file).read_bytes()).hexdigest()}" for file in FILES]
    for name, fits in operations.items():
        platform = PLATFORMS[name]
        calibration = LinkCalibration(
            format=FORMAT,
            link=platform.link,
            per_direction=links[platform.link].per_direction.value,
            platform=platform.what,
            software=platform.software,
            sources=[platform.source],
            operations=fits,
            inputs=inputs,
            stands_for_link=platform.stands_for_link,
        )
        text = b"# Fitted by paleo-lite; every parameter is explained in docs/topology.md.\n"
        write_aside(folder / f"{name}.toml", text + msgspec.toml.encode(calibration))


if __name__ == "__main__":
    main()

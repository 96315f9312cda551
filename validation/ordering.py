"""Shifts of expected parameters so that a device that is is_better in every rate is never predicted to be slower.

Expected parameters of a device follow noisy measurements of it and of similar devices. A device that throttled while it
was measured may therefore seem slower than a weaker one without measurements. The smallest shifts that restore the
order of the data sheets, weighted by the variance of each parameter, are an isotonic regression on a partial order
(Barlow et al., 1972), computed with Dykstra's projections (1983).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from paleo_lite.calibration.pool import FORMAT, Pool, order_key, pooled_model
from paleo_lite.calibration.prior import KEPLER, Evidence
from paleo_lite.errors import UnknownPrecision
from paleo_lite.files import write_atomically
from paleo_lite.machines import Device, Machine
from paleo_lite.timing.calibrated import CalibratedModel, Rates, rates_of
from paleo_lite.timing.parameters import NAMES

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

RateFunction = Callable[[Rates], float]

SUSTAINED = ("efficiency_gemm", "efficiency_attention")
"""Parameters that are relative to the clock that matrix products sustain; other efficiencies are relative to that of
convolutions."""

ORDERED: dict[str, tuple[RateFunction, ...]] = {
    **dict.fromkeys(
        (name for name in NAMES if name.startswith("efficiency") and name not in SUSTAINED),
        (
            lambda rates: rates.matrix_per_s * rates.convolution_fraction,
            lambda rates: rates.matrix_per_s * rates.convolution_fraction / rates.multiprocessors,
        ),
    ),
    **dict.fromkeys(
        SUSTAINED,
        (
            lambda rates: rates.matrix_per_s * rates.sustained_fraction,
            lambda rates: rates.matrix_per_s * rates.sustained_fraction / rates.multiprocessors,
        ),
    ),
    **dict.fromkeys((name for name in NAMES if name.startswith("share")), (lambda rates: rates.bandwidth_bytes_per_s,)),
}
"""Parameters that differ between devices, with the data-sheet rates that each is relative to: the rate of the whole
device, which applies to many output tiles, and that of a multiprocessor, which applies to few."""

TOLERANCE = 1e-6
"""The iteration stops when a round changes no logarithm by more than this."""

SMALLEST_SHIFT = 2e-5
"""Smaller shifts are dropped."""

MEASURED_WEIGHT = 10.0
"""Relative cost of shifting a measured device: devices without measurements are shifted first."""


def is_better(one: Rates, other: Rates) -> bool:
    """Return whether rates are at least as high as others in every respect, including rates per multiprocessor."""
    own, others = _compared_rates(one), _compared_rates(other)
    return all(own_per_s >= other_per_s for own_per_s, other_per_s in zip(own, others, strict=True))


def _compared_rates(rates: Rates) -> list[float]:
    """Return the rates that decide whether a device is better than another."""
    convolutions_per_s = rates.matrix_per_s * rates.convolution_fraction
    products_per_s = rates.matrix_per_s * rates.sustained_fraction
    return [
        convolutions_per_s,
        products_per_s,
        rates.vector_per_s,
        rates.bandwidth_bytes_per_s,
        convolutions_per_s / rates.multiprocessors,
        products_per_s / rates.multiprocessors,
    ]


def are_comparable(one: Device, other: Device) -> bool:
    """Return whether the rates of two data sheets are comparable: same vendor, and both or neither Kepler.

    Kepler fills 128 of a multiprocessor's 192 lanes with one instruction each (`prior.KEPLER_SHARE`).
    """
    return one.vendor == other.vendor and (one.architecture == KEPLER) == (other.architecture == KEPLER)


def shifts(
    devices: Iterable[Device], precision: str, pool: Pool, execution: str = "eager"
) -> dict[str, dict[str, float]]:
    """Return the shifts of the logarithms of parameters in a precision, by device and parameter.

    Parameters
    ----------
    devices : iterable of Device
        All devices to order.
    precision : str
    pool : Pool
        Its own shifts are ignored.
    execution : str
        Execution that the shifts are for: those of inference engines differ from those of all others.
    """
    bare, measured = Pool(pool.format, pool.parameters, pool.fits), {one.id for one in pool.fits}
    known: list[tuple[Device, Rates, CalibratedModel]] = []
    for device in devices:
        try:
            rates, model = rates_of(Machine(device), precision), pooled_model(device, precision, execution, pool=bare)
        except UnknownPrecision:
            continue
        if isinstance(model, CalibratedModel):
            known.append((device, rates, model))
    pairs = [
        (first, second)
        for first, (one, own, _) in enumerate(known)
        for second, (other, theirs, _) in enumerate(known)
        if first != second and are_comparable(one, other) and is_better(own, theirs)
    ]
    shifts_by_device: dict[str, dict[str, float]] = {}
    for name, rate_functions in ORDERED.items():
        index = NAMES.index(name)
        theta = np.array([model.theta[index] for _, _, model in known])
        variance = np.array([model.covariance[index, index] for _, _, model in known])
        variance = variance / np.where([device.id in measured for device, _, _ in known], MEASURED_WEIGHT, 1.0)
        # The share of the better device may be lower by as much as its rates are higher.
        logarithms = np.log([[rate_of(rates) for rate_of in rate_functions] for _, rates, _ in known])
        slack = [float((logarithms[first] - logarithms[second]).min()) for first, second in pairs]
        for (device, _, _), shift in zip(known, isotonic(theta, variance, pairs, slack) - theta):
            if abs(shift) > SMALLEST_SHIFT:
                key = order_key(device, precision, execution)
                shifts_by_device.setdefault(key, {})[name] = round(float(shift), 6)
    return shifts_by_device


def isotonic(
    values: Floats, variance: Floats, pairs: Sequence[tuple[int, int]], slack: Sequence[float] | None = None
) -> Floats:
    """Return the nearest values, weighted by variance, for which the first of each pair is not allowed the second.

    Parameters
    ----------
    values, variance : ndarray, shape (n,)
    pairs : sequence of (int, int)
        Indices of the greater and the smaller value.
    slack : sequence of float, optional
        Amount by which the first of each pair may be allowed the second (default 0).

    Returns
    -------
    ndarray, shape (n,)
    """
    slack = slack or [0.0] * len(pairs)
    result: Floats = values.copy()
    correction = np.zeros(len(pairs))
    while True:
        before = result.copy()
        for number, ((first, second), allowed) in enumerate(zip(pairs, slack)):
            # Dykstra: undo this pair's last correction, then project onto its half-space again.
            weight = variance[first] + variance[second]
            violation = result[second] - allowed - result[first] + correction[number] * weight
            step = max(violation / weight, 0.0)
            result[first] += (step - correction[number]) * variance[first]
            result[second] -= (step - correction[number]) * variance[second]
            correction[number] = step
        if np.abs(result - before).max(initial=0.0) < TOLERANCE:
            return result


# The file of the pool -------------------------------------------------------------------------------------------------


def make_pool(evidence: Iterable[Evidence]) -> Pool:
    """Return a pool of evidence sorted by device, precision and source, without shifts."""
    in_order = sorted(evidence, key=lambda row: (row.id, row.measured_in, row.source, row.execution))
    return Pool(FORMAT, list(NAMES), [_rounded(row) for row in in_order])


def write_pool(pool: Pool, path: Path) -> None:
    """Write the pool to a file atomically."""
    head = msgspec.json.encode(pool.parameters).decode()
    # One line per fit keeps diffs readable.
    lines = ",\n".join(msgspec.json.encode(fit).decode() for fit in pool.fits)
    order = ",\n".join(f'"{name}":{msgspec.json.encode(shifts).decode()}' for name, shifts in pool.order.items())
    text = f'{{"format":{pool.format},"parameters":{head},"fits":[\n{lines}\n],"order":{{\n{order}\n}}}}\n'
    write_atomically(path, text.encode())


def _rounded(evidence: Evidence) -> Evidence:
    """Return the evidence rounded to the digits that the file needs."""
    return msgspec.structs.replace(
        evidence,
        theta=tuple([float(f"{value:.6g}") for value in evidence.theta]),
        deviation=tuple([None if value is None else float(f"{value:.4g}") for value in evidence.deviation]),
    )

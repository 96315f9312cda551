"""A device that is better in every figure is never expected to be slower: small shifts of what is expected of devices.

What is expected of a device follows what was measured of it and of those like it, each with its error, so that a device
that throttled in somebody's server may seem slower than a lesser one that nobody measured. The least shifts that put
this right, each weighed by how little is known of its parameter, are an isotonic regression on the order of the data
sheets (Barlow et al., 1972); Dykstra's projections find them (1983).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from paleo_lite.calibration.choose import FORMAT, Pool, order_key, pooled_model
from paleo_lite.calibration.prior import KEPLER, Evidence
from paleo_lite.errors import UnknownPrecision
from paleo_lite.files import write_atomically
from paleo_lite.machines import Device, Machine
from paleo_lite.timing.calibrated import NAMES, CalibratedModel, Rates, rates_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

Figure = Callable[[Rates], float]

SUSTAINED = ("efficiency_gemm", "efficiency_attention")
"""Parameters that are relative to the sustained clock."""

ORDERED: dict[str, tuple[Figure, ...]] = {
    **dict.fromkeys(
        (name for name in NAMES if name.startswith("efficiency") and name not in SUSTAINED),
        (lambda rates: rates.matrix_per_s, lambda rates: rates.matrix_per_s / rates.multiprocessors),
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
"""Parameters that tell devices apart, with the rates of the data sheet that each is a share of: with many tiles of
output the whole device's, with few a multiprocessor's."""

ENOUGH = 1e-6
"""Shifts are found when a round changes no logarithm by more."""

LEAST = 2e-5
"""Smaller shifts are none."""

SURER = 10.0
"""How much more a shift costs of a device that was measured: one that nobody measured gives way first."""


def better(one: Rates, other: Rates) -> bool:
    """Whether rates are at least as good as others in every figure, those of a single multiprocessor included."""
    own_sustained_per_s = one.matrix_per_s * one.sustained_fraction
    other_sustained_per_s = other.matrix_per_s * other.sustained_fraction
    return (
        one.matrix_per_s >= other.matrix_per_s
        and own_sustained_per_s >= other_sustained_per_s
        and one.vector_per_s >= other.vector_per_s
        and one.bandwidth_bytes_per_s >= other.bandwidth_bytes_per_s
        and one.matrix_per_s / one.multiprocessors >= other.matrix_per_s / other.multiprocessors
        and own_sustained_per_s / one.multiprocessors >= other_sustained_per_s / other.multiprocessors
    )


def comparable(one: Device, other: Device) -> bool:
    """Whether figures of two data sheets mean the same: of one vendor's libraries, and Kepler's among themselves.

    Kepler fills 128 of a multiprocessor's 192 lanes with one instruction each (`prior.KEPLER_SHARE`).
    """
    return one.vendor == other.vendor and (one.architecture == KEPLER) == (other.architecture == KEPLER)


def shifts(
    devices: Iterable[Device], precision: str, pool: Pool, execution: str = "eager"
) -> dict[str, dict[str, float]]:
    """What is to be added to the logarithms of devices' parameters in a precision, by device and parameter.

    Parameters
    ----------
    devices : iterable of Device
        All that are to be in order.
    pool : Pool
        Its own shifts are left out.
    execution : str
        The execution that the shifts are for: those of inference engines differ from those of all others.
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
        if first != second and comparable(one, other) and better(own, theirs)
    ]
    found: dict[str, dict[str, float]] = {}
    for name, figures in ORDERED.items():
        index = NAMES.index(name)
        theta = np.array([model.theta[index] for _, _, model in known])
        variance = np.array([model.covariance[index, index] for _, _, model in known])
        variance = variance / np.where([device.id in measured for device, _, _ in known], SURER, 1.0)
        # By as much as the better one's rates are higher, its share of them may be lower.
        logarithms = np.log([[figure(rates) for figure in figures] for _, rates, _ in known])
        slack = [float((logarithms[first] - logarithms[second]).min()) for first, second in pairs]
        for (device, _, _), shift in zip(known, isotonic(theta, variance, pairs, slack) - theta):
            if abs(shift) > LEAST:
                found.setdefault(order_key(device, precision, execution), {})[name] = round(float(shift), 6)
    return found


def isotonic(
    values: Floats, variance: Floats, pairs: Sequence[tuple[int, int]], slack: Sequence[float] | None = None
) -> Floats:
    """The values nearest to these, by their variances, of which the first of each pair is not below the second.

    Parameters
    ----------
    values, variance : ndarray, shape (n,)
    pairs : sequence of (int, int)
    slack : sequence of float, optional
        By how much the first of each pair may be below the second; not at all without it.
    """
    slack = slack or [0.0] * len(pairs)
    found: Floats = values.copy()
    correction = np.zeros(len(pairs))
    while True:
        before = found.copy()
        for number, ((first, second), below) in enumerate(zip(pairs, slack)):
            # Dykstra: undo this pair's last correction, then project onto its half-space again.
            weight = variance[first] + variance[second]
            lacking = found[second] - below - found[first] + correction[number] * weight
            step = max(lacking / weight, 0.0)
            found[first] += (step - correction[number]) * variance[first]
            found[second] -= (step - correction[number]) * variance[second]
            correction[number] = step
        if np.abs(found - before).max(initial=0.0) < ENOUGH:
            return found


# The file -------------------------------------------------------------------------------------------------------------


def make_pool(evidence: Iterable[Evidence]) -> Pool:
    """A pool, in the order of device, precision and source; of no device's order."""
    ordered = sorted(evidence, key=lambda one: (one.id, one.measured_in, one.source, one.execution))
    return Pool(FORMAT, list(NAMES), [_rounded(one) for one in ordered])


def write_pool(pool: Pool, path: Path) -> None:
    """Write the pool; the file appears whole or not at all."""
    head = msgspec.json.encode(pool.parameters).decode()
    lines = ",\n".join(msgspec.json.encode(other).decode() for other in pool.fits)  # a line per fit, for people's diffs
    order = ",\n".join(f'"{name}":{msgspec.json.encode(shifts).decode()}' for name, shifts in pool.order.items())
    text = f'{{"format":{pool.format},"parameters":{head},"fits":[\n{lines}\n],"order":{{\n{order}\n}}}}\n'
    write_atomically(path, text.encode())


def _rounded(one: Evidence) -> Evidence:
    """With as many digits as a file needs."""
    return msgspec.structs.replace(
        one,
        theta=tuple([float(f"{value:.6g}") for value in one.theta]),
        deviation=tuple([None if value is None else float(f"{value:.4g}") for value in one.deviation]),
    )

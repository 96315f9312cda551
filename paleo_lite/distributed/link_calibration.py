"""`LinkCalibration`: what measured collectives taught about a link, as shipped in ``calibrations/links/``."""

from __future__ import annotations

import math
from functools import cache
from pathlib import Path

import msgspec

from ..errors import BadFile
from ..files import read_typed, shipped
from ..units import parse_quantity
from .collectives import LinkRate

FORMAT = 1
OPERATIONS = {
    "all-reduce": (2, True),
    "reduce-scatter": (1, True),
    "all-gather": (1, True),
    "all-to-all": (1, True),
    "point-to-point": (1, False),
}
"""What is measured: how many times n - 1 steps and (n - 1) / n of the message, or a step and the whole of it."""

_BYTES_AT_MOST = 2**16


class OperationFit(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The fit of one collective operation; see `LinkRate` for the model.

    Attributes
    ----------
    workers : list of int
        Numbers of workers that were measured, in rising order.
    ppp : list of float
        The share of the link's bandwidth that each of them reaches.
    smallest_bytes, largest_bytes : int
        Of the messages measured.
    scatter : float
        Relative deviation of held-out measurements from the model: 90% lie within 2.015 times that.
    held_out_sizes : float
        Mean absolute relative error with message sizes held out.
    held_out_workers : float or None
        The same with each number of workers held out; None where only one was measured.
    """

    start_s: float
    latency_s: float
    ramp_s: float
    switch_s: float
    small_share: float
    workers: list[int]
    ppp: list[float]
    points: int
    smallest_bytes: int
    largest_bytes: int
    scatter: float
    held_out_sizes: float
    held_out_workers: float | None = None


class LinkCalibration(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One platform: devices, software, and the link that joins them.

    Attributes
    ----------
    link : str
        Id of the link in ``hardware/links.toml`` whose bandwidth the PPP refer to.
    per_direction : str
        That bandwidth when it was fitted.
    platform : str
        What was measured, in words.
    stands_for_link : bool
        Whether the link, asked for by its own name, is taken to do as well as this platform's.
    operations : dict of str to OperationFit
        By name of `OPERATIONS`.
    """

    format: int
    link: str
    per_direction: str
    platform: str
    software: str
    sources: list[str]
    operations: dict[str, OperationFit]
    inputs: list[str] = []
    stands_for_link: bool = False


def link_rate_of(name: str, calibration: LinkCalibration, operation: str = "all-reduce") -> LinkRate | None:
    """The link as this platform uses it; None where the operation was not measured."""
    fit = calibration.operations.get(operation)
    if fit is None:
        return None
    error = f"held-out error {fit.held_out_sizes:.0%}"
    return LinkRate(
        name=calibration.link,
        bandwidth_bytes_per_s=parse_quantity(calibration.per_direction, "B/s"),
        latency_s=fit.latency_s,
        ppp=fit.ppp[-1],
        label=f"calibration {name}: {calibration.software}, {fit.points} measurements, {error}",
        start_s=fit.start_s,
        ramp_s=fit.ramp_s,
        switch_s=fit.switch_s,
        small_share=fit.small_share,
        ppp_at=tuple(zip(fit.workers, fit.ppp)),
        scatter=fit.scatter,
    )


@cache
def shipped_link_calibrations() -> dict[str, LinkCalibration]:
    """The shipped calibrations of links by name."""
    folder = shipped("calibrations") / "links"
    return {path.stem: read_link_calibration(path) for path in sorted(folder.glob("*.toml"))}


def read_link_calibration(path: Path) -> LinkCalibration:
    """Read one.

    Raises
    ------
    BadFile
        If it is malformed, or a figure is not possible; the message names file and field.
    """
    calibration = read_typed(path, LinkCalibration, "calibration of a link", _BYTES_AT_MOST)
    if calibration.format != FORMAT:
        raise BadFile(f"{path}: format is {calibration.format}, this version of paleo-lite reads {FORMAT}")
    for name, fit in calibration.operations.items():
        if name not in OPERATIONS:
            raise BadFile(f"{path}: operations: {name!r} is not one of {', '.join(OPERATIONS)}")
        if not fit.workers or len(fit.workers) != len(fit.ppp) or sorted(set(fit.workers)) != fit.workers:
            raise BadFile(f"{path}: operations.{name}: workers must rise, each with a PPP")
        if fit.workers[0] < 2 or not all(0 < share < math.inf for share in (*fit.ppp, fit.small_share)):
            raise BadFile(f"{path}: operations.{name}: workers must be 2 or more, shares above 0")
        if not all(0 <= cost < math.inf for cost in (fit.start_s, fit.latency_s, fit.ramp_s, fit.switch_s)):
            raise BadFile(
                f"{path}: operations.{name}: start_s, latency_s, ramp_s and switch_s must be 0 or more seconds"
            )
    return calibration

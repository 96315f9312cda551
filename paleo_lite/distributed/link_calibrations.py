"""Calibrations of links: fits of collectives that were measured on a platform (``calibrations/links/``)."""

from __future__ import annotations

import math
from functools import cache
from pathlib import Path

import msgspec

from ..errors import BadFile
from ..files import read_typed, shipped_folder

FORMAT = 1

OPERATIONS = {
    "all-reduce": (2, True),
    "reduce-scatter": (1, True),
    "all-gather": (1, True),
    "all-to-all": (1, True),
    "point-to-point": (1, False),
}
"""Measured operations, as (factor, whether the message is divided): the cost is the factor times n - 1 steps and
(n - 1) / n of the message, or the factor times a single step with the complete message."""

FITTED_FIELDS = ("start_s", "latency_s", "ramp_s", "switch_s", "small_share", "scatter")
"""Fields of a fit that the rate of a link takes over."""

MOST_FITTED = 3600
"""Largest latency in seconds, and largest fitted share."""

LEAST_SHARE = 1e-9
"""Smallest share of a bandwidth, so that no time that follows is infinite."""

_MAX_BYTES = 2**16


class OperationFit(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Fit of one collective operation on a link.

    Attributes
    ----------
    start_s, latency_s, ramp_s, switch_s, small_share : float
        Parameters of the model, see `LinkRate`.
    workers : list of int
        Measured numbers of workers, in rising order.
    ppp : list of float
        Share of the link's bandwidth that each number of workers reaches.
    points : int
        Number of measurements.
    smallest_bytes, largest_bytes : int
        Range of the measured message sizes.
    scatter : float
        Relative scatter of held-out measurements around the model: 90% lie within 2.015 times this value.
    held_out_sizes : float
        Mean absolute relative error with message sizes held out.
    held_out_workers : float or None
        Mean absolute relative error with each number of workers held out; None if only one was measured.
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
    """Calibration of a link on one platform: devices, software, and the link between them.

    Attributes
    ----------
    format : int
        Version of the file format.
    link : str
        Id of the link in ``hardware/links.toml``; the PPP are relative to its bandwidth.
    per_direction : str
        That bandwidth at the time of the fit.
    platform, software : str
        Description of the measured platform.
    sources : list of str
        Sources of the measurements.
    operations : dict of str to OperationFit
        Fits by name of the operation, see `OPERATIONS`.
    inputs : list of str
        Files with the measurements, and their checksums.
    stands_for_link : bool
        Whether this calibration is used when the link is requested by its own name.
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


@cache
def shipped_link_calibrations() -> dict[str, LinkCalibration]:
    """Return the shipped calibrations of links by name."""
    folder = shipped_folder("calibrations") / "links"
    return {path.stem: read_link_calibration(path) for path in sorted(folder.glob("*.toml"))}


def read_link_calibration(path: Path) -> LinkCalibration:
    """Read the calibration of a link from a TOML file.

    Raise BadFile with file and field if the file is malformed or a value is impossible.
    """
    calibration = read_typed(path, LinkCalibration, "calibration of a link", _MAX_BYTES)
    if calibration.format != FORMAT:
        raise BadFile(f"{path}: format must be {FORMAT} for this version of paleo-lite (got {calibration.format})")
    for name, fit in calibration.operations.items():
        if name not in OPERATIONS:
            raise BadFile(f"{path}: operations must be named {', '.join(OPERATIONS)} (got {name!r})")
        if not fit.workers or len(fit.workers) != len(fit.ppp) or sorted(set(fit.workers)) != fit.workers:
            raise BadFile(f"{path}: operations.{name}: workers must be in rising order, each with a PPP")
        if fit.workers[0] < 2 or not all(0 < share < math.inf for share in (*fit.ppp, fit.small_share)):
            raise BadFile(f"{path}: operations.{name}: workers must be >= 2, PPP and small_share > 0")
        if not all(0 <= seconds < math.inf for seconds in (fit.start_s, fit.latency_s, fit.ramp_s, fit.switch_s)):
            raise BadFile(f"{path}: operations.{name}: start_s, latency_s, ramp_s and switch_s must be >= 0 s")
        for field in FITTED_FIELDS:
            if not 0 <= getattr(fit, field) <= MOST_FITTED:
                raise BadFile(f"{path}: operations.{name}: {field} must be from 0 to {MOST_FITTED}")
        if not all(share >= LEAST_SHARE for share in (*fit.ppp, fit.small_share)):
            raise BadFile(f"{path}: operations.{name}: PPP and small_share must be at least {LEAST_SHARE:g}")
    return calibration

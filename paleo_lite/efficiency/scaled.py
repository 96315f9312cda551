"""Scaled efficiencies: what kernels computed and moved, over the time that the batches really took.

Source: SURFBoard's notebook ``gpu_efficiency.ipynb``, whose two columns are named the wrong way round: its rows hold
FLOPs before bytes, its column names bandwidth before FLOPs. Here each stands under its own name.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar

import msgspec
import numpy as np

from ..errors import BadProfile, UnknownName
from ..hardware import Device, PeakRate
from ..profiles.table import Profile
from ..result import Result
from .durations import DurationBook
from .partial import device_rows, numbers

GROUPS = (
    ("gradient_precision", "nodes"),
    ("data_loader", "nodes"),
    ("batch_size", "nodes"),
    ("workers", "nodes"),
)
"""The notebook's groupings."""

MEASURES = ("flops_efficiency", "bandwidth_efficiency")

SWAPPED = (
    "SURFBoard's notebook prints these two columns under each other's names; here FLOPs stand under FLOPs and bytes "
    "under bandwidth"
)


class ScaledRow(msgspec.Struct, frozen=True):
    """One profile.

    Attributes
    ----------
    path : str
    configuration : dict
    batch_duration_s : float
    duration_from : str
        Which measurement was the shortest.
    flops, bytes : float
        That the profiler counted, over all rows.
    flops_per_s, bandwidth_bytes_per_s : float
        Over the duration of the batches.
    flops_efficiency, bandwidth_efficiency : float
        Shares of the device's peaks.
    """

    path: str
    configuration: dict[str, Any]
    batch_duration_s: float
    duration_from: str
    flops: float
    bytes: float
    flops_per_s: float
    bandwidth_bytes_per_s: float
    flops_efficiency: float
    bandwidth_efficiency: float

    def to_dict(self) -> dict[str, Any]:
        """The configuration's columns, then the rest."""
        row = msgspec.structs.asdict(self)
        configuration = row.pop("configuration")
        return {**configuration, **row}


class ScaledReport(Result, msgspec.Struct, frozen=True, eq=False):
    """Scaled efficiencies of many profiles.

    Attributes
    ----------
    device : Device
    peak : PeakRate
    batches : int
        Batches that the counted FLOPs and bytes are of.
    rows : list of ScaledRow
    groups : list of (tuple of str, list of dict)
        Means of `MEASURES`: what they are grouped by, and a row for each group.
    """

    _page: ClassVar[str] = "paleo_lite.report.scaled:scaled_page"

    device: Device
    peak: PeakRate
    batches: int
    rows: list[ScaledRow]
    groups: list[tuple[tuple[str, ...], list[dict[str, Any]]]]

    def to_dict(self) -> dict[str, Any]:
        """The documented JSON: shares of 1."""
        return {
            "gpu": self.device.id,
            "precision": self.peak.peak.precision,
            "peak_flops": self.peak.per_s,
            "bandwidth_bytes_per_s": self.device.bandwidth_bytes_per_s,
            "batches": self.batches,
            "rows": [row.to_dict() for row in self.rows],
            "groups": [{"by": list(by), "rows": rows} for by, rows in self.groups],
            "notes": [SWAPPED],
        }


def scaled_row(profile: Profile, book: DurationBook, device: Device, peak: PeakRate, batches: int = 25) -> ScaledRow:
    """Scaled efficiencies of one profile.

    Parameters
    ----------
    profile : Profile
    book : DurationBook
    device : Device
    peak : PeakRate
    batches : int
        Batches that the profile's FLOPs and bytes are of.

    Raises
    ------
    BadProfile
        If the profile counts no FLOPs, or no duration belongs to its configuration.
    """
    found = book.find(profile.configuration)
    if found is None:
        what = ", ".join(f"{name} {value}" for name, value in profile.configuration.items())
        raise BadProfile(f"{profile.path}: no batch duration for {what or 'a file whose name tells no configuration'}")
    flops = moved = 0.0
    for batch in profile.batches(("category", "duration_ns", "flops", "bytes")):
        rows = device_rows(batch)
        flops += float(np.nansum(numbers(rows, "flops")))
        moved += float(np.nansum(numbers(rows, "bytes")))
    if not flops and not moved:
        raise BadProfile(f"{profile.path}: a {profile.format} profile that counts neither FLOPs nor bytes")
    seconds = batches * found.seconds
    return ScaledRow(
        path=str(profile.path),
        configuration=profile.configuration,
        batch_duration_s=found.seconds,
        duration_from=found.source,
        flops=flops,
        bytes=moved,
        flops_per_s=flops / seconds,
        bandwidth_bytes_per_s=moved / seconds,
        flops_efficiency=flops / seconds / peak.per_s,
        bandwidth_efficiency=moved / seconds / device.bandwidth_bytes_per_s,
    )


def report_scaled(
    profiles: Iterable[Profile],
    book: DurationBook,
    device: Device,
    precision: str = "fp32",
    *,
    batches: int = 25,
    groups: Sequence[Sequence[str]] | None = None,
) -> ScaledReport:
    """Scaled efficiencies of many profiles, and their means by configuration.

    Parameters
    ----------
    profiles : iterable of Profile
    book : DurationBook
    device : Device
    precision : str
        Of the peak.
    batches : int
        Batches that the FLOPs and bytes of a profile are of: 25 in SURFBoard's.
    groups : sequence of sequences of str, optional
        Configuration columns to group by; without it `GROUPS`, as far as the names tell them.

    Raises
    ------
    BadProfile
        If one of the profiles cannot be scaled.
    UnknownName
        If a grouping names a column that the configurations do not have.
    UnknownPrecision
        If the device has no peak for the precision.
    """
    peak = device.find_peak(precision)
    rows = [scaled_row(profile, book, device, peak, batches) for profile in profiles]
    known = {name for row in rows for name in row.configuration}
    if groups is None:
        groups = [by for by in GROUPS if set(by) <= known]
    for name in (name for by in groups for name in by):
        if name not in known:
            raise UnknownName("configuration column", name, known)
    dicts = [row.to_dict() for row in rows]
    return ScaledReport(device, peak, batches, rows, [(tuple(by), group_means(dicts, by)) for by in groups])


def group_means(rows: Sequence[Mapping[str, Any]], by: Sequence[str]) -> list[dict[str, Any]]:
    """Means of `MEASURES` over the rows that agree in some columns, with how many there are; sorted by the columns."""
    groups: dict[tuple[Any, ...], list[Mapping[str, Any]]] = {}
    for row in rows:
        groups.setdefault(tuple(row.get(name) for name in by), []).append(row)
    ordered = sorted(
        groups.items(), key=lambda item: [(isinstance(v, str), v if v is not None else "") for v in item[0]]
    )
    return [
        {
            **dict(zip(by, key)),
            "profiles": len(members),
            **{name: float(np.mean([member[name] for member in members])) for name in MEASURES},
        }
        for key, members in ordered
    ]

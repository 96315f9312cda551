"""Timeline of a profile: busy time of the device by kernel class in equal time slices."""

from __future__ import annotations

import math
from collections import defaultdict
from typing import TYPE_CHECKING, Any, ClassVar

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ..errors import BadProfile, BadValue
from ..profiles.detect import Profile
from ..profiles.names import classify
from ..profiles.table import device_rows, float_column, to_numpy
from ..result import Result
from .activity import positions_by_value
from .totals import group_by_kernel

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

_COLUMNS = ("category", "kernel", "op", "start_ns", "duration_ns", "device")


class Timeline(Result, msgspec.Struct, frozen=True, eq=False):
    """Busy time of a profile in equal slices of time."""

    _page: ClassVar[str] = "paleo_lite.reporting.kernels:timeline_page"

    slice_s: float  # length of a slice in seconds
    classes: tuple[str, ...]  # classes of kernels (`paleo_lite.profiles.names.CLASSES`), longest first
    # Seconds of the kernels of a class within a slice. Kernels that overlap are added, also over several devices;
    # shape (classes, slices).
    busy_s: Floats
    kernels: int  # number of kernels
    name: str = ""  # name of the profile's file
    by_device: dict[int, Floats] = {}  # `busy_s` of each device; -1 is an unknown device; shape (classes, slices)

    def to_dict(self) -> dict[str, Any]:
        """Return the documented JSON: seconds of each class in each slice."""
        busy_s = dict(zip(self.classes, self.busy_s.tolist()))
        devices = {str(device): dict(zip(self.classes, seconds.tolist())) for device, seconds in self.by_device.items()}
        return {
            "file": self.name, "slice_s": self.slice_s, "kernels": self.kernels, "busy_s": busy_s, "devices": devices
        }  # fmt: skip


def read_timeline(profile: Profile, slices: int = 500) -> Timeline:
    """Divide the time from the start of the first kernel to the end of the last into slices.

    Raise BadValue if the number of slices is below 1, and BadProfile if no kernel has a start and a duration.
    """
    if slices < 1:
        raise BadValue(f"a timeline has 1 slice or more, not {slices}")
    starts: dict[tuple[int, str], list[Floats]] = defaultdict(list)
    ends: dict[tuple[int, str], list[Floats]] = defaultdict(list)
    origin: Any = None
    for batch in profile.batches(_COLUMNS):
        rows = device_rows(batch)
        starts_ns = rows.column("start_ns")
        if origin is None and starts_ns.null_count < len(starts_ns):
            origin = starts_ns.drop_null()[0]  # float64 cannot represent nanoseconds since 1970 exactly
        since = starts_ns if origin is None else pc.subtract(starts_ns, origin)
        start = to_numpy(since.cast(pa.float64()), math.nan)
        duration = float_column(rows, "duration_ns")
        timed = np.isfinite(start) & np.isfinite(duration)
        labels, devices = _row_classes(rows), float_column(rows, "device", -1.0)
        shown = np.flatnonzero(timed)
        for device, on_device in positions_by_value(devices[shown].astype(np.int64)):
            rows_of: dict[str, list[int]] = {}
            for row in shown[on_device].tolist():
                rows_of.setdefault(labels[row], []).append(row)
            for label, chosen in rows_of.items():
                starts[device, label].append(start[chosen])
                ends[device, label].append(start[chosen] + duration[chosen])
    if not starts:
        raise BadProfile(f"{profile.path}: a {profile.format} profile without start times has no timeline")
    begin = {key: np.concatenate(times) for key, times in starts.items()}
    finish = {key: np.concatenate(times) for key, times in ends.items()}
    first, last = min(times.min() for times in begin.values()), max(times.max() for times in finish.values())
    edges = np.linspace(first, max(last, first + 1), slices + 1)
    busy = {key: np.diff(_sums_before(begin[key], edges) - _sums_before(finish[key], edges)) * 1e-9 for key in begin}
    total = {label: sum(float(busy[key].sum()) for key in busy if key[1] == label) for _, label in busy}
    order = sorted(total, key=lambda label: (-total[label], label))
    nothing = np.zeros(slices)
    by_device = {
        device: np.array([busy.get((device, label), nothing) for label in order])
        for device in sorted({device for device, _ in busy})
    }
    return Timeline(
        slice_s=float(edges[1] - edges[0]) * 1e-9,
        classes=tuple(order),
        busy_s=np.sum(list(by_device.values()), axis=0),
        kernels=sum(len(times) for times in begin.values()),
        name=profile.path.name,
        by_device=by_device,
    )


def _row_classes(rows: pa.RecordBatch) -> NDArray[np.object_]:
    """Return the class of each row; each distinct kernel is classified once."""
    kernels, kernel_of_row = group_by_kernel(rows)
    labels = [classify(name, category).label for name, category in kernels]
    return np.array(labels, dtype=object)[kernel_of_row]


def _sums_before(times: Floats, edges: Floats) -> Floats:
    """Return for each edge the sum of ``edge - time`` over the earlier times."""
    ordered = np.sort(times) - edges[0]
    sums = np.concatenate([[0.0], np.cumsum(ordered)])
    number = np.searchsorted(ordered, edges - edges[0])
    return np.asarray(number * (edges - edges[0]) - sums[number])

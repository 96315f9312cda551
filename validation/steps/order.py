"""Validation of the order of two devices: whether the faster device is also predicted to be faster."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from itertools import combinations

import msgspec
import numpy as np

from paleo_lite.calibration.fit import MeasuredRuns
from paleo_lite.calibration.measured_devices import DeviceData, GroupKey, MeasuredDevices
from paleo_lite.calibration.measurements import Measurement
from paleo_lite.calibration.pool import NotPooled, pooled_model
from paleo_lite.calibration.validate import baseline_terms
from paleo_lite.machines import find_device
from paleo_lite.reporting.document import Column, Document, Table
from paleo_lite.reporting.formats import format_percent

SMALLEST_DIFFERENCE = 0.15
"""Smallest relative difference of two times: the order of closer times depends on the source."""


class OrderRow(msgspec.Struct, frozen=True):
    """Fractions of device pairs that are predicted in the right order."""

    source: str
    precision: str
    devices: list[str]
    pairs: int
    held_out: float  # both chips are held out, so that only their data sheets are known
    shipped: float  # as `predict` answers, which assumes the same software and host for all sources
    roofline: float  # order of the roofline bounds of the data sheets


def validate_steps(
    measurements: Sequence[Measurement],
    operations: Sequence[DeviceData] = (),
    includes: Callable[[str, str], bool] = lambda gpu, precision: True,
) -> list[OrderRow]:
    """Compare the pairs of devices with the same step from one source and times that differ by `SMALLEST_DIFFERENCE`.

    Parameters
    ----------
    measurements : sequence of Measurement
    operations : sequence of DeviceData
        Single operations as additional evidence.
    includes : function of a device and a precision
        Returns whether to form pairs with a device; evidence comes from all devices.
    """
    devices = MeasuredDevices(measurements, None, operations)
    keys_by_source: dict[tuple[str, str, str], list[GroupKey]] = defaultdict(list)
    for key in devices.groups:
        if includes(key.gpu, key.precision):
            keys_by_source[key.source, key.precision, key.execution].append(key)
    rows = []
    for (source, precision, _), keys in sorted(keys_by_source.items()):
        is_right: list[tuple[bool, bool, bool]] = []
        for first, second in combinations(keys, 2):
            is_right += _compare_devices(devices, first, second)
        if is_right:
            fractions = [float(fraction) for fraction in np.mean(is_right, axis=0)]
            rows.append(OrderRow(source, precision, sorted({key.gpu for key in keys}), len(is_right), *fractions))
    return rows


def _compare_devices(devices: MeasuredDevices, first: GroupKey, second: GroupKey) -> Iterator[tuple[bool, bool, bool]]:
    """Yield for each step of both devices whether each method predicts the right order."""
    first_indices = {_step(step): index for index, step in enumerate(devices.groups[first])}
    second_indices = {_step(step): index for index, step in enumerate(devices.groups[second])}
    shared = sorted(set(first_indices) & set(second_indices))
    if not shared or find_device(first.gpu).chip == find_device(second.gpu).chip:
        return
    chips = {devices.measured[key].traits.chip for key in (first, second)}
    first_runs, first_times = _predict(devices, first, chips, np.array([first_indices[step] for step in shared]))
    second_runs, second_times = _predict(devices, second, chips, np.array([second_indices[step] for step in shared]))
    for step, ratio in enumerate(first_runs.measured_s / second_runs.measured_s):
        if max(ratio, 1 / ratio) > 1 + SMALLEST_DIFFERENCE:
            held_out, shipped, roofline = (
                bool((first_s[step] < second_s[step]) == (ratio < 1))
                for first_s, second_s in zip(first_times, second_times)
            )
            yield held_out, shipped, roofline


def _predict(
    devices: MeasuredDevices, key: GroupKey, chips: set[str], indices: np.ndarray
) -> tuple[MeasuredRuns, tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Return the steps of a device, and their predicted seconds by each method, with `chips` held out."""
    device = find_device(key.gpu)
    runs = devices.measured[key].runs.select(indices)
    prior = devices.prior(key, ignore=lambda other: other.chip in chips, is_source_known=False)
    shipped = pooled_model(device, key.precision, key.execution)
    bound = baseline_terms(runs)[1]
    shipped_s = bound if isinstance(shipped, NotPooled) else runs.predict_s(shipped.theta)
    return runs, (runs.predict_s(prior.mean), shipped_s, bound)


def _step(step: Measurement) -> tuple[str, str, int, int]:
    return step.network, step.phase, step.batch_size, step.image_size


def page(rows: Sequence[OrderRow]) -> Document:
    """Return the page with the fraction of pairs in the right order, by source."""
    columns = [
        Column("source", "source", left=True),
        Column("precision", "precision", left=True),
        Column("device_names", "devices", left=True, wrap=True, drop_order=1),
        Column("pairs", "pairs"),
        Column("held_out", "held out", format_percent),
        Column("shipped", "shipped", format_percent),
        Column("roofline", "roofline", format_percent),
    ]
    pairs = sum(row.pairs for row in rows)
    held_out, shipped, roofline = (
        sum(getattr(row, name) * row.pairs for row in rows) / pairs for name in ("held_out", "shipped", "roofline")
    )
    shown = [{**msgspec.to_builtins(row), "device_names": ", ".join(row.devices)} for row in rows]
    headline = (
        f"faster of two devices: right for {held_out:.1%} of {pairs} pairs that differ by more than "
        f"{SMALLEST_DIFFERENCE:.0%} with both chips held out, {shipped:.1%} as shipped, {roofline:.1%} by the roofline"
    )
    return Document(headline, (), [Table("Order of two devices", columns, shown)])

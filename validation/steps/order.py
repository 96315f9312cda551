"""The order of two devices: is the one that a source measured as faster also predicted as faster?"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from itertools import combinations

import msgspec
import numpy as np

from paleo_lite.calibration.choose import NotPooled, pooled_model
from paleo_lite.calibration.fit import MeasuredRuns
from paleo_lite.calibration.measured_devices import DeviceData, GroupKey, MeasuredDevices
from paleo_lite.calibration.measurements import Measurement
from paleo_lite.calibration.validate import baseline_terms
from paleo_lite.machines import find_device
from paleo_lite.reporting.document import Column, Document, Table, format_percent

APART = 0.15
"""By how much the slower of two must be slower: what is closer depends on who measures."""


class OrderRow(msgspec.Struct, frozen=True):
    """How often the faster of two devices is predicted to be the faster: shares of 1.

    `held_out`: of both chips nothing is known but their data sheets. `shipped`: as `predict` answers, under one
    software and on one host, whatever the source's. `roofline`: by the bound of the data sheets.
    """

    source: str
    precision: str
    devices: list[str]
    pairs: int
    held_out: float
    shipped: float
    roofline: float


def validate_steps(
    measurements: Sequence[Measurement],
    operations: Sequence[DeviceData] = (),
    wants: Callable[[str, str], bool] = lambda gpu, precision: True,
) -> list[OrderRow]:
    """Every pair of devices on which one source measured the same step with times more than `APART` apart.

    Parameters
    ----------
    measurements : sequence of Measurement
    operations : sequence of DeviceData
        Single operations to learn from, too.
    wants : function of a device and a precision
        Of which devices pairs are made; the others are learnt from all the same.
    """
    devices = MeasuredDevices(measurements, None, operations)
    together: dict[tuple[str, str, str], list[GroupKey]] = defaultdict(list)
    for key in filter(lambda key: wants(key.gpu, key.precision), devices.groups):
        together[key.source, key.precision, key.execution].append(key)
    rows = []
    for (source, precision, _), keys in sorted(together.items()):
        found = [ordered for one, other in combinations(keys, 2) for ordered in _ordered(devices, one, other)]
        if found:
            shares = [float(share) for share in np.mean(found, axis=0)]
            rows.append(OrderRow(source, precision, sorted({key.gpu for key in keys}), len(found), *shares))
    return rows


def _ordered(devices: MeasuredDevices, one: GroupKey, other: GroupKey) -> Iterator[tuple[bool, bool, bool]]:
    """Of each step of both: whether each way of predicting has the right order."""
    steps = [{_step(step): place for place, step in enumerate(devices.groups[key])} for key in (one, other)]
    shared = sorted(set(steps[0]) & set(steps[1]))
    if not shared or find_device(one.gpu).chip == find_device(other.gpu).chip:
        return
    places = [np.array([places[step] for step in shared]) for places in steps]
    chips = {devices.measured[key].traits.chip for key in (one, other)}
    predicted = [_predicted(devices, key, chips, own) for key, own in zip((one, other), places)]
    measured = [runs.measured_s for runs, _ in predicted]
    for at, ratio in enumerate(measured[0] / measured[1]):
        if max(ratio, 1 / ratio) > 1 + APART:
            held_out, shipped, roofline = (
                bool((times[0][at] < times[1][at]) == (ratio < 1)) for times in zip(*(ways for _, ways in predicted))
            )
            yield held_out, shipped, roofline


def _predicted(
    devices: MeasuredDevices, key: GroupKey, chips: set[str], places: np.ndarray
) -> tuple[MeasuredRuns, tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Steps of a device, and their seconds by each way of predicting."""
    device = find_device(key.gpu)
    runs = devices.measured[key].runs.select(places)
    prior = devices.prior(key, ignore=lambda other: other.chip in chips, is_source_known=False)
    shipped = pooled_model(device, key.precision, key.execution)
    bound = baseline_terms(runs)[1]
    told = bound if isinstance(shipped, NotPooled) else runs.predict_s(shipped.theta)
    return runs, (runs.predict_s(prior.mean), told, bound)


def _step(step: Measurement) -> tuple[str, str, int, int]:
    return step.network, step.phase, step.batch_size, step.image_size


def page(rows: Sequence[OrderRow]) -> Document:
    """The share of pairs in the right order, by source."""

    columns = [
        Column("source", "source", left=True),
        Column("precision", "precision", left=True),
        Column("told", "devices", left=True, wrap=True, drop_order=1),
        Column("pairs", "pairs"),
        Column("held_out", "held out", format_percent),
        Column("shipped", "shipped", format_percent),
        Column("roofline", "roofline", format_percent),
    ]
    pairs = sum(row.pairs for row in rows)
    held_out, shipped, roofline = (
        sum(getattr(row, name) * row.pairs for row in rows) / pairs for name in ("held_out", "shipped", "roofline")
    )
    shown = [{**msgspec.to_builtins(row), "told": ", ".join(row.devices)} for row in rows]
    headline = (
        f"the faster of two devices: right in {held_out:.1%} of {pairs} pairs more than {APART:.0%} apart with both "
        f"chips held out, in {shipped:.1%} as shipped, in {roofline:.1%} by the roofline"
    )
    return Document(headline, (), [Table("Order of two devices", columns, shown)])

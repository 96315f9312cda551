"""Validation of transformers on held-out devices: the transformers among the points of the split ``gpu``."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from paleo_lite.calibration.accuracy import error_statistics
from paleo_lite.calibration.measured_devices import DeviceData
from paleo_lite.calibration.measurements import Measurement
from paleo_lite.calibration.validate import AccuracyRow, Point, family_of, validate

TRANSFORMERS = ("vit", "swin", "maxvit")
"""Families of networks dominated by matrix products and attention."""


def validate_transformers(
    measurements: Sequence[Measurement],
    gpus: Sequence[str],
    precisions: Sequence[str],
    operations: Sequence[DeviceData],
) -> tuple[list[AccuracyRow], list[Point]]:
    """Predict the transformers measured on each held-out chip, with all networks on other chips as evidence."""
    points = [
        point
        for point in validate(measurements, "gpu", gpus, precisions, operations)[1]
        if family_of(point.measurement.network) in TRANSFORMERS
    ]
    groups: dict[tuple[str, str, str, str], list[Point]] = defaultdict(list)
    for point in points:
        step = point.measurement
        groups[step.gpu, step.precision, step.phase, step.source].append(point)
    return [_row(*key, group) for key, group in groups.items()], points


def _row(gpu: str, precision: str, phase: str, source: str, points: Sequence[Point]) -> AccuracyRow:
    measured, predicted, deviation = np.array(
        [(point.measurement.time_s, point.predicted_s, point.deviation) for point in points]
    ).T
    return AccuracyRow(
        split="gpu", gpu=gpu, precision=precision, phase=phase, points=len(points), source=source, baselines={},
        **error_statistics(measured, predicted, deviation),
    )  # fmt: skip

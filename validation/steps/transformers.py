"""Transformers on a device held out: those points of the split ``gpu`` alone."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from paleo_lite.calibration.measured_devices import DeviceData
from paleo_lite.calibration.measurements import Measurement
from paleo_lite.calibration.validate import Point, Row, error_statistics, family_of, validate

TRANSFORMERS = ("vit", "swin", "maxvit")
"""Families whose work is mostly matrix products and attention."""


def validate_transformers(
    measurements: Sequence[Measurement],
    gpus: Sequence[str],
    precisions: Sequence[str],
    operations: Sequence[DeviceData],
) -> tuple[list[Row], list[Point]]:
    """Hold a chip out, predict the transformers measured on it; of other chips all networks are learnt from."""
    points = [
        point
        for point in validate(measurements, "gpu", gpus, precisions, operations)[1]
        if family_of(point.measurement.network) in TRANSFORMERS
    ]
    groups: dict[tuple[str, str, str, str], list[Point]] = defaultdict(list)
    for point in points:
        step = point.measurement
        groups[step.gpu, step.precision, step.phase, step.source].append(point)
    return [_row(*which, group) for which, group in groups.items()], points


def _row(gpu: str, precision: str, phase: str, source: str, points: Sequence[Point]) -> Row:
    measured, predicted, deviation = np.array(
        [(point.measurement.time_s, point.predicted_s, point.deviation) for point in points]
    ).T
    return Row(
        split="gpu", gpu=gpu, precision=precision, phase=phase, points=len(points), source=source, baselines={},
        **error_statistics(measured, predicted, deviation),
    )  # fmt: skip

"""Calibrations of platforms from published training on several devices, for `calibrations/platforms`."""

from __future__ import annotations

from typing import Any

import numpy as np

from paleo_lite.distributed.platforms import Platform

from .hold_out import SOCKET, ScalingTruth

_SOFTWARE = "TensorFlow 1.1"
_PAGE = "tensorflow/docs benchmarks page (Apache-2.0)"
_NAMES = {"EC2 p2.8xlarge": "ec2-p2-k80", "DGX-1": "dgx1-p100", "Cartesius": "cartesius-k40m"}


def platforms_of(truth: ScalingTruth) -> dict[str, Platform]:
    """Return platforms by name, fitted to all their measurements."""
    found = {}
    for described, constants in truth.constants.items():
        points = [point for point in truth.points if point.measurement.platform == described]
        measured = {point.measurement for point in points}
        # By network where networks differ, else by what else was held out.
        held = [p for p in points if p.held_out == "network"] or [p for p in points if p.held_out]
        between = _rate(constants["between_bytes_per_s"])
        if held[0].off is not None:
            off = np.mean([abs(point.off or 0.0) for point in held])
            found[_NAMES[described]] = Platform(
                1, described, _SOFTWARE, held[0].measurement.gpu, SOCKET, 8 // SOCKET,
                _rate(constants["inside_bytes_per_s"]), between, [_PAGE], len(measured),
                f"{100 * off:.1f} points of efficiency off with a network held out",
                slowdown=round(constants["slowdown"], 4), interference=round(constants["interference"], 4),
                scatter=_deviation(off),
            )  # fmt: skip
        else:
            ratios = [value for name, value in constants.items() if name.startswith("wall")]
            off = np.mean([abs(point.error) for point in held])
            found[_NAMES[described]] = Platform(
                1, described, "Horovod over Open MPI, gradients through the host", held[0].measurement.gpu, 2,
                max(each.nodes for each in measured), between, between, ["sara-nl/SURFBoard 86f80c6"], len(measured),
                f"{off:.1%} of the time off on the nodes held out", overlap=False, bucket="64 MiB",
                compute_ratio=round(float(np.mean(ratios)), 4), scatter=_deviation(off),
            )  # fmt: skip
    return found


def _deviation(mean_absolute_error: Any) -> float:
    """Of a normal distribution: sqrt(pi / 2) times the mean absolute deviation."""
    return round(float(np.sqrt(np.pi / 2)) * float(mean_absolute_error), 3)


def _rate(bytes_per_s: float) -> str:
    return f"{bytes_per_s / 1e9:.4g} GB/s"

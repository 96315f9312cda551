"""Platforms for `calibrations/platforms`, from constants fitted to published training on several devices."""

from __future__ import annotations

from typing import Any

import numpy as np

from paleo_lite.distributed.platforms import Platform

from .hold_out import SOCKET, ScalingValidation

_SOFTWARE = "TensorFlow 1.1"
_PAGE = "tensorflow/docs benchmarks page (Apache-2.0)"
_NAMES = {"EC2 p2.8xlarge": "ec2-p2-k80", "DGX-1": "dgx1-p100", "Cartesius": "cartesius-k40m"}


def platforms_of(validation: ScalingValidation) -> dict[str, Platform]:
    """Return the platforms by name, with the constants fitted to all their measurements."""
    platforms = {}
    for described, constants in validation.constants.items():
        points = [point for point in validation.points if point.measurement.platform == described]
        measured = {point.measurement for point in points}
        # Use the points with a network held out if there are several networks, else all held-out points.
        by_network = [point for point in points if point.held_out == "network"]
        held_out = by_network or [point for point in points if point.held_out]
        between = _rate(constants["between_bytes_per_s"])
        if held_out[0].off is not None:
            error = np.mean([abs(point.off or 0.0) for point in held_out])
            platforms[_NAMES[described]] = Platform(
                1, described, _SOFTWARE, held_out[0].measurement.gpu, SOCKET, 8 // SOCKET,
                _rate(constants["inside_bytes_per_s"]), between, [_PAGE], len(measured),
                f"{100 * error:.1f} points of efficiency off with a network held out",
                slowdown=round(constants["slowdown"], 4), interference=round(constants["interference"], 4),
                scatter=_deviation(error),
            )  # fmt: skip
        else:
            ratios = [value for name, value in constants.items() if name.startswith("wall")]
            error = np.mean([abs(point.error) for point in held_out])
            platforms[_NAMES[described]] = Platform(
                1, described, "Horovod over Open MPI, gradients through the host", held_out[0].measurement.gpu, 2,
                max(each.nodes for each in measured), between, between, ["sara-nl/SURFBoard 86f80c6"], len(measured),
                f"{error:.1%} of the time off on the nodes held out", overlap=False, bucket="64 MiB",
                compute_ratio=round(float(np.mean(ratios)), 4), scatter=_deviation(error),
            )  # fmt: skip
    return platforms


def _deviation(mean_absolute_error: Any) -> float:
    """Return the standard deviation of a normal distribution: sqrt(pi / 2) times its mean absolute deviation."""
    return round(float(np.sqrt(np.pi / 2)) * float(mean_absolute_error), 3)


def _rate(bytes_per_s: float) -> str:
    return f"{bytes_per_s / 1e9:.4g} GB/s"

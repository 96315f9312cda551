"""``python -m paleo_lite.calibration.ship_platforms DATA FOLDER``: what published scaling taught, a TOML a platform."""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec
import numpy as np

from ..files import write_aside
from ..scaling.platforms import Platform
from .validate_scaling import SOCKET, Truth, validate_scaling

_SOFTWARE = "TensorFlow 1.1"
_PAGE = "tensorflow/docs benchmarks page (Apache-2.0)"
_NAMES = {"EC2 p2.8xlarge": "ec2-p2-k80", "DGX-1": "dgx1-p100", "Cartesius": "cartesius-k40m"}


def platforms_of(truth: Truth) -> dict[str, Platform]:
    """Platforms by name, from what was fitted to all their measurements."""
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
            )  # fmt: skip
        else:
            ratios = [value for name, value in constants.items() if name.startswith("wall")]
            off = np.mean([abs(point.error) for point in held])
            found[_NAMES[described]] = Platform(
                1, described, "Horovod over Open MPI, gradients through the host", held[0].measurement.gpu, 2,
                max(each.nodes for each in measured), between, between, ["sara-nl/SURFBoard 86f80c6"], len(measured),
                f"{off:.1%} of the time off on the nodes held out", overlap=False, bucket="64 MiB",
                computing=round(float(np.mean(ratios)), 4),
            )  # fmt: skip
    return found


def _rate(bytes_per_s: float) -> str:
    return f"{bytes_per_s / 1e9:.4g} GB/s"


def main(data: Path, folder: Path) -> None:
    """Fit and write."""
    for name, platform in platforms_of(validate_scaling(data)).items():
        head = b"# Fitted by paleo-lite; every field is explained in docs/scale.md.\n"
        write_aside(folder / f"{name}.toml", head + msgspec.toml.encode(platform))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))

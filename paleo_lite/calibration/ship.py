"""``python -m paleo_lite.calibration.ship DATA FOLDER``: fit every device that the published measurements cover.

Beside the calibrations stands ``pooled.json``, what they say together of a device without measurements.

The same files give the same bytes: measurements are ordered, the fit starts at the prior, numbers are rounded.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

from ..hardware import find_device
from .borrowed import Taught, group_by_source
from .calibrate import calibrate
from .datasets import published
from .fit import Fit
from .from_profiles import measure_profiles
from .measurements import Measurement
from .pooled import POOL_FILE, make_pool, write_pool
from .store import make_calibration, write_calibration
from .validate import Point, validate


def main() -> None:
    """Fit and write; of several sources of a device in a precision, the one with most measurements is shipped."""
    if len(sys.argv) != 3:
        sys.exit("usage: python -m paleo_lite.calibration.ship DATA FOLDER")
    data, folder = (Path(argument) for argument in sys.argv[1:])
    profiled = measure_profiles([data / "surfboard" / "pyprof_kernels"], "k40m", "resnet50", "fp32")
    measurements = published(data / "measured").measurements
    groups: dict[tuple[str, str], dict[str, list[Measurement]]] = defaultdict(dict)
    for (gpu, precision, source), group in group_by_source([*measurements, *profiled]).items():
        groups[gpu, precision][source] = group
    taught, points = Taught(measurements), validate(measurements, "network")[1]
    alone = []
    for (gpu, precision), sources in sorted(groups.items()):
        chosen = max(sorted(sources), key=lambda source: len(sources[source]))
        fit = fit_among_others(sources[chosen], taught)
        error = error_of(points, sources[chosen])
        calibration = make_calibration(gpu, precision, sources[chosen], fit, held_out_error=error)
        write_calibration(calibration, folder / f"{gpu}-{precision}.toml", force=True)
        shown = "-" if error is None else f"{error:.1%}"
        print(f"{gpu}-{precision}: {len(sources[chosen])} measurements, held-out error {shown}", flush=True)
        # What a device borrowed it does not bring to the pool.
        own = calibrate(sources[chosen], find_device(gpu), precision)[1]
        alone.append(make_calibration(gpu, precision, sources[chosen], own))
    write_pool(make_pool(alone), folder / POOL_FILE)


def fit_among_others(group: Sequence[Measurement], taught: Taught) -> Fit:
    """Fit what one source measured of a device in a precision, from the prior that other devices taught."""
    gpu, precision, source = group[0].gpu, group[0].precision, group[0].source
    device = find_device(gpu)
    return calibrate(group, device, precision, taught.prior(device, precision, source))[1]


def error_of(points: Sequence[Point], group: Sequence[Measurement]) -> float | None:
    """Mean absolute relative error of a group's measurements in a validation; None where it holds none of them."""
    own = set(group)
    errors = [abs(point.error) for point in points if point.measurement in own]
    return sum(errors) / len(errors) if errors else None


if __name__ == "__main__":
    main()

"""``python -m paleo_lite.calibration.ship DATA FOLDER``: fit every device that the published measurements cover.

The same files give the same bytes: measurements are ordered, the fit starts at the prior, numbers are rounded.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from pathlib import Path

from ..hardware import find_device
from .calibrate import calibrate, held_out_error
from .datasets import published
from .from_profiles import measure_profiles
from .measurements import Measurement
from .store import make_calibration, write_calibration


def main() -> None:
    """Fit and write; of several sources of a device in a precision, the one with most measurements is shipped."""
    if len(sys.argv) != 3:
        sys.exit("usage: python -m paleo_lite.calibration.ship DATA FOLDER")
    data = Path(sys.argv[1])
    groups: dict[tuple[str, str], dict[str, list[Measurement]]] = defaultdict(lambda: defaultdict(list))
    profiled = measure_profiles([data / "surfboard" / "pyprof_kernels"], "k40m", "resnet50", "fp32")
    for each in published(data / "measured").measurements + profiled:
        groups[each.gpu, each.precision][each.source].append(each)
    for (gpu, precision), sources in sorted(groups.items()):
        chosen = max(sorted(sources), key=lambda source: len(sources[source]))
        device = find_device(gpu)
        measurements, fit = calibrate(sources[chosen], device, precision)
        error = held_out_error(measurements, device, precision)
        calibration = make_calibration(gpu, precision, measurements, fit, held_out_error=error)
        write_calibration(calibration, Path(sys.argv[2]) / f"{gpu}-{precision}.toml", force=True)
        shown = "-" if error is None else f"{error:.1%}"
        print(f"{gpu}-{precision}: {len(measurements)} measurements, held-out error {shown}", flush=True)


if __name__ == "__main__":
    main()

"""Every calibration that the published measurements allow, written where the package ships it from.

Of devices ``DEVICE-PRECISION.toml`` and ``pooled.json``, what they say together of a device without measurements; in
``links`` what collectives teach of a link; in ``platforms`` what training on several devices does.

The same files give the same bytes: measurements are ordered, the fit starts at the prior, numbers are rounded.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from paleo_lite.calibration.calibrate import calibrate
from paleo_lite.calibration.fit import Fit
from paleo_lite.calibration.from_profiles import measure_profiles
from paleo_lite.calibration.measurements import Measurement
from paleo_lite.calibration.pool import POOL_FILE, MeasuredDevices, group_by_source, make_pool, write_pool
from paleo_lite.calibration.store import make_calibration, write_calibration
from paleo_lite.calibration.validate import Point, validate
from paleo_lite.files import write_aside
from paleo_lite.hardware import find_device

from .collectives.links import inputs_of, link_calibrations
from .collectives.published import published_exchanges
from .profiles.published import PROFILE_SETS
from .scaling.hold_out import validate_scaling
from .scaling.platforms import platforms_of
from .steps.published import published_steps

Written = Iterator[tuple[str, str]]
"""Name of each calibration once it is written, and how far off it is on what was held out."""


def ship_devices(data: Path, folder: Path) -> Written:
    """Fit and write; of several sources of a device in a precision, the one with most measurements is shipped."""
    measurements = published_steps(data / "measured").measurements
    profiled = [
        step
        for known in PROFILE_SETS
        for step in measure_profiles([known.path(data)], known.gpu, known.network, known.precision)
    ]
    groups: dict[tuple[str, str], dict[str, list[Measurement]]] = defaultdict(dict)
    for (gpu, precision, source), group in group_by_source([*measurements, *profiled]).items():
        groups[gpu, precision][source] = group
    devices, points = MeasuredDevices(measurements), validate(measurements, "network")[1]
    alone = []
    for (gpu, precision), sources in sorted(groups.items()):
        chosen = max(sorted(sources), key=lambda source: len(sources[source]))
        fit = fit_among_others(sources[chosen], devices)
        error = error_of(points, sources[chosen])
        calibration = make_calibration(gpu, precision, sources[chosen], fit, held_out_error=error)
        write_calibration(calibration, folder / f"{gpu}-{precision}.toml", force=True)
        shown = "-" if error is None else f"{error:.1%}"
        yield f"{gpu}-{precision}", f"{len(sources[chosen])} measurements, held-out error {shown}"
        # What a device took from others it does not bring to the pool.
        own = calibrate(sources[chosen], find_device(gpu), precision)[1]
        alone.append(make_calibration(gpu, precision, sources[chosen], own))
    write_pool(make_pool(alone), folder / POOL_FILE)


def fit_among_others(group: Sequence[Measurement], devices: MeasuredDevices) -> Fit:
    """Fit what one source measured of a device in a precision, from the prior that other devices narrow."""
    gpu, precision, source = group[0].gpu, group[0].precision, group[0].source
    device = find_device(gpu)
    return calibrate(group, device, precision, devices.prior(device, precision, source))[1]


def error_of(points: Sequence[Point], group: Sequence[Measurement]) -> float | None:
    """Mean absolute relative error of a group's measurements in a validation; None where it holds none of them."""
    own = set(group)
    errors = [abs(point.error) for point in points if point.measurement in own]
    return sum(errors) / len(errors) if errors else None


def ship_links(measured: Path, folder: Path) -> Written:
    """Fit and write a TOML of each platform whose collectives were measured."""
    for name, calibration in link_calibrations(published_exchanges(measured).exchanges, inputs_of(measured)).items():
        head = b"# Fitted by paleo-lite; every parameter is explained in docs/topology.md.\n"
        write_aside(folder / f"{name}.toml", head + msgspec.toml.encode(calibration))
        errors = ", ".join(f"{name} {fit.held_out_sizes:.1%}" for name, fit in calibration.operations.items())
        yield name, f"held-out error {errors}"


def ship_platforms(data: Path, folder: Path) -> Written:
    """Fit and write a TOML of each platform on which training on several devices was measured."""
    for name, platform in platforms_of(validate_scaling(data)).items():
        head = b"# Fitted by paleo-lite; every field is explained in docs/scale.md.\n"
        write_aside(folder / f"{name}.toml", head + msgspec.toml.encode(platform))
        yield name, platform.held_out

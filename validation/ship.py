"""Fit of all shipped calibrations to the published measurements.

The files are ``DEVICE-PRECISION.toml`` for measured devices; ``pooled.json``, the expectation for devices without
measurements; ``links``, fitted to collectives; ``platforms``, fitted to training on several devices; and
``training.toml``, fitted to training of language models.

The same data gives the same bytes: measurements are sorted, the fit starts at the prior, and numbers are rounded.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from paleo_lite.calibration.choose import POOL_FILE, Pool, why_not_pooled
from paleo_lite.calibration.fit import Fit, calibrate
from paleo_lite.calibration.from_profiles import measure_profiles
from paleo_lite.calibration.measured_devices import DeviceData, GroupKey, MeasuredDevices
from paleo_lite.calibration.measurements import Measurement, provenance_of
from paleo_lite.calibration.prior import SINGLE_OPERATIONS, prior_from_evidence, traits_of
from paleo_lite.calibration.store import make_calibration, write_calibration
from paleo_lite.calibration.validate import Point, validate
from paleo_lite.counting.work import ENGINE
from paleo_lite.files import write_atomically
from paleo_lite.machines import find_device, list_devices
from paleo_lite.units import PRECISION_BYTES

from .collectives.links import inputs_of, link_calibrations
from .collectives.published import published_exchanges
from .layers.amd import amd_operations
from .layers.hold_out import SCATTER, runs_of_layers
from .layers.published import OPERATIONS, published_layers
from .layers.timed import LayerTime
from .ordering import make_pool, shifts, write_pool
from .profiles.published import PROFILE_SETS
from .scaling.hold_out import validate_scaling
from .scaling.platforms import platforms_of
from .steps.published import published_steps

Written = Iterator[tuple[str, str]]
"""Name of each calibration that was written, and its held-out error."""


SPEAK_OF = ("efficiency_gemm", "share_other")
"""Parameters that single operations determine for networks. Convolutions are excluded, because they behave differently
alone than inside a network: including them increases the error of networks by two points."""

SPEAK_OF_CONVOLUTIONS = (
    "efficiency_conv_3x3", "efficiency_conv_direct", "efficiency_conv_1x1", "efficiency_conv_grouped",
    "factor_data_gradient", "factor_weight_gradient", "share_matrix", "half", "half_3x3",
)  # fmt: skip
"""Parameters that convolutions determine for AMD GPUs, for which no times of networks are published."""


def operations_of(measured: Path) -> list[DeviceData]:
    """Return matrix products and memory-bound operations, timed separately, by device, precision and source."""
    groups: dict[tuple[str, str, str], list[LayerTime]] = defaultdict(list)
    for each in published_layers(measured, files=OPERATIONS).layers:
        if each.kind != "conv" and not why_not_pooled(find_device(each.gpu)):
            groups[each.gpu, each.precision, each.source].append(each)
    for each in amd_operations(measured):
        if each.precision in find_device(each.gpu).precisions:
            groups[each.gpu, each.precision, each.source].append(each)
    found = []
    for (gpu, precision, source), group in sorted(groups.items()):
        device = find_device(gpu)
        traits = traits_of(device, precision, SINGLE_OPERATIONS, SINGLE_OPERATIONS, source)
        speak_of = SPEAK_OF_CONVOLUTIONS if group[0].kind == "conv" else SPEAK_OF
        found.append(DeviceData(device, precision, traits, runs_of_layers(group), SCATTER, speak_of))
    return found


def ship_devices(data: Path, folder: Path) -> Written:
    """Fit and write; of several sources of a device in a precision, the one with most measurements is shipped."""
    measurements = published_steps(data / "measured").measurements
    profiled = [
        step
        for known in PROFILE_SETS
        for step in measure_profiles([known.path(data)], known.gpu, known.network, known.precision)
    ]
    operations = operations_of(data / "measured")
    everything = MeasuredDevices([*measurements, *profiled], operations=operations)
    pool = ordered(make_pool([*everything.evidence().values(), *everything.operations]))
    write_pool(pool, folder / POOL_FILE)
    yield "pooled", f"{len(pool.fits)} fits; {len(pool.order)} shifted into the order of their data sheets"
    points = validate(measurements, "network", operations=operations)[1]
    yield from ship_measured(everything, pool, points, folder)


def ship_measured(devices: MeasuredDevices, pool: Pool, points: Sequence[Point], folder: Path) -> Written:
    """Fit and write what one source measured of each device in each precision, from what the pool says besides."""
    groups: dict[tuple[str, str], list[GroupKey]] = defaultdict(list)
    for key in devices.groups:
        groups[key.gpu, key.precision].append(key)
    for (gpu, precision), keys in sorted(groups.items()):
        chosen = max(sorted(keys), key=lambda key: len(devices.groups[key]))
        group = devices.groups[chosen]
        error = error_of(points, group)
        calibration = make_calibration(
            gpu, precision, group, fit_among_others(chosen, devices, pool), provenance_of(group), error
        )
        write_calibration(calibration, folder / f"{gpu}-{precision}.toml", force=True)
        shown = "-" if error is None else f"{error:.1%}"
        yield f"{gpu}-{precision}", f"{len(group)} measurements, held-out error {shown}"


def ordered(pool: Pool) -> Pool:
    """A pool with what puts the shipped devices into the order of their data sheets."""
    order: dict[str, dict[str, float]] = {}
    for precision in PRECISION_BYTES:
        for execution in ("eager", ENGINE):
            order.update(shifts(list_devices([]), precision, pool, execution))
    return msgspec.structs.replace(pool, order=order)


def fit_among_others(key: GroupKey, devices: MeasuredDevices, pool: Pool) -> Fit:
    """Fit what one source measured of a device in a precision, from what all others say of it."""
    traits = devices.measured[key].traits
    own = key._replace(execution=traits.execution)
    others = [one for one in pool.fits if GroupKey(one.id, one.measured_in, one.source, one.execution) != own]
    device = find_device(key.gpu)
    prior = prior_from_evidence(traits, others)
    return calibrate(devices.groups[key], device, key.precision, prior)[1]


def error_of(points: Sequence[Point], group: Sequence[Measurement]) -> float | None:
    """Mean absolute relative error of a group's measurements in a validation; None where it holds none of them."""
    own = set(group)
    errors = [abs(point.error) for point in points if point.measurement in own]
    return sum(errors) / len(errors) if errors else None


def ship_links(measured: Path, folder: Path) -> Written:
    """Fit and write a TOML of each platform whose collectives were measured."""
    for name, calibration in link_calibrations(published_exchanges(measured).exchanges, inputs_of(measured)).items():
        head = b"# Fitted by paleo-lite; every parameter is explained in docs/topology.md.\n"
        write_atomically(folder / f"{name}.toml", head + msgspec.toml.encode(calibration))
        errors = ", ".join(f"{name} {fit.held_out_sizes:.1%}" for name, fit in calibration.operations.items())
        yield name, f"held-out error {errors}"


def ship_platforms(data: Path, folder: Path) -> Written:
    """Fit and write a TOML of each platform on which training on several devices was measured."""
    for name, platform in platforms_of(validate_scaling(data)).items():
        head = b"# Fitted by paleo-lite; every field is explained in docs/scale.md.\n"
        write_atomically(folder / f"{name}.toml", head + msgspec.toml.encode(platform))
        yield name, platform.held_out

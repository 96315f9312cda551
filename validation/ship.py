"""Fit all calibrations that the published measurements allow, and write them to the folder that the package ships.

``DEVICE-PRECISION.toml`` calibrates a device in a precision, and ``pooled.json`` holds the evidence from all devices
for predicting a device without measurements. ``links`` holds calibrations of links from collectives, ``platforms``
those of computers from training on several devices. ``training.toml`` is fitted to the training of language models.

Identical inputs produce identical files: measurements are sorted, fits start at the prior, and numbers are rounded.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from paleo_lite.calibration.fit import Fit, calibrate
from paleo_lite.calibration.from_profiles import measure_profiles
from paleo_lite.calibration.measured_devices import DeviceData, GroupKey, MeasuredDevices
from paleo_lite.calibration.measurements import Measurement, provenance_of
from paleo_lite.calibration.pool import POOL_FILE, Pool, why_not_pooled
from paleo_lite.calibration.prior import SINGLE_OPERATIONS, prior_of_calibration, traits_of
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

WrittenCalibrations = Iterator[tuple[str, str]]
"""Name of each calibration after it is written, and a description of its held-out error."""


INFORMATIVE_PARAMETERS = ("efficiency_gemm", "share_other")
"""Parameters that single operations inform. Convolutions timed alone behave differently from those inside a network:
learning from them increases the error of networks by two percentage points."""

INFORMATIVE_FOR_CONVOLUTIONS = (
    "efficiency_conv_3x3", "efficiency_conv_direct", "efficiency_conv_1x1", "efficiency_conv_grouped",
    "factor_data_gradient", "factor_weight_gradient", "share_matrix", "half", "half_3x3",
)  # fmt: skip
"""Parameters that convolutions inform on AMD's GPUs, for which no times of networks are published."""


def operations_of(measured: Path) -> list[DeviceData]:
    """Return the single matrix products and memory-bound operations, by device, precision and source."""
    groups: dict[tuple[str, str, str], list[LayerTime]] = defaultdict(list)
    for layer in published_layers(measured, files=OPERATIONS).layers:
        if layer.kind != "conv" and not why_not_pooled(find_device(layer.gpu)):
            groups[layer.gpu, layer.precision, layer.source].append(layer)
    for layer in amd_operations(measured):
        if layer.precision in find_device(layer.gpu).precisions:
            groups[layer.gpu, layer.precision, layer.source].append(layer)
    operations = []
    for (gpu, precision, source), group in sorted(groups.items()):
        device = find_device(gpu)
        traits = traits_of(device, precision, SINGLE_OPERATIONS, SINGLE_OPERATIONS, source)
        informative = INFORMATIVE_FOR_CONVOLUTIONS if group[0].kind == "conv" else INFORMATIVE_PARAMETERS
        operations.append(DeviceData(device, precision, traits, runs_of_layers(group), SCATTER, informative))
    return operations


def ship_devices(data: Path, folder: Path) -> WrittenCalibrations:
    """Fit and write the calibrations of devices.

    If several sources measured a device in a precision, the source with the most measurements is used.
    """
    measurements = published_steps(data / "measured").measurements
    profiled: list[Measurement] = []
    for profiles in PROFILE_SETS:
        profiled += measure_profiles([profiles.path(data)], profiles.gpu, profiles.network, profiles.precision)
    operations = operations_of(data / "measured")
    everything = MeasuredDevices([*measurements, *profiled], operations=operations)
    pool = with_order(make_pool([*everything.evidence().values(), *everything.operations]))
    write_pool(pool, folder / POOL_FILE)
    yield "pooled", f"{len(pool.fits)} fits; {len(pool.order)} shifted into the order of their data sheets"
    points = validate(measurements, "network", operations=operations)[1]
    yield from ship_measured(everything, pool, points, folder)


def ship_measured(devices: MeasuredDevices, pool: Pool, points: Sequence[Point], folder: Path) -> WrittenCalibrations:
    """Fit each device in each precision to the measurements of one source, with the rest of the pool as prior."""
    groups: dict[tuple[str, str], list[GroupKey]] = defaultdict(list)
    for key in devices.groups:
        groups[key.gpu, key.precision].append(key)
    for (gpu, precision), keys in sorted(groups.items()):
        chosen = max(sorted(keys), key=lambda key: len(devices.groups[key]))
        group = devices.groups[chosen]
        error = error_of(points, group)
        fit = fit_with_pool_prior(chosen, devices, pool)
        calibration = make_calibration(gpu, precision, group, fit, provenance_of(group), error)
        write_calibration(calibration, folder / f"{gpu}-{precision}.toml", force=True)
        shown = "-" if error is None else f"{error:.1%}"
        yield f"{gpu}-{precision}", f"{len(group)} measurements, held-out error {shown}"


def with_order(pool: Pool) -> Pool:
    """Return the pool with the shifts that put the shipped devices into the order of their data sheets."""
    order: dict[str, dict[str, float]] = {}
    for precision in PRECISION_BYTES:
        for execution in ("eager", ENGINE):
            order.update(shifts(list_devices([]), precision, pool, execution))
    return msgspec.structs.replace(pool, order=order)


def fit_with_pool_prior(key: GroupKey, devices: MeasuredDevices, pool: Pool) -> Fit:
    """Fit one source's measurements of a device in a precision, with a prior from all other evidence in the pool."""
    traits = devices.measured[key].traits
    own_key = key._replace(execution=traits.execution)
    others = [
        evidence
        for evidence in pool.fits
        if GroupKey(evidence.id, evidence.measured_in, evidence.source, evidence.execution) != own_key
    ]
    device = find_device(key.gpu)
    prior = prior_of_calibration(traits, others)
    return calibrate(devices.groups[key], device, key.precision, prior)[1]


def error_of(points: Sequence[Point], group: Sequence[Measurement]) -> float | None:
    """Return the mean absolute relative error of a group's measurements in a validation; None if it has none."""
    members = set(group)
    errors = [abs(point.error) for point in points if point.measurement in members]
    return sum(errors) / len(errors) if errors else None


def ship_links(measured: Path, folder: Path) -> WrittenCalibrations:
    """Fit and write a TOML file for each platform with measured collectives."""
    for name, calibration in link_calibrations(published_exchanges(measured).exchanges, inputs_of(measured)).items():
        head = b"# Fitted by paleo-lite; every parameter is explained in docs/topology.md.\n"
        write_atomically(folder / f"{name}.toml", head + msgspec.toml.encode(calibration))
        errors = ", ".join(f"{name} {fit.held_out_sizes:.1%}" for name, fit in calibration.operations.items())
        yield name, f"held-out error {errors}"


def ship_platforms(data: Path, folder: Path) -> WrittenCalibrations:
    """Fit and write a TOML file for each platform with measured training on several devices."""
    for name, platform in platforms_of(validate_scaling(data)).items():
        head = b"# Fitted by paleo-lite; every field is explained in docs/scale.md.\n"
        write_atomically(folder / f"{name}.toml", head + msgspec.toml.encode(platform))
        yield name, platform.held_out

"""Validation of training on several GPUs: the constants of each platform are fitted to part of its measurements.

The constants are the relative slowdown of computation with more than one GPU (``slowdown``), the slowdown during
overlapped communication as a fraction of its time (``interference``), and the achieved bandwidth within a socket and
between sockets or nodes. The fit is a maximum a posteriori estimate; the prior of the bandwidths comes from the shipped
calibrations of the same kinds of links.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from paleo_lite.architectures import find_network
from paleo_lite.calibration.store import find_calibration
from paleo_lite.distributed.data_parallel import all_reduce_exchange, overlap_with_backward
from paleo_lite.distributed.job import DeviceStep, Job
from paleo_lite.distributed.links import LinkRate, Topology, link_rate
from paleo_lite.distributed.settings import Settings
from paleo_lite.extras import require
from paleo_lite.machines import Machine, find_device
from paleo_lite.timing import Workload

from .published import ScaledStep, surfboard_scaling, tensorflow_scaling

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

SOCKET = 4
"""GPUs per CPU socket on both platforms of TensorFlow's page."""

FUSION_BYTES = 64 * 2**20
"""Horovod's ``HOROVOD_FUSION_THRESHOLD``."""

EFFICIENCY_SCATTER = 0.02
"""Standard deviation of a measured efficiency: repeated runs of TensorFlow differ by this much."""

TIME_SCATTER = 0.02
"""Standard deviation of the logarithm of a measured time."""


class ScaledPoint(msgspec.Struct, frozen=True):
    """A measurement and its prediction."""

    measurement: ScaledStep
    held_out: str  # property of the measurements that the fit did not use; empty if the measurement was fitted
    predicted_s: float
    error: float  # relative error of the time
    # Efficiency relative to one GPU; None if one GPU was not measured.
    efficiency: float | None = None
    predicted_efficiency: float | None = None
    off: float | None = None  # predicted minus measured efficiency


class PrecisionGap(msgspec.Struct, frozen=True):
    """Measured and predicted extra time of a step with fp32 gradients over one with fp16 gradients."""

    nodes: int
    batch_size: int
    how: str
    measured_s: float
    predicted_s: float
    fitted: bool  # whether the steps were fitted (those on 8 nodes)


class ScalingValidation(msgspec.Struct, frozen=True):
    """Result of the validation."""

    points: list[ScaledPoint]
    gaps: list[PrecisionGap]
    constants: dict[str, dict[str, float]]  # constants fitted to all measurements of each platform


def validate_scaling(folder: Path, gpus: Sequence[str] = ()) -> ScalingValidation:
    """Predict held-out measurements of training on several GPUs.

    Parameters
    ----------
    folder : Path
        Folder with ``measured/networks.csv`` and ``surfboard/derived/cartesius_batch_durations_recovered.csv``.
    gpus : sequence of str
        Devices to validate (default: all).

    Raises
    ------
    BadFile
        If a file cannot be read.
    MissingExtra
        If scipy is not installed.
    """
    points: list[ScaledPoint] = []
    constants: dict[str, dict[str, float]] = {}
    measured = [each for each in tensorflow_scaling(folder / "measured") if not gpus or each.gpu in gpus]
    for platform in sorted({each.platform for each in measured}):
        cases = [_Case(each) for each in measured if each.platform == platform]
        for held_out, label in (("network", lambda m: m.network), ("batch 64", lambda m: m.batch_size == 64)):
            points += _predict_held_out(cases, held_out, label)
        constants[platform] = _name_constants(_fit_sockets(cases))
    if gpus and "k40m" not in gpus:
        return ScalingValidation(points, [], constants)
    cluster = surfboard_scaling(folder / "surfboard" / "derived" / "cartesius_batch_durations_recovered.csv")
    cluster_points, constants["Cartesius"] = _validate_cluster(cluster)
    return ScalingValidation(points + cluster_points, _gaps(cluster_points), constants)


def _point(measurement: ScaledStep, held_out: str, predicted_s: float) -> ScaledPoint:
    error = predicted_s / measurement.time_s - 1
    if measurement.alone_s is None:
        return ScaledPoint(measurement, held_out, predicted_s, error)
    measured, predicted = measurement.alone_s / measurement.time_s, measurement.alone_s / predicted_s
    return ScaledPoint(measurement, held_out, predicted_s, error, measured, predicted, predicted - measured)


class _Case:
    """A measurement with the layer times of one GPU, scaled to its measured step time."""

    def __init__(self, measurement: ScaledStep) -> None:
        self.measurement = measurement
        self.job = _job(measurement.gpu, measurement.network)
        step = self.job.device_step(measurement.batch_size)
        self.alone_s = measurement.alone_s or step.time_s
        self.step = step.scaled_by(self.alone_s / step.time_s)

    def predict(self, values: Floats) -> float:
        """Return the seconds of the step with a platform's constants, in the order of `_socket_prior`."""
        slowdown, interference, inside, between = values.tolist()
        workers = self.measurement.workers
        socket_workers = min(workers, SOCKET)
        topology = Topology(
            None, socket_workers, LinkRate("inside", inside), workers // socket_workers, LinkRate("between", between)
        )
        settings = Settings("ring", self.measurement.gradient_precision, slowdown=slowdown, interference=interference)
        return _step_s(self.job, self.step, topology, settings)


def _step_s(job: Job, step: DeviceStep, topology: Topology, settings: Settings) -> float:
    """Return the seconds of a step with the gradients exchanged during the backward pass."""
    return float(overlap_with_backward(step, all_reduce_exchange(job, topology, settings), settings).time_s)


_JOBS: dict[tuple[str, str], Job] = {}


def _job(gpu: str, network: str) -> Job:
    if (gpu, network) not in _JOBS:
        model = find_calibration(f"{gpu}-fp32").model()
        _JOBS[gpu, network] = Job(Workload(find_network(network), phase="training"), Machine(find_device(gpu)), model)
    return _JOBS[gpu, network]


def _socket_prior() -> tuple[Floats, Floats]:
    """Return means and deviations of the logarithms of the constants, with bandwidths of NCCL on similar links."""
    inside, between = (link_rate(name) for name in ("pcie3-one-socket", "pcie3-two-sockets"))
    rates = [link.bandwidth_bytes_per_s * float(link.ppp_for(at)) for link, at in ((inside, SOCKET), (between, 8))]
    return np.log([0.02, 0.1, *rates]), np.array([0.7, 0.7, 0.3, 0.3])


def _fit_sockets(cases: Sequence[_Case]) -> Floats:
    prior, deviation = _socket_prior()

    def residuals(theta: Floats) -> Floats:
        values = np.exp(theta)
        errors = []
        for case in cases:
            predicted_efficiency = case.alone_s / case.predict(values)
            efficiency = case.alone_s / case.measurement.time_s
            errors.append((predicted_efficiency - efficiency) / EFFICIENCY_SCATTER)
        return np.concatenate([errors, (theta - prior) / deviation])

    return _solve(residuals, prior, deviation)


def _solve(residuals: Callable[[Floats], Floats], start: Floats, scale: Floats) -> Floats:
    optimize = require("scipy.optimize", "fitting a platform", "calibrate")
    return np.asarray(np.exp(optimize.least_squares(residuals, start, x_scale=scale).x))


def _name_constants(values: Floats) -> dict[str, float]:
    names = ("slowdown", "interference", "inside_bytes_per_s", "between_bytes_per_s")
    return dict(zip(names, values.tolist()))


def _predict_held_out(
    cases: Sequence[_Case], held_out: str, label: Callable[[ScaledStep], object]
) -> list[ScaledPoint]:
    """Predict the cases of each label from the others; for a boolean label only the true ones."""
    points = []
    for fold in sorted({label(case.measurement) for case in cases}, key=str):
        if fold is False:
            continue
        inside = [case for case in cases if label(case.measurement) == fold]
        values = _fit_sockets([case for case in cases if label(case.measurement) != fold])
        for case in inside:
            points.append(_point(case.measurement, held_out, case.predict(values)))
    return points


def _validate_cluster(measured: Sequence[ScaledStep]) -> tuple[list[ScaledPoint], dict[str, float]]:
    """Fit the constants of Cartesius to 8 nodes, and predict 16 and 32 nodes.

    Horovod over MPI through the host's memory does not overlap: results are copied back on the stream on which the
    whole backward pass is queued. Profiles give the kernel times of one GPU. Their sum exceeds the wall-clock time
    because small kernels run concurrently, so the ratio is fitted for each batch size, together with the bandwidth.
    """
    network = link_rate("infiniband-fdr", 1.0)
    job = _job("k40m", "resnet50")
    jobs = {each.batch_size: job.device_step(each.batch_size) for each in measured}

    sizes = sorted(jobs)

    def predict(each: ScaledStep, values: Floats) -> float:
        step = jobs[each.batch_size].scaled_by(float(values[sizes.index(each.batch_size)]))
        settings = Settings("ring", each.gradient_precision, overlap=False, bucket_bytes=FUSION_BYTES)
        topology = Topology(None, 1, None, each.workers, msgspec.structs.replace(network, ppp=float(values[-1])))
        return _step_s(job, step, topology, settings)

    fitted = [each for each in measured if each.nodes == 8]
    start, deviation = np.log([*[0.9] * len(sizes), 0.3]), np.array([*[0.2] * len(sizes), 1.0])

    def residuals(theta: Floats) -> Floats:
        values = np.exp(theta)
        errors = [math.log(predict(step, values) / step.time_s) / TIME_SCATTER for step in fitted]
        return np.concatenate([errors, (theta - start) / deviation])

    values = _solve(residuals, start, deviation)
    points = [_point(each, "" if each.nodes == 8 else "16 and 32 nodes", predict(each, values)) for each in measured]
    constants = {f"wall_over_kernels_{size}": float(value) for size, value in zip(sizes, values)}
    return points, constants | {"between_bytes_per_s": float(values[-1]) * network.bandwidth_bytes_per_s}


def _gaps(points: Sequence[ScaledPoint]) -> list[PrecisionGap]:
    """Pair the points that differ only in the precision of gradients."""
    by_key: dict[tuple[int, int, str], dict[str, ScaledPoint]] = {}
    for point in points:
        each = point.measurement
        by_key.setdefault((each.nodes, each.batch_size, each.how), {})[each.gradient_precision] = point
    return [
        PrecisionGap(
            nodes, batch, how,
            by_precision["fp32"].measurement.time_s - by_precision["fp16"].measurement.time_s,
            by_precision["fp32"].predicted_s - by_precision["fp16"].predicted_s,
            not by_precision["fp32"].held_out,
        )
        for (nodes, batch, how), by_precision in sorted(by_key.items())
        if len(by_precision) == 2
    ]  # fmt: skip

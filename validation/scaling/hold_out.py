"""Predicted beside measured training on several GPUs: a few constants of each platform fitted, the rest held out.

Constants of a platform: by what share computing takes longer as soon as several GPUs work (``slowdown``), by what share
of a hidden exchange (``interference``), and the bandwidth that exchanges reach in a socket and between sockets or
nodes. The fit is a maximum a posteriori one: the bandwidths start from the shipped calibrations of such links, which
were measured by others.
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
from paleo_lite.distributed.job import DeviceStep, Job, Settings
from paleo_lite.distributed.links import LinkRate, Topology, link_rate
from paleo_lite.extras import require
from paleo_lite.machines import Machine, find_device
from paleo_lite.timing import Workload

from .published import ScaledStep, surfboard_scaling, tensorflow_scaling

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

SOCKET = 4
"""GPUs under one CPU socket, of both platforms of TensorFlow's page."""

FUSION_BYTES = 64 * 2**20
"""Horovod's ``HOROVOD_FUSION_THRESHOLD``."""

EFFICIENCY_SCATTER = 0.02
"""Of a measured efficiency; TensorFlow's are printed to three digits, and repeated runs differ by as much."""
TIME_SCATTER = 0.02


class ScaledPoint(msgspec.Struct, frozen=True):
    """A measurement beside its prediction.

    Attributes
    ----------
    measurement : ScaledStep
    held_out : str
        What the fit did not see; empty where it saw the measurement itself.
    predicted_s : float
    error : float
        Relative error of the time.
    efficiency, predicted_efficiency : float or None
        Relative to one GPU; None where one was not measured.
    off : float or None
        Predicted efficiency less the measured one.
    """

    measurement: ScaledStep
    held_out: str
    predicted_s: float
    error: float
    efficiency: float | None = None
    predicted_efficiency: float | None = None
    off: float | None = None


class Gap(msgspec.Struct, frozen=True):
    """What fp32 gradients take longer than fp16 ones, all else alike: measured and predicted; `fitted` on 8 nodes."""

    nodes: int
    batch_size: int
    how: str
    measured_s: float
    predicted_s: float
    fitted: bool


class ScalingTruth(msgspec.Struct, frozen=True):
    """All of it.

    Attributes
    ----------
    points : list of ScaledPoint
    gaps : list of Gap
    constants : dict of str to dict of str to float
        For each platform what was fitted to all its measurements.
    """

    points: list[ScaledPoint]
    gaps: list[Gap]
    constants: dict[str, dict[str, float]]


def validate_scaling(folder: Path, gpus: Sequence[str] = ()) -> ScalingTruth:
    """Hold out, predict, compare.

    Parameters
    ----------
    folder : Path
        With ``measured/networks.csv`` and ``surfboard/derived/cartesius_batch_durations_recovered.csv``.
    gpus : sequence of str
        Only these devices; all where empty.

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
            points += _held_out(cases, held_out, label)
        constants[platform] = _named(_fit_sockets(cases))
    if gpus and "k40m" not in gpus:
        return ScalingTruth(points, [], constants)
    cluster = surfboard_scaling(folder / "surfboard" / "derived" / "cartesius_batch_durations_recovered.csv")
    found, constants["Cartesius"] = _cluster(cluster)
    return ScalingTruth(points + found, _gaps(found), constants)


def _point(measurement: ScaledStep, held_out: str, predicted_s: float) -> ScaledPoint:
    error = predicted_s / measurement.time_s - 1
    if measurement.alone_s is None:
        return ScaledPoint(measurement, held_out, predicted_s, error)
    measured, predicted = measurement.alone_s / measurement.time_s, measurement.alone_s / predicted_s
    return ScaledPoint(measurement, held_out, predicted_s, error, measured, predicted, predicted - measured)


class _Case:
    """A measurement with the layers' times of one GPU, stretched to what one GPU was measured to take."""

    def __init__(self, measurement: ScaledStep) -> None:
        self.measurement = measurement
        self.job = _job(measurement.gpu, measurement.network)
        step = self.job.device_step(measurement.batch_size)
        self.alone_s = measurement.alone_s or step.time_s
        self.step = step.scaled_by(self.alone_s / step.time_s)

    def predict(self, values: Floats) -> float:
        """Seconds with a platform's constants, in the order of `_SOCKET_PRIOR`."""
        slowdown, interference, inside, between = values.tolist()
        workers = self.measurement.workers
        here = min(workers, SOCKET)
        topology = Topology(None, here, LinkRate("inside", inside), workers // here, LinkRate("between", between))
        settings = Settings("ring", self.measurement.gradient_precision, slowdown=slowdown, interference=interference)
        return _exchanged_s(self.job, self.step, topology, settings)


def _exchanged_s(job: Job, step: DeviceStep, topology: Topology, settings: Settings) -> float:
    """Seconds of a step of one GPU with gradients exchanged beside it."""
    return float(overlap_with_backward(step, all_reduce_exchange(job, topology, settings), settings).time_s)


_JOBS: dict[tuple[str, str], Job] = {}


def _job(gpu: str, network: str) -> Job:
    if (gpu, network) not in _JOBS:
        model = find_calibration(f"{gpu}-fp32").model()
        _JOBS[gpu, network] = Job(Workload(find_network(network), phase="training"), Machine(find_device(gpu)), model)
    return _JOBS[gpu, network]


def _socket_prior() -> tuple[Floats, Floats]:
    """Logarithms of the constants and their deviations: the links' as NCCL was measured on them in other computers."""
    inside, between = (link_rate(name) for name in ("pcie3-one-socket", "pcie3-two-sockets"))
    rates = [link.bandwidth_bytes_per_s * float(link.ppp_for(at)) for link, at in ((inside, SOCKET), (between, 8))]
    return np.log([0.02, 0.1, *rates]), np.array([0.7, 0.7, 0.3, 0.3])


def _fit_sockets(cases: Sequence[_Case]) -> Floats:
    prior, deviation = _socket_prior()

    def residuals(theta: Floats) -> Floats:
        values = np.exp(theta)
        off = [
            (case.alone_s / case.predict(values) - case.alone_s / case.measurement.time_s) / EFFICIENCY_SCATTER
            for case in cases
        ]
        return np.concatenate([off, (theta - prior) / deviation])

    return _solved(residuals, prior, deviation)


def _solved(residuals: Callable[[Floats], Floats], start: Floats, scale: Floats) -> Floats:
    optimize = require("scipy.optimize", "fitting a platform", "calibrate")
    return np.asarray(np.exp(optimize.least_squares(residuals, start, x_scale=scale).x))


def _named(values: Floats) -> dict[str, float]:
    names = ("slowdown", "interference", "inside_bytes_per_s", "between_bytes_per_s")
    return dict(zip(names, values.tolist()))


def _held_out(cases: Sequence[_Case], held_out: str, label: Callable[[ScaledStep], object]) -> list[ScaledPoint]:
    """Each label's cases predicted from the others; of a label that is true or false the true ones."""
    found = []
    for fold in sorted({label(case.measurement) for case in cases}, key=str):
        if fold is False:
            continue
        inside = [case for case in cases if label(case.measurement) == fold]
        values = _fit_sockets([case for case in cases if label(case.measurement) != fold])
        for case in inside:
            found.append(_point(case.measurement, held_out, case.predict(values)))
    return found


def _cluster(measured: Sequence[ScaledStep]) -> tuple[list[ScaledPoint], dict[str, float]]:
    """Fitted on 8 nodes, held out: 16 and 32.

    Horovod over MPI through the host's memory hides nothing: results are copied back on the stream that the whole
    backward pass is queued on. Profiles give one GPU's kernel times, which add up to more than the wall's, as small
    kernels run side by side: their ratio is fitted for each
    batch size, with the bandwidth.
    """
    network = link_rate("infiniband-fdr", 1.0)
    job = _job("k40m", "resnet50")
    jobs = {each.batch_size: job.device_step(each.batch_size) for each in measured}

    sizes = sorted(jobs)

    def predict(each: ScaledStep, values: Floats) -> float:
        step = jobs[each.batch_size].scaled_by(float(values[sizes.index(each.batch_size)]))
        settings = Settings("ring", each.gradient_precision, overlap=False, bucket_bytes=FUSION_BYTES)
        topology = Topology(None, 1, None, each.workers, msgspec.structs.replace(network, ppp=float(values[-1])))
        return _exchanged_s(job, step, topology, settings)

    fitted = [each for each in measured if each.nodes == 8]
    start, deviation = np.log([*[0.9] * len(sizes), 0.3]), np.array([*[0.2] * len(sizes), 1.0])

    def residuals(theta: Floats) -> Floats:
        off = [math.log(predict(each, np.exp(theta)) / each.time_s) / TIME_SCATTER for each in fitted]
        return np.concatenate([off, (theta - start) / deviation])

    values = _solved(residuals, start, deviation)
    points = [_point(each, "" if each.nodes == 8 else "16 and 32 nodes", predict(each, values)) for each in measured]
    constants = {f"wall_over_kernels_{size}": float(value) for size, value in zip(sizes, values)}
    return points, constants | {"between_bytes_per_s": float(values[-1]) * network.bandwidth_bytes_per_s}


def _gaps(points: Sequence[ScaledPoint]) -> list[Gap]:
    by_key: dict[tuple[int, int, str], dict[str, ScaledPoint]] = {}
    for point in points:
        each = point.measurement
        by_key.setdefault((each.nodes, each.batch_size, each.how), {})[each.gradient_precision] = point
    return [
        Gap(
            nodes, batch, how,
            both["fp32"].measurement.time_s - both["fp16"].measurement.time_s,
            both["fp32"].predicted_s - both["fp16"].predicted_s,
            not both["fp32"].held_out,
        )
        for (nodes, batch, how), both in sorted(by_key.items())
        if len(both) == 2
    ]  # fmt: skip

"""Validation of the prior for clusters without measurements, with one cluster or source held out.

A second validation forecasts larger sizes of the held-out cluster from one or two of its measurements.

The points come from TensorFlow's benchmarks page, the distributed tables of MXNet and TensorFlow, Cartesius, and
``published_clusters.csv``, which quotes values with their sources. Topologies are given as users would write them.
"""

from __future__ import annotations

from collections import Counter
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from paleo_lite.architectures import find_network
from paleo_lite.calibration.choose import choose_model
from paleo_lite.calibration.store import find_calibration
from paleo_lite.distributed.clusters import (
    Cluster,
    ClusterPrior,
    ClusterScores,
    cluster_prior,
    condition_on_measurements,
)
from paleo_lite.distributed.data_parallel import train_data_parallel
from paleo_lite.distributed.job import Job, Step
from paleo_lite.distributed.links import Topology
from paleo_lite.distributed.platforms import Platform, find_platform, parse_topology
from paleo_lite.distributed.scale import add_input_wait
from paleo_lite.distributed.settings import InputSettings, Settings
from paleo_lite.machines import Machine, find_device
from paleo_lite.timing import Workload

from ..tables import rows_of
from .published import surfboard_scaling, tensorflow_scaling

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

QUOTED = Path(__file__).parent / "published_clusters.csv"
SOCKETS = {"EC2 p2.8xlarge": "8x @ pcie3", "DGX-1": "8x @ nvlink1-x4"}
PAGEABLE = InputSettings(None, None, True, "pcie3-x16", 15.75e9)
"""Input of MXNet's module: one process copies all samples from the host's pageable memory.

TensorFlow's synthetic data resides on the device; DALI and the other loaders prefetch.
"""
INPUTS = {"EC2 p2.16xlarge": PAGEABLE}
"""Input settings of clusters with unhidden input copies."""
NETWORKS = {
    "EC2 p2.16xlarge": "16x @ pcie3, 16 nodes @ ethernet-20",
    "EC2 p2.8xlarge distributed": "8x @ pcie3, 8 nodes @ ethernet-10",
}


class ClusterPoint(msgspec.Struct, frozen=True):
    """A measured efficiency."""

    cluster: str
    source: str
    gpu: str
    precision: str
    network: str
    batch_size: int  # batch size per device
    topology: str
    workers: int
    efficiency: float  # throughput per device relative to that on `than_workers` devices
    gradient_precision: str = "fp32"
    alone_s: float | None = None  # measured seconds of a step on one device; None if unknown
    than_workers: int = 1
    software: str = ""


def cluster_points(folder: Path) -> list[ClusterPoint]:
    """Read all points from a folder that contains ``measured``, ``modern`` and ``surfboard``.

    Raises
    ------
    BadFile
        If a table cannot be read.
    """
    points = [
        ClusterPoint(
            step.platform, "TensorFlow", step.gpu, "fp32", step.network, step.batch_size, SOCKETS[step.platform],
            step.workers, step.alone_s / step.time_s, alone_s=step.alone_s,
        )
        for step in tensorflow_scaling(folder / "measured")
        if step.alone_s is not None
    ]  # fmt: skip
    rows = list(rows_of(folder / "modern" / "scaling_published.csv"))
    keys = ("platform", "network", "batch_per_device")
    alone = {tuple(row[key] for key in keys): float(row["images_per_s"]) for row in rows if row["n_devices"] == "1"}
    for row in rows:
        workers, per_s = int(row["n_devices"]), alone[tuple(row[key] for key in keys)]
        if workers > 1:
            cluster, batch = row["platform"].split(",")[0], int(row["batch_per_device"])
            source = "MXNet" if row["framework"].startswith("mxnet") else "TensorFlow"
            efficiency = float(row["images_per_s"]) / workers / per_s
            points.append(
                ClusterPoint(
                    cluster, source, row["device"], "fp32", row["network"], batch, NETWORKS[cluster], workers,
                    efficiency, alone_s=batch / per_s,
                )
            )  # fmt: skip
    # A single device of Cartesius was not timed: use the calibration from its profiles, times the fitted ratio of wall
    # clock to kernel time.
    platform = find_platform("cartesius-k40m")
    assert isinstance(platform, Platform)
    workload, k40m = Workload(find_network("resnet50"), phase="training"), Machine(find_device("k40m"))
    cartesius = Job(workload, k40m, find_calibration("k40m-fp32").model(), platform.compute_ratio)
    for step in surfboard_scaling(folder / "surfboard" / "derived" / "cartesius_batch_durations_recovered.csv"):
        alone_s = cartesius.device_step(step.batch_size).time_s
        points.append(
            ClusterPoint(
                "Cartesius", "SURFBoard", "k40m", "fp32", "resnet50", step.batch_size,
                "2x @ pcie3, 32 nodes @ infiniband-fdr", step.workers, alone_s / step.time_s,
                step.gradient_precision, alone_s,
            )
        )  # fmt: skip
    return points + quoted_points()


def quoted_points() -> list[ClusterPoint]:
    """Read ``published_clusters.csv``; with mixed precision, gradients are exchanged in fp32."""
    points = []
    for row in rows_of(QUOTED):
        batch, per_s = int(row["batch_size"]), row["alone_per_s"]
        points.append(
            ClusterPoint(
                row["cluster"], row["source"].split()[0], row["gpu"], row["precision"], row["network"], batch,
                row["topology"], int(row["workers"]), float(row["efficiency"]),
                alone_s=batch / float(per_s) if per_s else None, than_workers=int(row["than_workers"]),
                software=row["what"],
            )
        )  # fmt: skip
    return points


@cache
def job_of(gpu: str, precision: str, network: str) -> Job:
    """Return the training of a network on a device, with the shipped constants."""
    device = find_device(gpu)
    workload = Workload(find_network(network), precision, phase="training")
    return Job(workload, Machine(device), choose_model(device, precision))


@cache
def machine_of(topology: str) -> Topology:
    """Return the machine of a description."""
    return parse_topology(topology)


class _TimedJob(Job):
    """A job with the measured step time on one device, less the input copies that it includes."""

    def __init__(self, point: ClusterPoint) -> None:
        job, batch = job_of(point.gpu, point.precision, point.network), point.batch_size
        super().__init__(job.workload, job.machine, job.model)
        step = job.device_step(batch)
        inputs, alone_s = INPUTS.get(point.cluster), point.alone_s or step.time_s
        if inputs is not None and point.alone_s is not None:
            alone_s -= float(
                add_input_wait(step, job, machine_of(point.topology).with_workers(1), batch, inputs).input_s
            )
        self._device_steps[batch] = step.scaled_by(alone_s / step.time_s)


@cache
def _timed_job(point: ClusterPoint) -> Job:
    return _TimedJob(point)


def _settings(point: ClusterPoint) -> Settings:
    return Settings(gradient_precision=point.gradient_precision, inputs=INPUTS.get(point.cluster))


def _step(point: ClusterPoint, machine: Topology, settings: Settings, compute_scale: float = 1.0) -> Step:
    """Predict a data-parallel step on all devices of `machine`."""
    job, total = _timed_job(point), point.batch_size * machine.workers
    step = train_data_parallel(
        job.with_compute_scale(compute_scale), machine, total, settings.with_straggler_slowdown(machine.workers)
    )
    return step if settings.inputs is None else add_input_wait(step, job, machine, total, settings.inputs)


def efficiency_of(point: ClusterPoint, cluster: Cluster) -> tuple[float, float, float]:
    """Return the expected efficiency, and the lower and upper end of its 90% interval."""

    def seconds(workers: int) -> tuple[float, float, float]:
        machine, settings = machine_of(point.topology).with_workers(workers), _settings(point)
        if workers == 1:
            return (float(_step(point, machine, settings).time_s),) * 3
        forecast = cluster.forecast_step(lambda *how: _step(point, *how), machine, settings)
        return float(forecast.step.time_s), float(forecast.best_s), float(forecast.worst_s)

    fewer, more = seconds(point.than_workers), seconds(point.workers)
    expected, high, low = (first / second for first, second in zip(fewer, more))
    return expected, low, high


def learn_stragglers(points: list[ClusterPoint]) -> float:
    """Fit the straggler penalty by least squares; every cluster has the same weight.

    Efficiencies are nearly linear in the penalty, so two predictions per point determine the solution.
    """
    prior = cluster_prior()
    penalties = [msgspec.structs.replace(prior.straggler_penalty, expected=share) for share in (0.0, 0.05)]
    predictions = []
    for penalty in penalties:
        cluster = msgspec.structs.replace(prior, straggler_penalty=penalty)
        predictions.append(np.array([efficiency_of(point, cluster)[0] for point in points]))
    first, second = predictions
    sizes = Counter(point.cluster for point in points)
    weights = np.array([1 / sizes[point.cluster] for point in points])
    slope = (second - first) / 0.05
    measured = np.array([point.efficiency for point in points])
    return float(np.sum(weights * slope * (measured - first)) / np.sum(weights * slope**2))


class HeldOutCluster(msgspec.Struct, frozen=True):
    """A point and its forecast from the other clusters or sources."""

    point: ClusterPoint
    expected: float  # expected efficiency
    # Ends of the 90% interval.
    low: float
    high: float

    @property
    def error(self) -> float:
        """Expected minus measured efficiency."""
        return self.expected - self.point.efficiency

    @property
    def is_covered(self) -> bool:
        """Whether the interval contains the measurement, which is published to a hundredth."""
        return self.low - 0.01 <= self.point.efficiency <= self.high + 0.01


def hold_out(points: list[ClusterPoint], field: str = "cluster") -> list[HeldOutCluster]:
    """Predict the points of every cluster (or ``source``) with the prior learned from the others."""
    results: list[HeldOutCluster] = []
    for name in dict.fromkeys(getattr(point, field) for point in points):
        prior = _prior(learn_stragglers([point for point in points if getattr(point, field) != name]))
        results += [
            HeldOutCluster(point, *efficiency_of(point, prior)) for point in points if getattr(point, field) == name
        ]
    return results


def _prior(stragglers: float) -> ClusterPrior:
    prior = cluster_prior()
    return msgspec.structs.replace(
        prior, straggler_penalty=msgspec.structs.replace(prior.straggler_penalty, expected=stragglers)
    )


def _nodes(point: ClusterPoint) -> int:
    return machine_of(point.topology).with_workers(point.workers).nodes


def forecast_larger_sizes(points: list[ClusterPoint], kind: str = "two") -> list[HeldOutCluster]:
    """Forecast points on many nodes of held-out clusters, given one or two measurements on fewer nodes.

    Parameters
    ----------
    points : list of ClusterPoint
    kind : {"nothing", "one", "two", "both"}
        Known measurements of the cluster: none; the most devices of a single node; the smallest number of nodes above
        one (two, or eight for Cartesius); or both. The step time on one device is always known.
    """
    series: dict[tuple[object, ...], list[ClusterPoint]] = {}
    for point in points:
        key = (
            point.cluster,
            point.software,
            point.network,
            point.batch_size,
            point.gradient_precision,
            point.precision,
        )
        series.setdefault(key, []).append(point)
    penalties = {}
    for name in {point.cluster for point in points}:
        penalties[name] = learn_stragglers([point for point in points if point.cluster != name])
    results: list[HeldOutCluster] = []
    for same_training in series.values():
        same_training.sort(key=lambda point: (_nodes(point), point.workers))
        single_node = [point for point in same_training if _nodes(point) == 1]
        multi_node = [point for point in same_training if _nodes(point) > 1]
        larger = [point for point in multi_node if _nodes(point) > _nodes(multi_node[0])]
        if not larger or (not single_node and kind in ("one", "both")):
            continue
        measured: list[ClusterPoint] = []
        if kind in ("one", "both"):
            measured += single_node[-1:]
        if kind in ("two", "both"):
            measured += multi_node[:1]
        prior = _prior(penalties[same_training[0].cluster])
        cluster = _condition(measured, prior) if measured else prior
        results += [HeldOutCluster(point, *efficiency_of(point, cluster)) for point in larger]
    return results


def _condition(measured: list[ClusterPoint], prior: ClusterPrior) -> Cluster:
    def seconds(scores: ClusterScores, compute_scale: float) -> list[float]:
        times_s = []
        for point in measured:
            machine, settings = prior.cluster_at(
                scores, machine_of(point.topology).with_workers(point.workers), _settings(point)
            )
            times_s.append(float(_step(point, machine, settings, compute_scale).time_s))
        return times_s

    def alone_s(point: ClusterPoint) -> float:
        return float(_step(point, machine_of(point.topology).with_workers(1), _settings(point)).time_s)

    return condition_on_measurements(prior, seconds, [alone_s(point) / point.efficiency for point in measured], 0.001)

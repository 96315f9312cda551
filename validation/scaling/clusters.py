"""Clusters that nothing was fitted to: the prior for them learnt from the others, one cluster or source held out.

And the same with one measurement of the cluster that is held out, on two nodes or on one.

The points are read from TensorFlow's page, MXNet's and TensorFlow's distributed tables, Cartesius, and what
``published_clusters.csv`` quotes with its sources. The machine of each is written as a user would name it.
"""

from __future__ import annotations

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
from paleo_lite.distributed.job import InputSettings, Job, Settings, Step
from paleo_lite.distributed.links import Topology
from paleo_lite.distributed.platforms import Platform, find_platform, parse_topology
from paleo_lite.distributed.scale import add_input_wait
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
"""How MXNet's module feeds devices: one process copies all samples from the host's memory.

TensorFlow's synthetic data lies on the device; DALI and the loaders of the others prefetch.
"""
FED = {"EC2 p2.16xlarge": PAGEABLE}
NETWORKS = {
    "EC2 p2.16xlarge": "16x @ pcie3, 16 nodes @ ethernet-20",
    "EC2 p2.8xlarge distributed": "8x @ pcie3, 8 nodes @ ethernet-10",
}


class ClusterPoint(msgspec.Struct, frozen=True):
    """A measured efficiency, relative to `than_workers`; `alone_s` is one device's step, None where nobody timed it."""

    cluster: str
    source: str
    gpu: str
    precision: str
    network: str
    batch_size: int
    topology: str
    workers: int
    efficiency: float
    gradient_precision: str = "fp32"
    alone_s: float | None = None
    than_workers: int = 1
    software: str = ""


def cluster_points(folder: Path) -> list[ClusterPoint]:
    """All of them; `folder` has ``measured``, ``modern`` and ``surfboard``.

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
    # One of its devices was not timed: what its profiles taught, and what the clock takes over that.
    platform = find_platform("cartesius-k40m")
    assert isinstance(platform, Platform)
    asked, k40m = Workload(find_network("resnet50"), phase="training"), Machine(find_device("k40m"))
    cartesius = Job(asked, k40m, find_calibration("k40m-fp32").model(), platform.compute_ratio)
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
    """What ``published_clusters.csv`` quotes; gradients of mixed precision are exchanged in fp32."""
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
def _job(gpu: str, precision: str, network: str) -> Job:
    device = find_device(gpu)
    workload = Workload(find_network(network), precision, phase="training")
    return Job(workload, Machine(device), choose_model(device, precision))


@cache
def _machine(topology: str) -> Topology:
    return parse_topology(topology)


class _Timed(Job):
    """Return a job with the measured time of a single device, which includes copying its samples."""

    def __init__(self, point: ClusterPoint) -> None:
        job, batch = _job(point.gpu, point.precision, point.network), point.batch_size
        super().__init__(job.workload, job.machine, job.model)
        step = job.device_step(batch)
        inputs, alone_s = FED.get(point.cluster), point.alone_s or step.time_s
        if inputs is not None and point.alone_s is not None:
            alone_s -= float(add_input_wait(step, job, _machine(point.topology).with_workers(1), batch, inputs).input_s)
        self._device_steps[batch] = step.scaled_by(alone_s / step.time_s)


@cache
def _timed(point: ClusterPoint) -> Job:
    return _Timed(point)


def _settings(point: ClusterPoint) -> Settings:
    return Settings(gradient_precision=point.gradient_precision, inputs=FED.get(point.cluster))


def _step(point: ClusterPoint, machine: Topology, settings: Settings, pace: float = 1.0) -> Step:
    """All data parallel; `machine` says on how many devices."""
    job, total = _timed(point), point.batch_size * machine.workers
    step = train_data_parallel(
        job.with_compute_scale(pace), machine, total, settings.with_straggler_slowdown(machine.workers)
    )
    return step if settings.inputs is None else add_input_wait(step, job, machine, total, settings.inputs)


def efficiency_of(point: ClusterPoint, cluster: Cluster) -> tuple[float, float, float]:
    """The efficiency to expect, and the ends of its interval, low and high."""

    def seconds(workers: int) -> tuple[float, float, float]:
        machine, settings = _machine(point.topology).with_workers(workers), _settings(point)
        if workers == 1:
            return (float(_step(point, machine, settings).time_s),) * 3
        around = cluster.forecast_step(lambda *how: _step(point, *how), machine, settings)
        return float(around.step.time_s), float(around.best_s), float(around.worst_s)

    fewer, more = seconds(point.than_workers), seconds(point.workers)
    expected, high, low = (first / second for first, second in zip(fewer, more))
    return expected, low, high


def learn_stragglers(points: list[ClusterPoint]) -> float:
    """The stragglers to expect: every cluster counts the same, however many of its points were published.

    Efficiencies are as good as linear in it, so that two predictions make the weighted least squares.
    """
    prior = cluster_prior()
    at = [msgspec.structs.replace(prior.straggler_penalty, expected=share) for share in (0.0, 0.05)]
    first, second = (
        np.array([efficiency_of(point, msgspec.structs.replace(prior, straggler_penalty=each))[0] for point in points])
        for each in at
    )
    sizes = {point.cluster: sum(other.cluster == point.cluster for other in points) for point in points}
    weights = np.array([1 / sizes[point.cluster] for point in points])
    slope = (second - first) / 0.05
    measured = np.array([point.efficiency for point in points])
    return float(np.sum(weights * slope * (measured - first)) / np.sum(weights * slope**2))


class HeldOut(msgspec.Struct, frozen=True):
    """A point beside what the clusters or sources that it is not of say of it."""

    point: ClusterPoint
    expected: float
    low: float
    high: float

    @property
    def off(self) -> float:
        """Efficiency expected less measured."""
        return self.expected - self.point.efficiency

    @property
    def covered(self) -> bool:
        """Whether the interval holds it; the measurements are printed to a hundredth."""
        return self.low - 0.01 <= self.point.efficiency <= self.high + 0.01


def hold_out(points: list[ClusterPoint], by: str = "cluster") -> list[HeldOut]:
    """Predict every cluster (or ``source``) from a fit to the others."""
    held: list[HeldOut] = []
    for name in dict.fromkeys(getattr(point, by) for point in points):
        prior = _prior(learn_stragglers([point for point in points if getattr(point, by) != name]))
        held += [HeldOut(point, *efficiency_of(point, prior)) for point in points if getattr(point, by) == name]
    return held


def _prior(stragglers: float) -> ClusterPrior:
    prior = cluster_prior()
    return msgspec.structs.replace(
        prior, straggler_penalty=msgspec.structs.replace(prior.straggler_penalty, expected=stragglers)
    )


def _nodes(point: ClusterPoint) -> int:
    return _machine(point.topology).with_workers(point.workers).nodes


def measured_once(points: list[ClusterPoint], kind: str = "two") -> list[HeldOut]:
    """Points on more nodes than were measured, of clusters that the prior did not see, given one or two measurements.

    Parameters
    ----------
    points : list of ClusterPoint
    kind : {"nothing", "one", "two", "both"}
        What is known: nothing; the largest part of one node; the fewest nodes that were measured, two but for Cartesius
        (eight); one and two. One device's time is known in all.
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
    learnt = {name: learn_stragglers([p for p in points if p.cluster != name]) for name in {p.cluster for p in points}}
    held: list[HeldOut] = []
    for alike in series.values():
        alike.sort(key=lambda point: (_nodes(point), point.workers))
        several = [point for point in alike if _nodes(point) > 1]
        more = [point for point in several if _nodes(point) > _nodes(several[0])]
        inside = [point for point in alike if _nodes(point) == 1]
        if not more or (not inside and kind in ("one", "both")):
            continue
        known = {"nothing": [], "one": inside[-1:], "two": several[:1], "both": inside[-1:] + several[:1]}[kind]
        prior = _prior(learnt[alike[0].cluster])
        cluster = _conditioned(known, prior) if known else prior
        held += [HeldOut(point, *efficiency_of(point, cluster)) for point in more]
    return held


def _conditioned(known: list[ClusterPoint], prior: ClusterPrior) -> Cluster:
    def seconds(scores: ClusterScores, pace: float) -> list[float]:
        found = []
        for point in known:
            machine, settings = prior.cluster_at(
                scores, _machine(point.topology).with_workers(point.workers), _settings(point)
            )
            found.append(float(_step(point, machine, settings, pace).time_s))
        return found

    def alone_s(point: ClusterPoint) -> float:
        return float(_step(point, _machine(point.topology).with_workers(1), _settings(point)).time_s)

    return condition_on_measurements(prior, seconds, [alone_s(point) / point.efficiency for point in known], 0.001)

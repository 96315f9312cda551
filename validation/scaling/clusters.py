"""Clusters that nothing was fitted to: the prior for them learnt from the others, one cluster or source held out.

The points are read from TensorFlow's page, MXNet's and TensorFlow's distributed tables, Cartesius, and what
``published_clusters.csv`` quotes with its sources. The machine of each is written as a user would name it.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from paleo_lite.calibration.choose import default_model
from paleo_lite.calibration.store import find_calibration
from paleo_lite.distributed.clusters import ClusterPrior, cluster_prior
from paleo_lite.distributed.data_parallel import data
from paleo_lite.distributed.job import Job, Settings
from paleo_lite.distributed.platforms import find_platform
from paleo_lite.distributed.step import Step
from paleo_lite.distributed.topology import Topology, parse_topology
from paleo_lite.hardware import Machine, find_device
from paleo_lite.networks import find_network
from paleo_lite.timing import Workload

from ..tables import rows_of
from .published import surfboard_scaling, tensorflow_scaling

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

QUOTED = Path(__file__).parent / "published_clusters.csv"
SOCKETS = {"EC2 p2.8xlarge": "8x @ pcie3", "DGX-1": "8x @ nvlink1-x4"}
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
    asked, k40m = Workload(find_network("resnet50"), phase="training"), Machine(find_device("k40m"))
    cartesius = Job(asked, k40m, find_calibration("k40m-fp32").model(), find_platform("cartesius-k40m").computing)
    for step in surfboard_scaling(folder / "surfboard" / "derived" / "cartesius_batch_durations_recovered.csv"):
        alone_s = cartesius.at(step.batch_size).time_s
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
            )
        )  # fmt: skip
    return points


@cache
def _job(gpu: str, precision: str, network: str) -> Job:
    device = find_device(gpu)
    workload = Workload(find_network(network), precision, phase="training")
    return Job(workload, Machine(device), default_model(device, precision))


@cache
def _machine(topology: str) -> Topology:
    return parse_topology(topology)


class _Timed(Job):
    """A job whose one device takes what was measured."""

    def __init__(self, point: ClusterPoint) -> None:
        job = _job(point.gpu, point.precision, point.network)
        alone_s = point.alone_s or job.at(point.batch_size).time_s
        super().__init__(job.workload, job.machine, job.model)
        self._steps[point.batch_size] = job.at(point.batch_size).stretched(alone_s / job.at(point.batch_size).time_s)


@cache
def _timed(point: ClusterPoint) -> Job:
    return _Timed(point)


def efficiency_of(point: ClusterPoint, prior: ClusterPrior) -> tuple[float, float, float]:
    """The efficiency to expect, and the ends of its interval, low and high."""
    job, settings = _timed(point), Settings(gradient_precision=point.gradient_precision)

    def seconds(workers: int) -> tuple[float, float, float]:
        machine = _machine(point.topology).with_workers(workers)

        def run(machine: Topology, settings: Settings) -> Step:
            return data(job, machine, point.batch_size * workers, settings.among(workers))

        if workers == 1:
            return (float(run(machine, settings).time_s),) * 3
        step, best_s, worst_s = prior.around(run, machine, settings)
        return float(step.time_s), float(best_s), float(worst_s)

    fewer, more = seconds(point.than_workers), seconds(point.workers)
    expected, high, low = (first / second for first, second in zip(fewer, more))
    return expected, low, high


def learn_stragglers(points: list[ClusterPoint]) -> float:
    """The stragglers to expect: every cluster counts the same, however many of its points were published.

    Efficiencies are as good as linear in it, so that two predictions make the weighted least squares.
    """
    prior = cluster_prior()
    at = [msgspec.structs.replace(prior.stragglers, expected=share) for share in (0.0, 0.05)]
    first, second = (
        np.array([efficiency_of(point, msgspec.structs.replace(prior, stragglers=each))[0] for point in points])
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
    """Every cluster (or ``source``) predicted by what the others teach."""
    held: list[HeldOut] = []
    for name in dict.fromkeys(getattr(point, by) for point in points):
        share = learn_stragglers([point for point in points if getattr(point, by) != name])
        prior = cluster_prior()
        prior = msgspec.structs.replace(prior, stragglers=msgspec.structs.replace(prior.stragglers, expected=share))
        held += [HeldOut(point, *efficiency_of(point, prior)) for point in points if getattr(point, by) == name]
    return held

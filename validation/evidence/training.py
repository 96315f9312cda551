"""Published steps of training as evidence, beside forecasts without their source, or without their device.

Constants are fitted again without the source of steps in eager PyTorch and Megatron-DeepSpeed, and without the device
of steps in Megatron-Bridge. Steps of convolutional networks on clusters have the shipped constants, which know the
steps of their devices alone but no cluster.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np

from paleo_lite.calibration.posterior import Observation
from paleo_lite.distributed.clusters import cluster_prior
from paleo_lite.distributed.job import Job
from paleo_lite.distributed.links import Topology
from paleo_lite.distributed.scale import predict_step
from paleo_lite.distributed.settings import Settings
from paleo_lite.distributed.step_causes import KIND, STEP_TIME, step_shares, training_traits

from ..scaling import clusters
from ..training import hold_out, pretraining
from ..training.published import TrainedStep, trained_steps
from .groups import MOST_OF_GROUP, Grouped

BRIDGE = "Megatron-Bridge"


def measured_steps(data: Path) -> list[Grouped]:
    """Return the published steps, with the cluster, the network and the software that each is of."""
    return [*_steps_of_sources(data), *_steps_of_bridge(data), *_steps_of_clusters(data)]


def _steps_of_sources(data: Path) -> Iterator[Grouped]:
    """Yield the steps of llm-foundry and vTrain, each forecast by constants of the others."""
    steps = trained_steps(data).steps
    timed = hold_out.TimedSteps(steps)
    for source in dict.fromkeys(step.source for step in steps if step.source != BRIDGE):
        fitted = hold_out.fit(timed.select([index for index, step in enumerate(steps) if step.source != source]))
        of_source = timed.select(_thinned(steps, source))
        for step, job in of_source.jobs_with(fitted):
            topology, settings = hold_out.topology_and_settings(step)
            situation = f"{step.length} {step.batch_size} {step.workers} {step.split}"
            yield _grouped(step.source, job, topology, settings, step.batch_size, "3d", situation, step.time_s,
                           step.model)  # fmt: skip


def _thinned(steps: Iterable[TrainedStep], source: str) -> list[int]:
    """Return the numbers of the steps of a source, of each network on each device as many as of other groups.

    Some tables have hundreds of divisions of one network.
    """
    by_network: dict[tuple[str, str], list[int]] = {}
    for index, step in enumerate(steps):
        if step.source == source:
            by_network.setdefault((step.model, step.gpu), []).append(index)
    chosen: list[int] = []
    for of_network in by_network.values():
        chosen += [
            of_network[int(place)]
            for place in np.unique(np.linspace(0, len(of_network) - 1, MOST_OF_GROUP).astype(int))
        ]
    return chosen


def _steps_of_bridge(data: Path) -> Iterator[Grouped]:
    """Yield the steps of Megatron-Bridge, each forecast by constants of the other devices."""
    steps = pretraining.pretraining_steps(data).steps
    for device in dict.fromkeys(step.device for step in steps):
        constants = pretraining.fit([step for step in steps if step.device != device])
        for step in steps:
            if step.device == device:
                job = pretraining.job_of(step).with_stack_constants(constants)
                topology, settings = pretraining.topology_of(step), Settings(parallel=step.parallel)
                situation = f"{step.release} {step.configuration}"
                yield _grouped(BRIDGE, job, topology, settings, step.batch_size, "3d", situation, step.time_s,
                               step.network)  # fmt: skip


def _steps_of_clusters(data: Path) -> Iterator[Grouped]:
    """Yield the steps of convolutional networks on clusters, whose step on one device was measured, too."""
    for point in clusters.cluster_points(data):
        if point.alone_s is not None and point.than_workers == 1:
            settings = Settings(gradient_precision=point.gradient_precision)
            topology = clusters.machine_of(point.topology).with_workers(point.workers)
            job = clusters.job_of(point.gpu, point.precision, point.network)
            situation = f"{point.batch_size} {point.workers} {point.gradient_precision}"
            yield _grouped(f"{point.source} {point.cluster} {point.software}", job, topology, settings,
                           point.batch_size * point.workers, "data", situation, point.alone_s / point.efficiency,
                           point.network)  # fmt: skip


def _grouped(
    source: str,
    job: Job,
    topology: Topology,
    settings: Settings,
    batch_size: int,
    strategy: str,
    situation: str,
    measured_s: float,
    network: str,
) -> Grouped:
    """Return a measured step beside its forecast on the expected cluster."""
    traits = {**training_traits(job, settings, source), "network": network}
    forecast = predict_step(job, topology, settings, batch_size, strategy, cluster_prior())
    shares = step_shares(job, topology, settings, batch_size, strategy)
    group = (source, traits["device"], traits["format"], network)
    observation = Observation(
        KIND, STEP_TIME, situation, traits, measured_s, float(forecast.time_s), shares, forecast.interval
    )
    return Grouped(group, observation)

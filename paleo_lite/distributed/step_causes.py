"""Measured training steps as evidence: the shares of the causes in their times, and the job calibrated by them."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import msgspec

from ..calibration.posterior import elasticities, remaining_width
from ..counting.kinds import is_grouped_product
from ..errors import BadValue
from ..timing.calibrated import CalibratedModel
from ..timing.causes import CAUSES, EXCHANGES, EXPERTS, MovedCauses
from .clusters import EXPECTED, ClusterScores, cluster_prior
from .job import Job
from .scale import predict_step

if TYPE_CHECKING:
    from ..calibration.evidence_file import EvidenceCalibration
    from .links import Topology
    from .settings import Settings

KIND = "train"

STEP_TIME = "step_s"
"""Figure of training that is evidence."""


def training_traits(job: Job, settings: Settings, source: str = "") -> dict[str, str]:
    """Return the traits by which measurements are compared: source, engine, device, format, network."""
    workload, options = job.workload, job.workload.options
    return {
        "source": source,
        "engine": workload.execution if settings.parallel is None else settings.parallel.execution,
        "device": job.machine.device.id,
        "format": options.recipe or options.products or workload.precision,
        "network": workload.network.name,
    }


def step_shares(job: Job, topology: Topology, settings: Settings, batch_size: int, strategy: str) -> dict[str, float]:
    """Return the elasticity of a step with respect to the factor of each cause, normalised to a sum of 1."""
    machines, cluster_settings = cluster_prior().cluster_at(ClusterScores.uniform(EXPECTED), topology, settings)

    def log_time(logs: dict[str, float]) -> float:
        moved_job = job.with_moved_causes(MovedCauses(logs)) if logs else job
        return math.log(predict_step(moved_job, machines, cluster_settings, batch_size, strategy).time_s)

    layers = job.workload.network.layers
    absent = set() if any(is_grouped_product(layer) for layer in layers) else {EXPERTS}
    absent |= {EXCHANGES} if topology.workers == 1 else set()
    return elasticities((cause for cause in CAUSES if cause not in absent), log_time)


def learned_job(
    job: Job,
    evidence: EvidenceCalibration,
    topology: Topology,
    settings: Settings,
    batch_size: int,
    strategy: str,
) -> Job:
    """Return a job with the factors of the causes that measured steps lead to; its time model names them.

    Raise BadValue if the calibration has no measured steps, or the time model has no causes.
    """
    evidence.check_kinds((KIND,), "train")
    model = job.model
    if not isinstance(model, CalibratedModel):
        raise BadValue(
            f"a calibration from result files moves the calibrated time model, and the {model.name} model has no "
            "causes that it could move: leave `--calibration` out"
        )
    traits = training_traits(job, settings)
    shares = step_shares(job, topology, settings, batch_size, strategy)
    posterior = evidence.posterior(KIND)
    factors = posterior.factors(traits)
    _, after, before = factors.log_time(shares, posterior.prior.noise[STEP_TIME])
    stated = predict_step(job, topology, settings, batch_size, strategy, cluster_prior()).interval
    width = 1.0
    if stated is not None:
        width = float(remaining_width(after, before, (math.log(stated[0]), math.log(stated[1]))))
    moved_causes = MovedCauses(dict(zip(factors.causes, factors.mean.tolist())), width)
    label = f"{model.label}; moved by {evidence.describe_rows(KIND, traits)}"
    named = Job(job.workload, job.machine, msgspec.structs.replace(model, label=label), job.compute_ratio)
    return named.with_moved_causes(moved_causes)

"""Measured steps of training as evidence, and the jobs that they lead to. Tests: distributed/step_causes.py."""

from __future__ import annotations

import pytest

from paleo_lite.architectures import find_network
from paleo_lite.architectures.network import SequenceOptions
from paleo_lite.calibration.choose import choose_model
from paleo_lite.calibration.evidence_file import EvidenceCalibration
from paleo_lite.calibration.posterior import Observation
from paleo_lite.distributed.job import Job
from paleo_lite.distributed.links import Topology
from paleo_lite.distributed.parallel_config import ParallelConfig
from paleo_lite.distributed.platforms import parse_topology
from paleo_lite.distributed.scale import predict_step
from paleo_lite.distributed.settings import Settings
from paleo_lite.distributed.step_causes import KIND, STEP_TIME, learned_job, step_shares, training_traits
from paleo_lite.errors import BadValue
from paleo_lite.machines import Machine, find_device
from paleo_lite.timing import Workload
from paleo_lite.timing.models import RooflineModel
from paleo_lite.timing.training_options import TrainingOptions

SETTINGS = Settings(parallel=ParallelConfig(tensor=2, micro_batch_size=1))
BATCH = 32


@pytest.fixture(scope="module")
def topology() -> Topology:
    """Return two nodes of eight devices."""
    return parse_topology("8x h100-sxm @ nvlink4-x18, 2 nodes @ 3200 Gbit/s")


@pytest.fixture(scope="module")
def job() -> Job:
    """Return the training of a small mixture of experts."""
    network = find_network("olmoe-1b-7b", options=SequenceOptions(1024, phase="training"))
    device = find_device("h100-sxm")
    workload = Workload(network, "bf16", phase="training", training=TrainingOptions("adam"))
    return Job(workload, Machine(device), choose_model(device, "bf16"))


@pytest.fixture(scope="module")
def shares(job: Job, topology: Topology) -> dict[str, float]:
    """Return the shares of the causes in a step."""
    return step_shares(job, topology, SETTINGS, BATCH, "3d")


def calibration_of(job: Job, shares: dict[str, float], factor: float) -> EvidenceCalibration:
    """Return a calibration by two steps that take `factor` times their forecasts."""
    traits = training_traits(job, SETTINGS)
    rows = [Observation(KIND, STEP_TIME, str(number), traits, factor, 1.0, shares) for number in range(2)]
    return EvidenceCalibration(1, "evidence", rows)


def test_shares_add_up(shares: dict[str, float]) -> None:
    assert sum(shares.values()) == pytest.approx(1)
    assert shares["host"] > 0.5  # it launches a kernel for each expert
    assert shares["exchanges"] > 0.01


def test_one_device_exchanges_nothing(job: Job) -> None:
    alone = Topology(None, 1, None, 1, None)
    assert "exchanges" not in step_shares(job, alone, Settings(), 1, "data")


def test_measured_steps_move_the_forecast(job: Job, topology: Topology, shares: dict[str, float]) -> None:
    learned = learned_job(job, calibration_of(job, shares, 1.5), topology, SETTINGS, BATCH, "3d")
    shipped, moved = (predict_step(one, topology, SETTINGS, BATCH, "3d") for one in (job, learned))
    assert 1.2 < moved.time_s / shipped.time_s < 1.55
    assert learned.model.label.endswith("moved by 2 measured figures")
    assert learned.moved is not None
    assert learned.moved.width < 0.9


def test_exchanges_move_beside_computation(job: Job, topology: Topology, shares: dict[str, float]) -> None:
    learned = learned_job(job, calibration_of(job, shares, 1.5), topology, SETTINGS, BATCH, "3d")
    shipped, moved = (predict_step(one, topology, SETTINGS, BATCH, "3d") for one in (job, learned))
    assert learned.moved is not None
    assert moved.communication_s > shipped.communication_s
    assert moved.hidden_s / moved.communication_s <= 1


def test_only_the_calibrated_model_has_causes(job: Job, topology: Topology, shares: dict[str, float]) -> None:
    bound = job.with_time_model(RooflineModel())
    with pytest.raises(BadValue, match="roofline model has no causes"):
        learned_job(bound, calibration_of(job, shares, 1.5), topology, SETTINGS, BATCH, "3d")


def test_evidence_of_servers_is_refused(job: Job, topology: Topology) -> None:
    traits = {"device": "h100-sxm"}
    rows = [Observation("server", "tpot_s", "", traits, 1.0, 1.0, {"products": 1.0})]
    with pytest.raises(
        BadValue, match="learns from measurements of steps of training, and the calibration is of servers"
    ):
        learned_job(job, EvidenceCalibration(1, "evidence", rows), topology, SETTINGS, BATCH, "3d")

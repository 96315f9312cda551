"""Constants of an engine, calibrated by measured servers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..engines.causes import with_factors
from ..engines.constants import EngineConstants, Learned, engine_constants
from ..engines.division import ONE_DEVICE, LinkedDevices

if TYPE_CHECKING:
    from ..calibration.evidence_file import EvidenceCalibration
    from ..machines import Device
    from ..timing import Workload

KIND = "server"


def engine_traits(
    workload: Workload, device: Device, engine: str, devices: LinkedDevices = ONE_DEVICE
) -> dict[str, str]:
    """Return the traits by which servers are compared: engine, device, format, network, division."""
    division = devices.division
    return {
        "source": "",
        "engine": engine,
        "device": device.id,
        "format": f"{workload.precision} {workload.weights or ''}".strip(),
        "network": workload.network.name,
        "division": f"{division.tensor} {division.expert_parallel} {division.attention_data_parallel}",
        "version": "",
    }


def learned_constants(evidence: EvidenceCalibration, traits: dict[str, str]) -> EngineConstants:
    """Return the constants of an engine with the given traits, calibrated by measured servers."""
    posterior = evidence.posterior(KIND)
    factors = posterior.factors(traits)
    learned = Learned(
        factors.causes,
        factors.covariance,
        factors.prior_covariance,
        {figure: deviation**2 for figure, deviation in posterior.prior.noise.items()},
    )
    return with_factors(engine_constants(), dict(zip(factors.causes, factors.mean.tolist())), learned)

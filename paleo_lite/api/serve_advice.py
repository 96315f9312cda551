"""`serve --advise`: the deployments that are tried, and the answer of the best of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import msgspec

from ..engines.placed import possible_divisions
from ..errors import BadValue
from ..formats import FORMATS
from ..machines import Device
from ..serving.advise import rank_deployments
from ..serving.answers import Serving, answer
from ..serving.demand import Demand
from ..serving.deployment import Deployment
from ..serving.division import Division
from ..serving.products import USUAL_PRECISION
from ..serving.slo import Objective
from .deployments import Deployments

TENSOR_DEGREES = (1, 2, 4, 8)
"""Tensor-parallel degrees that are tried."""

PIPELINE_DEGREES = (2, 4)
"""Pipeline degrees that are tried, at the largest tensor degree, on a device on which nothing else fits."""

Attempts = dict[str, Callable[[], Deployment]]
"""Functions that make a deployment of one replica, by its description."""


class Given(msgspec.Struct, frozen=True):
    """What the question says of the deployments; None where all possibilities are tried."""

    weights: str | None = None
    tensor: int | None = None
    pipeline: int | None = None
    divides_experts_or_attention: bool = False
    # Degrees that hold for all deployments where the question divides experts or attention.
    expert_parallel: int = 1
    attention_data_parallel: int = 1

    def division(self, tensor: int, pipeline: int) -> Division:
        """Return a division of these degrees of tensor parallelism and stages."""
        return Division(tensor, pipeline, self.expert_parallel, self.attention_data_parallel)


def advise(
    deployments: Deployments,
    devices: Sequence[Device],
    given: Given,
    demand: Demand,
    objectives: tuple[Objective, ...],
    by: str,
) -> Serving:
    """Return the answer of the best deployment, with the ranking of all.

    Parameters
    ----------
    deployments : Deployments
        What all deployments have in common.
    devices : sequence of Device
        Devices that are tried.
    given : Given
        What is not tried, as the question says it.
    demand : Demand
        What the users ask. Without rate and users there are as many users as the batch limit of the best deployment.
    objectives : tuple of Objective
        Service-level objectives.
    by : str
        Key of `paleo_lite.serving.candidates.RANKINGS`.

    Raises
    ------
    BadValue
        If no deployment fits.
    """
    first: Attempts = {}
    fallbacks: dict[str, Attempts] = {}
    degrees = _tensor_degrees(given, deployments)
    for device in devices:
        formats = _formats_to_try(given.weights, deployments.precision, device)
        divisions = [given.division(degree, given.pipeline or 1) for degree in degrees]
        first |= _attempts(deployments, device, divisions, formats)
        if given.pipeline is None:
            divisions = [given.division(degrees[-1], stages) for stages in PIPELINE_DEGREES]
            fallbacks[device.id] = _attempts(deployments, device, divisions, formats)
    variants = None if given.divides_experts_or_attention else partial(_further_divisions, deployments)
    advice = rank_deployments(first, demand, variants=variants, fallbacks=fallbacks, objectives=objectives, by=by)
    if not advice.candidates:
        raise BadValue(f"no deployment fits: {'; '.join(f'{name}: {why}' for name, why in advice.refused.items())}")
    chosen = advice.best or advice.candidates[0]
    weights = None if chosen.weights == (deployments.precision or USUAL_PRECISION) else chosen.weights
    deployment = deployments.make(chosen.gpu, chosen.division, weights, replicas=chosen.replicas)
    engine = msgspec.structs.replace(deployment.engine, max_sequences=chosen.batch_limit)
    limited = msgspec.structs.replace(deployment, engine=engine)
    if demand.rate_per_s is None and demand.concurrency is None:
        demand = msgspec.structs.replace(demand, concurrency=chosen.batch_limit)
    traffic, description = demand.traffic(limited)
    notes = []
    if objectives and advice.best is None:
        notes.append("no deployment meets the objectives; shown is the cheapest per token")
    result = answer(limited.prepare(traffic), traffic, description, notes=notes)
    described = {"objectives": [objective.describe() for objective in objectives], "highest_requests_per_s": None}
    return msgspec.structs.replace(result, advice=advice, slo=described if objectives else None)


def _tensor_degrees(given: Given, deployments: Deployments) -> tuple[int, ...]:
    """Return the tensor-parallel degrees to try, within a node of the platform."""
    degrees = TENSOR_DEGREES if given.tensor is None else (given.tensor,)
    if deployments.topology is None:
        return degrees
    return tuple(degree for degree in degrees if degree <= deployments.topology.devices_per_node) or degrees


def _attempts(
    deployments: Deployments, device: Device, divisions: Sequence[Division], formats: Sequence[str | None]
) -> Attempts:
    """Return the deployments on a device of each division in each format of weights."""
    return {
        f"{device.id}, {division.describe()}, weights {weights or deployments.precision or USUAL_PRECISION}": partial(
            deployments.make, device, division, weights
        )
        for division in divisions
        for weights in formats
    }


def _further_divisions(deployments: Deployments, deployment: Deployment) -> Attempts:
    """Return the same deployment with experts or attention divided in other ways."""
    placed = deployment.on_device
    if placed.kernels is None:
        return {}
    divisions = [
        Division(placed.tensor, placed.pipeline.degree, *pair)
        for pair in possible_divisions(placed.workload.layers, placed.tensor)
    ]
    return _attempts(deployments, placed.machine.device, divisions, [placed.workload.weights])


def _formats_to_try(weights: str | None, precision: str | None, device: Device) -> tuple[str | None, ...]:
    """Return the formats of weights to try: the given one, or that of the precision, fp8 and nvfp4.

    Formats wider than the precision are left out, and nvfp4 where the device has no peak in fp4.
    """
    if weights is not None:
        return (weights,)
    formats: list[str | None] = [None]
    bits = FORMATS[precision or USUAL_PRECISION].bits
    if bits > FORMATS["fp8"].bits:
        formats.append("fp8")
    if bits > FORMATS["nvfp4"].bits and any(peak.precision == "fp4" for peak in device.peaks):
        formats.append("nvfp4")
    return tuple(formats)

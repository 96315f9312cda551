"""`serve --advise`: the deployments that are tried, and the answer of the best of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import msgspec

from ..distributed.platforms import usual_computer
from ..engines.division import Division
from ..engines.kernel_formats import has_constants
from ..engines.placed import possible_divisions
from ..engines.records import SERVERS
from ..errors import BadValue
from ..formats import FORMATS
from ..machines import Device
from ..serving.advise import (
    accept,
    nearest,
    rank_deployments,
    reject,
    widest,
    with_energy,
    with_saturation,
    without_best,
)
from ..serving.answers import Serving, answer
from ..serving.candidates import (
    RANKINGS,
    Candidate,
    Criteria,
    DeploymentAdvice,
    NotSimulated,
    TooLarge,
    equal_to_best,
    prices_of,
    published_drafts,
    within,
)
from ..serving.deployment import Deployment
from ..serving.launch import engines_on
from ..serving.options import Speculation
from ..serving.outcomes import request_latencies
from ..serving.placement import TENSOR_DEGREES
from ..serving.prepared import PreparedDeployment, prepare
from ..serving.price_basis import choose_listings, describe_mixed, whole_instances_notes
from ..serving.products import USUAL_PRECISION
from ..serving.requests import Demand, Traffic
from ..serving.saturation import saturate_levels
from ..serving.slo import Missed, Objective, find_missed, missed_in
from ..serving.wide import WIDE_DEGREES
from .deployments import Deployments

PIPELINE_DEGREES = (2, 4)
"""Pipeline degrees that are tried, at the largest tensor degree, on a device on which nothing else fits."""

Attempts = dict[str, Callable[[], Deployment]]
"""Functions that make a deployment of one replica, by its description."""


class FixedOptions(msgspec.Struct, frozen=True):
    """What the question fixes of the deployments; None where all possibilities are tried."""

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
    fixed: FixedOptions,
    demand: Demand,
    objectives: tuple[Objective, ...],
    criteria: Criteria,
) -> Serving:
    """Return the answer of the best deployment, with the ranking of all; raise BadValue if none fits.

    Without rate and users there are as many users as the batch limit of the best deployment.
    """
    if len(devices) > 1 and deployments.price_usd_per_h is None and deployments.topology is None:
        deployments = msgspec.structs.replace(deployments, listings=choose_listings(devices, deployments.price_of))
    first: Attempts = {}
    fallbacks: dict[str, Attempts] = {}
    degrees = _tensor_degrees(fixed, deployments)
    devices, left_out = _devices_that_run(deployments, devices, fixed)
    for device in devices:
        formats = _formats_to_try(fixed.weights, deployments, device)
        divisions = [fixed.division(degree, fixed.pipeline or 1) for degree in degrees]
        first |= _attempts(deployments, device, divisions, formats)
        if fixed.pipeline is None:
            divisions = [fixed.division(degrees[-1], stages) for stages in PIPELINE_DEGREES]
            fallbacks[device.id] = _attempts(deployments, device, divisions, formats)
    variants = None if fixed.divides_experts_or_attention else partial(_further_divisions, deployments)
    has_draft = bool(deployments.options.speculation.draft_length)
    drafts = () if has_draft else published_drafts(deployments.decoder.name)
    advice = rank_deployments(
        first,
        demand,
        variants=variants,
        fallbacks=fallbacks,
        wide=_wide_attempts(deployments, devices, fixed, criteria.devices),
        objectives=objectives,
        criteria=criteria,
        drafts=drafts,
    )
    if not advice.candidates:
        raise BadValue(f"no deployment fits: {'; '.join(f'{name}: {why}' for name, why in advice.refused.items())}")
    notes = [*left_out, *_untried_notes(deployments, fixed, criteria.devices)]
    if RANKINGS[criteria.by].needs == "price" and deployments.price_of is None:
        notes += filter(None, [describe_mixed(prices_of(advice))])
    advice, result = _confirm(advice, deployments, demand, objectives, criteria, notes)
    missed = missed_in(result, objectives)
    described = {
        "objectives": [objective.describe() for objective in objectives],
        "highest_requests_per_s": None,
        "highest_interval": None,
        "arrivals": None,
        "missed": [each.describe() for each in missed],
    }
    return msgspec.structs.replace(result, advice=advice, slo=described if objectives else None)


CONFIRMED = 12
"""Candidates that are simulated under the asked traffic at most, until one of them meets the objectives."""


def _confirm(
    advice: DeploymentAdvice,
    deployments: Deployments,
    demand: Demand,
    objectives: tuple[Objective, ...],
    criteria: Criteria,
    notes: Sequence[str],  # on what was not tried
) -> tuple[DeploymentAdvice, Serving]:
    """Return the advice whose best candidate holds under the asked traffic too, and its answer.

    Candidates were ranked with a request always waiting for a free place. Under a rate, requests may wait longer, the
    saturation rate that the answer prints may need more replicas, and its energy may be another. If none of those that
    are simulated holds, the one of them is shown that comes nearest to the objectives.
    """
    rejected: list[_Trial] = []
    devices = criteria.devices
    for _ in range(CONFIRMED):
        if advice.best is None:
            break
        trials = [_try(deployments, advice.best, demand, objectives)]
        if trials[0].missed:
            # Where requests come at a rate, those that wait for a place in a small batch may be earlier in a large one.
            trials.append(_try(deployments, widest(advice, devices), demand, objectives))
        last = trials[-1]
        if last.missed:
            rejected += trials
            advice = reject(advice, trials[0].missed)
            continue
        advice = accept(advice, last.candidate)
        prepared, traffic = last.prepared, last.traffic
        is_kept = True
        if advice.rate_per_s is not None:
            # At all levels together, as the answer has them.
            low_per_s, _ = saturate_levels(prepared.lasting, traffic, prepared.levels)[prepared.slowest]
            advice, is_kept = with_saturation(advice, low_per_s, devices)
        if not is_kept:
            continue
        result = answer(prepared, traffic, last.description, notes=[*_notes(advice, last.candidate), *notes])
        if advice.rate_per_s is not None and criteria.ranks_energy_at_rate:
            joules = result.figures["joules_per_million_output_tokens"].value
            advice, is_kept = with_energy(advice, joules)
        if is_kept:
            return advice, result
    shown = nearest(advice)
    if rejected:
        advice = without_best(advice)
        shown = min(rejected, key=lambda trial: max(each.ratio for each in trial.missed)).candidate
    elif demand.concurrency is not None:
        nearly = _nearly_meeting(advice, devices)
        met = next((each for each in nearly if not _try(deployments, each, demand, objectives).missed), None)
        if met is not None:
            advice, shown = accept(advice, met), met
    prepared, traffic, description = _prepare(deployments, shown, demand)
    return advice, answer(prepared, traffic, description, notes=[*_notes(advice, shown), *notes])


NEARLY = 1.5
"""Ratio of a latency to its objective in the short simulations of the ranking, up to which the asked users are tried.

They begin together there, and are served longer: first tokens of all of them are shorter than those of the first ones.
"""


def _nearly_meeting(advice: DeploymentAdvice, devices: int | None) -> list[Candidate]:
    """Return one candidate of each deployment that nearly meets the objectives, as they are ranked."""
    nearly: dict[object, Candidate] = {}
    for candidate in advice.candidates:
        fits = within(candidate, devices) is candidate
        if fits and candidate.objective_ratio is not None and candidate.objective_ratio <= NEARLY:
            nearly.setdefault(candidate.deployment, candidate)
    return list(nearly.values())[:CONFIRMED]


class _Trial(NamedTuple):
    """A candidate under the asked traffic."""

    candidate: Candidate
    prepared: PreparedDeployment
    traffic: Traffic
    description: str  # of the traffic
    missed: list[Missed]  # objectives that it misses


def _try(deployments: Deployments, candidate: Candidate, demand: Demand, objectives: tuple[Objective, ...]) -> _Trial:
    """Simulate a candidate under the asked traffic."""
    prepared, traffic, description = _prepare(deployments, candidate, demand)
    missed = find_missed(request_latencies(prepared.run(traffic)), objectives)
    return _Trial(candidate, prepared, traffic, description, missed)


def _prepare(deployments: Deployments, chosen: Candidate, demand: Demand) -> tuple[PreparedDeployment, Traffic, str]:
    """Return a candidate with all its replicas, and the traffic with its description."""
    weights = None if chosen.weights == (deployments.precision or USUAL_PRECISION) else chosen.weights
    prefill = None
    if chosen.prefill is not None:
        pool = chosen.prefill
        prefill = deployments.with_speculation(Speculation()).make(
            pool.gpu, pool.division, weights, replicas=pool.replicas
        )
    drafting = deployments if chosen.draft is None else deployments.with_speculation(chosen.draft.speculation)
    deployment = drafting.make(chosen.gpu, chosen.division, weights, replicas=chosen.replicas, prefill=prefill)
    limited = deployment.with_sequences(chosen.batch_limit)
    if demand.rate_per_s is None and demand.concurrency is None:
        demand = msgspec.structs.replace(demand, concurrency=chosen.batch_limit * chosen.replicas)
    traffic, description = demand.traffic(limited.replicas, mixes_phases=limited.engine.mixes_phases)
    return prepare(limited, traffic), traffic, description


def _notes(advice: DeploymentAdvice, shown: Candidate) -> list[str]:
    """Return what the ranking has to say of itself and of the candidate that is shown."""
    notes = []
    if advice.best is None:
        reached = f": {', '.join(shown.missed)}" if shown.missed else ""
        is_too_large = advice.devices is not None and shown.devices > advice.devices
        reason = f"fits into `--workers {advice.devices}`" if is_too_large else "meets the objectives"
        notes.append(f"no deployment {reason}; shown is the one that comes nearest{reached}")
    if shown.draft is not None:
        notes.append(
            f"drafted tokens are accepted as published for the network, mostly in code: {shown.draft.describe()}"
        )
    notes += whole_instances_notes(shown.rented)
    notes += _equal_notes(advice)
    deployments: list[Candidate | TooLarge | NotSimulated] = [*advice.candidates, *advice.too_large, *advice.left_out]
    bounds = dict.fromkeys(deployment.gpu for deployment in deployments if not deployment.is_forecast)
    if bounds and any(deployment.is_forecast for deployment in deployments):
        notes.append(f"bounds from the data sheet are ranked after forecasts: {', '.join(bounds)}")
    return notes


def _equal_notes(advice: DeploymentAdvice) -> list[str]:
    """Return a note where other deployments are ranked equal to the best one, which says what comes first."""
    equal = equal_to_best(advice)
    if not equal:
        return []
    others = "another deployment is" if len(equal) == 1 else f"{len(equal)} other deployments are"
    return [
        f"{others} ranked equal to the first: of equal ones those without a pool of prompts come first, then those "
        "that draft nothing, then those of the higher throughput at full load"
    ]


def _devices_that_run(
    deployments: Deployments, devices: Sequence[Device], fixed: FixedOptions
) -> tuple[Sequence[Device], list[str]]:
    """Return the devices on which the engine runs with a format to try, and notes on those that are left out.

    A single device stays, as without advice: other builds of an engine may run there. Raise BadValue if the engine runs
    on none of several.
    """
    capability = SERVERS[deployments.policy].capability
    is_mixture = deployments.decoder.is_mixture
    running, reasons, others = [], [], []
    for device in devices:
        formats = _formats_to_try(fixed.weights, deployments, device)
        lacking = [capability.why_not_on(device, name, is_mixture=is_mixture) for name in formats]
        if not all(lacking):
            running.append(device)
            continue
        reasons.append(f"{deployments.policy} {lacking[0]}")
        others += engines_on(device, formats[0], is_mixture=is_mixture)
    if running:
        return running, [f"no candidate: {reason}" for reason in dict.fromkeys(reasons)]
    if len(devices) == 1:
        return devices, []
    instead = f"; {' or '.join(dict.fromkeys(others))} runs on some of them" if others else ""
    raise BadValue(f"no candidate runs: {'; '.join(dict.fromkeys(reasons))}{instead}")


def _wide_attempts(
    deployments: Deployments, devices: Sequence[Device], fixed: FixedOptions, workers: int | None
) -> Attempts:
    """Return the deployments of a mixture whose experts are divided among the devices of several nodes."""
    if fixed.tensor is not None or fixed.pipeline not in (None, 1) or fixed.divides_experts_or_attention:
        return {}
    attempts: Attempts = {}
    for device in devices if deployments.decoder.is_mixture else ():
        has_nodes = deployments.link is None and (deployments.topology is not None or _has_usual_network(device))
        if not (has_nodes and has_constants(device)):
            continue
        for degree in WIDE_DEGREES:
            if workers is None or degree <= workers:
                attempts |= _attempts(
                    deployments,
                    device,
                    [Division(degree, 1, degree, degree)],
                    _formats_to_try(fixed.weights, deployments, device),
                )
    return attempts


def _has_usual_network(device: Device) -> bool:
    """Return whether the network that joins the usual computers of a device is on record."""
    computer = usual_computer(device.id)
    return computer is not None and computer.between is not None


def _untried_notes(deployments: Deployments, fixed: FixedOptions, devices: int | None) -> list[str]:
    """Return a note on experts that could be divided among the devices of several nodes; none where they are."""
    wider = 2 * TENSOR_DEGREES[-1]
    if fixed.tensor is not None or not deployments.decoder.is_mixture or (devices is not None and devices < wider):
        return []
    if fixed.divides_experts_or_attention or fixed.pipeline not in (None, 1) or deployments.link is None:
        return []
    return [
        f"experts divided among more than {TENSOR_DEGREES[-1]} devices were not tried: leave `--link` out, or give "
        "`--platform`"
    ]


def _tensor_degrees(fixed: FixedOptions, deployments: Deployments) -> tuple[int, ...]:
    """Return the tensor-parallel degrees to try, within a node of the platform."""
    degrees = TENSOR_DEGREES if fixed.tensor is None else (fixed.tensor,)
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


def _formats_to_try(weights: str | None, deployments: Deployments, device: Device) -> tuple[str | None, ...]:
    """Return the formats of weights to try: the given one, or that of the precision, fp8 and nvfp4.

    Formats wider than the precision are left out, and nvfp4 where the device has no peak in fp4. Of a network whose
    weights are published in fewer bits than 16 that format is the widest, unless a precision is given.
    """
    if weights is not None:
        return (weights,)
    precision, publication = deployments.precision, deployments.decoder.publication
    published = None
    if precision is None and publication is not None and deployments.decoder.stored_weights is None:
        published = publication.weights or None
    formats: list[str | None] = [published]
    bits = FORMATS[published or precision or USUAL_PRECISION].bits
    if bits > FORMATS["fp8"].bits:
        formats.append("fp8")
    if bits > FORMATS["nvfp4"].bits and any(peak.precision == "fp4" for peak in device.peaks):
        formats.append("nvfp4")
    capability = SERVERS[deployments.policy].capability
    is_mixture = deployments.decoder.is_mixture
    running = [name for name in formats if not capability.why_not_on(device, name, is_mixture=is_mixture)]
    return tuple(running or formats)

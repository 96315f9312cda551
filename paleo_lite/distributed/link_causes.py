"""Measured collectives as evidence: the shares of the causes in their times, and links calibrated by them.

A time has two causes: latencies (of steps, of a call, of pieces and of a change of protocol) and the transfer of bytes.
A collective over several nodes is evidence of the link between them, the slowest that it crosses.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from ..calibration.posterior import KINDS, elasticities
from ..errors import BadValue
from .clusters import cluster_prior
from .collectives import (
    all_gather_time_s,
    all_to_all_time_s,
    point_to_point_time_s,
    reduce_scatter_time_s,
    topology_all_reduce_s,
)
from .link_calibrations import LinkCalibration, shipped_link_calibrations
from .links import LinkRate, Topology, device_link, link_between_nodes, link_inside_nodes, link_rate
from .platforms import usual_computer

if TYPE_CHECKING:
    from ..calibration.evidence_file import EvidenceCalibration
    from ..machines import Device

KIND = "link"

TIME = "collective_s"
"""Figure of collectives that is evidence."""

LATENCY, TRANSFER = "latency", "transfer"

CAUSES = (LATENCY, TRANSFER)

EXCHANGES = "exchanges"
"""Cause of servers and of steps of training that contains collectives."""

ALL_REDUCE, POINT_TO_POINT = "all-reduce", "point-to-point"

OPERATIONS = {
    "all_reduce": ALL_REDUCE,
    "allreduce": ALL_REDUCE,
    "all_gather": "all-gather",
    "allgather": "all-gather",
    "reduce_scatter": "reduce-scatter",
    "alltoall": "all-to-all",
    "sendrecv": POINT_TO_POINT,
}
"""Operations of measured links, by the names that nccl-tests and the OSU benchmarks give them."""

_ALONG_ONE_LINK: dict[str, Callable[[Any, int, LinkRate], Any]] = {
    "all-gather": all_gather_time_s,
    "reduce-scatter": reduce_scatter_time_s,
    "all-to-all": all_to_all_time_s,
    POINT_TO_POINT: lambda size, workers, link: point_to_point_time_s(size, link),
}

LEAST_S = 1e-8
"""Smallest latency in a mean of fitted ones, whose logarithms are averaged."""


def expected_rate(name: str | LinkRate, operation: str = ALL_REDUCE) -> LinkRate:
    """Return the rate of a link; one known only from its data sheet is assumed to be like measured ones of its kind."""
    link = link_rate(name, operation=operation)
    share = cluster_prior().bandwidth_share.get(link.kind)
    if share is None or link.ppp_at:
        return link
    return with_mean_latencies(link, share, operation, shipped_link_calibrations())


def with_mean_latencies(
    link: LinkRate, share: float, operation: str, measured: Mapping[str, LinkCalibration]
) -> LinkRate:
    """Return a link with a share of its bandwidth, and the mean latencies of measured links in an operation.

    Data sheets of links state no latency, or that of a wire, and a small message takes that of a call.
    """
    fits = [
        calibration.operations[operation] for calibration in measured.values() if operation in calibration.operations
    ]
    latencies = {
        field: math.exp(sum(math.log(max(getattr(fit, field), LEAST_S)) for fit in fits) / len(fits))
        for field in ("start_s", "latency_s", "ramp_s")
    }
    # The measured latencies are those of the steps of rings, along which a link with measured shares is timed.
    return msgspec.structs.replace(link, ppp=share, ppp_at=((2, share),), **latencies)


def expected_topology(topology: Topology) -> Topology:
    """Return a topology with the expected rates of its links."""
    inside, between = (None if link is None else expected_rate(link) for link in (topology.inside, topology.between))
    return msgspec.structs.replace(topology, inside=inside, between=between)


def measured_topology(device: Device, devices: int, nodes: int, link: str | None, operation: str) -> Topology:
    """Return the devices of a measured collective, and their links.

    A link that is given joins the devices of one node, or the nodes where there are several. Others are the fastest
    one of the device, and the network of the computer into which it is usually built.
    """
    per_node = devices // nodes
    if per_node * nodes != devices:
        raise BadValue(f"{devices} devices on {nodes} nodes: nodes of different sizes have no forecast")
    inside = between = None
    if per_node > 1:
        inside_name = device_link(device) if nodes > 1 or link is None else link
        inside = expected_rate(link_inside_nodes(inside_name, device)[0], operation)
    if nodes > 1:
        between = _network(device, per_node, link, operation)
    return Topology(device.id, per_node, inside, nodes, between)


def _network(device: Device, per_node: int, link: str | None, operation: str) -> LinkRate:
    """Return the link between nodes: the one that is given, or that of the usual computer."""
    if link is not None:
        return expected_rate(link_between_nodes(link, per_node)[0], operation)
    network = usual_network(device, per_node)
    if network is None:
        raise BadValue(f"the network between nodes of {device.id} is not on record: give `--link`")
    return network


def usual_network(device: Device, devices: int = 1) -> LinkRate | None:
    """Return the network between the usual computers of a device, of which some devices of one use their share.

    None where no such computer, or no network of it, is on record.
    """
    computer = usual_computer(device.id)
    usual_topology = None if computer is None else computer.topology(2 * computer.devices_per_node)
    if usual_topology is None or usual_topology.between is None:
        return None
    # Fewer devices than the computer has use their share of its ports.
    own_bytes_per_s = usual_topology.between.bandwidth_bytes_per_s * min(devices / usual_topology.devices_per_node, 1.0)
    return expected_rate(msgspec.structs.replace(usual_topology.between, bandwidth_bytes_per_s=own_bytes_per_s))


def collective_s(topology: Topology, operation: str, message_bytes: float) -> float:
    """Return the time of a collective over all devices; raise BadValue where it has no forecast."""
    if operation == ALL_REDUCE:
        return float(topology_all_reduce_s(topology, message_bytes))
    if len(topology.links) != 1:
        raise BadValue(f"{operation} over several nodes has no forecast: only all-reduces have")
    link = next(iter(topology.links.values()))
    return float(_ALONG_ONE_LINK[operation](message_bytes, topology.workers, link))


def slowest_link(topology: Topology) -> LinkRate:
    """Return the link that a collective is evidence of: that between nodes, or that inside the only one."""
    link = topology.between or topology.inside
    assert link is not None
    return link


def link_traits(link: LinkRate, device: str, operation: str, devices: int) -> dict[str, str]:
    """Return the traits by which collectives are compared; ports in parallel are one kind of link."""
    return {
        "source": "",
        "link": link.name.rpartition("x ")[2],
        "device": device,
        "operation": operation,
        "devices": str(devices),
    }


def move_link(link: LinkRate, logs: Mapping[str, float], spread: float = 1.0) -> LinkRate:
    """Return a link in which the seconds of each cause are multiplied by a factor, given as its logarithm.

    `spread` is what remains uncertain of its bandwidth, relative to what was before.
    """
    latency, transfer = (math.exp(logs.get(cause, 0.0)) for cause in CAUSES)
    scaled = link.with_factors(share=1 / transfer, latency=latency)
    return msgspec.structs.replace(scaled, moved=link.moved / transfer, spread=link.spread * spread)


def move_topology(topology: Topology, logs: Mapping[str, float]) -> Topology:
    """Return a topology of which all links are moved."""
    inside, between = (None if link is None else move_link(link, logs) for link in (topology.inside, topology.between))
    return msgspec.structs.replace(topology, inside=inside, between=between)


def collective_shares(topology: Topology, operation: str, message_bytes: float) -> dict[str, float]:
    """Return the elasticity of a time with respect to the factor of each cause, normalised to a sum of 1."""

    def log_time(logs: dict[str, float]) -> float:
        return math.log(collective_s(move_topology(topology, logs), operation, message_bytes))

    return elasticities(CAUSES, log_time)


def learned_topology(topology: Topology, device: Device, evidence: EvidenceCalibration | None, kind: str) -> Topology:
    """Return a topology whose links are calibrated by measured collectives.

    Links stay unchanged if no collectives were measured, or if the evidence has servers or steps of the same kind as
    the question: their times contain exchanges over the links already.
    """
    if evidence is None or KIND not in evidence.kinds:
        return topology
    if _times_exchanges(evidence, kind):
        return topology
    links = {
        "inside": (topology.inside, topology.devices_per_node),
        "between": (topology.between, topology.workers),
    }
    learned_links = {
        position: None if link is None else _learned_link(link, device, devices, evidence)
        for position, (link, devices) in links.items()
    }
    return msgspec.structs.replace(topology, **learned_links)


def link_notes(topology: Topology, device: Device, evidence: EvidenceCalibration | None) -> tuple[str, ...]:
    """Return a sentence about the collectives that calibrate the links of a topology; none if none do."""
    if evidence is None or all(link.spread == 1.0 for link in topology.links.values()):
        return ()
    sentences = {}
    for position, link in topology.links.items():
        if link.spread == 1.0:
            continue
        devices = topology.workers if position == "between" else topology.devices_per_node
        traits = link_traits(link, device.id, ALL_REDUCE, devices)
        sentences[link.name] = evidence.describe_distance(KIND, traits)
    if len(set(sentences.values())) == 1:
        return (f"links {next(iter(sentences.values()))}",)
    return tuple(f"link {name} {sentence}" for name, sentence in sentences.items())


def why_links_are_unused(topology: Topology | None, evidence: EvidenceCalibration) -> str:
    """Return why measured collectives calibrate no link of a topology; None is one device."""
    if topology is None or not topology.links:
        return "one device has no links"
    exchanging = [kind for kind in evidence.kinds if _times_exchanges(evidence, kind)]
    if exchanging:
        return f"the figures of {' and '.join(KINDS[kind] for kind in exchanging)} contain exchanges already"
    measured = dict.fromkeys(row.traits.get("link", "") for row in evidence.observations if row.kind == KIND)
    names = " and ".join(link.name for link in topology.links.values())
    return f"those of {', '.join(name or 'an unnamed link' for name in measured)} have nothing in common with {names}"


def _times_exchanges(evidence: EvidenceCalibration, kind: str) -> bool:
    """Return whether the figures of a kind contain exchanges over links."""
    return any(row.kind == kind and row.shares.get(EXCHANGES, 0.0) > 0 for row in evidence.observations)


def _learned_link(link: LinkRate, device: Device, devices: int, evidence: EvidenceCalibration) -> LinkRate:
    """Return a link calibrated by measured collectives, with a label that says so."""
    traits = link_traits(link, device.id, ALL_REDUCE, devices)
    posterior = evidence.posterior(KIND)
    factors = posterior.factors(traits)
    spread = _remaining_spread(factors)
    if spread == 1.0:
        return link  # the collectives have nothing in common with it
    learned = move_link(link, dict(zip(factors.causes, factors.mean.tolist())), spread)
    return msgspec.structs.replace(learned, label=f"{link.label}; {evidence.describe_distance(KIND, traits)}")


def _remaining_spread(factors: Any) -> float:
    """Return the remaining uncertainty of a bandwidth in a cluster, relative to the spread between clusters.

    The spread between clusters loses the variance that the collectives explain, and keeps what they leave.
    """
    transfer = factors.causes.index(TRANSFER)
    before, after = (float(matrix[transfer, transfer]) for matrix in (factors.prior_covariance, factors.covariance))
    between_clusters = cluster_prior().bandwidth_deviation ** 2
    return math.sqrt(max(between_clusters - (before - after), min(after, between_clusters)) / between_clusters)

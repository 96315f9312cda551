"""Published collectives as evidence of links, beside forecasts without their machine."""

from __future__ import annotations

from pathlib import Path

from paleo_lite.calibration.posterior import Observation
from paleo_lite.distributed.clusters import cluster_prior
from paleo_lite.distributed.link_calibrations import shipped_link_calibrations
from paleo_lite.distributed.link_causes import (
    KIND,
    TIME,
    collective_s,
    collective_shares,
    link_traits,
    slowest_link,
    with_mean_latencies,
)
from paleo_lite.distributed.links import LinkRate, Topology, calibrated_link_rate, link_rate
from paleo_lite.machines import read_links

from ..collectives.fit import by_operation
from ..collectives.published import PLATFORMS, MeasuredExchange, published_exchanges
from .groups import Grouped


def measured_collectives(data: Path) -> list[Grouped]:
    """Return the published collectives, with the machine and the operation that each is of."""
    grouped = []
    for (platform, operation), exchanges in by_operation(published_exchanges(data / "measured").exchanges).items():
        link = rate_without(platform, operation)
        grouped += [_grouped(exchange, link) for exchange in exchanges]
    return grouped


def rate_without(platform: str, operation: str) -> LinkRate:
    """Return the expected rate of the link of a platform, from other platforms with it or from its data sheet."""
    name = PLATFORMS[platform].link
    others = {other: fit for other, fit in shipped_link_calibrations().items() if other != platform}
    rates = [
        (not fit.stands_for_link, other, rate)
        for other, fit in others.items()
        if fit.link == name and (rate := calibrated_link_rate(other, fit, operation)) is not None
    ]
    if rates:
        return min(rates)[2]
    link = link_rate(read_links().link[name])
    return with_mean_latencies(link, cluster_prior().bandwidth_share[link.kind], operation, others)


def _grouped(exchange: MeasuredExchange, link: LinkRate) -> Grouped:
    """Return a measured collective beside its forecast."""
    devices, operation, size = exchange.workers, exchange.operation, float(exchange.message_bytes)
    topology = Topology(None, devices, link, 1, None)
    name = PLATFORMS[exchange.platform].link
    traits = {
        **link_traits(slowest_link(topology), exchange.platform, operation, devices),
        "source": PLATFORMS[exchange.platform].source,
        "link": name,
    }
    row = Observation(
        KIND, TIME, f"{devices} {exchange.message_bytes}", traits, exchange.time_s,
        collective_s(topology, operation, size), collective_shares(topology, operation, size),
    )  # fmt: skip
    return Grouped((exchange.platform, operation), row)

"""The released PALEO on many workers (``simulation.py`` and ``comm.py`` of TalwalkarLab/paleo): ``--compat paleo``.

D bytes over n workers, ``t1 = D / bandwidth / PPP``: one-to-all ``2 (n - 1) t1``, tree ``2 ceil(log2 n) t1``,
butterfly ``ceil(log2 n) t1``, butterfly mixing ``t1`` (for one worker, too). No latency, nothing hides behind anything.
Weak scaling keeps the batch per worker, strong scaling gives each ``ceil(batch / n)``. Model parallel has two bounds.
Hybrid is Krizhevsky's "one weird trick": convolutions data-parallel, fully connected layers split. ``docs/paleo.md``
lists the defects.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, log
from typing import NamedTuple

import msgspec

from ..errors import BadValue
from ..hardware import Device, read_links
from ..networks import Network, find_network
from ..scaling.collectives import LinkRate
from ..scaling.links import link_rate
from ..scaling.rows import ScaleRow
from .layers import REVISIONS, one_of, parameter_bytes
from .model_parallel import branches, hybrid_ms, lower_bound, width
from .simulator import PaleoDevice, find_paleo_device, paleo_times, update_ms

COLLECTIVES = ("one-to-all", "tree", "butterfly", "butterfly-mixing")
STRATEGIES = ("data", "hybrid", "model-lower", "model-upper")
PLATFORMS = {"caffe": (0.21, 0.56), "mxnet": (0.49, 0.72), "tensorflow": (0.62, 0.72)}
"""The PPP of arithmetic and of communication that PALEO's web demo gives to each framework."""


class _Job(NamedTuple):
    """What all rows share."""

    network: Network
    device: PaleoDevice
    link: LinkRate
    ppp: float
    ppp_comm: float
    revision: str
    overlap: bool
    algorithm: str


def paleo_scale(
    network: str | Network,
    device: str | Device,
    link: str | LinkRate,
    *,
    workers: Sequence[int],
    batch_size: int,
    scaling: str = "weak",
    collective: str = "tree",
    ppp: float = 1.0,
    ppp_comm: float = 1.0,
    strategy: str = "data",
    revision: str = "first",
    overlap: bool = False,
    algorithm: str = "gemm",
) -> list[ScaleRow]:
    """What PALEO says a training step takes on some numbers of workers.

    Parameters
    ----------
    network : str or Network
        ``paleo_alex_v2``, or any network of layers that PALEO knows.
    device : str or Device
        One of PALEO's by its name (``TITAN_X``) or ours (``k20x``), with the figures PALEO has; any other device by the
        registry's.
    link : str or LinkRate
        ``aws``, ``ethernet``, ``ethernet20``, ``infiniband``, ``pcie2``, ``pcie3`` with PALEO's rates, or what
        `link_rate` reads.
    workers : sequence of int
    batch_size : int
        Weak scaling: per worker. Strong: over all workers.
    scaling : {"weak", "strong"}
    collective : {"one-to-all", "tree", "butterfly", "butterfly-mixing"}
    ppp, ppp_comm : float
        Platform percent of peak, as a share, of arithmetic and of communication.
    strategy : {"data", "hybrid", "model-lower", "model-upper"}
        The model-parallel bounds are of forward and backward pass alone, on as many workers as there are branches side
        by side: one row, whatever `workers` says.
    revision : {"first", "last"}
    overlap : bool
        PALEO's ``use_pipeline``: memory traffic and arithmetic of a layer hide behind each other.
    algorithm : str
        How convolutions are computed: one of `paleo_lite.paleo.layers.ALGORITHMS`.

    Returns
    -------
    list of ScaleRow
        One for each number of workers.

    Raises
    ------
    UnknownName, BadValue
        If a name or number is none, or options do not go together.
    CountFailed
        If PALEO does not know a layer of the network, or fails on it.
    """
    one_of("collective of PALEO", collective, COLLECTIVES)
    one_of("strategy of PALEO", strategy, STRATEGIES)
    one_of("scaling", scaling, ("weak", "strong"))
    one_of("revision of PALEO", revision, REVISIONS)
    for what, numbers in (("the number of workers", workers), ("the batch size", [batch_size])):
        if not numbers or any(isinstance(n, bool) or not isinstance(n, int) or n < 1 for n in numbers):
            raise BadValue(f"{what} must be a whole number of 1 or more, not {list(numbers)!r}")
    if not ppp_comm > 0:
        raise BadValue(f"the PPP of communication must be above 0, not {ppp_comm!r}")
    found = find_network(network) if isinstance(network, str) else network
    job = _Job(found, find_paleo_device(device), paleo_link(link), ppp, ppp_comm, revision, overlap, algorithm)
    if strategy.startswith("model"):
        return [_model_row(job, batch_size, strategy)]
    if strategy == "hybrid":
        if scaling != "weak" or collective != "tree" or overlap:
            raise BadValue("PALEO's hybrid scheme scales weakly, exchanges by a tree and overlaps nothing")
        alone = _hybrid_row(job, 1, batch_size)
        return [_relative(_hybrid_row(job, n, batch_size), alone) for n in workers]
    return _data_rows(job, workers, batch_size, scaling, collective)


def paleo_link(link: str | LinkRate) -> LinkRate:
    """PALEO's own rate where it has a link of that name, else ours."""
    if not isinstance(link, str):
        return link
    own = read_links().link.get(f"paleo-{link.lower()}")
    return link_rate(own or link)


def exchange_ms(collective: str, size_bytes: float, workers: int, link: LinkRate, ppp_comm: float) -> float:
    """An all-reduce as PALEO has it (``comm.py``), without latency."""
    once = size_bytes / link.bandwidth_bytes_per_s * 1e3 / ppp_comm
    height = ceil(log(workers) / log(2))
    steps = {"one-to-all": 2 * (workers - 1), "tree": 2 * height, "butterfly": height, "butterfly-mixing": 1}
    return steps[collective] * once


def _data_rows(job: _Job, workers: Sequence[int], batch_size: int, scaling: str, collective: str) -> list[ScaleRow]:
    layers = job.network.layers
    counts = [1, *workers]  # one worker is what speed-ups are relative to
    own = [batch_size if scaling == "weak" else ceil(batch_size / n) for n in counts]
    times = paleo_times(layers, job.device, own, job.ppp, revision=job.revision, algorithm=job.algorithm)
    compute = times.total_ms("forward", job.overlap) + times.total_ms("backward", job.overlap)
    size = parameter_bytes(layers)
    update = update_ms(size, job.device, job.overlap)
    steps = []
    for n, compute_ms in zip(counts, compute):
        samples = batch_size * (n if scaling == "weak" else 1)
        exchange = exchange_ms(collective, size, n, job.link, job.ppp_comm)
        steps.append(_row(n, samples, float(compute_ms), exchange, update, "data", collective))
    return [_relative(row, steps[0]) for row in steps[1:]]


def _hybrid_row(job: _Job, workers: int, batch_size: int) -> ScaleRow:
    link_gb_per_s = job.link.bandwidth_bytes_per_s / 1e9
    parts = hybrid_ms(
        job.network, job.device, workers, batch_size, link_gb_per_s, job.ppp, job.ppp_comm, job.revision, job.algorithm
    )
    exchange = parts.fetch_ms + exchange_ms("tree", parts.shared_bytes, workers, job.link, job.ppp_comm)
    return _row(workers, workers * batch_size, parts.compute_ms, exchange, parts.update_ms, "hybrid", "tree")


def _model_row(job: _Job, batch_size: int, strategy: str) -> ScaleRow:
    layers = job.network.layers
    tree = branches(job.network)
    times = paleo_times(layers, job.device, [batch_size], job.ppp, revision=job.revision, algorithm=job.algorithm)
    bounds = {"model-lower": 0.0, "model-upper": 0.0}
    for direction in ("forward", "backward"):
        per_layer = times.layer_ms(direction)[0]
        bounds["model-lower"] += lower_bound(tree, per_layer)
        bounds["model-upper"] += float(per_layer.sum())
    row = _row(width(tree), batch_size, bounds[strategy], 0.0, 0.0, strategy, "")
    alone = _row(1, batch_size, bounds["model-upper"], 0.0, 0.0, strategy, "")
    note = "PALEO's bound of forward and backward pass: it has no number of workers, no communication and no update"
    return _relative(msgspec.structs.replace(row, notes=(note,)), alone)


def _row(
    workers: int, batch_size: int, compute: float, exchange: float, update: float, strategy: str, collective: str
) -> ScaleRow:
    """A row from milliseconds, without what it is relative to."""
    parts = {"compute": compute, "communication": exchange, "update": update}
    time_s = (compute + exchange + update) / 1e3
    return ScaleRow(
        workers=workers,
        batch_size=batch_size,
        compute_s=compute / 1e3,
        communication_s=exchange / 1e3,
        exposed_s=exchange / 1e3,
        update_s=update / 1e3,
        time_s=time_s,
        throughput_per_s=batch_size / time_s,
        speedup=1.0,
        efficiency=1.0,
        limited_by=max(parts, key=lambda name: parts[name]),
        strategy=strategy,
        collective=collective,
    )


def _relative(row: ScaleRow, alone: ScaleRow) -> ScaleRow:
    speedup = row.throughput_per_s / alone.throughput_per_s
    return msgspec.structs.replace(row, speedup=speedup, efficiency=speedup / row.workers)


__all__ = ["COLLECTIVES", "PLATFORMS", "STRATEGIES", "exchange_ms", "paleo_link", "paleo_scale"]

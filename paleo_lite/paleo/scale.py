"""PALEO on many workers: ``--compat paleo``.

Weak scaling keeps the batch per worker, strong scaling gives each ``ceil(batch / n)``. Model parallel has two bounds.
Hybrid is Krizhevsky's "one weird trick": convolutions data-parallel, fully connected layers split.

Source: ``simulation.py``.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil
from typing import NamedTuple

from ..counting.work import check_batch_size
from ..distributed.collectives import check_workers
from ..distributed.run import Request
from ..distributed.scale import SCALINGS
from ..distributed.table import ScaleRow, ScaleTable, make_budget, priced
from ..errors import BadValue
from ..networks import Network, find_network
from .layers import parameter_bytes
from .model_parallel import activations_ms, divide, slowest_branches
from .simulator import COLLECTIVES, Simulator, check_name, make_simulator

STRATEGIES = ("data", "hybrid", "model-lower", "model-upper")
PLATFORMS = {"caffe": (0.21, 0.56), "mxnet": (0.49, 0.72), "tensorflow": (0.62, 0.72)}
"""The PPP of arithmetic and of communication that PALEO's web demo gives to each framework."""


class PaleoStep(NamedTuple):
    """A step of training, and what it consists of; `batch_size` is that of all workers together."""

    workers: int
    batch_size: int
    compute_ms: float
    communication_ms: float = 0.0
    update_ms: float = 0.0

    @property
    def time_s(self) -> float:
        """One after the other: PALEO hides nothing."""
        return sum(self[2:]) / 1e3

    def row(self, alone: PaleoStep, strategy: str, collective: str, notes: tuple[str, ...] = ()) -> ScaleRow:
        """The step beside that of one worker, `alone`."""
        compute_s, communication_s, update_s = (ms / 1e3 for ms in self[2:])
        return ScaleRow(
            workers=self.workers,
            batch_size=self.batch_size,
            compute_s=compute_s,
            communication_s=communication_s,
            exposed_s=communication_s,
            update_s=update_s,
            alone_per_s=alone.batch_size / alone.time_s,
            limited_by=max(self._fields[2:], key=lambda name: float(getattr(self, name))).removesuffix("_ms"),
            notes=notes,
            strategy=strategy,
            collective=collective,
        )


def paleo_scale(
    network: str | Network,
    simulator: Simulator,
    *,
    workers: Sequence[int],
    batch_size: int,
    scaling: str = "weak",
    collective: str = "tree",
    strategy: str = "data",
) -> list[ScaleRow]:
    """What PALEO says a training step takes on some numbers of workers.

    Parameters
    ----------
    network : str or Network
        ``paleo_alex_v2``, or any network of layers that PALEO knows.
    simulator : Simulator
        Of `make_simulator`.
    batch_size : int
        Weak scaling: per worker. Strong: over all workers.
    scaling : {"weak", "strong"}
    collective : {"one-to-all", "tree", "butterfly", "butterfly-mixing"}
    strategy : {"data", "hybrid", "model-lower", "model-upper"}
        The model-parallel bounds are of forward and backward pass alone, one term after the other, on as many
        workers as there are branches side by side: one row, whatever `workers` says.

    Returns
    -------
    list of ScaleRow
        One for each number of workers.

    Raises
    ------
    UnknownName, BadValue
        If a name or number is none, or options do not go together.
    """
    check_name("collective", collective, COLLECTIVES)
    check_name("strategy", strategy, STRATEGIES)
    check_name("scaling", scaling, SCALINGS)
    check_batch_size(batch_size)
    check_workers(workers)
    if isinstance(network, str):
        network = find_network(network)
    if strategy.startswith("model"):
        return [_bound(network, simulator, batch_size, strategy)]
    if strategy == "hybrid":
        if scaling != "weak" or collective != "tree" or simulator.concurrent:
            raise BadValue("PALEO's hybrid scheme has weak scaling, exchanges by a tree and no `concurrent`")
        alone, *steps = (_hybrid_step(network, simulator, n, batch_size) for n in (1, *workers))
    else:
        alone, *steps = _data_steps(network, simulator, (1, *workers), batch_size, scaling, collective)
    return [step.row(alone, strategy, collective) for step in steps]


def _data_steps(
    network: Network, simulator: Simulator, workers: Sequence[int], batch_size: int, scaling: str, collective: str
) -> list[PaleoStep]:
    weak = scaling == "weak"
    own = [batch_size if weak else ceil(batch_size / n) for n in workers]
    compute = simulator.times(network.layers, own).total_ms(simulator.concurrent)
    size_bytes = parameter_bytes(network.layers)
    update = simulator.device.update_ms(size_bytes, simulator.concurrent)
    return [
        PaleoStep(
            n, batch_size * n if weak else batch_size, ms, simulator.exchange_ms(collective, size_bytes, n), update
        )
        for n, ms in zip(workers, compute.tolist())
    ]


def _hybrid_step(network: Network, simulator: Simulator, workers: int, batch_size: int) -> PaleoStep:
    """Whole layers are data-parallel; split ones each worker computes for everybody's batch.

    A slip of the release: a worker updates all parameters of the split layers.
    """
    whole, split = divide(network, workers)
    compute_whole, compute_split = (float(simulator.times(part, [batch_size]).total_ms()[0]) for part in (whole, split))
    whole_bytes, split_bytes = parameter_bytes(whole), workers * parameter_bytes(split)
    return PaleoStep(
        workers,
        workers * batch_size,
        compute_whole + workers * compute_split,
        activations_ms(simulator, split, workers, batch_size) + simulator.exchange_ms("tree", whole_bytes, workers),
        simulator.device.update_ms(whole_bytes) + simulator.device.update_ms(split_bytes),
    )


def _bound(network: Network, simulator: Simulator, batch_size: int, strategy: str) -> ScaleRow:
    """A bound of model parallelism, beside the upper one, which is that of one worker."""
    times = simulator.times(network.layers, [batch_size])
    alone = PaleoStep(1, batch_size, float(times.total_ms()[0]))
    lower_ms, width = slowest_branches(network, times.layer_ms()[..., 0])
    step = PaleoStep(width, batch_size, float(lower_ms.sum()) if strategy == "model-lower" else alone.compute_ms)
    note = "PALEO's bound of forward and backward pass, for any number of workers, without communication or update"
    return step.row(alone, strategy, "", (note,))


def paleo_table(
    request: Request,
    network: str,
    gpu: str | None,
    *,
    collective: str,
    revision: str,
    ppp: float = 1.0,
    concurrent: bool = False,
) -> ScaleTable:
    """The answer of `paleo_scale` to a request, in the table of `paleo_lite.scale`.

    Raises
    ------
    UnknownName, BadValue
        If a name or number is none, options do not go together, or there is no device or link.
    """
    if gpu is None or request.link is None:
        raise BadValue("PALEO needs a device and a link: --gpu TITAN_X --link ethernet20")
    budget = make_budget(None, request.images, request.epochs, request.price, cost_asked=request.cost_asked)
    counts = request.counts() or [1]
    samples = request.samples(max(counts))
    ppp_comm = request.ppp_comm or 1.0
    simulator = make_simulator(gpu, request.link, ppp=ppp, ppp_comm=ppp_comm, revision=revision, concurrent=concurrent)
    rows = paleo_scale(
        network, simulator, workers=counts, batch_size=samples, scaling=request.scaling, collective=collective,
        strategy=request.strategy,
    )  # fmt: skip
    return ScaleTable(
        network=network,
        gpu=gpu,
        gpu_name=gpu,
        precision="fp32",
        scaling=request.scaling,
        batch_size=samples,
        topology=f"as PALEO has it: {request.link} between all workers",
        links=(),
        model=f"PALEO, {revision} release, PPP {ppp:g}, of the link {ppp_comm:g}",
        memory_bytes=None,
        rows=priced(rows, budget),
        images=budget.images,
        epochs=budget.epochs,
        price_usd_per_h=budget.price_usd_per_h,
    )

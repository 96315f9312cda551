"""Rollouts of a step: an engine that answers all prompts at once and ends with the last sample.

Every engine gets its share of the samples at the start and computes them as `paleo_lite.serving.simulator` does:
prompts, decoding, waves where the cache holds fewer. No sample arrives later, so that ever fewer sequences are live,
and the longest one decides. Engines that do not record graphs launch every kernel from the host.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from typing import TYPE_CHECKING, NamedTuple

import msgspec
import numpy as np

from ..engines.kernels import ExchangeKernel
from ..errors import BadValue
from ..machines import Device
from ..serving.captured_graphs import count_launches, with_launches
from ..serving.deployment import Deployment
from ..serving.energy import served_activity
from ..serving.iteration_times import ScheduledTokens
from ..serving.outcomes import Outcome
from ..serving.prepared import PreparedDeployment, prepare
from ..serving.requests import Traffic
from ..text import format_plural
from ..timing.activity import Activity
from .constants import RlConstants
from .weights import has_coherent_host

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]

BLACKWELL = "Blackwell"

TIMELINE_POINTS = 64
"""Points of the curve of live sequences."""


class Rollouts(msgspec.Struct, frozen=True):
    """How the samples of a step are generated."""

    time_s: float  # until the last sample ends
    low_s: float  # 90% interval of the time
    high_s: float
    steady_s: float  # the same tokens at a full batch, without the tail: where samples of the next step follow
    engines: int  # number of engines
    samples_per_engine: int
    most_live: float  # largest number of sequences at the same time in an engine
    mean_live: float  # mean number
    tail_share: float  # share of the time in which fewer than half of the most sequences are live
    iterations: int
    waits_for_memory: bool  # whether the cache holds fewer sequences than an engine has samples
    weights_bytes: float  # memory of a device
    cache_bytes: float
    activations_bytes: float
    live: tuple[tuple[float, float], ...]  # (seconds, live sequences of all engines)
    activity: Activity  # what a device does in all iterations

    @property
    def memory_bytes(self) -> float:
        """Memory of a device: weights, cache and activations."""
        return self.weights_bytes + self.cache_bytes + self.activations_bytes


ADAPTED_LAUNCHES = 2
"""Launches of an iteration with adapters over those without: two small products go beside each matrix of a block."""


def without_graphs(prepared: PreparedDeployment, context: float, launch_s: float) -> PreparedDeployment:
    """Return an engine without graphs, whose iterations take no less than the host takes to launch their kernels.

    Where layers are timed one by one launches are a part of their time.
    """
    on_device = prepared.deployment.on_device
    if on_device.kernels is None:
        return prepared
    launches = count_launches(on_device, context)
    return msgspec.structs.replace(prepared, tables=with_launches(prepared.tables, launch_s * launches, context))


def across_nodes_s(deployment: Deployment, nodes: int, exchange_s: float) -> float:
    """Return the additional communication time per iteration of an engine that spans several nodes."""
    on_device = deployment.on_device
    if nodes == 1 or on_device.kernels is None:
        return 0.0
    kernels = on_device.kernels.of_iteration("decode", 1)
    return exchange_s * sum(counted.count for counted in kernels if isinstance(counted.kernel, ExchangeKernel))


def with_rollout_host(deployment: Deployment, constants: RlConstants, nodes: int, *, is_eager: bool) -> Deployment:
    """Return an engine with what its host does in rollouts beyond serving, and with exchanges between nodes."""
    factor = constants.coherent_host if has_coherent_host(deployment.on_device.machine.device) else 1.0
    waited_s = across_nodes_s(deployment, nodes, constants.across_nodes_s) + constants.iteration_s * factor
    engine = deployment.engine
    low_s, high_s = engine.overhead_range_s
    eager_s = engine.eager_sequence_s if is_eager else 0.0
    engine = msgspec.structs.replace(
        engine,
        overhead_s=engine.overhead_s + waited_s,
        overhead_range_s=(low_s + waited_s, high_s + waited_s),
        sequence_overhead_s=engine.sequence_overhead_s + eager_s + constants.token_s * factor,
    )
    return msgspec.structs.replace(deployment, engine=engine)


class Samples(NamedTuple):
    """The samples of a step: one prompt, and responses of several turns, between which a tool is called."""

    prompt_tokens: int
    lengths: Ints  # tokens of every response, in rising order
    turns: int  # parts of a response
    tool_s: float  # time of a call


def roll_out(
    deployment: Deployment,  # one engine
    engines: int,
    samples: Samples,
    constants: RlConstants,
    *,
    is_eager: bool,
    has_adapters: bool,  # whether the engine computes adapters beside its matrices
    nodes: int,  # on which the devices of an engine are
    steps_ahead: int,  # steps whose samples fill an engine beside those of this one
) -> Rollouts:
    """Return the rollouts of all samples over engines of one kind; raise DoesNotFit if a sample does not fit."""
    prompt_tokens, lengths = samples.prompt_tokens, samples.lengths
    if engines > len(lengths):
        raise BadValue(
            f"a step of {format_plural(len(lengths), 'sample')} is for fewer engines than {engines:,}: give more "
            "`--prompts` or `--samples-per-prompt`, or engines of more devices with `--rollout-tensor`"
        )
    engine_lengths = lengths[::-1][::engines]  # the engine with the longest sample
    order = np.random.default_rng(0).permutation(len(engine_lengths))
    traffic = Traffic(np.zeros(len(engine_lengths)), np.full(len(engine_lengths), prompt_tokens), engine_lengths[order])
    most_live = min(len(engine_lengths), deployment.replica_engine().max_sequences)
    context = prompt_tokens + float(engine_lengths.mean()) / 2
    deployment = with_rollout_host(deployment, constants, nodes, is_eager=is_eager)
    factor = kernel_factor(deployment.on_device.machine.device, constants)
    prepared = with_slower_kernels(prepare(deployment, traffic), factor)
    if is_eager:
        launch_s = constants.launch_s * (ADAPTED_LAUNCHES if has_adapters else 1)
        prepared = without_graphs(prepared, context, launch_s)
    outcome, fastest, slowest = (prepared.run(traffic, level)[0] for level in ("expected", "low", prepared.slowest))
    called_s = (samples.turns - 1) * samples.tool_s
    context = prompt_tokens + float((engine_lengths.astype(float) ** 2).mean() / engine_lengths.mean()) / 2
    steady_s = _steady_s(prepared, traffic, context, called_s, steps_ahead, factor)
    seconds, counts = live_sequences(outcome)
    scale = outcome.busy_s or 1.0
    below_half = counts < counts.max() / 2
    return Rollouts(
        time_s=_end_s(outcome) + called_s,
        low_s=_end_s(fastest) + called_s,
        high_s=_end_s(slowest) + called_s,
        steady_s=steady_s,
        engines=engines,
        samples_per_engine=len(engine_lengths),
        most_live=float(counts.max()),
        mean_live=outcome.sequence_s / scale,
        tail_share=float(below_half.mean()),
        iterations=outcome.iterations,
        waits_for_memory=bool(outcome.preemptions > 0 or counts.max() < min(len(engine_lengths), most_live)),
        weights_bytes=prepared.room.weights_bytes,
        cache_bytes=prepared.room.cache_bytes,
        activations_bytes=prepared.room.activations_bytes,
        live=tuple(zip(seconds.tolist(), (counts * engines).tolist())),
        activity=Activity(*map(float, served_activity([outcome], deployment, prompt_tokens * len(engine_lengths)))),
    )


def kernel_factor(device: Device, constants: RlConstants) -> float:
    """Return the time of the kernels of an engine in rollouts over that in serving."""
    return constants.blackwell_kernels if device.architecture == BLACKWELL else 1.0


def with_slower_kernels(prepared: PreparedDeployment, factor: float) -> PreparedDeployment:
    """Return a deployment with all kernel times multiplied by a factor; the relative interval is unchanged."""
    if factor == 1:
        return prepared
    tables = prepared.tables
    slower = msgspec.structs.replace(
        tables.times_factors([factor]), relative_low=tables.relative_low, relative_high=tables.relative_high
    )
    return msgspec.structs.replace(prepared, tables=slower)


def _steady_s(
    prepared: PreparedDeployment,
    traffic: Traffic,
    context: float,
    called_s: float,  # in which a sample waits for tools
    steps_ahead: int,
    factor: float,
) -> float:
    """Return the time of the tokens of an engine that samples of the next steps keep as full as it can be."""
    deployment = prepared.deployment
    if steps_ahead:
        several = np.tile(np.arange(len(traffic)), 1 + steps_ahead)
        filled = Traffic(np.zeros(len(several)), traffic.input_tokens[several], traffic.output_tokens[several])
        prepared = with_slower_kernels(prepare(deployment, filled), factor)
    tables, engine = prepared.tables, prepared.engine
    fitting = max(int(prepared.room.tokens / context), 1)
    in_flight, mean_tokens = len(traffic) * (1 + steps_ahead), float(traffic.output_tokens.mean())

    def decoding_s(live: int) -> float:
        """Return the seconds in which a sample is decoded beside others."""
        decoded_s = tables.iteration_s(ScheduledTokens(live, live * context))
        iteration_s = engine.overhead_s + engine.sequence_overhead_s * live + decoded_s
        return float(mean_tokens * iteration_s / deployment.options.speculation.tokens_per_iteration)

    def samples_of(live: int) -> int:
        """Return the samples in flight, of which others wait for a tool (Little's law)."""
        return math.ceil(live * (1 + called_s / decoding_s(live)))

    most_live = min(engine.max_sequences, in_flight, fitting)
    live = max(bisect_right(range(1, most_live + 1), in_flight, key=samples_of), 1)
    # An engine decodes no more at once, and gets samples back no earlier.
    samples_per_s = min(most_live / decoding_s(most_live), in_flight / (called_s + decoding_s(live)))
    return len(traffic) / samples_per_s


def _end_s(outcome: Outcome) -> float:
    """Return the time at which the last sample ends."""
    return float(outcome.finish_s.max())


def live_sequences(outcome: Outcome) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return times of a simulation, and the sequences that are live at each of them."""
    seconds = np.linspace(0.0, _end_s(outcome), TIMELINE_POINTS)
    started = np.searchsorted(np.sort(outcome.admitted_s), seconds, side="right")
    ended = np.searchsorted(np.sort(outcome.finish_s), seconds, side="right")
    return seconds, (started - ended).astype(float)

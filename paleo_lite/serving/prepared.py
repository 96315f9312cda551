"""A deployment that is ready to be simulated: times of its iterations, room of its cache, and their intervals."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from ..engines.causes import FIRST_TOKEN
from ..engines.records.record import Server
from ..timing.intervals import Z_90
from .adapters import times_with
from .cache import CacheRoom
from .captured_graphs import count_launches, eager_launch_s, with_launches
from .causes import RemainingWidths, causes_of_iterations, causes_of_users, remaining_widths
from .deployment import Deployment, have_connector, links_between_pools
from .flood import simulate_flood
from .host_intervals import HostWidths, count_running, host_widths
from .intervals import summarize_latencies
from .iteration import has_fitted_host
from .iteration_times import IterationTimes
from .outcomes import Outcome
from .pools import (
    CacheTiers,
    ServerPool,
    Simulated,
    Transfer,
    keep,
    run_admitted,
    run_elastic,
    run_pool,
    run_split,
    simulate,
)
from .requests import Traffic
from .speech import check_lengths
from .startup import START_FACTOR, StartTime, estimate_start
from .timed_engine import TimedEngine
from .timer import tabulate

if TYPE_CHECKING:
    from ..engines.constants import Learned

LEVELS = ("low", "expected", "high")
"""Iteration times of a simulation: the ends of their 90% interval, and the expected times."""

POOL_DEVIATION = 0.13
"""Standard deviation of the logarithm by which iterations of split pools are further off than those of servers that do
both, to which constants are fitted.

It was chosen by published pools under SGLang and judged by those under TensorRT-LLM.
"""

HANDOVER_ENDS = {"low": 0.4, "high": 2.5}
"""Ends of the 90% interval of an engine's handover between pools, relative to it."""


class PreparedDeployment(msgspec.Struct, frozen=True, eq=False):
    """A deployment with its iteration times and cache room."""

    deployment: Deployment
    engine: Server  # its engine, with no more sequences than the cache holds
    room: CacheRoom  # the cache of one replica
    tables: IterationTimes  # iteration times of one replica
    draft_tables: IterationTimes | None  # iteration times of the draft network
    prefill: PreparedDeployment | None = None  # the pool that computes prompts; None where every replica does both
    host_widths: HostWidths = HostWidths()  # what the interval of the host adds to that of iterations
    # What measured servers leave of the intervals of the host and of the wait for a first token, in logarithms; those
    # of `tables` are narrowed already.
    host_width: float = 1.0
    first_token_width: float = 1.0

    def narrowed(self, traffic: Traffic, learned: Learned) -> PreparedDeployment:
        """Return the deployment with the intervals that measured servers leave under some traffic.

        Iterations with and without prompts and the host are less certain apart than together, since a measured time per
        token is that of all. So all of them have the interval of their sum under this traffic.
        """
        simulated = {level: self.simulate(traffic, level) for level in LEVELS}
        at_levels = {level: summarize_latencies(at_level) for level, at_level in simulated.items()}
        widths = remaining_widths(
            self.deployment.on_device,
            self.engine,
            learned,
            traffic,
            simulated["expected"],
            causes_of_iterations(self, traffic, at_levels),
            causes_of_users(self, traffic),
            self.deployment.latency_deviations(traffic)[FIRST_TOKEN],
        )
        prefill = None if self.prefill is None else self.prefill._with_widths(widths)
        return msgspec.structs.replace(self._with_widths(widths), prefill=prefill)

    def widened(self, deviation: float) -> PreparedDeployment:
        """Return the deployment with an independent standard deviation of the logarithm of its iterations."""
        if not self.tables.relative_low:
            return self
        return msgspec.structs.replace(self, tables=self.tables.widened(Z_90 * deviation))

    def _with_widths(self, widths: RemainingWidths) -> PreparedDeployment:
        draft_tables = None if self.draft_tables is None else self.draft_tables.narrowed(widths.per_token)
        return msgspec.structs.replace(
            self,
            tables=self.tables.narrowed(widths.per_token),
            draft_tables=draft_tables,
            host_width=widths.per_token,
            first_token_width=widths.first_token,
        )

    def for_crowd(self, traffic: Traffic) -> PreparedDeployment:
        """Return the deployment for as many requests of these lengths as ever run at once, however few are sent."""
        running = self.deployment.most_running(traffic, self.room)
        prefill = None if self.prefill is None else self.prefill.for_crowd(traffic)
        if running <= self.engine.max_sequences:
            engine = msgspec.structs.replace(self.engine, max_sequences=running)
            crowd = msgspec.structs.replace(self, engine=engine, prefill=prefill)
        else:
            crowd = _prepare_sequences(self.deployment, traffic, self.room, running, prefill=prefill)
        widths = _widths_of_host(self.deployment, crowd.tables, crowd.engine, running, traffic)
        crowd = msgspec.structs.replace(crowd, host_widths=widths)
        if running <= self.engine.max_sequences:
            return crowd
        is_narrowed = self.host_width != 1.0
        return crowd._with_widths(RemainingWidths(self.host_width, self.first_token_width)) if is_narrowed else crowd

    def latency_deviations(self, traffic: Traffic) -> dict[str, float]:
        """Return standard deviations of the logarithms of latencies beside those of the iterations, by latency."""
        deviations = self.deployment.latency_deviations(traffic)
        return {name: deviation * self.first_token_width for name, deviation in deviations.items()}

    @property
    def slowest(self) -> str:
        """Level of the slowest iterations: the upper end of their interval, or the expected times without one."""
        return "high" if self.tables.relative_low else "expected"

    @property
    def levels(self) -> tuple[str, ...]:
        """Levels of the times of iterations that an answer has: all, or the expected one where there is no interval."""
        return LEVELS if self.tables.relative_low else ("expected",)

    def run(self, traffic: Traffic, level: str = "expected", answers: int | None = None) -> list[Outcome]:
        """Simulate all replicas at one of `LEVELS`; an outcome per replica that decodes."""
        return self.simulate(traffic, level, answers).outcomes

    def simulate(
        self,
        traffic: Traffic,
        level: str = "expected",
        answers: int | None = None,
        prefill_level: str | None = None,  # level of the pool of prompts, where it is another one
    ) -> Simulated:
        """Simulate all replicas at one of `LEVELS`, as one deployment or alone up to the first answers of each."""
        if self.prefill is not None:
            of_prompts = level if prefill_level is None else prefill_level
            transfer = self.transfer.times(HANDOVER_ENDS.get(of_prompts, 1.0))
            return run_split(traffic, self.prefill.pool(of_prompts), self.pool(level), transfer, answers)
        elasticity = self.deployment.elasticity
        if elasticity is not None:
            return run_elastic(
                traffic, self.pool(level), elasticity, self._start_s(level), self.deployment.on_device.devices
            )
        if self.deployment.admission is not None:
            return run_admitted(traffic, self.pool(level), self.deployment.admission)
        if self.deployment.needs_router or traffic.follows is not None:
            return run_pool(traffic, self.pool(level), answers)
        tables, engine, options = self.at_level(level)
        replicas = self.deployment.replicas
        if traffic.concurrency is not None:
            replicas = min(replicas, traffic.concurrency)  # the others have no user who sends them a request
        parts = [traffic.every(replicas, start) for start in range(replicas)]
        return Simulated(
            [simulate(part, tables, self.room, engine, options, answers) for part in parts if len(part)], []
        )

    def flood(self, traffic: Traffic, levels: Sequence[str]) -> list[list[Outcome]]:
        """Simulate requests that all wait from the beginning; the outcomes of the replicas at each of some levels.

        To a router all replicas are equal then, unless prompts have prefixes, so that they take requests in turn. One
        that draws replicas gives each as many requests in the long run, to which the rate of requests that always wait
        belongs.
        """
        deployment = self.deployment
        if self.prefill is not None or (deployment.needs_router and traffic.hashes is not None):
            return [self.run(traffic, level) for level in levels]
        timed = [self.at_level(level) for level in levels]
        parts = [traffic.every(deployment.replicas, start) for start in range(deployment.replicas)]
        conditions = (self.room, *timed)
        by_replica = [
            keep(part, timed[0].times, conditions, partial(simulate_flood, part, timed, self.room))
            for part in parts
            if len(part)
        ]
        return [list(outcomes) for outcomes in zip(*by_replica)]

    def _start_s(self, level: str) -> float:
        """Return the seconds in which a replica starts at one of `LEVELS`."""
        assert self.deployment.elasticity is not None
        if self.deployment.elasticity.start_s is not None:
            return self.deployment.elasticity.start_s
        ends = {"low": 1 / START_FACTOR, "high": START_FACTOR}
        return self.start.seconds * ends.get(level, 1.0)

    @property
    def start(self) -> StartTime:
        """The time in which a replica starts, by published starts."""
        on_device = self.deployment.on_device
        layers = on_device.workload.network.blocks / on_device.pipeline.degree
        return estimate_start(layers, self.room.weights_bytes * on_device.devices)

    @property
    def lasting(self) -> PreparedDeployment:
        """The deployment whose replicas stay, as many as there are at most, and refuse nothing.

        Of a gateway that lets so many requests through at a time, each replica has its share.
        """
        engine, admission = self.engine, self.deployment.admission
        lasting = msgspec.structs.replace(self.deployment, elasticity=None, admission=None)
        if admission is not None and admission.most_at_once is not None:
            share = max(admission.most_at_once // lasting.replicas, 1)
            if share < lasting.replica_engine().max_sequences:
                lasting = lasting.with_sequences(share)
            engine = msgspec.structs.replace(engine, max_sequences=min(engine.max_sequences, share))
        return msgspec.structs.replace(self, deployment=lasting, engine=engine)

    def pool(self, level: str) -> ServerPool:
        """Return the replicas of a split deployment's pool at one of `LEVELS`."""
        tables, engine, options = self.at_level(level)
        deployment, tiers = self.deployment, None
        if deployment.stores:
            token_bytes = self.room.sequence_bytes / self.room.sequence_tokens * deployment.on_device.devices
            tiers = CacheTiers(token_bytes, deployment.stores)
        return ServerPool(deployment.replicas, tables, self.room, engine, options, deployment.router, tiers)

    @property
    def transfer(self) -> Transfer:
        """How keys and values get here from the prefill pool."""
        assert self.prefill is not None
        prefill, room, handover = self.prefill.deployment, self.prefill.room, self.engine.handover
        block_s = handover.block_s if have_connector(prefill, self.deployment) else 0.0
        return Transfer(
            room.sequence_bytes / room.sequence_tokens,
            links_between_pools(prefill, self.deployment),
            handover.messages_s,
            block_s * prefill.tensors_per_device / room.block_tokens,
        )

    def engine_at(self, level: str) -> Server:
        """Return the engine with the time of its host at an end of the interval, ``low`` or ``high``."""
        return self.engine.at_end(level, self.host_width * self.host_widths.at(level))

    def at_level(self, level: str) -> TimedEngine:
        """Return iteration times, engine and options of a simulation at one of `LEVELS`."""
        engine, tables, draft = self.engine, self.tables, self.draft_tables
        if level != "expected":
            tables = tables.scaled(level)
            draft = None if draft is None else draft.scaled(level)
            engine = self.engine_at(level)
        speculation = msgspec.structs.replace(self.deployment.options.speculation, draft=draft)
        options = msgspec.structs.replace(self.deployment.options, speculation=speculation)
        if self.deployment.adapters is not None:
            load_s = self.deployment.adapter_cost.load_s
            options = msgspec.structs.replace(
                options, adapter_slots=self.deployment.adapters.slots, adapter_load_s=load_s
            )
        return TimedEngine(tables, engine, options)


def prepare(deployment: Deployment, traffic: Traffic, drafted: int = 0) -> PreparedDeployment:
    """Compute iteration times, which measured servers narrow, and cache room for traffic of these lengths.

    Tables are for drafts of at least so many tokens.
    """
    prepared = _prepare(deployment, traffic, drafted)
    kernels = deployment.on_device.kernels
    learned = None if kernels is None else kernels.step.constants.learned
    return prepared if learned is None else prepared.narrowed(traffic, learned)


def _prepare(deployment: Deployment, traffic: Traffic, drafted: int = 0) -> PreparedDeployment:
    """Compute iteration times and cache room, with the intervals of shipped constants."""
    network = deployment.on_device.workload.network
    if network.is_speech_model:
        check_lengths(network, traffic)
    lengths = traffic.input_tokens + traffic.output_tokens
    engine = deployment.replica_engine(int(traffic.input_tokens.max()))
    room = deployment.measure_room(traffic)
    # No more sequences run than the cache has room for what the shortest requests do not share with others.
    fitting = room.tokens // max(int((lengths - deployment.shared_tokens(traffic)).min()), 1) + 1
    sequences = max(min(engine.max_sequences, fitting, len(traffic)), 1)
    if deployment.prefill is None:
        return _prepare_sequences(deployment, traffic, room, sequences, drafted)
    prefill = _prepare(deployment.prefill, traffic).widened(POOL_DEVIATION)
    return _prepare_sequences(deployment, traffic, room, sequences, drafted, prefill).widened(POOL_DEVIATION)


def _prepare_sequences(
    deployment: Deployment,
    traffic: Traffic,
    room: CacheRoom,
    sequences: int,  # that run at the same time at most
    drafted: int = 0,  # tokens that each of them drafts at least
    prefill: PreparedDeployment | None = None,
) -> PreparedDeployment:
    """Compute iteration times of so many sequences of the lengths of some traffic."""
    speculation = deployment.options.speculation
    longest = int((traffic.input_tokens + traffic.output_tokens).max())
    engine = deployment.replica_engine(int(traffic.input_tokens.max()))
    engine = msgspec.structs.replace(engine, max_sequences=sequences)
    drafted = max(speculation.most_tokens, 2 * drafted)  # as where a pass gives all drafted tokens
    # A whole prompt may be longer than an iteration's tokens; a preempted request is computed up to its answer.
    new_tokens = max(engine.max_batched_tokens, longest) + sequences * drafted
    tables = tabulate(
        deployment.timer,
        max_new_tokens=new_tokens,
        max_sequences=sequences,
        max_prompt=longest,
        max_context=longest,
        spread=traffic.context_spread,
    )
    if deployment.adapters is not None:
        tables = times_with(tables, deployment.adapter_cost, deployment.adapters.slots)
    tables = _with_launches(deployment, tables, traffic)
    draft_tables = None
    if speculation.heads:
        draft_tables = tables.of_blocks(1 / deployment.on_device.workload.network.blocks)
    elif deployment.draft_timer is not None:
        draft_tables = tabulate(
            deployment.draft_timer,
            max_new_tokens=sequences * drafted,
            max_sequences=sequences,
            max_prompt=1,
            max_context=longest,
        )
    running = count_running(tables, engine, traffic, deployment.replicas, deployment.tokens_per_sequence)
    widths = _widths_of_host(deployment, tables, engine, running, traffic)
    return PreparedDeployment(deployment, engine, room, tables, draft_tables, prefill, widths)


def _widths_of_host(
    deployment: Deployment, tables: IterationTimes, engine: Server, sequences: int, traffic: Traffic
) -> HostWidths:
    """Return what the interval of the host adds to that of iterations that decode some sequences."""
    if not has_fitted_host(engine, deployment.on_device.kernels):
        return HostWidths()
    return host_widths(tables, engine, sequences, traffic.mean_context, deployment.tokens_per_sequence)


def _with_launches(deployment: Deployment, tables: IterationTimes, traffic: Traffic) -> IterationTimes:
    """Return the times where batches above a limit are launched kernel by kernel; the same ones without a limit."""
    captured = deployment.engine.captured_sequences
    if captured is None:
        return tables
    context = traffic.mean_context
    launches = count_launches(deployment.on_device, context)
    return with_launches(tables, eager_launch_s() * launches, context, captured, deployment.tokens_per_sequence)

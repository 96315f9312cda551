"""Split pools: replicas that compute prompts, the transfer of keys and values, and replicas that decode.

(Zhong et al. 2024, DistServe; Patel et al. 2024, Splitwise.) The answer of a request begins with the first iteration of
the replica that decodes, which its keys and values have to reach first, so that a first token waits for room there too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import msgspec
import numpy as np

from ..distributed.collectives import point_to_point_time_s
from ..distributed.links import LinkRate
from ..engines.records.record import Server
from .admission import Admission, AdmittingFleet
from .cache import CacheRoom
from .elastic import ElasticFleet, Elasticity, Life
from .fleet import Fleet, Stage
from .iteration_times import IterationTimes
from .options import SimulationOptions
from .outcomes import Outcome
from .prefix_cache import BlocksOfRequests, Tier
from .requests import Traffic
from .routers import RANDOM, ROUND_ROBIN, ROUTERS, router_generator
from .simulator import Replica
from .stores import CacheStore
from .timed_engine import TimedEngine

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]


class CacheTiers(NamedTuple):
    """Stores of keys and values below the memory of the devices, from the fastest to the slowest."""

    token_bytes: float  # of a token on all devices of a replica, each of which writes what it holds
    stores: Sequence[CacheStore]

    def make(self, hashed_tokens: int, shared: dict[str, Tier], *, overlaps_host_reads: bool) -> list[Tier]:
        """Return the empty tiers of a replica, and those that it shares with the others."""
        block_bytes = self.token_bytes * hashed_tokens
        tiers = []
        for store in self.stores:
            tier = Tier(
                int(store.size_bytes // block_bytes),
                block_bytes / store.bytes_per_s,
                is_overlapped=overlaps_host_reads and store.is_read_by_devices,
            )
            tiers.append(shared.setdefault(store.name, tier) if store.is_shared else tier)
        return tiers


class ServerPool(NamedTuple):
    """Replicas that are alike, and how long their iterations take."""

    replicas: int
    tables: IterationTimes
    room: CacheRoom
    engine: Server
    options: SimulationOptions
    router: str  # one of `ROUTERS`
    tiers: CacheTiers | None  # what is below the memory of the devices

    def make_stage(self, traffic: Traffic, number: int = 0) -> Stage:
        """Return the replicas before any request reaches them, and their router; stages have numbers from 0."""
        make = self.maker(traffic)
        replicas = [make() for _ in range(self.replicas)]
        keeps_places = self.options.prompts_are_cached and self.engine.keeps_decode_place
        router = ROUTERS[self.router].make(traffic, router_generator(self.options.seed, number))
        return Stage(replicas, router, keeps_places)

    def maker(self, traffic: Traffic) -> Callable[[], Replica]:
        """Return the function that makes a replica which no request has reached."""
        timed = TimedEngine(self.tables, self.engine, self.options)
        shared: dict[str, Tier] = {}
        blocks = None
        if traffic.hashes is not None and not self.options.prompts_are_cached:
            blocks = BlocksOfRequests(traffic, self.room.block_tokens)

        def make() -> Replica:
            """Return a replica."""
            tiers: list[Tier] = []
            if self.tiers is not None and traffic.hashes is not None:
                tiers = self.tiers.make(
                    traffic.hashed_tokens, shared, overlaps_host_reads=self.engine.overlaps_host_reads
                )
            return Replica(traffic, timed, self.room, is_fed=True, tiers=tiers, blocks=blocks)

        return make

    def that_prefills(self) -> ServerPool:
        """Return the pool whose ranks get prompts as its engine hands them out."""
        return self._replace(options=msgspec.structs.replace(self.options, draws_ranks=self.engine.draws_prefill_ranks))

    def that_keeps_prompts(self) -> ServerPool:
        """Return the pool whose replicas keep computed prompts until others have read them."""
        return self._replace(options=msgspec.structs.replace(self.options, keeps_until_read=True))

    def that_decodes(self) -> ServerPool:
        """Return the pool whose requests bring their keys and values along, and decode in the next iteration."""
        engine = msgspec.structs.replace(
            self.engine, mixes_phases=True, mixes_whole_prompts=True, chunked_prefill=0, batch_wait_iterations=None
        )
        options = msgspec.structs.replace(self.options, prompts_are_cached=True, prefix_hit_rate=0.0)
        router = self.router if self.router in (ROUND_ROBIN, RANDOM) else "least-loaded"
        return self._replace(engine=engine, options=options, router=router, tiers=None)


class Transfer(NamedTuple):
    """How keys and values get from one pool to the other.

    All devices of a replica send at the same time, each what it holds: where there are more of them than heads of keys
    and values, several hold and send the same ones.
    """

    token_bytes: float  # of a token on one device
    links: Sequence[LinkRate]  # those of both ends, of which the slower one limits
    messages_s: float  # messages before the first byte and after the last one
    token_blocks_s: float  # of the reads of the blocks of a token

    def seconds(self, tokens: Any) -> Any:
        """Return the seconds for prompts of some tokens, until the decode pool may look for them."""
        return self.messages_s + self.blocks_s(tokens) + self.bytes_s(tokens)

    def blocks_s(self, tokens: Any) -> Any:
        """Return the seconds in which the reads of the blocks of prompts are made."""
        return self.token_blocks_s * tokens

    def bytes_s(self, tokens: Any) -> Any:
        """Return the seconds in which the bytes of prompts are sent."""
        of_links: list[Any] = [point_to_point_time_s(self.token_bytes * tokens, link) for link in self.links]
        return np.max(of_links, axis=0)

    def slowest_link(self, tokens: float) -> LinkRate:
        """Return the link that takes longest for the bytes of a prompt."""
        return max(self.links, key=lambda link: float(point_to_point_time_s(self.token_bytes * tokens, link)))

    def times(self, factor: float) -> Transfer:
        """Return the transfer with all but the bytes multiplied by a factor."""
        return self._replace(messages_s=self.messages_s * factor, token_blocks_s=self.token_blocks_s * factor)


MOST_KEPT = 32
"""Simulations with the same tables that are kept, as long as the tables are: those of the replicas of a deployment."""

KEPT_REQUESTS = 160_000
"""Requests of all of them, which bounds their memory."""

LARGEST_KEPT = KEPT_REQUESTS // 2
"""Requests of the largest simulation that is kept: the closed loop of advice of 64 devices has 20,480."""

Result = TypeVar("Result")


class _Kept(NamedTuple):
    """A simulation and what it gave; the arrays are read-only."""

    traffic: Traffic
    conditions: tuple[Any, ...]
    result: Any


def keep(traffic: Traffic, times: IterationTimes, conditions: tuple[Any, ...], run: Callable[[], Result]) -> Result:
    """Return what a simulation with these tables gives, which is run only if it is not kept.

    A question that is asked again, advice, and the search for the highest rate repeat simulations.
    """
    kept: list[_Kept] = times.simulations
    for earlier in kept:
        if earlier.conditions == conditions and earlier.traffic.is_same(traffic):
            result: Result = earlier.result
            return result
    result = run()
    if len(traffic) <= LARGEST_KEPT:
        kept.append(_Kept(traffic, conditions, result))
        while len(kept) > MOST_KEPT or sum(len(each.traffic) for each in kept) > KEPT_REQUESTS:
            del kept[0]
    return result


def simulate(
    traffic: Traffic,
    times: IterationTimes,
    room: CacheRoom,
    engine: Server,
    options: SimulationOptions | None = None,
    answers: int | None = None,
) -> Outcome:
    """Simulate one replica until all requests, or so many, are answered.

    Raise DoesNotFit if the cache cannot hold one of them.
    """
    options = options or SimulationOptions()

    def run() -> Outcome:
        replica = Replica(traffic, TimedEngine(times, engine, options), room)
        replica.run(answers)
        return msgspec.structs.replace(replica.outcome(), left_out=traffic.left_out, classes=traffic.classes)

    return keep(traffic, times, (room, engine, options, answers), run)


class Simulated(NamedTuple):
    """What happened in a deployment."""

    outcomes: list[Outcome]  # requests of each replica that decodes, with their times from the first stage on
    prefill: list[Outcome]  # the same requests at each replica of the prefill pool; empty without one
    lives: Sequence[Life] = ()  # of replicas that come and go; empty of those that stay
    restarted: int = 0  # requests that were sent again because a replica failed
    refused: Sequence[int] = ()  # requests that are not answered


def run_pool(traffic: Traffic, pool: ServerPool, answers: int | None = None) -> Simulated:
    """Simulate replicas among which a router distributes the requests, and sessions that wait for answers."""
    stage = pool.make_stage(traffic)
    fleet = Fleet(traffic, [stage], answers=answers)
    fleet.run()
    return Simulated(_outcomes_of(traffic, fleet, stage.replicas), [])


def run_admitted(traffic: Traffic, pool: ServerPool, admission: Admission) -> Simulated:
    """Simulate replicas that, or whose gateway, refuse requests."""
    options = msgspec.structs.replace(
        pool.options, most_queued=admission.most_queued, waiting_timeout_s=admission.waiting_timeout_s
    )
    stage = pool._replace(options=options).make_stage(traffic)
    fleet = AdmittingFleet(traffic, stage, admission)
    fleet.run()
    return Simulated(_outcomes_of(traffic, fleet, stage.replicas), [], refused=fleet.refused)


def run_elastic(traffic: Traffic, pool: ServerPool, elasticity: Elasticity, start_s: float, devices: int) -> Simulated:
    """Simulate replicas of some devices that come and go, each of which starts in some seconds."""
    router = ROUTERS[pool.router].make(traffic, router_generator(pool.options.seed))
    fleet = ElasticFleet(traffic, elasticity, make=pool.maker(traffic), router=router, start_s=start_s, devices=devices)
    fleet.run()
    return Simulated(_outcomes_of(traffic, fleet, fleet.members), [], fleet.ended_lives(), fleet.restarted)


def _outcomes_of(traffic: Traffic, fleet: Fleet, replicas: Sequence[Replica]) -> list[Outcome]:
    """Return what happened to the requests that each replica answered."""
    sent_s = np.array(fleet.sent_s)
    outcomes = []
    for replica, chosen in zip(replicas, _chosen(fleet.visited[0], len(replicas))):
        if len(chosen):
            left_out = None if traffic.left_out is None else traffic.left_out[chosen]
            classes = None if traffic.classes is None else traffic.classes[chosen]
            outcome = replica.outcome(chosen)
            outcomes.append(
                msgspec.structs.replace(outcome, arrival_s=sent_s[chosen], left_out=left_out, classes=classes)
            )
    return outcomes


def run_split(
    traffic: Traffic, prefill: ServerPool, decode: ServerPool, transfer: Transfer, answers: int | None
) -> Simulated:
    """Simulate a prefill pool and a decode pool, whose closed loop includes both."""
    conditions = (prefill, decode, transfer, answers)
    return keep(traffic, decode.tables, conditions, lambda: _run_split(traffic, *conditions))


def _run_split(
    traffic: Traffic, prefill: ServerPool, decode: ServerPool, transfer: Transfer, answers: int | None
) -> Simulated:
    ones = np.ones(len(traffic), dtype=np.int64)
    only_prompts = msgspec.structs.replace(traffic, output_tokens=ones, left_out=None)
    computing = prefill.that_prefills().that_keeps_prompts().make_stage(only_prompts)
    decoding = decode.that_decodes().make_stage(traffic, 1)
    handover_s = transfer.seconds(traffic.input_tokens.astype(np.float64))
    fleet = Fleet(traffic, [computing, decoding], handover_s.tolist(), answers)
    fleet.run()
    admitted_s = np.empty(len(traffic))
    computed = []
    for replica, chosen in zip(computing.replicas, _chosen(fleet.visited[0], prefill.replicas)):
        computed.append(replica.outcome(chosen))
        admitted_s[chosen] = computed[-1].admitted_s
    found_tokens = [outcome.found_tokens for outcome in computed if outcome.found_tokens is not None]
    sent_s = np.array(fleet.sent_s)
    outcomes = []
    for replica, chosen in zip(decoding.replicas, _chosen(fleet.visited[1], decode.replicas)):
        outcome = msgspec.structs.replace(
            replica.outcome(chosen),
            arrival_s=sent_s[chosen],
            admitted_s=admitted_s[chosen],
            left_out=None if traffic.left_out is None else traffic.left_out[chosen],
            classes=None if traffic.classes is None else traffic.classes[chosen],
            found_tokens=round(sum(found_tokens) * len(chosen) / len(traffic)) if found_tokens else None,
        )
        outcomes.append(outcome)
    return Simulated(
        [outcome for outcome in outcomes if len(outcome.finish_s)],
        [outcome for outcome in computed if len(outcome.finish_s)],
    )


def _chosen(visited: Ints, replicas: int) -> list[Ints]:
    """Return the requests of each replica."""
    return [np.flatnonzero(visited == number) for number in range(replicas)]

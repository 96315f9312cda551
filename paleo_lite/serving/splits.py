"""Split deployments that advice tries: pairs of pools, estimated from iteration times, of which the best are simulated.

An estimate knows no queues: a pool of prompts answers as many as one of its replicas does that always has some waiting,
one that decodes has all its places taken. Both are matched: the pool with the lower rate limits the other (NVIDIA, blog
of TensorRT-LLM on disaggregated serving, rate matching). What is recommended is always simulated.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import cached_property
from typing import Any, NamedTuple

import msgspec
import numpy as np

from ..errors import DoesNotFit
from .cache import CacheRoom
from .candidates import Criteria, DraftChoice, PrefillChoice
from .deployment import Deployment, why_apart
from .iteration_times import IterationTimes, ScheduledTokens
from .options import Speculation
from .pools import simulate
from .prepared import HANDOVER_ENDS, PreparedDeployment
from .requests import Demand, Traffic
from .slo import Objective
from .timed_engine import undivided_iteration_s

SIMULATED_PAIRS = 16
"""Pairs of pools that are simulated at most: half of them the best by the ranking, half along the front."""

USUAL_DEVICES = 16
"""Devices of both pools, where neither a rate nor users nor devices say how many replicas there are."""

MOST_REPLICAS = 1024
"""Replicas of a pool that are tried."""

WAITING_PROMPTS = 24
"""Prompts of the simulation that gives the rate of a pool of prompts, per rank that computes them."""

ESTIMATE_TOLERANCE = 1.25
"""Estimated latency over its objective up to which a pair is simulated: estimates are means, and know no queues."""


class PoolEstimate(msgspec.Struct, frozen=True, eq=False, dict=True):
    """A deployment that fits, as one of the pools."""

    deployment: Deployment
    prepared: PreparedDeployment
    traffic: Traffic
    drafts: tuple[DraftChoice, ...] = ()  # heads that may draft tokens
    batch_limits: tuple[int, ...] = ()  # that are tried

    @cached_property
    def sample(self) -> Traffic:
        """The requests of the traffic that latencies count."""
        counted = self.traffic.counted
        return Traffic(np.zeros(len(counted)), self.traffic.input_tokens[counted], self.traffic.output_tokens[counted])

    @property
    def devices(self) -> int:
        """Devices of a replica."""
        return self.deployment.on_device.devices

    @property
    def price_usd_per_h(self) -> float | None:
        """Price of a replica per hour; None if it is unknown."""
        price = self.deployment.price_usd_per_h
        return None if price is None else price * self.devices

    @cached_property
    def of_prompts(self) -> PreparedDeployment:
        """The deployment as a pool of prompts, which drafts nothing."""
        options = msgspec.structs.replace(self.deployment.options, speculation=Speculation())
        deployment = msgspec.structs.replace(self.deployment, options=options, draft=None)
        return msgspec.structs.replace(self.prepared, deployment=deployment, draft_tables=None)

    @cached_property
    def prompts_per_s(self) -> tuple[float, float]:
        """Prompts per second of a replica that always has some waiting: expected, and with the slowest iterations."""
        count = WAITING_PROMPTS * self.deployment.on_device.division.attention_data_parallel
        index = np.arange(count) % len(self.sample)
        ones = np.ones(count, dtype=np.int64)
        waiting = Traffic(np.zeros(count), self.sample.input_tokens[index], ones)
        rates = []
        for level in ("expected", self.prepared.slowest):
            pool = self.of_prompts.pool(level).that_prefills()
            outcome = simulate(waiting, pool.tables, pool.room, pool.engine, pool.options)
            rates.append(count / float(outcome.finish_s.max()))
        return rates[0], rates[1]

    @cached_property
    def prompt_s(self) -> float:
        """Seconds of one prompt of the mean length that waits for no other."""
        tokens = np.array([round(float(self.sample.input_tokens.mean()))])
        alone = Traffic(np.zeros(1), tokens, np.ones(1, dtype=np.int64))
        pool = self.of_prompts.pool("expected").that_prefills()
        outcome = simulate(alone, pool.tables, pool.room, pool.engine, pool.options)
        return float(outcome.first_token_s[0])

    def held_prompts_per_s(self, transfer_s: float) -> tuple[float, float]:
        """Return the prompts per second of a replica that keeps each until it is read, some seconds after it is done.

        The cache holds so many prompts, each for the time of its computation and of its transfer.
        """
        held = max(self.prepared.room.tokens // round(float(self.sample.input_tokens.mean())), 1)
        expected_per_s, slow_per_s = self.prompts_per_s
        slow_s = self.prompt_s * expected_per_s / slow_per_s + transfer_s * HANDOVER_ENDS["high"]
        return min(expected_per_s, held / (self.prompt_s + transfer_s)), min(slow_per_s, held / slow_s)

    def token_s(self, sequences: int, level: str, draft: DraftChoice | None = None) -> float:
        """Return the seconds per token of an iteration that decodes so many sequences."""
        context = float(self.sample.input_tokens.mean() + self.sample.output_tokens.mean() / 2)
        tables, engine, options = self.with_draft(draft).at_level(level)
        scheduled = ScheduledTokens(sequences, sequences * context)
        iteration_s = undivided_iteration_s(tables, engine, options.speculation, scheduled)
        return iteration_s / options.speculation.tokens_per_iteration

    def tokens_per_iteration(self, draft: DraftChoice | None) -> float:
        """Return the tokens that an iteration yields per sequence."""
        return self.with_draft(draft).deployment.options.speculation.tokens_per_iteration

    def best_draft(self, sequences: int) -> DraftChoice | None:
        """Return the heads with which so many sequences decode fastest; None if they do without."""
        times_s = {draft: self.token_s(sequences, "expected", draft) for draft in (None, *self._fitting_drafts)}
        return min(times_s, key=lambda draft: times_s[draft])

    def with_draft(self, draft: DraftChoice | None) -> PreparedDeployment:
        """Return the deployment with heads that draft tokens."""
        if draft is None:
            return self.prepared
        options = msgspec.structs.replace(self.deployment.options, speculation=draft.speculation)
        deployment = msgspec.structs.replace(self.deployment, options=options)
        room = self._rooms[draft.heads]
        return msgspec.structs.replace(self.prepared, deployment=deployment, room=room, draft_tables=self._block)

    @cached_property
    def _rooms(self) -> dict[str, CacheRoom]:
        """Rooms of the cache beside each kind of heads that leaves any."""
        rooms = {}
        for heads, draft in {draft.heads: draft for draft in self.drafts}.items():
            options = msgspec.structs.replace(self.deployment.options, speculation=draft.speculation)
            with suppress(DoesNotFit):
                rooms[heads] = msgspec.structs.replace(self.deployment, options=options).measure_room(self.traffic)
        return rooms

    @property
    def _fitting_drafts(self) -> list[DraftChoice]:
        """Heads that leave room for a cache."""
        return [draft for draft in self.drafts if draft.heads in self._rooms]

    @cached_property
    def _block(self) -> IterationTimes:
        """Iteration times of a block of the network with its head."""
        return self.prepared.tables.of_blocks(1 / self.deployment.on_device.workload.network.blocks)

    @cached_property
    def least_slowdown(self) -> float:
        """By which factor the slowest iterations are longer than the expected ones at least, without their host."""
        slowest = np.asarray(self.prepared.tables.relative_high)[1:]
        return float(slowest.min(initial=math.inf)) if len(slowest) else 1.0

    @cached_property
    def most_sequences(self) -> int:
        """Sequences of the mean length that the cache holds, and the engine runs, at most."""
        tokens = float((self.sample.input_tokens + self.sample.output_tokens).mean())
        return min(self.deployment.replica_engine().max_sequences, int(self.prepared.room.tokens / tokens))


class Split(NamedTuple):
    """A pair of pools with their replicas, and what is estimated of it."""

    prompts: PoolEstimate
    prompt_replicas: int
    decoding: PoolEstimate
    decode_replicas: int
    batch_limit: int  # sequences of a decode replica
    draft: DraftChoice | None  # heads of the replicas that decode
    requests_per_s: float  # of both pools
    low_decoded_per_s: float  # of one decode replica, with the slowest iterations
    ttft_s: float
    tpot_s: float
    prompts_per_s: tuple[float, float]  # of a replica of the pool of prompts, as `held_prompts_per_s` gives them

    @property
    def devices(self) -> int:
        """Devices of both pools."""
        return self.prompt_replicas * self.prompts.devices + self.decode_replicas * self.decoding.devices

    @property
    def usd_per_h(self) -> float | None:
        """Price of all devices per hour; None if one is unknown."""
        prices = self.prompts.price_usd_per_h, self.decoding.price_usd_per_h
        if prices[0] is None or prices[1] is None:
            return None
        return self.prompt_replicas * prices[0] + self.decode_replicas * prices[1]

    def prefill_choice(self) -> PrefillChoice:
        """Return the pool of prompts as candidates have it."""
        deployment = self.prompts.deployment
        listing = deployment.listing
        placed = deployment.on_device
        expected_per_s, low_per_s = self.prompts_per_s
        return PrefillChoice(
            gpu=placed.machine.device.id,
            tensor=placed.tensor,
            pipeline=placed.pipeline.degree,
            expert_parallel=placed.division.expert_parallel,
            attention_data_parallel=placed.division.attention_data_parallel,
            replicas=self.prompt_replicas,
            requests_per_s=expected_per_s,
            low_requests_per_s=min(low_per_s, expected_per_s),
            price_usd_per_h=deployment.price_usd_per_h,
            price_cloud=None if listing is None else listing.cloud or None,
        )

    def prepare(self, share: float = 1.0) -> PreparedDeployment:
        """Return the deployment with a share of its replicas."""
        prompts, decoding = self.prompts, self.decoding
        sizes = [max(round(share * number), 1) for number in (self.prompt_replicas, self.decode_replicas)]
        pool = msgspec.structs.replace(prompts.of_prompts.deployment, replicas=sizes[0])
        prefill = msgspec.structs.replace(prompts.of_prompts, deployment=pool)
        drafting = decoding.with_draft(self.draft)
        deployment = msgspec.structs.replace(drafting.deployment, replicas=sizes[1], prefill=pool)
        engine = msgspec.structs.replace(drafting.engine, max_sequences=self.batch_limit)
        return msgspec.structs.replace(drafting, deployment=deployment, engine=engine, prefill=prefill)


def can_split(deployment: Deployment) -> bool:
    """Return whether a deployment can be a pool: of an engine that can be started so, not in stages, nor of sound."""
    launcher, on_device = deployment.engine.launcher, deployment.on_device
    if launcher is None or launcher.pools is None or on_device.workload.network.is_speech_model:
        return False
    return on_device.pipeline.degree == 1


class _Decoding(NamedTuple):
    """A pool that decodes, at a batch limit."""

    pool: PoolEstimate
    limit: int
    draft: DraftChoice | None
    token_s: float  # per token of an answer
    slow_token_s: float  # with the slowest iterations

    @property
    def answer_tokens(self) -> float:
        """Mean tokens of an answer."""
        return float(self.pool.sample.output_tokens.mean())

    @property
    def polled_s(self) -> float:
        """Seconds in which a replica looks for the prompts that it has been sent."""
        iterations = self.pool.prepared.engine.handover.iterations
        return iterations * self.token_s * self.pool.tokens_per_iteration(self.draft)


def _decode_at(pool: PoolEstimate, limit: int) -> _Decoding:
    """Return a pool that decodes so many sequences in each replica, with the heads that are fastest then."""
    draft = pool.best_draft(limit)
    token_s = pool.token_s(limit, "expected", draft)
    slow_token_s = max(pool.token_s(limit, pool.prepared.slowest, draft), token_s)
    return _Decoding(pool, limit, draft, token_s, slow_token_s)


def estimate_splits(pools: Sequence[PoolEstimate], demand: Demand, criteria: Criteria) -> list[Split]:
    """Return all pairs of pools in the same format, with the replicas that match them, and their estimates."""
    splits = []
    for pool in pools:
        partners = [
            (prompts, _transfer_s(prompts, pool))
            for prompts in pools
            if _can_hand_over(prompts.deployment, pool.deployment)
            and not why_apart(prompts.deployment, pool.deployment)
        ]
        for limit in pool.batch_limits:
            if limit > pool.most_sequences:
                break
            decoding = _decode_at(pool, limit)
            for prompts, sent_s in partners:
                split = _estimate_split(prompts, sent_s, decoding, demand, criteria)
                if split is not None:
                    splits.append(split)
    return splits


def _estimate_split(
    prompts: PoolEstimate,
    sent_s: float,  # seconds in which a prompt gets from one pool to the other
    decoding: _Decoding,
    demand: Demand,
    criteria: Criteria,
) -> Split | None:
    """Return a pair of pools with the replicas that match them; None if they need more devices than there are."""
    pool, limit, answer_tokens = decoding.pool, decoding.limit, decoding.answer_tokens
    transfer_s = sent_s + decoding.polled_s
    answer_s = answer_tokens * decoding.token_s, answer_tokens * decoding.slow_token_s
    prompts_per_s = prompts.held_prompts_per_s(transfer_s)
    sizes = _match(prompts, prompts_per_s, pool, limit, demand, criteria, answer_s)
    if sizes is None:
        return None
    return Split(
        prompts=prompts,
        prompt_replicas=sizes[0],
        decoding=pool,
        decode_replicas=sizes[1],
        batch_limit=limit,
        draft=decoding.draft,
        requests_per_s=min(sizes[0] * prompts_per_s[0], sizes[1] * limit / answer_s[0]),
        low_decoded_per_s=limit / answer_s[1],
        ttft_s=prompts.prompt_s + transfer_s + decoding.token_s,
        tpot_s=decoding.token_s,
        prompts_per_s=prompts_per_s,
    )


def estimate_limits(split: Split, limits: Sequence[int], demand: Demand, criteria: Criteria) -> list[Split]:
    """Return the same pair of pools at other batch limits, with the replicas that match it there."""
    sent_s = _transfer_s(split.prompts, split.decoding)
    decodings = [_decode_at(split.decoding, limit) for limit in limits]
    splits = [_estimate_split(split.prompts, sent_s, decoding, demand, criteria) for decoding in decodings]
    return [each for each in splits if each is not None]


def choose_splits(splits: Sequence[Split], objectives: Sequence[Objective], by: str) -> list[Split]:
    """Return the pairs that are simulated: the best by their estimates, and those along the front."""
    possible = [split for split in splits if may_meet(split.ttft_s, split.tpot_s, split.decoding, objectives)]
    chosen: list[Split] = []
    ranked = sorted(possible, key=lambda split: cost_of_split(split, by))
    pairs: dict[tuple[int, int], int] = {}
    for split in ranked:
        pair = id(split.prompts), id(split.decoding)
        if pairs.setdefault(pair, 0) < 2:  # batch limits of one pair
            pairs[pair] += 1
            chosen.append(split)
        if len(chosen) >= SIMULATED_PAIRS // 2:
            break
    front = [split for split in _front(possible) if all(split is not other for other in chosen)]
    step = max(len(front) / (SIMULATED_PAIRS // 2), 1.0)
    return chosen + [front[int(number * step)] for number in range(int(len(front) / step))]


def _can_hand_over(prompts: Deployment, decoding: Deployment) -> bool:
    """Return whether one deployment decodes what another has computed: their formats are the same."""
    decoder, prefiller = decoding.on_device, prompts.on_device
    return (decoder.workload.weights, decoder.workload.precision, decoder.kv_cache) == (
        prefiller.workload.weights,
        prefiller.workload.precision,
        prefiller.kv_cache,
    )


def _transfer_s(prompts: PoolEstimate, decoding: PoolEstimate) -> float:
    """Return the seconds from one pool to the other for a prompt of the mean length."""
    pair = msgspec.structs.replace(decoding.prepared, prefill=prompts.of_prompts)
    return float(pair.transfer.seconds(float(prompts.sample.input_tokens.mean())))


def _match(
    prompts: PoolEstimate,
    rates: tuple[float, float],  # prompts per second of a replica, expected and with the slowest iterations
    decoding: PoolEstimate,
    limit: int,
    demand: Demand,
    criteria: Criteria,
    answer_s: tuple[float, float],  # seconds of the decoding of an answer, and those of the slowest iterations
) -> tuple[int, int] | None:
    """Return the replicas of both pools for a rate, users or devices; None if they need more devices than there are."""
    per_decoder, per_prefiller = decoding.devices, prompts.devices
    most = MOST_REPLICAS * (per_decoder + per_prefiller) if criteria.devices is None else criteria.devices
    prompts_per_s, slow_prompts_per_s = rates
    if demand.rate_per_s is not None and math.isfinite(demand.rate_per_s):
        needed_per_s = demand.rate_per_s / (1 - criteria.headroom)
        sizes = (
            max(math.ceil(needed_per_s / min(slow_prompts_per_s, prompts_per_s)), 1),
            max(math.ceil(needed_per_s * answer_s[1] / limit), 1),
        )
    elif demand.concurrency is not None:
        decode_replicas = math.ceil(demand.concurrency / limit)
        rate_per_s = demand.concurrency / answer_s[0]
        wanted = max(math.ceil(rate_per_s / prompts_per_s), 1)
        sizes = (min(wanted, max((most - decode_replicas * per_decoder) // per_prefiller, 1)), decode_replicas)
    else:
        is_given = criteria.devices is not None
        devices = most if is_given else max(USUAL_DEVICES, per_decoder + per_prefiller)
        sizes = _fill(devices, per_prefiller, per_decoder, prompts_per_s, limit / answer_s[0], is_given=is_given)
    if max(sizes) > MOST_REPLICAS or min(sizes) < 1 or sizes[0] * per_prefiller + sizes[1] * per_decoder > most:
        return None
    return sizes


def _fill(
    devices: int, per_prefiller: int, per_decoder: int, prompts_per_s: float, decoded_per_s: float, *, is_given: bool
) -> tuple[int, int]:
    """Return the replicas of both pools with the highest rate of given devices, or per device; (0, 0) if none fit."""
    best, best_rate = (0, 0), 0.0
    for prompt_replicas in range(1, max((devices - per_decoder) // per_prefiller, 0) + 1):
        room = (devices - prompt_replicas * per_prefiller) // per_decoder
        for decode_replicas in {room, min(room, max(round(prompt_replicas * prompts_per_s / decoded_per_s), 1))}:
            used = prompt_replicas * per_prefiller + decode_replicas * per_decoder
            rate = min(prompt_replicas * prompts_per_s, decode_replicas * decoded_per_s)
            rate /= 1 if is_given else used
            if rate > best_rate * (1 + 1e-9):
                best, best_rate = (prompt_replicas, decode_replicas), rate
    return best


def may_meet(
    ttft_s: float,
    tpot_s: float,
    pool: PoolEstimate,
    objectives: Sequence[Objective],
) -> bool:
    """Return whether estimates do not rule out that a deployment meets the objectives."""
    answer_tokens = float(pool.sample.output_tokens.mean())
    latencies = {"ttft": ttft_s, "tpot": tpot_s, "latency": ttft_s + (answer_tokens - 1) * tpot_s}
    return all(latencies[objective.name] <= ESTIMATE_TOLERANCE * objective.limit_s for objective in objectives)


def cost_of_split(split: Split, by: str) -> float:
    """Return what is ranked: dollars per request or hour, or watts of the data sheet per request.

    Devices stand for what is unknown of them.
    """
    amount: Any = split.usd_per_h
    if by == "joules":
        pools = ((split.prompt_replicas, split.prompts), (split.decode_replicas, split.decoding))
        watts = [(number * pool.devices, pool.deployment.on_device.machine.device.power_w) for number, pool in pools]
        amount = (
            None
            if any(watts_of_pool is None for _, watts_of_pool in watts)
            else sum(number * (watts_of_pool or 0.0) for number, watts_of_pool in watts)
        )
    cost = float(split.devices if amount is None else amount)
    return cost if by == "hourly" else cost / split.requests_per_s


def _front(splits: Sequence[Split]) -> Iterator[Split]:
    """Yield the pairs on the estimated front of requests per second and device over speed of a user."""
    best = 0.0
    for split in sorted(splits, key=lambda estimate: (estimate.tpot_s, -estimate.requests_per_s / estimate.devices)):
        rate = split.requests_per_s / split.devices
        if rate > best:
            best = rate
            yield split

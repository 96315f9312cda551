"""Leave out of the simulations what can be neither among the deployments that are shown nor on the front, by bounds.

Shown are the best of those that meet the objectives, and the front of tokens per second and device over those of a
user. What a replica answers, and how fast a user reads, is bounded by its iterations alone; so is what a rate costs,
and the energy of a token.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from ..errors import DoesNotFit
from ..text import format_plural
from .candidates import RANKINGS, SHOWN_CANDIDATES, Candidate, Criteria, NotSimulated, TooLarge, within
from .energy import Served, busy_energy_j, decoded_context, idle_w_of
from .requests import Demand
from .slo import Objective
from .splits import PoolEstimate, may_meet
from .too_large import find_too_large, margin_of, most_requests_per_s
from .trials import LimitedPool

DISTURBED = 0.5
"""Share of the time of prompts that the tokens of a user wait for at the least.

A user's first token waits for the rest. In 139 simulations (Llama 3 8B and 70B on H100; vLLM, SGLang and TensorRT-LLM;
answers of 100 to 300 tokens) a user reads at most 1.07 times as fast as this says. Where all users begin together, more
tokens are free of other prompts: 1.22 times as fast. None counts then.
"""

FEWEST_REPLICAS_SHARE = 0.75
"""Share of the bound of a replica's rate that it reaches at the least: 0.80 of 270 simulations is the lowest."""

ROUNDS_OF_BATCH = 20
"""Steps in which the sequences of a batch at a rate are found, from below."""


class Bound(NamedTuple):
    """What a deployment does not exceed at a batch limit, and what it costs and takes at the least."""

    tokens_per_s_per_gpu: float
    tokens_per_s_per_user: float
    value: float  # of the ranking
    devices: float  # of all replicas
    is_forecast: bool
    is_too_slow: bool  # whether it misses the objectives


class Screening:
    """Trials in the order of what they cost at the least, and those that are simulated."""

    def __init__(
        self,
        trials: Sequence[LimitedPool],
        pairs: Sequence[Candidate],  # of pools, which are simulated before
        demand: Demand,
        objectives: Sequence[Objective],
        criteria: Criteria,
    ) -> None:
        self.pairs = pairs
        self.demand, self.objectives, self.criteria = demand, objectives, criteria
        needs_price = RANKINGS[criteria.by].needs == "price"
        # Whether the figure of the ranking is known of any; otherwise devices are ranked.
        self.is_ranked_by_figure = any(_is_known(trial.pool, needs_price=needs_price) for trial in trials)
        self.simulated: list[tuple[LimitedPool, Candidate]] = []
        self.too_large: list[tuple[LimitedPool, TooLarge]] = []
        self.left_out: list[tuple[LimitedPool, Bound]] = []
        self.refused: dict[str, str] = {}  # why trials could not be simulated
        self.waiting: list[tuple[LimitedPool, Bound | None]] = []
        for trial in trials:
            too_large = find_too_large(*trial, demand, criteria)
            if too_large is None:
                self.waiting.append((trial, self._bound_of(trial)))
            else:
                self.too_large.append((trial, too_large))
        self.waiting.sort(key=lambda each: 0.0 if each[1] is None else each[1].value)

    @property
    def candidates(self) -> list[Candidate]:
        """What was simulated, pairs of pools as well."""
        return [*(candidate for _, candidate in self.simulated), *self.pairs]

    def run(self) -> None:
        """Simulate what may be shown."""
        for trial, bound in self.waiting:
            if bound is not None and self._is_of_no_interest(bound):
                self.left_out.append((trial, bound))
            else:
                self.simulate(trial)

    def least_value(self, trial: LimitedPool) -> float:
        """Return what is ranked of a trial, at the least."""
        bound = self._bound_of(trial)
        return 0.0 if bound is None else bound.value

    def simulate_all(self) -> None:
        """Simulate what was left out, and if all is too large, that as well."""
        left_out, self.left_out = self.left_out, []
        for trial, _ in left_out:
            self.simulate(trial)
        if all(within(candidate, self.criteria.devices) is not candidate for candidate in self.candidates):
            too_large, self.too_large = self.too_large, []
            for trial, _ in too_large:
                self.simulate(trial)

    def simulate(self, trial: LimitedPool) -> None:
        """Simulate a trial; where a request needs more than its cache, say so."""
        try:
            candidate = trial.simulate(self.demand, self.objectives, self.criteria)
        except DoesNotFit as error:
            self.refused[_describe(trial)] = str(error)
        else:
            self.simulated.append((trial, candidate))

    def _is_of_no_interest(self, bound: Bound) -> bool:
        """Return whether a deployment is on no front, and misses the objectives or comes after those that are shown."""
        candidates = self.candidates
        is_on_front = not any(
            candidate.tokens_per_s_per_gpu >= bound.tokens_per_s_per_gpu
            and candidate.tokens_per_s_per_user >= bound.tokens_per_s_per_user
            and (self.criteria.devices is None or candidate.devices <= self.criteria.devices)
            for candidate in candidates
        )
        if is_on_front:
            return False
        if bound.is_too_slow:
            return True
        figure = RANKINGS[self.criteria.by].figure(has_rate=self.demand.finite_rate_per_s is not None)
        values = [
            getattr(candidate, figure) if self.is_ranked_by_figure else candidate.devices
            for candidate in candidates
            if candidate.meets_objectives and candidate.is_forecast >= bound.is_forecast
        ]
        better = [value for value in values if value is not None and value < bound.value]
        return len(better) >= SHOWN_CANDIDATES

    def _bound_of(self, trial: LimitedPool) -> Bound | None:
        """Return the bound of a deployment at a batch limit; None for stages, whose rounds have none."""
        pool, limit, draft = trial
        if pool.deployment.on_device.pipeline.degree > 1:
            return None
        answer_tokens = float(pool.sample.output_tokens.mean())
        margin = margin_of(pool, limit)
        requests_per_s = most_requests_per_s(pool, limit, draft).expected_per_s
        most_tokens_per_s = margin * requests_per_s * answer_tokens
        token_s = pool.token_s(limit, "expected", draft)
        least_s = token_s
        if self.demand.concurrency is None and answer_tokens > 1:
            # Between two tokens of a user, if all of a request's time were that of its tokens.
            cycle_s = limit / requests_per_s / (answer_tokens - 1)
            least_s += DISTURBED * max(cycle_s - token_s, 0.0)
        least_s /= margin
        devices = self._least_devices(trial, margin)
        tpot_s = least_s if self.demand.finite_rate_per_s is None else self._tpot_at_rate_s(trial)
        return Bound(
            tokens_per_s_per_gpu=most_tokens_per_s / pool.devices,
            tokens_per_s_per_user=1 / least_s,
            value=self._least_value(trial, margin * requests_per_s, devices),
            devices=devices,
            is_forecast=pool.deployment.timer.is_forecast,
            is_too_slow=not may_meet(0.0, tpot_s, pool, self.objectives),
        )

    def _least_devices(self, trial: LimitedPool, margin: float) -> float:
        """Return the devices of all replicas that a rate needs at the least, or that some users need."""
        pool, limit, draft = trial
        rate_per_s, criteria = self.demand.finite_rate_per_s, self.criteria
        if rate_per_s is not None:
            most_per_s = margin * most_requests_per_s(pool, limit, draft).slowest_per_s
            return math.ceil(rate_per_s / (1 - criteria.headroom) / most_per_s) * pool.devices
        if self.demand.concurrency is not None:
            return math.ceil(self.demand.concurrency / limit) * pool.devices
        return max((criteria.devices or 0) // pool.devices, 1) * pool.devices

    def _least_value(self, trial: LimitedPool, most_requests_per_s: float, devices: float) -> float:
        """Return what is ranked, at the least."""
        pool, figure = trial.pool, RANKINGS[self.criteria.by].figure(has_rate=self.demand.finite_rate_per_s is not None)
        if not self.is_ranked_by_figure:
            return devices
        answer_tokens = float(pool.sample.output_tokens.mean())
        if RANKINGS[self.criteria.by].needs == "power":
            energy_j = _least_energy_j(trial, 1 / most_requests_per_s)
            if energy_j is None:
                return math.inf
            rate_per_s = self.demand.finite_rate_per_s
            if rate_per_s is not None:
                # Of the devices of all replicas, those that no iteration needs wait.
                waiting_device_s = devices / rate_per_s - pool.devices / most_requests_per_s
                energy_j += idle_w_of(pool.deployment) * max(waiting_device_s, 0.0)
            return energy_j / answer_tokens * 1e6
        if pool.price_usd_per_h is None:
            return math.inf
        if figure == "usd_per_h":
            return pool.price_usd_per_h * devices / pool.devices
        return pool.price_usd_per_h / 3600 / (most_requests_per_s * answer_tokens) * 1e6

    def _tpot_at_rate_s(self, trial: LimitedPool) -> float:
        """Return the time per output token at the rate, at the least: that of the fewest sequences that carry it."""
        pool, limit, draft = trial
        rate_per_s = self.demand.finite_rate_per_s
        assert rate_per_s is not None
        low_per_s = FEWEST_REPLICAS_SHARE * most_requests_per_s(pool, limit, draft).slowest_per_s
        replicas = math.ceil(rate_per_s / (1 - self.criteria.headroom) / low_per_s)
        answers_per_s = rate_per_s / replicas * float(pool.sample.output_tokens.mean())  # tokens, of a replica
        sequences = 1
        for _ in range(ROUNDS_OF_BATCH):
            token_s = pool.token_s(sequences, "expected", draft)
            needed = min(max(int(answers_per_s * token_s), 1), limit)
            if needed <= sequences:
                break
            sequences = needed
        return token_s


def _is_known(pool: PoolEstimate, *, needs_price: bool) -> bool:
    """Return whether the price of a deployment is known, or the power of its devices."""
    if needs_price:
        return pool.price_usd_per_h is not None
    return pool.deployment.on_device.machine.device.power_w is not None


def _least_energy_j(trial: LimitedPool, least_s: float) -> float | None:
    """Return the energy of a request at the least, of which a replica answers one in so many seconds at the least.

    Iterations decode as many sequences as they may, which share the weights that are read; a device that takes longer
    for the same work draws its idle power for longer. None if the power is unknown.
    """
    pool, limit, draft = trial
    deployment, sample = pool.with_draft(draft).deployment, pool.sample
    prompt_tokens = float(sample.input_tokens.mean())
    found_tokens = deployment.options.prefix_hit_rate * prompt_tokens
    decoded_tokens = float(sample.output_tokens.mean()) - 1
    served = Served(
        requests=1,
        prompt_tokens=prompt_tokens - found_tokens,
        cached_tokens=found_tokens,
        iterations=decoded_tokens / pool.tokens_per_iteration(draft) / limit,
        sequences=limit,
        context=decoded_context(prompt_tokens, sample.output_tokens),
    )
    return busy_energy_j(deployment, served, least_s)


def _describe(trial: LimitedPool) -> str:
    """Return a trial as the deployments that do not fit are named."""
    placed = trial.pool.deployment.on_device
    weights = placed.workload.weights or placed.workload.precision
    text = f"{placed.machine.device.id}, {placed.division.describe()}, weights {weights}"
    if trial.draft is not None:
        text += f", drafts {trial.draft.describe()}"
    return f"{text}, at most {format_plural(trial.batch_limit, 'sequence')}"


def left_out_of(trial: LimitedPool, bound: Bound) -> NotSimulated:
    """Return what answers say of a deployment that is not simulated."""
    deployment = trial.pool.deployment
    placed, listing = deployment.on_device, deployment.listing
    return NotSimulated(
        gpu=placed.machine.device.id,
        weights=placed.workload.weights or placed.workload.precision,
        parallelism=placed.division.describe(),
        batch_limit=trial.batch_limit,
        misses_objectives=bound.is_too_slow,
        price_usd_per_h=deployment.price_usd_per_h,
        price_cloud=None if listing is None else listing.cloud or None,
        is_forecast=bound.is_forecast,
    )

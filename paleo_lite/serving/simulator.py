"""Iteration-level simulation of continuous batching on one replica, with a paged KV cache.

An iteration computes one token of every decoding sequence and, if there is room, new tokens of prompts (Yu et al. 2022,
Orca; Kwon et al. 2023, PagedAttention; Agrawal et al. 2024, Sarathi-Serve for chunked prompts). Between two events
(an arrival that can be admitted, a finished request, a full cache) only contexts grow, so that all iterations up to the
next event are taken in one step, each at the time of the middle one.

With pipeline parallelism an iteration of the simulation is a round, in which every batch in flight passes all stages
once (`paleo_lite.serving.iteration_times`); the limit of tokens holds for each of the batches.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from heapq import heappop, heappush
from typing import TYPE_CHECKING

import numpy as np

from ..errors import DoesNotFit
from .adapters import AdapterSlots
from .cache import CacheRoom
from .decoding import DecodingBatch
from .iteration_times import ScheduledTokens
from .outcomes import Outcome, ReplicaLog, ReplicaStep
from .prefix_cache import BlocksOfRequests, PrefixesOfRequests, Tier
from .requests import Traffic
from .streaming import Stream, streams_answers
from .timed_engine import TimedEngine
from .waiting import Arrivals, WaitingLine

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]

LEAST_TOGETHER = 32
"""Iterations of one prompt from which they are taken in one step: only tiny chunks are so many."""

TICK_S = 1e-9
"""Seconds that tell times of different replicas apart: what is no further apart is at the same time."""


def check_requests(traffic: Traffic, room: CacheRoom, prefix_hit_rate: float) -> None:
    """Raise DoesNotFit for the first request whose own tokens, without those it shares, the cache does not hold."""
    shared_tokens = (traffic.input_tokens * prefix_hit_rate).astype(np.int64)
    is_too_long = traffic.input_tokens - shared_tokens + traffic.output_tokens > room.tokens
    if is_too_long.any():
        request = int(is_too_long.argmax())
        raise DoesNotFit(
            f"a request of {traffic.input_tokens[request]:,} input and {traffic.output_tokens[request]:,} output "
            f"tokens needs more than the {room.tokens:,} tokens that the KV cache holds"
        )


class Replica:
    """State of a simulation: requests before they decode, the blocks of the cache, and the time.

    `DecodingBatch` holds the sequences that decode.
    """

    def __init__(
        self,
        traffic: Traffic,
        timed: TimedEngine,
        room: CacheRoom,
        *,
        is_fed: bool = False,  # whether a fleet hands requests over one by one, instead of their arrivals
        tiers: Sequence[Tier] = (),  # of the prefix cache, below the memory of the device
        blocks: BlocksOfRequests | None = None,  # those of the traffic, where replicas share them
    ) -> None:
        self.timed = timed
        self.times, self.engine, self.options = timed
        engine, options = self.engine, self.options
        self.block_tokens, self.total_blocks = room.block_tokens, room.blocks
        self._note_constants()
        count = len(traffic)
        self.inputs: list[int] = traffic.input_tokens.tolist()
        self.outputs: list[int] = traffic.output_tokens.tolist()
        self.shared: list[int] = (traffic.input_tokens * options.prefix_hit_rate).astype(np.int64).tolist()
        check_requests(traffic, room, options.prefix_hit_rate)
        self.prefixes = None
        if traffic.hashes is not None and not options.prompts_are_cached:
            self.prefixes = PrefixesOfRequests(
                blocks or BlocksOfRequests(traffic, room.block_tokens),
                room.block_tokens,
                tiers,
                reuses_parts=engine.reuses_parts_of_blocks,
            )
        self.log = ReplicaLog(self.inputs, self.outputs, self.total_blocks, finds_prefixes=self.prefixes is not None)
        self.adapters = None
        if traffic.adapters is not None and options.adapter_slots:
            self.adapters = AdapterSlots(traffic, options.adapter_slots, options.adapter_load_s)

        self.now_s = self.scheduled_s = 0.0  # the present, and the time at which the coming iteration is scheduled
        self.limit_s = math.inf  # time up to which decode iterations are taken in one step
        self.is_idle = True
        # The last iteration that was timed: sequences, cached tokens, whether the pipeline was empty, and its time.
        self.known_iteration = (-1, 0, False, 0.0)

        # Requests that are not admitted yet.
        self.arriving = Arrivals(traffic, engine, options, is_fed=is_fed)
        self.waiting = WaitingLine(traffic, options)
        # Whether the first waiting request has no place, or no room, until blocks are given back or a prompt is
        # computed. Where an engine reserves room for answers, that changes while sequences grow; tiers note every look.
        self.is_blocked, self.stays_without_room = False, engine.reserved_output == 0 and not tiers

        # The process that sends answers to clients; None where they do not wait for it.
        self.stream = Stream(engine) if streams_answers(engine, options, traffic) else None

        # Whether waiting prompts wait for others, and the iterations for which they have done so.
        self.is_batch_waiting, self.batch_waited_iterations = False, 0

        # Prompts in progress, as [request, computed tokens, tokens], and the rank of each request.
        self.prompts: list[list[int]] = []
        self.rank_of = timed.draw_ranks(count)
        # Seconds in which found prompts are read before the next iteration, and while it computes.
        self.loading_s = self.overlapped_s = 0.0
        self.admission_order: list[int] = []

        self.batch = DecodingBatch(count, self.block_tokens, options.speculation)
        self.decoded = [0] * count  # tokens of the answer before the current admission
        self.used_blocks = self.promised_blocks = self.answered = 0

        # What a fleet is told, or tells: requests that are finished, admitted, or given up with the time, all of which
        # it has not taken note of yet.
        self.is_fed = is_fed
        self.finished: list[int] = []
        self.admitted: list[int] = []
        self.given_up: list[tuple[int, float]] = []
        # Blocks of the prompts for which a fleet keeps places here, of each request and of all.
        self.expected: dict[int, int] = {}
        self.expected_blocks = 0
        # Tokens of computed prompts that are kept until another replica has read them, and whether the next prompt
        # waits for their room.
        self.unread: dict[int, int] = {}
        self.waits_for_reads = False
        # Tokens of prompts that a fleet has handed over, without those that were in the cache then, until they are
        # computed; of each request and of all.
        self.pending_of: dict[int, int] = {}
        self.pending_tokens = 0

    def _note_constants(self) -> None:
        """Note what every step asks for and none changes."""
        self.decoding_s = self.timed.time_decoding()
        self.drafted = self.options.speculation.draft_length + 1  # tokens of a sequence that an iteration computes
        self.round_tokens = self.engine.max_batched_tokens * self.times.pipeline
        # Blocks that a sequence needs in an iteration at most: one more than its next tokens fill.
        self.most_growth = self.drafted // self.block_tokens + 1

    def _blocks(self, tokens: int) -> int:
        return -(-tokens // self.block_tokens)

    def run(self, answers: int | None = None) -> None:
        """Run until all requests are answered, or the first ones that are wanted."""
        wanted = math.inf if answers is None else answers
        while self.answered < wanted and self.step():
            pass

    def step(self) -> bool:
        """Take all iterations up to the next event; return whether there was anything left to do."""
        if self.arriving and self.arriving[0][0] <= self.scheduled_s + TICK_S:
            self._receive()
        if self.waiting.since_s:
            self._give_up_late(self.scheduled_s)
        if self.adapters is not None:
            self.adapters.is_waited_for = False
        has_room = self.used_blocks + self.batch.sequences * self.most_growth <= self.total_blocks or self._make_room()
        self.is_batch_waiting = bool(self.engine.batch_wait_iterations and self.waiting and self._waits_for_others())
        if has_room and self.waiting and not self.is_blocked and not self.is_batch_waiting:
            self._admit()
        if self.prompts:
            self._run_prompt_iteration()
        elif self.batch.sequences:
            self._run_decode_iterations()
        elif self.arriving:
            self.now_s = max(self.now_s, self.arriving[0][0])
            self.scheduled_s = self.now_s
            self.is_idle = True
        else:
            return False
        return True

    def take(self, request: int, time_s: float) -> None:
        """Take over a request that a fleet hands over at a time."""
        found_tokens = 0 if self.prefixes is None else self.prefixes.count_cached(request, self.inputs[request])
        self.pending_of[request] = self.inputs[request] - found_tokens
        self.pending_tokens += self.pending_of[request]
        self.expected_blocks -= self.expected.pop(request, 0)
        self.arriving.send(request, time_s)

    def has_been_read(self, request: int, time_s: float) -> None:
        """Free the blocks of a computed prompt that another replica has read at a time."""
        tokens = self.unread.pop(request, None)
        if tokens is None:  # read before, and computed again there
            return
        self._free_blocks(request, tokens)
        if self.waits_for_reads:
            self.waits_for_reads = False
            self.now_s = max(self.now_s, time_s)
            self.scheduled_s = self.now_s

    def expect(self, request: int) -> bool:
        """Keep a place, and room for its prompt, for a request that is to come; return whether there is one."""
        requests = self.running_requests + self.waiting_requests
        blocks = self._blocks(self.inputs[request] + 1)
        free = self.total_blocks - self.used_blocks - self.expected_blocks
        if requests >= self.engine.max_sequences or (blocks > free and requests):
            return False
        self.expected[request] = blocks
        self.expected_blocks += blocks
        return True

    @property
    def waiting_requests(self) -> int:
        """Number of requests that are not admitted yet."""
        return len(self.waiting) + len(self.arriving) + len(self.expected)

    @property
    def running_requests(self) -> int:
        """Number of admitted requests."""
        return self.batch.sequences + len(self.prompts)

    def cost_blocks(self, request: int) -> float:
        """Return the blocks that are in use, and those of prompts that are to be computed if a request comes here."""
        found_tokens = 0 if self.prefixes is None else self.prefixes.count_cached(request, self.inputs[request])
        tokens = self.inputs[request] - found_tokens + self.pending_tokens
        return tokens / self.block_tokens + self.used_blocks

    @property
    def next_s(self) -> float:
        """Time of the next event; infinity if there is nothing left to do."""
        if self.waits_for_reads:
            return math.inf
        if self.prompts or self.batch.sequences or self.waiting:
            return self.now_s
        return max(self.now_s, self.arriving[0][0]) if self.arriving else math.inf

    @property
    def earliest_finish_s(self) -> float:
        """Time before which no request finishes, if no other one arrives."""
        if self.prompts or self.waiting or not self.batch.sequences:
            return self.next_s
        return self.now_s + self.batch.iterations_to_finish() * self._next_iteration_s()

    def _receive(self) -> None:
        """Move requests that are known when the coming iteration is scheduled to the queue."""
        while self.arriving and self.arriving[0][0] <= self.scheduled_s + TICK_S:
            time_s, request, is_seen = heappop(self.arriving)
            if is_seen or not self.batch.sequences:
                self._wait(request, time_s)
            else:
                iterations = self.arriving.delay_iterations[request]
                if iterations:
                    time_s += iterations * self._next_iteration_s()
                heappush(self.arriving, (time_s, request, True))

    def _wait(self, request: int, time_s: float) -> None:
        """Let a request wait behind all that are as urgent or more; refuse it where too many wait."""
        if self.waiting.since_s:
            self._give_up_late(time_s)
        if self.waiting.is_full:
            self._give_up(request, time_s)
            return
        if self.waiting.priorities is not None:
            self.is_blocked = False
        self.waiting.join(request, time_s)

    def _give_up_late(self, time_s: float) -> None:
        """Give up the requests that have waited for their first admission for too long."""
        for request in self.waiting.leave_late(time_s):
            self._give_up(request, time_s)

    def _give_up(self, request: int, time_s: float) -> None:
        """Refuse a request, which is not answered."""
        self.pending_tokens -= self.pending_of.pop(request, 0)
        self.is_blocked = False
        self.given_up.append((request, time_s))

    def _order_by_priority(self, priorities: Sequence[int]) -> None:
        """Let the least urgent of the running requests be the last in the order of admission, with its latest place."""
        running = {prompt[0] for prompt in self.prompts}
        self.admission_order = [
            request for request in self.admission_order if self.batch.holds[request] or request in running
        ]
        self.admission_order.sort(key=lambda request: priorities[request])  # stable: of equal ones the newest is last

    def _admit(self) -> None:
        """Admit waiting requests in their order while tokens, sequences and blocks allow."""
        engine, waiting, prompts, prefixes = self.engine, self.waiting, self.prompts, self.prefixes
        decoding, most = self.batch.sequences, engine.max_sequences
        most_prompts = len(waiting) + len(prompts) if engine.most_prompts is None else engine.most_prompts
        if decoding + len(prompts) >= most:
            self.is_blocked = True
            return
        budget = self._free_tokens()
        if budget <= 0 and prefixes is None and self.adapters is None:  # as below, apart for speed
            return
        prompts_are_cached, is_chunked = self.options.prompts_are_cached, engine.chunked_prefill > 0
        inputs, decoded, shared, block_tokens = self.inputs, self.decoded, self.shared, self.block_tokens
        free = self.total_blocks - self.used_blocks - self.batch.next_growth()
        if self.adapters is not None:
            waiting.let_pass(self.adapters)
        while waiting and decoding + len(prompts) < most and len(prompts) < most_prompts:
            request = waiting[0]
            if self.adapters is not None and not self.adapters.has_place(request):
                self.adapters.is_waited_for = True
                return
            tokens = inputs[request] + decoded[request]
            newly_held = 0
            if prefixes is not None:
                shared[request], newly_held = prefixes.find(request, tokens)
            own_tokens = tokens - shared[request]
            new_tokens = 1 if prompts_are_cached and not decoded[request] else own_tokens
            if budget <= 0 or (not is_chunked and new_tokens > budget and prompts):
                return
            needed = -(-own_tokens // block_tokens) + newly_held
            final = self._final_blocks(request) + newly_held
            later = (self.promised_blocks - self.used_blocks) + (final - needed)
            if needed + engine.reserved_output * later > free and (decoding or prompts or self.unread):
                self.waits_for_reads = bool(self.unread) and not decoding and not prompts
                self.is_blocked = self.stays_without_room
                return
            waiting.leave_admitted()
            if prompts_are_cached:
                self.admitted.append(request)
            free -= needed
            budget -= new_tokens
            if math.isnan(self.log.admitted_s[request]):
                self.log.admitted_s[request] = self.now_s
                self.log.found_tokens += shared[request]
            self.used_blocks += needed
            self.promised_blocks += final
            if prefixes is not None:
                prefixes.hold_found(request)
                self.loading_s += prefixes.load_s
                self.overlapped_s += prefixes.overlapped_s
                self._evict_prefixes(prefixes)
            prompts.append([request, tokens - new_tokens, tokens])
            self.admission_order.append(request)
            if self.adapters is not None:
                self.loading_s += self.adapters.admit(request)
                waiting.let_pass(self.adapters)

    def _waits_for_others(self) -> bool:
        """Return whether waiting prompts wait for others, to be computed together, while all ranks decode.

        (TensorRT-LLM, ``_waiting_requests`` and ``_balance_adp_requests``.)
        """
        engine, ranks = self.engine, self.times.attention_data
        assert engine.batch_wait_iterations is not None
        decoding = self.batch.sequences
        if self.prompts or decoding < ranks:
            is_over = True
        elif ranks > 1:
            is_over = len(self.waiting) >= ranks
        else:
            tokens = decoding * self.drafted + sum(self.inputs[request] for request in self.waiting)
            is_over = tokens >= engine.batch_wait_share * engine.max_batched_tokens
        if is_over or self.batch_waited_iterations >= engine.batch_wait_iterations:
            self.batch_waited_iterations = 0
            return False
        return True

    def _free_tokens(self) -> int:
        """Return the tokens of an iteration that the running requests leave."""
        free = self.round_tokens
        if self.engine.mixes_phases:
            free -= self.batch.sequences * self.drafted
        for _, computed, tokens in self.prompts:
            free -= tokens - computed
        return free

    def _run_prompt_iteration(self) -> None:
        """Compute prompts, or chunks of them, and in engines that mix phases a token of every decoding sequence."""
        engine, times = self.engine, self.times
        decoding = self.batch.sequences if engine.mixes_phases else 0
        budget = self.round_tokens - decoding * self.drafted
        if engine.chunked_prefill:
            budget = min(budget, engine.chunked_prefill * times.pipeline)
        if self._has_computed_part(budget, decoding):
            return
        new_tokens = 0
        is_chunked, rank_of = engine.chunked_prefill > 0, self.rank_of
        chunks: list[tuple[int, int]] = []
        ranks: list[int] = []
        of_rank = [budget // times.attention_data] * times.attention_data  # tokens that each of them computes at most
        completed: list[int] = []
        remaining: list[list[int]] = []
        for prompt in self.prompts:
            request, computed, tokens = prompt
            chunk = wanted = tokens - computed
            if new_tokens + wanted > budget:
                if is_chunked:
                    chunk = max(budget - new_tokens, 0)
                elif new_tokens:
                    chunk = 0
            if rank_of:
                rank = rank_of[request]
                chunk = min(chunk, of_rank[rank])
                of_rank[rank] -= chunk
            if chunk:
                end = prompt[1] = computed + chunk
                chunks.append((computed, end))
                if rank_of:
                    ranks.append(rank)
                new_tokens += chunk
            if chunk == wanted:
                completed.append(request)
            else:
                remaining.append(prompt)
        self.prompts = remaining
        self.log.computed_tokens += new_tokens
        if self.options.prompts_are_cached and new_tokens == len(completed):
            # What arrives with its keys and values decodes its first token as all others do.
            contexts = sum(end for _, end in chunks)
            scheduled = ScheduledTokens(decoding + len(completed), self.batch.cached_tokens + contexts)
        else:
            scheduled = ScheduledTokens(decoding, self.batch.cached_tokens, chunks, len(completed), ranks)
        time_s = self._iteration_s(scheduled)
        time_s += self._take_loading_s(time_s)
        self._pass_time(time_s, 1, decoding, len(completed))
        if decoding:
            self._advance(1)
        for request in completed:
            self._start_decoding(request)

    def _take_loading_s(self, iteration_s: float) -> float:
        """Return by how much what is read makes an iteration longer, after which nothing more is to be read."""
        added_s = self.loading_s + max(self.overlapped_s - iteration_s, 0.0)
        self.loading_s = self.overlapped_s = 0.0
        return added_s

    def _iterations_of_one_prompt(self, budget: int, decoding: int) -> int:
        """Return the iterations in which all tokens for prompts go to the first one, up to the next event."""
        _, computed, tokens = self.prompts[0]
        iterations = (tokens - computed - 1) // budget if budget > 0 and self.engine.chunked_prefill else 0
        if iterations < LEAST_TOGETHER or self.is_fed or self.rank_of or self.drafted > 1:
            return 1
        if decoding:
            iterations = min(iterations, self.batch.iterations_to_finish())
            iterations = self.batch.iterations_within(self.total_blocks - self.used_blocks, iterations)
        if self.arriving:
            chunk = [(computed, computed + budget)]
            one_s = self._iteration_s(ScheduledTokens(decoding, self.batch.cached_tokens, chunk))
            iterations = min(iterations, math.ceil((self.arriving[0][0] - self.now_s) / one_s))
        return iterations

    def _has_computed_part(self, budget: int, decoding: int) -> bool:
        """Compute a part of the first prompt in many iterations, each at the time of the middle one; return if so."""
        iterations = self._iterations_of_one_prompt(budget, decoding)
        if iterations < LEAST_TOGETHER:
            return False
        prompt = self.prompts[0]
        middle = prompt[1] + (iterations - 1) * budget // 2
        prompt[1] += iterations * budget
        self.log.computed_tokens += iterations * budget
        cached_tokens = self.batch.cached_tokens + 0.5 * decoding * (iterations - 1)
        one_s = self._iteration_s(ScheduledTokens(decoding, cached_tokens, [(middle, middle + budget)]))
        time_s = iterations * one_s + self._take_loading_s(one_s)
        self._pass_time(time_s, iterations, decoding)
        if decoding:
            self.log.cached_block_s += 0.5 * (iterations - 1) / iterations * self.batch.growth_of(iterations) * time_s
            self._advance(iterations)
        return True

    def _run_decode_iterations(self) -> None:
        """Decode until the next event."""
        batch = self.batch
        decoding = batch.sequences
        iterations = batch.iterations_within(self.total_blocks - self.used_blocks, batch.iterations_to_finish())
        if self.is_batch_waiting:
            assert self.engine.batch_wait_iterations is not None
            iterations = min(iterations, self.engine.batch_wait_iterations - self.batch_waited_iterations)
        is_awaited = self.is_batch_waiting or (not self.waiting and decoding < self.engine.max_sequences)
        if self.arriving and is_awaited:
            iterations = min(iterations, self._iterations_until(self.arriving[0][0]))
        if iterations > 1 and self.limit_s < math.inf:
            iterations = min(iterations, self._iterations_until(self.limit_s))
        tokens = batch.tokens_in(iterations)
        if iterations == 1:
            one_s = self._next_iteration_s()
        else:
            one_s = self._decoding_s(batch.cached_tokens + 0.5 * decoding * max(tokens - 1, 0))
        time_s = iterations * one_s
        if self.is_batch_waiting:
            self.batch_waited_iterations += iterations
        self._pass_time(time_s, iterations, decoding)
        if iterations > 1:  # the cache grows from one iteration to the next
            self.log.cached_block_s += 0.5 * (iterations - 1) / iterations * batch.growth_of(tokens) * time_s
        self._advance(iterations)

    def _iterations_until(self, time_s: float) -> int:
        """Return the iterations that decode, at least the coming one, before one that is scheduled at a time or later.

        An engine that schedules ahead does so when the iteration before begins. The coming one is scheduled already.
        """
        iterations = math.ceil((time_s - self.now_s - 2 * TICK_S) / self._next_iteration_s())
        if self.engine.schedules_ahead:
            return max(iterations, 0) + 1
        return max(iterations, 1)

    def _next_iteration_s(self) -> float:
        """Return the time of an iteration that decodes the present sequences; it is asked for several times."""
        decoding, cached_tokens, starts_empty = self.batch.sequences, self.batch.cached_tokens, self.is_idle
        last = self.known_iteration
        if last[0] == decoding and last[1] == cached_tokens and last[2] == starts_empty:
            return last[3]
        time_s = self._decoding_s(cached_tokens)
        self.known_iteration = (decoding, cached_tokens, starts_empty, time_s)
        return time_s

    def _decoding_s(self, cached_tokens: float) -> float:
        """Return the time of one iteration that decodes the present sequences, with so many tokens in the cache."""
        if self.decoding_s is not None:
            return self.decoding_s(self.batch.sequences, cached_tokens)
        return self._iteration_s(ScheduledTokens(self.batch.sequences, cached_tokens))

    def _iteration_s(self, scheduled: ScheduledTokens) -> float:
        """Return the time of one iteration, with pipeline parallelism of one round."""
        return self.timed.iteration_s(scheduled, starts_empty=self.is_idle)

    def _make_room(self) -> bool:
        """Preempt the most recently admitted requests until the cache holds the next tokens of all others.

        Returns whether nothing had to be preempted; after a preemption no request is admitted.
        """
        had_room = True
        while self.batch.sequences and self.used_blocks + self.batch.next_growth() > self.total_blocks:
            had_room = False
            self._preempt_newest()
        return had_room

    def _preempt_newest(self) -> None:
        """Give up the cache of the request that was admitted last; its tokens are computed again later."""
        if self.waiting.priorities is not None:
            self._order_by_priority(self.waiting.priorities)
        request = self.admission_order.pop()
        while not self.batch.holds[request] and all(prompt[0] != request for prompt in self.prompts):
            request = self.admission_order.pop()
        self.log.preemptions += 1
        if self.batch.holds[request]:
            self.decoded[request] += self.batch.decoded_by(request)
            self._free(request, self.batch.stop(request))
        else:
            self._free(request, self.inputs[request] + self.decoded[request])
            self.prompts = [prompt for prompt in self.prompts if prompt[0] != request]
        self.waiting.join_again(request)

    def _final_blocks(self, request: int) -> int:
        return -(-(self.inputs[request] + self.outputs[request] - self.shared[request]) // self.block_tokens)

    def _start_decoding(self, request: int) -> None:
        """Let a sequence decode whose prompt is computed; that iteration has given its first token."""
        tokens = self.inputs[request] + self.decoded[request]
        self.is_blocked = False
        if math.isnan(self.log.first_token_s[request]):
            self.log.first_token_s[request] = self._seen_s()
            if self.is_fed:
                self.pending_tokens -= self.pending_of.pop(request, 0)
        if self.prefixes is not None:
            self._share_prompt(self.prefixes, request, tokens)
        decoded = self.decoded[request] + 1
        self.decoded[request] = decoded
        remaining = self.outputs[request] - decoded
        if remaining <= 0:
            if self.options.keeps_until_read:
                self.unread[request] = tokens
                if self.adapters is not None:
                    self.adapters.leave(request)
            else:
                self._free(request, tokens)
            self._finish(request)
            return
        self.batch.start(request, tokens, tokens - self.shared[request], remaining)

    def _free(self, request: int, tokens: int) -> None:
        """Let a request with some tokens run no longer, and free its blocks."""
        if self.adapters is not None:
            self.adapters.leave(request)
        self._free_blocks(request, tokens)

    def _free_blocks(self, request: int, tokens: int) -> None:
        """Free the blocks of a request; those of a common prefix stay until their room is needed."""
        self.is_blocked = False
        freed, promised = self._blocks(tokens - self.shared[request]), self._final_blocks(request)
        if self.prefixes is not None:
            unheld = self.prefixes.release(request)
            freed, promised = freed + unheld, promised + unheld
        self.used_blocks -= freed
        self.promised_blocks -= promised

    def _share_prompt(self, prefixes: PrefixesOfRequests, request: int, tokens: int) -> None:
        """Let others find the full blocks of a computed prompt; what is there already is not kept twice."""
        before, final_before = self._blocks(tokens - self.shared[request]), self._final_blocks(request)
        self.shared[request], newly_held = prefixes.hold_computed(request)
        self.used_blocks += newly_held + self._blocks(tokens - self.shared[request]) - before
        self.promised_blocks += newly_held + self._final_blocks(request) - final_before
        self._evict_prefixes(prefixes)

    def _evict_prefixes(self, prefixes: PrefixesOfRequests) -> None:
        """Keep no more blocks that nobody holds than there is room for."""
        prefixes.keep_within(self.total_blocks - self.used_blocks)

    def _advance(self, iterations: int) -> None:
        """Decode some iterations, and finish the sequences that are done."""
        self.used_blocks += self.batch.growth_of(self.batch.tokens_in(iterations))
        if self.prefixes is not None:
            self._evict_prefixes(self.prefixes)
        self.log.peak_blocks = max(self.log.peak_blocks, self.used_blocks)
        for request in self.batch.advance(iterations):
            if self.prefixes is not None:
                self.prefixes.keep_answer(request)
            self._free(request, self.batch.stop(request))
            self._finish(request)

    def _finish(self, request: int) -> None:
        """Record the end of a request; in a closed loop its user sends the next one."""
        self.log.finish_s[request] = seen_s = self._seen_s()
        if self.is_fed:
            self.finished.append(request)
            return
        self.answered += 1
        if self.arriving.is_closed:
            self.arriving.send_next(self.answered, seen_s)

    def _seen_s(self) -> float:
        """Return the time at which clients have what the last iteration gave them."""
        return self.now_s if self.stream is None else self.stream.seen_s

    def _pass_time(self, time_s: float, iterations: int, decoding: int, first_tokens: int = 0) -> None:
        """Let time pass in iterations, which decode some sequences and give some first tokens."""
        if self.options.records_steps:
            waiting = len(self.waiting) + len(self.arriving)
            step = ReplicaStep(
                self.now_s, time_s, iterations, decoding, self.log.computed_tokens, waiting, self.used_blocks
            )
            self.log.steps.append(step)
        self.now_s += time_s
        self.scheduled_s = self.now_s - time_s / iterations if self.engine.schedules_ahead else self.now_s
        self.is_idle = False
        if self.stream is not None:
            self.stream.send(self.now_s, iterations, time_s / iterations, decoding, first_tokens)
        if self.adapters is not None and self.adapters.is_waited_for:
            self.log.adapter_wait_s += time_s
        # Sequences that pause while prompts are computed have begun their answers, too.
        self.log.pass_time(self.now_s, time_s, iterations, self.used_blocks, self.batch.sequences)

    def outcome(self, chosen: Ints | slice = slice(None)) -> Outcome:
        """Return what happened up to now, with the times of all requests, or of chosen ones, as arrays."""
        adapter_loads = 0 if self.adapters is None else self.adapters.loads
        return self.log.outcome(self.now_s, self.arriving.sent_s, adapter_loads, chosen)

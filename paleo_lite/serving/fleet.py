"""Simulation of several replicas that depend on each other: stages that pass requests on, and users who wait.

A request visits one replica of every stage, such as a prefill and a decode replica, and a router chooses each of them
when the request gets there. Where a stage keeps places, requests need one of its places before they go to the first
stage, and keep it until they leave. Replicas go from event to event: a replica may decode up to the time at which a
request may reach it, which is the earliest time at which a replica before it finishes one.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from heapq import heappop, heappush
from typing import NamedTuple

import numpy as np

from .requests import Traffic
from .routers import Router
from .simulator import TICK_S, Replica

TICK_DIGITS = -round(math.log10(TICK_S))
"""Decimal digits of seconds in whole ticks."""


def in_ticks(time_s: float) -> float:
    """Return a time in whole ticks, in which the times of different replicas are compared.

    Replicas with the same work compute in step: otherwise the last bit of a time, in which processors differ, would
    decide which of them gets a request.
    """
    return time_s if time_s == math.inf else round(time_s, TICK_DIGITS)


class Stage(NamedTuple):
    """Replicas of which a request visits one."""

    replicas: Sequence[Replica]
    router: Router
    keeps_places: bool = False  # whether a request has a place here before it goes to the first stage


class Fleet:
    """State of a simulation of several stages."""

    def __init__(
        self,
        traffic: Traffic,
        stages: Sequence[Stage],
        handover_s: Sequence[float] = (),  # seconds from one stage to the next, of each request
        answers: int | None = None,  # first answers that are wanted; None for all
    ) -> None:
        self.stages, self.handover_s = stages, handover_s
        self.answers, self.answered, self.last_s = answers, 0, 0.0
        self.until_s = math.inf  # time up to which all wanted answers are known
        self.is_closed = traffic.concurrency is not None
        self.keeps_places = stages[-1].keeps_places
        # Whether what a replica of the last stage finishes lets a request go to the first one.
        self.has_answers_before = self.is_closed or traffic.follows is not None or self.keeps_places
        count = len(traffic)
        self.sent_s: list[float] = traffic.arrival_s.tolist()  # times at which users send their requests
        self.visited = np.zeros((len(stages), count), dtype=np.int64)  # replica of each stage that a request visits
        self.replicas = [(number, replica) for number, stage in enumerate(stages) for replica in stage.replicas]
        self.earliest_finish_s = [math.inf] * len(self.replicas)
        self.changed: set[int] = set()  # replicas of which that is not known any more
        self.next_s = [math.inf] * len(self.replicas)
        self.first_of = np.cumsum([0, *(len(stage.replicas) for stage in stages)]).tolist()
        self.followers: dict[int, list[int]] = {}
        self.starts = list(range(count))  # requests that follow no other one
        self.wait_s: list[float] = [0.0] * count if traffic.wait_s is None else traffic.wait_s.tolist()
        if traffic.follows is not None:
            self.starts = np.flatnonzero(traffic.follows < 0).tolist()
            for request, before in enumerate(traffic.follows.tolist()):
                if before >= 0:
                    self.followers.setdefault(before, []).append(request)
        # Requests on their way to a stage, as (time in ticks, request, stage, time).
        self.on_the_way: list[tuple[float, int, int, float]] = []
        # In a closed loop some sessions are open, of which a number of users have requests under way; of the others
        # one goes on, at random, when an answer ends.
        users = len(self.starts) if traffic.concurrency is None else min(traffic.concurrency, len(self.starts))
        self.users = self.under_way = users
        self.has_rounds = self.is_closed and traffic.has_rounds
        self.next_round: list[int] = []  # requests that wait until all of a round are answered
        self.repeats_after = traffic.repeats_after
        self.started = min(max(users, traffic.clients or 0), len(self.starts))
        self.ready = self.starts[users : self.started]
        self.generator = np.random.default_rng(stages[-1].replicas[0].options.seed)
        # Requests that wait for a place in each replica of the last stage, and whether each request has one.
        self.without_place: list[deque[int]] = [deque() for _ in stages[-1].replicas]
        self.has_place = [not self.keeps_places] * count
        for request in self.starts[:users]:
            self._send(self.sent_s[request], request, 0)

    def run(self) -> None:
        """Run until all requests are answered, or the first ones that are wanted."""
        while True:
            next_s = min(self.next_s)
            if next_s > self.until_s:
                return
            if self.on_the_way and self.on_the_way[0][0] <= next_s:
                self._hand_over_first()
            elif next_s == math.inf:
                return
            else:
                self._step(self.next_s.index(next_s))

    def _send(self, time_s: float, request: int, number: int) -> None:
        """Let a request be on its way to a stage until a time."""
        heappush(self.on_the_way, (in_ticks(time_s), request, number, time_s))

    def _hand_over_first(self) -> None:
        """Hand over the request that is the first to get to its stage."""
        _, request, number, time_s = heappop(self.on_the_way)
        self._hand_over(time_s, request, number)

    def _hand_over(self, time_s: float, request: int, number: int) -> None:
        """Hand a request over to the replica of a stage that its router chooses."""
        stage = self.stages[number]
        last = len(self.stages) - 1
        if not self.has_place[request]:
            self._wait_for_place(time_s, request)
            return
        if self.keeps_places and number == last:
            chosen = int(self.visited[number, request])
        else:
            chosen = stage.router.choose(stage.replicas, request)
        self.visited[number, request] = chosen
        stage.replicas[chosen].take(request, time_s)
        self._look_at(self.first_of[number] + chosen)

    def _wait_for_place(self, time_s: float, request: int) -> None:
        """Let a request wait for a place in the replica of the last stage that the router chooses."""
        last = self.stages[-1]
        chosen = last.router.choose(last.replicas, request)
        self.visited[len(self.stages) - 1, request] = chosen
        self.without_place[chosen].append(request)
        self._give_places(time_s, chosen)

    def _give_places(self, time_s: float, chosen: int) -> None:
        """Give free places of a replica of the last stage to those that wait for one, which go to the first stage."""
        replica, waiting = self.stages[-1].replicas[chosen], self.without_place[chosen]
        while waiting and replica.expect(waiting[0]):
            request = waiting.popleft()
            self.has_place[request] = True
            self._send(time_s, request, 0)

    def _step(self, index: int) -> None:
        """Let a replica take its next step, and pass on the requests that it has finished."""
        number, replica = self.replicas[index]
        if replica.batch.sequences and not replica.prompts:
            replica.limit_s = self._limit_s(number, index)
        replica.step()
        for request in replica.finished:
            self._pass_on(number, request, replica.log.finish_s[request])
        replica.finished.clear()
        for request in replica.admitted:
            self._has_read(request, replica.log.admitted_s[request])
        replica.admitted.clear()
        self._look_at(index)

    def _has_read(self, request: int, time_s: float) -> None:
        """Let the replica that computed a prompt give up its blocks, which the next stage has read."""
        computed_at = int(self.visited[0, request])
        self.stages[0].replicas[computed_at].has_been_read(request, time_s)
        self._look_at(computed_at)

    def _look_at(self, index: int) -> None:
        """Note when a replica takes its next step, and that it may finish a request earlier or later."""
        number, replica = self.replicas[index]
        self.next_s[index] = in_ticks(replica.next_s)
        if self.has_answers_before or number + 1 < len(self.stages):  # otherwise no other replica waits for it
            self.changed.add(index)

    def _limit_s(self, number: int, index: int) -> float:
        """Return the time before which no further request reaches a replica."""
        limit_s = self.on_the_way[0][0] if self.on_the_way else math.inf
        # Where an answer lets its user send the next request, every replica is before every other.
        last = len(self.replicas) if self.has_answers_before else self.first_of[number]
        earliest_s = self.earliest_finish_s
        for changed in self.changed:
            earliest_s[changed] = self.replicas[changed][1].earliest_finish_s
        self.changed.clear()
        if last:
            own_s, earliest_s[index] = earliest_s[index], math.inf
            limit_s = min(limit_s, *earliest_s[:last])
            earliest_s[index] = own_s
        return limit_s

    def _pass_on(self, number: int, request: int, time_s: float) -> None:
        """Send a request to the next stage; after the last one its user goes on."""
        if number + 1 < len(self.stages):
            self._send(time_s + self.handover_s[request], request, number + 1)
            return
        self._note_answer(time_s)
        if self.keeps_places:
            self._give_places(time_s, int(self.visited[number, request]))
        followers = self.followers.get(request, [])
        if not followers and self.is_closed:
            followers = self._starts_after_answer()
        if self.has_rounds:
            followers = self._within_round(followers)
        elif self.ready:
            self.ready += followers
            followers = [self._draw_ready()]
        for following in followers:
            self.sent_s[following] = time_s + self.wait_s[following]
            self._send(self.sent_s[following], following, 0)

    def _note_answer(self, time_s: float) -> None:
        """Note that a request is answered; others may be answered before it that are not known yet."""
        self.answered += 1
        self.last_s = max(self.last_s, time_s)
        if self.answered == self.answers:
            self.until_s = self.last_s

    def _starts_after_answer(self) -> list[int]:
        """Return the next request of a user, or of all users if they begin again together."""
        first, sent = self.started, 1
        if self.repeats_after and first % self.repeats_after == 0:
            sent = self.users if self.answered == first else 0
        self.started = min(first + sent, len(self.starts))
        return self.starts[first : self.started]

    def _draw_ready(self) -> int:
        """Return a request of those that are ready to be sent, at random."""
        return self.ready.pop(int(self.generator.integers(len(self.ready))))

    def _within_round(self, followers: Sequence[int]) -> list[int]:
        """Return the requests that are sent after an answer, where sessions wait for all others before a turn."""
        self.next_round += followers
        self.under_way -= 1
        if self.ready:
            sent = [self._draw_ready()]
        elif self.under_way:
            sent = []
        else:
            self.ready, self.next_round = self.next_round, []
            sent = [self._draw_ready() for _ in range(min(self.users, len(self.ready)))]
        self.under_way += len(sent)
        return sent

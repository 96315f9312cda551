"""Replicas that come and go: failures, and autoscaling, with the time in which a server starts.

A replica that fails loses its cache and all its requests, which the gateway sends again from the beginning; another
one starts in its place. An autoscaler compares the requests per replica with a target, as Kubernetes' does (Horizontal
Pod Autoscaling: as many replicas as the ratio says unless it is within a tenth of 1, more at once, fewer only if no
recommendation of the last minutes was higher). A replica that is not needed answers what it has, and ends.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from heapq import heappop, heappush
from typing import Any, NamedTuple

import numpy as np

from ..errors import BadValue
from .fleet import Fleet, Stage
from .requests import Traffic
from .routers import Router
from .simulator import Replica

MOST_RESTARTS = 20
"""Times that requests are sent again on average, from which replicas are said to fail before they answer."""

TOLERANCE = 0.1
"""Deviation of the requests per replica from the target that is left alone (Kubernetes,
`--horizontal-pod-autoscaler-tolerance`)."""

INTERVAL_S, DOWN_AFTER_S = 15.0, 300.0
"""Seconds between two decisions, and those of which the highest recommendation holds (Kubernetes, sync period and
stabilization window)."""


class Autoscaling(NamedTuple):
    """How many replicas there are, by the requests that they have."""

    least: int
    most: int
    target: float  # requests of a replica, running and waiting
    interval_s: float
    down_after_s: float


class Failures(NamedTuple):
    """When replicas fail."""

    at_s: float | None = None  # time after the first request at which one of them does
    mean_s: float | None = None  # mean time between failures of a device


class Elasticity(NamedTuple):
    """How replicas come and go."""

    autoscaling: Autoscaling | None
    failures: Failures
    replicas: int  # that serve in the beginning
    start_s: float | None  # in which a server starts; None for the estimate


OF_FAILURES = ("fail-at", "mtbf")
"""Settings of failures; the others but the start are those of the autoscaler."""


def parse_elasticity(settings: Mapping[str, Any], replicas: int | None) -> Elasticity | None:
    """Return how replicas come and go by the settings of the option, and the given number; None if they stay."""
    if not settings:
        return None
    start_s = settings.get("start")
    failures = Failures(settings.get("fail-at"), settings.get("mtbf"))
    if not set(settings) - {"start", *OF_FAILURES}:
        if failures == Failures():
            raise BadValue(
                "`--scaling start` is for replicas that start: give max=N,target=N, fail-at=TIME or mtbf=TIME"
            )
        return Elasticity(None, failures, replicas or 1, start_s)
    least, most = settings.get("min", 1), settings.get("max")
    if most is None or "target" not in settings:
        raise BadValue("`--scaling` needs max=N, the most replicas, and target=N, the requests per replica")
    if not 1 <= least <= most:
        raise BadValue(f"`--scaling` needs 1 <= min <= max (got min={least},max={most})")
    replicas = least if replicas is None else replicas
    if not least <= replicas <= most:
        raise BadValue(f"`--replicas` must be from min={least} to max={most} of `--scaling` (got {replicas})")
    scaling = Autoscaling(
        least,
        most,
        settings["target"],
        settings.get("interval", INTERVAL_S),
        settings.get("down-after", DOWN_AFTER_S),
    )
    return Elasticity(scaling, failures, replicas, start_s)


class Life(NamedTuple):
    """From when to when a replica is paid for, and serves."""

    begin_s: float
    ready_s: float
    end_s: float  # infinity of one that does not end


class ElasticFleet(Fleet):
    """State of a simulation of replicas that come and go."""

    def __init__(
        self,
        traffic: Traffic,
        elasticity: Elasticity,
        *,
        make: Callable[[], Replica],
        router: Router,
        start_s: float,  # in which a replica starts
        devices: int,  # of a replica
    ) -> None:
        scaling = elasticity.autoscaling
        self.elasticity, self.start_s, self.devices = elasticity, start_s, devices
        self.make = make
        self.members = [make() for _ in range(elasticity.replicas)]
        super().__init__(traffic, [Stage(self.members, router)])
        self.lives = [Life(0.0, 0.0, math.inf) for _ in self.members]
        self.serving = list(range(len(self.members)))  # numbers of the replicas that take requests
        self.starting: list[int] = []  # numbers of those that will
        self.unrouted: deque[int] = deque()  # requests that no replica can take
        self.restarted = self.planned = 0
        self.visited[0, :] = -1  # where no request is yet
        self.recommended: deque[tuple[float, int]] = deque()
        self.failure_generator = np.random.default_rng(self.members[0].options.seed)
        self.events: list[tuple[float, int, Callable[[float], None]]] = []
        if elasticity.failures.at_s is not None:
            self._plan(elasticity.failures.at_s, self._fail_one)
        for number in self.serving:
            self._plan_failure(number, 0.0)
        if scaling is not None:
            self._plan(scaling.interval_s, self._decide)

    def run(self) -> None:
        """Run until all requests are answered."""
        while True:
            next_s = min(self.next_s)
            arrival_s = self.on_the_way[0][0] if self.on_the_way else math.inf
            if min(next_s, arrival_s) == math.inf and not self.unrouted:
                return
            if self.events and self.events[0][0] <= min(next_s, arrival_s):
                time_s, _, happen = heappop(self.events)
                happen(time_s)
            elif arrival_s <= next_s:
                self._hand_over_first()
            else:
                self._step(self.next_s.index(next_s))

    def _plan(self, time_s: float, happen: Callable[[float], None]) -> None:
        """Let something happen at a time."""
        self.planned += 1  # the order of what happens at the same time
        heappush(self.events, (time_s, self.planned, happen))

    def _hand_over(self, time_s: float, request: int, number: int) -> None:
        """Hand a request over to a replica that takes requests, or let it wait for one."""
        if not self.serving:
            self.unrouted.append(request)
            return
        serving = [self.members[index] for index in self.serving]
        chosen = self.serving[self.stages[0].router.choose(serving, request)]
        self.visited[0, request] = chosen
        self.members[chosen].take(request, time_s)
        self._look_at(chosen)

    def _limit_s(self, number: int, index: int) -> float:
        """Return the time before which nothing changes for a replica."""
        limit_s = super()._limit_s(number, index)
        return min(limit_s, self.events[0][0]) if self.events else limit_s

    def _plan_failure(self, number: int, time_s: float) -> None:
        """Draw when a replica fails, where that is asked for: any of its devices stops it."""
        mean_s = self.elasticity.failures.mean_s
        if mean_s is None:
            return
        after_s = float(self.failure_generator.exponential(mean_s / self.devices))
        self._plan(time_s + after_s, lambda now_s: self._fail(number, now_s))

    def _fail_one(self, time_s: float) -> None:
        """Let the replica fail that has the most requests."""
        if self.serving:
            self._fail(max(self.serving, key=lambda member: len(self._requests_of(member))), time_s)

    def _fail(self, number: int, time_s: float) -> None:
        """Let a replica fail: its requests are sent again, and another one starts in its place."""
        if self.lives[number].end_s < math.inf or number in self.starting:
            return
        lost = self._requests_of(number)
        self.restarted += len(lost)
        if self.restarted > MOST_RESTARTS * len(self.visited[0]):
            raise BadValue(
                "`--scaling mtbf`: replicas fail before they answer: each request was sent again more than "
                f"{MOST_RESTARTS} times; give a longer time or more replicas"
            )
        self.next_s[number] = self.earliest_finish_s[number] = math.inf
        self.changed.discard(number)
        self._end(number, time_s)
        self.serving.remove(number)
        self._start(time_s)
        for request in lost:
            self._send(time_s, request, 0)

    def _requests_of(self, number: int) -> list[int]:
        """Return the requests that a replica has not answered."""
        replica = self.members[number]
        sent = np.flatnonzero(self.visited[0] == number).tolist()
        return [request for request in sent if math.isnan(replica.log.finish_s[request])]

    def _end(self, number: int, time_s: float) -> None:
        """Note that a replica ends."""
        self.lives[number] = self.lives[number]._replace(end_s=time_s)

    def _start(self, time_s: float) -> None:
        """Start a replica."""
        number = len(self.members)
        self.members.append(self.make())
        self.replicas.append((0, self.members[-1]))
        self.next_s.append(math.inf)
        self.earliest_finish_s.append(math.inf)
        self.lives.append(Life(time_s, time_s + self.start_s, math.inf))
        self.starting.append(number)
        self._plan(time_s + self.start_s, lambda now_s: self._begin_to_serve(number, now_s))

    def _begin_to_serve(self, number: int, time_s: float) -> None:
        """Let a started replica take requests, and those first that no other one could."""
        if number not in self.starting:  # it was given up
            return
        self.starting.remove(number)
        self.serving.append(number)
        self._plan_failure(number, time_s)
        while self.unrouted:
            self._hand_over(time_s, self.unrouted.popleft(), 0)

    def _decide(self, time_s: float) -> None:
        """Start or end replicas as the autoscaler decides."""
        scaling = self.elasticity.autoscaling
        assert scaling is not None
        self._plan(time_s + scaling.interval_s, self._decide)
        members = [self.members[index] for index in self.serving]
        requests = len(self.unrouted) + sum(member.waiting_requests + member.running_requests for member in members)
        present = len(self.serving) + len(self.starting)
        ratio = requests / scaling.target / max(present, 1)
        wanted = present if abs(ratio - 1) <= TOLERANCE else math.ceil(requests / scaling.target)
        wanted = min(max(wanted, scaling.least), scaling.most)
        self.recommended.append((time_s, wanted))
        while self.recommended[0][0] < time_s - scaling.down_after_s:
            self.recommended.popleft()
        for _ in range(wanted - present):
            self._start(time_s)
        # No fewer than were recommended of late, nor before there are recommendations of so long.
        is_known = time_s >= scaling.down_after_s
        fewest = max(replicas for _, replicas in self.recommended) if is_known else present
        for _ in range(present - fewest):
            self._give_up(time_s)

    def _give_up(self, time_s: float) -> None:
        """Let a replica end that is not needed: one that still starts, or the one with the fewest requests."""
        if self.starting:
            self._end(self.starting.pop(), time_s)
            return
        number = min(self.serving, key=lambda member: len(self._requests_of(member)))
        self.serving.remove(number)
        self._end(number, time_s)  # what it has is answered until later, see `ended_lives`

    def ended_lives(self) -> list[Life]:
        """Return the lives of all replicas up to the last answer, those given up until they have answered all."""
        finish_s = [
            max((answer_s for answer_s in member.log.finish_s if not math.isnan(answer_s)), default=0.0)
            for member in self.members
        ]
        last_s = max(finish_s)
        lives = []
        for life, answered_s in zip(self.lives, finish_s):
            end_s = min(max(life.end_s, answered_s), last_s)
            if life.begin_s < end_s:
                lives.append(Life(life.begin_s, min(life.ready_s, end_s), end_s))
        return lives


class Count(NamedTuple):
    """Number of replicas from a time on."""

    time_s: float
    serving: int
    starting: int


def count_lives(lives: Sequence[Life]) -> list[Count]:
    """Return the number of replicas over time, wherever it changes."""
    changes: dict[float, list[int]] = {}
    for life in lives:
        for time_s, serving, starting in (
            (life.begin_s, 0, 1),
            (life.ready_s, 1, -1),
            (life.end_s, -1, 0),
        ):
            change = changes.setdefault(time_s, [0, 0])
            change[0] += serving
            change[1] += starting
    counts = [Count(-math.inf, 0, 0)]
    for time_s, (serving, starting) in sorted(changes.items()):
        counts.append(Count(time_s, counts[-1].serving + serving, counts[-1].starting + starting))
    return counts[1:]


def paid_seconds(lives: Sequence[Life], start_s: float, end_s: float) -> float:
    """Return the seconds of all replicas between two times, those in which they start included."""
    return sum(max(min(life.end_s, end_s) - max(life.begin_s, start_s), 0.0) for life in lives)

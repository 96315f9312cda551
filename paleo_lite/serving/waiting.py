"""Requests that a replica does not run yet: on their way to the scheduler, or in the line for admission."""

from __future__ import annotations

from collections import deque
from heapq import heapify, heappush

import numpy as np

from ..engines.records.record import Server
from .adapters import AdapterSlots
from .options import SimulationOptions
from .requests import Traffic


class Arrivals(list[tuple[float, int, bool]]):
    """Heap of the requests on their way to the scheduler.

    An entry is a time, a request, and whether the scheduler looks for new ones at that time. In a closed loop a user
    sends the next request when the last one is answered.
    """

    def __init__(self, traffic: Traffic, engine: Server, options: SimulationOptions, *, is_fed: bool) -> None:
        super().__init__()
        self.sent_s: list[float] = traffic.arrival_s.tolist()  # time at which each request is sent
        self.delay_s, self.delay_iterations = _draw_delays(traffic, engine, options)
        self.is_closed = traffic.concurrency is not None
        self.users, self.repeats_after = traffic.concurrency or len(traffic), traffic.repeats_after
        self.next_request = min(self.users, len(traffic))
        if not is_fed:
            for request in range(self.next_request):
                self.append((self.sent_s[request] + self.delay_s[request], request, False))
            heapify(self)

    def send(self, request: int, time_s: float) -> None:
        """Send a request at a time."""
        self.sent_s[request] = time_s
        heappush(self, (time_s + self.delay_s[request], request, False))

    def send_next(self, answered: int, time_s: float) -> None:
        """Let the user of an answered request send the next one, or all users together if they begin again."""
        first, sent = self.next_request, 1
        if self.repeats_after and first % self.repeats_after == 0:
            sent = self.users if answered == first else 0
        self.next_request = min(first + sent, len(self.sent_s))
        for request in range(first, self.next_request):
            self.send(request, time_s)


def _draw_delays(traffic: Traffic, engine: Server, options: SimulationOptions) -> tuple[list[float], list[float]]:
    """Draw the time from the sending of each request until it reaches the scheduler, and the iterations after.

    Times scatter exponentially and iterations uniformly, so that users whose answers end in the same iteration do
    not stay in step.
    """
    count = len(traffic)
    if options.prompts_are_cached:
        return [0.0] * count, [engine.handover.iterations] * count
    generator = np.random.default_rng(options.seed)
    delay_s = generator.exponential(engine.request_overhead_s, count)
    iterations = np.zeros(count)
    if traffic.concurrency is not None:
        delay_s += engine.request_kernels_s + engine.request_token_s * traffic.input_tokens
        iterations += generator.uniform(0.0, 2 * engine.request_iterations, count)
    iterations += generator.uniform(0.0, engine.receive_interval - 1, count)
    return delay_s.tolist(), iterations.tolist()


class WaitingLine(deque[int]):
    """Requests that wait for admission, in the order in which they are admitted."""

    def __init__(self, traffic: Traffic, options: SimulationOptions) -> None:
        super().__init__()
        # Priorities of all requests, of which the smallest is the most urgent; None if all are equal.
        self.priorities: list[int] | None = None if traffic.priorities is None else traffic.priorities.tolist()
        self.most_queued, self.timeout_s = options.most_queued, options.waiting_timeout_s
        self.since_s: dict[int, float] = {}  # when each began to wait for its first admission, where that has a limit

    @property
    def is_full(self) -> bool:
        """Whether no further request may wait."""
        return self.most_queued is not None and len(self) >= self.most_queued

    def join(self, request: int, time_s: float) -> None:
        """Let a request wait behind all that are as urgent or more."""
        if self.timeout_s is not None:
            self.since_s[request] = time_s
        place = len(self)
        if self.priorities is not None:
            while place and self.priorities[self[place - 1]] > self.priorities[request]:
                place -= 1
        self.insert(place, request)

    def join_again(self, request: int) -> None:
        """Let a request that was preempted wait before all that are as urgent or less."""
        place = 0
        if self.priorities is not None:
            while place < len(self) and self.priorities[self[place]] < self.priorities[request]:
                place += 1
        self.insert(place, request)

    def leave_admitted(self) -> None:
        """Let the first request leave, which is admitted."""
        request = self.popleft()
        self.since_s.pop(request, None)

    def leave_late(self, time_s: float) -> list[int]:
        """Let the requests leave that have waited for their first admission for too long, and return them."""
        if self.timeout_s is None:
            return []
        late = [request for request, since_s in self.since_s.items() if time_s - since_s > self.timeout_s]
        for request in late:
            self.remove(request)
            del self.since_s[request]
        return late

    def let_pass(self, adapters: AdapterSlots) -> None:
        """Let the first request whose adapter may be in the batch pass those whose adapter may not."""
        if not self or adapters.has_place(self[0]):
            return
        for place, request in enumerate(self):
            if adapters.has_place(request):
                del self[place]
                self.appendleft(request)
                return

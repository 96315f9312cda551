"""Admission: what servers and the gateway before them refuse, and how long they let requests wait.

A server refuses what comes while too many wait in it, and gives up what has waited for too long (SGLang). A gateway
lets a number of requests through at a time and keeps others in a queue of its own (SGLang's gateway), or sends nothing
to replicas that are busy, and refuses what comes while all are (NVIDIA Dynamo's frontend). A refused request is
answered with an error at once, and its user does not send it again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any

import msgspec

from ..errors import BadValue
from .fleet import Fleet, Stage
from .requests import Traffic
from .simulator import Replica

QUEUE_SIZE, QUEUE_TIMEOUT_S = 100, 60.0
"""Requests that wait in a gateway, and the seconds after which it gives them up (SGLang's gateway, `--queue-size` and
`--queue-timeout-secs`)."""


class Admission(msgspec.Struct, frozen=True):
    """Limits of what is admitted; None for no limit."""

    # Of each replica: requests that wait in it, and the seconds after which one of them is given up (SGLang,
    # `--max-queued-requests` and the variable SGLANG_REQ_WAITING_TIMEOUT).
    most_queued: int | None = None
    waiting_timeout_s: float | None = None
    # Of the gateway: requests that it lets through at a time (SGLang's gateway, `--max-concurrent-requests`), those
    # that wait in it, and the seconds after which one of these is given up.
    most_at_once: int | None = None
    queue_size: int = QUEUE_SIZE
    queue_timeout_s: float = QUEUE_TIMEOUT_S
    # Share of the blocks of the cache, and tokens of prompts that are to be computed, above which a replica is busy
    # (Dynamo's frontend, `--active-decode-blocks-threshold` and `--active-prefill-tokens-threshold`).
    busy_blocks: float | None = None
    busy_prompt_tokens: int | None = None

    @property
    def is_of_server(self) -> bool:
        """Whether a server itself has limits."""
        return self.most_queued is not None or self.waiting_timeout_s is not None

    def gateway_words(self) -> str:
        """Return the options of the gateway with these limits, and whose they are; empty without a gateway's."""
        words = []
        if self.most_at_once is not None:
            words.append(
                f"--max-concurrent-requests {self.most_at_once} --queue-size {self.queue_size} --queue-timeout-secs "
                f"{self.queue_timeout_s:g} (SGLang's gateway)"
            )
        busy = []
        if self.busy_blocks is not None:
            busy.append(f"--active-decode-blocks-threshold {self.busy_blocks:g}")
        if self.busy_prompt_tokens is not None:
            busy.append(f"--active-prefill-tokens-threshold {self.busy_prompt_tokens}")
        if busy:
            words.append(f"{' '.join(busy)} (Dynamo's frontend)")
        return ", and ".join(words)

    def is_busy(self, replica: Replica) -> bool:
        """Return whether no further request is sent to a replica."""
        if self.busy_blocks is not None and replica.used_blocks > self.busy_blocks * replica.total_blocks:
            return True
        return self.busy_prompt_tokens is not None and replica.pending_tokens > self.busy_prompt_tokens


OF_GATEWAY_QUEUE = ("queue-size", "queue-timeout")
"""Settings of the queue of a gateway, which waits for requests that it has let through."""


def parse_admission(settings: Mapping[str, Any]) -> Admission | None:
    """Return the limits of the settings of the option; None without any."""
    if not settings:
        return None
    alone = [name for name in OF_GATEWAY_QUEUE if name in settings]
    if alone and "max-concurrent-requests" not in settings:
        raise BadValue(
            f"`--admission {alone[0]}` needs max-concurrent-requests=N, the requests that the gateway lets through"
        )
    return Admission(
        most_queued=settings.get("max-queued-requests"),
        waiting_timeout_s=settings.get("waiting-timeout"),
        most_at_once=settings.get("max-concurrent-requests"),
        queue_size=settings.get("queue-size", QUEUE_SIZE),
        queue_timeout_s=settings.get("queue-timeout", QUEUE_TIMEOUT_S),
        busy_blocks=settings.get("active-decode-blocks-threshold"),
        busy_prompt_tokens=settings.get("active-prefill-tokens-threshold"),
    )


def check_traffic(traffic: Traffic) -> None:
    """Raise BadValue if requests are those of sessions or users, who would wait for the answers of refused ones."""
    if traffic.follows is not None or traffic.concurrency is not None:
        raise BadValue("`--admission` is for requests that wait for no other one: leave sessions and users out")


class AdmittingFleet(Fleet):
    """State of a simulation of replicas behind a gateway that refuses requests."""

    def __init__(self, traffic: Traffic, stage: Stage, admission: Admission) -> None:
        super().__init__(traffic, [stage])
        self.admission = admission
        self.refused: list[int] = []
        self.let_through = 0  # requests that replicas have
        self.in_queue: deque[int] = deque()  # requests that wait in the gateway
        if admission.most_at_once is not None:  # what is answered lets another one through
            self.has_answers_before = True

    def _hand_over(self, time_s: float, request: int, number: int) -> None:
        """Hand a request over to a replica, let it wait in the gateway, or refuse it."""
        self._give_up(time_s)
        most = self.admission.most_at_once
        if most is None or self.let_through < most:
            self._let_through(time_s, request)
        elif len(self.in_queue) < self.admission.queue_size:
            self.in_queue.append(request)
        else:
            self._refuse(request)

    def _let_through(self, time_s: float, request: int) -> None:
        """Hand a request over to one of the replicas that are not busy; refuse it if all are."""
        stage = self.stages[0]
        free = [number for number, replica in enumerate(stage.replicas) if not self.admission.is_busy(replica)]
        if not free:
            self._refuse(request)
            return
        chosen = free[stage.router.choose([stage.replicas[number] for number in free], request)]
        self.visited[0, request] = chosen
        self.let_through += 1
        stage.replicas[chosen].take(request, time_s)
        self._look_at(chosen)

    def _refuse(self, request: int) -> None:
        """Note that a request is refused, which no replica answers."""
        self.refused.append(request)
        self.visited[0, request] = -1

    def _give_up(self, time_s: float) -> None:
        """Refuse the requests that have waited in the gateway for too long."""
        while self.in_queue and time_s - self.sent_s[self.in_queue[0]] > self.admission.queue_timeout_s:
            self._refuse(self.in_queue.popleft())

    def _step(self, index: int) -> None:
        """Let a replica take its next step, and let others through for the requests that it has given up."""
        super()._step(index)
        replica = self.stages[0].replicas[index]
        for request, time_s in replica.given_up:
            self._refuse(request)
            self._leave(time_s)
        replica.given_up.clear()

    def _pass_on(self, number: int, request: int, time_s: float) -> None:
        """Note that a request is answered, and let another one through."""
        super()._pass_on(number, request, time_s)
        self._leave(time_s)

    def _leave(self, time_s: float) -> None:
        """Let the next request through in place of one that replicas have no more."""
        self.let_through -= 1
        self._give_up(time_s)
        if self.in_queue:
            self._let_through(time_s, self.in_queue.popleft())

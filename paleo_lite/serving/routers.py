"""Routers: which replica of several a request goes to.

A router sees what a replica has to do at that time, and what its prefix cache holds; real ones see it 50 to 100 ms
later.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from ..errors import BadValue
from .requests import Traffic
from .simulator import Replica

WAITING_WEIGHT = 4
"""Running requests that a waiting one counts as much as (vLLM, `DPLBAsyncMPClient`: waiting * 4 + running)."""

BALANCED_EXCESS, BALANCED_RATIO = 32, 1.5
"""Most requests, and ratio of requests, by which replicas may differ before a sticky router prefers the shortest queue
(SGLang's gateway, `--balance-abs-threshold` and `--balance-rel-threshold`)."""


class Router:
    """Takes replicas in turn, whatever they have to do."""

    def __init__(self, traffic: Traffic) -> None:
        self.traffic = traffic
        self.turn = 0

    def choose(self, replicas: Sequence[Replica], request: int) -> int:
        """Return the number of the replica that a request goes to."""
        chosen = self.turn % len(replicas)
        self.turn += 1
        return chosen

    def least_of(self, costs: Sequence[float]) -> int:
        """Return the number of the smallest cost; among equal ones they take turns."""
        self.turn += 1
        count = len(costs)
        return min(range(count), key=lambda number: (costs[number], (number - self.turn) % count))


class LeastLoaded(Router):
    """Chooses the replica with the fewest requests, of which waiting ones count more."""

    def choose(self, replicas: Sequence[Replica], request: int) -> int:
        """Return the number of the replica that a request goes to."""
        return self.least_of(
            [WAITING_WEIGHT * replica.waiting_requests + replica.running_requests for replica in replicas]
        )


class PrefixAware(Router):
    """Chooses the replica with the least to do for a request: blocks of prompts to compute, and blocks in use.

    (NVIDIA Dynamo, KV router: overlap weight times prefill blocks, plus decode blocks.)
    """

    def choose(self, replicas: Sequence[Replica], request: int) -> int:
        """Return the number of the replica that a request goes to."""
        return self.least_of([replica.cost_blocks(request) for replica in replicas])


class Sticky(Router):
    """Sends all requests of a session, or of a first block of a prompt, to one replica while its queue is no longer."""

    def __init__(self, traffic: Traffic) -> None:
        super().__init__(traffic)
        if traffic.sessions is None and traffic.hashes is None:
            raise BadValue("`--router sticky` needs sessions: give `--workload`, or requests with hash_ids")
        self.homes: dict[int, int] = {}

    def choose(self, replicas: Sequence[Replica], request: int) -> int:
        """Return the number of the replica that a request goes to."""
        loads = [replica.waiting_requests + replica.running_requests for replica in replicas]
        key = self._key_of(request)
        home = self.homes.get(key)
        excess = max(loads) - min(loads)
        is_unbalanced = excess > BALANCED_EXCESS and max(loads) > BALANCED_RATIO * min(loads)
        if home is None or (is_unbalanced and loads[home] == max(loads)):
            home = self.least_of(loads)
            self.homes.setdefault(key, home)
        return home

    def _key_of(self, request: int) -> int:
        """Return what requests of one session have in common."""
        if self.traffic.sessions is not None:
            return int(self.traffic.sessions[request])
        assert self.traffic.hashes is not None
        return next(iter(self.traffic.hashes[request]), -1)


class RouterKind(NamedTuple):
    """A router that can be asked for."""

    make: Callable[[Traffic], Router]
    description: str


ROUND_ROBIN = "round-robin"

ROUTERS = {
    ROUND_ROBIN: RouterKind(Router, "replicas in turn"),
    "least-loaded": RouterKind(LeastLoaded, "the fewest requests, as vLLM's balancer of data-parallel ranks"),
    "prefix": RouterKind(PrefixAware, "the least to compute and hold, as Dynamo's router of KV caches"),
    "sticky": RouterKind(Sticky, "that of the session, unless its queue is much longer, as SGLang's gateway"),
}
"""Routers by name."""

"""Routers: which replica of several a request goes to.

A router sees what a replica has to do at that time, and what its prefix cache holds; real ones see it 50 to 100 ms
later.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from ..errors import BadValue
from .prefix_cache import BlocksOfRequests, Tier
from .requests import Traffic
from .simulator import Replica

WAITING_WEIGHT = 4
"""Running requests that a waiting one counts as much as (vLLM, `DPLBAsyncMPClient`: waiting * 4 + running)."""

BALANCED_EXCESS, BALANCED_RATIO = 32, 1.5
"""Most requests, and ratio of requests, by which replicas may differ before a sticky router prefers the shortest queue
(SGLang's gateway, `--balance-abs-threshold` and `--balance-rel-threshold`)."""


PREFIX_SCORE, CACHE_SCORE, QUEUE_SCORE = 2.0, 1.0, 1.0
"""Weights of the scores of llm-d's endpoint picker (its guide to precise prefix-aware routing: prefix-cache-scorer,
kv-cache-utilization-scorer and queue-scorer)."""

KNOWN_BLOCK = 16
"""Tokens of a block of llm-d's approximate index."""

KNOWN_TOKENS = 31_250 * KNOWN_BLOCK
"""Tokens of prompts that llm-d's approximate index knows of a replica (`lruCapacityPerServer` blocks)."""


class Router:
    """Takes replicas in turn, whatever they have to do."""

    def __init__(self, traffic: Traffic, generator: np.random.Generator) -> None:
        self.traffic, self.generator = traffic, generator
        self.turn = 0

    def choose(self, replicas: Sequence[Replica], request: int) -> int:
        """Return the number of the replica that a request goes to."""
        chosen = self.turn % len(replicas)
        self.turn += 1
        return chosen

    def least_of(self, costs: Sequence[float]) -> int:
        """Return the number of the smallest cost; among equal ones they take turns."""
        self.turn += 1
        first = self.turn % len(costs)
        from_first = [*costs[first:], *costs[:first]]
        return (first + from_first.index(min(from_first))) % len(costs)


class Random(Router):
    """Chooses any replica, each as often as the others."""

    def choose(self, replicas: Sequence[Replica], request: int) -> int:
        """Return the number of the replica that a request goes to."""
        return int(self.generator.integers(len(replicas)))


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

    def __init__(self, traffic: Traffic, generator: np.random.Generator) -> None:
        super().__init__(traffic, generator)
        check_prefixes(traffic, "prefix")

    def choose(self, replicas: Sequence[Replica], request: int) -> int:
        """Return the number of the replica that a request goes to."""
        return self.least_of([replica.cost_blocks(request) for replica in replicas])


class Sticky(Router):
    """Sends all requests of a session, or of a first block of a prompt, to one replica while its queue is no longer."""

    def __init__(self, traffic: Traffic, generator: np.random.Generator) -> None:
        super().__init__(traffic, generator)
        if traffic.sessions is None and traffic.hashes is None:
            raise BadValue("`--router sticky` needs sessions: give `--workload`, or requests with hash_ids")
        self.homes: dict[int, Replica] = {}

    def choose(self, replicas: Sequence[Replica], request: int) -> int:
        """Return the number of the replica that a request goes to."""
        loads = [replica.waiting_requests + replica.running_requests for replica in replicas]
        key = self._key_of(request)
        home = next((number for number, replica in enumerate(replicas) if replica is self.homes.get(key)), None)
        excess = max(loads) - min(loads)
        is_unbalanced = excess > BALANCED_EXCESS and max(loads) > BALANCED_RATIO * min(loads)
        if home is None or (is_unbalanced and loads[home] == max(loads)):
            is_gone = home is None
            home = self.least_of(loads)
            if is_gone:
                self.homes[key] = replicas[home]
        return home

    def _key_of(self, request: int) -> int:
        """Return what requests of one session have in common."""
        if self.traffic.sessions is not None:
            return int(self.traffic.sessions[request])
        assert self.traffic.hashes is not None
        return next(iter(self.traffic.hashes[request]), -1)


def check_prefixes(traffic: Traffic, router: str) -> None:
    """Raise BadValue where nothing is known of the prefixes that a router looks for."""
    if traffic.hashes is None:
        raise BadValue(f"`--router {router}` needs prefixes: give `--workload`, or requests with hash_ids")


class Scored(Router):
    """Chooses the replica with the highest sum of scores: of the prompt that is known there, free cache and queue.

    (llm-d's endpoint picker.) What a replica is known to have are the prompts that were sent to it, the least recently
    used of which are forgotten.
    """

    def __init__(self, traffic: Traffic, generator: np.random.Generator) -> None:
        super().__init__(traffic, generator)
        check_prefixes(traffic, "scored")
        self.blocks = BlocksOfRequests(traffic, KNOWN_BLOCK).hashes
        self.indexes: dict[Replica, Tier] = {}
        self.known_blocks = KNOWN_TOKENS // traffic.hashed_tokens

    def choose(self, replicas: Sequence[Replica], request: int) -> int:
        """Return the number of the replica that a request goes to."""
        blocks = self.blocks[request]
        queues = [replica.waiting_requests for replica in replicas]
        shortest, longest = min(queues), max(queues)
        costs = []
        for number, replica in enumerate(replicas):
            known_blocks = self._known(replica)
            found_blocks = 0
            while found_blocks < len(blocks) and known_blocks.has(blocks[found_blocks]):
                found_blocks += 1
            score = PREFIX_SCORE * found_blocks / max(len(blocks), 1)
            score += CACHE_SCORE * (1 - replica.used_blocks / replica.total_blocks)
            score += QUEUE_SCORE * ((longest - queues[number]) / (longest - shortest) if longest > shortest else 1.0)
            costs.append(-score)
        chosen = self.least_of(costs)
        self._known(replicas[chosen]).add(blocks)
        return chosen

    def _known(self, replica: Replica) -> Tier:
        """Return what a replica is known to have."""
        return self.indexes.setdefault(replica, Tier(self.known_blocks, 0.0))


def router_generator(seed: int, stage: int = 0) -> np.random.Generator:
    """Return the generator of what a seed draws for the router of a stage: of no other stage, and of no requests.

    Requests, classes and adapters have the first four streams of a seed.
    """
    return np.random.default_rng(np.random.SeedSequence(seed).spawn(5 + stage)[4 + stage])


class RouterKind(NamedTuple):
    """A router that can be asked for."""

    make: Callable[[Traffic, np.random.Generator], Router]
    description: str


ROUND_ROBIN, RANDOM = "round-robin", "random"

ROUTERS = {
    ROUND_ROBIN: RouterKind(Router, "replicas in turn"),
    RANDOM: RouterKind(Random, "any replica, as a Service of Kubernetes, whose kube-proxy chooses at random"),
    "least-loaded": RouterKind(LeastLoaded, "the fewest requests, as vLLM's balancer of data-parallel ranks"),
    "prefix": RouterKind(PrefixAware, "the least to compute and hold, as Dynamo's router of KV caches"),
    "scored": RouterKind(Scored, "the best sum of known prefix, free cache and queue, as llm-d's endpoint picker"),
    "sticky": RouterKind(Sticky, "that of the session, unless its queue is much longer, as SGLang's gateway"),
}
"""Routers by name."""

"""Routers: which replica of several a request goes to."""

from __future__ import annotations

from collections.abc import Sequence

from .simulator import Replica


class Router:
    """Takes replicas in turn, whatever they have to do."""

    def __init__(self) -> None:
        self.turn = 0

    def choose(self, replicas: Sequence[Replica], request: int) -> int:
        """Return the number of the replica that a request goes to."""
        chosen = self.turn % len(replicas)
        self.turn += 1
        return chosen

"""What a deployment asks of whatever times its iterations; `paleo_lite.serving.backends` has all that answer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from ..engines.records.record import Server
from ..timing.activity import Activity
from .cache import CacheRoom
from .iteration_times import IterationTimes


class Backend(Protocol):
    """Times, memory and activity of a network on a device."""

    @property
    def description(self) -> str:
        """The model of the times, as text."""
        ...

    @property
    def is_forecast(self) -> bool:
        """Whether times are forecasts; otherwise they are bounds."""
        ...

    @property
    def weights(self) -> str:
        """Format of the weights."""
        ...

    @property
    def notes(self) -> Sequence[str]:
        """Remarks for the user."""
        ...

    @property
    def latency_deviations(self) -> dict[str, float]:
        """Standard deviations of the logarithms of latencies beside those of the iterations, by latency."""
        ...

    def tabulate(self, *, max_new_tokens: int, max_sequences: int, max_prompt: int, max_context: int) -> IterationTimes:
        """Return tables of iteration times up to these sizes; see `paleo_lite.serving.iteration_times.tabulate`."""
        ...

    def measure_room(self, engine: Server, *, mean_tokens: float, prompt_tokens: int) -> CacheRoom:
        """Return the room of the cache; see `paleo_lite.serving.cache.measure_room`."""
        ...

    def decode_activity(self, sequences: float, context: float, tokens_per_sequence: int = 1) -> Activity:
        """Return what a device does in an iteration without prompts.

        Parameters
        ----------
        sequences : float
            Decoding sequences of a replica.
        context : float
            Tokens in the cache of each.
        tokens_per_sequence : int
            Tokens that each computes.
        """
        ...

    def prompt_activity(self, tokens: float, cached: float = 0.0) -> Activity:
        """Return what a device does for a prompt; divided among attention groups, each does its part of it.

        Parameters
        ----------
        tokens, cached : float
            New tokens of the prompt, and tokens of it that are in the cache already.
        """
        ...

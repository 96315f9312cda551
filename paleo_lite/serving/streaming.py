"""The process of a server that streams the tokens of all answers to clients, one response after another."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..engines.records.record import Server

if TYPE_CHECKING:
    from .options import SimulationOptions
    from .requests import Traffic


def streams_answers(engine: Server, options: SimulationOptions, traffic: Traffic) -> bool:
    """Return whether clients wait for the process that streams: users of a closed loop, where its time is known.

    Pools have further processes between engines and clients, of which nothing is known.
    """
    is_pool = options.prompts_are_cached or options.keeps_until_read
    return engine.response_s > 0 and traffic.concurrency is not None and not is_pool


class Stream:
    """Time at which the process has sent what iterations have computed.

    It works beside the engine: its backlog grows while iterations give more responses than it sends in their time.
    """

    def __init__(self, engine: Server) -> None:
        self.response_s, self.interval = engine.response_s, engine.stream_interval
        self.is_done_s = 0.0  # time at which nothing is left to be sent
        self.last_s = 0.0  # seconds for the responses of the last iteration

    def send(self, end_s: float, iterations: int, iteration_s: float, decoding: int, first_tokens: int = 0) -> None:
        """Take the responses of equal iterations that end at a time: each decodes, and gives first tokens.

        The process begins with the responses of an iteration when it ends (Lindley 1952).
        """
        self.last_s = self.response_s * (decoding / self.interval + first_tokens)
        begin_s = end_s - (iterations - 1) * iteration_s
        done_s = max(self.is_done_s, begin_s) + iterations * self.last_s
        self.is_done_s = max(done_s, end_s + self.last_s)

    @property
    def seen_s(self) -> float:
        """Time at which clients have a response of the last iteration, on average."""
        return self.is_done_s - self.last_s / 2

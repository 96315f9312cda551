"""`Demand`: what the users of a deployment ask of it, from which its traffic is drawn."""

from __future__ import annotations

import math
from pathlib import Path

import msgspec

from ..errors import BadValue
from .deployment import Deployment
from .requests import Lengths, Traffic, generate_traffic, read_trace

DEFAULT_REQUESTS = 1000
"""Requests of an open loop."""

REQUESTS_PER_USER = 10
"""Requests of a closed loop per user, as benchmarks send them (InferenceX, aiperf), if `FEWEST_REQUESTS` are fewer."""

FEWEST_REQUESTS = 200
"""Fewest requests of a closed loop, so that percentiles exist."""


class Demand(msgspec.Struct, frozen=True):
    """Requests of users: their lengths, and when they arrive.

    Attributes
    ----------
    inputs, outputs : Lengths
        Tokens of prompts and of answers.
    rate_per_s : float or None
        Requests per second of an open loop, infinite if all arrive at once.
    concurrency : int or None
        Users of a closed loop, each of whom sends a request when the previous one is answered.
    trace : Path or None
        File of requests, instead of lengths and a rate.
    num_requests : int or None
        Number of requests; by default `DEFAULT_REQUESTS` per replica, or `REQUESTS_PER_USER`.
    arrivals : str
        Arrival process of the rate, one of `paleo_lite.serving.requests.ARRIVALS`.
    seed : int
        Seed of arrivals and lengths.
    """

    inputs: Lengths
    outputs: Lengths
    rate_per_s: float | None = None
    concurrency: int | None = None
    trace: Path | None = None
    num_requests: int | None = None
    arrivals: str = "poisson"
    seed: int = 0

    def traffic(self, deployment: Deployment) -> tuple[Traffic, str]:
        """Return the traffic of a deployment and its description.

        Raises
        ------
        BadValue
            If not exactly one of rate, users and trace is given, or a number is outside its range.
        BadFile
            If the trace cannot be read.
        """
        if self.trace is not None:
            if self.rate_per_s is not None or self.concurrency is not None or self.num_requests is not None:
                raise BadValue(
                    "`--requests` gives the traffic: leave `--rate`, `--concurrency` and `--num-requests` out"
                )
            traffic = read_trace(self.trace)
            return traffic, f"{len(traffic):,} requests of {self.trace.name}"
        traffic = generate_traffic(
            self.inputs,
            self.outputs,
            count=self._count(deployment.replicas),
            rate_per_s=self.rate_per_s,
            concurrency=self.concurrency,
            arrivals=self.arrivals,
            seed=self.seed,
            drift_apart=deployment.engine.mixes_phases,
        )
        return traffic, f"{self._describe(len(traffic))}, {_describe_lengths(traffic)}"

    def _count(self, replicas: int) -> int:
        """Return the number of requests."""
        if self.num_requests is not None:
            return self.num_requests
        if self.concurrency is not None:
            return max(FEWEST_REQUESTS * replicas, REQUESTS_PER_USER * self.concurrency)
        return DEFAULT_REQUESTS * replicas

    def _describe(self, count: int) -> str:
        """Return the users or the rate as text."""
        if self.concurrency is not None:
            return "1 user" if self.concurrency == 1 else f"{self.concurrency:,} users"
        assert self.rate_per_s is not None
        if math.isinf(self.rate_per_s):
            return f"{count:,} requests at once"
        return f"{self.rate_per_s:,g} requests/s ({self.arrivals})"


def _describe_lengths(traffic: Traffic) -> str:
    """Return the mean lengths as text, without the first answers of a closed loop, which begins in their middle."""
    whole = slice(traffic.warm_up if traffic.warm_up < len(traffic) else 0, None)
    mean_input = float(traffic.input_tokens[whole].mean())
    mean_output = float(traffic.output_tokens[whole].mean())
    return f"{mean_input:,.0f} input and {mean_output:,.0f} output tokens"

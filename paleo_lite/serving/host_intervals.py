"""What the interval of an engine's host adds to that of its kernels.

A simulation at an end of the interval takes kernels and host at an end. Both at the ends of their own intervals would
be further off than 90% of iterations, since they are independent (`paleo_lite.timing.intervals.log_reach`). So the host
is nearer to its expected time: as far as the interval of a whole decode step under the traffic asks for.

Hosts that were not fitted to servers, of old versions and beside layers that are timed one by one, are at the ends of
their own intervals: nothing says that what makes them slower leaves kernels alone.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from ..engines.records.record import SEQUENCE_FACTOR, Server
from ..timing.intervals import log_reach
from .iteration_times import IterationTimes, ScheduledTokens
from .requests import Traffic

ROUNDS = 8
"""Iterations of the mean number of sequences that run, by which it changes little."""


class HostWidths(NamedTuple):
    """Widths of the interval of a host at the ends of that of iterations, relative to its own, in logarithms."""

    low: float = 1.0
    high: float = 1.0

    def at(self, level: str) -> float:
        """Return the width at the end ``low`` or ``high``."""
        return self.low if level == "low" else self.high


def host_widths(
    tables: IterationTimes, engine: Server, sequences: int, context: float, tokens_per_sequence: int = 1
) -> HostWidths:
    """Return the widths of the interval of a fitted host beside iterations that decode some sequences."""
    if not tables.relative_low or not engine.overhead_s:
        return HostWidths()
    sequences = min(sequences, len(tables.decode_attention_s) - 1)
    of_kernels = _kernels_s(tables, sequences, context, tokens_per_sequence)
    of_iteration, of_sequences = _host_s(tables, engine, sequences)
    of_host = of_iteration + of_sequences
    share = of_host / (of_kernels + of_host)
    new_tokens = -(-sequences // tables.attention_data) * tokens_per_sequence
    widths = []
    for sign, relative, end_s in zip((-1, 1), (tables.relative_low, tables.relative_high), engine.overhead_range_s):
        kernels_log = abs(math.log(relative[min(new_tokens, len(relative) - 1)]))
        iteration_log = abs(math.log(end_s / engine.overhead_s))
        host_log = (of_iteration * iteration_log + of_sequences * math.log(SEQUENCE_FACTOR)) / of_host
        whole_log = float(log_reach(kernels_log, host_log, share))
        factor = (math.exp(sign * whole_log) - (1 - share) * math.exp(sign * kernels_log)) / share
        widths.append(sign * math.log(factor) / host_log if host_log else 1.0)
    return HostWidths(*widths)


def count_running(
    tables: IterationTimes, engine: Server, traffic: Traffic, replicas: int, tokens_per_sequence: int = 1
) -> int:
    """Return the sequences that run at the same time in a replica under some traffic (Little 1961)."""
    most = len(tables.decode_attention_s) - 1
    if traffic.concurrency is not None:
        return max(min(traffic.concurrency // replicas, most), 1)
    rate_per_s = traffic.rate_per_s
    if rate_per_s is None:  # all arrive at once
        return most
    tokens_per_s = rate_per_s / replicas * float(traffic.output_tokens.mean())
    context, sequences = traffic.mean_context, 1
    for _ in range(ROUNDS):
        iteration_s = _kernels_s(tables, sequences, context, tokens_per_sequence)
        iteration_s += sum(_host_s(tables, engine, sequences))
        sequences = max(min(round(tokens_per_s * iteration_s), most), 1)
    return sequences


def _kernels_s(tables: IterationTimes, sequences: int, context: float, tokens_per_sequence: int) -> float:
    return tables.iteration_s(ScheduledTokens(sequences, sequences * context), tokens_per_sequence)


def _host_s(tables: IterationTimes, engine: Server, sequences: int) -> tuple[float, float]:
    """Return the seconds of the host in an iteration, and those of its sequences."""
    return engine.overhead_s, engine.sequence_overhead_s * -(-sequences // tables.attention_data)

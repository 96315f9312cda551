"""The load up to which speculative decoding is faster than decoding one token per iteration."""

from __future__ import annotations

from ..engines.records.record import Server
from .deployment import PreparedDeployment
from .iteration_times import IterationTimes
from .options import Speculation


def most_sequences_that_pay(prepared: PreparedDeployment, context: float) -> int:
    """Return the largest number of sequences at which drafting decodes faster than one token per iteration does.

    At few sequences the weights are read once for all drafted tokens; at many the products limit, and tokens that are
    not accepted take their time from others. 0 if drafting never pays.
    """
    times, engine, options = prepared.at_level("expected")
    speculation = options.speculation
    largest = 0
    for sequences in _batches(engine.max_sequences):
        cached = sequences * context
        plain_s = decode_iteration_s(times, engine, Speculation(), sequences, cached)
        drafting_s = decode_iteration_s(times, engine, speculation, sequences, cached)
        if drafting_s / speculation.tokens_per_iteration < plain_s:
            largest = sequences
    return largest


def decode_iteration_s(
    times: IterationTimes, engine: Server, speculation: Speculation, sequences: int, cached_tokens: float
) -> float:
    """Return the time of an iteration that decodes some sequences without a pipeline, with its drafts and the host."""
    drafted = speculation.draft_length
    time_s = engine.overhead_s + engine.sequence_overhead_s * -(-sequences // times.attention_data)
    time_s += times.iteration_s(sequences, cached_tokens, tokens_per_sequence=drafted + 1)
    if speculation.draft is not None:
        time_s += speculation.draft_passes * speculation.draft.iteration_s(sequences, cached_tokens)
    return time_s


def _batches(largest: int) -> list[int]:
    """Return numbers of sequences up to the largest one, in steps of 12%."""
    batches = [1]
    while batches[-1] < largest:
        batches.append(min(max(batches[-1] + 1, round(1.12 * batches[-1])), largest))
    return batches


def drafting_notes(prepared: PreparedDeployment, context: float) -> tuple[str, ...]:
    """Return notes on the batch size up to which drafting is faster; none with pipeline parallelism."""
    if not prepared.deployment.options.speculation.draft_length or prepared.tables.pipeline > 1:
        return ()
    most = most_sequences_that_pay(prepared, context)
    if not most:
        return ("drafting does not pay at any number of sequences: leave `--speculation` out",)
    if most >= prepared.engine.max_sequences:
        return (f"drafting pays up to the {most:,} sequences that run at the same time in a replica",)
    return (f"drafting pays up to about {most:,} sequences per replica; more of them decode faster without it",)

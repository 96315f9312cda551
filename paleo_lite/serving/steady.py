"""The steady part of a simulation: what a deployment does in the long run, without its beginning and its end.

A simulation of requests that arrive at a rate begins with empty replicas and ends with the last answers, while nothing
arrives. Both belong to the number of requests that is simulated, not to the deployment.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from .outcomes import Outcome

LATEST_START = 0.5
"""Share of the time while requests arrive after which replicas are taken to be as full as later, at the latest."""


class MeasuredSpan(NamedTuple):
    """A part of a simulation."""

    start_s: float
    end_s: float
    requests_per_s: float  # that are answered
    output_tokens_per_s: float | None = None  # of them; None for those of answers of the mean length

    @property
    def seconds(self) -> float:
        """Length of the part."""
        return self.end_s - self.start_s


def whole_span(outcomes: Sequence[Outcome]) -> MeasuredSpan:
    """Return the span from the first arrival to the last answer."""
    start_s = min(float(outcome.arrival_s.min()) for outcome in outcomes)
    end_s = max(float(outcome.finish_s.max()) for outcome in outcomes)
    return MeasuredSpan(start_s, end_s, count_answers(outcomes) / (end_s - start_s))


def count_answers(outcomes: Sequence[Outcome]) -> float:
    """Return the number of answers, where a shortened answer counts as its share of a whole one.

    Where all answers are equally long, some are shortened so that users do not stay in step.
    """
    answers = sum(len(outcome.finish_s) for outcome in outcomes)
    whole = [outcome.output_tokens[~outcome.left_out] for outcome in outcomes if outcome.left_out is not None]
    lengths = np.unique(np.concatenate(whole)) if whole else np.empty(0)
    if len(lengths) != 1:
        return answers
    return sum(int(outcome.output_tokens.sum()) for outcome in outcomes) / int(lengths[0])


def steady_span(
    outcomes: Sequence[Outcome],
    rate_per_s: float | None,
    capacity: tuple[float, float] | None,  # requests and output tokens per second at saturation; None if unknown
    *,
    needs_answers: bool = True,  # whether a run of which no answer ends before the last arrival is measured whole
) -> MeasuredSpan:
    """Return the span in which requests arrive at a rate and replicas are as full as in the long run.

    Where they do not arrive at a rate, or none is answered before the last one arrives, it is the whole span. As many
    requests are answered as arrive, or as the capacity allows, with answers of the mean length of those of the
    capacity. Where that is not known, those are counted that end in the span.
    """
    whole_run = whole_span(outcomes)
    if rate_per_s is None:
        return whole_run
    arrival_s = np.concatenate([outcome.arrival_s for outcome in outcomes])
    finish_s = np.concatenate([outcome.finish_s for outcome in outcomes])
    last_s = float(arrival_s.max())
    filled_s = min(float(np.median(finish_s - arrival_s)), LATEST_START * (last_s - whole_run.start_s))
    start_s = whole_run.start_s + filled_s
    answered = int(((finish_s > start_s) & (finish_s <= last_s)).sum())
    if not answered and (needs_answers or capacity is None):
        return whole_run
    if capacity is None:
        return MeasuredSpan(start_s, last_s, min(answered / (last_s - start_s), rate_per_s))
    if capacity[0] < rate_per_s:
        return MeasuredSpan(start_s, last_s, *capacity)
    return MeasuredSpan(start_s, last_s, rate_per_s)


def last_of_middle(requests: int, running: int) -> int:
    """Return the place of the answer that ends the middle of a simulation, in the order of their ends."""
    return max(requests - running, running + 1) - 1


def middle_span(outcomes: Sequence[Outcome], running: int) -> MeasuredSpan:
    """Return the span after the first answers, and before the last ones.

    As many as run at the same time begin together, and as many end while no others wait.
    """
    finish_s = np.concatenate([outcome.finish_s for outcome in outcomes])
    order = np.argsort(finish_s)
    finish_s = finish_s[order]
    tokens = np.concatenate([outcome.output_tokens for outcome in outcomes])[order]
    begin, end = running - 1, last_of_middle(len(order), running)
    start_s, end_s = float(finish_s[begin]), float(finish_s[end])
    if end_s <= start_s:  # all end together
        begin, start_s = -1, min(float(outcome.arrival_s.min()) for outcome in outcomes)
    seconds = end_s - start_s
    answered = tokens[begin + 1 : end + 1]
    return MeasuredSpan(start_s, end_s, len(answered) / seconds, float(answered.sum()) / seconds)


class WorkInSpan(NamedTuple):
    """What some replicas have done in a span."""

    busy_s: float  # time in iterations
    cached_block_s: float  # integral of the blocks in use
    sequence_s: float  # integral of the sequences whose answer has begun over the iterations' time


def work_in(outcomes: Sequence[Outcome], span: MeasuredSpan) -> WorkInSpan:
    """Return what replicas have done in a span."""
    total = np.zeros(3)
    for outcome in outcomes:
        ends_s, *done = outcome.progress.T
        total += [np.diff(np.interp([span.start_s, span.end_s], ends_s, each))[0] for each in done]
    return WorkInSpan(*map(float, total))

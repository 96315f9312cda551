"""What a deployment asks of whatever times its iterations, and the tables that are made of its times.

A timer gives the seconds of the parts of an iteration at some sizes: of layers one by one
(`paleo_lite.serving.layer_timer`), of the kernels of an engine (`paleo_lite.serving.kernel_timer`), or of an engine on
one's own machine (`paleo_lite.serving.local_timer`). `tabulate` interpolates all of them alike.

Under a power limit below that of the data sheet, iterations are slower where they would draw more. Decoding draws less
than the rated power, so that a limit that is not far below it costs little; iterations with prompts draw all of it. The
factor of the times is taken by the number of new tokens.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import msgspec
import numpy as np

from ..engines.records.record import Server
from ..machines import Device
from ..timing.activity import Activity
from ..timing.energy import is_slowed, speed_under_limit
from .cache import CacheRoom
from .iteration_times import IterationTimes, ScheduledTokens, as_table, slowest_stages

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
    Sizes = NDArray[np.int64]

SHORTEST_CONTEXT = 32
"""Smallest tabulated context and prompt."""

LARGEST_KEPT = 65_536
"""Tokens of the largest tables that are kept, which bounds the memory of all of them."""

TYPICAL_CONTEXT = 2048
"""Context at which the power of an iteration is computed."""


class Limits(NamedTuple):
    """Largest sizes of an iteration."""

    tokens: int  # new tokens
    sequences: int  # decoding sequences
    prompt: int  # tokens of a prompt
    context: int  # tokens of a prompt and its answer
    # By how much the contexts of decoding sequences differ from their mean at most, where attention within chunks makes
    # a difference of it.
    spread: int = 0


class TimedParts(msgspec.Struct, frozen=True, eq=False, kw_only=True):
    """Seconds of the parts of an iteration at some sizes, by stage of the pipeline."""

    tokens: Sizes  # numbers of new tokens
    token_s: Floats  # what treats every token alike, shape (stages, tokens)
    head_s: Floats  # the head by the number of sampled sequences, shape (stages, tokens)
    sequences: Sizes  # numbers of decoding sequences
    decode_attention_s: Floats  # shape (contexts, stages, sequences)
    lengths: Sequence[int]  # lengths of prompts
    prompt_attention_s: Floats  # shape (lengths, stages)
    # 90% interval of an iteration relative to its time, by the number of new tokens from 0; empty without one.
    relative_low: Floats = np.empty(0)
    relative_high: Floats = np.empty(0)
    sent_s: Any = 0.0  # sends between the stages, by the number of new tokens
    # Shortest kernels of attention of prompts, once per iteration that computes any, however many: an engine launches
    # one kernel for all of them. Shape (stages,); None where they are a part of `prompt_attention_s`.
    prompt_s: Floats | None = None
    token_with_prompts_s: Floats | None = None  # `token_s` of iterations that compute prompts, where it is another
    # Experts by the new tokens of all attention groups, without and with prompts, where they are no part of `token_s`.
    experts_s: Floats | None = None
    experts_with_prompts_s: Floats | None = None
    attention_data: int = 1  # groups of devices that compute attention for sequences of their own


class Timer(ABC):
    """Times, memory and activity of a network on a device."""

    has_own_power_limit: ClassVar[bool] = False  # whether the times are those under the power limit of the device
    can_equal: ClassVar[bool] = False  # whether timers of the same times are equal, so that they share their tables

    @property
    @abstractmethod
    def description(self) -> str:
        """The model of the times, as text."""

    @property
    @abstractmethod
    def device(self) -> Device:
        """The device."""

    @property
    @abstractmethod
    def weights(self) -> str:
        """Format of the weights."""

    @property
    def is_forecast(self) -> bool:
        """Whether times are forecasts; otherwise they are bounds."""
        return True

    @property
    def notes(self) -> Sequence[str]:
        """Remarks for the user."""
        return ()

    @property
    def latency_deviations(self) -> dict[str, float]:
        """Standard deviations of the logarithms of latencies beside those of the iterations, by latency."""
        return {}

    def chunks(self, longest: int) -> Sequence[int]:
        """Return the lengths of the chunks within which the tokens of a long sequence attend to each other."""
        return ()

    @abstractmethod
    def time_parts(self, limits: Limits, contexts: Sequence[int]) -> TimedParts:
        """Return the seconds of the parts of iterations up to some limits."""

    @abstractmethod
    def measure_room(self, engine: Server, *, mean_tokens: float, prompt_tokens: int) -> CacheRoom:
        """Return the room of the cache for requests of a mean length; see `paleo_lite.serving.cache.measure_room`."""

    @abstractmethod
    def decode_activity(self, sequences: float, context: float, tokens_per_sequence: int = 1) -> Activity:
        """Return what a device does in an iteration in which the sequences of a replica decode some tokens each."""

    @abstractmethod
    def prompt_activity(self, tokens: float, cached: float = 0.0) -> Activity:
        """Return what a device does for new tokens of a prompt; divided among attention groups, each does its part."""


def tabulate(
    timer: Timer, *, max_new_tokens: int, max_sequences: int, max_prompt: int, max_context: int, spread: float = 0.0
) -> IterationTimes:
    """Return the tables of iterations up to these sizes, under the power limit of the device.

    The last ones are kept, with the simulations that use them, for timers that are equal and sizes that are not huge.
    """
    known_spread = round(spread) if spread and timer.chunks(max(max_context - 1, 1)) else 0
    limits = Limits(max(max_new_tokens, max_sequences), max_sequences, max_prompt, max_context, known_spread)
    is_kept = timer.can_equal and limits.tokens + limits.prompt <= LARGEST_KEPT
    return _kept_tables(timer, limits) if is_kept else _make_tables(timer, limits)


def _make_tables(timer: Timer, limits: Limits) -> IterationTimes:
    """Return the tables of iterations up to some sizes."""
    contexts = tabulated_contexts(limits.context, _bends(timer, limits))
    parts = timer.time_parts(limits, contexts)

    def over_tokens(seconds: Floats | None) -> Sequence[float]:
        return () if seconds is None else as_table(from_zero(parts.tokens, seconds, limits.tokens))

    def build(
        token_s: Floats, head_s: Floats, decode_s: Floats, attention_s: Floats, shortest_s: float
    ) -> IterationTimes:
        by_sequences = [from_zero(parts.sequences, row, limits.sequences) for row in decode_s]
        return IterationTimes(
            token_s=over_tokens(token_s),
            head_s=over_tokens(head_s),
            contexts=[float(context) for context in contexts],
            decode_attention_s=np.stack(by_sequences, axis=1).tolist(),
            prompt_attention_s=_interpolate_prompts(parts.lengths, attention_s),
            relative_low=[],
            relative_high=[],
            prompt_s=shortest_s,
        )

    stage_count = len(parts.token_s)
    prompt_s = np.zeros(stage_count) if parts.prompt_s is None else parts.prompt_s
    stages: tuple[IterationTimes, ...] = ()
    if stage_count > 1:
        decode_s, attention_s = parts.decode_attention_s.swapaxes(0, 1), parts.prompt_attention_s.T
        pieces = zip(parts.token_s, parts.head_s, decode_s, attention_s, prompt_s.tolist())
        stages = slowest_stages([build(*piece) for piece in pieces])
    undivided = build(
        parts.token_s.sum(axis=0) + parts.sent_s,
        parts.head_s.sum(axis=0),
        parts.decode_attention_s.sum(axis=1),
        parts.prompt_attention_s.sum(axis=1),
        float(prompt_s.sum()),
    )
    times = msgspec.structs.replace(
        undivided,
        relative_low=as_table(parts.relative_low),
        relative_high=as_table(parts.relative_high),
        stages=stages,
        pipeline=stage_count,
        experts_s=over_tokens(parts.experts_s),
        attention_data=parts.attention_data,
    )
    if parts.token_with_prompts_s is not None:
        with_prompts = msgspec.structs.replace(
            times,
            token_s=over_tokens(parts.token_with_prompts_s),
            experts_s=over_tokens(parts.experts_with_prompts_s),
        )
        times = msgspec.structs.replace(times, with_prompts=with_prompts)
    return times if timer.has_own_power_limit else _under_power_limit(times, timer)


_kept_tables = lru_cache(maxsize=8)(_make_tables)
"""`_make_tables`, which keeps the last ones."""


def _bends(timer: Timer, limits: Limits) -> list[int]:
    """Return the mean contexts at which the first and the last sequences begin another chunk."""
    longest = max(limits.context - 1, 1)
    starts = [start for chunk in timer.chunks(longest) for start in range(chunk, longest + limits.spread, chunk)]
    return [start + shift for start in starts for shift in (-limits.spread - 1, limits.spread - 1, limits.spread)]


def tabulated_contexts(largest: int, bends: Sequence[int]) -> list[int]:
    """Return the contexts to tabulate, by factors of 2, and at the bends between them."""
    contexts = powers_of_two(largest - 1)
    between = [context for context in bends if contexts[0] < context < contexts[-1]]
    contexts = sorted({*contexts, *between})
    return contexts if len(contexts) > 1 else [*contexts, 2]


def powers_of_two(largest: int) -> list[int]:
    """Return 1, `SHORTEST_CONTEXT` and its multiples by factors of 2, and the largest size."""
    sizes = [1]
    while sizes[-1] < largest:
        sizes.append(min(max(2 * sizes[-1], SHORTEST_CONTEXT), largest))
    return sizes


def from_zero(sizes: Any, values: Any, largest: int, first: float = 0.0) -> Floats:
    """Return the values by size from 0, linear between the given ones."""
    every: Floats = np.interp(np.arange(largest + 1), sizes, values)
    every[0] = first
    return every


def _interpolate_prompts(lengths: Sequence[int], seconds: Floats) -> Sequence[float]:
    """Return the seconds of attention of a prompt by its length from 0; in between, logarithms are linear."""
    all_lengths = np.arange(1, lengths[-1] + 1)
    interpolated = np.exp(np.interp(np.log(all_lengths), np.log(lengths), np.log(np.maximum(seconds, 1e-12))))
    return as_table(np.concatenate([[0.0], interpolated]))


def _under_power_limit(times: IterationTimes, timer: Timer) -> IterationTimes:
    """Return the times under the power limit and at the clock of the device; the same ones if neither slows it."""
    if not is_slowed(timer.device):
        return times
    largest = len(times.token_s) - 1
    sizes = np.unique(np.append(2 ** np.arange(int(np.log2(largest)) + 1), largest))
    speeds = [_step_speed(times, timer, int(size)) for size in sizes]
    every = np.interp(np.arange(largest + 1), sizes, speeds)
    return msgspec.structs.replace(
        times.times_factors(as_table(1 / every)),
        relative_low=times.relative_low,
        relative_high=times.relative_high,
        limited_speed=as_table(every),
    )


def _step_speed(times: IterationTimes, timer: Timer, tokens: int) -> float:
    """Return the speed of an iteration of so many new tokens, relative to that without a limit or a locked clock.

    More tokens than sequences can decode are those of a prompt.
    """
    context = min(TYPICAL_CONTEXT, int(times.contexts[-1]))
    if -(-tokens // times.attention_data) < len(times.decode_attention_s):
        activity = timer.decode_activity(tokens, context)
        time_s = times.iteration_s(ScheduledTokens(tokens, float(tokens * context)))
    else:
        tokens = min(tokens, len(times.prompt_attention_s) - 1)
        activity = timer.prompt_activity(tokens)
        time_s = times.iteration_s(ScheduledTokens(0, 0.0, [(0, tokens)], 1))
    return float(speed_under_limit(timer.device, activity.shares_of(time_s)))

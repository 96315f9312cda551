"""Options of a simulation beside the engine: prefix cache and speculative decoding."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from ..errors import BadValue
from ..units import check_integer
from .drafts import HEADS
from .iteration_times import IterationTimes


class DraftPass(NamedTuple):
    """Passes of what drafts that are alike."""

    times: int  # number of such passes
    tokens: int  # that are computed of each sequence
    sampled: int  # of which tokens are sampled


class Speculation(msgspec.Struct, frozen=True):
    """Speculative decoding (Leviathan et al. 2023)."""

    draft_length: int = 0  # tokens drafted per iteration; 0 without speculation
    acceptance: float = 0.0  # probability that a drafted token is accepted
    # Share of the iterations in which the first, second, ... drafted token is accepted, as engines print it, instead of
    # one acceptance; empty if that is the same at every position.
    accepted_at: tuple[float, ...] = ()
    # Iteration times of what drafts; None if drafting takes no time on the device, as with n-grams.
    draft: IterationTimes | None = None
    # Heads of the network that draft, one of `paleo_lite.serving.drafts.HEADS`; empty if none do.
    heads: str = ""
    drafts_at_once: bool = False  # whether one pass of `draft` gives all tokens; otherwise each takes one

    def __post_init__(self) -> None:
        check_integer("`--speculation tokens`", self.draft_length, 0)
        if not 0 <= self.acceptance < 1:
            raise BadValue(f"`--speculation acceptance` must be a probability >= 0 and < 1 (got {self.acceptance:g})")
        if self.acceptance and not self.draft_length:
            raise BadValue("`--speculation acceptance` needs tokens=N, the tokens drafted per iteration")

        if self.accepted_at and len(self.accepted_at) != self.draft_length:
            raise BadValue(
                f"`--speculation acceptance` takes one share, or one per drafted token: {self.draft_length} of them "
                f"(got {len(self.accepted_at)})"
            )
        if list(self.accepted_at) != sorted(self.accepted_at, reverse=True):
            raise BadValue(
                "`--speculation acceptance` by position falls: a token is accepted after those before it only"
            )

    @property
    def draft_passes(self) -> tuple[DraftPass, ...]:
        """Passes of what drafts in an iteration.

        The first one computes all tokens that were verified, of which some may be rejected; where it gives all drafted
        tokens, also a place for each further one. (vLLM, ``vllm/v1/spec_decode/llm_base_proposer.py``.)
        """
        length = self.draft_length
        if not length:
            return ()
        if self.drafts_at_once:
            return (DraftPass(1, (length + 1) + (length - 1), length),)
        first = DraftPass(1, length + 1, 1)
        return (first, DraftPass(length - 1, 1, 1)) if length > 1 else (first,)

    @property
    def most_tokens(self) -> int:
        """Tokens of a sequence that an iteration, or a pass of what drafts, computes at most."""
        return 2 * self.draft_length if self.drafts_at_once else self.draft_length + 1

    @property
    def tokens_per_iteration(self) -> float:
        """Expected tokens per sequence and iteration: ``(1 - a^(n + 1)) / (1 - a)`` (equation 1)."""
        if self.accepted_at:
            return 1 + sum(self.accepted_at)
        return (1 - self.acceptance ** (self.draft_length + 1)) / (1 - self.acceptance)


def make_speculation(draft_length: int, acceptance: float | Sequence[float], heads: str = "") -> Speculation:
    """Return speculative decoding with an acceptance, or with one of each position."""
    at_once = bool(heads) and HEADS[heads].drafts_at_once
    if heads and not draft_length:
        raise BadValue("`--speculation draft` needs tokens=N, the tokens drafted per iteration")
    if isinstance(acceptance, (int, float)):
        return Speculation(draft_length, acceptance, heads=heads, drafts_at_once=at_once)
    return Speculation(draft_length, accepted_at=tuple(acceptance), heads=heads, drafts_at_once=at_once)


class SimulationOptions(msgspec.Struct, frozen=True):
    """Options of a simulation beside the engine."""

    # Fraction of every prompt that is found in the prefix cache: its tokens are not computed, and their blocks are
    # shared.
    prefix_hit_rate: float = 0.0
    speculation: Speculation = Speculation()  # speculative decoding
    # Whether prompts arrive with their keys and values, as at the decode workers of disaggregated serving.
    prompts_are_cached: bool = False
    # Whether blocks of a computed prompt are kept until they are read, as at the prefill workers.
    keeps_until_read: bool = False
    # Whether it is left to chance which rank computes a prompt with attention data parallelism, as in prefill pools.
    draws_ranks: bool = False
    adapter_slots: int = 0  # LoRA adapters in a batch at a time; 0 without adapters
    adapter_load_s: float = 0.0  # in which one is copied to a slot
    # Requests that wait at most, and the seconds after which one of them is given up; None for no limit.
    most_queued: int | None = None
    waiting_timeout_s: float | None = None
    seed: int = 0  # of what is left to chance: delays, ranks, routers, users who go on, replicas that fail
    records_steps: bool = False  # whether what replicas do is kept, for a timeline

    def __post_init__(self) -> None:
        if not 0 <= self.prefix_hit_rate < 1:
            raise BadValue(f"`--prefix-hit-rate` must be a fraction >= 0 and < 1 (got {self.prefix_hit_rate:g})")

"""Published drafts of networks: heads that draft tokens, and how many of these were accepted.

Heads are timed as a block of the network with its head. What is accepted depends on the text: here mostly that of code
at a temperature of 1. Three tokens of one EAGLE-3 yield 2.0 tokens in role play and 3.3 in code (vLLM, blog of 2026).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple


class Heads(NamedTuple):
    """A kind of heads that draft."""

    drafts_at_once: bool  # whether one pass gives all tokens; otherwise each token takes one
    description: str
    # Whether they take the memory of a block of the network. Heads that were trained later are other blocks, mostly
    # smaller ones, whose sizes are in no config of the network.
    is_block: bool = False


HEADS = {
    "mtp": Heads(False, "a block that the network was trained with, once per token (multi-token prediction)", True),
    "eagle3": Heads(False, "a block that was trained for the network, once per token (EAGLE-3)"),
    "parallel": Heads(True, "a block that was trained for the network, once for all tokens (P-EAGLE, DSpark)"),
}
"""Kinds of heads by name."""


def heads_of(draft: Any) -> str:
    """Return the kind of heads that the value of `--speculation draft` names; empty if it is a network or nothing."""
    return draft if isinstance(draft, str) and draft in HEADS else ""


class PublishedDraft(NamedTuple):
    """Heads of a network, and the tokens that an iteration yields with them."""

    heads: str  # one of `HEADS`
    tokens: Mapping[int, float]  # per iteration, the verified one included, by the number of drafted ones
    source: str
    checkpoint: str = ""  # of the heads; empty if they are in that of the network
    method: str = ""  # name under which engines start them; empty for that of the heads


_GOLDEN = "SemiAnalysisAI/InferenceX, golden_al_distribution (code of SPEED-Bench at temperature 1, thinking)"
_P_EAGLE = "vLLM, blog on P-EAGLE of 2026: SPEED-Bench on a B200"

PUBLISHED: Mapping[str, tuple[PublishedDraft, ...]] = {
    "deepseek-v4-pro": (PublishedDraft("mtp", {1: 1.79, 2: 2.27, 3: 2.49}, _GOLDEN),),
    "deepseek-r1": (
        PublishedDraft(
            "mtp", {1: 1.81, 3: 2.49},
            "https://github.com/vllm-project/vllm/pull/12755 (0.81 to 0.82 of one token), and 1.49 of three",
        ),
    ),
    "glm-5.2": (PublishedDraft("mtp", {1: 1.84, 2: 2.50, 3: 2.99, 4: 3.33, 5: 3.61}, _GOLDEN),),
    "kimi-k2.5": (
        PublishedDraft(
            "eagle3", {1: 1.83, 2: 2.43, 3: 2.88, 4: 3.24, 5: 3.46}, _GOLDEN, "lightseekorg/kimi-k2.5-eagle3-mla"
        ),
    ),
    "kimi-k3": (
        PublishedDraft(
            "parallel", {1: 1.84, 2: 2.45, 3: 2.87, 5: 3.44, 7: 3.78}, _GOLDEN, "Inferact/Kimi-K3-DSpark", "dspark"
        ),
    ),
    "minimax-m3": (
        PublishedDraft("eagle3", {1: 1.78, 2: 2.38, 3: 2.83, 4: 3.11, 5: 3.35}, _GOLDEN, "Inferact/MiniMax-M3-EAGLE3"),
    ),
    "qwen3.5-397b-a17b": (PublishedDraft("mtp", {1: 1.93, 2: 2.73, 3: 3.39, 4: 3.97, 5: 4.41}, _GOLDEN),),
    "gpt-oss-20b": (
        PublishedDraft("eagle3", {3: 2.24, 7: 2.59}, _P_EAGLE, "RedHatAI/gpt-oss-20b-speculator.eagle3"),
        PublishedDraft("parallel", {3: 2.87, 7: 3.38}, _P_EAGLE, "amazon/gpt-oss-20b-p-eagle", "p-eagle"),
    ),
}  # fmt: skip
"""Published drafts by network."""


def find_published(network: str, heads: str) -> PublishedDraft | None:
    """Return the published heads of a network of some kind; None if there are none."""
    return next((draft for draft in PUBLISHED.get(network, ()) if draft.heads == heads), None)


def acceptance_of(tokens: float, drafted: int) -> float:
    """Return the acceptance with which so many tokens per iteration come from so many drafted ones.

    (Leviathan et al. 2023, equation 1, solved by bisection.)
    """
    low, high = 0.0, 1.0 - 1e-9
    for _ in range(60):
        middle = (low + high) / 2
        if (1 - middle ** (drafted + 1)) / (1 - middle) < tokens:
            low = middle
        else:
            high = middle
    return low

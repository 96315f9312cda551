"""How a router loads the experts of a mixture: rows per expert, experts with a token, and the busiest device.

Two distributions of the popularity of experts: ``uniform``, in which every expert is as likely as any other, and a
power law, in which the number of tokens of an expert is drawn from a density proportional to ``x^-alpha`` between one
token and four fifths of all tokens. The latter is ``power_law_ALPHA`` of NVIDIA's aiconfigurator, which measures layers
of experts with exponents of 1.01 and 1.2 (https://github.com/ai-dynamo/aiconfigurator, ``sample_power_law`` in its
collectors).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from ..errors import BadValue

UNIFORM = 0.0
"""Exponent of the uniform distribution."""

LARGEST_EXPONENT = 4.0
"""Largest exponent of a power law: nearly all experts then have a single token."""

LARGEST_SHARE = 0.8
"""Largest share of all tokens that an expert gets under a power law."""

_STANDARD_MAXIMA = np.array([0.0, 0.564, 1.029, 1.424, 1.766, 2.070, 2.344, 2.594, 2.826])
"""Expected maximum of 1, 2, 4, ..., 256 standard normal numbers (Tippett 1925)."""


def parse_expert_load(text: str) -> float:
    """Return the exponent of a distribution of the load: ``uniform`` or ``power-law:ALPHA``.

    Raise BadValue if the text is neither, or the exponent not between 0 and `LARGEST_EXPONENT`.
    """
    name, _, exponent = text.partition(":")
    if text == "uniform":
        return UNIFORM
    try:
        alpha = float(exponent) if name == "power-law" else 0.0
    except ValueError:
        alpha = 0.0
    if not 0 < alpha <= LARGEST_EXPONENT:
        raise BadValue(
            f"`--expert-load` must be uniform or power-law:ALPHA with an exponent > 0 and <= {LARGEST_EXPONENT:g}, "
            f"such as power-law:1.2 (got {text!r})"
        )
    return alpha


class ExpertLoad(NamedTuple):
    """Load of the busiest device."""

    rows: Any  # rows that its experts compute
    distinct: Any  # its experts that have at least one row


def expert_load(
    tokens: Any,  # tokens that are routed, on all devices together; may be an array
    *,
    active: int,  # experts per token
    experts: int,  # number of experts
    ranks: int = 1,  # devices that the experts are divided among
    alpha: float = UNIFORM,  # exponent of the popularity of experts; 0 for the uniform distribution
    # Whether tokens choose experts at random; otherwise their number per expert is as equal as possible.
    is_random: bool = True,
) -> ExpertLoad:
    """Return the expected load of the busiest of the devices that divide the experts.

    The load of a device is the sum over its experts; that of the busiest one exceeds the mean by the expected maximum
    of as many normal numbers as there are devices, times the standard deviation of the sum.
    """
    tokens = np.atleast_1d(np.asarray(tokens, dtype=np.float64))
    own_experts = max(experts // ranks, 1)
    shares = _popularity(tokens, experts, alpha)
    counts = np.minimum(tokens[:, None] * active * shares, tokens[:, None])
    mean = counts.mean(axis=1)
    variance = counts.var(axis=1)
    if is_random:
        # A token chooses an expert with probability count / tokens.
        probability = counts / tokens[:, None]
        variance = variance + (counts * (1 - probability)).mean(axis=1)
    maximum = np.interp(np.log2(ranks), np.arange(len(_STANDARD_MAXIMA)), _STANDARD_MAXIMA)
    rows = own_experts * mean + maximum * np.sqrt(own_experts * variance)
    rows = np.minimum(rows, tokens * min(active, own_experts))
    busier_counts = counts * (rows / np.maximum(own_experts * mean, 1e-12))[:, None]
    if is_random:
        probability = np.minimum(busier_counts / tokens[:, None], 1 - 1e-12)
        occupied = 1 - (1 - probability) ** tokens[:, None]
    else:
        occupied = np.minimum(busier_counts, 1.0)
    distinct = own_experts * occupied.mean(axis=1)
    distinct = np.clip(distinct, np.minimum(1.0, rows), np.minimum(own_experts, np.maximum(rows, 1.0)))
    return ExpertLoad(rows, np.maximum(distinct, np.minimum(rows, 1.0)))


def _popularity(tokens: Any, experts: int, alpha: float) -> Any:
    """Return the share of the rows that each expert gets, shape (numbers of tokens, experts)."""
    if alpha == UNIFORM:
        return np.full((len(tokens), experts), 1.0 / experts)
    quantiles = (np.arange(experts) + 0.5) / experts
    largest = np.maximum(LARGEST_SHARE * tokens, 1.0)[:, None]
    if alpha == 1.0:
        drawn = largest**quantiles
    else:
        drawn = ((largest ** (1 - alpha) - 1) * quantiles + 1) ** (1 / (1 - alpha))
    return drawn / drawn.sum(axis=1, keepdims=True)

"""Lengths of prompts and answers in tokens: constant, drawn from a distribution, or those of a published data set."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from ..errors import BadQuantity, BadValue, UnknownName
from ..units import parse_quantity, spell_out_tokens

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
    Ints = NDArray[np.int64]

LARGEST_NORMAL = 0.5
"""Largest deviation of lengths that are drawn from a normal distribution, relative to the mean."""

MAX_TOKENS = 10_000_000


class Dataset(msgspec.Struct, frozen=True):
    """Lengths of a published data set."""

    input_quantiles: tuple[tuple[float, float], ...]  # pairs of a probability and tokens, from the median on
    output_quantiles: tuple[tuple[float, float], ...]
    source: str  # where the quantiles are published


DATASETS: dict[str, Dataset] = {
    "azure-conversation": Dataset(
        ((0.5, 1020.0), (0.95, 4083.0), (0.99, 4142.0)),
        ((0.5, 129.0), (0.95, 451.0), (0.99, 601.0)),
        "19,366 requests of AzureLLMInferenceTrace_conv.csv of 2023 (github.com/Azure/AzurePublicDataset, CC-BY); the "
        "medians are those of Patel et al. 2024 (Splitwise, ISCA, arXiv 2311.18677), section III-A",
    ),
    "azure-code": Dataset(
        ((0.5, 1469.0), (0.99, 7436.0)),
        ((0.5, 13.0), (0.99, 249.0)),
        "8,819 requests of AzureLLMInferenceTrace_code.csv of 2023 (github.com/Azure/AzurePublicDataset, CC-BY); Patel "
        "et al. 2024 (Splitwise, ISCA, arXiv 2311.18677), section III-A, give medians of 1500 and 13",
    ),
}
"""Data sets by name. Lengths of prompts and of answers are drawn independently."""


class Lengths(msgspec.Struct, frozen=True):
    """Distribution of a number of tokens."""

    mean: float  # of a data set the median
    deviation: float = 0.0  # standard deviation; 0 for a constant
    # At least two pairs of a probability and tokens, which replace mean and deviation. Between them, and below the
    # first, the logarithm of the length is linear in the normal score; above the last it is constant.
    quantiles: tuple[tuple[float, float], ...] = ()

    @property
    def is_constant(self) -> bool:
        """Whether all lengths are the same."""
        return not self.deviation and not self.quantiles

    def draw(self, count: int, generator: np.random.Generator) -> Ints:
        """Draw lengths of at least 1 token, shape (count,)."""
        if self.quantiles:
            from scipy.special import ndtri

            scores = ndtri([probability for probability, _ in self.quantiles])
            logarithms = np.log([tokens for _, tokens in self.quantiles])
            drawn_scores = generator.standard_normal(count)
            first_slope = (logarithms[1] - logarithms[0]) / (scores[1] - scores[0])
            below_first = np.minimum(drawn_scores - scores[0], 0.0) * first_slope
            drawn = np.exp(np.interp(drawn_scores, scores, logarithms) + below_first)
        elif self.deviation:
            drawn = self._draw_around_mean(count, generator)
        else:
            drawn = np.full(count, self.mean)
        tokens: Ints = np.maximum(np.rint(drawn), 1).astype(np.int64)
        return tokens

    def _draw_around_mean(self, count: int, generator: np.random.Generator) -> Floats:
        """Draw from a normal distribution, as benchmarks do, or where it would often be negative from a gamma one.

        Lengths below 1 token are set to 1, which would raise the mean of a wide normal distribution.
        """
        if self.deviation <= LARGEST_NORMAL * self.mean:
            return generator.normal(self.mean, self.deviation, count)
        scale = self.deviation**2 / self.mean
        return generator.gamma(self.mean / scale, scale, count)


def parse_lengths(
    value: int | str | Lengths,
    option: str,  # for the error message, such as ``--input-tokens``
    is_input: bool,  # whether the input lengths of a data set are wanted, else the output lengths
) -> Lengths:
    """Parse a number of tokens, ``1024``, with its deviation, ``"1024:256"``, or the name of a data set of `DATASETS`.

    Raise BadValue if a number is below 1 or not a number, and UnknownName if there is no such data set.
    """
    if isinstance(value, Lengths):
        return value
    text = str(value).strip()
    if text and text[0].isalpha():
        if text not in DATASETS:
            raise UnknownName("data set", text, DATASETS)
        dataset = DATASETS[text]
        quantiles = dataset.input_quantiles if is_input else dataset.output_quantiles
        return Lengths(quantiles[0][1], quantiles=quantiles)
    mean_text, colon, deviation_text = spell_out_tokens(text).partition(":")
    try:
        mean = parse_quantity(mean_text, "")
        deviation = parse_quantity(deviation_text, "") if colon else 0.0
    except BadQuantity:
        mean = deviation = math.nan
    if not (1 <= mean <= MAX_TOKENS and 0 <= deviation <= MAX_TOKENS):
        raise BadValue(
            f"`{option}` must be tokens from 1 to {MAX_TOKENS:,}, as 1024 or 2k, or mean:std, as 1024:256 "
            f"(got {value!r})"
        )
    return Lengths(mean, deviation)

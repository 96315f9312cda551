"""Quantities of text generation: tokens per second, KV cache, and the least compute-bound batch size."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from ..counting import GENERATION_PHASES
from ..counting.kinds import cached_elements
from ..counting.work import COLUMNS, PASSES
from ..units import element_bytes
from .workload import matrix_elements

if TYPE_CHECKING:
    from .prediction import Prediction

STATIC_BATCH_NOTE = "a static batch: all sequences have the same length, and no scheduler adds or removes any"
"""Note of every prediction of text generation."""


def tokens_per_batch(prediction: Prediction) -> int | None:
    """Return the number of tokens that a batch computes; None for networks without sequences."""
    lengths = prediction.workload.network.lengths
    return None if lengths is None else prediction.batch_size * lengths.queries


def tokens_per_s(prediction: Prediction) -> float | None:
    """Return the tokens per second on one device; None for networks without sequences."""
    tokens = tokens_per_batch(prediction)
    if tokens is None or not prediction.time_s:
        return None
    return tokens / prediction.time_s


def cache_bytes_per_sequence(prediction: Prediction) -> int:
    """Return the bytes of the KV cache of one sequence."""
    layers = prediction.layers
    elements = cached_elements(layers)
    return elements * element_bytes(prediction.precision)


def compute_bound_batch_size(prediction: Prediction) -> int | None:
    """Return the least batch size at which the peak, not the bandwidth, bounds the products with the weights.

    With f FLOPs and a bytes of activations per sequence and w bytes of weights, it is the batch size b with
    ``f b / peak = (w + a b) / bandwidth``. None if the activations alone take longer than the arithmetic.
    """
    work = prediction.workload.work
    products = [index for index, layer in enumerate(prediction.layers) if matrix_elements(layer)]
    inference = PASSES.index("inference")

    def total(counts: Any, *columns: str) -> float:
        return float(sum(counts[COLUMNS.index(name), inference, products].sum() for name in columns))

    weights_s = total(work.fixed, "bytes_read", "bytes_written") / prediction.bandwidth_bytes_per_s
    compute_s = total(work.per_sample, "flops") / prediction.peak.per_s
    activations_s = total(work.per_sample, "bytes_read", "bytes_written") / prediction.bandwidth_bytes_per_s
    difference_s = compute_s - activations_s  # per sequence
    return math.ceil(weights_s / difference_s) if difference_s > 0 else None


def generation_dict(prediction: Prediction) -> dict[str, Any] | None:
    """Return the documented JSON; None in phases other than prefill and decode."""
    lengths = prediction.workload.network.lengths
    if lengths is None or prediction.phase not in GENERATION_PHASES:
        return None
    rate_per_s = tokens_per_s(prediction)
    return {
        "first_token_s": prediction.time_s if prediction.phase == "prefill" else None,
        "token_s": prediction.time_s if prediction.phase == "decode" else None,
        "tokens_per_s_per_sequence": None if rate_per_s is None else rate_per_s / prediction.batch_size,
        "cache_bytes_per_sequence": cache_bytes_per_sequence(prediction),
        "compute_bound_from_batch": compute_bound_batch_size(prediction) if prediction.phase == "decode" else None,
        "weights": prediction.workload.weights or prediction.precision,
    }

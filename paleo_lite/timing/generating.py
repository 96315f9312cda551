"""What else is asked of networks that write text: tokens per second, the cache, what bounds products with weights."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from ..counting import GENERATION_PHASES
from ..counting.work import COLUMNS, PASSES
from ..units import element_bytes
from .workload import matrix_elements

if TYPE_CHECKING:
    from .prediction import Prediction

STATIC_BATCH_NOTE = "a static batch: every sequence has as many tokens, and no scheduler adds or takes any"
"""What every answer says."""


def tokens_per_batch(prediction: Prediction) -> int | None:
    """Tokens that a batch computes; None for networks that read no sequences."""
    lengths = prediction.workload.network.lengths
    return None if lengths is None else prediction.batch_size * lengths.queries


def tokens_per_s(prediction: Prediction) -> float | None:
    """Tokens per second on one device; None for networks that read no sequences."""
    tokens = tokens_per_batch(prediction)
    return tokens / prediction.time_s if tokens is not None and prediction.time_s else None


def cache_bytes(prediction: Prediction) -> int:
    """Bytes of keys and values of one sequence."""
    layers = prediction.layers
    elements = sum(math.prod(shape) for layer in layers if layer.kind == "cache" for shape in layer.outputs)
    return elements * element_bytes(prediction.precision)


def compute_bound_batch_size(prediction: Prediction) -> int | None:
    """The batch from which on the data sheet's peak, not its bandwidth, bounds the products with the weights.

    They compute f FLOPs for each sequence and read w bytes and a for each: ``f b / peak = (w + a b) / bandwidth``.
    None where the activations alone take longer than the arithmetic.
    """
    work = prediction.workload.work
    chosen = [index for index, layer in enumerate(prediction.layers) if matrix_elements(layer)]
    inference = PASSES.index("inference")

    def total(part: Any, *columns: str) -> float:
        return float(sum(part[COLUMNS.index(name), inference, chosen].sum() for name in columns))

    moved = ("bytes_read", "bytes_written")
    weights_s = total(work.fixed, *moved) / prediction.bandwidth_bytes_per_s
    each_s = total(work.per_sample, "flops") / prediction.peak.per_s
    each_s -= total(work.per_sample, *moved) / prediction.bandwidth_bytes_per_s
    return math.ceil(weights_s / each_s) if each_s > 0 else None


def generation_dict(prediction: Prediction) -> dict[str, Any] | None:
    """The documented JSON; None in other phases."""
    lengths = prediction.workload.network.lengths
    if lengths is None or prediction.phase not in GENERATION_PHASES:
        return None
    per_s = tokens_per_s(prediction)
    return {
        "first_token_s": prediction.time_s if prediction.phase == "prefill" else None,
        "token_s": prediction.time_s if prediction.phase == "decode" else None,
        "tokens_per_s_per_sequence": None if per_s is None else per_s / prediction.batch_size,
        "cache_bytes_per_sequence": cache_bytes(prediction),
        "compute_bound_from_batch": compute_bound_batch_size(prediction) if prediction.phase == "decode" else None,
        "weights": prediction.workload.weights or prediction.precision,
    }

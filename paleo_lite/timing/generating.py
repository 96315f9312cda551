"""Quantities of text generation: tokens per second, KV cache, and the least compute-bound batch size."""

from __future__ import annotations

import math
from typing import Any

from ..counting import GENERATION_PHASES
from ..counting.kinds import cached_elements
from ..counting.work import COLUMNS, PASSES
from ..units import element_bytes
from .workload import Workload, matrix_elements

STATIC_BATCH_NOTE = "a static batch: all sequences have the same length, and no scheduler adds or removes any"
"""Note of every prediction of text generation."""


def tokens_per_batch(workload: Workload) -> int | None:
    """Return the number of tokens that a batch computes; None for networks without sequences."""
    lengths = workload.network.lengths
    return None if lengths is None else workload.batch_size * lengths.queries


def cache_bytes_per_sequence(workload: Workload) -> int:
    """Return the bytes of the KV cache of one sequence."""
    return cached_elements(workload.layers) * element_bytes(workload.precision)


def compute_bound_batch_size(workload: Workload, flops_per_s: float, bandwidth_bytes_per_s: float) -> int | None:
    """Return the least batch size at which the peak, not the bandwidth, bounds the products with the weights.

    With f FLOPs and a bytes of activations per sequence and w bytes of weights, it is the batch size b with
    ``f b / peak = (w + a b) / bandwidth``. None if the activations alone take longer than the arithmetic.
    """
    work = workload.work
    products = [index for index, layer in enumerate(workload.layers) if matrix_elements(layer)]
    inference = PASSES.index("inference")

    def total(counts: Any, *columns: str) -> float:
        return float(sum(counts[COLUMNS.index(name), inference, products].sum() for name in columns))

    weights_s = total(work.fixed, "bytes_read", "bytes_written") / bandwidth_bytes_per_s
    compute_s = total(work.per_sample, "flops") / flops_per_s
    activations_s = total(work.per_sample, "bytes_read", "bytes_written") / bandwidth_bytes_per_s
    difference_s = compute_s - activations_s  # per sequence
    return math.ceil(weights_s / difference_s) if difference_s > 0 else None


def generation_figures(
    workload: Workload,
    time_s: float,  # of the phase
    flops_per_s: float,  # at the peak
    bandwidth_bytes_per_s: float,
    *,
    cache_bytes_of_kernels: float | None,  # of one sequence, as an engine stores them; None where layers are timed
) -> dict[str, Any] | None:
    """Return the documented JSON of text generation; None in phases other than prefill and decode."""
    tokens, phase = tokens_per_batch(workload), workload.phase
    if tokens is None or phase not in GENERATION_PHASES:
        return None
    cache_bytes = cache_bytes_of_kernels
    if cache_bytes is None:
        cache_bytes = cache_bytes_per_sequence(workload)
    compute_bound_from = None
    if phase == "decode":
        compute_bound_from = compute_bound_batch_size(workload, flops_per_s, bandwidth_bytes_per_s)
    return {
        "first_token_s": time_s if phase == "prefill" else None,
        "token_s": time_s if phase == "decode" else None,
        "tokens_per_s_per_sequence": tokens / time_s / workload.batch_size if time_s else None,
        "cache_bytes_per_sequence": round(cache_bytes),
        "compute_bound_from_batch": compute_bound_from,
        "weights": workload.weights or workload.options.recipe or workload.precision,
    }

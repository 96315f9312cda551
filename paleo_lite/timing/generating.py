"""Quantities of text generation: tokens per second, KV cache, and the least compute-bound batch size."""

from __future__ import annotations

import math
from typing import Any

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

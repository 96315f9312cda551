"""What is believed of engines for inference: their kernels, and a host that launches a recorded graph.

Matrix products and attention under vLLM, SGLang and TensorRT-LLM (ai-dynamo/aiconfigurator 095f58a) on five devices say
what a device's own prior leaves open; operations of decoder layers that others timed are held against it
(docs/transformers.md). Two things were not measured there and are assumed: that a graph's kernels follow one another
without the host, and what the engine does between two steps.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ..timing.calibrated import NAMES
from .fit import Prior

KERNELS: dict[str, tuple[float, float]] = {
    "efficiency_gemm": (0.85, 0.12),
    "efficiency_attention": (0.55, 0.2),
    "share_matrix": (0.85, 0.1),
    "share_other": (0.7, 0.2),
    "floor_s": (5e-6, 0.25),
}
"""Median and deviation of the logarithm; the scores that a causal mask hides are not computed."""

HOST: dict[str, tuple[float, float]] = {
    "overhead_s": (1e-9, 0.1),
    "overhead_backward_s": (1e-9, 0.1),
    "overhead_gradient_s": (1e-9, 0.1),
    "step_s": (3e-4, 0.7),
}
"""Nothing for a kernel of a graph; between two steps sampling and preparing the next, some tenths of a millisecond."""


def of_engine(prior: Prior) -> Prior:
    """A device's prior with the kernels of engines, each opinion weighed by how sure it is, and with their host."""
    weighed = _weighed(prior, KERNELS)
    for name, (median, spread) in HOST.items():
        weighed.mean[NAMES.index(name)], weighed.deviation[NAMES.index(name)] = np.log(median), spread
    return weighed


def _weighed(prior: Prior, opinion: Mapping[str, tuple[float, float]]) -> Prior:
    """Two opinions of each parameter, as sure as each is."""
    mean, deviation = prior.mean.copy(), prior.deviation.copy()
    for name, (median, spread) in opinion.items():
        index = NAMES.index(name)
        weight, own = spread**-2, deviation[index] ** -2
        mean[index] = (weight * np.log(median) + own * mean[index]) / (weight + own)
        deviation[index] = (weight + own) ** -0.5
    return Prior(mean, deviation)

"""What is believed of engines for inference: their kernels, and a host that launches a recorded graph.

Matrix products and attention under vLLM, SGLang and TensorRT-LLM (ai-dynamo/aiconfigurator 095f58a) on five devices say
what a device's own prior leaves open; operations of decoder layers that others timed are held against it
(docs/transformers.md). Two things were not measured there and are assumed: that a graph's kernels follow one another
without the host, and what the engine does between two steps.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
import numpy as np

from ..timing import TimeModel
from ..timing.calibrated import NAMES
from ..timing.fitted import CalibratedModel
from .fit import Prior

KERNELS: dict[str, tuple[float, float]] = {
    "efficiency_gemm": (0.85, 0.12),
    "efficiency_attention": (0.55, 0.2),
    "share_matrix": (0.85, 0.1),
    "share_other": (0.7, 0.2),
    "floor_s": (5e-6, 0.25),
}
"""Median and deviation of the logarithm; the scores that a causal mask hides are not computed."""

TRAINING: dict[str, tuple[float, float]] = {
    "efficiency_gemm": (0.83, 0.1),
    "efficiency_attention": (0.28, 0.2),
    "share_other": (0.65, 0.2),
    "factor_data_gradient": (1.0, 0.1),
    "factor_weight_gradient": (1.0, 0.1),
    "overhead_s": (48e-6, 0.3),
    "overhead_backward_s": (14e-6, 0.3),
}
"""The same of training transformers in blocks. The gradients of a matrix product are products of the same sizes and
reach as much, where other networks' factors are those of convolutions; attention computes its scores again for its
gradients, which are not counted. Rounded from steps on A100 (mosaicml/llm-foundry 8c8dd48, VIA-Research/vTrain f8dda84)
and the table of Korthikanti et al. 2022: docs/transformers.md says how far they are from those."""

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


def of_training(model: TimeModel) -> TimeModel:
    """A calibrated model with the kernels of training in blocks; other models as they are."""
    if not isinstance(model, CalibratedModel):
        return model
    prior = Prior(model.theta.copy(), np.sqrt(np.diag(model.covariance)))
    for name, (median, spread) in TRAINING.items():
        prior.mean[NAMES.index(name)], prior.deviation[NAMES.index(name)] = np.log(median), spread
    return msgspec.structs.replace(model, theta=prior.mean, covariance=np.diag(prior.deviation**2))


def _weighed(prior: Prior, opinion: Mapping[str, tuple[float, float]]) -> Prior:
    """Two opinions of each parameter, as sure as each is."""
    mean, deviation = prior.mean.copy(), prior.deviation.copy()
    for name, (median, spread) in opinion.items():
        index = NAMES.index(name)
        weight, own = spread**-2, deviation[index] ** -2
        mean[index] = (weight * np.log(median) + own * mean[index]) / (weight + own)
        deviation[index] = (weight + own) ** -0.5
    return Prior(mean, deviation)

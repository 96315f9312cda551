"""What is believed of a device that nobody measured, and how fits of others narrow it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..timing.calibrated import NAMES
from .fit import Fit, Prior

BASE: dict[str, tuple[float, float, float]] = {
    "efficiency_conv_3x3": (1.3, 0.6, 0.3),
    "efficiency_conv_direct": (0.7, 0.5, 0.3),
    "efficiency_conv_1x1": (0.7, 0.6, 0.3),
    "efficiency_conv_grouped": (0.45, 0.1, 0.4),
    "efficiency_conv_depthwise": (0.17, 0.05, 0.4),
    "efficiency_gemm": (0.6, 0.4, 0.5),
    "efficiency_attention": (0.5, 0.4, 0.5),
    "factor_data_gradient": (0.9, 0.9, 0.3),
    "factor_weight_gradient": (0.8, 0.8, 0.3),
    "share_matrix": (0.65, 0.65, 0.3),
    "share_other": (0.75, 0.75, 0.3),
    "half": (0.2, 0.2, 0.7),
    "floor_s": (5e-6, 5e-6, 0.5),
    "overhead_s": (20e-6, 20e-6, 0.5),
    "overhead_backward_s": (8e-6, 8e-6, 0.5),
    "step_s": (1e-3, 1e-3, 1.0),
}
"""Median on vector units, median on tensor cores, and deviation of the logarithm, of every parameter.

Weak on purpose: they keep a parameter that no measurement moves where it makes sense. 3x3 convolution on vector units
is above 1 because of Winograd's algorithm (2.25 times fewer multiplications at about 0.6 of peak); grouped and
depthwise convolution reach a few to some tens of percent; launching from Python takes 10 to 35 us per operation, from
the autograd engine, which is C++, less than half of that; a kernel takes a few microseconds at least.
"""


def base_prior(tensor_cores: bool) -> Prior:
    """The prior of `BASE` for multiply-accumulates on tensor cores or on vector units."""
    rows = [BASE[name] for name in NAMES]
    median = [row[1 if tensor_cores else 0] for row in rows]
    return Prior(np.log(median), np.array([row[2] for row in rows]))


def pooled_prior(fits: Sequence[Fit], base: Prior) -> Prior:
    """The prior that fits of other devices leave: their mean, and how much they differ (and do not know).

    Each parameter's mean is weighted by how far its measurements moved it, with `base` as one more device. The
    deviation adds what differs between devices to what each of them leaves open.
    """
    if not fits:
        return base
    thetas = np.array([base.mean, *(fit.theta for fit in fits)])
    weights = np.array([np.full(len(NAMES), 0.5), *(np.clip(fit.moved, 0.02, 1) for fit in fits)])
    mean = (weights * thetas).sum(axis=0) / weights.sum(axis=0)
    between = (weights * (thetas - mean) ** 2).sum(axis=0) / weights.sum(axis=0)
    variances = np.array([base.deviation**2, *(np.diag(fit.covariance) for fit in fits)])
    within = (weights * variances).sum(axis=0) / weights.sum(axis=0)
    return Prior(mean, np.minimum(np.sqrt(between + within), base.deviation))

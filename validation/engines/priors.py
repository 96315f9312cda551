"""What is expected of the constants of kernels before any table is read (`paleo_lite.engines.formulas`)."""

from __future__ import annotations

from typing import NamedTuple


class KernelPrior(NamedTuple):
    """Typical values of the constants of a class of kernels, in the order of its `parameters`."""

    typical: tuple[float, ...]
    deviation: tuple[float, ...]  # standard deviations of their logarithms around the typical values


_OF_FORMULAS = {
    "products": KernelPrior((0.7, 0.8, 8e3, 2.5e13, 100.0, 1.5, 1.0), (0.4, 0.3, 1.2, 1.6, 1.6, 0.8, 1.6)),
    # Few rows of a table are as short as the shortest time: it is kept near that of all devices.
    "experts": KernelPrior((0.5, 0.8, 4e4, 24.0, 0.3, 1.5, 1.5), (0.5, 0.3, 0.15, 1.6, 1.6, 1.2, 0.8)),
    "prompt attention": KernelPrior((0.6, 0.5, 2e4, 0.5, 32.0, 0.5, 150.0), (0.4, 0.6, 1.0, 1.6, 1.6, 0.8, 1.5)),
    "decode attention": KernelPrior((0.25, 0.8, 2e4, 0.4, 1.5, 30.0), (0.8, 0.25, 1.0, 1.2, 1.0, 1.2)),
    "pointwise": KernelPrior((0.7, 5e3), (0.4, 0.6)),
    "all-reduce": KernelPrior((4e-6, 3e-7, 0.7, 4e-6, 0.75, 5e-5, 0.6), (0.8, 1.2, 0.5, 1.2, 0.2, 1.2, 0.2)),
    "expert exchange": KernelPrior((3e-5, 3e-6, 0.5, 0.8), (1.0, 1.0, 0.8, 0.3)),
}
_LIKE = {
    "single decode attention": "decode attention",
    "latent prompt attention": "prompt attention",
    "latent decode attention": "decode attention",
}
PRIORS = _OF_FORMULAS | {name: _OF_FORMULAS[other] for name, other in _LIKE.items()}
"""Priors by class; classes with the same formula have the same."""

"""What is expected of the constants of kernels before any table is read (`paleo_lite.engines.formulas`)."""

from __future__ import annotations

from typing import NamedTuple


class Expected(NamedTuple):
    """What is expected of a constant."""

    typical: float
    deviation: float  # standard deviation of its logarithm around the typical value


_OF_FORMULAS = {
    "products": {
        "efficiency": Expected(0.7, 0.4),
        "bandwidth_share": Expected(0.8, 0.3),
        "floor_cycles": Expected(8000.0, 1.2),
        "tile_rate": Expected(2.5e13, 1.6),
        "half_depth": Expected(100.0, 1.6),
        "sharpness": Expected(1.5, 0.8),
        "quantisation": Expected(1.0, 1.6),
    },
    "experts": {
        "efficiency": Expected(0.5, 0.5),
        "bandwidth_share": Expected(0.8, 0.3),
        # Few rows of a table are as short as the shortest time: it is kept near that of all devices.
        "floor_cycles": Expected(4e4, 0.15),
        "padding": Expected(24.0, 1.6),
        "half": Expected(0.3, 1.6),
        "traffic": Expected(1.5, 1.2),
        "sharpness": Expected(1.5, 0.8),
    },
    "prompt attention": {
        "efficiency": Expected(0.6, 0.4),
        "bandwidth_share": Expected(0.5, 0.6),
        "floor_cycles": Expected(2e4, 1.0),
        "half": Expected(0.5, 1.6),
        "tile_keys": Expected(32.0, 1.6),
        "sharpness": Expected(0.5, 0.8),
        "pair_numbers": Expected(150.0, 1.5),
    },
    "decode attention": {
        "efficiency": Expected(0.25, 0.8),
        "bandwidth_share": Expected(0.8, 0.25),
        "floor_cycles": Expected(2e4, 1.0),
        "half": Expected(0.4, 1.2),
        "sharpness": Expected(1.5, 1.0),
        "head_cycles": Expected(30.0, 1.2),
    },
    "pointwise": {
        "bandwidth_share": Expected(0.7, 0.4),
        "floor_cycles": Expected(5000.0, 0.6),
    },
    "all-reduce": {
        "latency_s": Expected(4e-6, 0.8),
        "doubling_s": Expected(3e-7, 1.2),
        "bandwidth_share": Expected(0.7, 0.5),
        "second_s": Expected(4e-6, 1.2),
        "library_share": Expected(0.75, 0.2),
        "library_s": Expected(5e-5, 1.2),
        "switch_share": Expected(0.6, 0.2),
    },
    "expert exchange": {
        "latency_s": Expected(3e-5, 1.0),
        "doubling_s": Expected(3e-6, 1.0),
        "bandwidth_share": Expected(0.5, 0.8),
        "node_share": Expected(0.8, 0.3),
    },
}
_LIKE = {
    "single decode attention": "decode attention",
    "latent prompt attention": "prompt attention",
    "latent decode attention": "decode attention",
}
PRIORS = _OF_FORMULAS | {name: _OF_FORMULAS[other] for name, other in _LIKE.items()}
"""What is expected of the constants of each class, by their names; classes with the same formula have the same."""

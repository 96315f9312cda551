"""Causes of the time of a step of training, by which measured steps correct forecasts of others.

A cause is a part of a time that can be wrong by a factor of its own: products of matrices, attention, products of
experts, memory traffic, the host, and exchanges between devices. `paleo_lite.calibration.posterior` learns the factors.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TypeVar

import msgspec

from ..counting.kinds.products import MATRIX_CLASSES
from .calibrated import CalibratedModel
from .models import TimeModel
from .parameters import INDEX, OVERHEADS

ModelT = TypeVar("ModelT", bound=TimeModel)

PRODUCTS, ATTENTION, EXPERTS, MEMORY, HOST, EXCHANGES = (
    "products", "attention", "experts", "memory", "host", "exchanges",
)  # fmt: skip

CAUSES = (PRODUCTS, ATTENTION, EXPERTS, MEMORY, HOST, EXCHANGES)

RATES = {
    PRODUCTS: tuple(f"efficiency_{name}" for name in MATRIX_CLASSES if name != "attention"),
    ATTENTION: ("efficiency_attention",),
    MEMORY: ("share_matrix", "share_other"),
}
"""Parameters of the calibrated model that divide the seconds of each cause."""

SECONDS = {HOST: (*OVERHEADS, "floor_s", "step_s")}
"""Parameters that are the seconds of a cause."""


class MovedCauses(msgspec.Struct, frozen=True):
    """Factors of the causes of a step, and what they leave of the width of its interval."""

    logs: Mapping[str, float]  # logarithm of the factor of each cause; causes that are left out keep their seconds
    width: float = 1.0  # of the interval in logarithms, over that without the factors

    def factor_of(self, cause: str) -> float:
        """Return the factor of the seconds of a cause."""
        return math.exp(self.logs.get(cause, 0.0))

    def narrow(self, end_s: float, time_s: float) -> float:
        """Return the end of an interval around a time, with its logarithmic distance from the time times the width."""
        return float(time_s * (end_s / time_s) ** self.width)

    def move(self, model: ModelT) -> ModelT:
        """Return a calibrated model with the factors; return other models unchanged."""
        if not isinstance(model, CalibratedModel):
            return model
        theta = model.theta.copy()
        for cause, names in RATES.items():
            theta[[INDEX[name] for name in names]] -= self.logs.get(cause, 0.0)
        for cause, names in SECONDS.items():
            theta[[INDEX[name] for name in names]] += self.logs.get(cause, 0.0)
        # Products of experts are products, whose efficiency moves with these.
        beside_products = self.logs.get(EXPERTS, 0.0) - self.logs.get(PRODUCTS, 0.0)
        return msgspec.structs.replace(
            model,
            theta=theta,
            expert_slowdown=model.expert_slowdown * math.exp(beside_products),
            interval_width=model.interval_width * self.width,
        )

"""Published watts as evidence, beside forecasts without their device."""

from __future__ import annotations

from pathlib import Path

from paleo_lite.calibration.posterior import Observation
from paleo_lite.calibration.power_causes import KIND, WATTS, is_at_limit, power_shares, power_traits

from ..energy.fit import shipped_scatters, with_scatter
from ..energy.hold_out import folds_of, held_out_power
from ..energy.measured import AT_WALL, measured_powers
from .groups import Grouped


def measured_watts(data: Path) -> list[Grouped]:
    """Return the published watts of devices below their limit, with the deployment that each is of."""
    grouped = []
    for fold in folds_of(measured_powers(data), "device"):
        model = with_scatter(fold.model, shipped_scatters())
        for number, measured in enumerate(fold.measured):
            power, shares = held_out_power(model, measured), measured.shares
            # Watts of cards at the wall rest on assumed hosts.
            if is_at_limit(power, shares) or measured.kind == AT_WALL:
                continue
            traits = power_traits(measured.device.id, measured.model, measured.source)
            low_w, high_w = map(float, power.interval_w(shares))
            row = Observation(
                KIND, WATTS, f"{number}", traits, measured.power_w, float(power.watts(shares)),
                power_shares(power, shares), (low_w, high_w),
            )  # fmt: skip
            grouped.append(Grouped(measured.series, row))  # type: ignore[arg-type]
    return grouped

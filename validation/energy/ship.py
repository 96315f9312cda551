"""Fit of the constants that the package ships."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np

from paleo_lite.files import write_atomically
from paleo_lite.timing.energy import ENERGY_FILE, EnergyModel, energy_model

from .fit import fit_energy, with_scatter
from .forecasts import timed
from .hold_out import folds_of, points_of, scatters_of
from .measured import measured_powers


def ship_energy(data: Path, folder: Path) -> EnergyModel:
    """Fit the model to a folder of data and write it to a folder of calibrations.

    The scatters are those of forecasts, whose times are forecast as well.
    """
    measured = measured_powers(data)
    forecasts = [power.at_forecast_time for power in timed(measured, levels=("expected",))]
    trained = [power for power in measured if power.kind == "training"]
    folds = folds_of(measured, "model", [*forecasts, *trained])
    scatters = scatters_of(folds)
    points = points_of(folds, scatters)
    errors = [abs(point.error) for point in points]
    inside = np.mean([point.is_inside for point in points])
    text = f"a model held out, at forecast times {np.median(errors):.1%} in the median, {inside:.0%} within 90%"
    model = with_scatter(fit_energy(measured), scatters, text)
    header = "# Fitted by paleo-lite to measured power; every field is explained in docs/model.md.\n"
    write_atomically(folder / ENERGY_FILE, header.encode() + msgspec.toml.encode(model))
    energy_model.cache_clear()
    return model

"""Machines measured at the wall, each forecast by a fit of the power without its card.

``python -m validation compare wall`` prints the table of ``docs/model.md``. A card that is measured nowhere else has
the constants of its generation, which other cards at the wall inform.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from paleo_lite.machines import Device
from paleo_lite.reporting.document import Column, Document, Table
from paleo_lite.timing.energy import Power, power_of
from paleo_lite.timing.facility import Facility

from ..comparisons import describe_errors, require_data
from .cards import POWER_SUPPLY, MachineAtWall, machines_at_wall
from .fit import fit_energy, shipped_scatters, with_scatter
from .measured import measured_powers


class ForecastMachine(NamedTuple):
    """A machine at the wall with its forecast.

    Attributes
    ----------
    system, model : str
        Names of the source.
    device : Device
        The card.
    host_w : float
        Assumed watts of the host.
    measured_w, device_w, wall_w : float
        Measured watts at the wall, and the forecast of the card and of the whole machine, at the measured speed.
    low_w, high_w : float
        The forecast of the machine with the 90% interval of the card.
    rated_w : float
        What the rated power of the card in place of its forecast would give.
    """

    system: str
    model: str
    device: Device
    host_w: float
    measured_w: float
    device_w: float
    wall_w: float
    low_w: float
    high_w: float
    rated_w: float

    @property
    def error(self) -> float:
        """Forecast over measured watts at the wall, minus 1."""
        return self.wall_w / self.measured_w - 1

    @property
    def is_inside(self) -> bool:
        """Whether the interval contains the measurement."""
        return self.low_w <= self.measured_w <= self.high_w


def machines(data: Path) -> Iterator[ForecastMachine]:
    """Iterate over the machines with their forecasts, each without the measurements of its card."""
    measured, at_wall = measured_powers(data), list(machines_at_wall(data))
    for card in sorted({machine.device.id for machine in at_wall}):
        fitted = fit_energy([power for power in measured if power.device.id != card])
        model = with_scatter(fitted, shipped_scatters())
        for machine in at_wall:
            if machine.device.id == card:
                yield _forecast(machine, power_of(machine.device, model=model))


def _forecast(machine: MachineAtWall, power: Power | None) -> ForecastMachine:
    assert power is not None
    shares = machine.shares
    low_w, high_w = (float(end_w) for end_w in power.interval_w(shares))
    device_w = float(power.watts(shares))
    facility = Facility(pue=POWER_SUPPLY, host_w=machine.host_w)
    at_wall = [facility.site_energy(watts, 1.0).energy_j for watts in (device_w, low_w, high_w, power.rated_w)]
    return ForecastMachine(
        machine.system, machine.model, machine.device, machine.host_w, machine.measured_w, device_w, *at_wall
    )


def compare_page(data: Path | None) -> Document:
    """Return the page of the machines.

    Raises
    ------
    BadValue
        If no folder of published data is given.
    """
    measured = list(machines(require_data(data)))
    columns = [
        Column("system", "machine", left=True),
        Column("model", "model", left=True),
        Column("host_w", "host", "{:.0f} W".format),
        Column("device_w", "card", "{:.0f} W".format),
        Column("wall_w", "at the\nwall", "{:.0f} W".format),
        Column("low_w", "from", "{:.0f} W".format),
        Column("high_w", "to", "{:.0f} W".format),
        Column("measured_w", "measured", "{:.0f} W".format),
    ]
    rated = np.median([abs(machine.rated_w / machine.measured_w - 1) for machine in measured])
    return Document(
        f"Machines at the wall, with their card held out: {describe_errors(measured)}",
        [("rated power", f"{rated:.0%} off in the median")],
        [Table("Watts of machines", columns, [machine._asdict() for machine in measured])],
    )

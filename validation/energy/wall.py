"""Machines measured at the wall: the power of the device, of its host and of the power supply.

``python -m validation compare wall`` prints the table of ``docs/model.md``. The source states the power of whole
machines that answer one prompt under llama.cpp or Ollama; nothing here is fitted to it. Hosts draw what is assumed in
`HOSTS`, and power supplies lose a tenth, which ``--site pue=1.1`` states.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from paleo_lite.engines.records import LOCAL_ENGINES
from paleo_lite.machines import Device, find_device
from paleo_lite.own_machines.step import local_constants, token_activity
from paleo_lite.reporting.document import Column, Document, Table
from paleo_lite.timing.energy import power_of
from paleo_lite.timing.facility import Facility

from ..comparisons import describe_errors, require_data
from ..local.fit import contents_of
from ..local.published import MODELS
from ..tables import rows_of

HOSTS = {"Pi": 13.0, "Radxa": 20.0, "Intel 265K": 50.0, "System76": 90.0, "HiFive": 15.0}
"""Watts of hosts beside a busy card, by the first words of the system. A Raspberry Pi 5 draws 12 to 14 W at the wall
when it computes by itself (the rows of the same table); the others are assumptions."""

POWER_SUPPLY = 1.1
"""Power at the wall over that behind the power supply: that of an efficiency of 91%."""

CONTEXT = 256
"""Tokens in the cache of a short answer, as `validation.local.published` takes them."""

CARDS = {
    "Nvidia RTX 3080 Ti": "rtx3080ti", "Nvidia RTX 2080 Ti": "rtx2080ti", "Nvidia RTX A4000": "rtx-a4000",
    "Nvidia A4000": "rtx-a4000", "Nvidia RTX 3060": "rtx3060", "AMD Pro W7700": "radeon-pro-w7700",
    "AMD RX 7900 XT": "rx7900xt",
}  # fmt: skip
"""Devices by the name in brackets; cards without a hardware file are left out."""


class MachineAtWall(NamedTuple):
    """A machine at the wall.

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


def machines(data: Path) -> Iterator[MachineAtWall]:
    """Iterate over the machines whose card has a hardware file and a power model."""
    rows = list(rows_of(data / "engines" / "llama_cpp_machines.csv"))
    for row in rows:
        card = re.search(r"\((.*)\)", row["system"])
        host_w = next((watts for name, watts in HOSTS.items() if row["system"].startswith(name)), None)
        if row["runs_on"] != "GPU" or not row["system_watts"] or card is None or host_w is None:
            continue
        if card[1] not in CARDS:
            continue
        device = find_device(CARDS[card[1]])
        power = power_of(device)
        if power is None:
            continue
        contents = contents_of(*MODELS[row["model"]])
        constants = local_constants().backends[LOCAL_ENGINES["llama.cpp"].backend_of(device)]
        time_s = 1 / float(row["tokens_per_s"])
        shares = token_activity(contents, contents.pieces, device, constants, CONTEXT).overlapping_shares_of(time_s)
        low_w, high_w = (float(end_w) for end_w in power.interval_w(shares))
        device_w = float(power.watts(shares))
        facility = Facility(pue=POWER_SUPPLY, host_w=host_w)
        at_wall = [facility.site_energy(watts, 1.0).energy_j for watts in (device_w, low_w, high_w, power.rated_w)]
        measured_w = float(row["system_watts"])
        yield MachineAtWall(row["system"], row["model"], device, host_w, measured_w, device_w, *at_wall)


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
        f"Machines at the wall: {describe_errors(measured)}",
        [("rated power", f"{rated:.0%} off in the median")],
        [Table("Watts of machines", columns, [machine._asdict() for machine in measured])],
    )

"""Cards of machines measured at the wall, which answer one prompt under llama.cpp or Ollama.

The source states the power of whole machines. Their hosts draw what is assumed in `HOSTS`, and power supplies lose a
tenth; what is left is the power of the card.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from paleo_lite.engines.records import LOCAL_ENGINES
from paleo_lite.machines import Device, find_device
from paleo_lite.own_machines.step import local_constants, token_activity
from paleo_lite.timing.activity import Activity, Shares

from ..local.fit import contents_of
from ..local.published import MODELS
from ..tables import rows_of

SOURCE = "geerlingguy/ai-benchmarks bdf9441"

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


LEAST_BUSY = 0.5
"""Share of the measured time of a token in which a card must read or unpack to inform the fit. Radeon cards on a
Raspberry Pi answer at 0.4 of the speed that their memory allows: what they do in the rest of the time is not known."""


class MachineAtWall(NamedTuple):
    """A machine measured at the wall.

    Attributes
    ----------
    system, model : str
        Names of the source.
    device : Device
        The card.
    host_w : float
        Assumed watts of the host.
    measured_w : float
        Measured watts at the wall.
    activity : Activity
        What the card does for a token; its kernels compute while they read.
    time_s : float
        Measured seconds of a token.
    """

    system: str
    model: str
    device: Device
    host_w: float
    measured_w: float
    activity: Activity
    time_s: float

    @property
    def card_w(self) -> float:
        """Watts of the card, at most its rated power: boards that draw more have a limit that nobody states."""
        assert self.device.rated_power_w is not None
        return min(self.measured_w / POWER_SUPPLY - self.host_w, self.device.rated_power_w)

    @property
    def shares(self) -> Shares:
        """Shares of the measured time of a token."""
        return self.activity.overlapping_shares_of(self.time_s)

    @property
    def is_busy(self) -> bool:
        """Whether it is known what the card does for most of the time."""
        return bool(max(self.shares.memory, self.shares.arithmetic) >= LEAST_BUSY)


def machines_at_wall(data: Path) -> Iterator[MachineAtWall]:
    """Iterate over the machines whose card has a hardware file and whose host is in `HOSTS`."""
    for row in rows_of(data / "engines" / "llama_cpp_machines.csv"):
        card = re.search(r"\((.*)\)", row["system"])
        host_w = next((watts for name, watts in HOSTS.items() if row["system"].startswith(name)), None)
        if row["runs_on"] != "GPU" or not row["system_watts"] or card is None or host_w is None:
            continue
        if card[1] not in CARDS:
            continue
        device = find_device(CARDS[card[1]])
        contents = contents_of(*MODELS[row["model"]])
        constants = local_constants().backends[LOCAL_ENGINES["llama.cpp"].backend_of(device)]
        yield MachineAtWall(
            system=row["system"],
            model=row["model"],
            device=device,
            host_w=host_w,
            measured_w=float(row["system_watts"]),
            activity=token_activity(contents, contents.pieces, device, constants, CONTEXT),
            time_s=1 / float(row["tokens_per_s"]),
        )

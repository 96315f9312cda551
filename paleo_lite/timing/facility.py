"""What surrounds the devices: hosts, cooling and power supply, the price of electricity, and its carbon intensity.

Energies are those of the devices alone unless a user states more. A machine draws the power of its devices and of its
host; the facility draws the power usage effectiveness (PUE, ISO/IEC 30134-2) times as much, which is what the meter
counts and the bill states.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from ..errors import BadQuantity, BadValue
from ..units import format_si, parse_quantity

JOULES_PER_KWH = 3.6e6


class SiteEnergy(msgspec.Struct, frozen=True):
    """Energy at the meter, and what it costs."""

    energy_j: float  # energy in joules
    # Its price in US dollars, and grams of CO2; None if price or carbon intensity are not given.
    usd: float | None
    co2_g: float | None

    def to_dict(self) -> dict[str, Any]:
        """Return the documented JSON."""
        return {"energy_j": self.energy_j, "usd": self.usd, "co2_g": self.co2_g}


class Facility(msgspec.Struct, frozen=True):
    """What surrounds the devices."""

    pue: float = 1.0  # power usage effectiveness: energy at the meter over that of the machines
    host_w: float = 0.0  # power of the host, its memory, fans and power supply, in watts per device
    # Price of electricity, and grams of CO2 per kWh; None if not given.
    usd_per_kwh: float | None = None
    g_per_kwh: float | None = None

    def __post_init__(self) -> None:
        if not 1 <= self.pue <= 10:
            raise BadValue(
                f"`--site pue` must be a number between 1 and 10, energy at the meter over machines ({self.pue:g})"
            )
        if not 0 <= self.host_w < 1e5:
            raise BadValue(f"`--site host-watts` must be >= 0 W per device (got {self.host_w:g})")
        if self.usd_per_kwh is not None and not 0 <= self.usd_per_kwh < 1e3:
            raise BadValue(f"`--site electricity` must be >= 0 USD/kWh (got {self.usd_per_kwh:g})")
        if self.g_per_kwh is not None and not 0 <= self.g_per_kwh < 1e5:
            raise BadValue(f"`--site carbon-intensity` must be >= 0 g/kWh (got {self.g_per_kwh:g})")

    def site_energy(self, devices_j: Any, device_seconds: Any) -> SiteEnergy:
        """Return the energy at the meter, and what it costs; for arrays, arrays.

        `device_seconds` is the number of devices times seconds.
        """
        energy_j = self.pue * (devices_j + self.host_w * device_seconds)
        kwh = energy_j / JOULES_PER_KWH
        usd = None if self.usd_per_kwh is None else kwh * self.usd_per_kwh
        return SiteEnergy(energy_j, usd, None if self.g_per_kwh is None else kwh * self.g_per_kwh)

    def describe(self) -> str:
        """Return what is added to the devices, as text; empty if nothing is."""
        parts = []
        if self.host_w:
            parts.append(f"hosts of {format_si(self.host_w, 'W', 3)} per device")
        if self.pue > 1:
            parts.append(f"a PUE of {self.pue:g}")
        return " and ".join(parts)


def facility_of_site(site: Mapping[str, float | str]) -> Facility | None:
    """Return what surrounds the devices from settings such as ``{"electricity": 0.12, "pue": 1.2}``.

    Raise BadValue for an unknown setting.
    """
    settings = {str(name).replace("-", "_"): value for name, value in site.items()}
    for name in settings:
        if name not in SITE_SETTINGS:
            raise BadValue(f"`site` has no {name}: it has {', '.join(SITE_SETTINGS)}")
    pue = settings.pop("pue", None)
    return make_facility(**settings, pue=None if pue is None else float(pue))


SITE_SETTINGS = ("electricity", "carbon_intensity", "pue", "host_watts")
"""Settings of a facility by the names that users have for them."""


def make_facility(
    electricity: float | str | None = None,  # price in US dollars per kWh, such as "0.12 USD/kWh"
    carbon_intensity: float | str | None = None,  # grams of CO2 per kWh, such as "400 g/kWh"
    pue: float | None = None,  # power usage effectiveness
    host_watts: float | str | None = None,  # of the host and everything else in a machine, per device
) -> Facility | None:
    """Return what surrounds the devices; None if nothing is given.

    Raise BadValue if a value is negative, has another unit, or the PUE is below 1.
    """
    if electricity is None and carbon_intensity is None and pue is None and host_watts is None:
        return None
    return Facility(
        pue=1.0 if pue is None else float(pue),
        host_w=_parse(host_watts, "--site host-watts", "W") or 0.0,
        usd_per_kwh=_parse(electricity, "--site electricity", "USD/kWh"),
        g_per_kwh=_parse(carbon_intensity, "--site carbon-intensity", "g/kWh"),
    )


def _parse(value: float | str | None, option: str, unit: str) -> float | None:
    try:
        return None if value is None else parse_quantity(value, unit)
    except BadQuantity as error:
        raise BadValue(f"`{option}`: {error}") from None

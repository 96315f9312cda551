"""Prices that compare devices: those of one cloud wherever one has a price for all of them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from ..errors import BadValue
from ..machines import Device, Price
from ..machines.prices import choose_price, find_cloud_name, find_priced_instance, prices_of
from ..units import format_number


class PricedDevice(NamedTuple):
    """The price of a device in an answer."""

    gpu: str
    usd_per_h: float | None  # of one device; None if unknown
    cloud: str | None  # who asks it; None if it was given


def choose_listings(devices: Sequence[Device], price_of: str | None = None) -> dict[str, Price | None]:
    """Return the listing by which each device is compared with the others, by id; None without one.

    `price_of` is the name of a cloud, or `paleo_lite.machines.prices.CHEAPEST`. Without it, listings are those of one
    cloud that has a price of every device with a price: the usual one if it is the same for all, else the one that asks
    least for all together. If there is none, every device has its usual listing, and `describe_prices` says that they
    differ. Raise PaleoError if there is no such cloud, or it has a price for none of the devices.
    """
    if price_of is not None:
        return _listings_of(devices, price_of)
    usual = {device.id: choose_price(device) for device in devices}
    priced = [device for device in devices if usual[device.id] is not None]
    if len({listing.cloud for listing in usual.values() if listing is not None}) <= 1:
        return usual
    by_cloud = [{price.cloud: price for price in reversed(prices_of(device)) if price.cloud} for device in priced]
    common = set.intersection(*(set(prices) for prices in by_cloud))
    if not common:
        return usual
    cloud = min(common, key=lambda name: (sum(prices[name].usd_per_h for prices in by_cloud), name))
    return {device.id: None if usual[device.id] is None else choose_price(device, cloud) for device in devices}


def _listings_of(devices: Sequence[Device], price_of: str) -> dict[str, Price | None]:
    """Return the listings of a cloud; None for a device of which it has none."""
    find_cloud_name(price_of)
    listings: dict[str, Price | None] = {}
    refused: BadValue | None = None
    for device in devices:
        try:
            listings[device.id] = choose_price(device, price_of)
        except BadValue as error:
            listings[device.id] = None
            refused = error
    if refused is not None and not any(listings.values()):
        raise refused
    return listings


def describe_prices(priced: Sequence[PricedDevice]) -> str:
    """Return whose prices are compared, as text: ``of AWS: h100-sxm 6.88, l40s 1.861 USD/h``."""
    rows = list(dict.fromkeys(priced))
    clouds = {row.cloud for row in rows if row.usd_per_h is not None}
    if not clouds:
        return "unknown: give `--price`"
    if len(clouds) == 1:
        cloud = clouds.pop()
        basis = "as given" if cloud is None else f"of {cloud}"
        return f"{basis}: {', '.join(_describe(row) for row in rows)} USD/h"
    return (
        f"of different clouds, which compares their offers too: {', '.join(_describe(row, True) for row in rows)} USD/h"
    )


def describe_mixed(priced: Sequence[PricedDevice]) -> str:
    """Return a note where a ranking mixes the prices of clouds, none of which lists all devices; empty where not."""
    clouds = sorted({row.cloud for row in priced if row.usd_per_h is not None and row.cloud is not None})
    if len(clouds) < 2:
        return ""
    return (
        f"the ranking compares offers of {', '.join(clouds)}, none of which lists all devices: give "
        f"`--price {clouds[0]}` to rank by what one of them asks"
    )


def whole_instances_notes(rented: Sequence[tuple[PricedDevice, int]]) -> list[str]:
    """Return a note on each device, given with its number, that does not fill the instances that it is rented in.

    The price of a device is its share of that of an instance, which clouds rent out whole.
    """
    numbers: dict[PricedDevice, int] = {}
    for row, number in rented:
        numbers[row] = numbers.get(row, 0) + number
    notes = []
    for row, number in numbers.items():
        if row.usd_per_h is None or row.cloud is None:
            continue
        instance = find_priced_instance(row.gpu, row.cloud, row.usd_per_h)
        if instance is None or number % instance.devices == 0:
            continue
        instances = math.ceil(number / instance.devices)
        devices = instances * instance.devices
        notes.append(
            f"{number:,} x {row.gpu} are priced as {number:,} of the {devices:,} in {instances:,} x {instance.name}, "
            f"which are rented whole for {format_number(devices * row.usd_per_h)} USD/h"
        )
    return notes


def _describe(row: PricedDevice, names_cloud: bool = False) -> str:
    if row.usd_per_h is None:
        return f"{row.gpu} unknown"
    cloud = f" ({row.cloud})" if names_cloud and row.cloud else ""
    return f"{row.gpu} {format_number(row.usd_per_h)}{cloud}"

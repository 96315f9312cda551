"""Prices of devices: what each cloud asks per hour, and which price an answer uses.

A device has the price of its own file (``rent``) and those of the instances of clouds (`clouds`).
"""

from __future__ import annotations

import math
from datetime import date

import msgspec

from ..errors import BadValue, UnknownName
from ..text import normalize_name
from .clouds import Instance, list_clouds
from .device import GIVEN_PRICE, Device, Price
from .registry import list_devices

CHEAPEST = "cheapest"
"""Name for whichever cloud asks least for a device."""

SAME_PRICE = 1e-3
"""Relative difference up to which prices are one: listings round the price of a device."""


def cloud_names() -> list[str]:
    """Return the names of the clouds and `CHEAPEST`, for ``--price``."""
    return [*dict.fromkeys(price.cloud for price in _recorded_prices()), CHEAPEST]


def _recorded_prices() -> list[Price]:
    """Return the prices of all instances, and those of the files of devices."""
    prices = [instance.price for cloud in list_clouds() for instance in cloud.instances if instance.price is not None]
    prices += [device.rent for device in list_devices() if device.rent is not None and device.rent.cloud]
    return sorted(prices, key=lambda price: price.cloud)


def prices_of(device: Device) -> list[Price]:
    """Return all prices of one device, that of its file first, then the cheapest instance of each cloud."""
    prices = [] if device.rent is None else [device.rent]
    for cloud in list_clouds():
        listed = [_price_per_device(instance) for instance in cloud.instances if instance.device == device.id]
        of_cloud = [price for price in listed if price is not None]
        if of_cloud:
            cheapest = min(of_cloud, key=lambda price: price.usd_per_h)
            if not any(_is_same_offer(cheapest, price) for price in prices):
                prices.append(cheapest)
    return prices


def _is_same_offer(price: Price, other: Price) -> bool:
    """Return whether two prices are one cloud's price of the same instance, written down twice."""
    return price.cloud == other.cloud and math.isclose(price.usd_per_h, other.usd_per_h, rel_tol=SAME_PRICE)


def _price_per_device(instance: Instance) -> Price | None:
    """Return the price of one device of an instance; None without a price."""
    price = instance.price
    if price is None:
        return None
    price = price.per_device(instance.name, instance.devices)
    return msgspec.structs.replace(price, note=f"{price.note}, host included")


def find_priced_instance(device_id: str, cloud_name: str, usd_per_h: float) -> Instance | None:
    """Return the instance of several devices of which the price of one device is a share; None if there is none."""
    instances = [instance for cloud in list_clouds() if cloud.name == cloud_name for instance in cloud.instances]
    for instance in instances:
        if instance.device != device_id or instance.devices == 1 or instance.price is None:
            continue
        if math.isclose(instance.price.usd_per_h / instance.devices, usd_per_h, rel_tol=SAME_PRICE):
            return instance
    return None


def price_of_group(device_id: str, price: Price, devices: int) -> Price:
    """Return the price of one of several devices that work as one, from an instance that holds as many of them as can.

    It is the given price if that instance holds them, or the cloud has none with more. In the smallest instances of
    clouds stands a single device, which has no link to those of others.
    """
    offers = [instance for cloud in list_clouds() if cloud.name == price.cloud for instance in cloud.instances]
    per_device = [
        (instance.devices, listed)
        for instance in offers
        if instance.device == device_id and (listed := _price_per_device(instance)) is not None
    ]
    own = max((number for number, listed in per_device if _is_same_offer(listed, price)), default=devices)
    wanted = min(devices, max((number for number, _ in per_device), default=0))
    if own >= wanted:
        return price
    return min((listed for number, listed in per_device if number >= wanted), key=lambda listed: listed.usd_per_h)


def choose_price(device: Device, price_of: str | None = None, platform_price: Price | None = None) -> Price | None:
    """Return the price of one device that an answer uses; None if none is on record.

    `price_of` is the name of a cloud, or `CHEAPEST`; by default the price is that of the platform, of the device's
    file, or else the cheapest one on record. `platform_price` is that of one device of the requested platform. Raise
    UnknownName if there is no such cloud, and BadValue if it has no price of the device on record; the message lists
    the clouds that have one.
    """
    if price_of is None and (platform_price or device.rent) is not None:
        return platform_price or device.rent
    prices = prices_of(device)
    if price_of is not None and normalize_name(price_of) != CHEAPEST:
        name = find_cloud_name(price_of)
        of_cloud = [price for price in prices if price.cloud == name]
        if not of_cloud:
            others = ", ".join(dict.fromkeys(price.cloud for price in prices if price.cloud))
            remedy = f"use `--price` with {others}" if others else "give `--price`"
            raise BadValue(f"{name} has no price of {device.name} on record: {remedy}")
        prices = of_cloud
    return min(prices, key=lambda price: (price.usd_per_h, -price.date.toordinal()), default=None)


def with_price(device: Device, usd_per_h: float | None, price_of: str | None) -> Device:
    """Return a device at a price per hour that the user states, or at that of a cloud.

    Raise BadValue if the cloud has no price of it on record, or the device is a board of several.
    """
    if usd_per_h is None and price_of is None:
        return device
    if device.parts is not None:
        raise BadValue(
            f"`--price` is that of one device: {device.name} has several, give `--gpu {device.parts.device}`"
        )
    listing = choose_price(device, price_of)
    if usd_per_h is not None:
        listing = Price(f"{usd_per_h!r} USD/h", GIVEN_PRICE, date.today())
    return msgspec.structs.replace(device, rent=listing)


def find_cloud_name(name: str) -> str:
    """Return the name of a cloud as the prices have it, from that name or an alias.

    Raise UnknownName if there is no such cloud.
    """
    names = cloud_names()
    aliases = {alias: cloud.name for cloud in list_clouds() for alias in cloud.aliases}
    cloud_by_spelling = {normalize_name(spelling): aliases.get(spelling, spelling) for spelling in (*aliases, *names)}
    cloud_name = cloud_by_spelling.get(normalize_name(name))
    if cloud_name is None:
        raise UnknownName("cloud", name, names)
    return cloud_name

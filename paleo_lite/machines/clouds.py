"""Clouds: their instances, with the devices in them and prices. Every file of ``hardware/clouds/`` is a cloud."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Annotated

import msgspec

from ..errors import BadDevice
from ..files import read_typed, shipped_folder
from ..text import normalize_name
from .device import Price

_MAX_FILE_BYTES = 2**20


class Instance(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An instance that a cloud rents out."""

    name: str  # name of the cloud: ``g5.xlarge``
    device: str  # id of its device
    devices: Annotated[int, msgspec.Meta(ge=1)]  # number of these devices
    price: Price | None = None  # price of the instance, with its host; None if none is on record
    aliases: list[str] = []  # further names


class Cloud(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A cloud."""

    name: str
    sources: dict[str, str]  # title and address of each price list by key
    instances: list[Instance]
    aliases: list[str] = []

    def __post_init__(self) -> None:
        for instance in self.instances:
            if instance.price is not None and instance.price.source not in self.sources:
                raise ValueError(f"{instance.name}: {instance.price.source!r} is missing in sources")


def read_cloud(path: Path) -> Cloud:
    """Read the file of a cloud.

    Raise BadDevice if it is malformed, a price is no price, or a source is missing; the message names file and field.
    """
    cloud = read_typed(path, Cloud, "cloud", _MAX_FILE_BYTES, BadDevice)
    instances = []
    for instance in cloud.instances:
        price = instance.price
        if price is not None:
            price = msgspec.structs.replace(price, cloud=cloud.name)
        instances.append(msgspec.structs.replace(instance, price=price))
    return msgspec.structs.replace(cloud, instances=instances)


@cache
def list_clouds() -> tuple[Cloud, ...]:
    """Return all shipped clouds, by name."""
    clouds = [read_cloud(path) for path in sorted((shipped_folder("hardware") / "clouds").glob("*.toml"))]
    return tuple(sorted(clouds, key=lambda cloud: cloud.name))


def instance_names() -> list[str]:
    """Return the names of all instances."""
    return [instance.name for cloud in list_clouds() for instance in cloud.instances]


def find_instance(name: str) -> Instance | None:
    """Return the instance with a name, ignoring case, spaces and hyphens; None if there is none."""
    normalized = normalize_name(name)
    for cloud in list_clouds():
        for instance in cloud.instances:
            if normalized in (normalize_name(spelling) for spelling in (instance.name, *instance.aliases)):
                return instance
    return None

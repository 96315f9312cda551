"""Hours and money for a number of images and epochs."""

from __future__ import annotations

import math
from collections.abc import Iterable

import msgspec

from ..errors import BadValue
from ..hardware import Device
from ..units import parse_quantity
from .step import ScaleRow


class Budget(msgspec.Struct, frozen=True):
    """What is to be trained, and what an hour costs.

    Attributes
    ----------
    images : float or None
        Samples of one epoch.
    price_usd_per_h : float or None
        Of one device; None where it is not known.
    """

    images: float | None = None
    epochs: float = 1.0
    price_usd_per_h: float | None = None

    def hours(self, throughput_per_s: float) -> float | None:
        """Hours for all epochs; None where no images were given."""
        return None if self.images is None else self.images * self.epochs / throughput_per_s / 3600

    def cost(self, throughput_per_s: float, workers: int) -> float | None:
        """USD for all epochs on so many devices; None without images or price."""
        hours = self.hours(throughput_per_s)
        if hours is None or self.price_usd_per_h is None:
            return None
        return hours * workers * self.price_usd_per_h


def priced(rows: Iterable[ScaleRow], budget: Budget) -> list[ScaleRow]:
    """Rows with the hours and cost of a budget."""
    return [
        msgspec.structs.replace(
            row,
            hours=budget.hours(row.throughput_per_s),
            cost=budget.cost(row.throughput_per_s, row.workers),
            price_usd_per_h=budget.price_usd_per_h,
        )
        for row in rows
    ]


def make_budget(
    device: Device | None,
    images: float | str | None,
    epochs: float | None,
    price: float | str | None = None,
    *,
    cost_asked: bool = False,
    tokens: int | None = None,
) -> Budget:
    """A budget; the price is the one given, else what the device rents for.

    Parameters
    ----------
    device : Device or None
        None where its price plays no part.
    images : float or str, optional
        ``1281167`` or ``"1.28M"``, or ``"300B tokens"``.
    epochs : float, optional
        1 where none is given.
    price : float or str, optional
        USD per hour of one device: ``"0.90 USD/h"``.
    cost_asked : bool
        Whether an answer without a cost is an error.
    tokens : int, optional
        Of a sample; None where it has none.

    Raises
    ------
    BadValue
        If images, epochs or price are not above 0, epochs come without images, or a cost is asked for and images or
        price are missing.
    """
    count = None if images is None else _samples(images, tokens)
    if count is not None and not 0 < count < math.inf:
        raise BadValue(f"the number of images must be above 0, not {images!r}")
    if epochs is not None and not 0 < epochs < math.inf:
        raise BadValue(f"the number of epochs must be above 0, not {epochs!r}")
    if count is None and (epochs is not None or cost_asked):
        raise BadValue("hours and cost need a number of images: give --images, such as --images 1.28M")
    usd = None if device is None else device.rent_usd_per_h
    if price is not None:
        usd = parse_quantity(price, "USD/h")
        if not 0 < usd < math.inf:
            raise BadValue(f"the price must be above 0 USD/h, not {price!r}")
    if usd is None and cost_asked:
        raise BadValue(
            f"the price of an hour of {device.name if device else 'the device'} is unknown: "
            "give --price, such as '0.90 USD/h'"
        )
    return Budget(count, 1.0 if epochs is None else epochs, usd)


def _samples(images: float | str, tokens: int | None) -> float:
    """Samples, said as such or as their tokens."""
    if not isinstance(images, str) or not images.rstrip().endswith("tokens"):
        return parse_quantity(images, "")
    if tokens is None:
        raise BadValue(f"--images {images}: this network reads no tokens, say how many samples there are")
    number = images.rstrip().removesuffix("tokens").rstrip()
    return parse_quantity(f"{number[:-1]}G" if number.endswith("B") else number, "") / tokens  # B: billions

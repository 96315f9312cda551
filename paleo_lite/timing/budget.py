"""Amount of training in samples, epochs or tokens, and the hours, cost and energy that follow from a step time."""

from __future__ import annotations

import math
from datetime import date
from typing import Any, NamedTuple

import msgspec

from ..errors import BadQuantity, BadValue
from ..machines import Device, Price
from ..machines.prices import choose_price
from ..units import check_positive, parse_quantity


class Budget(msgspec.Struct, frozen=True):
    """Amount of training, and the price of a device."""

    images: float | None = None  # samples per epoch; of a language model sequences
    epochs: float = 1.0  # number of epochs
    price_usd_per_h: float | None = None  # price of one device in USD per hour; None if unknown
    listing: Price | None = None  # listing that the price comes from; None if it was given

    @property
    def row_fields(self) -> dict[str, Any]:
        """Fields of a row whose hours and cost follow from it."""
        return {"images": self.images, "epochs": self.epochs, "price_usd_per_h": self.price_usd_per_h}

    def describe_price(self) -> str:
        """Return the price of a device with the listing that it comes from, as text."""
        if self.price_usd_per_h is None:
            return "price unknown"
        return f"{self.price_usd_per_h:g} USD/h" if self.listing is None else self.listing.describe()

    def price_notes(self, today: date) -> list[str]:
        """Return a note if the price is older than a year."""
        return [] if self.listing is None else self.listing.notes(today)


class Amount(msgspec.Struct, frozen=True):
    """Amount of training as people state it; at most one of the first three."""

    images: float | str | None = None  # samples per epoch: ``1281167``, ``"1.28M"`` or ``"300B tokens"``
    samples: float | str | None = None  # samples per epoch, each padded to the length of a sequence: ``"52k"``
    tokens: float | str | None = None  # tokens per epoch: ``"15B"``
    epochs: float | None = None  # number of epochs; None for one

    def samples_per_epoch(self, sequence_tokens: int | None) -> float | None:
        """Return the samples per epoch, of a language model the sequences; None if no number is given.

        `sequence_tokens` are those of one sequence; None if the network reads no tokens. Raise BadValue if several
        numbers are given, or a number is not > 0, or tokens are given for a network that reads none.
        """
        stated = [name for name in ("images", "samples", "tokens") if getattr(self, name) is not None]
        if len(stated) > 1:
            raise BadValue(f"give one of `--samples` and `--tokens` (got {' and '.join(stated)})")
        if not stated:
            return None
        option = stated[0]
        text = getattr(self, option)
        try:
            number = _parse_samples(text, sequence_tokens) if option == "images" else parse_count(text)
        except BadQuantity:
            raise BadValue(f"`--{option}` must be a number such as 52k or 15B (got {text!r})") from None
        check_positive(f"`--{option}`", number, repr(text))
        if option == "tokens":
            return number / _check_tokens(sequence_tokens, "--tokens")
        return number


def make_budget(
    device: Device | None,  # whose rental price is the default; None if its price plays no part
    amount: Amount,
    price: float | str | None = None,  # USD per hour of one device: "0.90 USD/h"
    *,
    price_of: str | None = None,  # whose price is the default, as in `machines.prices.choose_price`
    platform_price: Price | None = None,
    sequence_tokens: int | None = None,  # tokens per sample; None if the network reads no tokens
) -> Budget:
    """Return the budget for an amount of training: samples or tokens, and epochs.

    Raise BadValue if the amount or price is not > 0, or epochs are given without samples.
    """
    samples = amount.samples_per_epoch(sequence_tokens)
    epochs = amount.epochs
    if epochs is not None:
        check_positive("`--epochs`", epochs, repr(epochs))
    if samples is None and epochs is not None:
        raise BadValue("hours and cost need an amount of training: give `--samples 52k` or `--tokens 15B`")
    check_one_price(price, price_of)
    listing = None
    if price is None and device is not None:
        listing = choose_price(device, price_of, platform_price)
    price_usd_per_h = None if listing is None else listing.usd_per_h
    if price is not None:
        price_usd_per_h = parse_price(price)
    return Budget(samples, 1.0 if epochs is None else epochs, price_usd_per_h, listing)


def check_one_price(price: float | str | None, price_of: str | None) -> None:
    """Raise an error if both a price and a cloud are requested."""
    if price is not None and price_of is not None:
        raise BadValue("`price` and `price_of` exclude each other")


def parse_price(price: float | str) -> float:
    """Return the price of a device in US dollars per hour, from a number or a text such as ``"3.06 USD/h"``.

    Raise BadValue if the price is not > 0.
    """
    try:
        usd_per_h = parse_quantity(price, "USD/h")
    except BadQuantity as error:
        raise BadValue(f"`--price` must be US dollars per hour: {error}") from None
    check_positive("`--price`", usd_per_h, repr(price), "> 0 USD/h")
    return usd_per_h


def parse_count(text: float | str) -> float:
    """Return a number of samples or tokens, in which B stands for billions: ``"15B"``, ``"52k"``."""
    if isinstance(text, str) and text.strip().endswith("B"):
        text = f"{text.strip()[:-1]}G"
    return parse_quantity(text, "")


def _parse_samples(images: float | str, tokens: int | None) -> float:
    """Return the number of samples, given as such or in tokens: ``"300B tokens"``."""
    if not isinstance(images, str) or not images.rstrip().endswith("tokens"):
        return parse_quantity(images, "")
    if tokens is None:
        raise BadValue(f"`--samples` must be a number of samples, since this network reads no tokens (got {images!r})")
    return parse_count(images.rstrip().removesuffix("tokens")) / tokens


def _check_tokens(sequence_tokens: int | None, option: str) -> int:
    if sequence_tokens is None:
        raise BadValue(f"`{option}` is for networks that read tokens: give `--samples`")
    return sequence_tokens


class TrainingRun(NamedTuple):
    """Hours, cost and energy of an amount of training; intervals are at 90%, and None if the time has none."""

    samples: float  # samples of all epochs; of a language model sequences
    steps: int  # updates of the weights
    # Duration, cost at the price of the devices, and energy of the devices, without hosts and cooling; None if
    # price or power are unknown.
    hours: float
    hours_interval: tuple[float, float] | None
    cost_usd: float | None
    cost_interval: tuple[float, float] | None
    kwh: float | None
    kwh_interval: tuple[float, float] | None
    price: str | None  # price of a device, with its listing; None if unknown

    def to_dict(self) -> dict[str, Any]:
        """Return the documented JSON."""
        return {name: list(value) if isinstance(value, tuple) else value for name, value in self._asdict().items()}


def training_run(
    budget: Budget,
    step_s: float,
    interval: tuple[float, float] | None,  # of the step time
    batch_size: int,  # samples per step of all devices
    devices: int,
    power_w: float | None,  # average power of a device
    power_interval_w: tuple[float, float] | None = None,  # of the power; None if it is the rated one
) -> TrainingRun | None:
    """Return hours, cost and energy of a budget; None without a number of samples."""
    if budget.images is None:
        return None
    samples = budget.images * budget.epochs
    hours_of_step = samples / batch_size / 3600
    hours = step_s * hours_of_step
    hours_interval = None
    if interval is not None:
        hours_interval = (float(interval[0]) * hours_of_step, float(interval[1]) * hours_of_step)

    def amounts(rate_per_h: float | None) -> tuple[float | None, tuple[float, float] | None]:
        if rate_per_h is None:
            return None, None
        if hours_interval is None:
            return hours * rate_per_h, None
        return hours * rate_per_h, (hours_interval[0] * rate_per_h, hours_interval[1] * rate_per_h)

    usd_per_h = None if budget.price_usd_per_h is None else devices * budget.price_usd_per_h
    cost_usd, cost_interval = amounts(usd_per_h)
    kwh, kwh_interval = amounts(None if power_w is None else devices * power_w / 1e3)
    if kwh and power_w and kwh_interval is not None and power_interval_w is not None:
        below, above = (
            math.hypot(math.log(end / kwh), math.log(end_w / power_w))
            for end, end_w in zip(kwh_interval, power_interval_w, strict=True)
        )
        kwh_interval = (kwh * math.exp(-below), kwh * math.exp(above))
    steps = math.ceil(samples / batch_size)
    price = None if budget.price_usd_per_h is None else budget.describe_price()
    return TrainingRun(samples, steps, hours, hours_interval, cost_usd, cost_interval, kwh, kwh_interval, price)

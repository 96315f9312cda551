"""How the layers of a network are split over the devices of one's own machine, which may be of several kinds."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

from ..errors import BadValue
from ..machines import Device
from ..text import format_plural
from .memory import usable_bytes
from .question import LocalQuestion


class DevicesOfKind(NamedTuple):
    """The devices of one kind in a machine."""

    device: Device
    number: int
    share: float  # of the blocks, on all of them together
    largest_share: float  # on the one of them that has most


def split_layers(devices: Sequence[Device], question: LocalQuestion, blocks: int) -> list[DevicesOfKind]:
    """Return the devices of a machine by kind, with the shares of the blocks that they hold.

    One device stands for as many of its kind as the question asks for. Without ``--tensor-split`` devices of one kind
    hold the same share each, and those of several kinds as much as they have memory, as under llama.cpp. Raise BadValue
    for proportions of another number of devices.
    """
    cards = list(devices) if len(devices) > 1 else list(devices) * question.gpus
    proportions = question.tensor_split
    if proportions is None:
        proportions = tuple(usable_bytes(card, question.memory_bytes) for card in cards)
    if len(proportions) != len(cards):
        raise BadValue(
            f"`--tensor-split` gives {format_plural(len(proportions), 'proportion')} for "
            f"{format_plural(len(cards), 'device')}: give one for each"
        )
    shares = _shares(proportions, blocks)
    kinds = {card.id: card for card in cards}
    of_kind = {name: [share for card, share in zip(cards, shares, strict=True) if card.id == name] for name in kinds}
    if len(kinds) == 1:
        return [DevicesOfKind(cards[0], len(cards), 1.0, max(shares))]
    return [DevicesOfKind(kinds[name], len(of_its), sum(of_its), max(of_its)) for name, of_its in of_kind.items()]


def fill_fastest(
    devices: Sequence[Device],
    token_s: Sequence[float],  # of each device, if it held all blocks
    needed_bytes: float,  # of all devices together
    question: LocalQuestion,
    blocks: int,
) -> tuple[float, ...]:
    """Return the blocks on each device, with the head as one more, if the fastest devices hold as many as they can."""
    left, placed = blocks + 1, dict.fromkeys(range(len(devices)), 0)
    for number in sorted(placed, key=lambda number: token_s[number]):
        room = int(usable_bytes(devices[number], question.memory_bytes) / needed_bytes * (blocks + 1))
        placed[number] = min(room, left)
        left -= placed[number]
    return tuple(map(float, placed.values()))


def names_of(kinds: Sequence[DevicesOfKind]) -> str:
    """Return the name of the only kind of device, or those of all kinds, with how many there are."""
    if len(kinds) == 1:
        return kinds[0].device.name
    return " + ".join(f"{kind.number} x {kind.device.name}" if kind.number > 1 else kind.device.name for kind in kinds)


def room_bytes(kinds: Sequence[DevicesOfKind], question: LocalQuestion) -> float:
    """Return the bytes of weights, cache and buffers that the devices hold as they share them: one is full first."""
    return min(
        usable_bytes(kind.device, question.memory_bytes) / kind.largest_share for kind in kinds if kind.largest_share
    )


def _shares(proportions: Sequence[float], blocks: int) -> list[float]:
    """Return the share of the blocks on each device, with the head as one more.

    As llama.cpp places them: a block is on the first device at which the sum of the proportions is above its number,
    over all (``load_tensors`` in src/llama-model.cpp). Even parts are taken to be exactly even.
    """
    if len(set(proportions)) == 1:
        return [1 / len(proportions)] * len(proportions)
    ends = list(accumulate(proportions))
    places = [bisect_right(ends, ends[-1] * number / (blocks + 1)) for number in range(blocks + 1)]
    return [places.count(place) / (blocks + 1) for place in range(len(proportions))]

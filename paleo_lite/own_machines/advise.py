"""Which format and which device for a network under llama.cpp, and what the next device would bring."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import ClassVar, NamedTuple

import msgspec

from ..errors import BadValue, DoesNotFit
from ..gguf_types import DIFFERING_TOKENS
from ..machines import Device
from ..result import TableOfAnswers
from .contents import Contents
from .memory import most_host_bytes, usable_bytes, whole_bytes
from .predict import LocalPrediction, predict_local
from .question import LocalQuestion
from .split import names_of, room_bytes, split_layers

BEST_NOTE = "the best format is the one with the most bits that is wholly on the device"
LOSS_NOTE = (
    "tokens differ: share for which Mistral 7B finds another token the most likely than in 16 bits (Artefact2, KL "
    "divergences of GGUF); larger networks lose less"
)

OF_ONE_KIND = (
    "each row is of {count} devices of one kind: for different cards in one machine join their names by plus signs, "
    "`--gpu {cards}`"
)
"""Note on devices that are compared, as they might be taken for the cards of one machine."""

NAMED = 4
"""Devices or formats that a note names."""

OLDEST_YEAR = 2018
"""Year from which devices are compared unless some are given."""


class LocalAdvice(TableOfAnswers, msgspec.Struct, frozen=True):
    """Formats or devices for a network, the best first."""

    network: str
    context: int  # tokens in the cache
    # What is ranked: "formats" on one device, those with the most bits that are wholly on it first; or "devices" in one
    # format, those that hold it wholly first and of them the fastest.
    by: str
    rows: tuple[LocalPrediction, ...]  # the predictions
    # For each row, the format with the most bits that is wholly on its device; None if none is.
    best_weights: tuple[str | None, ...]
    notes: tuple[str, ...] = ()

    _page: ClassVar[str] = "paleo_lite.reporting.local:advice_page"
    answers_in: ClassVar[str] = "rows"


def rank_formats(
    formats: Sequence[Contents],  # the network in each format
    devices: Sequence[Device],  # of one machine, as of `predict_local`
    cpu: Device | None,  # processor for what is not on them; None if they share its memory
    question: LocalQuestion,
) -> LocalAdvice:
    """Rank formats of a network on a machine: those that its devices hold wholly first, of them the most bits.

    Raise BadValue if an option is not possible.
    """
    rows, failures = _predict_those_that_fit([(in_format, devices, cpu) for in_format in formats], question)
    rows.sort(key=_rank_of_format)
    best = rows[0].weights if rows[0].is_whole else None
    losses = (LOSS_NOTE,) if any(row.weights in DIFFERING_TOKENS for row in rows) else ()
    hosts = _describe_hosts(rows, [row.weights for row in rows], [cpu])
    notes = (BEST_NOTE, *losses, *rows[0].notes, *hosts, *_describe_left_out(failures, "formats"))
    return LocalAdvice(rows[0].network, rows[0].context, "formats", tuple(rows), (best,) * len(rows), notes)


class NotFitting(NamedTuple):
    """A network in a format that does not fit on the devices of a machine."""

    contents: Contents
    devices: str  # their names
    needed_bytes: float  # for everything to be on the device
    there_bytes: float  # that it may take there
    error: DoesNotFit

    def describe(self) -> str:
        """Return format and devices, with what is needed and what there is."""
        sizes = f"{self.needed_bytes / 1e9:.1f} of {self.there_bytes / 1e9:.1f} GB"
        return f"{self.contents.weights} on {self.devices} ({sizes})"


def _predict_those_that_fit(
    asked: Sequence[tuple[Contents, Sequence[Device], Device | None]], question: LocalQuestion
) -> tuple[list[LocalPrediction], list[NotFitting]]:
    """Return the predictions of what fits, and the rest; raise DoesNotFit if nothing fits, with what is nearest."""
    rows: list[LocalPrediction] = []
    failures: list[NotFitting] = []
    for contents, devices, cpu in asked:
        try:
            rows.append(predict_local(contents, devices, cpu, question))
        except DoesNotFit as error:
            kinds = split_layers(devices, question, contents.blocks)
            needed_bytes = whole_bytes(contents, question.context_of(contents))
            failures.append(NotFitting(contents, names_of(kinds), needed_bytes, room_bytes(kinds, question), error))
    if not rows:
        which = f"none of {len(failures)} fits, of which the nearest: " if len(failures) > 1 else ""
        raise DoesNotFit(f"{which}{_nearest(failures).error}")
    return rows, failures


def _nearest(failures: Sequence[NotFitting]) -> NotFitting:
    """Return what lacks the least memory."""
    return min(failures, key=lambda failure: failure.needed_bytes - failure.there_bytes)


def _describe_left_out(failures: Sequence[NotFitting], ranked: str) -> list[str]:
    """Return which of the ranked formats or devices do not fit, with needed and present memory; of many the nearest."""
    if not failures:
        return []
    if len(failures) <= NAMED:
        return [f"left out, as too large: {', '.join(failure.describe() for failure in failures)}"]
    nearest = _nearest(failures).describe()
    return [f"left out, as too large: {len(failures)} {ranked}, the nearest of them {nearest}"]


def _describe_hosts(rows: Sequence[LocalPrediction], names: Sequence[str], cpus: Iterable[Device | None]) -> list[str]:
    """Return which rows leave more to the memory of the host than its processor usually takes."""
    cpu = next((each for each in cpus if each is not None), None)
    if cpu is None:
        return []
    crowded = [name for name, row in zip(names, rows, strict=True) if row.host_bytes > most_host_bytes(cpu)]
    if not crowded:
        return []
    more = f" and {len(crowded) - NAMED} others" if len(crowded) > NAMED else ""
    return [
        f"the host must hold more than the {cpu.memory_bytes / 1e9:.0f} GB that {cpu.name} usually takes with "
        f"{', '.join(crowded[:NAMED])}{more}: name a processor that takes more with `--cpu`"
    ]


def _rank_of_format(row: LocalPrediction) -> tuple[bool, float]:
    return (False, -row.file_bytes) if row.is_whole else (True, row.token_s)


def rank_devices(
    contents: Contents,  # the network in the format that is compared
    # The network in the formats of which the best that fits is named, from the most bits to the fewest.
    formats: Sequence[Contents],
    # The devices of each machine, with the processor for what is not on them; None if they share its memory.
    machines: Sequence[tuple[Sequence[Device], Device | None]],
    question: LocalQuestion,
) -> LocalAdvice:
    """Rank machines for a network in one format: those that hold it wholly first, of them the fastest.

    Raise BadValue if there is none, or an option is not possible.
    """
    if not machines:
        raise BadValue("`--advise` needs at least one device")
    rows, failures = _predict_those_that_fit([(contents, devices, cpu) for devices, cpu in machines], question)
    rows.sort(key=lambda row: (not row.is_whole, row.token_s))
    best = []
    for row in rows:
        fits = (in_format.weights for in_format in formats if whole_bytes(in_format, row.context) <= row.usable_bytes)
        best.append(next(fits, None))
    notes = (
        "each device in the same format; the best format is the one with the most bits that is wholly on it",
        *_describe_hosts(rows, [row.device for row in rows], [cpu for _, cpu in machines]),
        *_describe_left_out(failures, "devices"),
        *_note_on_kinds([devices[0] for devices, _ in machines], question),
    )
    return LocalAdvice(contents.name, rows[0].context, "devices", tuple(rows), tuple(best), notes)


def _note_on_kinds(devices: Sequence[Device], question: LocalQuestion) -> list[str]:
    """Return the note on several devices of each kind, if different ones are compared."""
    if question.gpus == 1 or len(devices) == 1:
        return []
    cards = "+".join(device.id for device in devices[:2])
    return [OF_ONE_KIND.format(count=question.gpus, cards=cards)]


def own_machine_devices(devices: Iterable[Device]) -> list[Device]:
    """Return the devices of people's own machines: GPUs since `OLDEST_YEAR` without stacked memory."""
    return [
        device
        for device in devices
        if device.scope != "cpu" and device.year >= OLDEST_YEAR and not device.memory.type.startswith("HBM")
    ]


def next_device(
    prediction: LocalPrediction,  # for the device at hand, on which not everything is
    contents: Contents,
    device: Device,  # the device at hand
    devices: Iterable[Device],  # that are for sale
    question: LocalQuestion,
) -> LocalPrediction | None:
    """Return the prediction for the next device: the smallest of the same backend that would hold everything."""
    own_bytes = usable_bytes(device, question.memory_bytes)
    larger = [
        other
        for other in own_machine_devices(devices)
        if question.engine.runs_on(other)
        and question.engine.backend_of(other) == question.engine.backend_of(device)
        and other.laptop == device.laptop
        and other.year >= device.year
        and usable_bytes(other) > own_bytes
        and other.bandwidth_bytes_per_s >= device.bandwidth_bytes_per_s
    ]
    larger.sort(key=lambda other: (other.memory_bytes, other.bandwidth_bytes_per_s))
    question = msgspec.structs.replace(
        question, device_memory=None, cpu_experts=False, cpu_expert_blocks=None, cpu_cache=False
    )
    for other in larger:
        try:
            return predict_local(contents, [other], None, question)
        except DoesNotFit:
            continue
    return None


def describe_next(prediction: LocalPrediction, row: LocalPrediction) -> str:
    """Return the sentence about the next device."""
    size = f"{row.usable_bytes / row.gpus / 1e9:.0f} GB"
    devices = f"{row.gpus} x {row.device}" if row.gpus > 1 else row.device
    return (
        f"{devices} ({size} usable) would hold all {row.blocks} blocks: {row.tokens_per_s:.1f} tokens/s instead of "
        f"{prediction.tokens_per_s:.1f}"
    )

"""Prompt, answer and memory of a language model under llama.cpp, on a device and the memory of its host."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import msgspec

from ..calibration.evidence_notes import notes_on_calibration
from ..calibration.power_causes import learned_device
from ..engines.records.record import LocalEngine
from ..errors import BadValue, DoesNotFit
from ..machines import Device
from ..text import format_plural
from ..timing.activity import Activity
from ..timing.answer import Answer
from ..timing.energy import with_power_limit
from ..timing.intervals import not_below
from ..units import format_si
from .causes import KIND, calibrated_constants, local_traits
from .contents import Contents
from .energy import LocalEnergy, energy_of, prompt_under_limit, token_under_limit
from .memory import (
    USUAL_GRAPHICS_SHARE,
    binary_bytes,
    buffer_bytes_of,
    largest_context,
    maps_host_memory,
    most_host_bytes,
    shared_bytes,
    shares_memory,
    whole_bytes,
)
from .placement import BlockPlacement, candidates, needed_bytes, place
from .question import LocalQuestion
from .split import DevicesOfKind, names_of, room_bytes, split_layers
from .step import (
    UBATCH,
    BackendConstants,
    cache_read_s,
    constants_of,
    interval_of,
    local_constants,
    overlapped_share,
    piece_s,
    prompt_activity,
    prompt_s,
    token_activity,
)

DEFAULT_CPU = "ryzen-9-7950x"


LINK_BYTES_PER_S = 25e9
"""Bandwidth of copies from the memory of the host, as PCIe 4.0 x16 reaches it."""

OFFLOAD_DEVIATION = 0.25
"""Smallest standard deviation of the logarithm of a time where the host computes a part: no such run was fitted."""


class LocalPrediction(Answer, msgspec.Struct, frozen=True):
    """What llama.cpp does on a machine."""

    # Question: network, device, program and its backend, and formats of weights and cache.
    network: str
    gpu: str  # ID of the device; of devices of several kinds all IDs, joined by plus signs
    device: str  # its name, or their names
    execution: str
    backend: str
    weights: str
    kv_cache: str
    gpus: int  # devices that the layers are split over
    split: dict[str, float]  # share of the blocks on the devices of each kind, by ID
    # Tokens in the cache, and of the prompt.
    context: int
    prompt_tokens: int
    # Transformer blocks, and those on the device.
    blocks: int
    gpu_blocks: int
    # Blocks whose experts are in the memory of the host though the rest of them may be on the device.
    cpu_expert_blocks: int
    cpu: str | None  # processor that computes what is not on the device; None if all is
    # Seconds per token of the answer behind the context, and of the prompt.
    token_s: float
    prompt_s: float
    # Their intervals at 90%.
    token_interval_s: tuple[float, float]
    prompt_interval_s: tuple[float, float]
    file_bytes: float  # bytes of all weights
    # Bytes on the devices of weights, cache at the context, and buffers; bytes in the memory of the host.
    weight_bytes: float
    cache_bytes: float
    buffer_bytes: float
    host_bytes: float
    usable_bytes: float  # memory of the devices that llama.cpp may use
    largest_context: int  # largest context with which the same layers fit, and that the network knows
    # Watts, and energy and cost of a million tokens; None if nothing is known of the power of the device.
    energy: LocalEnergy | None = None
    notes: tuple[str, ...] = ()

    _page: ClassVar[str] = "paleo_lite.reporting.local:local_page"
    time_of: ClassVar[str] = "token"
    is_forecast: ClassVar[bool] = True
    bound_s: ClassVar[None] = None  # no bound is computed for a machine whose host and devices share the work

    @property
    def devices(self) -> int:
        """Number of devices."""
        return self.gpus

    @property
    def precision(self) -> str:
        """Format of the weights."""
        return self.weights

    @property
    def time_s(self) -> float:
        """Seconds of a token of the answer."""
        return self.token_s

    @property
    def interval(self) -> tuple[float, float]:
        """90% interval of the seconds of a token."""
        return self.token_interval_s

    @property
    def throughput_per_s(self) -> float:
        """Tokens of the answer per second."""
        return self.tokens_per_s

    @property
    def memory_bytes(self) -> float:
        """Bytes on the devices of weights, cache at the context, and buffers."""
        return self.weight_bytes + self.cache_bytes + self.buffer_bytes

    @property
    def fits(self) -> bool:
        """Whether the machine holds it, which it does: what does not fit has no prediction."""
        return True

    @property
    def power_w(self) -> float | None:
        """Average power of a device while an answer is written, in watts; None if unknown."""
        return None if self.energy is None else self.energy.token_w / self.gpus

    @property
    def is_whole(self) -> bool:
        """Whether nothing is computed by the processor of the host."""
        return self.cpu is None

    @property
    def tokens_per_s(self) -> float:
        """Tokens of the answer per second."""
        return 1 / self.token_s

    @property
    def prompt_tokens_per_s(self) -> float:
        """Tokens of the prompt per second."""
        return self.prompt_tokens / self.prompt_s


def predict_local(
    contents: Contents,  # a language model in a format, of `paleo_lite.own_machines.contents.read_contents`
    devices: Sequence[Device],  # one, which stands for all of its kind that the question asks for, or each of several
    # Processor for what is not on the devices; None if there is no memory but theirs, as of a Mac.
    cpu: Device | None,
    question: LocalQuestion,
) -> LocalPrediction:
    """Predict a network on the devices of a machine, which take turns.

    Raise BadValue if an option is not possible for the network or a device, and DoesNotFit if the requested layers do
    not fit.
    """
    question.check(contents)
    if question.power_limit is not None:
        devices = [with_power_limit(device, question.power_limit) for device in devices]
    context, prompt_tokens = question.context_of(contents), question.prompt_tokens
    engine, device = question.engine, devices[0]
    backend = _backend_of(devices, question)
    kinds = split_layers(devices, question, contents.blocks)
    budget = room_bytes(kinds, question)
    buffer_bytes = buffer_bytes_of(contents)
    possible = _possible_placements(contents, kinds, question, buffer_bytes, has_cpu=cpu is not None)
    host_constants = local_constants().backends["cpu"]
    constants, notes = _constants_of(contents, kinds, backend, question, context)

    def token_parts(placement: BlockPlacement) -> tuple[list[Activity], float, float]:
        """Return the activity of the devices of each kind for a token, the seconds of all, and those of the host."""
        activities, devices_s = [], 0.0
        for kind, of_kind in zip(kinds, constants, strict=True):
            activity = token_activity(
                contents, placement.device, kind.device, of_kind, context, placement.cache_share
            ).times(kind.share)
            seconds = device_token_s(contents, placement, kind.device, of_kind, context) * kind.share
            activity, seconds = token_under_limit(kind.device, activity, seconds)
            activities.append(activity)
            devices_s += seconds
        host_s = 0.0 if cpu is None else host_token_s(contents, placement, cpu, host_constants, context)
        return activities, devices_s, host_s

    placed = min(possible, key=lambda placement: sum(token_parts(placement)[1:]))
    cache_bytes = contents.cache_bytes(context)
    host_bytes = placed.host_weight_bytes + cache_bytes * (1 - placed.cache_share)
    device_bytes = placed.weight_bytes + cache_bytes * placed.cache_share + buffer_bytes
    if host_bytes and shares_memory(device):
        _check_shared_memory(contents, device, device_bytes + host_bytes, question)
    activities, devices_s, host_s = token_parts(placed)
    seconds = devices_s + host_s
    of_prompt, first_s = _prompt_parts(contents, kinds, constants, question, placed)
    deviation, prompt_deviation = _deviations(constants, host_constants if host_s else None)
    token_low_s, token_high_s = interval_of(seconds, deviation)
    token_low_s = float(not_below(token_low_s, _token_traffic_s(contents, placed, kinds, cpu, context), seconds))
    notes += _notes_of_run(contents, engine, backend, activities, cpu if host_s else None)
    notes += _notes_on_memory(kinds, cpu, question.memory_bytes, device_bytes, host_bytes)
    if question.context is not None and prompt_tokens > max(context, UBATCH):
        notes.append(
            f"the prompt of {prompt_tokens:,} tokens is timed by itself: a context of {context:,} does not hold it"
        )
    notes += _notes_on_split(kinds, question)
    learned = learned_device(device, contents.name, question.calibration)
    if question.calibration is not None:
        notes += notes_on_calibration(question.calibration, "local", learned, contents.name, {KIND}, learns_links=False)
    energy = energy_of(
        [kind._replace(device=learned) if kind.device.id == device.id else kind for kind in kinds],
        (activities, seconds),
        (of_prompt, first_s),
        prompt_tokens,
        question.facility,
        has_experts=contents.has_experts,
    )
    if energy is not None and host_s:
        notes.append("the watts are those of the devices: the processor's are not included")
    return LocalPrediction(
        network=contents.name,
        gpu="+".join(kind.device.id for kind in kinds for _ in range(kind.number)) if len(kinds) > 1 else device.id,
        device=names_of(kinds),
        execution=question.execution,
        backend=backend,
        weights=contents.weights,
        kv_cache=contents.cache,
        gpus=sum(kind.number for kind in kinds),
        split={kind.device.id: kind.share for kind in kinds},
        context=context,
        prompt_tokens=prompt_tokens,
        blocks=contents.blocks,
        gpu_blocks=placed.blocks,
        cpu_expert_blocks=placed.expert_blocks,
        cpu=cpu.name if host_s and cpu is not None else None,
        token_s=seconds,
        prompt_s=first_s,
        token_interval_s=(token_low_s, token_high_s),
        prompt_interval_s=interval_of(first_s, prompt_deviation),
        file_bytes=contents.stored_bytes,
        weight_bytes=placed.weight_bytes,
        cache_bytes=cache_bytes * placed.cache_share,
        buffer_bytes=buffer_bytes,
        host_bytes=host_bytes,
        usable_bytes=budget,
        largest_context=largest_context(contents, placed.cache_share, budget - buffer_bytes - placed.weight_bytes),
        energy=energy,
        notes=tuple(notes),
    )


def time_on_each(contents: Contents, devices: Sequence[Device], question: LocalQuestion) -> list[float]:
    """Return the seconds of a token on each of several devices, if it held all of a network."""
    backend, context = _backend_of(devices, question), question.context_of(contents)
    whole = place(contents, contents.blocks + 1, 0, False)
    return [device_token_s(contents, whole, each, constants_of(backend, each), context) for each in devices]


def _check_shared_memory(contents: Contents, device: Device, needed_bytes: float, question: LocalQuestion) -> None:
    """Raise DoesNotFit if a device and the processor that shares its memory need more than there is."""
    there_bytes = shared_bytes(device, question.memory_bytes)
    if needed_bytes > there_bytes:
        raise DoesNotFit(
            f"{contents.name} in {contents.weights} needs {needed_bytes / 1e9:.1f} GB, and {device.name} and its "
            f"processor share {there_bytes / 1e9:.1f} GB: use narrower weights or a shorter context"
        )


def _deviations(devices: Sequence[BackendConstants], host: BackendConstants | None) -> tuple[float, float]:
    """Return the deviations of the time of a token and of a prompt; `host` is None if devices compute all of it."""
    deviation = max(constants.deviation for constants in devices)
    prompt_deviation = max(constants.prompt_deviation for constants in devices)
    if host is None:
        return deviation, prompt_deviation
    return max(deviation, host.deviation, OFFLOAD_DEVIATION), max(prompt_deviation, OFFLOAD_DEVIATION)


def _prompt_parts(
    contents: Contents,
    kinds: Sequence[DevicesOfKind],
    constants: Sequence[BackendConstants],  # of each kind
    question: LocalQuestion,
    placement: BlockPlacement,
) -> tuple[list[Activity], float]:
    """Return the activity of the devices of each kind in a prompt, and its seconds with the weights that are copied."""
    merged, tokens = contents.merged(), question.prompt_tokens
    of_all_s = [prompt_s(merged, kind.device, each, tokens) for kind, each in zip(kinds, constants, strict=True)]
    in_turn_s = sum(kind.share * whole_s for kind, whole_s in zip(kinds, of_all_s))
    slowest = max(kind.largest_share * whole_s for kind, whole_s in zip(kinds, of_all_s)) / in_turn_s
    overlapping = overlapped_share(tokens, slowest, local_constants().pipeline)
    activities, computing_s = [], 0.0
    for kind, of_kind, whole_s in zip(kinds, constants, of_all_s):
        activity = prompt_activity(merged, kind.device, of_kind, tokens).times(kind.share)
        seconds = kind.share * whole_s * overlapping
        activity, seconds = prompt_under_limit(kind, activity, seconds, in_turn_s * overlapping)
        activities.append(activity)
        computing_s += seconds
    copied_bytes = sum(piece.stored_bytes for piece in placement.computed_on_host)
    return activities, computing_s + -(-tokens // UBATCH) * copied_bytes / LINK_BYTES_PER_S


def _backend_of(devices: Sequence[Device], question: LocalQuestion) -> str:
    """Return the backend of all devices; raise BadValue if they have none in common, or the program takes one kind."""
    engine = question.engine
    processor = next((device for device in devices if device.scope == "cpu"), None)
    if processor is not None and len(devices) > 1:
        raise BadValue(f"{processor.name} is the processor of the machine: name it with `--cpu`")
    backends = {device.id: engine.backend_of(device, question.backend) for device in devices}
    if len(backends) > 1 and not engine.places:
        raise BadValue(f"devices of several kinds are for `--engine llama.cpp` (got {question.execution})")
    if len(set(backends.values())) > 1:
        usual = ", ".join(f"{backend} of {name}" for name, backend in backends.items())
        raise BadValue(f"one backend runs all devices, and the usual ones differ ({usual}): give `--backend vulkan`")
    return next(iter(backends.values()))


def _notes_on_split(kinds: Sequence[DevicesOfKind], question: LocalQuestion) -> list[str]:
    """Return how unevenly the blocks are split, and how several kinds of devices share them."""
    largest_share, count = max(kind.largest_share for kind in kinds), sum(kind.number for kind in kinds)
    if len(kinds) > 1:
        shares = ", ".join(f"{kind.share:.0%} on {kind.device.id}" for kind in kinds)
        how = "by memory, as llama.cpp does" if question.tensor_split is None else "as `--tensor-split` says"
        return [f"the blocks are split {how}, and the devices take turns: {shares}"]
    if question.tensor_split is None or largest_share <= 1 / count:
        return []
    return [
        f"{largest_share:.0%} of the blocks are on one device, and with them as much of the cache: "
        f"{count} devices hold as much as {1 / largest_share:.3g} would that share evenly"
    ]


def _notes_of_run(
    contents: Contents, engine: LocalEngine, backend: str, activities: Sequence[Activity], cpu: Device | None
) -> list[str]:
    """Return the notes of a run, given the activities for a token, and the processor that computes a part if any."""
    notes = [f"one request at a time; constants of the backend {backend}, fitted to published tables of other devices"]
    if engine.caution:
        notes.append(engine.caution)
    if sum(each.arithmetic_s for each in activities) > sum(each.memory_s for each in activities):
        notes.append(
            f"the device unpacks the numbers of {contents.weights} for longer than it reads them: a wider format that "
            "is simpler to unpack may be faster"
        )
    if cpu is not None:
        notes.append(f"layers outside the device run on {cpu.name}; for prompts their weights are copied over the link")
    return notes


def _notes_on_memory(
    kinds: Sequence[DevicesOfKind],
    cpu: Device | None,
    stated_bytes: float | None,
    device_bytes: float,
    host_bytes: float,
) -> list[str]:
    """Return where a question takes more memory than is on record of a device or its host, or is usual."""
    notes, device = [], kinds[0].device
    if (
        maps_host_memory(device)
        and device_bytes > binary_bytes(stated_bytes or device.memory_bytes) * USUAL_GRAPHICS_SHARE
    ):
        notes.append(
            "Linux lets the graphics use half of the memory by default: more needs another limit, `ttm.pages_limit` "
            "of the kernel"
        )
    if stated_bytes is not None and stated_bytes > device.memory_bytes:
        stated, on_record = (format_si(size, "B", 3) for size in (stated_bytes, device.memory_bytes))
        notes.append(f"`--device-memory` states {stated}: {device.name} has {on_record} on record")
    if cpu is not None and host_bytes > most_host_bytes(cpu):
        notes.append(
            f"the host must hold {format_si(host_bytes, 'B', 3)}, and {cpu.name} usually takes at most "
            f"{format_si(cpu.memory_bytes, 'B', 3)}: name a processor that takes more with `--cpu`, or narrower weights"
        )
    return notes


def _possible_placements(
    contents: Contents,
    kinds: Sequence[DevicesOfKind],
    question: LocalQuestion,
    buffer_bytes: float,  # part of the memory that buffers take
    *,
    has_cpu: bool,  # whether a processor computes what is not on the device
) -> list[BlockPlacement]:
    """Return the placements that fit into the memory; raise DoesNotFit if there is none."""
    context, budget_bytes = question.context_of(contents), room_bytes(kinds, question)
    device, name = kinds[0].device, names_of(kinds)
    # As under llama.cpp, a number above that of the blocks and the head, such as 99, is all of them.
    gpu_layers = None if question.gpu_layers is None else min(question.gpu_layers, contents.blocks + 1)
    expert_blocks = question.expert_blocks_of(contents)
    possible = list(
        candidates(
            contents,
            budget_bytes - buffer_bytes,
            context,
            gpu_layers=gpu_layers,
            cpu_expert_blocks=expert_blocks,
            cpu_cache=question.cpu_cache,
        )
    )
    if not possible:
        requested = place(contents, gpu_layers or 0, expert_blocks or 0, question.cpu_cache)
        fitting = candidates(
            contents,
            budget_bytes - buffer_bytes,
            context,
            cpu_expert_blocks=expert_blocks,
            cpu_cache=question.cpu_cache,
        )
        most = next((placed.layers for placed in fitting), 0)
        fewer = f"use `--gpu-layers {most}`, which fits," if most else "use"
        raise DoesNotFit(
            f"{contents.name} in {contents.weights} with {format_plural(requested.layers, 'layer')} on the device and "
            f"a context of {context} needs "
            f"{(needed_bytes(contents, requested, context) + buffer_bytes) / 1e9:.1f} GB, and {name} has "
            f"{budget_bytes / 1e9:.1f} GB: {fewer} narrower weights or a shorter context"
        )
    if has_cpu:
        return possible
    if expert_blocks:
        is_host = device.scope == "cpu"
        why = "is the processor itself" if is_host else "shares its memory with its processor"
        or_else = "" if is_host else ", or name a `--cpu`"
        raise BadValue(f"{device.name} {why}: leave `--cpu-experts` and `--cpu-expert-blocks` out{or_else}")
    on_device = [placed for placed in possible if placed.is_whole]
    if not on_device:
        needed_gb = whole_bytes(contents, context) / 1e9
        why, or_else = "", ""
        if device.scope == "cpu":
            or_else = ", or more memory with `--device-memory`"
        elif question.engine.places:
            why = ", which shares its memory with its processor,"
            is_enough = needed_gb * 1e9 <= shared_bytes(device, question.memory_bytes)
            or_else = ", or name a `--cpu`, which may use the rest" if is_enough else ""
        raise DoesNotFit(
            f"{contents.name} in {contents.weights} needs {needed_gb:.1f} GB at a context of {context}, and "
            f"{name}{why} may use {budget_bytes / 1e9:.1f} GB: use narrower weights or a shorter context"
            f"{or_else}"
        )
    return on_device


def _constants_of(
    contents: Contents, kinds: Sequence[DevicesOfKind], backend: str, question: LocalQuestion, context: int
) -> tuple[list[BackendConstants], list[str]]:
    """Return the constants of a backend for each kind, calibrated if that is asked for, and the first notes."""
    of_kinds, notes, calibration = [], [*contents.notes], question.calibration
    for device in (kind.device for kind in kinds):
        constants = constants_of(backend, device)
        if constants.makers and device.vendor not in constants.makers:
            notes.append(
                f"no device of {device.vendor} was measured under {backend}, only those of "
                f"{' and '.join(constants.makers)}: the time of a prompt is less certain"
            )
        if calibration is not None:
            notes.append(calibration.describe_distance(KIND, local_traits(contents, device, backend)))
            constants = calibrated_constants(
                calibration, contents, device, backend, constants, context, question.prompt_tokens
            )
        of_kinds.append(constants)
    return of_kinds, list(dict.fromkeys(notes))


def _token_traffic_s(
    contents: Contents, placed: BlockPlacement, kinds: Sequence[DevicesOfKind], cpu: Device | None, context: float
) -> float:
    """Return the seconds in which a token reads its weights and cache at the bandwidths of the data sheets.

    None of 271 published speeds is above that: the fastest takes 1.13 times as long.
    """
    cache_bytes = contents.cache_bytes(context)
    read_bytes = sum(piece.read_bytes for piece in placed.device) + placed.cache_share * cache_bytes
    seconds = sum(kind.share * read_bytes / kind.device.bandwidth_bytes_per_s for kind in kinds)
    if cpu is not None:
        host_bytes = sum(piece.read_bytes for piece in placed.computed_on_host) + (1 - placed.cache_share) * cache_bytes
        seconds += host_bytes / cpu.bandwidth_bytes_per_s
    return seconds


def device_token_s(
    contents: Contents, placed: BlockPlacement, device: Device, constants: BackendConstants, context: float
) -> float:
    """Return the seconds of a token on the device."""
    matrices_s = sum(piece_s(piece, device, constants) for piece in placed.device)
    cache_s = placed.cache_share * cache_read_s(contents, device, constants, context)
    return matrices_s + cache_s + placed.block_share * contents.launches * constants.wait_s(device)


def host_token_s(
    contents: Contents, placed: BlockPlacement, cpu: Device, constants: BackendConstants, context: float
) -> float:
    """Return the seconds of a token on the processor of the host: its blocks, experts of others, and its cache."""
    matrices_s = sum(piece_s(piece, cpu, constants) for piece in placed.computed_on_host)
    cache_s = (1 - placed.cache_share) * cache_read_s(contents, cpu, constants, context)
    visits = contents.blocks - placed.blocks
    if placed.cache_share == 0:
        visits = contents.blocks
    elif placed.expert_blocks:
        visits = max(visits, placed.expert_blocks)
    return matrices_s + cache_s + visits / contents.blocks * contents.launches * constants.wait_s(cpu)

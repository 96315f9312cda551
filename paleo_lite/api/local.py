"""`predict_local` and `advise_local`: a language model under llama.cpp on one's own machine."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from ..architectures import Network
from ..architectures.network import SequenceOptions
from ..errors import BadValue
from ..local.advise import (
    ADVISED_WEIGHTS,
    LocalAdvice,
    describe_next,
    next_device,
    own_machine_devices,
    rank_devices,
    rank_formats,
)
from ..local.contents import DEFAULT_WEIGHTS, read_contents
from ..local.predict import DEFAULT_CONTEXT, DEFAULT_CPU, DEFAULT_PROMPT, LocalPrediction, shares_memory
from ..local.predict import predict_local as predict_on_device
from ..machines import Device, find_device, list_devices
from ..timing.facility import make_facility
from ..units import format_si, parse_quantity
from .arguments import Paths, to_paths
from .prediction import resolve_network

LEAST_MEMORY_BYTES = 1e9
"""Smallest memory of a device: less is a missing unit."""


def predict_local(
    network: str | Network,
    *,
    gpu: str | Device,
    weights: str | None = None,
    kv_cache: str | None = None,
    context: int | None = None,
    prompt_tokens: int | None = None,
    gpus: int = 1,
    device_memory: float | str | None = None,
    gpu_layers: int | None = None,
    cpu_experts: bool = False,
    cpu_cache: bool = False,
    cpu: str | Device | None = None,
    electricity: float | str | None = None,
    carbon_intensity: float | str | None = None,
    pue: float | None = None,
    host_watts: float | str | None = None,
    hardware_files: Paths = (),
) -> LocalPrediction:
    """Predict prompt, answer, memory and energy of a language model under llama.cpp.

    Parameters
    ----------
    network : str or Network
        Language model, by name, config or GGUF file.
    gpu : str or Device
        Device; also a processor.
    weights, kv_cache : str, optional
        Formats of GGUF, such as ``"q4_k_m"`` and ``"q8_0"``; by default the types of a file's tensors, ``"q4_k_m"`` for
        any other network, and a cache in ``f16``.
    context, prompt_tokens : int, optional
        Tokens in the cache (4096, or as many as the network knows) and of the prompt (512).
    gpus : int
        Devices that the layers are split over.
    device_memory : float or str, optional
        Memory of a device in bytes, or as text such as ``"16GB"``, if it is not the one on record.
    gpu_layers : int, optional
        Blocks on the device; by default the fastest that fits.
    cpu_experts, cpu_cache : bool
        Whether the experts, and keys and values, are in the memory of the host.
    cpu : str or Device, optional
        Processor of the host; by default one with two channels of DDR5, and none beside a device that shares its memory
        with its processor.
    electricity, carbon_intensity, pue, host_watts
        As in `paleo_lite.predict`.
    hardware_files : path, or sequence of paths
        TOML files of further devices.

    Raises
    ------
    PaleoError
        For an unknown name, an invalid value, or if the requested layers do not fit.
    """
    paths = to_paths(hardware_files)
    contents = read_contents(_resolve(network), weights, kv_cache or "f16")
    device = find_device(gpu, paths)
    options: dict[str, Any] = {
        "context": context or min(DEFAULT_CONTEXT, contents.positions or DEFAULT_CONTEXT),
        "prompt_tokens": prompt_tokens or DEFAULT_PROMPT,
        "gpus": gpus,
        "memory_bytes": _memory_bytes(device_memory),
        "gpu_layers": gpu_layers,
        "cpu_experts": cpu_experts,
        "cpu_cache": cpu_cache,
        "facility": make_facility(electricity, carbon_intensity, pue, host_watts),
    }
    found = predict_on_device(contents, device, _processor_of(device, cpu, paths), **options)
    if found.is_whole or gpu_layers is not None or device.scope == "cpu":
        return found
    larger = next_device(found, contents, device, list_devices(paths), **options)
    if larger is None:
        return found
    return msgspec.structs.replace(found, notes=(*found.notes, describe_next(found, larger)))


def advise_local(
    network: str | Network,
    *,
    gpus: Sequence[str | Device] | None = None,
    weights: Sequence[str] | None = None,
    kv_cache: str | None = None,
    context: int | None = None,
    prompt_tokens: int | None = None,
    split_over: int = 1,
    device_memory: float | str | None = None,
    cpu_experts: bool = False,
    cpu_cache: bool = False,
    cpu: str | Device | None = None,
    electricity: float | str | None = None,
    carbon_intensity: float | str | None = None,
    pue: float | None = None,
    host_watts: float | str | None = None,
    hardware_files: Paths = (),
) -> LocalAdvice:
    """Rank formats of a language model on one device, or several devices in one format, under llama.cpp.

    Parameters
    ----------
    network : str or Network
        Language model, by name, config or GGUF file.
    gpus : sequence of str or Device, optional
        Devices; by default the shipped GPUs since 2018 that are not for data centres.
    weights : sequence of str, optional
        Formats; by default the types of a file's tensors, or ten that people publish. With several devices, a single
        one is that in which they are compared; by default ``q4_k_m``.
    kv_cache, context, prompt_tokens, device_memory, cpu_experts, cpu_cache, cpu
        As in `predict_local`.
    split_over : int
        Devices of a kind that the layers are split over.
    electricity, carbon_intensity, pue, host_watts
        As in `paleo_lite.predict`.
    hardware_files : path, or sequence of paths
        TOML files of further devices.

    Raises
    ------
    PaleoError
        For an unknown name or an invalid value.
    """
    paths = to_paths(hardware_files)
    resolved, cache = _resolve(network), kv_cache or "f16"
    asked = list(weights or [])
    names = asked if len(asked) > 1 or (asked and gpus is not None and len(gpus) == 1) else _formats_of(resolved)
    formats = [read_contents(resolved, name, cache) for name in names]
    options: dict[str, Any] = {
        "context": context or min(DEFAULT_CONTEXT, formats[0].positions or DEFAULT_CONTEXT),
        "prompt_tokens": prompt_tokens or DEFAULT_PROMPT,
        "gpus": split_over,
        "memory_bytes": _memory_bytes(device_memory),
        "cpu_experts": cpu_experts,
        "cpu_cache": cpu_cache,
        "facility": make_facility(electricity, carbon_intensity, pue, host_watts),
    }
    devices = own_machine_devices(list_devices(paths)) if gpus is None else [find_device(gpu, paths) for gpu in gpus]
    if len(devices) == 1:
        return rank_formats(formats, devices[0], _processor_of(devices[0], cpu, paths), **options)
    wanted = asked[0] if len(asked) == 1 else DEFAULT_WEIGHTS
    compared = next((each for each in formats if each.weights == wanted), None)
    if compared is None:
        compared = read_contents(resolved, asked[0], cache) if asked else formats[0]
    pairs = [(device, _processor_of(device, cpu, paths)) for device in devices]
    return rank_devices(compared, formats, pairs, **options)


def _processor_of(device: Device, cpu: str | Device | None, paths: Sequence[Path]) -> Device | None:
    """Return the processor of the host: the named one, or the usual one of devices with a memory of their own."""
    if cpu is None and shares_memory(device):
        return None
    return find_device(cpu or DEFAULT_CPU, paths)


def _resolve(network: str | Network) -> Network:
    return resolve_network(network, None, (), SequenceOptions(phase="decode", context=1))


def _formats_of(network: Network) -> Sequence[str | None]:
    """Return the formats to compare: those of a file's own tensors, or those that people publish."""
    return [None] if network.stored_tensors is not None else list(ADVISED_WEIGHTS)


def _memory_bytes(device_memory: float | str | None) -> float | None:
    if device_memory is None:
        return None
    memory_bytes = parse_quantity(device_memory, "B")
    if memory_bytes < LEAST_MEMORY_BYTES:
        raise BadValue(f"`--device-memory` must be at least 1 GB, such as 16GB (got {format_si(memory_bytes, 'B')})")
    return memory_bytes

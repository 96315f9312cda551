"""`predict_local` and `advise_local`: a language model on one's own machine, under llama.cpp and its like."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec

from ..architectures import Network
from ..architectures.pipelines.sampling import find_pipeline
from ..errors import BadValue, DoesNotFit
from ..files import Paths, to_paths
from ..machines import Device, Machine, find_device, list_devices
from ..own_machines.advise import (
    LocalAdvice,
    describe_next,
    next_device,
    own_machine_devices,
    rank_devices,
    rank_formats,
)
from ..own_machines.contents import Contents, read_contents
from ..own_machines.memory import shares_memory
from ..own_machines.predict import DEFAULT_CPU, LocalPrediction, time_on_each
from ..own_machines.predict import predict_local as predict_on_devices
from ..own_machines.question import LocalQuestion
from ..own_machines.split import fill_fastest
from .question import resolve_network

LEAST_GAIN = 0.03
"""Share of the time of a token that another split of the blocks must save to be named."""


def predict_local(
    network: str | Network,  # by name, config or GGUF file
    # A device, which may be a processor, or several in one machine, each named.
    gpu: str | Device | Sequence[str | Device],
    question: LocalQuestion | None = None,  # what is asked besides
    *,
    hardware_files: Paths = (),  # TOML files of further devices
) -> LocalPrediction:
    """Predict prompt, answer, memory and energy of a language model on one's own machine.

    Raise PaleoError for an unknown name, an invalid value, or if the requested layers do not fit.
    """
    question = question or LocalQuestion()
    paths = to_paths(hardware_files)
    contents = read_contents(_resolve(network, question), question.weights, question.kv_cache, question.engine)
    named, *others = _named_devices(gpu, paths)
    devices = [Machine.single_device(each).device for each in (named, *others)]
    device = devices[0]
    prediction = predict_on_devices(contents, devices, _processor_of(device, question, paths), question)
    if named.parts is not None and not others and question.gpus < named.parts.count:
        note = f"one of the {named.parts.count} GPUs of {named.name}: `--workers {named.parts.count}` splits the layers"
        prediction = msgspec.structs.replace(prediction, notes=(*prediction.notes, note))
    if others:
        prediction = msgspec.structs.replace(
            prediction, notes=(*prediction.notes, *_notes_on_cards(prediction, contents, devices, question))
        )
    if prediction.is_whole or question.gpu_layers is not None or device.scope == "cpu":
        return prediction
    notes = list(prediction.notes)
    narrower = _with_narrower_cache(network, devices, question)
    if narrower is not None:
        notes.append(
            f"`--kv-cache {narrower.kv_cache}` makes room for all {narrower.blocks} blocks: "
            f"{narrower.tokens_per_s:.1f} tokens/s instead of {prediction.tokens_per_s:.1f}"
        )
    larger = None if others else next_device(prediction, contents, device, list_devices(paths), question)
    if larger is not None:
        notes.append(describe_next(prediction, larger))
    return msgspec.structs.replace(prediction, notes=tuple(notes))


def _notes_on_cards(
    prediction: LocalPrediction, contents: Contents, devices: Sequence[Device], question: LocalQuestion
) -> list[str]:
    """Return which one of several devices is faster alone, as it holds everything, or which split of the blocks is."""
    alone = msgspec.structs.replace(question, tensor_split=None)
    faster: list[LocalPrediction] = []
    for device in {device.id: device for device in devices}.values():
        try:
            faster.append(predict_on_devices(contents, [device], None, alone))
        except DoesNotFit:
            continue
    best = min(faster, key=lambda row: row.token_s, default=prediction)
    if best.token_s < prediction.token_s:
        return [f"{best.device} alone holds everything and is faster: {best.tokens_per_s:.1f} tokens/s"]
    if question.tensor_split is not None or not prediction.is_whole or len(prediction.split) == 1:
        return []
    times = time_on_each(contents, devices, question)
    blocks = fill_fastest(devices, times, prediction.memory_bytes, question, contents.blocks)
    try:
        filled = predict_on_devices(contents, devices, None, msgspec.structs.replace(question, tensor_split=blocks))
    except DoesNotFit:
        return []
    if filled.token_s > (1 - LEAST_GAIN) * prediction.token_s:
        return []
    proportions = ",".join(f"{number:.0f}" for number in blocks)
    return [
        f"`--tensor-split {proportions}` fills the fastest cards first: {filled.tokens_per_s:.1f} tokens/s instead of "
        f"{prediction.tokens_per_s:.1f}"
    ]


def _with_narrower_cache(
    network: str | Network, devices: Sequence[Device], question: LocalQuestion
) -> LocalPrediction | None:
    """Return the prediction with the widest cache with which everything is on the device; None if there is none."""
    leaves_choice = question.kv_cache is None and not question.cpu_cache and question.expert_blocks_are_free
    for cache in question.engine.caches[1:] if leaves_choice else ():
        narrower = msgspec.structs.replace(question, kv_cache=cache)
        contents = read_contents(_resolve(network, narrower), narrower.weights, cache, narrower.engine)
        try:
            return predict_on_devices(contents, devices, None, narrower)
        except DoesNotFit:
            continue
    return None


def advise_local(
    network: str | Network,  # by name, config or GGUF file
    # By default the shipped GPUs since 2018 that are not for data centres, and that the program runs on.
    # An item may be several devices in one machine.
    gpus: Sequence[str | Device | Sequence[str | Device]] | None = None,
    question: LocalQuestion | None = None,  # what is asked besides; its `weights` is the format of a comparison
    *,
    # Formats that are compared; by default the types of a file's tensors, or those that people publish.
    weights: Sequence[str] | None = None,
    hardware_files: Paths = (),  # TOML files of further devices
) -> LocalAdvice:
    """Rank formats of a language model on one device, or several devices in one format.

    Raise PaleoError for an unknown name or an invalid value.
    """
    question = question or LocalQuestion()
    paths, engine, resolved = to_paths(hardware_files), question.engine, _resolve(network, question)
    if gpus is None:
        machines = [[device] for device in own_machine_devices(list_devices(paths)) if engine.runs_on(device)]
    else:
        machines = [[Machine.single_device(each).device for each in _named_devices(gpu, paths)] for gpu in gpus]
    names: Sequence[str | None] = list(weights or [])
    if not names:
        names = [None] if resolved.stored_tensors is not None else engine.advised
    if len(machines) == 1 and question.weights is not None:
        names = [question.weights]
    formats = [read_contents(resolved, name, question.kv_cache, engine) for name in names]
    with_hosts = [(devices, _processor_of(devices[0], question, paths)) for devices in machines]
    if len(machines) == 1:
        return rank_formats(formats, *with_hosts[0], question)
    compared = read_contents(resolved, question.weights, question.kv_cache, engine)
    return rank_devices(compared, formats, with_hosts, question)


def _named_devices(gpu: str | Device | Sequence[str | Device], paths: Sequence[Path]) -> list[Device]:
    """Return the device of a name, or those of several."""
    return [find_device(each, paths) for each in ([gpu] if isinstance(gpu, str | Device) else gpu)]


def _processor_of(device: Device, question: LocalQuestion, paths: Sequence[Path]) -> Device | None:
    """Return the processor of the host: the named one, or the usual one of devices with a memory of their own."""
    if not question.engine.places or (question.cpu is None and shares_memory(device)):
        return None
    return find_device(question.cpu or DEFAULT_CPU, paths)


def _resolve(network: str | Network, question: LocalQuestion) -> Network:
    if isinstance(network, str) and find_pipeline(network) is not None:
        raise BadValue(f"{question.execution} runs language models from a config or a file, not the pipeline {network}")
    return resolve_network(network, None, ())

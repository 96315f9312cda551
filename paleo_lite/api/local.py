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
from ..own_machines.contents import read_contents
from ..own_machines.memory import shares_memory
from ..own_machines.predict import DEFAULT_CPU, LocalPrediction
from ..own_machines.predict import predict_local as predict_on_device
from ..own_machines.question import LocalQuestion
from .question import resolve_network


def predict_local(
    network: str | Network,  # by name, config or GGUF file
    gpu: str | Device,  # also a processor
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
    named = find_device(gpu, paths)
    device = Machine.single_device(named).device
    prediction = predict_on_device(contents, device, _processor_of(device, question, paths), question)
    if named.parts is not None and question.gpus < named.parts.count:
        note = f"one of the {named.parts.count} GPUs of {named.name}: `--workers {named.parts.count}` splits the layers"
        prediction = msgspec.structs.replace(prediction, notes=(*prediction.notes, note))
    if prediction.is_whole or question.gpu_layers is not None or device.scope == "cpu":
        return prediction
    notes = list(prediction.notes)
    narrower = _with_narrower_cache(network, device, question)
    if narrower is not None:
        notes.append(
            f"`--kv-cache {narrower.kv_cache}` makes room for all {narrower.blocks} blocks: "
            f"{narrower.tokens_per_s:.1f} tokens/s instead of {prediction.tokens_per_s:.1f}"
        )
    larger = next_device(prediction, contents, device, list_devices(paths), question)
    if larger is not None:
        notes.append(describe_next(prediction, larger))
    return msgspec.structs.replace(prediction, notes=tuple(notes))


def _with_narrower_cache(network: str | Network, device: Device, question: LocalQuestion) -> LocalPrediction | None:
    """Return the prediction with the widest cache with which everything is on the device; None if there is none."""
    leaves_choice = question.kv_cache is None and not question.cpu_cache and question.expert_blocks_are_free
    for cache in question.engine.caches[1:] if leaves_choice else ():
        narrower = msgspec.structs.replace(question, kv_cache=cache)
        contents = read_contents(_resolve(network, narrower), narrower.weights, cache, narrower.engine)
        try:
            return predict_on_device(contents, device, None, narrower)
        except DoesNotFit:
            continue
    return None


def advise_local(
    network: str | Network,  # by name, config or GGUF file
    # By default the shipped GPUs since 2018 that are not for data centres, and that the program runs on.
    gpus: Sequence[str | Device] | None = None,
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
        devices = [device for device in own_machine_devices(list_devices(paths)) if engine.runs_on(device)]
    else:
        devices = [Machine.single_device(find_device(gpu, paths)).device for gpu in gpus]
    names: Sequence[str | None] = list(weights or [])
    if not names:
        names = [None] if resolved.stored_tensors is not None else engine.advised
    if len(devices) == 1 and question.weights is not None:
        names = [question.weights]
    formats = [read_contents(resolved, name, question.kv_cache, engine) for name in names]
    if len(devices) == 1:
        return rank_formats(formats, devices[0], _processor_of(devices[0], question, paths), question)
    compared = read_contents(resolved, question.weights, question.kv_cache, engine)
    pairs = [(device, _processor_of(device, question, paths)) for device in devices]
    return rank_devices(compared, formats, pairs, question)


def _processor_of(device: Device, question: LocalQuestion, paths: Sequence[Path]) -> Device | None:
    """Return the processor of the host: the named one, or the usual one of devices with a memory of their own."""
    if not question.engine.places or (question.cpu is None and shares_memory(device)):
        return None
    return find_device(question.cpu or DEFAULT_CPU, paths)


def _resolve(network: str | Network, question: LocalQuestion) -> Network:
    if isinstance(network, str) and find_pipeline(network) is not None:
        raise BadValue(f"{question.execution} runs language models from a config or a file, not the pipeline {network}")
    return resolve_network(network, None, ())

"""``paleo-lite predict --execution llama.cpp``: one prediction, or a ranking of formats and devices."""

from __future__ import annotations

from typing import Any

import click
from click.core import ParameterSource

from ..errors import BadValue
from ..local import LLAMA_CPP
from .answers import Answer
from .values import to_list

_TAKEN = (
    "network", "gpu", "execution", "weights", "context", "sequence_length", "hardware_files", "electricity",
    "carbon_intensity", "pue", "host_watts", "kv_cache", "gpus", "gpu_layers", "cpu_experts", "cpu_cache",
    "device_memory", "advise", "cpu", "top",
)  # fmt: skip
"""Options of ``predict`` that llama.cpp takes."""


def reject_options_of_others() -> None:
    """Raise an error if the command line gives an option that says nothing to llama.cpp.

    Raises
    ------
    BadValue
        If it gives one.
    """
    context = click.get_current_context()
    for name in context.params:
        if name not in _TAKEN and context.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            raise BadValue(f"`--{name.replace('_', '-')}` is not for `--execution {LLAMA_CPP}`: leave it out")


def reject_options_of_llama_cpp(own: dict[str, Any]) -> None:
    """Raise an error if an option of llama.cpp is given for another execution.

    Raises
    ------
    BadValue
        If one is given.
    """
    given = next((name for name, value in own.items() if value), None)
    if given is not None:
        raise BadValue(f"`--{given.replace('_', '-')}` is for `--execution {LLAMA_CPP}`")


def answer_local(
    network: Any, gpu: Any, gpus: int, top: int | None, own: dict[str, Any], arguments: dict[str, Any]
) -> Answer:
    """Return the answer under llama.cpp.

    Raises
    ------
    BadValue
        If several networks are given, or several devices without ``--advise``.
    """
    from ..api.local import advise_local, predict_local

    if network is None or isinstance(network, list):
        raise BadValue(f"`--execution {LLAMA_CPP}` needs one language model")
    gpu_layers = own["gpu_layers"]
    if gpu_layers not in (None, "auto") and not str(gpu_layers).isdecimal():
        raise BadValue(f"`--gpu-layers` must be a number of blocks or auto (got {gpu_layers!r})")
    shared = {name: own[name] for name in ("kv_cache", "cpu_experts", "cpu_cache", "device_memory", "cpu")}
    shared |= {name: arguments[name] for name in ("context", "electricity", "carbon_intensity", "pue", "host_watts")}
    shared |= {"prompt_tokens": arguments["sequence_length"], "hardware_files": arguments["hardware_files"]}
    weights = arguments["weights"]
    if own["advise"]:
        if gpu_layers not in (None, "auto"):
            raise BadValue("`--gpu-layers` is for one prediction: `--advise` places as much on each device as fits")
        devices = to_list(gpu) if gpu is not None else None
        advice = advise_local(network, gpus=devices, weights=to_list(weights) if weights else None, split_over=gpus,
                              **shared)  # fmt: skip
        return Answer(advice.to_dict, lambda: advice.document(top=top), lambda: advice, chart="local")
    if gpu is None:
        raise click.UsageError("Missing option '--gpu'; with --advise it may be left out.")
    if isinstance(gpu, list):
        raise BadValue(f"`--execution {LLAMA_CPP}` needs one device; `--advise` ranks several")
    layers = None if gpu_layers in (None, "auto") else int(str(gpu_layers))
    found = predict_local(network, gpu=gpu, weights=weights, gpus=gpus, gpu_layers=layers, **shared)
    return Answer(found.to_dict, found.document, lambda: found, chart="local")

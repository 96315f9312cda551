"""``paleo-lite predict --execution llama.cpp``, mlx or exllama: one prediction, or a ranking of formats and devices."""

from __future__ import annotations

from typing import Any

import click
from click.core import ParameterSource

from ..errors import BadValue
from ..local import LLAMA_CPP
from .answers import Answer
from .values import to_list

_TAKEN = (
    "network", "gpu", "execution", "backend", "weights", "context", "sequence_length", "hardware_files", "electricity",
    "carbon_intensity", "pue", "host_watts", "kv_cache", "gpus", "gpu_layers", "cpu_experts", "cpu_cache",
    "device_memory", "advise", "cpu", "top", "power_limit",
)  # fmt: skip
"""Options of ``predict`` that a program on one's own machine takes."""


def reject_options_of_others(execution: str) -> None:
    """Raise an error if the command line gives options that say nothing to a program on one's own machine.

    Raises
    ------
    BadValue
        If it gives one; the message names all of them.
    """
    context = click.get_current_context()
    given = [
        f"`--{name.replace('_', '-')}`"
        for name in context.params
        if name not in _TAKEN and context.get_parameter_source(name) is ParameterSource.COMMANDLINE
    ]
    if given:
        is_are, it = ("is", "it") if len(given) == 1 else ("are", "them")
        raise BadValue(f"{', '.join(given)} {is_are} not for `--execution {execution}`: leave {it} out")


def reject_options_of_local(own: dict[str, Any]) -> None:
    """Raise an error if an option of a program on one's own machine is given for another execution.

    Raises
    ------
    BadValue
        If one is given.
    """
    given = next((name for name, value in own.items() if value), None)
    if given is not None:
        raise BadValue(f"`--{given.replace('_', '-')}` is for `--execution {LLAMA_CPP}`")


def answer_local(network: Any, gpu: Any, top: int | None, own: dict[str, Any], arguments: dict[str, Any]) -> Answer:
    """Return the answer of a program on one's own machine.

    Raises
    ------
    BadValue
        If several networks are given, or several devices without ``--advise``.
    """
    from ..api.local import advise_local, predict_local
    from ..local.question import LocalQuestion
    from ..timing.facility import make_facility

    execution = arguments["execution"]
    if network is None or isinstance(network, list):
        raise BadValue(f"`--execution {execution}` needs one language model")
    gpu_layers = own["gpu_layers"]
    if gpu_layers not in (None, "auto") and not str(gpu_layers).isdecimal():
        raise BadValue(f"`--gpu-layers` must be a number of blocks or auto (got {gpu_layers!r})")
    if own["advise"] and gpu_layers not in (None, "auto"):
        raise BadValue("`--gpu-layers` is for one prediction: `--advise` places as much on each device as fits")
    given = {**own, **{name: arguments[name] for name in ("execution", "weights", "context", "power_limit")}}
    given |= {"gpu_layers": None if gpu_layers in (None, "auto") else int(str(gpu_layers))}
    given |= {"prompt_tokens": arguments["sequence_length"]}
    del given["advise"]
    facility = make_facility(*(arguments[name] for name in ("electricity", "carbon_intensity", "pue", "host_watts")))
    question = LocalQuestion(facility=facility, **{name: value for name, value in given.items() if value is not None})
    files = arguments["hardware_files"]
    if own["advise"]:
        advice = advise_local(network, to_list(gpu) if gpu is not None else None, question, hardware_files=files)
        return Answer(advice.to_dict, lambda: advice.document(top=top), lambda: advice, chart="local")
    if gpu is None:
        raise click.UsageError("Missing option '--gpu'; with --advise it may be left out.")
    if isinstance(gpu, list):
        raise BadValue(f"`--execution {execution}` needs one device; `--advise` ranks several")
    found = predict_local(network, gpu, question, hardware_files=files)
    return Answer(found.to_dict, found.document, lambda: found, chart="local")

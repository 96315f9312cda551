"""`serve` under llama.cpp: a network wholly on one device, whose slots are the sequences that run."""

from __future__ import annotations

from typing import Any

from ..architectures import Network
from ..errors import BadValue, UnknownPrecision
from ..machines import Device
from ..own_machines import LLAMA_CPP
from ..own_machines.batches import make_local_model
from ..own_machines.contents import read_contents
from ..own_machines.engines import LOCAL_ENGINES
from ..serving.iteration_times import ModelOnDevice
from .question import Question
from .resolve import resolve_question


def check_policy(policy: str, **options: Any) -> None:
    """Raise an error if an option is given that is not modelled under llama.cpp.

    Parameters
    ----------
    policy : str
        Policy of the question; any other than llama.cpp is not checked.
    **options
        Options by name. One is given if it is neither None nor False, and no number of devices that means no division
        (0 or 1).

    Raises
    ------
    BadValue
        If the policy is llama.cpp, and one is given.
    """
    if policy != LLAMA_CPP:
        return
    for name, value in options.items():
        if value is True or value not in (None, False, 0, 1):
            option = _OPTIONS.get(name, f"--{name.replace('_', '-')}")
            raise BadValue(f"`{option}` is not modelled with `--engine {LLAMA_CPP}`: leave it out")


_OPTIONS = {"draft": "--speculation", "draft_length": "--speculation", "sampling": "--engine-settings sampling"}
"""Options of the command for parameters that have another name."""


def place_locally(network: Network, device: Device, weights: str | None, kv_cache: str | None) -> ModelOnDevice:
    """Return a network under llama.cpp on a device.

    Parameters
    ----------
    network : Network
        Language model from a config or a GGUF file.
    device : Device
        The device, which must hold all blocks.
    weights, kv_cache : str, optional
        Formats of GGUF; by default as in `paleo_lite.api.local.predict_local`.

    Raises
    ------
    BadValue
        If the network or a format is not possible.
    """
    contents = read_contents(network, weights, kv_cache or "f16")
    workload, machine, model = resolve_question(
        Question(
            network,
            device,
            precision=_precision_of(device),
            phase="decode",
            time_model="roofline",
            weights=weights or LOCAL_ENGINES[LLAMA_CPP].default_weights,
        )
    )
    cache = kv_cache or "f16"
    return ModelOnDevice(workload, machine, model, None, cache, local=make_local_model(contents, device))


def _precision_of(device: Device) -> str:
    """Return the precision in which a device computes: half precision where it has a peak in it."""
    try:
        device.find_peak("fp16")
    except UnknownPrecision:
        return "fp32"
    return "fp16"

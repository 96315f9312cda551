"""`serve` under llama.cpp and its like: a network wholly on one device, whose slots are the sequences that run."""

from __future__ import annotations

from typing import Any

from ..architectures import Network
from ..engines.records import LOCAL_ENGINES
from ..engines.records.record import LocalEngine
from ..errors import BadValue, UnknownPrecision
from ..machines import Device
from ..serving.placement import ModelOnDevice
from .question import Question
from .resolve import resolve_question


def check_policy(policy: str, **options: Any) -> None:
    """Raise an error if an option is given that is not modelled under an engine of one's own machine.

    Parameters
    ----------
    policy : str
        Engine of the question; one that is not for one's own machine is not checked.
    **options
        Options by name. One is given if it is neither None nor False, and no number of devices that means no division
        (0 or 1).

    Raises
    ------
    BadValue
        If one is given under such an engine.
    """
    if policy not in LOCAL_ENGINES:
        return
    for name, value in options.items():
        if value is True or value not in (None, False, 0, 1):
            option = _OPTIONS.get(name, f"--{name.replace('_', '-')}")
            raise BadValue(f"`{option}` is not modelled with `--engine {policy}`: leave it out")


_OPTIONS = {"draft": "--speculation", "draft_length": "--speculation", "sampling": "--engine-settings sampling"}
"""Options of the command for parameters that have another name."""


def place_locally(
    network: Network, device: Device, engine: LocalEngine, weights: str | None, kv_cache: str | None
) -> ModelOnDevice:
    """Return a network under an engine of one's own machine on a device.

    Parameters
    ----------
    network : Network
        Language model from a config or a GGUF file.
    device : Device
        The device, which must hold all blocks.
    engine : LocalEngine
        The engine.
    weights, kv_cache : str, optional
        Formats of GGUF; by default as in `paleo_lite.api.local.predict_local`.

    Raises
    ------
    BadValue
        If the network or a format is not possible.
    """
    from ..own_machines.batches import make_local_model
    from ..own_machines.contents import read_contents

    cache = kv_cache or engine.caches[0]
    contents = read_contents(network, weights, cache, engine)
    workload, machine, model = resolve_question(
        Question(
            network,
            device,
            precision=_precision_of(device),
            phase="decode",
            time_model="roofline",
            weights=weights or engine.default_weights,
        )
    )
    return ModelOnDevice(workload, machine, model, None, cache, local=make_local_model(contents, device, engine))


def _precision_of(device: Device) -> str:
    """Return the precision in which a device computes: half precision where it has a peak in it."""
    try:
        device.find_peak("fp16")
    except UnknownPrecision:
        return "fp32"
    return "fp16"

"""The offer of a language model, where a view needs one and the chosen network writes no text."""

from __future__ import annotations

import msgspec
import streamlit as st

from ..architectures import find_network
from ..errors import BadValue
from ..own_machines.engines import LOCAL_ENGINES
from ..units import element_bytes
from .answers import devices
from .controls import set_controls
from .show import escape_markdown
from .view import View

OFFERED_MODELS = ("llama-3.1-8b", "llama-3.2-3b", "llama-3.2-1b", "qwen2.5-0.5b")
"""Language models that are offered, the largest first."""

ROOMY_DEVICE = "h100-sxm"
"""Device that is offered if none of the chosen ones holds a language model."""

WEIGHTS_AT_MOST = 0.7
"""Fraction of a device's memory for the weights of an offered model; the cache of many sequences needs the rest."""


def offer_language_model(view: View, what: str) -> None:
    """Say that `what` needs a language model, with a button that switches to one on a device that holds it."""
    st.info(escape_markdown(f"{what} needs a language model that writes text; {view.network} does not."))
    offered = with_language_model(view)
    label = f"Show {offered.network} in {offered.stored_in} on {devices()[offered.gpu[0]].name}"
    st.button(escape_markdown(label), on_click=set_controls, args=(offered,), type="primary")


def with_language_model(view: View) -> View:
    """Return the view with the largest language model that the first possible device of it holds.

    Raises
    ------
    BadValue
        If not even `ROOMY_DEVICE` holds one.
    """
    available = devices()
    for gpu in (*view.gpu, ROOMY_DEVICE):
        device = available[gpu]
        offered = msgspec.structs.replace(view, gpu=(gpu,), calibration="")
        if view.view == "local":
            number_bytes = LOCAL_ENGINES[view.execution].mixtures[view.stored_in].bits / 8
        else:
            precision = next((name for name in ("bf16", "fp16") if name in device.precisions), None)
            if precision is None:
                continue
            offered = msgspec.structs.replace(offered, precision=precision)
            number_bytes = element_bytes(precision)
        for name in OFFERED_MODELS:
            if find_network(name).parameters * number_bytes <= WEIGHTS_AT_MOST * device.memory_bytes:
                return msgspec.structs.replace(offered, network=name)
    raise BadValue(f"no offered language model fits into the memory of {available[ROOMY_DEVICE].name}")

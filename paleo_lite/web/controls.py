"""The controls: one per field of `View`, kept under its name in the session."""

from __future__ import annotations

from typing import Any

import streamlit as st

from ..architectures import network_names
from ..counting import GENERATING, PHASES
from ..distributed.collectives import COLLECTIVES
from ..distributed.scale import SCALINGS
from ..distributed.strategies import STRATEGIES
from ..machines import read_links
from ..timing import TIME_MODELS
from ..units import PRECISION_BYTES
from .answers import SUFFIXES, Own, devices, keep_own, offered, own, reads_sequences
from .show import plain
from .view import BATCH_AT_MOST, DEVICES_AT_MOST, EPOCH_BOUNDS, PPP_BOUNDS, TOKENS_AT_MOST, VIEWS, View

KEY = "control "


def put(view: View) -> None:
    """Set all controls; before they are drawn."""
    for name in View.__struct_fields__:
        value = getattr(view, name)
        st.session_state[KEY + name] = list(value) if isinstance(value, tuple) else value


def get(before: View) -> View:
    """What the controls say; one that says nothing (an emptied field) stays as it was `before`."""
    found: dict[str, Any] = {}
    for name in View.__struct_fields__:
        value = st.session_state.get(KEY + name)
        value = getattr(before, name) if value is None else value
        found[name] = tuple(value) if isinstance(value, list) else value
    return View(**found).settled()


def keep() -> None:
    """Keep what controls say that this run may not draw: Streamlit forgets them otherwise."""
    for name in View.__struct_fields__:
        if KEY + name in st.session_state:
            st.session_state[KEY + name] = st.session_state[KEY + name]


def draw_switch() -> None:
    """Which view to show."""
    st.radio(
        "View", list(VIEWS), format_func=VIEWS.__getitem__, horizontal=True, key=KEY + "view",
        label_visibility="collapsed",
    )  # fmt: skip


def draw_controls(view: View) -> None:
    """All other controls, `view` being what they say."""
    _draw_own()
    view = get(view)  # what was dropped in is chosen
    known = devices()
    _drop_unknown(view)
    view = get(view)
    st.selectbox("Network", [*own().names("network"), *network_names()], key=KEY + "network")
    gpus = [*own().names("gpu"), *(name for name in known if name not in own().gpu)]
    st.multiselect(
        "Devices", gpus, key=KEY + "gpu", max_selections=DEVICES_AT_MOST, format_func=lambda gpu: known[gpu].name,
        help="Several stand side by side.",
    )  # fmt: skip
    st.selectbox("Precision", list(PRECISION_BYTES), key=KEY + "precision")
    st.number_input(
        "Batch size", 1, BATCH_AT_MOST, key=KEY + "batch",
        help="Samples per pass. On many devices: per worker (weak scaling), of all together (strong).",
    )  # fmt: skip
    st.selectbox(
        "Phase", [*PHASES, *GENERATING], key=KEY + "phase",
        help="training is forward, backward and update; prefill and decode are of language models.",
    )  # fmt: skip
    if reads_sequences(view):
        st.number_input(
            "Tokens", 0, TOKENS_AT_MOST, key=KEY + "tokens",
            help="Of a sequence; in decode those in the cache. 0: as many as the network knows, 2,048 at most.",
        )  # fmt: skip
    elif view.tokens:
        st.session_state[KEY + "tokens"] = 0
    st.selectbox(
        "Time model", ["", *TIME_MODELS], key=KEY + "model",
        format_func=lambda name: name or "the best known of the device",
        help="peak and roofline are bounds, ppp is PALEO's, calibrated was learnt from measurements.",
    )  # fmt: skip
    if view.takes_ppp:
        st.number_input(
            "PPP", *PPP_BOUNDS, step=0.05, format="%.3f", key=KEY + "ppp",
            help="Share of peak that the platform reaches; may exceed 1.",
        )  # fmt: skip
    st.selectbox(
        "Calibration", ["", *offered(view, view.gpu)], key=KEY + "calibration",
        format_func=lambda name: name or "the device's own", disabled=not view.may_be_calibrated,
        help="Of the chosen devices in this precision; a file of your own is offered where it is of one of them.",
    )  # fmt: skip
    if view.view == "scaling":
        _draw_scaling(view)


def _draw_scaling(view: View) -> None:
    """Of many devices: other views have no use for these."""
    st.subheader("Many devices", anchor=False)
    st.text_input("Workers", key=KEY + "workers", help="1,2,4,8 or 1,2,4,...,64 or 8:64:8")
    known_links = [name for name, link in read_links().link.items() if link.kind != "storage"]
    if view.link not in known_links:
        known_links.insert(0, view.link)
    st.selectbox(
        "Link", known_links, key=KEY + "link", accept_new_options=True,
        help="Between all workers; a rate such as 25 GB/s can be typed as well.",
    )  # fmt: skip
    st.selectbox("Scaling", list(SCALINGS), key=KEY + "scaling")
    st.selectbox(
        "Strategy", list(STRATEGIES), key=KEY + "strategy", format_func=lambda name: f"{name}: {STRATEGIES[name].what}"
    )
    st.selectbox(
        "Collective", ["", *COLLECTIVES], key=KEY + "collective",
        format_func=lambda name: f"{name}: {COLLECTIVES[name].what}" if name else "the fastest",
    )  # fmt: skip
    st.text_input("Samples per epoch", key=KEY + "images", placeholder="1.28M", help="Gives hours and cost.")
    st.number_input("Epochs", *EPOCH_BOUNDS, key=KEY + "epochs")
    st.text_input(
        "Price of a device", key=KEY + "price", placeholder="0.90 USD/h", help="If empty: the price on record."
    )


def _draw_own() -> None:
    """Ask for files of one's own; they are read before the controls that offer them are drawn, and chosen there."""
    before = own()
    with st.expander("Your own files", expanded=bool(own().wrong)):
        dropped = st.file_uploader(
            "A network (config.json, descriptor, prototxt, ONNX), a device or a calibration (TOML)",
            type=list(SUFFIXES), accept_multiple_files=True, key="own dropped",
            help="Each is chosen at once, and offered by its name from then on. It stays on this computer.",
        )  # fmt: skip
        keep_own([(file.name, file.getvalue()) for file in dropped or []])
        for sentence in own().wrong:
            st.error(plain(sentence))
    _choose_new(before)


def _choose_new(before: Own) -> None:
    """Set the controls to what was dropped in just now: who brings a file asks about it."""
    new = {name: [each for each in own().names(name) if each not in before.names(name)]
           for name in ("network", "gpu", "calibration")}  # fmt: skip
    state = st.session_state
    if new["network"]:
        state[KEY + "network"] = new["network"][-1]
    for name in new["calibration"]:
        found, _ = own().calibration[name]
        state[KEY + "calibration"], state[KEY + "precision"] = name, found.precision
        new["gpu"] += [found.device] if found.device in devices() else []
    if new["gpu"]:
        state[KEY + "gpu"] = list(dict.fromkeys([*new["gpu"], *state[KEY + "gpu"]]))[:DEVICES_AT_MOST]
        state[KEY + "shown"] = ""


def _drop_unknown(view: View) -> None:
    """Set controls anew that say what is no longer offered: a file was taken away, or the device is another."""
    state, known = st.session_state, devices()
    if view.network not in own().network and view.network not in network_names():
        state[KEY + "network"] = View().network
    state[KEY + "gpu"] = [gpu for gpu in state.get(KEY + "gpu", view.gpu) if gpu in known]
    if view.calibration and view.calibration not in offered(view, view.gpu):
        state[KEY + "calibration"] = ""


def draw_shown(view: View) -> None:
    """Whose charts to show, where there are several devices."""
    known = devices()
    if len(view.gpu) > 1:
        st.session_state[KEY + "shown"] = view.device
        st.radio(
            "Charts of", list(view.gpu), key=KEY + "shown", horizontal=True, format_func=lambda gpu: known[gpu].name
        )

"""The left column: what a person wants, the network, the devices, and the options of the question.

The values of the controls are in the session state; `fields` draws those of options, which come from the records.
"""

from __future__ import annotations

import streamlit as st

from ..calibration.evidence_file import EvidenceCalibration
from .fields import KEY, draw_field, key_of, read_field, write_field
from .show import escape_markdown
from .uploads import (
    SUFFIXES,
    OwnFiles,
    available_calibrations,
    devices,
    language_models,
    offered_networks,
    own_files,
    store_own_files,
)
from .view import View, first_view
from .wanted import DEVICES_AT_MOST, FIRST_OPTIONS, GROUPS, PROFILE, WANTED, applies, offered_options

ASKED_KEY, NETWORK_KEY, DEVICES_KEY, SHOWN_KEY = (f"{KEY}{name}" for name in ("ask", "network", "gpu", "shown"))


def set_controls(view: View) -> None:
    """Set all controls of a question; must be called before they are drawn."""
    state = st.session_state
    state[ASKED_KEY], state[DEVICES_KEY], state[SHOWN_KEY] = view.asked, list(view.gpu), view.shown
    if view.network:
        state[NETWORK_KEY] = view.network
    for name in offered_options(view.asked):
        write_field(view.asked, name, view.options.get(name, ""))


def read_controls(before: View) -> View:
    """Return the question of the controls; an emptied control of the question or network keeps its value."""
    state = st.session_state
    kind = state.get(ASKED_KEY) or before.asked
    network = (state.get(NETWORK_KEY) or before.network) if kind != PROFILE else ""
    gpu = state.get(DEVICES_KEY, before.gpu)
    options = {name: read_field(kind, name) for name in offered_options(kind)}
    return View(kind, network, tuple(gpu), options, state.get(SHOWN_KEY) or "").normalized()


def keep_controls() -> None:
    """Keep the values of controls that are not drawn in this run; otherwise Streamlit discards them."""
    for key in list(st.session_state):
        if isinstance(key, str) and key.startswith(KEY):
            st.session_state[key] = st.session_state[key]


def draw_controls(before: View) -> View:
    """Draw the controls and return their question; `before` is the question before the interaction."""
    st.radio("What do you want to do?", list(WANTED), format_func=lambda kind: WANTED[kind].title, key=ASKED_KEY)
    kind = st.session_state.get(ASKED_KEY) or before.asked
    _draw_uploads(kind)
    _reset_unavailable(kind)
    _set_first_options(kind)
    if kind != PROFILE:
        label = "Pipeline" if WANTED[kind].networks == "pipelines" else "Network"
        st.selectbox(label, offered_networks(WANTED[kind].networks), key=NETWORK_KEY)
    available = devices()
    own_devices = own_files().gpu
    st.multiselect(
        "Devices",
        [*own_devices, *(gpu for gpu in available if gpu not in own_devices)],
        key=DEVICES_KEY,
        max_selections=DEVICES_AT_MOST,
        format_func=lambda gpu: available[gpu].name,
        help="Several devices are compared side by side\\.",
    )
    view = read_controls(before)
    common, others = _arrange(view)
    for name in common:
        _draw_option(view, name)
    for group, names in others.items():
        with st.expander(f"More: {group}"):
            for name in names:
                _draw_option(view, name)
    return read_controls(before)


def _set_first_options(kind: str) -> None:
    """Set the options of a question that is asked for the first time to those with which it starts."""
    started = f"{KEY}{kind} started"
    if started in st.session_state:
        return
    st.session_state[started] = True
    if WANTED[kind].networks == "any" and st.session_state.get(NETWORK_KEY) not in language_models():
        return  # the options with which a question starts are those of a language model
    for name, text in first_view(kind).options.items():
        if key_of(kind, name) not in st.session_state:
            write_field(kind, name, text)


def _arrange(view: View) -> tuple[list[str], dict[str, list[str]]]:
    """Return the options that most questions need, in their order, and the others that apply by their groups."""
    offered = offered_options(view.asked)
    offered = {name: offered[name] for name in offered if applies(view.asked, name, view.network, view.options)}
    in_groups = sorted(offered, key=lambda name: GROUPS.index(offered[name].group))
    first = [name for name in FIRST_OPTIONS.get(view.asked, ()) if name in offered]
    common = first + [name for name in in_groups if offered[name].is_common and name not in first]
    others: dict[str, list[str]] = {}
    for name in in_groups:
        if name not in common:
            others.setdefault(offered[name].group, []).append(name)
    return common, others


def _draw_option(view: View, name: str) -> None:
    """Draw the control of an option, with the names that go with the question."""
    choices = None
    if name == "calibration":
        choices = available_calibrations(view.gpu, view.options.get("precision", ""))
    elif name == "draft":
        choices = language_models()
    draw_field(view.asked, name, choices)


def _draw_uploads(kind: str) -> None:
    """Draw the upload of files; they are read before the controls that offer and select them are drawn."""
    before = own_files()
    with st.expander("Your own files", expanded=bool(own_files().errors)):
        uploads = st.file_uploader(
            "A network (config.json, descriptor, prototxt, ONNX), a device or a calibration (TOML)",
            type=list(SUFFIXES),
            accept_multiple_files=True,
            key="own dropped",
            help="Uploaded files are selected and can be chosen by name. They stay on this computer.",
        )
        store_own_files([(file.name, file.getvalue()) for file in uploads or []])
        for error in own_files().errors:
            st.error(escape_markdown(error))
    _select_new_files(kind, before)


def _select_new_files(kind: str, before: OwnFiles) -> None:
    """Set the controls to the files that were uploaded just now."""
    new_names = {}
    for control in ("network", "gpu", "calibration"):
        new_names[control] = [name for name in own_files().names(control) if name not in before.names(control)]
    state, offered = st.session_state, offered_options(kind)
    if new_names["network"]:
        state[NETWORK_KEY] = new_names["network"][-1]
    for name in new_names["calibration"]:
        calibration, _ = own_files().calibration[name]
        is_evidence = isinstance(calibration, EvidenceCalibration)
        if "calibration" in offered:
            write_field(kind, "calibration", name)
        if "calibration" in offered and not is_evidence:
            write_field(kind, "precision", calibration.precision)
        measured = calibration.devices if is_evidence else [calibration.device]
        new_names["gpu"] += [device for device in measured if device in devices()]
    if new_names["gpu"]:
        state[DEVICES_KEY] = list(dict.fromkeys([*new_names["gpu"], *state[DEVICES_KEY]]))[:DEVICES_AT_MOST]
        state[SHOWN_KEY] = ""


def _reset_unavailable(kind: str) -> None:
    """Reset controls with values that are no longer available, as a file was removed or the question changed."""
    state, available = st.session_state, devices()
    if kind != PROFILE and state.get(NETWORK_KEY) not in offered_networks(WANTED[kind].networks):
        state[NETWORK_KEY] = WANTED[kind].network
    state[DEVICES_KEY] = [gpu for gpu in state.get(DEVICES_KEY, ()) if gpu in available]
    if "calibration" in offered_options(kind):
        precision = read_field(kind, "precision")
        if read_field(kind, "calibration") not in available_calibrations(state[DEVICES_KEY], precision):
            write_field(kind, "calibration", "")


def draw_shown(view: View) -> None:
    """Draw the selection of the device of the details, if there are several devices."""
    available = devices()
    if len(view.gpu) > 1:
        st.session_state[SHOWN_KEY] = view.device
        st.radio(
            "Details of", list(view.gpu), key=SHOWN_KEY, horizontal=True, format_func=lambda gpu: available[gpu].name
        )

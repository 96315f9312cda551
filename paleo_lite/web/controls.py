"""The controls of the page, one per field of `View`; their values are in the session state."""

from __future__ import annotations

from typing import Any

import streamlit as st

from ..architectures import network_names
from ..architectures.pipelines.records import pipelines
from ..counting import GENERATION_PHASES
from ..distributed.collectives import COLLECTIVES
from ..distributed.scale import SCALINGS
from ..distributed.strategies import STRATEGIES
from ..machines import read_links
from ..own_machines.engines import LOCAL_ENGINES
from ..serving.engines import ENGINES
from ..timing import TIME_MODELS
from ..timing.pipeline_run import PIPELINE_OFFLOADS
from ..units import PRECISION_BYTES
from .answers import SUFFIXES, OwnFiles, available_calibrations, devices, own_files, reads_sequences, store_own_files
from .show import escape_markdown
from .view import (
    BATCH_AT_MOST,
    DEVICES_AT_MOST,
    EPOCH_BOUNDS,
    FRAMES_AT_MOST,
    PICTURES_AT_MOST,
    PIPELINE_AT_MOST,
    PPP_BOUNDS,
    RATE_BOUNDS,
    STEPS_AT_MOST,
    TENSOR_AT_MOST,
    TOKENS_AT_MOST,
    VIEWS,
    View,
)

KEY = "control "
"""Prefix of the controls' keys in the session state."""

TIMED_VIEWS = ("time", "batches", "scaling")
"""Views that time passes over a batch, with any model of time."""


def set_controls(view: View) -> None:
    """Set all controls; must be called before they are drawn."""
    for name in View.__struct_fields__:
        value = getattr(view, name)
        st.session_state[KEY + name] = list(value) if isinstance(value, tuple) else value


def read_controls(before: View) -> View:
    """Return the values of the controls; an emptied control keeps its value from `before`."""
    values: dict[str, Any] = {}
    for name in View.__struct_fields__:
        value = st.session_state.get(KEY + name)
        if value is None:
            value = getattr(before, name)
        values[name] = tuple(value) if isinstance(value, list) else value
    return View(**values).normalized()


def keep_controls() -> None:
    """Keep the values of controls that are not drawn in this run; otherwise Streamlit discards them."""
    for name in View.__struct_fields__:
        if KEY + name in st.session_state:
            st.session_state[KEY + name] = st.session_state[KEY + name]


def draw_switch() -> None:
    """Draw the selection of the view."""
    st.radio(
        "View",
        list(VIEWS),
        format_func=VIEWS.__getitem__,
        horizontal=True,
        key=KEY + "view",
        label_visibility="collapsed",
    )


def draw_controls(view: View) -> None:
    """Draw all other controls that the view uses; `view` holds their current values."""
    _draw_uploads()
    view = read_controls(view)  # uploaded files are selected
    available = devices()
    _reset_unavailable(view)
    view = read_controls(view)
    if view.view == "pictures":
        st.selectbox("Pipeline", list(pipelines()), key=KEY + "generator")
    elif view.view != "profile":
        st.selectbox("Network", [*own_files().names("network"), *network_names()], key=KEY + "network")
    gpus = [*own_files().names("gpu"), *(name for name in available if name not in own_files().gpu)]
    st.multiselect(
        "Devices",
        gpus,
        key=KEY + "gpu",
        max_selections=DEVICES_AT_MOST,
        format_func=lambda gpu: available[gpu].name,
        help="Several devices are compared side by side.",
    )
    if view.view != "local":
        st.selectbox("Precision", list(PRECISION_BYTES), key=KEY + "precision")
    if view.view in TIMED_VIEWS:
        _draw_timing(view)
    if view.view == "scaling":
        _draw_scaling(view)
    if view.view == "serving":
        _draw_serving()
    if view.view == "pictures":
        _draw_pictures()
    if view.view == "local":
        _draw_local(view)


def _draw_timing(view: View) -> None:
    """Draw the controls of passes and of the model of their time."""
    st.number_input(
        "Batch size",
        1,
        BATCH_AT_MOST,
        key=KEY + "batch",
        help="Samples per pass. With several workers: per worker (weak scaling) or in total (strong scaling).",
    )
    st.selectbox(
        "Phase",
        list(view.phases),
        key=KEY + "phase",
        help="training: forward, backward and update. prefill and decode: language models.",
    )
    if reads_sequences(view):
        st.number_input(
            "Tokens",
            0,
            TOKENS_AT_MOST,
            key=KEY + "tokens",
            help="Sequence length; in decode, tokens in the KV cache. 0: the maximum of the network, up to 2,048.",
        )
    elif view.tokens:
        st.session_state[KEY + "tokens"] = 0
    st.selectbox(
        "Time model",
        ["", *TIME_MODELS],
        key=KEY + "model",
        format_func=lambda name: name or "best available",
        help="peak and roofline: bounds. ppp: PALEO's model. calibrated: fitted to measurements.",
    )
    if view.accepts_ppp:
        st.number_input(
            "PPP",
            *PPP_BOUNDS,
            step=0.05,
            format="%.3f",
            key=KEY + "ppp",
            help="Platform percent of peak as a fraction; may exceed 1.",
        )
    st.selectbox(
        "Calibration",
        ["", *available_calibrations(view, view.gpu)],
        key=KEY + "calibration",
        format_func=lambda name: name or "that of the device",
        disabled=not view.accepts_calibration,
        help="Calibrations of the selected devices in this precision, including your own files.",
    )


def _draw_scaling(view: View) -> None:
    """Draw the controls of the view of scaling."""
    st.subheader("Scaling", anchor=False)
    st.text_input("Workers", key=KEY + "workers", help="For example 1,2,4,8 or 1,2,4,...,64 or 8:64:8")
    link_names = [name for name, link in read_links().link.items() if link.kind != "storage"]
    if view.link not in link_names:
        link_names.insert(0, view.link)
    st.selectbox(
        "Link",
        link_names,
        key=KEY + "link",
        accept_new_options=True,
        help="Link between the workers; can also be a bandwidth such as 25 GB/s.",
    )
    st.selectbox("Scaling", list(SCALINGS), key=KEY + "scaling")
    st.selectbox(
        "Strategy",
        list(STRATEGIES),
        key=KEY + "strategy",
        format_func=lambda name: f"{name}: {STRATEGIES[name].description}",
        disabled=view.phase in GENERATION_PHASES,
        help="Of training. prefill and decode use tensor parallelism.",
    )
    st.selectbox(
        "Collective",
        ["", *COLLECTIVES],
        key=KEY + "collective",
        format_func=lambda name: f"{name}: {COLLECTIVES[name].description}" if name else "fastest",
    )
    st.text_input("Samples per epoch", key=KEY + "images", placeholder="1.28M", help="For training time and cost.")
    st.number_input("Epochs", *EPOCH_BOUNDS, key=KEY + "epochs")
    st.text_input("Price per device", key=KEY + "price", placeholder="0.90 USD/h", help="If empty: the recorded price.")


def _draw_serving() -> None:
    """Draw the controls of the view of serving."""
    st.subheader("Serving", anchor=False)
    st.number_input("Requests per second", *RATE_BOUNDS, key=KEY + "rate", help="Poisson arrivals.")
    st.text_input("Input tokens", key=KEY + "input_tokens", help="1024, mean:std such as 1024:256, or a data set.")
    st.text_input("Output tokens", key=KEY + "output_tokens", help="256, mean:std such as 256:64, or a data set.")
    st.number_input("Tensor-parallel devices", 1, TENSOR_AT_MOST, key=KEY + "tensor", help="Of a stage.")
    st.number_input(
        "Expert-parallel groups",
        1,
        TENSOR_AT_MOST,
        key=KEY + "expert_parallel",
        help="Groups of the tensor-parallel devices that divide the experts of a mixture among themselves.",
    )
    st.number_input(
        "Attention-data-parallel groups",
        1,
        TENSOR_AT_MOST,
        key=KEY + "attention_data_parallel",
        help="Groups of the tensor-parallel devices that compute attention for sequences of their own.",
    )
    st.number_input("Pipeline stages", 1, PIPELINE_AT_MOST, key=KEY + "pipeline", help="Of a replica.")
    st.selectbox("Engine", list(ENGINES), key=KEY + "policy", help="Its defaults for scheduling and memory.")


def _draw_pictures() -> None:
    """Draw the controls of the view of pictures."""
    st.subheader("Pictures and videos", anchor=False)
    st.text_input("Size", key=KEY + "size", placeholder="1024x768", help="Pixels; if empty: that of the pipeline.")
    st.number_input("Steps", 0, STEPS_AT_MOST, key=KEY + "steps", help="0: those of the pipeline.")
    st.number_input("Frames", 0, FRAMES_AT_MOST, key=KEY + "frames", help="Of a video; 0: those of the pipeline.")
    st.number_input("Pictures or videos", 1, PICTURES_AT_MOST, key=KEY + "pictures", help="In one batch.")
    st.selectbox("Parameters", list(PIPELINE_OFFLOADS), key=KEY + "offload", help="none: all parts on the device.")


def _draw_local(view: View) -> None:
    """Draw the controls of the view of one's own machine."""
    st.subheader("Own machine", anchor=False)
    st.selectbox("Engine", list(LOCAL_ENGINES), key=KEY + "execution", help="mlx: Macs. exllama: NVIDIA.")
    mixtures = LOCAL_ENGINES[view.execution].mixtures
    st.selectbox(
        "Format",
        ["", *mixtures],
        key=KEY + "weights",
        format_func=lambda name: (
            f"{name}: {mixtures[name].description}" if name else LOCAL_ENGINES[view.execution].default_weights
        ),
        disabled=len(view.gpu) < 2,
        help="In which several devices are compared; of one device, all formats are compared.",
    )
    st.number_input("Context", 1, TOKENS_AT_MOST, key=KEY + "context", help="Tokens in the KV cache.")


def _draw_uploads() -> None:
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
    _select_new_files(before)


def _select_new_files(before: OwnFiles) -> None:
    """Set the controls to the files that were uploaded just now."""
    new = {}
    for control in ("network", "gpu", "calibration"):
        new[control] = [name for name in own_files().names(control) if name not in before.names(control)]
    state = st.session_state
    if new["network"]:
        state[KEY + "network"] = new["network"][-1]
    for name in new["calibration"]:
        calibration, _ = own_files().calibration[name]
        state[KEY + "calibration"], state[KEY + "precision"] = name, calibration.precision
        if calibration.device in devices():
            new["gpu"].append(calibration.device)
    if new["gpu"]:
        state[KEY + "gpu"] = list(dict.fromkeys([*new["gpu"], *state[KEY + "gpu"]]))[:DEVICES_AT_MOST]
        state[KEY + "shown"] = ""


def _reset_unavailable(view: View) -> None:
    """Reset controls with values that are no longer available, as a file was removed or the device changed."""
    state, available = st.session_state, devices()
    if view.network not in own_files().network and view.network not in network_names():
        state[KEY + "network"] = View().network
    state[KEY + "gpu"] = [gpu for gpu in state.get(KEY + "gpu", view.gpu) if gpu in available]
    if state.get(KEY + "phase", view.phase) not in view.phases:
        state[KEY + "phase"] = view.phases[0]
    if view.calibration and view.calibration not in available_calibrations(view, view.gpu):
        state[KEY + "calibration"] = ""
    if state.get(KEY + "weights", "") not in LOCAL_ENGINES[view.execution].mixtures:
        state[KEY + "weights"] = ""


def draw_shown(view: View) -> None:
    """Draw the selection of the device of the charts, if there are several devices."""
    available = devices()
    if len(view.gpu) > 1:
        st.session_state[KEY + "shown"] = view.device
        st.radio(
            "Charts of", list(view.gpu), key=KEY + "shown", horizontal=True, format_func=lambda gpu: available[gpu].name
        )

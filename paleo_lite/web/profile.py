"""The question about a profile: an upload, and what it says of the device."""

from __future__ import annotations

import streamlit as st

from ..profiles.detect import READERS, load_reader
from ..reporting.charts.profiles import class_chart, kernel_roofline, timeline_chart
from ..reporting.efficiency import efficiency_page
from ..reporting.kernels import kernels_page
from .answers import named_device, read_profile
from .controls import DEVICES_KEY, draw_shown
from .failures import Failure
from .show import escape_markdown, say, show_chart, show_document, show_failure
from .uploads import devices
from .view import View, default_of
from .wanted import PROFILE

_UPLOAD_KEY, _PROFILE_KEY, _DEVICE_NOTE_KEY = "dropped", "profile", "taken device"
"""Keys of the session state."""


def profile_view(view: View) -> None:
    """Ask for a profile and show its results for the device."""
    draw_shown(view)
    device = devices()[view.device]
    precision = view.options.get("precision", default_of(PROFILE, "precision"))
    st.file_uploader(
        f"Profile (up to {st.get_option('server.maxUploadSize')} MB)",
        key=_UPLOAD_KEY,
        on_change=_store_profile,
        help="The format is detected from the content. The file stays on this computer.",
    )
    if _PROFILE_KEY not in st.session_state:
        formats = "; ".join(load_reader(*reader).description for reader in READERS)
        st.caption(escape_markdown(f"Supported formats: {formats}."))
        st.caption(
            f"Peaks: {escape_markdown(device.name)} in {precision}, selected in the left column. "
            "If the profile names its device, that device is selected."
        )
        return
    device_note = st.session_state.get(_DEVICE_NOTE_KEY)
    if device_note:
        st.info(escape_markdown(device_note))
    name, content = st.session_state[_PROFILE_KEY]
    with st.spinner("Reading the profile"):
        answer = read_profile(name, content, device, precision)
    if isinstance(answer.kernels, Failure):
        show_failure(answer.kernels)
        return
    page = kernels_page(answer.kernels, None)
    title = f"{name} on {device.name}"
    st.markdown(f"**{say(page.title.replace(answer.kernels.path, title))}**")
    _show_efficiency(answer.efficiency)
    left, right = st.columns(2)
    with left:
        show_chart(lambda: class_chart(answer.kernels))
    with right:
        show_chart(lambda: kernel_roofline(answer.kernels))
    timeline = answer.timeline
    if isinstance(timeline, Failure):
        st.info(say(timeline.reason))
    else:
        show_chart(lambda: timeline_chart(timeline, "Timeline"))
    show_document(page, "kernels")


def _store_profile() -> None:
    """Store the uploaded profile, also while other views are shown, and select the device it names."""
    upload = st.session_state[_UPLOAD_KEY]
    if not hasattr(upload, "getvalue"):  # removed by the user or by the server
        st.session_state.pop(_PROFILE_KEY, None)
        return
    st.session_state[_PROFILE_KEY] = name, content = upload.name, upload.getvalue()
    device = named_device(name, content)
    selected = st.session_state[DEVICES_KEY]
    st.session_state[_DEVICE_NOTE_KEY] = ""
    if device is not None and device.id not in selected:
        st.session_state[DEVICES_KEY] = [device.id]
        st.session_state[_DEVICE_NOTE_KEY] = f"The profile was recorded on {device.name}, which was selected."


def _show_efficiency(answer: object) -> None:
    if isinstance(answer, Failure):
        st.info(say(answer.reason))
        return
    page = efficiency_page(answer)  # type: ignore[arg-type]
    st.markdown(say(page.title))
    # The column of the file name is redundant for one profile.
    tables = [
        table.replace(columns=[column for column in table.columns if column.key != "file"]) for table in page.tables
    ]
    show_document(page.replace(content=tables, facts=()))

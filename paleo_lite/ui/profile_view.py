"""A profile that is dropped in: how well the device was used, kernel by kernel, and what ran when."""

from __future__ import annotations

import streamlit as st

from ..profiles.detect import READERS, load_reader
from ..report.charts.profiles import class_chart, kernel_roofline, timeline_chart
from ..report.efficiency import efficiency_page
from ..report.kernels import kernels_page
from .answers import Failed, devices, named_device, read_profile
from .controls import KEY, draw_shown
from .show import plain, say_failed, show_chart, show_document
from .view import View

_DROPPED, _KEPT, _TAKEN = "dropped", "profile", "taken device"  # keys of the session


def profile_view(view: View) -> None:
    """Ask for a file, and say what it says against the device."""
    draw_shown(view)
    device = devices()[view.device]
    st.file_uploader(
        f"A profile, of up to {st.get_option('server.maxUploadSize')} MB", key=_DROPPED, on_change=_keep,
        help="The format is known by the content. The file stays on this computer.",
    )  # fmt: skip
    if _KEPT not in st.session_state:
        st.caption(plain(f"It may be: {'; '.join(load_reader(*reader).what for reader in READERS)}."))
        st.caption(
            f"It is held against {plain(device.name)} in {view.precision}: choose both at the side. "
            "Where the profile names its device, that is taken."
        )
        return
    if taken := st.session_state.get(_TAKEN):
        st.info(plain(taken))
    name, content = st.session_state[_KEPT]
    with st.spinner("Reading the profile"):
        answer = read_profile(name, content, device, view.precision)
    if isinstance(answer.kernels, Failed):
        say_failed(answer.kernels)
        return
    page = kernels_page(answer.kernels, None)
    title = f"{name} on {device.name}"
    st.markdown(f"**{plain(page.title.replace(answer.kernels.path, title))}**")
    _efficiency(answer.efficiency)
    left, right = st.columns(2)
    with left:
        show_chart(lambda: class_chart(answer.kernels))
    with right:
        show_chart(lambda: kernel_roofline(answer.kernels))
    timeline = answer.timeline
    if isinstance(timeline, Failed):
        st.info(plain(timeline.why))
    else:
        show_chart(lambda: timeline_chart(timeline, "What ran when"))
    show_document(page, "kernels")


def _keep() -> None:
    """Keep the file while other views are looked at, until it is taken away or another one comes."""
    dropped = st.session_state[_DROPPED]
    if not hasattr(dropped, "getvalue"):  # taken away, by somebody or by the server
        st.session_state.pop(_KEPT, None)
        return
    st.session_state[_KEPT] = name, content = dropped.name, dropped.getvalue()
    found = named_device(name, content)
    chosen = st.session_state[KEY + "gpu"]
    st.session_state[_TAKEN] = ""
    if found is not None and found.id not in chosen:
        st.session_state[KEY + "gpu"] = [found.id]
        st.session_state[_TAKEN] = f"The profile names {found.name}: it is held against that."


def _efficiency(answer: object) -> None:
    if isinstance(answer, Failed):
        st.info(plain(answer.why))
        return
    page = efficiency_page(answer)  # type: ignore[arg-type]
    st.markdown(plain(page.title))
    # There is one profile, and its name stands above.
    tables = [table.but(columns=[column for column in table.columns if column.key != "file"]) for table in page.tables]
    show_document(page.but(content=tables, facts=()))

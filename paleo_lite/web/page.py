"""The whole page: from its address to the controls, from the controls to what is shown, and back to the address."""

from __future__ import annotations

import logging
from collections.abc import Callable

import streamlit as st

from ..errors import PaleoError
from .answers import own
from .controls import draw_controls, draw_switch, get, keep, put
from .show import plain
from .view import View, read_query
from .views import batch_view, profile_view, scale_view, time_view

DRAW: dict[str, Callable[[View], None]] = {
    "time": time_view,
    "batches": batch_view,
    "scaling": scale_view,
    "profile": profile_view,
}
_COMPACT = "<style>[data-testid=stMainBlockContainer] { padding-top: 2.5rem; }</style>"  # else a sixth of a screen
_SAID, _ASKED, _PROBLEMS = "view", "address", "problems"  # keys of the session


def main() -> None:
    """Draw the page; what goes wrong is said in a sentence."""
    st.set_page_config("paleo-lite", page_icon="⏱️", layout="wide", menu_items={"Get help": None, "Report a bug": None})
    try:
        _draw()
    except PaleoError as error:
        st.error(plain(str(error)))
    except Exception as error:  # Streamlit's own flow of control derives from BaseException
        logging.getLogger(__name__).exception("a defect of paleo-lite")
        st.error(plain(f"a defect of paleo-lite, {type(error).__name__}: {error} (the terminal shows where)"))


def _draw() -> None:
    keep()
    before = _follow_address()
    with st.sidebar:
        st.markdown("**paleo-lite**: how long will this network take on that machine, and why?")
        draw_controls(get(before))
    st.html(_COMPACT)
    draw_switch()
    view = get(before)
    if view != before:
        st.session_state[_PROBLEMS] = []
    _write_address(view, changed=view != before)
    st.session_state[_SAID] = view
    for problem in st.session_state[_PROBLEMS]:
        st.warning(plain(problem))
    if view.gpu:
        DRAW[view.view](view)
    else:
        st.info("Choose a device.")


def _address() -> dict[str, list[str]]:
    return {name: st.query_params.get_all(name) for name in st.query_params}


def _follow_address() -> View:
    """The view before this click: the address's where the page is opened or somebody goes back, else the controls'.

    A click may arrive with the address of before the last click, still on its way to the browser: where controls have
    changed they decide.
    """
    state, asked = st.session_state, _address()
    if _SAID in state:
        before: View = state[_SAID]
        if asked == state[_ASKED] or get(before) != before:
            return before
    view, problems = read_query(asked, own().names)
    put(view)
    state[_SAID], state[_ASKED], state[_PROBLEMS] = view, asked, problems
    return view


def _write_address(view: View, *, changed: bool) -> None:
    """The address of what is shown; one that already means it is left alone."""
    query = view.to_query()
    if (changed or st.session_state[_PROBLEMS]) and query != _address():
        st.query_params.from_dict(query)
    st.session_state[_ASKED] = _address()

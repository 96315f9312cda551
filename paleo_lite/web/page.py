"""The page: reads its address into the controls, draws the view, and updates the address."""

from __future__ import annotations

import logging

import streamlit as st

from ..errors import PaleoError
from .controls import draw_controls, keep_controls, read_controls, set_controls
from .profile import profile_view
from .show import escape_markdown, say
from .uploads import own_files
from .view import View, read_query
from .views import show_view
from .wanted import PROFILE

_STYLE = """<style>
/* By default a sixth of the screen; less than 3.75rem would be behind the bar at the top. */
[data-testid=stMainBlockContainer] { padding-top: 4rem; }
/* Cards stand beside one another where there is room for their figures, which are never cut. */
.st-key-cards { align-items: stretch; }
.st-key-cards > div { flex: 1 1 11.5rem; min-width: min(11.5rem, 100%); }
.st-key-cards [data-testid=stMetricValue] * { white-space: normal; overflow: visible; text-overflow: clip; }
.st-key-cards [data-testid=stMetricLabel] * { white-space: normal; overflow: visible; text-overflow: clip; }
/* Panels of a chart stand beside one another where each has room for its axis. */
[data-testid=stHorizontalBlock]:has(> [data-testid=stColumn] [data-testid=stVegaLiteChart]) { flex-wrap: wrap; }
[data-testid=stColumn]:has([data-testid=stVegaLiteChart]) { min-width: min(16rem, 100%); }
/* Tables that are wider than the page have a shadow at an edge with more behind it. */
[data-testid=stTable] div:has(> table) {
  --page: light-dark(#fff, #171614);  /* backgrounds of the two themes */
  background:
    linear-gradient(to right, var(--page) 40%, transparent) left / 3rem 100% local no-repeat,
    linear-gradient(to left, var(--page) 40%, transparent) right / 3rem 100% local no-repeat,
    linear-gradient(to right, rgb(128 128 128 / .5), transparent) left / 1rem 100% scroll no-repeat,
    linear-gradient(to left, rgb(128 128 128 / .5), transparent) right / 1rem 100% scroll no-repeat;
}
</style>"""
_VIEW_KEY, _ADDRESS_KEY, _PROBLEMS_KEY = "view", "address", "problems"
"""Keys of the session state."""


def main() -> None:
    """Draw the page; errors are shown as one sentence."""
    st.set_page_config("paleo-lite", page_icon="⏱️", layout="wide", menu_items={"Get help": None, "Report a bug": None})
    try:
        _draw()
    except PaleoError as error:
        st.error(say(str(error)))
    except Exception as error:  # Streamlit's control flow exceptions derive from BaseException
        logging.getLogger(__name__).exception("internal error")
        st.error(
            escape_markdown(f"internal error, {type(error).__name__}: {error} (see the terminal for the traceback)")
        )


def _draw() -> None:
    keep_controls()
    before = _follow_address()
    with st.sidebar:
        st.markdown("**paleo-lite**: execution time of neural networks on GPUs")
        view = draw_controls(before)
    st.html(_STYLE)
    if view != before:
        st.session_state[_PROBLEMS_KEY] = []
    _write_address(view, changed=view != before)
    st.session_state[_VIEW_KEY] = view
    for problem in st.session_state[_PROBLEMS_KEY]:
        st.warning(say(problem))
    if not view.gpu:
        st.info("Choose a device.")
    elif view.asked == PROFILE:
        profile_view(view)
    else:
        show_view(view)


def _address() -> dict[str, list[str]]:
    return {name: st.query_params.get_all(name) for name in st.query_params}


def _follow_address() -> View:
    """Return the view before the interaction.

    It is read from the address if the page was opened or the user went back in the history, else from the controls.
    After two quick interactions the address may still be the one before the first; changed controls have priority.
    """
    state, address = st.session_state, _address()
    if _VIEW_KEY in state:
        before: View = state[_VIEW_KEY]
        if address == state[_ADDRESS_KEY] or read_controls(before) != before:
            return before
    view, problems = read_query(address, own_files().names)
    set_controls(view)
    state[_VIEW_KEY], state[_ADDRESS_KEY], state[_PROBLEMS_KEY] = view, address, problems
    return view


def _write_address(view: View, *, changed: bool) -> None:
    """Update the address to the view, unless it already means the same."""
    query = view.to_query()
    if (changed or st.session_state[_PROBLEMS_KEY]) and query != _address():
        st.query_params.from_dict(query)
    st.session_state[_ADDRESS_KEY] = _address()

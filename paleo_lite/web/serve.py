"""Streamlit server that accepts requests from its own origin only: ``python -m paleo_lite.web.serve run app.py``."""

from __future__ import annotations

import sys
from collections.abc import Sequence


def serve(arguments: Sequence[str]) -> None:
    """Run Streamlit's command line, and reject requests from other origins.

    By default, Streamlit accepts requests from pages on all ports of this computer. For requests from other pages, it
    asks a server on the internet for the external address of this computer. No option disables either behavior, so this
    function replaces Streamlit's check of other origins by one that rejects all of them. Streamlit accepts requests
    from the server's own origin before it calls the check.

    Parameters
    ----------
    arguments : sequence of str
        Arguments of the command ``streamlit``.
    """
    from streamlit.web.server.server_util import is_url_from_allowed_origins

    # Other modules import the function by name, so assigning a new function to the name would not affect them.
    is_url_from_allowed_origins.__code__ = _reject_origin.__code__
    from streamlit.web import cli

    sys.exit(cli.main(list(arguments), "streamlit"))


def _reject_origin(url: str) -> bool:
    """Return False: no other origin is allowed."""
    return False


if __name__ == "__main__":
    serve(sys.argv[1:])

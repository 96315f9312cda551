"""Start the interactive page so that it accepts requests from its own origin only.

Usage: ``python -m paleo_lite.web.serve run app.py ...``, with the arguments of ``streamlit``.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence


def _reject_url(url: str) -> bool:
    """Return False: no other origin is allowed."""
    return False


def serve(arguments: Sequence[str]) -> None:
    """Run Streamlit's command line and reject requests from other origins.

    By default, Streamlit also accepts requests from pages on any port of this computer. For requests from other pages,
    it asks a server on the internet for the external address of this computer. No option disables either behaviour, so
    the function that checks origins is replaced. Streamlit's server imports this function by name; therefore its code
    is replaced in place.

    Parameters
    ----------
    arguments : sequence of str
        Arguments of Streamlit's command line.
    """
    from streamlit.web.server.server_util import is_url_from_allowed_origins

    # Streamlit accepts requests from its own origin before it calls this function.
    is_url_from_allowed_origins.__code__ = _reject_url.__code__
    from streamlit.web import cli

    sys.exit(cli.main(list(arguments), "streamlit"))


if __name__ == "__main__":
    serve(sys.argv[1:])

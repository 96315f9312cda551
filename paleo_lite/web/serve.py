"""Start the page for requests from its own origin only: ``python -m paleo_lite.web.serve run app.py ...``."""

from __future__ import annotations

import sys
from collections.abc import Sequence


def serve(words: Sequence[str]) -> None:
    """Run Streamlit's command line, with requests from other origins refused.

    By default, Streamlit accepts requests from pages on all ports of this computer and, for requests from other pages,
    queries a server on the internet for the external address of this computer; there is no option to disable either.
    The server imports the checking function by name, so the code of the function is replaced, not the name.
    """
    from streamlit.web.server.server_util import is_url_from_allowed_origins

    is_url_from_allowed_origins.__code__ = (lambda url: False).__code__  # the own origin is accepted before this check
    from streamlit.web import cli

    sys.exit(cli.main(list(words), "streamlit"))


if __name__ == "__main__":
    serve(sys.argv[1:])

"""Serves the page to its own address alone: ``python -m paleo_lite.web.serve run app.py ...``."""

from __future__ import annotations

import sys
from collections.abc import Sequence


def serve(words: Sequence[str]) -> None:
    """Run Streamlit's command line; what comes from other origins than the page's own is refused.

    Streamlit would let in the pages of every port of this computer and, where a foreign page calls, ask an address on
    the internet for this computer's other names. It has no option against either. Its server imports the function that
    decides by name, so that the function's code is replaced, not the name.
    """
    from streamlit.web.server.server_util import is_url_from_allowed_origins

    is_url_from_allowed_origins.__code__ = (lambda url: False).__code__  # its own was let in before
    from streamlit.web import cli

    sys.exit(cli.main(list(words), "streamlit"))


if __name__ == "__main__":
    serve(sys.argv[1:])

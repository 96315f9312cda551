"""Streamlit server that accepts requests from its own origin only: ``python -P serve.py FOLDERS PARENT run app.py``."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path


def serve(arguments: Sequence[str]) -> None:
    """Run Streamlit's command line with the arguments of ``streamlit``, and reject requests from other origins.

    By default, Streamlit accepts requests from pages on all ports of this computer. For requests from other pages, it
    asks a server on the internet for the external address of this computer. No option disables either behavior, so this
    function replaces Streamlit's check of other origins by one that rejects all of them. Streamlit accepts requests
    from the server's own origin before it calls the check.
    """
    # Streamlit reads the settings of the folder in which it starts (`.streamlit/config.toml`), which may be anybody's.
    before, folder = Path.cwd(), Path(tempfile.mkdtemp(prefix="paleo-lite-"))
    os.chdir(folder)
    try:
        from streamlit.web.server.server_util import is_url_from_allowed_origins

        # Other modules import the function by name, so assigning a new function to the name would not affect them.
        is_url_from_allowed_origins.__code__ = _reject_origin.__code__
        from streamlit.web import cli

        sys.exit(cli.main(list(arguments), "streamlit"))
    finally:
        os.chdir(before)
        with suppress(OSError):
            folder.rmdir()


def _reject_origin(url: str) -> bool:
    """Return False: no other origin is allowed."""
    return False


def main(folders: str, parent: str, *arguments: str) -> None:
    """Serve the page for a parent process."""
    sys.path[:0] = folders.split(os.pathsep)
    from paleo_lite.child import end_orderly_when_terminated, follow_parent

    follow_parent(int(parent))
    end_orderly_when_terminated()
    serve(arguments)


if __name__ == "__main__":
    main(*sys.argv[1:])

"""The page to explore: `ui`."""

from __future__ import annotations

import atexit
import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

import msgspec

from ..errors import BadValue
from ..extras import need
from ..reporting.document import Document
from ..result import Result

ADDRESS = "127.0.0.1"
FIRST_PORT = 8501
UPLOAD_MB = 200


class ServedPage(Result, msgspec.Struct, frozen=True, eq=False):
    """A page that is served to this computer.

    Attributes
    ----------
    url : str
    words : sequence of str
        What Streamlit is called with.
    process : subprocess.Popen, optional
        That serves it, until `stop`.
    """

    url: str
    words: Sequence[str]
    process: Any = None

    def stop(self) -> None:
        """End the process that serves it."""
        if self.process is not None and self.process.poll() is None:
            self.process.terminate()
            self.process.wait()

    def to_dict(self) -> dict[str, Any]:
        """Its address."""
        return {"url": self.url}

    def document(self, **how: Any) -> Document:
        """Its address."""
        return Document(f"The page is at {self.url}", [("url", self.url)])

    def _repr_html_(self) -> str:
        return f'<a href="{escape(self.url)}" target="_blank">{escape(self.url)}</a>'


def ui(*, port: int | None = None, browser: bool = True) -> ServedPage:
    """Open a page to explore: networks, devices, batch sizes, many devices, and profiles that are dropped in.

    It is served to this computer only, at 127.0.0.1, by a process of its own: until `stop`, or this one ends.

    Parameters
    ----------
    port : int, optional
        Of the page; without it 8501 or the next that is free.
    browser : bool
        Whether to open a browser.

    Returns
    -------
    ServedPage
        With ``url`` and ``stop()``.

    Raises
    ------
    BadValue
        If the port is taken.
    MissingExtra
        If the libraries of the page are not installed.
    """
    page = page_at(port, browser)
    process = subprocess.Popen([sys.executable, "-m", "paleo_lite.web.serve", *page.words], stdout=subprocess.DEVNULL)
    atexit.register(process.terminate)
    return msgspec.structs.replace(page, process=process)


def page_at(port: int | None, browser: bool) -> ServedPage:
    """The page before it is served, at that port or a free one."""
    for module in ("streamlit", "altair", "pyarrow", "scipy"):
        need(module, "the page", "ui")
    app = Path(__file__).parent.parent / "ui" / "app.py"
    port = free_port(port)
    os.environ.setdefault("STREAMLIT_LOGGER_HIDE_WELCOME_MESSAGE", "true")  # an option that older ones do not know
    return ServedPage(f"http://{ADDRESS}:{port}", ("run", str(app), *server_options(port, not browser)))


def server_options(port: int, no_browser: bool) -> list[str]:
    """Streamlit's options: loopback only, nothing reported to anybody, uploads of a bounded size."""
    options = {
        "server.address": ADDRESS,
        "server.port": port,
        "server.headless": str(no_browser).lower(),
        "server.showEmailPrompt": "false",
        "server.maxUploadSize": UPLOAD_MB,
        "server.fileWatcherType": "none",
        "browser.serverAddress": ADDRESS,
        "browser.gatherUsageStats": "false",
        "client.toolbarMode": "minimal",
        "client.showErrorDetails": "none",
        # Indigo, as the documentation: chips in red look like errors. Of both themes, or the dark one would be lost.
        "theme.light.primaryColor": "#3F51B5",
        "theme.dark.primaryColor": "#7986CB",
    }
    return [f"--{name}={value}" for name, value in options.items()]


def free_port(asked: int | None) -> int:
    """The port that was asked for, else the first free one.

    Raises
    ------
    BadValue
        If it, or every one of a hundred, is taken.
    """
    for port in range(FIRST_PORT, FIRST_PORT + 100) if asked is None else [asked]:
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((ADDRESS, port))
            except OSError:
                continue
            return port
    if asked is None:
        raise BadValue(f"no port from {FIRST_PORT} on is free: choose one with --port")
    raise BadValue(f"port {asked} is unavailable (another program uses it, or it is reserved): choose another --port")

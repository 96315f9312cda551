"""`ui`: the interactive page in a browser."""

from __future__ import annotations

import atexit
import os
import socket
import subprocess
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

import msgspec

from ..child import child_command, child_environment
from ..errors import BadValue
from ..extras import require
from ..reporting.document import Document
from ..result import Result

ADDRESS = "127.0.0.1"
HOSTS = (ADDRESS, "localhost")
"""Names of this computer under which the page answers."""

FIRST_PORT = 8501
UPLOAD_MB = 200


class ServedPage(Result, msgspec.Struct, frozen=True, eq=False):
    """A page that a local server shows.

    Attributes
    ----------
    url : str
        Address of the page.
    arguments : sequence of str
        Command-line arguments of Streamlit.
    process : subprocess.Popen, optional
        Process of the server.
    """

    url: str
    arguments: Sequence[str]
    process: Any = None

    def stop(self) -> None:
        """Stop the server."""
        if self.process is not None and self.process.poll() is None:
            self.process.terminate()
            self.process.wait()

    def to_dict(self) -> dict[str, Any]:
        """Return the address."""
        return {"url": self.url}

    def document(self, **options: Any) -> Document:
        """Return the address as a document."""
        return Document(f"The page is at {self.url}", [("url", self.url)])

    def _repr_html_(self) -> str:
        return f'<a href="{escape(self.url)}" target="_blank">{escape(self.url)}</a>'


def ui(*, port: int | None = None, browser: bool = True) -> ServedPage:
    """Open an interactive page: networks, devices, batch sizes, many devices, and profiles to upload.

    A separate process serves the page at 127.0.0.1, for this computer only, until `stop` is called or this process
    ends.

    Parameters
    ----------
    port : int, optional
        Port of the page; by default 8501 or the next free one.
    browser : bool
        Whether to open a browser.

    Returns
    -------
    ServedPage
        With ``url`` and ``stop()``.

    Raises
    ------
    BadValue
        If the port is not available.
    MissingExtra
        If the libraries of the page are not installed.
    """
    page = prepare_page(port, browser)
    command = child_command(Path(__file__).parents[1] / "web" / "serve.py", [str(os.getpid()), *page.arguments])
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, env=child_environment())
    atexit.register(process.terminate)
    return msgspec.structs.replace(page, process=process)


def prepare_page(port: int | None, browser: bool) -> ServedPage:
    """Return the address of the page and the arguments of its server, without starting the server."""
    for module in ("streamlit", "altair", "pyarrow", "scipy"):
        require(module, "the page", "ui")
    app = Path(__file__).parent.parent / "web" / "app.py"
    port = free_port(port)
    # Environment variables, as older versions of Streamlit refuse an unknown option.
    os.environ.setdefault("STREAMLIT_LOGGER_HIDE_WELCOME_MESSAGE", "true")
    # A web page whose name is made to resolve to this computer is of the server's own origin by that name.
    os.environ.setdefault("STREAMLIT_SERVER_ALLOWED_HOSTS", " ".join(HOSTS))
    arguments = ("run", str(app), *server_options(port, not browser))
    return ServedPage(f"http://{ADDRESS}:{port}", arguments)


def server_options(port: int, no_browser: bool) -> list[str]:
    """Return the options of Streamlit: loopback address only, no usage statistics, uploads of limited size."""
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
        # Indigo, as in the documentation: the default red of chips looks like an error. Both themes need a colour,
        # or the dark theme would disappear.
        "theme.light.primaryColor": "#3F51B5",
        "theme.dark.primaryColor": "#7986CB",
    }
    return [f"--{name}={value}" for name, value in options.items()]


def free_port(requested: int | None) -> int:
    """Return the requested port, or the first free one.

    Raises
    ------
    BadValue
        If the requested port, or each of a hundred ports, is not available.
    """
    candidates = range(FIRST_PORT, FIRST_PORT + 100) if requested is None else [requested]
    for port in candidates:
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((ADDRESS, port))
            except OSError:
                continue
            return port
    if requested is None:
        raise BadValue(f"no port from {FIRST_PORT} on is free: choose one with `--port`")
    raise BadValue(f"port {requested} is not available (in use or reserved): choose another with `--port`")

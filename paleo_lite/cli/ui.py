"""``paleo-lite ui``."""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path

import click

from ..errors import BadValue
from ..extras import need
from . import options

ADDRESS = "127.0.0.1"
FIRST_PORT = 8501
UPLOAD_MB = 200


@click.command()
@click.option(
    "--port", type=click.IntRange(1, 65535), help=f"Port of the page. [default: {FIRST_PORT}, or the next that is free]"
)
@click.option("--no-browser", is_flag=True, help="Do not open a browser.")
@options.debug()
def ui(port: int | None, no_browser: bool) -> None:
    """Open a page to explore: networks, devices, batch sizes, many devices, and profiles that are dropped in.

    It is served to this computer only, at 127.0.0.1, until Ctrl-C.

    \b
      paleo-lite ui
      paleo-lite ui --port 8600 --no-browser
    """
    for module in ("streamlit", "altair", "pyarrow", "scipy"):
        need(module, "the page", "ui")
    from streamlit.web import cli as streamlit

    app = Path(__file__).parent.parent / "ui" / "app.py"
    port = free_port(port)
    os.environ.setdefault("STREAMLIT_LOGGER_HIDE_WELCOME_MESSAGE", "true")  # an option that older ones do not know
    click.echo(f"The page is at http://{ADDRESS}:{port} until Ctrl-C.")
    sys.exit(streamlit.main(["run", str(app), *server_options(port, no_browser)], "streamlit"))


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

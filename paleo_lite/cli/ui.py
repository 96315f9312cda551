"""``paleo-lite ui``."""

from __future__ import annotations

import click

from ..api.serving import FIRST_PORT, prepare_page
from ..questions.values import WholeNumber
from . import DEBUG


@click.command(params=[DEBUG])
@click.option(
    "--port", type=WholeNumber(65535), help=f"Port of the page. [default: {FIRST_PORT}, or the next free one]"
)
@click.option("--no-browser", is_flag=True, help="Do not open a browser.")
def ui(port: int | None, no_browser: bool) -> None:
    """Open an interactive page: networks, devices, batch sizes, many devices, and profiles to upload.

    The page is served at 127.0.0.1, for this computer only, until Ctrl-C.

    \b
      paleo-lite ui
      paleo-lite ui --port 8600 --no-browser
    """
    page = prepare_page(port, browser=not no_browser)
    from ..web.serve import serve

    click.echo(f"The page is at {page.url} until Ctrl-C.")
    serve(page.arguments)

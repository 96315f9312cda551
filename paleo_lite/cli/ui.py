"""``paleo-lite ui``."""

from __future__ import annotations

import click

from ..api.serving import FIRST_PORT, page_at
from . import options


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
    page = page_at(port, browser=not no_browser)
    from ..web.serve import serve

    click.echo(f"The page is at {page.url} until Ctrl-C.")
    serve(page.words)

"""Take a screenshot of the interactive page: ``python docs/screenshot.py docs/images/ui.png``; needs Chromium."""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from playwright.sync_api import sync_playwright

from paleo_lite.api.serving import ADDRESS, free_port

QUERY = ""
"""The question of the picture: the one with which the page opens."""

READY = '[data-testid="stApp"][data-test-script-state="notRunning"]'
FILLED = """() => {
    const tables = [...document.querySelectorAll('[data-testid=stTable]')];
    const cells = tables.map(table => [...table.querySelectorAll('td')]);
    return !document.querySelector('[data-testid=stSkeleton]') && tables.length > 0
        && cells.every(row => row.length > 0 && row.every(cell => cell.innerText.trim()));
}"""
"""True once every table on the page has cells, every cell has a text, and nothing is still being loaded."""


def main(path: str) -> None:
    """Start the page, wait for its charts, and write the PNG."""
    with started_browser() as browser, served() as address:
        page = browser.new_page(viewport={"width": 1280, "height": 1400})
        page.goto(f"{address}{QUERY}")
        take_screenshot(page, path)


def take_screenshot(page: Any, path: str) -> None:
    """Write the PNG of an answer, once its charts and its table are drawn and the page is at rest."""
    page.wait_for_selector(READY)
    page.locator(".marks").nth(3).wait_for()
    page.get_by_text("The same in Python").last.wait_for()
    page.wait_for_function(FILLED)
    page.wait_for_timeout(1000)  # charts fade in
    page.screenshot(path=path)


@contextmanager
def started_browser() -> Iterator[Any]:
    """Start a headless Chromium, and close it at the end of the block."""
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    if chromium is None:
        sys.exit("a picture of the page needs Chromium: apt-get install chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"])
        yield browser
        browser.close()


@contextmanager
def served() -> Iterator[str]:
    """Serve the interactive page until the end of the block, and yield its address."""
    port = free_port(None)
    server = subprocess.Popen([sys.executable, "-m", "paleo_lite", "ui", "--port", str(port), "--no-browser"])
    try:
        _wait_for(f"http://{ADDRESS}:{port}/_stcore/health", server)
        yield f"http://{ADDRESS}:{port}/"
    finally:
        server.terminate()
        server.wait()


def _wait_for(address: str, server: subprocess.Popen[bytes]) -> None:
    end = time.monotonic() + 300  # a busy machine takes minutes
    while server.poll() is None and time.monotonic() < end:
        try:
            urllib.request.urlopen(address, timeout=2).close()
        except OSError:
            time.sleep(0.1)
        else:
            return
    sys.exit("the page did not start")


if __name__ == "__main__":
    main(*sys.argv[1:])

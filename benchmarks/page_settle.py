"""Seconds until the interactive page is at rest after a change: ``python benchmarks/page_settle.py``; needs Chromium.

A change of the batch size of ResNet-50 is timed in headless Chromium: from Enter to the last
change of the page's main part within the next seconds, with its charts and tables. Each batch size is new, so that no
answer is in the page's cache.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent / "docs"))

QUERY = "?ask=predict&network=resnet50&gpu=v100-sxm2&batch_size=32"
BATCH_SIZES = (64, 16, 8, 128, 24, 65, 17, 9, 129, 25)
WATCHED_MS = 4000

_WATCH = """watchedMs => {
    const start = performance.now();
    window.settledMs = new Promise(resolve => {
        let last = 0;
        const running = () => document.querySelector('[data-testid=stApp]').dataset.testScriptState !== 'notRunning';
        const mark = () => { last = performance.now() - start; };
        const observer = new MutationObserver(mark);
        observer.observe(document.querySelector('[data-testid=stMain]'),
            {childList: true, subtree: true, characterData: true, attributes: true});
        const poll = setInterval(() => { if (running()) mark(); }, 5);
        setTimeout(() => { clearInterval(poll); observer.disconnect(); resolve(last); }, watchedMs);
    });
}"""


def measure(page: Any, batch_sizes: Sequence[int], watched_ms: int = WATCHED_MS) -> list[float]:
    """Return the seconds until a page of one network is at rest, for each new batch size.

    Parameters
    ----------
    page : playwright Page
    batch_sizes : sequence of int
        Each different from the one before.
    watched_ms : int
        Time for which the page is watched after a change; it must be at rest long before.
    """
    field = page.get_by_role("textbox", name="Batch size")
    seconds = []
    for batch_size in batch_sizes:
        field.fill(str(batch_size))
        page.wait_for_timeout(300)
        page.evaluate(_WATCH, watched_ms)
        page.keyboard.press("Enter")
        seconds.append(page.evaluate("window.settledMs") / 1000)
    return seconds


def main() -> None:
    """Start the page and a browser, and print the times."""
    from screenshot import READY, served, started_browser

    with started_browser() as browser, served() as address:
        page = browser.new_page(viewport={"width": 1280, "height": 900})
        page.emulate_media(reduced_motion="reduce")
        page.goto(f"{address}{QUERY}")
        page.wait_for_selector(READY)
        page.locator(".marks").nth(3).wait_for()
        page.wait_for_timeout(2500)
        seconds = measure(page, BATCH_SIZES)
    print("batch size  seconds until the page is at rest")
    for batch_size, each in zip(BATCH_SIZES, seconds):
        print(f"{batch_size:10}  {each:.2f}")
    print(f"median {median(seconds):.2f} s, longest {max(seconds):.2f} s")


if __name__ == "__main__":
    main()

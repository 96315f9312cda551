"""HTML reports in headless Chromium: offline, without console output, sortable, readable on phones and paper.

Tests: reporting/page/templates/report.css, reporting/page/templates/report.html, reporting/page/templates/report.js.
"""

from __future__ import annotations

import pytest

from patience import PATIENCE_MS

pytestmark = pytest.mark.slow

pytest.importorskip("altair")

DESKTOP, PHONE = {"width": 1280, "height": 900}, {"width": 390, "height": 844}
LAYERS = "section#layers"
CONTRAST = """() => {
  const numbers = (text) => text.match(/[\\d.]+/g).map(Number);
  const light = ([r, g, b]) => [r, g, b].map((v) => v / 255)
    .map((v) => v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
    .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
  const behind = (element) => {
    for (let at = element; at; at = at.parentElement) {
      const colour = numbers(getComputedStyle(at).backgroundColor);
      if (colour.length === 3 || colour[3] === 1) return colour;
    }
    return [255, 255, 255];
  };
  let least = 21;
  for (const element of document.querySelectorAll("h1, h2, p, dt, dd, a, td, th, caption span, li, code, figcaption")) {
    if (!element.textContent.trim() || element.classList.contains("skip")) continue;
    const [a, b] = [light(numbers(getComputedStyle(element).color)), light(behind(element))];
    least = Math.min(least, (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05));
  }
  return least;
}"""
"""Lowest contrast of any text with its background, as defined by WCAG 2."""


@pytest.fixture(scope="module")
def report(write, tmp_path_factory):
    path = tmp_path_factory.mktemp("browser") / "report.html"
    write("train", "resnet18", "--gpu", "v100-sxm2", "--precision", "fp16", "--batch-size", 32, output=path)
    return path


@pytest.fixture
def view(browser):
    """Open a file; afterwards check that there was no console output and no request for other files."""
    contexts, heard, asked = [], [], []

    def open_(path, viewport=DESKTOP, scheme="light", script=True):
        context = browser.new_context(viewport=viewport, color_scheme=scheme, java_script_enabled=script, offline=True)
        context.set_default_timeout(PATIENCE_MS)
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: heard.append(message.text))
        page.on("pageerror", lambda error: heard.append(str(error)))
        page.on("request", lambda request: asked.append(request.url))
        page.goto(path.as_uri())
        asked.remove(path.as_uri())
        return page

    yield open_
    for context in contexts:
        context.close()
    assert heard == []
    assert [url for url in asked if not url.startswith("data:")] == []


def names(page):
    return page.locator(f"{LAYERS} tbody tr:visible th").all_inner_texts()


def test_sorting_by_mouse_and_keyboard(view, report):
    page = view(report)
    first = names(page)
    assert first[0] == "conv1" and len(first) > 60
    time = page.locator(f"{LAYERS} thead button", has_text="time")
    time.click()
    head = page.locator(f"{LAYERS} thead th", has_text="time")
    assert head.get_attribute("aria-sort") == "descending"
    values = [float(v) for v in page.locator(f"{LAYERS} tbody tr td:nth-child(5)").evaluate_all(
        "cells => cells.map((cell) => cell.dataset.v)")]  # fmt: skip
    assert values == sorted(values, reverse=True) and values[0] > values[-1]
    time.press("Enter")
    assert head.get_attribute("aria-sort") == "ascending"
    assert names(page)[0] != first[0] and sorted(names(page)) == sorted(first)
    page.locator(f"{LAYERS} thead button", has_text="layer").press("Space")
    assert names(page)[:6] == ["avgpool", "bn1", "conv1", "fc", "flatten", "layer1.0.add"]
    assert head.get_attribute("aria-sort") is None


@pytest.mark.thorough
def test_filtering_shows_the_number_of_rows(view, report):
    page = view(report)
    total = len(names(page))
    box = page.get_by_label("Filter rows")
    box.fill("layer2 CONV2D")
    left = names(page)
    assert left and all(name.startswith("layer2") for name in left)
    assert page.locator(f"{LAYERS} output").inner_text() == f"{len(left)} of {total} rows"
    box.fill("no such layer")
    assert names(page) == [] and page.locator(f"{LAYERS} output").inner_text() == f"0 of {total} rows"
    box.fill("")
    assert len(names(page)) == total


def test_marks_have_tooltips(view, report):
    page = view(report)
    mark = page.locator("section#roofline [data-tip*='conv1']").first
    mark.hover(force=True)
    tip = page.locator(".tip").inner_text()
    assert "name: " in tip and "kind: " in tip and "\n" in tip
    page.mouse.move(5, 5)
    assert page.locator(".tip").is_hidden()


def test_without_script_the_page_is_complete(view, report):
    page = view(report, script=False)
    assert len(names(page)) > 60 and page.locator(".find").count() == 0
    assert page.locator(f"{LAYERS} thead").inner_text().split()[0] == "layer"


@pytest.mark.spread(2)
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("viewport", [DESKTOP, PHONE], ids=["desktop", "phone"])
def test_a_report_is_readable_on_every_screen_and_scheme(view, report, scheme, viewport):
    page = view(report, viewport, scheme)
    assert page.evaluate("document.documentElement.scrollWidth") <= viewport["width"]  # only boxes scroll sideways
    assert page.evaluate(CONTRAST) >= 4.5  # WCAG 2, level AA
    background = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert background == {"light": "rgb(255, 255, 255)", "dark": "rgb(22, 25, 29)"}[scheme]
    ink = page.locator("section#roofline svg text").first
    assert ink.evaluate("e => getComputedStyle(e).fill") == page.evaluate("getComputedStyle(document.body).color")
    cut = page.locator("figure svg").evaluate_all(
        "all => all.filter((svg) => [...svg.querySelectorAll('text')].some((text) => {"
        "const [a, b] = [text.getBoundingClientRect(), svg.getBoundingClientRect()];"
        "return a.width && (a.left < b.left - 1 || a.right > b.right + 1)})).length"
    )
    assert cut == 0


def test_the_keyboard_reaches_everything(view, report):
    page = view(report)
    reached = set()
    for _ in range(60):
        page.keyboard.press("Tab")
        reached.add(page.evaluate("document.activeElement.tagName + '.' + document.activeElement.className"))
    assert {"A.skip", "A.", "DIV.scroll", "BUTTON."} <= reached
    page.locator(".skip").focus()
    assert page.locator(".skip").bounding_box()["x"] >= 0


def test_paper_shows_every_row_in_black_on_white(view, report):
    page = view(report, scheme="dark")
    page.emulate_media(media="print", color_scheme="dark")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert page.locator("nav").is_hidden() and page.locator(".find").first.is_hidden()
    boxes = page.locator(".scroll").evaluate_all("all => all.every((box) => box.scrollHeight <= box.clientHeight + 1)")
    assert boxes
    assert page.pdf().startswith(b"%PDF")


def test_hostile_names_stay_text(view, write, hostile_network, tmp_path, hostile):
    path = tmp_path / "r.html"
    write("predict", hostile_network, "--gpu", "k40m", output=path)
    page = view(path)
    assert page.title() == "<b>alexnet</b> on Tesla K40m · paleo-lite"
    assert hostile[0] in names(page)
    page.locator(f"{LAYERS} thead button").first.click()
    mark = page.locator("[data-tip*='taken']").first
    mark.dispatch_event("pointermove")
    assert "taken" in page.locator(".tip").inner_text()
    assert page.locator(".tip *, img, script:not(body > script)").count() == 0
    assert "taken" not in page.title()

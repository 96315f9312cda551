"""The page in headless Chromium: controls, addresses, screen widths, and no requests to other hosts.

Tests: web/app.py.
"""

from __future__ import annotations

import csv
import importlib.util
import io
import json
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest
from click.testing import CliRunner

import paleo_lite as pl
from benchmarks.page_settle import measure
from paleo_lite.api.serving import ADDRESS
from paleo_lite.cli import main
from paleo_lite.files import shipped_folder
from paleo_lite.reporting.formats import format_time_short
from paleo_lite.web.wanted import WANTED
from patience import PATIENCE_MS, PATIENCE_S

pytestmark = pytest.mark.slow

DESKTOP, TABLET, PHONE = (
    {"width": width, "height": height} for width, height in ((1280, 900), (800, 1000), (390, 844))
)
NETWORK = "?ask=predict&network=resnet50&gpu=v100-sxm2"
CHART = "[data-testid=stVegaLiteChart] .marks"
DROPPED = '[data-testid=stMain] input[type="file"]'
READY = '[data-testid="stApp"][data-test-script-state="notRunning"]'
POLLING_MS = 100
"""How often; without a number the browser would draw for it as often as it can."""
expect = pytest.importorskip(
    "playwright.sync_api", reason="not tested in a browser: playwright is not installed"
).expect
expect.set_options(timeout=PATIENCE_MS)


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """The address of a running page."""
    pytest.importorskip("streamlit", reason="the page needs streamlit: pip install 'paleo-lite[ui]'")
    with socket.socket() as probe:  # any port: of the first free one another server could answer in the meantime
        probe.bind((ADDRESS, 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "paleo_lite", "ui", "--port", str(port), "--no-browser"]
    log = tmp_path_factory.mktemp("server") / "log"
    with log.open("wb") as out, subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT) as process:
        try:
            wait_for(f"http://{ADDRESS}:{port}/_stcore/health", process, log)
            yield f"http://{ADDRESS}:{port}/"
        finally:
            process.terminate()
            process.wait()
    assert "a defect" not in log.read_text()


def wait_for(address, process, log):
    while process.poll() is None:
        try:
            with urllib.request.urlopen(address, timeout=2):
                return
        except OSError:
            time.sleep(0.1)
    pytest.fail(f"the page did not start: {log.read_text()}")


@pytest.fixture(scope="module")
def visitor(browser):
    """Open a browser page; scripts of Streamlit are cached from the second page on."""
    return browser.new_context(viewport=DESKTOP, accept_downloads=True)


@pytest.fixture
def visit(visitor, server):
    """Open an address; afterwards no page has complained or talked to anybody but this computer."""
    heard, pages = [], []

    def open_page(query="", scheme="light"):
        page = visitor.new_page()
        pages.append(page)
        page.emulate_media(color_scheme=scheme, reduced_motion="reduce")
        page.set_default_timeout(PATIENCE_MS)
        page.on("console", lambda message: message.type == "error" and heard.append(f"console: {message.text}"))
        page.on("pageerror", lambda error: heard.append(f"error: {error}"))
        page.on("request", lambda request: foreign(request.url) and heard.append(f"request: {request.url}"))
        page.on("websocket", lambda opened: foreign(opened.url) and heard.append(f"websocket: {opened.url}"))
        page.goto(server + query)
        page.wait_for_selector(READY)
        return page

    def foreign(url):
        parts = urlsplit(url)
        return parts.scheme not in ("data", "blob") and parts.hostname != ADDRESS

    yield open_page
    for page in pages:
        page.close()
    assert heard == []


def asked(page):
    return parse_qs(urlsplit(page.url).query, keep_blank_values=True)


def until(page, name, *values):
    page.wait_for_function(
        "([name, values]) => JSON.stringify(new URLSearchParams(location.search).getAll(name)) === values",
        arg=[name, json.dumps([str(value) for value in values], separators=(",", ":"))],
        polling=POLLING_MS,
    )
    page.wait_for_selector(READY)


def choose(page, label, text):
    """Choose from a list with the keyboard: type and press Enter."""
    box = page.get_by_role("combobox", name=label, exact=True)
    box.fill(text)
    expect(box).to_have_value(text)
    take_option(page, text)
    page.keyboard.press("Escape")  # a list of several values stays open, and hides the rest of the page


def take_option(page, text):
    """Press Enter as soon as the list shows the typed text."""
    page.get_by_role("option").filter(has_text=text).first.wait_for()
    page.keyboard.press("Enter")


def expect_times(page, *gpus, **ask):
    """Wait until the page is at rest and shows these times, one for each device."""
    ask = {"network": "resnet50", **ask}
    times = [format_time_short(pl.predict(gpu=gpu, **ask).time_s) for gpu in gpus or ("v100-sxm2",)]
    expect(page.get_by_test_id("stMetricValue")).to_have_text(times)
    page.wait_for_selector(READY)


def test_the_main_controls_change_the_answer(visit):
    page = visit(NETWORK)
    expect_times(page)
    choose(page, "Network", "alexnet")  # test_a_keyboard_is_enough chooses a precision
    until(page, "network", "alexnet")
    ask = {"network": "alexnet"}
    expect_times(page, **ask)
    batch = page.get_by_role("textbox", name="Batch size")
    batch.fill("64")
    batch.press("Enter")
    until(page, "batch_size", 64)
    expect_times(page, **ask, batch_size=64)
    choose(page, "Devices", "Tesla T4")
    until(page, "gpu", "v100-sxm2", "t4")
    expect_times(page, "v100-sxm2", "t4", **ask, batch_size=64)
    page.locator(CHART).nth(4).wait_for()
    batch.fill("")  # an empty field is the default
    batch.press("Enter")
    until(page, "batch_size")
    expect_times(page, "v100-sxm2", "t4", **ask)


def test_an_address_is_a_question_and_back_goes_back(visit):
    page = visit("?ask=predict&network=alexnet&gpu=t4&gpu=k80-die&batch_size=8&time_model=roofline&shown=k80-die")
    asked_first = {"network": "alexnet", "batch_size": 8, "time_model": "roofline"}
    expect_times(page, "t4", "k80-die", **asked_first)
    expect(page.get_by_role("combobox", name="Network")).to_have_value("alexnet")
    choose(page, "Network", "vgg16")
    until(page, "network", "vgg16")
    another = page.get_by_role("radio", name="A profile")
    another.check(force=True)
    until(page, "ask", "profile")
    assert asked(page)["gpu"] == ["t4", "k80-die"]
    page.go_back()
    until(page, "ask", "predict")
    expect(another).not_to_be_checked()  # the page follows its address
    expect_times(page, "t4", "k80-die", **{**asked_first, "network": "vgg16"})
    page.go_back()
    until(page, "network", "alexnet")
    expect_times(page, "t4", "k80-die", **asked_first)


@pytest.mark.thorough
def test_a_bad_address_gives_error_messages(visit):
    page = visit("?ask=predict&network=resnet5&gpu=v100-sxm2&batch_size=0&colour=red&phase=inference")
    for sentence in ("did you mean resnet50", "must be an integer from 1 to", "no control is called 'colour'"):
        page.get_by_test_id("stAlert").get_by_text(sentence).wait_for()
    expect_times(page, network="llama-3-8b")
    expect(page.get_by_text("Traceback")).to_have_count(0)


def test_a_profile_is_uploaded(visit, tmp_path, trace_profile, pyprof_profile):
    page = visit("?ask=profile&gpu=k40m")
    for name, content, sentence in (
        ("run.json", trace_profile, "run.json on Tesla K40m: 3 kernels, 3 calls, 100 µs"),
        ("run.parquet", pyprof_profile, "run.parquet on Tesla K40m: 3 kernels, 3 calls, 6 ms"),
    ):
        path = tmp_path / name
        path.write_bytes(content)
        page.locator(DROPPED).set_input_files(path)
        page.get_by_text(sentence).wait_for()
    page.get_by_test_id("stTable").get_by_text("3 ms").first.wait_for()
    path = tmp_path / "notes.txt"
    path.write_text("hello")
    page.locator(DROPPED).set_input_files(path)
    page.get_by_test_id("stAlert").get_by_text("notes.txt: not a profile that paleo-lite reads").wait_for()


@pytest.mark.thorough
def test_a_bad_uploaded_file_gives_an_error_message(visit, tmp_path):
    page = visit("?ask=predict&network=resnet50&gpu=t4")
    expect_times(page, "t4")
    bad = tmp_path / "bad.prototxt"
    bad.write_text("layer {")
    page.get_by_text("Your own files").click()
    page.locator('[data-testid=stSidebar] input[type="file"]').set_input_files(bad)
    page.get_by_test_id("stAlert").get_by_text("bad.prototxt: line 1").wait_for()
    good = tmp_path / "mine.json"
    good.write_bytes((shipped_folder("models") / "alexnet.json").read_bytes())
    page.locator('[data-testid=stSidebar] input[type="file"]').set_input_files(good)
    until(page, "network", "mine.json")  # uploaded files are selected


@pytest.mark.thorough
def test_the_table_is_downloaded_as_the_command_prints_it(visit):
    page = visit("?ask=predict&network=alexnet&gpu=v100-sxm2&batch_size=4")
    with page.expect_download() as download:
        page.get_by_role("button", name="Download table").click()
    with Path(download.value.path()).open(newline="") as file:
        ours = list(csv.reader(file))
    words = ["predict", "alexnet", "--gpu", "v100-sxm2", "--batch-size", "4", "--memory", "--format", "csv"]
    assert ours == list(csv.reader(io.StringIO(CliRunner().invoke(main, words).stdout)))
    assert download.value.suggested_filename == "alexnet-v100-sxm2.csv"


FITS = """() => [document.documentElement, document.querySelector("[data-testid=stMain]")]
    .every(element => element.scrollWidth <= element.clientWidth)"""
TABLES_SCROLL = """width => {
    const tables = [...document.querySelectorAll('[data-testid=stTable]')];
    return tables.length && tables.every(table => table.clientWidth <= width
        && [...table.querySelectorAll('div')].some(part => getComputedStyle(part).overflowX === 'auto'));
}"""


CUT = """() => [...document.querySelectorAll('.st-key-cards *')]
    .filter(part => part.scrollWidth > part.clientWidth + 1 && getComputedStyle(part).overflowX !== 'visible')
    .map(part => part.textContent)"""
"""The texts in cards that are cut off."""
CARD_ROWS = """() => new Set([...document.querySelectorAll('[data-testid=stMetric]')]
    .map(card => Math.round(card.getBoundingClientRect().y))).size"""
"""How many rows the cards stand in."""


@pytest.mark.parametrize("scheme", [pytest.param("light", marks=pytest.mark.thorough), "dark"])
def test_it_fits_the_screen(visit, tmp_path, scheme):
    from PIL import Image

    page = visit("?ask=predict&network=resnet50&gpu=v100-sxm2&gpu=k80-die&gpu=p100-sxm2&phase=training", scheme)
    page.locator(CHART).nth(3).wait_for()
    page.get_by_text("The same in Python").last.wait_for()
    for name, size, rows in (("desktop", DESKTOP, 1), ("tablet", TABLET, 2), ("phone", PHONE, 3)):
        page.set_viewport_size(size)
        page.wait_for_function(  # charts are drawn anew
            "width => [...document.querySelectorAll('.marks')].every(chart => chart.clientWidth <= width)",
            arg=size["width"],
            polling=POLLING_MS,
        )
        page.wait_for_function(FITS, polling=POLLING_MS)
        # While the page is drawn anew, there are fewer cards for a moment.
        page.wait_for_function(f"rows => ({CARD_ROWS})() === rows", arg=rows, polling=POLLING_MS)
        assert page.evaluate(CUT) == []
        page.wait_for_function(TABLES_SCROLL, arg=size["width"])
        picture = tmp_path / f"{name}-{scheme}.png"
        page.screenshot(path=picture)
        with Image.open(picture) as image:
            assert image.size == (size["width"], size["height"])
            corner = sum(image.convert("RGB").getpixel((size["width"] - 3, size["height"] - 3))) / 3
        assert (corner > 200) == (scheme == "light")


@pytest.mark.thorough
def test_the_benchmark_of_the_page_waits_for_the_new_answer(visit):
    """Every change of the page is after the change of its control, and within the time for which it is watched."""
    page = visit(NETWORK)
    expect_times(page)
    watched_ms = 20_000
    (seconds,) = measure(page, [48], watched_ms)
    assert 0 < seconds < watched_ms / 1000
    expect_times(page, batch_size=48)


@pytest.fixture(scope="module")
def screenshot():
    """The script that takes the picture of the documentation."""
    path = Path(__file__).parents[2] / "docs" / "screenshot.py"
    spec = importlib.util.spec_from_file_location("paleo_lite_screenshot", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.thorough
def test_a_screenshot_waits_until_the_tables_are_filled(visit, screenshot, tmp_path):
    page = visit(screenshot.QUERY)
    screenshot.take_screenshot(page, str(tmp_path / "ui.png"))
    assert (tmp_path / "ui.png").read_bytes().startswith(b"\x89PNG")
    assert page.get_by_test_id("stTable").first.get_by_text("l40s", exact=True).is_visible()
    for change in (
        "document.querySelector('[data-testid=stTable] td').innerHTML = ''",
        "document.querySelectorAll('[data-testid=stTable]').forEach(table => table.remove())",
    ):
        page.evaluate(change)
        assert not page.evaluate(screenshot.FILLED)


REACHABLE = """radio => {
    const label = radio.closest("label");
    const box = label.getBoundingClientRect();
    const hit = document.elementFromPoint(box.x + box.width / 2, box.y + box.height / 2);
    return box.x >= 0 && box.right <= document.documentElement.clientWidth && label.contains(hit);
}"""


def test_every_question_is_reachable(visit):
    """No question of the left column is outside the screen, or behind the bar at the top."""
    page = visit("?ask=profile")  # drawn soonest: without an answer
    for size in (DESKTOP, PHONE):
        page.set_viewport_size(size)
        page.wait_for_function(FITS, polling=POLLING_MS)
        if size is PHONE:
            page.get_by_test_id("stExpandSidebarButton").click()
        entries = page.get_by_test_id("stSidebar").get_by_test_id("stRadio").get_by_role("radio")
        expect(entries).to_have_count(len(WANTED))
        for number, wanted in enumerate(WANTED.values()):
            assert entries.nth(number).evaluate("radio => radio.closest('label').textContent") == wanted.title
            page.wait_for_function(REACHABLE, arg=entries.nth(number).element_handle(), polling=POLLING_MS)


EDGE = """() => {
    const area = document.querySelector('[data-testid=stTable] div:has(> table)');
    const page = getComputedStyle(document.querySelector('[data-testid=stApp]'));
    const style = getComputedStyle(area);
    const red = Number(page.backgroundColor.match(/[0-9]+/)[0]);
    return [area.scrollWidth > area.clientWidth, style.backgroundAttachment, style.backgroundImage.includes(
        page.backgroundColor), red > 200 ? 'light' : 'dark'];
}"""
"""Whether the first table scrolls, how its background moves, whether that has the colour of the page, and which."""


@pytest.mark.thorough
@pytest.mark.parametrize("scheme", [pytest.param("light", marks=pytest.mark.thorough), "dark"])
def test_a_wide_table_has_a_shadow_where_it_is_cut(visit, scheme):
    """The shadows stay in place; covers in the colour of the page move with the table, and bare them at its end."""
    page = visit("?network=resnet50&gpu=k80-die&workers=1,2,4&link=ethernet20", scheme=scheme)
    page.get_by_test_id("stTable").first.wait_for()
    assert page.evaluate(EDGE) == [True, "local, local, scroll, scroll", True, scheme]


@pytest.mark.thorough
def test_a_keyboard_is_enough(visit):
    page = visit(NETWORK)
    expect_times(page)
    reached = []
    for _ in range(120):  # twice around: a page that draws itself anew may take the focus back to its top
        page.keyboard.press("Tab")
        reached.append(
            page.evaluate("document.activeElement.getAttribute('aria-label') || document.activeElement.type")
        )
        if reached[-1] == "Precision" and reached.count("Precision") == 1:
            page.keyboard.type("fp64")
            take_option(page, "fp64")
            until(page, "precision", "fp64")
            expect_times(page, precision="fp64")
        if reached[-1] == "radio" and "Precision" in reached:
            page.keyboard.press("ArrowDown")
            until(page, "ask", "profile")
            break
    for label in ("Network", "Devices", "Phase", "Batch size", "Precision", "radio"):
        assert label in reached


def test_only_its_own_origin_is_let_in(server):
    """The handshake of RFC 6455, as a browser makes it for pages of other ports and hosts; a foreign one is refused
    at once: nobody is asked for other names of this computer."""
    place = urlsplit(server)

    def status(origin):
        with socket.create_connection((place.hostname, place.port), timeout=PATIENCE_S) as connection:
            asked = {
                "Host": place.netloc, "Upgrade": "websocket", "Connection": "Upgrade", "Origin": origin,
                "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==", "Sec-WebSocket-Version": "13",
            }  # fmt: skip
            lines = ["GET /_stcore/stream HTTP/1.1", *(f"{name}: {value}" for name, value in asked.items())]
            connection.sendall("\r\n".join([*lines, "", ""]).encode())
            return int(connection.recv(64).split()[1])

    assert status(f"http://{place.netloc}") == 101
    for origin in (f"http://127.0.0.1:{place.port + 1}", f"http://localhost:{place.port}", "http://example.org"):
        assert status(origin) == 403, origin


def test_only_its_own_address_is_served(server):
    """A server of all addresses would answer at every one of 127.0.0.0/8, as at those that others know."""
    with socket.socket() as probe:
        probe.settimeout(2)
        assert probe.connect_ex(("127.0.0.2", urlsplit(server).port)) != 0

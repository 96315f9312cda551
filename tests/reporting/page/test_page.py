"""HTML reports: self-contained, escaped, limited in size, with the numbers of the prediction or profile.

Tests: reporting/page/html.py, reporting/page/prediction.py, reporting/page/profile.py,
reporting/page/sections.py.
"""

from __future__ import annotations

import hashlib
import html
import re
from html.parser import HTMLParser

import pytest

pytest.importorskip("altair")


import paleo_lite as pl
from asked import predict_any
from measured import DATA
from paleo_lite.calibration.alternatives import Alternative, Alternatives
from paleo_lite.counting import PHASES
from paleo_lite.files import shipped_folder
from paleo_lite.reporting.document import Column, Document, ReportProvenance, Table
from paleo_lite.reporting.page.html import ROWS_AT_MOST, cells, foot, to_html
from paleo_lite.reporting.page.prediction import help_content, prediction_report
from paleo_lite.text import MAX_NAME_LENGTH, make_printable, truncate
from paleo_lite.units import format_si

pytestmark = pytest.mark.slow

VOID = {"meta", "link", "img", "br", "input", "hr", "base", "source", "wbr"}


class Reader(HTMLParser):
    """Elements and table cells of a page; fails on incorrect nesting."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.cells: list[str] = []
        self.feed(text)
        self.close()
        assert not self.open, self.open

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)
        if tag in ("td", "th"):
            self.cells.append("")

    def handle_startendtag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] in ("td", "th"):
            self.cells[-1] += data

    def of(self, tag):
        return [attributes for name, attributes in self.tags if name == tag]


@pytest.fixture(scope="module")
def page(write, tmp_path_factory):
    words = ["train", "resnet18", "--gpu", "v100-sxm2", "--precision", "fp16", "--batch-size", 32]
    return write(*words, output=tmp_path_factory.mktemp("page") / "report.html")


@pytest.fixture(scope="module")
def prediction():
    return predict_any("resnet18", gpu="v100-sxm2", precision="fp16", batch_size=32, phase="training",
                      training=pl_options())  # fmt: skip


def pl_options():
    from paleo_lite.timing.training_options import TrainingOptions

    return TrainingOptions("sgd")


@pytest.mark.thorough
def test_page_loads_no_external_resources(page):
    read = Reader(page)
    for _, attributes in read.tags:
        for name in ("src", "href", "xlink:href", "action", "data", "poster", "srcset"):
            assert re.match(r"#|data:", attributes.get(name) or "#")
        assert not any(name.startswith("on") for name in attributes)
    assert "url(" not in re.sub(r"url\(#p\d+-", "", page) and "@import" not in page
    (script,) = re.findall(r"<script>(.*?)</script>", page, re.DOTALL)
    policy = next(tag["content"] for tag in read.of("meta") if tag.get("http-equiv") == "Content-Security-Policy")
    digest = re.search(r"script-src 'sha256-([^']+)'", policy)
    assert digest is not None and "default-src 'none'" in policy
    import base64

    assert digest.group(1) == base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()


def test_headings_captions_and_ids_are_accessible(page):
    read = Reader(page)
    assert read.of("html")[0]["lang"] == "en"
    assert len(read.of("h1")) == 1 and len(read.of("title")) == 1
    ids = [attributes["id"] for _, attributes in read.tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    targets = [tag["href"][1:] for tag in read.of("a")]
    labels = [attributes["aria-labelledby"] for _, attributes in read.tags if "aria-labelledby" in attributes]
    assert set(targets) | set(labels) <= set(ids)
    assert len(read.of("caption")) == len(read.of("table"))
    assert all(tag.get("aria-hidden") == "true" for tag in read.of("svg"))  # captions are the text alternatives
    assert len(read.of("svg")) == len(read.of("figure")) == len(read.of("figcaption")) == 4
    boxes = [tag for tag in read.of("div") if tag.get("class") == "scroll"]
    assert boxes and all(tag["tabindex"] == "0" and tag["role"] == "region" for tag in boxes)


def test_numbers_match_the_prediction(page, prediction):
    text = html.unescape(re.sub(r"<[^>]+>", " ", page))
    low, high = prediction.interval
    assert format_si(prediction.time_s, "s") in text
    assert f"{format_si(low, 's', 3)} to {format_si(high, 's', 3)} at 90%" in text
    assert f"{32 / high:,.4g}" in text and "at 80%" in text
    rows = re.findall(r'<tr><th scope="row"[^>]*>([^<]+)</th>(.*?)</tr>', page)
    named = {html.unescape(name): rest for name, rest in rows}
    for row in prediction.rows():
        assert format_si(row["time_s"], "s") in html.unescape(named[row["name"]])


def test_the_report_lists_how_to_reproduce_it(page):
    text = html.unescape(page)
    asked = "paleo-lite train resnet18 --gpu v100-sxm2 --precision fp16 --batch-size 32"
    assert f"{asked} --report" in text and f"{asked} --format json" in text
    for path in ("models/resnet18.json", "hardware/v100-sxm2.toml", "calibrations/v100-sxm2-fp16.toml"):
        folder, name = path.split("/")
        assert hashlib.sha256((shipped_folder(folder) / name).read_bytes()).hexdigest() in text


@pytest.mark.thorough
def test_the_same_command_gives_the_same_page(write, tmp_path, monkeypatch):
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "0")
    for n in range(2):
        (tmp_path / f"{n}").mkdir()
    pages = [write("predict", "alexnet", "--gpu", "k40m", output=tmp_path / f"{n}" / "report.html") for n in range(2)]
    assert "on 1970-01-01" in pages[0]
    assert pages[0].replace(f"{tmp_path}/0", "") == pages[1].replace(f"{tmp_path}/1", "")


def check_hostile(text, names):
    read = Reader(text)
    assert len(read.of("script")) == 1 and not read.of("img")
    assert not any(name.startswith("on") for _, attributes in read.tags for name in attributes)
    assert "\0" not in text and "\x1b" not in text
    assert {truncate(make_printable(name)) for name in names} <= set(read.cells)
    assert max(map(len, read.cells)) <= MAX_NAME_LENGTH


def test_names_of_layers_are_escaped(write, hostile_network, tmp_path, hostile):
    text = write("predict", hostile_network, "--gpu", "k40m", output=tmp_path / "r.html")
    check_hostile(text, hostile)
    assert "&lt;b&gt;alexnet" in text and "<b>alexnet" not in text


def test_names_of_kernels_and_files_are_escaped(write, profile, tmp_path, hostile):
    name = "<img src=x onerror=1>.parquet"
    path = profile(tmp_path / name, [kernel.replace("\0", "") for kernel in hostile], calls=3)
    text = write("efficiency", path, "--gpu", "k40m", output=tmp_path / "r.html")
    assert len(Reader(text).of("script")) == 1 and not Reader(text).of("img")
    assert "&lt;script&gt;document.title" in text and "&lt;img src=x onerror=1&gt;.parquet on Tesla K40m" in text


@pytest.mark.spread(2)
@pytest.mark.parametrize("distinct", [1, 500, 5_000])
def test_a_profile_of_100_000_kernels_stays_small(write, profile, tmp_path, distinct):
    names = [f"some_kernel_with_a_name_like_{index}" for index in range(distinct)]
    path = profile(tmp_path / "run.parquet", names, calls=100_000 // distinct)
    text = write("efficiency", path, "--gpu", "k40m", output=tmp_path / "r.html")
    assert len(text.encode()) < 5e6
    read = Reader(text)
    further = f"{distinct - ROWS_AT_MOST:,} further rows"
    assert (further in read.cells) == (distinct > ROWS_AT_MOST)
    assert "100,000 calls" in text


@pytest.mark.thorough
def test_a_network_of_a_thousand_layers_stays_small(write, tmp_path):
    network = max(shipped_folder("models").glob("*.json"), key=lambda path: path.read_text().count('"module:')).stem
    layers = len(pl.predict(network, gpu="k40m").names)
    assert layers > 800
    text = write("predict", network, "--gpu", "k40m", "--phase", "training", output=tmp_path / "r.html")
    assert len(text.encode()) < 5e6
    assert f"{layers:,} layers" in text and "neighbouring layers" in text


def test_rows_that_are_not_shown_are_summed():
    rows = [{"name": f"l{index}", "time_s": 0.5, "share": 1 / 3000, "bound": "memory"} for index in range(3000)]
    columns = [Column("name", "layer", left=True), Column("time_s", "time"), Column("share", "share"),
               Column("bound", "bound by", left=True)]  # fmt: skip
    table = Table("t", columns, rows, [{"name": "total", "time_s": 1500.0}])
    assert len(list(cells(table))) == ROWS_AT_MOST
    first, total = [[cell.text for cell in row] for row in foot(table)]
    assert first == ["1,000 further rows", "500.0", str(sum([1 / 3000] * 1000)), ""]
    assert total == ["total", "1500.0", "", ""]


@pytest.mark.parametrize("phase", PHASES)
def test_every_phase_has_a_report(phase):
    prediction = pl.predict("alexnet", gpu="k40m", phase=phase, memory=True)
    report = prediction_report(prediction, ReportProvenance("paleo-lite", "0", "1970-01-01"))
    assert report.question.endswith("of alexnet take on one Tesla K40m, in fp32, for one sample?")
    seconds = [row["time_s"] for row in bounds_of(report)]
    assert sum(seconds) == pytest.approx(prediction.time_s)


def bounds_of(report):
    (section,) = [section for section in report.sections if section.name == "bounds"]
    return section.content[0].rows


@pytest.mark.parametrize(
    ("text", "shown"),
    [("plain", "plain"), ("a\nb\0\x1b", "a b  "), ("\ud800", "\N{REPLACEMENT CHARACTER}"), ("é µ ×", "é µ ×")],
)
def test_text_is_made_printable(text, shown):
    assert make_printable(text) == shown
    shown.encode()


def test_long_names_are_cut():
    assert truncate("x" * MAX_NAME_LENGTH) == "x" * MAX_NAME_LENGTH
    assert truncate("x" * 5000) == "x" * (MAX_NAME_LENGTH - 1) + "…"


def test_improvements_are_ordered_by_gain():
    base = pl.predict("alexnet", gpu="k40m", time_model="roofline")
    other = {size: pl.predict("alexnet", gpu="k40m", time_model="roofline", batch_size=size) for size in (2, 64)}
    k80 = pl.predict("alexnet", gpu="h100-sxm", time_model="roofline")
    tried = [Alternative("batch", f"batch {size}", each) for size, each in other.items()]
    sentences, content = help_content(base, Alternatives([*tried, Alternative("device", "H100", k80)]))
    on_same_device, on_other_devices = content
    assert [row["name"] for row in on_same_device.rows] == ["batch 64", "batch 2"]
    gain = other[64].throughput_per_s / base.throughput_per_s
    assert on_same_device.rows[0]["gain"] == pytest.approx(gain)
    assert sentences[0].startswith("The best tested change on the same device is batch 64: ")
    assert on_other_devices.title.startswith("Other devices: 1 of 1")
    slower = Alternative("device", "K40m again", base)
    assert help_content(base, Alternatives([slower]))[1] == ["None of 1 other devices is predicted to be faster."]
    assert help_content(base, Alternatives()) == ([], [])


@pytest.mark.thorough
@pytest.mark.needs_data
def test_real_profiles(write, tmp_path):
    folder = DATA / "profiles"
    sources = [folder / "ncu_csv" / "saxpy.csv", folder / "nvprof_summary_text" / "k80_tf2_mnist.txt",
               *sorted((folder / "torch_chrome_trace_resnet50").glob("*.gz"))]  # fmt: skip
    for number, path in enumerate(sources):
        text = write("efficiency", path, "--gpu", "v100-sxm2", output=tmp_path / f"{number}.html")
        assert len(text.encode()) < 1e6
        Reader(text)
    assert "No timeline" not in text  # the trace has start times
    kernels = sorted((DATA / "surfboard" / "pyprof_kernels").glob("run_0_config_1_2*dali-gpu_32_fp16*"))[0]
    text = write("efficiency", kernels, "--gpu", "k40m", output=tmp_path / "pyprof.html")
    share = re.search(r'Share of peak FLOP/s</dt><dd class="value">([\d.]+)%', text)
    # By SURFBoard's own batch durations: 777.2 GFLOP in 0.7568 s (8 nodes) of 4.29 TFLOP/s.
    assert share is not None and float(share.group(1)) == pytest.approx(100 * 777.2 / 0.7568 / 4290, abs=0.5)
    assert "No timeline: a pyprof profile without start times has no timeline" in text


def test_any_document_is_a_page():
    page = to_html(
        Document("A <b>", [("peak", "4 TFLOP/s")], [Table("t", [Column("a", "a")], [{"a": 1}])], ["rounded"])
    )
    assert page.startswith("<!doctype html>") and "A &lt;b&gt;" in page
    assert "4 TFLOP/s" in page and "rounded" in page and 'data-v="1"' in page and "Contents" not in page

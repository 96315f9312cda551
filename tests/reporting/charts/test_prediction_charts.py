"""Charts of predictions: all formats, and numbers equal to those of the prediction.

Tests: reporting/charts/layers.py, reporting/charts/render.py, reporting/charts/roofline.py.
"""

from __future__ import annotations

import io
import json
import re
from itertools import pairwise

import pytest

pytest.importorskip("altair")

import paleo_lite as pl
from paleo_lite.api.plotting import check_chart_file
from paleo_lite.architectures import find_network
from paleo_lite.counting import KINDS
from paleo_lite.errors import BadValue, MissingExtra, UnknownName
from paleo_lite.reporting.charts.devices import batch_chart
from paleo_lite.reporting.charts.layers import BARS_AT_MOST, kind_chart, layer_chart, pass_chart
from paleo_lite.reporting.charts.render import GROUPS, SERIES, THEMES, chart_suffix, group_of, render, time_unit
from paleo_lite.reporting.charts.roofline import Dot, prediction_roofline, roofline_chart

pytestmark = pytest.mark.slow

CHARTS = {
    "roofline": prediction_roofline,
    "layers": layer_chart,
    "kinds": kind_chart,
    "passes": pass_chart,
    "batches": lambda prediction: batch_chart([prediction]),
}


@pytest.fixture(scope="module")
def prediction():
    return pl.predict("mobilenet_v2", gpu="titan-rtx", precision="fp16", batch_size=8, phase="training")


@pytest.mark.spread(1)
@pytest.mark.parametrize("name", CHARTS)
def test_every_chart_becomes_every_format(prediction, name):
    from PIL import Image

    chart = CHARTS[name](prediction)
    image = Image.open(io.BytesIO(render(chart, ".png")))
    assert image.width > 600
    assert image.convert("RGB").getpixel((0, 0)) == (255, 255, 255)
    svg = render(chart, ".svg", "dark").decode()
    assert svg.startswith("<svg")
    assert THEMES["dark"].background.lower() in svg.lower()
    assert len(svg) < 5e6


def test_renderer_starts_before_the_computation_unless_a_process_pool_is_used(monkeypatch, tmp_path):
    starts = []
    monkeypatch.setattr("paleo_lite.reporting.charts.render.warm_up_renderer", lambda: starts.append(True))
    for kind, name in (("kinds", "a.png"), ("kinds", "a.html"), ("efficiency", "a.png")):
        check_chart_file(tmp_path / name, kind)
    assert starts == [True]


def test_the_page_needs_no_network(prediction):
    page = render(kind_chart(prediction), ".html").decode()
    assert "samples per second" in render(batch_chart([prediction]), ".html").decode()  # contains numpy numbers
    assert not re.search(r"<(?:script|link)[^>]+(?:src|href)=", page)
    assert len(page) < 5e6


@pytest.mark.thorough
def test_html_contains_the_chart_with_any_title(prediction, tmp_path, monkeypatch):
    monkeypatch.setenv("PALEO_LITE_CACHE", str(tmp_path))
    chart = kind_chart(prediction).properties(title="</script><b>x</b>")
    page = render(chart, ".html").decode()
    assert page.count("</script>") == page.count("<script")
    spec = json.loads(re.search(r"^ *const spec = (.*);$", page, re.MULTILINE)[1])
    assert spec["title"] == "</script><b>x</b>" and spec["data"] == chart.to_dict()["data"]
    (kept,) = tmp_path.iterdir()
    for damaged in (b"cut off", b"\xff is no text"):  # for example by a full disk
        kept.write_bytes(damaged)
        assert render(chart, ".html").decode() == page
    kept.write_text("<title>Chart</title> another frame </html>")  # template of another version
    assert "another frame" not in (whole := render(chart, ".html").decode()) and "<b>x" in whole


def test_bars_add_up_to_the_prediction(prediction):
    rows = layer_chart(prediction).to_dict()["data"]["values"]
    assert sum(row["flops"] for row in rows) == prediction.flops
    assert sum(row["time_s"] for row in rows) + prediction.terms.overhead_s == pytest.approx(prediction.time_s)
    shares = kind_chart(prediction).to_dict()["data"]["values"]
    assert sum(row["share"] for row in shares if row["quantity"] == "time") == pytest.approx(1)


def test_a_thousand_layers_share_bars_and_the_subtitle_reports_it(prediction, tmp_path):
    big = pl.predict("efficientnet_b7", gpu="titan-rtx")
    rows = layer_chart(big).to_dict()
    assert len(big.names) > 2 * BARS_AT_MOST >= len(rows["data"]["values"])
    assert "neighbouring layers" in " ".join(rows["title"]["subtitle"])
    assert sum(row["flops"] for row in rows["data"]["values"]) == big.flops


def test_a_hundred_thousand_kernels_stay_small_and_the_subtitle_reports_it():
    dots = [Dot(f"k{i}", "gemm", 1e9 + i, 1e6, 1e-3 + i * 1e-9, "measured") for i in range(100_000)]
    chart = roofline_chart(dots, [("fp32 vector peak", 1e13)], 1e12, "title", "subtitle")
    assert "of 100000 layers are drawn" in " ".join(chart.to_dict()["title"]["subtitle"])
    assert len(render(chart, ".svg")) < 5e6


@pytest.mark.parametrize(
    ("kind", "flops", "bytes_moved", "reasons"),
    [  # in 1 ms, under a peak of 10 TFLOP/s and 1 TB/s
        ("conv2d", 2e10, 1e9, ["Winograd multiplies less"]),
        ("gemm", 2e10, 1e9, ["faster clock"]),
        ("relu", 3e9, 2e9, ["above the slope: data in caches"]),
        ("conv2d", 9e9, 1e9, []),
    ],
)
def test_a_dot_above_the_roof_has_its_reason_on_the_chart(kind, flops, bytes_moved, reasons):
    dots = [Dot("a", kind, flops, bytes_moved, 1e-3)]
    svg = render(roofline_chart(dots, [("fp32 vector peak", 1e13)], 1e12, "title", []), ".svg").decode()
    words = ("Winograd multiplies less", "faster clock", "above the slope: data in caches")
    assert [word for word in words if word in svg] == reasons


@pytest.mark.parametrize(("seconds", "unit"), [(3.0, "s"), (0.5, "ms"), (5e-6, "µs"), (1e-8, "ns")])
def test_times_have_a_readable_unit(seconds, unit):
    assert time_unit(seconds)[1] == unit


@pytest.mark.spread(2)
@pytest.mark.parametrize("name", CHARTS)
def test_a_network_of_one_layer_is_drawn(name):
    rows = pl.predict("alexnet", gpu="titan-rtx").rows()
    assert next(iter(rows))["kind"] == "conv2d"
    network = find_network("alexnet")
    one = network._replace(layers=network.layers[:1])
    assert render(CHARTS[name](pl.predict(one, gpu="titan-rtx", time_model="roofline")), ".svg")


def test_predictions_without_layers_raise():
    bare = pl.predict(flops="15503M", gpu="k80")
    for name in ("roofline", "layers", "kinds"):
        with pytest.raises(BadValue, match="nothing to draw"):
            CHARTS[name](bare)
    with pytest.raises(BadValue, match="nothing to draw"):
        batch_chart([])


def test_every_known_kind_has_a_group():
    for kind in KINDS:
        assert group_of(kind) in GROUPS
        assert group_of(kind) != "other"


def _luminance(colour):
    channels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("theme", THEMES.values(), ids=list(THEMES))
def test_colours_stand_out_from_both_backgrounds(theme):
    """WCAG 2.1's contrast ratio: 4.5 for text, and at least 1.9 for areas, labelled by name."""
    ground = _luminance(theme.background)

    def contrast(colour):
        pair = sorted([_luminance(colour), ground])
        return (pair[1] + 0.05) / (pair[0] + 0.05)

    assert contrast(theme.ink) > 7
    assert min(map(contrast, [*GROUPS.values(), *SERIES])) > 1.9


@pytest.mark.parametrize("name", ["resnet50", "swin_b"])
def test_layers_that_follow_one_another_differ_in_grey(name):
    """Luma of Rec. 601, by which pictures become grey: 3% of black to white at least."""
    groups = [group_of(layer.kind) for layer in find_network(name).layers]
    colours = {group: [int(GROUPS[group][at : at + 2], 16) for at in (1, 3, 5)] for group in groups}
    luma = {group: 0.299 * red + 0.587 * green + 0.114 * blue for group, (red, green, blue) in colours.items()}
    assert [
        pair for pair in set(pairwise(groups)) if len(set(pair)) > 1 and abs(luma[pair[0]] - luma[pair[1]]) < 8
    ] == []


def test_bad_suffixes_and_themes_are_refused(prediction, monkeypatch, tmp_path):
    chart = kind_chart(prediction)
    with pytest.raises(BadValue, match=r"\.png, \.svg, \.html"):
        chart_suffix(tmp_path / "chart.gif")
    with pytest.raises(UnknownName, match="theme"):
        render(chart, ".svg", "sepia")
    monkeypatch.setitem(__import__("sys").modules, "altair", None)
    with pytest.raises(MissingExtra, match=r"paleo-lite\[plots\]"):
        kind_chart(prediction)


@pytest.mark.parametrize(
    "network", ["llama-3.1-8b", "gpt-oss-20b", "deepseek-v3", "qwen3-30b-a3b", "nemotron-nano-9b-v2"]
)
def test_kernels_of_engines_have_the_colour_of_what_they_do(network: str) -> None:
    """None of them is drawn as something else."""
    prediction = pl.predict(network, gpu="h200-sxm", precision="bf16", phase="decode")
    groups = {kind: group_of(kind) for kind in prediction.by_kind()}
    assert "other" not in groups.values(), groups

"""How charts look, on paper and in the dark; and drawing them: a PNG, an SVG, or an HTML page that needs no network."""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from contextlib import suppress
from functools import lru_cache
from html import escape
from pathlib import Path
from threading import Thread
from typing import Any, ClassVar

import msgspec

from ...counting import KINDS
from ...errors import BadValue, UnknownName
from ...extras import need
from ...files import cache_folder, write_aside

GROUPS: dict[str, str] = {
    "convolution": "#0072B2",
    "matrix product": "#D55E00",
    "attention": "#CC79A7",
    "normalisation": "#1FC08F",
    "activation": "#E8A90C",
    "elementwise": "#70701C",
    "pooling": "#7CC3EE",
    "data movement": "#A0A0A0",
    "update": "#B08D74",
    "communication": "#8F2F82",
    "other": "#B0B0B0",
}
"""Colour of each group of work: hues of Okabe and Ito's set, told apart by the colour-blind, and of Tol's.

Those that stand beside one another differ in grey, too, as paper and copies show them. Each has a contrast of nearly 2
or more against both backgrounds, so that a group keeps its colour in either theme.
"""

SERIES = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#999933", "#7F7F7F")
"""Colours of things that are not groups of layers: devices, strategies, measured and predicted."""

SHAPES = ("circle", "square", "triangle-up", "diamond", "cross", "triangle-down", "triangle-right", "triangle-left")
"""Shapes that go with `SERIES`: no chart tells things apart by colour alone."""

_OTHERS = {
    "norm": "normalisation", "normalization": "normalisation", "gemm": "matrix product", "pool": "pooling",
    "pooling": "pooling", "elementwise": "elementwise", "random": "elementwise", "reduction": "elementwise",
    "input": "data movement", "layout": "data movement", "indexing": "data movement", "memcpy": "data movement",
    "memset": "data movement", "optimizer": "update", "update": "update", "communication": "communication",
}  # fmt: skip
"""Classes of work and of kernels that are not kinds of layers."""


def group_of(kind: str) -> str:
    """The group of a kind of layer, a class of work or a class of kernels: a key of `GROUPS`."""
    if kind in KINDS:
        return KINDS[kind].group
    return "convolution" if kind.startswith("conv") else _OTHERS.get(kind, "other")


class Theme(msgspec.Struct, frozen=True):
    """Background, ink (text, axes, rooflines) and faint ink (grid)."""

    name: str
    background: str
    ink: str
    faint: str

    def config(self) -> dict[str, Any]:
        """The configuration of Vega-Lite for this theme."""
        text = {"labelColor": self.ink, "titleColor": self.ink, "labelFontSize": 11, "titleFontSize": 12}
        return {
            "background": self.background,
            "font": "sans-serif",
            "view": {"stroke": None},
            "title": {
                "color": self.ink, "subtitleColor": self.ink, "anchor": "start", "fontSize": 14,
                "subtitleFontSize": 11, "offset": 12, "limit": 900,
            },
            "axis": {**text, "gridColor": self.faint, "domainColor": self.ink, "tickColor": self.ink, "labelLimit": 260,
                     "titleFontWeight": "normal", "labelFlush": False},
            "legend": {**text, "titleFontWeight": "normal", "labelLimit": 260,
                       "symbolBaseFillColor": self.ink, "symbolBaseStrokeColor": self.ink, "symbolOpacity": 1},
            "header": {**text, "titleFontWeight": "normal"},
            "range": {"category": list(SERIES)},
            "text": {"color": self.ink, "fontSize": 11},
            "rule": {"color": self.ink},
            "line": {"color": self.ink},
        }  # fmt: skip


THEMES = {
    "light": Theme("light", "#FFFFFF", "#22262B", "#DDDDDD"),
    "dark": Theme("dark", "#16191D", "#E6E8EA", "#3A3F45"),
}


SUFFIXES = (".png", ".svg", ".html")

POINTS_AT_MOST = 4000
"""More marks than this are neither seen apart nor light to load: charts keep the largest and gather the rest."""


def altair() -> Any:
    """Altair, which draws."""
    return need("altair", "drawing charts", "plots")


@lru_cache(1)
def begin() -> None:
    """Let what makes pictures start while the rest is computed: that takes most of a second before the first."""
    vl = need("vl_convert", "drawing charts", "plots")
    Thread(target=vl.vegalite_to_svg, args=({"mark": "point"},), daemon=True).start()


def render(chart: Any, suffix: str, theme: str = "light") -> bytes:
    """Draw a chart.

    Parameters
    ----------
    suffix : {".png", ".svg", ".html"}
        PNG at twice the size in pixels; HTML with everything it needs inside.
    theme : {"light", "dark"}

    Raises
    ------
    BadValue
        If the suffix is none of these.
    UnknownName
        If there is no such theme.
    """
    if theme not in THEMES:
        raise UnknownName("theme", theme, THEMES)
    if suffix not in SUFFIXES:
        raise BadValue(f"a chart is drawn to {', '.join(SUFFIXES)}, not {suffix or 'a name without an ending'!r}")
    vl = need("vl_convert", "drawing charts", "plots")
    spec = chart.to_dict(validate=False)  # the tests do
    config = {**spec.pop("config", {}), **THEMES[theme].config()}
    if suffix == ".png":
        return _deflated(vl.vegalite_to_png(spec, scale=2, config=config, allowed_base_urls=[]))
    if suffix == ".svg":
        return str(vl.vegalite_to_svg(spec, config=config, allowed_base_urls=[])).encode()
    # No entry of the menu leaves this computer.
    spec["usermeta"] = {
        "embedOptions": {"actions": {"export": True, "source": False, "compiled": False, "editor": False}}
    }
    page = _page(vl, spec, config)
    background = f"<style>body {{ background: {THEMES[theme].background}; }} {_FITS}</style>{_PHONE}"
    head = f"<title>{escape(_heading(spec))}</title>{background}"
    assert "<title>Chart</title>" in page  # the library's script, which comes before the end of the head, may hold tags
    return page.replace("<title>Chart</title>", head, 1).encode()


def _page(vl: Any, spec: dict[str, Any], config: dict[str, Any]) -> str:
    """A page with a chart and all that draws it; its script, which takes seconds to gather, is kept for the next."""
    kept = cache_folder() / f"vega-{vl.__version__}.html"
    page = ""
    with suppress(OSError, UnicodeError):  # what is not there, or not ours to read, is gathered anew
        page = kept.read_text("utf-8")
    if not page.rstrip().endswith("</html>"):
        page = str(vl.vegalite_to_html({"mark": "point"}, bundle=True))
        with suppress(OSError):  # without a folder to keep it in it is gathered each time
            write_aside(kept, page.encode())
    before, _, rest = page.rpartition(_SPEC)
    _, embed, after = rest.partition(_EMBED)
    if not (before and embed):  # a version of the library with another frame: it fills it itself
        return str(vl.vegalite_to_html(spec, bundle=True, config=config))
    # What ends a script must not stand in its text.
    chart, options = (
        msgspec.json.encode(part, enc_hook=lambda of_numpy: of_numpy.item()).decode().replace("</", r"<\/")
        for part in (spec, {"renderer": "svg", "config": config})
    )
    return f"{before}{_SPEC}{chart};\n    const opts = {options};\n{embed}{after}"


_SPEC, _EMBED = "const spec = ", "    vegaEmbed("  # where a page of vl-convert's has its chart, and what follows it
_FITS = "svg.marks { max-width: calc(100vw - 16px); height: auto; }"  # of a screen that is narrower than the chart
_PHONE = '<meta name="viewport" content="width=device-width, initial-scale=1">'


def _heading(spec: dict[str, Any]) -> str:
    """What a chart is called, in the browser's tab too."""
    title = spec.get("title", "")
    return str(title["text"] if isinstance(title, dict) else title)


def _deflated(png: bytes) -> bytes:
    """The same PNG in a third of the bytes or less: vl-convert packs the pixels (IDAT) fast rather than small.

    At zlib's own level: at its highest the pictures of the documentation are 4% smaller, and packing takes four times
    as long.
    """
    import zlib

    head, packed, place = png[:8], b"", 8
    while place < len(png):
        size, name = struct.unpack_from(">I4s", png, place)
        chunk = png[place : place + size + 12]
        packed += chunk[8:-4] if name == b"IDAT" else b""
        head += chunk if name not in (b"IDAT", b"IEND") else b""
        place += len(chunk)
    data = b"IDAT" + zlib.compress(zlib.decompress(packed))
    return head + struct.pack(">I", len(data) - 4) + data + struct.pack(">I", zlib.crc32(data)) + chunk


def chart_suffix(path: Path) -> str:
    """The format that a file's name asks for; refuses others before anything is computed.

    Raises
    ------
    BadValue
        If it is none of `SUFFIXES`.
    """
    if path.suffix.lower() not in SUFFIXES:
        raise BadValue(f"{path}: a chart is a {', '.join(SUFFIXES)} file")
    return path.suffix.lower()


def group_colour(kinds: Sequence[str], title: str | None = None) -> Any:
    """The colour channel of a field ``group``, with a legend of just those groups that `kinds` fall into."""
    used = [group for group in GROUPS if group in {group_of(kind) for kind in kinds}]
    scale = altair().Scale(domain=used, range=[GROUPS[group] for group in used])
    return altair().Color("group:N", scale=scale, title=title)


class _Rows:
    """Rows that altair hands on as they are: it takes longer to look through each number than to draw it."""

    _schema: ClassVar[dict[str, str]] = {"type": "array"}

    def __init__(self, rows: list[dict[str, Any]]) -> None:
        self.rows = rows

    def to_dict(self, *args: Any, **kwargs: Any) -> list[dict[str, Any]]:
        return self.rows


def values(rows: Sequence[dict[str, Any]]) -> Any:
    """Rows of numbers, words and None as inline data.

    Raises
    ------
    BadValue
        If there are none: an empty chart says nothing.
    """
    if not rows:
        raise BadValue("there is nothing to draw: the result has no rows")
    with altair().utils.schemapi.debug_mode(False):
        return altair().Data(values=_Rows(list(rows)))


def time_unit(longest_s: float) -> tuple[float, str]:
    """What seconds are multiplied by on an axis, and the unit that makes of them: ``(1e3, "ms")``."""
    for factor, unit in ((1.0, "s"), (1e3, "ms"), (1e6, "µs")):
        if longest_s * factor >= 2:
            return factor, unit
    return 1e9, "ns"


def decades(low: float, high: float) -> list[float]:
    """Where a logarithmic axis is ruled: powers of ten between two numbers; 1, 2 and 5 of each where they are few."""
    powers = range(math.floor(math.log10(low)), math.floor(math.log10(high)) + 1)
    tens = [10.0**power for power in powers if 10.0**power >= low]
    finer = [digit * 10.0**power for power in powers for digit in (1, 2, 5) if low <= digit * 10.0**power <= high]
    return tens if len(tens) > 2 else finer

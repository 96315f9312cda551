"""Themes and colours of charts, and rendering to PNG, SVG or a self-contained HTML page."""

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
from ...extras import require
from ...files import cache_folder, write_atomically

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
"""Colour of each group of operations, from the colour-blind safe palettes of Okabe and Ito and of Tol.

Neighbouring colours also differ in greyscale. Each has a contrast of about 2 or more against both backgrounds, so that
a group has the same colour in both themes.
"""

SERIES = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#999933", "#7F7F7F")
"""Colours of other series: devices, strategies, measured and predicted."""

SHAPES = ("circle", "square", "triangle-up", "diamond", "cross", "triangle-down", "triangle-right", "triangle-left")
"""Shapes that accompany `SERIES`, so that no chart relies on colour alone."""

_GROUPS_OF_CLASSES = {
    "norm": "normalisation",
    "normalization": "normalisation",
    "gemm": "matrix product",
    "pool": "pooling",
    "pooling": "pooling",
    "elementwise": "elementwise",
    "random": "elementwise",
    "reduction": "elementwise",
    "input": "data movement",
    "layout": "data movement",
    "indexing": "data movement",
    "memcpy": "data movement",
    "memset": "data movement",
    "optimizer": "update",
    "update": "update",
    "communication": "communication",
}
"""Groups of classes of operations and kernels that are not kinds of layers."""

_GROUPS_OF_KERNELS = {
    "normalisation": ("norm", "query and key norm", "output norm"),
    "matrix product": ("head", "router", "experts"),
    "attention": ("attention", "indexer", "recurrence"),
    "activation": ("activation", "output gate"),
    "elementwise": ("routing", "sum of experts", "sampling", "residual"),
    "data movement": ("embedding", "rotary embedding and cache"),
    "communication": ("all-reduce", "all-gather"),
}
"""Kernels of inference engines by group; all projections are matrix products."""

_GROUPS_OF_CLASSES |= {name: group for group, names in _GROUPS_OF_KERNELS.items() for name in names}


def group_of(kind: str) -> str:
    """Return the group of a kind of layer or class of kernels: a key of `GROUPS`."""
    if kind in KINDS:
        return KINDS[kind].group
    if kind.startswith("conv"):
        return "convolution"
    if kind.endswith("projection"):
        return "matrix product"
    return _GROUPS_OF_CLASSES.get(kind, "other")


class Theme(msgspec.Struct, frozen=True):
    """Colours of a theme: background, ink (text, axes, rooflines) and faint ink (grid)."""

    name: str
    background: str
    ink: str
    faint: str

    def config(self) -> dict[str, Any]:
        """Return the Vega-Lite configuration of the theme."""
        text = {"labelColor": self.ink, "titleColor": self.ink, "labelFontSize": 11, "titleFontSize": 12}
        return {
            "background": self.background,
            "font": "sans-serif",
            "view": {"stroke": None},
            "title": {
                "color": self.ink,
                "subtitleColor": self.ink,
                "anchor": "start",
                "fontSize": 14,
                "subtitleFontSize": 11,
                "offset": 12,
                "limit": 900,
            },
            "axis": {
                **text,
                "gridColor": self.faint,
                "domainColor": self.ink,
                "tickColor": self.ink,
                "labelLimit": 260,
                "titleFontWeight": "normal",
                "labelFlush": False,
            },
            "legend": {
                **text,
                "titleFontWeight": "normal",
                "labelLimit": 260,
                "symbolBaseFillColor": self.ink,
                "symbolBaseStrokeColor": self.ink,
                "symbolOpacity": 1,
            },
            "header": {**text, "titleFontWeight": "normal"},
            "range": {"category": list(SERIES)},
            "text": {"color": self.ink, "fontSize": 11},
            "rule": {"color": self.ink},
            "line": {"color": self.ink},
        }


THEMES = {
    "light": Theme("light", "#FFFFFF", "#22262B", "#DDDDDD"),
    "dark": Theme("dark", "#16191D", "#E6E8EA", "#3A3F45"),
}


SUFFIXES = (".png", ".svg", ".html")

POINTS_AT_MOST = 4000
"""Maximum number of marks; more are neither distinguishable nor fast to load."""


def altair() -> Any:
    """Return the altair module."""
    return require("altair", "drawing charts", "plots")


@lru_cache(1)
def warm_up_renderer() -> None:
    """Start the renderer in a thread: its first picture takes most of a second longer than the others."""
    vl = require("vl_convert", "drawing charts", "plots")
    Thread(target=vl.vegalite_to_svg, args=({"mark": "point"},), daemon=True).start()


def render(chart: Any, suffix: str, theme: str = "light") -> bytes:
    """Render a chart in the format of a suffix of `SUFFIXES`, in a theme of `THEMES`.

    PNG has two pixels per unit of length, and the title in its metadata; HTML is self-contained. Raise BadValue if the
    suffix is not supported, and UnknownName if the theme does not exist.
    """
    if theme not in THEMES:
        raise UnknownName("theme", theme, THEMES)
    if suffix not in SUFFIXES:
        raise BadValue(f"a chart file must end in {', '.join(SUFFIXES)} (got {suffix!r})")
    vl = require("vl_convert", "drawing charts", "plots")
    spec = chart.to_dict(validate=False)  # the tests validate
    config = {**spec.pop("config", {}), **THEMES[theme].config()}
    if suffix == ".png":
        png = vl.vegalite_to_png(spec, scale=2, config=config, allowed_base_urls=[])
        return _recompress_png(png, _chart_title(spec))
    if suffix == ".svg":
        return str(vl.vegalite_to_svg(spec, config=config, allowed_base_urls=[])).encode()
    # Without the menu entries that send the chart to a web site.
    spec["usermeta"] = {
        "embedOptions": {"actions": {"export": True, "source": False, "compiled": False, "editor": False}}
    }
    page = _html_page(vl, spec, config)
    background = f"<style>body {{ background: {THEMES[theme].background}; }} {_FIT_STYLE}</style>{_VIEWPORT_TAG}"
    head = f"<title>{escape(_chart_title(spec))}</title>{background}"
    assert "<title>Chart</title>" in page  # only the first: the library's script may contain tags as well
    return page.replace("<title>Chart</title>", head, 1).encode()


def _html_page(vl: Any, spec: dict[str, Any], config: dict[str, Any]) -> str:
    """Return a page with a chart and the script that draws it; the script, slow to bundle, is cached on disk."""
    cached = cache_folder() / f"vega-{vl.__version__}.html"
    page = ""
    with suppress(OSError, UnicodeError):  # not cached yet, or not readable
        page = cached.read_text("utf-8")
    if not page.rstrip().endswith("</html>"):
        page = str(vl.vegalite_to_html({"mark": "point"}, bundle=True))
        with suppress(OSError):  # without a writable cache the script is bundled each time
            write_atomically(cached, page.encode())
    before, _, rest = page.rpartition(_SPEC)
    _, embed, after = rest.partition(_EMBED)
    if not (before and embed):  # another version of the library with a different template
        return str(vl.vegalite_to_html(spec, bundle=True, config=config))
    # "</script>" inside a string would end the script.
    chart, options = (
        msgspec.json.encode(part, enc_hook=lambda number: number.item()).decode().replace("</", r"<\/")
        for part in (spec, {"renderer": "svg", "config": config})
    )
    return f"{before}{_SPEC}{chart};\n    const opts = {options};\n{embed}{after}"


_SPEC, _EMBED = "const spec = ", "    vegaEmbed("  # text around the chart in the pages of vl-convert
_FIT_STYLE = "svg.marks { max-width: calc(100vw - 16px); height: auto; }"
_VIEWPORT_TAG = '<meta name="viewport" content="width=device-width, initial-scale=1">'


def _chart_title(spec: dict[str, Any]) -> str:
    """Return the title of a chart, also used as the title of the HTML page."""
    title = spec.get("title", "")
    return str(title["text"] if isinstance(title, dict) else title)


def _recompress_png(png: bytes, title: str = "") -> bytes:
    """Recompress the pixels (IDAT) of a PNG, which vl-convert compresses fast, to a third of the size or less.

    A title is added as international text (iTXt) with the keyword ``Title`` of the PNG specification. zlib's default
    level is used: its highest level takes four times as long for pictures that are 4% smaller.
    """
    import zlib

    head, packed, position = png[:8], b"", 8
    while position < len(png):
        size, name = struct.unpack_from(">I4s", png, position)
        chunk = png[position : position + size + 12]
        if name == b"IDAT":
            packed += chunk[8:-4]
        elif name != b"IEND":
            head += chunk
        position += len(chunk)
    contents = [b"IDAT" + zlib.compress(zlib.decompress(packed))]
    if title:
        contents.insert(0, b"iTXtTitle\0\0\0\0\0" + title.encode())
    parts = [struct.pack(">I", len(data) - 4) + data + struct.pack(">I", zlib.crc32(data)) for data in contents]
    return b"".join([head, *parts, chunk])


def chart_suffix(path: Path) -> str:
    """Return the format of a chart file, before anything is computed.

    Raise BadValue if the name does not end in one of `SUFFIXES`.
    """
    if path.suffix.lower() not in SUFFIXES:
        raise BadValue(f"{path}: a chart file must end in {', '.join(SUFFIXES)}")
    return path.suffix.lower()


def group_colour(kinds: Sequence[str], title: str | None = None) -> Any:
    """Return the colour channel of a field ``group``, with a legend of the groups of the given kinds."""
    groups = [group for group in GROUPS if group in {group_of(kind) for kind in kinds}]
    scale = altair().Scale(domain=groups, range=[GROUPS[group] for group in groups])
    return altair().Color("group:N", scale=scale, title=title)


class _UnvalidatedRows:
    """Rows that altair does not validate: validating every number takes longer than drawing it."""

    _schema: ClassVar[dict[str, str]] = {"type": "array"}

    def __init__(self, rows: list[dict[str, Any]]) -> None:
        self.rows = rows

    def to_dict(self, *args: Any, **kwargs: Any) -> list[dict[str, Any]]:
        return self.rows


def inline_data(rows: Sequence[dict[str, Any]]) -> Any:
    """Return rows as inline data of a chart; raise BadValue if there are none."""
    if not rows:
        raise BadValue("there is nothing to draw: the result has no rows")
    with altair().utils.schemapi.debug_mode(False):
        return altair().Data(values=_UnvalidatedRows(list(rows)))


def time_unit(longest_s: float) -> tuple[float, str]:
    """Return the factor from seconds to the unit of a time axis, and the unit: ``(1e3, "ms")``."""
    for factor, unit in ((1.0, "s"), (1e3, "ms"), (1e6, "µs")):
        if longest_s * factor >= 2:
            return factor, unit
    return 1e9, "ns"


def log_ticks(low: float, high: float) -> list[float]:
    """Return the ticks of a logarithmic axis: powers of ten, or 1, 2 and 5 times them if there are few."""
    powers = range(math.floor(math.log10(low)), math.floor(math.log10(high)) + 1)
    tens = [10.0**power for power in powers if 10.0**power >= low]
    finer = [digit * 10.0**power for power in powers for digit in (1, 2, 5) if low <= digit * 10.0**power <= high]
    return tens if len(tens) > 2 else finer

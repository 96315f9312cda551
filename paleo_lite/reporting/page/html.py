"""Conversion of a `Document` to a self-contained HTML page with all text escaped."""

from __future__ import annotations

import base64
import hashlib
import math
import re
from collections.abc import Iterator, Sequence
from importlib.resources import files
from typing import Any, NamedTuple
from xml.etree import ElementTree

import msgspec

from ...extras import require
from ...text import make_printable, truncate
from ..charts.render import Theme
from ..document import Chart, Column, Document, Table

ROWS_AT_MOST = 2000
"""Maximum number of rows of a table; further rows are summed up in one row of its footer."""

_PRINTED = 40
"""Maximum number of rows of a table in print, as in the style sheet."""

_BAR_KEY = "share"  # key of columns with bars

WORD_LENGTH, NAME_LENGTH = 16, 36
"""Maximum length of texts that stay on one line on all screens, and on wide screens."""


class TableCell(msgspec.Struct, frozen=True):
    """A cell: its text, the number it is sorted by, the share shown as a bar, and its CSS class."""

    text: str
    number: str | None = None
    share: str | None = None
    style: str = ""


def to_html(document: Document) -> str:
    """Return the HTML page of a document.

    The content security policy of the page allows only its own script, identified by its hash, and no requests.
    """
    jinja2 = require("jinja2", "writing a report", "plots")
    markupsafe = require("markupsafe", "writing a report", "plots")
    folder = files(__package__) / "templates"
    assets = {name: (folder / name).read_text(encoding="utf-8") for name in ("report.html", "report.css", "report.js")}
    environment = jinja2.Environment(
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
        finalize=lambda value: make_printable(value) if type(value) is str else value,
    )
    numbers = iter(range(1, 10_000))
    digest = base64.b64encode(hashlib.sha256(assets["report.js"].encode()).digest()).decode()
    page = environment.from_string(assets["report.html"]).render(
        report=document,
        style=markupsafe.Markup(assets["report.css"]),
        script=markupsafe.Markup(assets["report.js"]),
        script_hash=digest,
        draw=lambda chart: _draw_figure(chart, next(numbers), markupsafe.Markup),
        name_of=lambda thing: type(thing).__name__,
        heads=heads,
        cells=cells,
        foot=foot,
        number=lambda: next(numbers),
        printed=_PRINTED,
    )
    return str(page) + "\n"


def _draw_figure(figure: Chart, number: int, safe: Any) -> dict[str, Any]:
    """Return the picture and the chart's subtitle, for the caption."""
    svg, lines = picture(figure.chart, number, figure.has_tooltips)
    subtitle = "; ".join(line for line in lines if not line.startswith(tuple(figure.omitted_lines)))
    if subtitle:
        subtitle = f"{subtitle[0].upper()}{subtitle[1:]}."
    return {"svg": safe(svg), "subtitle": subtitle}


def heads(table: Table) -> list[tuple[str, bool]]:
    """Return the headings of the columns, and whether each is aligned to the left."""
    return [(column.heading, column.left) for column in table.columns]


def cells(table: Table) -> Iterator[list[TableCell]]:
    """Yield the cells of the first `ROWS_AT_MOST` rows."""
    for row in table.rows[:ROWS_AT_MOST]:
        yield [_cell(column, row) for column in table.columns]


def foot(table: Table) -> Iterator[list[TableCell]]:
    """Yield the cells of the footer rows, after a row that sums up the rows that are not shown."""
    footer_rows = list(table.footer)
    if len(table.rows) > ROWS_AT_MOST:
        footer_rows.insert(0, sum_rows(table, table.rows[ROWS_AT_MOST:]))
    for row in footer_rows:
        yield [
            _cell(column, row) if column.key in row else TableCell("", style=_style(column)) for column in table.columns
        ]


_SUMMED_KEYS = ("time_s", "share", "calls", "layers", "flops", "bytes")


def sum_rows(table: Table, rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return one row with the number of rows and the sums of additive columns."""
    summed: dict[str, Any] = {table.columns[0].key: f"{len(rows):,} further rows"}
    for column in table.columns[1:]:
        numbers = [row[column.key] for row in rows if row.get(column.key) is not None]
        if column.key in _SUMMED_KEYS and numbers:
            summed[column.key] = sum(numbers)
    return summed


def _cell(column: Column, row: dict[str, Any]) -> TableCell:
    value, text = row.get(column.key), truncate(column.text(row))
    if not isinstance(value, (int, float)) or isinstance(value, bool) or not math.isfinite(value):
        return TableCell(text, style=_style(column, text))
    share = f"{min(max(value, 0.0), 1.0):.2%}" if column.key == _BAR_KEY else None
    return TableCell(text, f"{value:.12g}", share, _style(column, text))


def _style(column: Column, text: str = "") -> str:
    """Return the CSS classes of a cell, by alignment and length of its text."""
    if not column.left:
        return "number"
    if len(text) <= WORD_LENGTH:
        return "text word"
    if len(text) <= NAME_LENGTH:
        return "text name"
    return "text long"


_THEME = Theme("page", "transparent", "currentColor", "currentColor")
"""Theme of pictures: text and axes have the colour of the page's text, so that they suit light and dark pages."""

_GRID_OPACITY = 0.15
_MARGIN = 26  # pixels on both sides, in case the reader's font is wider

_REMOVED_ATTRIBUTES = ("aria-label", "aria-roledescription", "aria-hidden", "role", "class", "pointer-events")


class Picture(NamedTuple):
    """An SVG element, and the lines of the chart's subtitle."""

    svg: str
    subtitle: list[str]


def picture(chart: Any, number: int, has_tooltips: bool = True) -> Picture:
    """Render a chart as an SVG element without its title, as the page has its own headings.

    The number of the picture on its page makes its ids unique. Tooltips of marks take most of the space.
    """
    vl = require("vl_convert", "drawing charts", "plots")
    spec = _clean_texts(chart.to_dict(validate=False))
    title = spec.pop("title", {})
    subtitle = title.get("subtitle", []) if isinstance(title, dict) else []
    config = _THEME.config()
    config["axis"] = {**config["axis"], "gridOpacity": _GRID_OPACITY}
    config["font"] = (
        "Arial, Liberation Sans, Helvetica, sans-serif"  # metrically compatible with the font of the layout
    )
    svg = str(vl.vegalite_to_svg(spec, config={**spec.pop("config", {}), **config}, allowed_base_urls=[]))
    root = ElementTree.fromstring(re.sub(r'\sxmlns(:\w+)?="[^"]*"', "", svg, count=2))
    _clean_svg(root, number, has_tooltips)
    root.set("class", "picture")
    root.set("aria-hidden", "true")  # caption and tables are the text alternatives
    x, y, width, height = map(float, root.get("viewBox", "0 0 1 1").split())
    root.set("viewBox", f"{x - _MARGIN:g} {y:g} {width + 2 * _MARGIN:g} {height:g}")
    root.set("style", f"--width: {width + 2 * _MARGIN:g}px")
    for side in ("width", "height", "version"):
        root.attrib.pop(side, None)
    return Picture(
        ElementTree.tostring(root, encoding="unicode"), [subtitle] if isinstance(subtitle, str) else subtitle
    )


def _clean_texts(spec: Any) -> Any:
    """Return a chart specification with control characters removed from all texts."""
    if isinstance(spec, str):
        return make_printable(spec)
    if isinstance(spec, dict):
        return {key: _clean_texts(value) for key, value in spec.items()}
    return [_clean_texts(value) for value in spec] if isinstance(spec, list) else spec


def _clean_svg(root: ElementTree.Element, number: int, has_tooltips: bool) -> None:
    """Remove unneeded attributes, make ids unique, and convert the labels of marks to tooltips."""
    ids: dict[str, str] = {}
    for element in root.iter():
        label = element.get("aria-label", "")
        is_mark = element.get("role") == "graphics-symbol" and element.get("aria-roledescription") != "axis"
        if "mark-rect" in element.get("class", ""):
            element.set("shape-rendering", "crispEdges")  # no gaps between neighbours
        for name in _REMOVED_ATTRIBUTES:
            element.attrib.pop(name, None)
        tooltip = _tooltip(label) if has_tooltips and is_mark else ""
        if tooltip:
            element.set("data-tip", truncate(tooltip))
        for name, value in element.attrib.items():
            if name == "id":
                element.set(name, ids.setdefault(value, f"p{number}-{len(ids)}"))
            else:
                reference = re.fullmatch(r"url\(#(.+)\)", value)
                if reference:
                    unique_id = ids.setdefault(reference[1], f"p{number}-{len(ids)}")
                    element.set(name, f"url(#{unique_id})")


def _tooltip(label: str) -> str:
    """Return the tooltip fields in the label of a mark, without the axes before them; empty for lines and texts."""
    match = re.search(r"(?:^|; )(name|kind|class|group|series|pass|part): ", label)
    return re.sub(r"; order: [^;]*", "", label[match.start(1) :]) if match else ""

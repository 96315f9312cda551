"""From a `Document` to the text of one HTML file: everything inside, nothing fetched, every name escaped."""

from __future__ import annotations

import base64
import hashlib
import math
import re
from collections.abc import Iterator
from importlib.resources import files
from typing import Any, NamedTuple
from xml.etree import ElementTree

import msgspec

from ...extras import need
from ...text import printable, short
from ..charts.render import Theme
from ..document import Chart, Column, Document, Table

ROWS_AT_MOST = 2000
"""Rows of a table beyond this are gathered into one line of its foot."""

_PRINTED = 40
"""Rows of a table that are put on paper; the style says so, too."""

_BAR = "share"  # the column that is drawn as bars too

WORD, NAME = 16, 36
"""Letters that stay on one line everywhere, and on wide screens."""


class Cell(msgspec.Struct, frozen=True):
    """A cell: its text, the number that it is sorted by, the share that its bar shows, and its class in the style."""

    text: str
    number: str | None = None
    share: str | None = None
    style: str = ""


def to_html(document: Document) -> str:
    """The page.

    The page's policy lets nothing run but its own script, known by its hash, and nothing be fetched.
    """
    jinja2 = need("jinja2", "writing a report", "plots")
    markupsafe = need("markupsafe", "writing a report", "plots")
    folder = files(__package__) / "templates"
    assets = {name: (folder / name).read_text(encoding="utf-8") for name in ("report.html", "report.css", "report.js")}
    environment = jinja2.Environment(
        autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined,
        finalize=lambda value: printable(value) if type(value) is str else value,
    )  # fmt: skip
    numbers = iter(range(1, 10_000))
    digest = base64.b64encode(hashlib.sha256(assets["report.js"].encode()).digest()).decode()
    page = environment.from_string(assets["report.html"]).render(
        report=document,
        style=markupsafe.Markup(assets["report.css"]),
        script=markupsafe.Markup(assets["report.js"]),
        script_hash=digest,
        draw=lambda chart: _drawn(chart, next(numbers), markupsafe.Markup),
        name_of=lambda thing: type(thing).__name__,
        heads=heads,
        cells=cells,
        foot=foot,
        number=lambda: next(numbers),
        printed=_PRINTED,
    )
    return str(page) + "\n"


def _drawn(figure: Chart, number: int, safe: Any) -> dict[str, Any]:
    """The picture, and its caption with what the chart says of itself."""
    svg, said = picture(figure.chart, number, figure.tips)
    further = "; ".join(line for line in said if not line.startswith(tuple(figure.known)))
    return {"svg": safe(svg), "said": f"{further[0].upper()}{further[1:]}." if further else ""}


def heads(table: Table) -> list[tuple[str, bool]]:
    """Titles of the columns, and whether each is set to the left."""
    return [(column.title.replace("-\n", "").replace("\n", " "), column.left) for column in table.columns]


def cells(table: Table) -> Iterator[list[Cell]]:
    """The rows that are shown: at most `ROWS_AT_MOST`."""
    for row in table.rows[:ROWS_AT_MOST]:
        yield [_cell(column, row) for column in table.columns]


def foot(table: Table) -> Iterator[list[Cell]]:
    """The rows of the foot, before them one for all rows that are not shown."""
    gathered = gather(table, table.rows[ROWS_AT_MOST:])
    for row in [gathered, *table.foot] if gathered else table.foot:
        yield [_cell(column, row) if column.key in row else Cell("", style=_style(column)) for column in table.columns]


_ADDED = ("time_s", "share", "calls", "layers", "flops", "bytes")


def gather(table: Table, rows: Any) -> dict[str, Any]:
    """One row for many: how many they are, and what they add up to."""
    if not rows:
        return {}
    summed: dict[str, Any] = {table.columns[0].key: f"{len(rows):,} further rows"}
    for column in table.columns[1:]:
        known = [row[column.key] for row in rows if row.get(column.key) is not None]
        if column.key in _ADDED and known:
            summed[column.key] = sum(known)
    return summed


def _cell(column: Column, row: dict[str, Any]) -> Cell:
    value, text = row.get(column.key), short(column.text(row))
    if not isinstance(value, (int, float)) or isinstance(value, bool) or not math.isfinite(value):
        return Cell(text, style=_style(column, text))
    share = f"{min(max(value, 0.0), 1.0):.2%}" if column.key == _BAR else None
    return Cell(text, f"{value:.12g}", share, _style(column, text))


def _style(column: Column, text: str = "") -> str:
    """Class of a cell: numbers and words stay on one line, on a phone only the shorter ones."""
    if not column.left:
        return "number"
    width = "word" if len(text) <= WORD else "name" if len(text) <= NAME else "long"
    return f"text {width}"


_THEME = Theme("page", "transparent", "currentColor", "currentColor")
"""Text and axes take the colour of the page's text, so that one drawing serves both themes; groups keep theirs."""

_FAINT = 0.15  # of the grid
_MARGIN = 26  # pixels on either side, for readers whose font is wider

_SPOKEN = ("aria-label", "aria-roledescription", "aria-hidden", "role", "class", "pointer-events")


class Picture(NamedTuple):
    """An SVG element, and what the chart's subtitle says: which layers are not drawn, what was gathered."""

    svg: str
    said: list[str]


def picture(chart: Any, number: int, tips: bool = True) -> Picture:
    """A chart as an SVG element of a page, which gives it its heading: the chart's own title is left out.

    Parameters
    ----------
    number : int
        Of the picture on its page: its ids are told apart by it.
    tips : bool
        Whether each mark carries what it stands for, which takes most of the space.
    """
    vl = need("vl_convert", "drawing charts", "plots")
    spec = _printable(chart.to_dict(validate=False))
    title = spec.pop("title", {})
    said = title.get("subtitle", []) if isinstance(title, dict) else []
    config = _THEME.config()
    config["axis"] = {**config["axis"], "gridOpacity": _FAINT}
    config["font"] = "Arial, Liberation Sans, Helvetica, sans-serif"  # as wide as the font that it is laid out with
    svg = str(vl.vegalite_to_svg(spec, config={**spec.pop("config", {}), **config}, allowed_base_urls=[]))
    root = ElementTree.fromstring(re.sub(r'\sxmlns(:\w+)?="[^"]*"', "", svg, count=2))
    _plain(root, number, tips)
    root.set("class", "picture")
    root.set("aria-hidden", "true")  # the caption and the tables say it in words
    x, y, width, height = map(float, root.get("viewBox", "0 0 1 1").split())
    root.set("viewBox", f"{x - _MARGIN:g} {y:g} {width + 2 * _MARGIN:g} {height:g}")
    root.set("style", f"--width: {width + 2 * _MARGIN:g}px")
    for side in ("width", "height", "version"):
        root.attrib.pop(side, None)
    return Picture(ElementTree.tostring(root, encoding="unicode"), [said] if isinstance(said, str) else said)


def _printable(spec: Any) -> Any:
    """The specification with every text on one line and without control characters, which a foreign name may hold."""
    if isinstance(spec, str):
        return printable(spec)
    if isinstance(spec, dict):
        return {key: _printable(value) for key, value in spec.items()}
    return [_printable(value) for value in spec] if isinstance(spec, list) else spec


def _plain(root: ElementTree.Element, number: int, tips: bool) -> None:
    """Drop what a page does not need, number the ids, and turn spoken labels of marks into tips."""
    ids: dict[str, str] = {}  # the library counts on from picture to picture
    for element in root.iter():
        label = element.get("aria-label", "")
        mark = element.get("role") == "graphics-symbol" and element.get("aria-roledescription") != "axis"
        if "mark-rect" in element.get("class", ""):
            element.set("shape-rendering", "crispEdges")  # no seams between neighbours
        for name in _SPOKEN:
            element.attrib.pop(name, None)
        if tips and mark and (tip := _tip(label)):
            element.set("data-tip", short(tip))
        for name, value in element.attrib.items():
            if name == "id":
                element.set(name, ids.setdefault(value, f"p{number}-{len(ids)}"))
            elif found := re.fullmatch(r"url\(#(.+)\)", value):
                element.set(name, f"url(#{ids.setdefault(found.group(1), f'p{number}-{len(ids)}')})")


def _tip(label: str) -> str:
    """Of a mark's label what its tooltip fields make up: the axes before them say less. Lines and texts have none."""
    found = re.search(r"(?:^|; )(name|kind|class|group|series|pass|part): ", label)
    return re.sub(r"; order: [^;]*", "", label[found.start(1) :]) if found else ""

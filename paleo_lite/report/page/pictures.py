"""Charts as SVG inside a page: one drawing for light and dark, with what the page's script shows of a mark."""

from __future__ import annotations

import re
from typing import Any, NamedTuple
from xml.etree import ElementTree

from ...extras import need
from ...text import printable, short
from ..charts.theme import Theme

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
    chart : altair chart
    number : int
        Of the picture on its page: its ids are told apart by it.
    tips : bool
        Whether each mark carries what it stands for, which takes most of the space.

    Raises
    ------
    MissingExtra
        If vl-convert is not installed.
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

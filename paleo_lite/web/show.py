"""Tables, charts and text of results on the page."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterable
from numbers import Number
from typing import Any

import pandas as pd
import streamlit as st

from ..reporting.charts.render import THEMES
from ..reporting.document import Column, Document, Table
from .answers import Failed, attempt

GREY = "#7F8790"
"""Ink of rooflines and labels: it stands out from light and dark alike."""

AUTOSIZE = {"type": "fit-x", "contains": "padding"}
PADDING = {"left": 5, "top": 5, "right": 22, "bottom": 5}  # labels behind the last bar reach over the edge

NO_BREAK = "\N{NO-BREAK SPACE}"


def plain(text: str) -> str:
    """Text that Markdown leaves as it is: names of kernels hold asterisks, prices dollars."""
    return re.sub(r"([\\`*_{}\[\]()#+\-.!|<>$~:])", r"\\\1", text)


def say_failed(failed: Failed) -> None:
    """The sentence of what cannot be answered."""
    st.error(plain(failed.why))


def say_notes(notes: Iterable[str]) -> None:
    """What somebody who uses the numbers should know."""
    lines = [f"- {plain(note)}" for note in dict.fromkeys(notes)]
    if lines:
        st.caption("\n".join(lines))


def say_facts(facts: Iterable[tuple[str, str]]) -> None:
    """Facts, one a line."""
    if lines := [f"- **{plain(name)}** {plain(value)}" for name, value in facts]:
        st.markdown("\n".join(lines))


def frame_of(table: Table) -> Any:
    """A table's rows with raw values, by the titles of its columns."""
    rows = [*table.rows, *table.foot]
    return pd.DataFrame({column.heading: pd.Series([row.get(column.key) for row in rows], dtype=object)
                         for column in table.columns})  # fmt: skip


def show_table(table: Table) -> None:
    """A short table, whole; its cells are Markdown to Streamlit."""

    def shown(column: Column) -> Callable[[Any], str]:
        return lambda value: plain(column.show(value) if column.left else column.show(value).replace(" ", NO_BREAK))

    if table.title:
        st.markdown(f"**{plain(table.title)}**")
    cells = {column.heading: shown(column) for column in table.columns}
    st.table(frame_of(table).style.format(cells, na_rep=plain("-")).hide(axis="index"))


def show_long_table(table: Table) -> None:
    """A long table: it scrolls, sorts by a click, and can be searched."""
    st.markdown(f"**{plain(table.title)}**")
    frame = frame_of(table)
    for title in frame.columns:
        if all(value is None or isinstance(value, Number) for value in frame[title]):
            frame[title] = frame[title].convert_dtypes()  # whole numbers stay whole beside absent ones
    cells = {column.heading: column.show for column in table.columns}
    st.dataframe(frame.style.format(cells, na_rep="-"), hide_index=True, width="stretch")


def download(page: Document, name: str) -> None:
    """A button that saves the page's table as CSV, raw values in SI units."""
    out = io.StringIO()
    page.write_csv(out)
    st.download_button("Download the table (CSV)", out.getvalue(), f"{name}.csv", "text/csv", key=f"csv {name}")


def show_chart(make: Callable[[], Any], *, columns: int = 1, known: str = "") -> None:
    """Draw what `make` returns; its panels stand side by side where there is room, one below the other on a phone.

    Lines of the subtitle that begin with what is `known` already are left out. A chart without data says so.
    """
    chart = attempt(make)
    if isinstance(chart, Failed):
        st.info(plain(chart.why))
        return
    spec = chart.to_dict(validate=False)
    heading = spec.pop("title", {})
    said = heading.get("subtitle") or []
    said = [said] if isinstance(said, str) else said
    st.markdown(f"**{plain(heading['text'])}**")
    panels = split(spec)
    for first in range(0, len(panels), columns):
        row = panels[first : first + columns]
        for place, panel in zip(st.columns(len(row)) if len(row) > 1 else [st.container()], row):
            with place:
                st.vega_lite_chart(spec={**panel, "config": _config()}, width="stretch")
    lines = [line for line in said if line and not (known and line.startswith(known))]
    if lines:
        st.caption(plain("; ".join(lines)))


def _config() -> dict[str, Any]:
    """The charts' theme, less its colours of text and background: those are the page's, light or dark."""
    ours = THEMES["light"].config()
    return {
        "axis": {"labelLimit": 180, "titleFontWeight": "normal", "labelFlush": False},
        "axisYBand": {"labelOverlap": False},
        "legend": {"orient": "bottom", "columns": 2, "labelLimit": 180, "titleFontWeight": "normal",
                   "layout": {"bottom": {"direction": "vertical", "anchor": "start"}},
                   "symbolBaseFillColor": GREY, "symbolBaseStrokeColor": GREY, "symbolOpacity": 1},
        "range": ours["range"],
        "text": {"color": GREY, "fontSize": 11},
        "rule": {"color": GREY},
        "line": {"color": GREY},
        "view": {"stroke": None},
    }  # fmt: skip


def split(spec: dict[str, Any], data: Any = None) -> list[dict[str, Any]]:
    """The panels of a chart as charts of their own, each as wide as its place: a page is as narrow as a phone."""
    data = spec.get("data", data)
    for key in ("hconcat", "vconcat", "concat"):
        if key in spec:
            panels = [panel for part in spec[key] for panel in split(part, data)]
            return _one_legend(panels) if key == "vconcat" else panels
    if "facet" in spec:
        return [panel for part in _facets(spec, data) for panel in split(part)]
    outside: dict[str, Any] = {key: spec[key] for key in ("title", "height", "resolve") if key in spec}
    inside: dict[str, Any] = {
        key: spec[key] for key in ("layer", "mark", "encoding", "transform", "params") if key in spec
    }
    if data is not None:
        inside["data"] = data
    outside["height"] = _height(outside.get("height"), inside)
    # In a layer Streamlit leaves the data where they are, so that scales know them from the first.
    return [{**outside, "layer": [inside], "autosize": AUTOSIZE, "padding": PADDING}]


def _height(height: Any, inside: dict[str, Any]) -> Any:
    """A height in pixels; of steps as many as there are values on the axis."""
    if not isinstance(height, dict):
        return height or 300
    part = inside if "encoding" in inside else inside["layer"][0]
    field = part["encoding"]["y"]["field"]
    rows = (part.get("data") or inside["data"])["values"]
    return height["step"] * len({row[field] for row in rows})


def _one_legend(panels: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Panels one below the other share the last one's legend."""
    for panel in panels[:-1]:
        inside = panel["layer"][0]
        colour = inside.get("encoding", {}).get("color")
        if colour is not None:
            inside["encoding"] = {**inside["encoding"], "color": {**colour, "legend": None}}
    return panels


def _facets(spec: dict[str, Any], data: Any) -> Iterable[dict[str, Any]]:
    by = spec["facet"]
    by = by if "field" in by else by.get("column") or by["row"]
    of = f", {by['title']}" if by.get("title") else ""
    order = by.get("sort")
    found = list(dict.fromkeys(row[by["field"]] for row in data["values"]))
    for value in order if isinstance(order, list) else found:
        rows = [row for row in data["values"] if row[by["field"]] == value]
        if rows:
            yield {**spec["spec"], "title": f"{value}{of}", "data": {"values": rows}}


def show_document(document: Document, name: str = "") -> None:
    """Its tables, long ones to scroll and search; where it has a `name` for a file, their download; facts and notes."""
    for table in document.tables:
        (show_long_table if table.sortable else show_table)(table)
    if name:
        download(document, name)
    say_facts(document.facts)
    say_notes(document.notes)

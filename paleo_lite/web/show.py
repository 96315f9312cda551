"""Display of tables, charts and text on the page."""

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
from .failures import Failure, try_call
from .words import on_page

GREY = "#7F8790"
"""Colour of rooflines and labels, visible on light and dark backgrounds."""

AUTOSIZE = {"type": "fit-x", "contains": "padding"}
PADDING = {"left": 5, "top": 5, "right": 22, "bottom": 5}  # labels of bars extend beyond the edge

NO_BREAK = "\N{NO-BREAK SPACE}"


def escape_markdown(text: str) -> str:
    """Escape text for Markdown: kernel names contain asterisks, prices dollar signs."""
    return re.sub(r"([\\`*_{}\[\]()#+\-.!|<>$~:])", r"\\\1", text)


def say(text: str) -> str:
    """Return a sentence in the words of the page, escaped for Markdown."""
    return escape_markdown(on_page(text))


def show_failure(failed: Failure) -> None:
    """Show the reason why a call failed."""
    st.error(say(failed.reason))


def show_notes(notes: Iterable[str]) -> None:
    """Show notes as a list."""
    lines = [f"- {say(note)}" for note in dict.fromkeys(notes)]
    if lines:
        st.caption("\n".join(lines))


def show_facts(facts: Iterable[tuple[str, str]]) -> None:
    """Show facts, one per line."""
    lines = [f"- **{escape_markdown(name)}** {say(value)}" for name, value in facts]
    if lines:
        st.markdown("\n".join(lines))


def table_to_frame(table: Table) -> Any:
    """Return the raw values of a table as a data frame with the headings as columns."""
    rows = [*table.rows, *table.footer]
    columns = {}
    for heading, column in unique_headings(table).items():
        columns[heading] = pd.Series([row.get(column.key) for row in rows], dtype=object)
    return pd.DataFrame(columns)


def unique_headings(table: Table) -> dict[str, Column]:
    """Return the columns by heading; a repeated heading follows that of the column before, as in "speed-up from"."""
    headings = [column.heading for column in table.columns]
    unique: dict[str, Column] = {}
    before = ""
    for heading, column in zip(headings, table.columns):
        if heading not in unique:
            unique[heading] = column
        else:
            unique[f"{before} {heading}"] = column
        if headings.count(heading) == 1:
            before = heading
    return unique


def show_table(table: Table) -> None:
    """Show a short table completely; Streamlit interprets its cells as Markdown."""

    def shown(column: Column) -> Callable[[Any], str]:
        return lambda value: say(column.show(value) if column.left else column.show(value).replace(" ", NO_BREAK))

    if table.title:
        st.markdown(f"**{escape_markdown(table.title)}**")
    cells = {heading: shown(column) for heading, column in unique_headings(table).items()}
    st.table(table_to_frame(table).style.format(cells, na_rep=escape_markdown("-")).hide(axis="index"))


def show_long_table(table: Table) -> None:
    """Show a long table that can be scrolled, sorted and searched."""
    st.markdown(f"**{escape_markdown(table.title)}**")
    frame = table_to_frame(table)
    for title in frame.columns:
        if all(value is None or isinstance(value, Number) for value in frame[title]):
            frame[title] = frame[title].convert_dtypes()  # keeps integers in columns with missing values
    cells = {heading: column.show for heading, column in unique_headings(table).items()}
    st.dataframe(frame.style.format(cells, na_rep="-"), hide_index=True, width="stretch", placeholder="-")
    st.caption("Scroll for all rows and columns; click a heading to sort.")


def download(page: Document, name: str) -> None:
    """Draw a button that downloads the table of a document as CSV with raw values in SI units.

    The file is written when the button is clicked: the browser would look for a file of each answer, which is gone
    when the next answer is quick.
    """

    def write() -> str:
        out = io.StringIO()
        page.write_csv(out)
        return out.getvalue()

    st.download_button("Download table (CSV)", write, f"{name}.csv", "text/csv", key=f"csv {name}")


def show_chart(make: Callable[[], Any], *, columns: int = 1, omitted_prefix: str = "") -> None:
    """Show the chart that `make` returns, with its panels in columns (below one another on a phone).

    Lines of the subtitle that start with `omitted_prefix` are left out. Without data, the reason is shown instead.
    """
    chart = try_call(make)
    if isinstance(chart, Failure):
        st.info(say(chart.reason))
        return
    spec = chart.to_dict(validate=False)
    heading = spec.pop("title", {})
    subtitle = heading.get("subtitle") or []
    if isinstance(subtitle, str):
        subtitle = [subtitle]
    st.markdown(f"**{escape_markdown(heading['text'])}**")
    panels = split_panels(spec)
    for first in range(0, len(panels), columns):
        row = panels[first : first + columns]
        containers = st.columns(len(row)) if len(row) > 1 else [st.container()]
        for container, panel in zip(containers, row):
            with container:
                st.vega_lite_chart(spec={**panel, "config": _config()}, width="stretch")
    lines = [line for line in subtitle if line and not (omitted_prefix and line.startswith(omitted_prefix))]
    if lines:
        st.caption(say("; ".join(lines)))


def _config() -> dict[str, Any]:
    """Return the theme of charts without colours of text and background, which are those of the page."""
    theme = THEMES["light"].config()
    return {
        "axis": {"labelLimit": 180, "titleFontWeight": "normal", "labelFlush": False},
        "axisYBand": {"labelOverlap": False},
        "legend": {
            "orient": "bottom",
            "columns": 2,
            "labelLimit": 180,
            "titleFontWeight": "normal",
            "layout": {"bottom": {"direction": "vertical", "anchor": "start"}},
            "symbolBaseFillColor": GREY,
            "symbolBaseStrokeColor": GREY,
            "symbolOpacity": 1,
        },
        "range": theme["range"],
        "text": {"color": GREY, "fontSize": 11},
        "rule": {"color": GREY},
        "line": {"color": GREY},
        "view": {"stroke": None},
    }


def split_panels(spec: dict[str, Any], data: Any = None) -> list[dict[str, Any]]:
    """Split a chart into its panels, each as wide as its container, for screens of any width."""
    data = spec.get("data", data)
    for key in ("hconcat", "vconcat", "concat"):
        if key in spec:
            panels = [panel for part in spec[key] for panel in split_panels(part, data)]
            return _keep_last_legend(panels) if key == "vconcat" else panels
    if "facet" in spec:
        return [panel for part in _split_facets(spec, data) for panel in split_panels(part)]
    outside: dict[str, Any] = {key: spec[key] for key in ("title", "height", "resolve") if key in spec}
    inside: dict[str, Any] = {
        key: spec[key] for key in ("layer", "mark", "encoding", "transform", "params") if key in spec
    }
    if data is not None:
        inside["data"] = data
    outside["height"] = _height(outside.get("height"), inside)
    # In a layer, Streamlit leaves the data in place, so that the scales are correct from the start.
    return [{**outside, "layer": [inside], "autosize": AUTOSIZE, "padding": PADDING}]


def _height(height: Any, inside: dict[str, Any]) -> Any:
    """Return the height in pixels; a height per step is multiplied by the number of values on the axis."""
    if not isinstance(height, dict):
        return height or 300
    part = inside if "encoding" in inside else inside["layer"][0]
    field = part["encoding"]["y"]["field"]
    rows = (part.get("data") or inside["data"])["values"]
    return height["step"] * len({row[field] for row in rows})


def _keep_last_legend(panels: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Remove legends that a later panel repeats."""
    for number, panel in enumerate(panels):
        colour = _colour_of(panel)
        if colour is not None and any(_colour_of(later) == colour for later in panels[number + 1 :]):
            inside = panel["layer"][0]
            inside["encoding"] = {**inside["encoding"], "color": {**colour, "legend": None}}
    return panels


def _colour_of(panel: dict[str, Any]) -> dict[str, Any] | None:
    """Return the encoding of the colour of a panel that has one mark; None without one."""
    colour: dict[str, Any] | None = panel["layer"][0].get("encoding", {}).get("color")
    return colour


def _split_facets(spec: dict[str, Any], data: Any) -> Iterable[dict[str, Any]]:
    """Yield a chart per facet, with the value of the facet as its title."""
    facet = spec["facet"]
    if "field" not in facet:
        facet = facet.get("column") or facet["row"]
    suffix = f", {facet['title']}" if facet.get("title") else ""
    values = facet.get("sort")
    if not isinstance(values, list):
        values = list(dict.fromkeys(row[facet["field"]] for row in data["values"]))
    for value in values:
        rows = [row for row in data["values"] if row[facet["field"]] == value]
        if rows:
            yield {**spec["spec"], "title": f"{value}{suffix}", "data": {"values": rows}}


def show_document(document: Document, name: str = "") -> None:
    """Show the tables, facts and notes of a document; with a file `name`, also a download button."""
    for table in document.tables:
        if table.sortable:
            show_long_table(table)
        else:
            show_table(table)
    if name:
        download(document, name)
    show_facts(document.facts)
    show_notes(document.notes)

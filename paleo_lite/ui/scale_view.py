"""Training on many devices: speed-up, time by part, cost."""

from __future__ import annotations

import msgspec
import streamlit as st

from ..distributed.step import ScaleRow
from ..report.charts.scaling import scaling_chart
from ..report.scale import scale_page
from ..report.sheet import Column, Sheet
from ..units import say_interval
from .answers import Failed, attempt, devices, scale
from .show import download, plain, say_facts, say_failed, say_notes, show_chart, show_each
from .view import View, read_workers

_FIRST = ("workers", "time_s", "interval", "speedup", "efficiency", "cost", "limited_by")


def scale_view(view: View) -> None:
    """The curves of all devices in one chart, and a table for each."""
    known = devices()
    st.caption("A step of training, whatever the phase.")
    checked = attempt(lambda: read_workers(view.workers))
    if isinstance(checked, Failed):
        say_failed(checked)
        return
    tables = {gpu: attempt(lambda gpu=gpu: scale(view, gpu)) for gpu in view.gpu}  # type: ignore[misc]
    rows: list[ScaleRow] = []
    for gpu, table in tables.items():
        if isinstance(table, Failed):
            st.error(plain(f"{known[gpu].name}: {table.why}"))
        else:
            # The chart tells its curves apart by strategy and collective: here they are told apart by device.
            rows += [msgspec.structs.replace(row, strategy=gpu, collective="") for row in table.rows]
    if not rows:
        return
    title = f"{view.network}, {view.precision}, {view.strategy}, {view.scaling} scaling, {view.link}"
    show_chart(lambda: scaling_chart(rows, title), columns=3 if len(view.gpu) == 1 else 2)
    for gpu, table in tables.items():
        if isinstance(table, Failed):
            continue
        page = scale_page(table)
        st.markdown(f"**{plain(page.headline)}**")
        show_each([_reordered(sheet) for sheet in page.sheets])
        download(page, f"{view.network}-{gpu}-scaling")
        say_facts(page.facts)
        say_notes(page.notes)
        st.code(view.scale_command(gpu), language="bash", wrap_lines=True)


def _reordered(sheet: Sheet) -> Sheet:
    """With the interval, and with what is looked at first in front: a phone shows few columns at once."""
    columns = {column.key: column for column in (*sheet.columns, Column("interval", "at 90 %", say_interval))}
    order = [key for key in _FIRST if key in columns] + [key for key in columns if key not in _FIRST]
    return msgspec.structs.replace(sheet, columns=[columns[key] for key in order])

"""Training on many devices: speed-up, time by part, cost."""

from __future__ import annotations

import msgspec
import streamlit as st

from ..counting import GENERATING
from ..distributed.table import ScaleRow
from ..report.charts.scaling import scaling_chart
from ..report.document import Table
from ..report.scale import scale_page
from .answers import Failed, attempt, devices, scale
from .own import own_file
from .show import plain, say_failed, show_chart, show_document
from .view import View, read_workers

_FIRST = ("workers", "time_s", "interval", "speedup", "efficiency", "cost", "limited_by")


def scale_view(view: View) -> None:
    """The curves of all devices in one chart, and a table for each."""
    known = devices()
    if view.phase not in GENERATING:
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
    asked = f"{view.network}, {view.precision}, {view.strategy}, {view.scaling} scaling, {view.link}"
    bounds = [gpu for gpu, table in tables.items() if not isinstance(table, Failed) and not table.is_forecast]
    show_chart(lambda: scaling_chart(rows, [asked], bounds, view.gpu), columns=3 if len(view.gpu) == 1 else 2)
    for gpu, table in tables.items():
        if isinstance(table, Failed):
            continue
        page = scale_page(table)
        st.markdown(f"**{plain(page.title)}**")
        shown = page.but(content=[_reordered(table) for table in page.tables], data=page.tables[0])
        show_document(shown, f"{view.network}-{gpu}-scaling")
        st.code(view.scale_command(gpu, *own_file(gpu)), language="bash", wrap_lines=True)


def _reordered(table: Table) -> Table:
    """With the interval, and with what is looked at first in front: a phone shows few columns at once."""
    columns = {column.key: column for column in table.columns}
    order = [key for key in _FIRST if key in columns] + [key for key in columns if key not in _FIRST]
    return table.but(columns=[columns[key] for key in order])

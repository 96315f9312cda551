"""Answers on the page: cards of all devices, their comparison, and the details of one of them.

A kind of question has no view of its own: what is drawn follows from the class of a result.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
import streamlit as st

from ..distributed.table import ScaleRow, ScaleTable
from ..own_machines.advise import LocalAdvice
from ..own_machines.predict import LocalPrediction
from ..questions.kind import find_kind
from ..reinforcement.answer import RlAnswer
from ..reporting.charts.cost import cost_chart, select_priced
from ..reporting.charts.devices import batch_chart, devices_chart
from ..reporting.charts.layers import kind_chart, layer_chart, pass_chart, prediction_title
from ..reporting.charts.local import local_chart
from ..reporting.charts.memory import memory_chart
from ..reporting.charts.reinforcement import rl_chart
from ..reporting.charts.roofline import prediction_roofline
from ..reporting.charts.scaling import scale_chart, scaling_chart
from ..reporting.charts.schedule import schedule_chart
from ..reporting.charts.serving import serving_chart
from ..reporting.document import Document, Table
from ..reporting.predictions import prediction_page
from ..serving.answers import Serving
from ..sweeps.comparison import Comparison, are_steps
from ..timing import Prediction
from .answers import ask, memory_ranges, try_each
from .cards import cards_of, predictions_of, show_cards
from .controls import draw_shown
from .failures import Failure, try_call
from .show import escape_markdown, say, show_chart, show_document, show_failure
from .uploads import own_device_files, reads_sequences
from .view import View
from .wanted import WANTED


def show_view(view: View) -> None:
    """Show the answer to a question: of all devices side by side, and of one of them in detail."""
    st.subheader(escape_markdown(f"{WANTED[view.asked].title}: {view.network}"), anchor=False)
    together = try_call(lambda: ask(view))
    if len(view.gpu) == 1:
        answers: Mapping[str, Any] = {view.device: together}
    elif isinstance(together, Failure):
        # No device has an answer: each is asked alone, and says why.
        answers = try_each(view)
    else:
        answers = {"": together}
    show_cards(list(cards_of(answers)))
    if len(view.gpu) == 1:
        if not isinstance(together, Failure):
            _show_result(view, together)
        return
    if not isinstance(together, Failure):
        _show_result(view, together)
    draw_shown(view)
    device_view = view.of_device(view.device)
    answer = answers[view.device] if view.device in answers else try_call(lambda: ask(device_view))
    if isinstance(answer, Failure):
        show_failure(answer)
    else:
        _show_result(device_view, answer)


_SHORT_TABLE = 12
"""Rows up to which a table is shown completely."""


_MANY_LAYERS, _SLOWEST_LAYERS = 400, 100
"""Layers above which only the slowest are listed, and how many; the downloaded table has all."""


class ResultChart(NamedTuple):
    """A chart of a result, and when the result has it."""

    draw: Callable[[Any], Any]
    columns: int = 1  # panels side by side
    is_drawn: Callable[[Any], bool] = lambda result: True


def _has_steps(result: Comparison) -> bool:
    return are_steps(result.answers)


def _has_prices(result: Comparison) -> bool:
    return are_steps(result.answers) and len(select_priced(result.answers)[0]) > 1


def _varies_in_batch(result: Comparison) -> bool:
    """Return whether the predictions of each device are those of several batch sizes, and nothing else varies."""
    if not _has_steps(result):
        return False
    predictions = predictions_of(result)
    kinds = {(prediction.network, prediction.precision, prediction.phase) for prediction in predictions}
    points = {(prediction.device.id, prediction.batch_size) for prediction in predictions}
    return (
        len({prediction.batch_size for prediction in predictions}) > 2
        and len(kinds) == 1
        and len(points) == len(predictions)
        and set(result.compared) <= {"gpu", "batch_size"}
    )


def _has_layers(result: Prediction) -> bool:
    return result.launched is None


def _tables_of(result: Comparison) -> dict[str, ScaleTable]:
    """Return the tables over several numbers of devices, by device."""
    tables = [answer for answer in result.answers if isinstance(answer, ScaleTable) and not answer.why]
    return {table.gpu: table for table in tables if len({row.workers for row in table.rows}) > 1}


def _scaling_beside(result: Comparison) -> Any:
    """Return the chart of the scaling of several devices, each a series."""
    tables = _tables_of(result)
    rows: list[ScaleRow] = []
    for gpu, scaling in tables.items():  # the series of the chart are strategies and collectives; here they are devices
        rows += [msgspec.structs.replace(row, strategy=gpu, collective="") for row in scaling.rows]
    first = next(iter(tables.values()))
    subtitle = f"{first.network}, {first.precision} {first.phase}, {first.scaling} scaling"
    bounds = [gpu for gpu, table in tables.items() if not table.is_forecast]
    return scaling_chart(rows, [subtitle], bounds, list(tables))


_CHARTS: Mapping[type, Sequence[ResultChart]] = {
    Prediction: (
        ResultChart(prediction_roofline),
        ResultChart(layer_chart, is_drawn=_has_layers),
        ResultChart(kind_chart, 3, _has_layers),
        ResultChart(pass_chart, is_drawn=lambda result: len(result.terms.passes) > 1),
    ),
    ScaleTable: (
        ResultChart(scale_chart, 3),
        ResultChart(schedule_chart, is_drawn=lambda result: any(row.pipeline is not None for row in result.rows)),
    ),
    Comparison: (
        ResultChart(lambda result: batch_chart(result.answers, (), result.left_out), 2, _varies_in_batch),
        ResultChart(devices_chart, is_drawn=lambda result: _has_steps(result) and not _varies_in_batch(result)),
        ResultChart(cost_chart, is_drawn=_has_prices),
        ResultChart(_scaling_beside, 2, lambda result: len(_tables_of(result)) > 1),
        ResultChart(serving_chart, 2, lambda result: result.kind == "serve"),
        ResultChart(rl_chart, is_drawn=lambda result: result.kind == "rl"),
    ),
    Serving: (ResultChart(serving_chart, 2),),
    RlAnswer: (ResultChart(rl_chart),),
    LocalAdvice: (ResultChart(local_chart),),
    LocalPrediction: (ResultChart(local_chart),),
}
"""The charts of each class of results."""

_FIRST_COLUMNS: Mapping[type, Sequence[str]] = {
    LocalAdvice: (
        "device", "weights", "tokens_per_s", "slowest_tokens_per_s", "fastest_tokens_per_s", "placement"
    ),
    ScaleTable: ("workers", "time_s", "interval", "speedup", "efficiency", "cost_usd", "limited_by"),
}  # fmt: skip
"""Columns that come first in the tables of a class of results, as a phone shows few."""


def _show_result(view: View, result: Any) -> None:
    """Show a result: its charts, its document, the command and the Python that give the same."""
    kind = find_kind(view.asked)
    if isinstance(result, Prediction):
        is_long = len(result.names) > _MANY_LAYERS
        document = prediction_page(result, _SLOWEST_LAYERS if is_long else None, memory=True)
    elif kind.document is None or isinstance(result, Comparison):
        document = result.document()
    else:
        document = kind.document(result, {"memory": True})
    st.markdown(f"**{say(document.title)}**")
    prefix = prediction_title(result) if isinstance(result, Prediction) else ""
    for chart in _CHARTS.get(type(result), ()):
        if chart.is_drawn(result):
            show_chart(lambda chart=chart: chart.draw(result), columns=chart.columns, omitted_prefix=prefix)  # type: ignore[misc]
    if isinstance(result, Prediction) and reads_sequences(view.network):
        show_chart(lambda: memory_chart(memory_ranges(view, result)), columns=2)
    show_document(
        _arrange_tables(document, _FIRST_COLUMNS.get(type(result), ())), f"{view.network}-{'-'.join(view.gpu)}"
    )
    for purpose, command in document.commands:
        st.caption(say(purpose))
        st.code(command, language="bash", wrap_lines=True)
    show_calls(view)


def show_calls(view: View) -> None:
    """Show the command line and the Python that ask the same."""
    files = own_device_files(view.gpu)
    st.caption("The same on the command line:")
    st.code(view.command(files), language="bash", wrap_lines=True)
    st.caption("The same in Python:")
    st.code(view.python(files), language="python", wrap_lines=True)


def _arrange_tables(document: Document, first: Sequence[str]) -> Document:
    """Return a document whose tables begin with the most important columns, and scroll if they are long."""
    tables = [_reorder_columns(table, first) for table in document.tables]
    # A short table needs no sorting, and shows what is missing as a dash.
    shown = [table.replace(sortable=len(table.rows) > _SHORT_TABLE) for table in tables]
    data = document.data or (document.tables[0] if document.tables else None)
    return document.replace(content=shown, data=data)


def _reorder_columns(table: Table, first: Sequence[str]) -> Table:
    columns = {column.key: column for column in table.columns}
    order = [key for key in first if key in columns] + [key for key in columns if key not in first]
    return table.replace(columns=[columns[key] for key in order])

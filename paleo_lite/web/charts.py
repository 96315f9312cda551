"""Charts of the page that further results add to a view: cost, memory of language models, schedules of pipelines."""

from __future__ import annotations

from collections.abc import Sequence

from ..calibration.side_by_side import Predictions
from ..distributed.table import ScaleTable
from ..reporting.charts.cost import cost_chart, select_priced
from ..reporting.charts.memory import memory_chart
from ..reporting.charts.schedule import schedule_chart
from ..timing import Prediction
from .answers import Failure, memory_ranges, reads_sequences, try_call
from .show import show_chart, show_failure
from .view import View


def show_cost(predictions: Sequence[Prediction]) -> None:
    """Show cost over time, if at least two devices have a price."""
    if len(select_priced(predictions)[0]) > 1:
        show_chart(lambda: cost_chart(Predictions(predictions)))


def show_memory(view: View) -> None:
    """Show the memory of a language model on the device of the charts, over the batch size and over the tokens."""
    if not reads_sequences(view):
        return
    ranges = try_call(lambda: memory_ranges(view, view.device))
    if isinstance(ranges, Failure):
        show_failure(ranges)
    else:
        show_chart(lambda: memory_chart(ranges), columns=2)


def show_schedule(table: ScaleTable) -> None:
    """Show the schedule of the largest pipeline of a table, if it has one."""
    if any(row.pipeline is not None for row in table.rows):
        show_chart(lambda: schedule_chart(table))

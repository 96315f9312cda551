"""How long on each device, and why; and how that goes with the batch size."""

from __future__ import annotations

import streamlit as st

from ..calibration.several import Predictions
from ..report.charts.curves import batch_chart
from ..report.charts.devices import devices_chart
from ..report.charts.layers import kind_chart, layer_chart, pass_chart, title_of
from ..report.charts.roofline import prediction_roofline
from ..report.document import Document
from ..report.predictions import headline, layer_table, memory_fact, memory_tables, prediction_page
from ..report.side_by_side import bound_sentence, side_by_side
from ..timing import Prediction, describe
from ..units import format_si, say_interval, say_number
from .answers import Failed, attempt, devices, predict
from .controls import draw_shown
from .own import own_file
from .show import (
    download,
    plain,
    say_facts,
    say_failed,
    say_notes,
    show_chart,
    show_long_table,
    show_table,
)
from .view import View

_IN_A_ROW = 3
_LARGEST = 4096  # batch size of the curve


def time_view(view: View) -> None:
    """The answers, side by side, and the charts of one of them."""
    answers = {gpu: attempt(lambda gpu=gpu: predict(view, gpu)) for gpu in view.gpu}  # type: ignore[misc]
    for first in range(0, len(view.gpu), _IN_A_ROW):
        row = view.gpu[first : first + _IN_A_ROW]
        for place, gpu in zip(st.columns(len(row)), row):
            with place, st.container(border=True, height="stretch"):
                _card(gpu, answers[gpu])
    found = [answer for answer in answers.values() if isinstance(answer, Prediction)]
    if len(found) > 1:
        show_chart(lambda: devices_chart(Predictions(found), list(view.gpu)))
        page = Document("", content=[side_by_side(Predictions(found))])
        show_table(page.tables[0])
        download(page, f"{view.network}-side-by-side")
    draw_shown(view)
    answer = answers[view.device]
    if isinstance(answer, Prediction):
        _explain(view, answer)


def _card(gpu: str, answer: Prediction | Failed) -> None:
    name = devices()[gpu].name
    if isinstance(answer, Failed):
        st.markdown(plain(name))
        say_failed(answer)
        return
    st.metric(plain(f"{answer.network} on {name}"), format_si(answer.time_s, "s"))
    fit = answer.memory
    if fit is not None and not fit.fits:
        st.error(plain(memory_fact(fit)[1]))
    lines = []
    if answer.interval is not None:
        lines.append(f"{say_interval(answer.interval)} at 90%")
    if answer.throughput_per_s is not None:
        lines.append(f"{say_number(answer.throughput_per_s)} samples per second")
    lines.append(bound_sentence(answer))
    st.markdown("  \n".join(map(plain, lines)))
    say_notes([describe(answer.model) if answer.model.label else f"{answer.model.name} model", *answer.notes])


def _explain(view: View, answer: Prediction) -> None:
    page, known = prediction_page(answer, None), title_of(answer)
    st.markdown(f"**{plain(headline(answer))}**")
    show_chart(lambda: prediction_roofline(answer), known=known)
    show_chart(lambda: layer_chart(answer), known=known)
    show_chart(lambda: kind_chart(answer), columns=3, known=known)
    show_table(page.tables[0])
    if len(answer.terms.passes) > 1:
        show_chart(lambda: pass_chart(answer), known=known)
    show_long_table(layer_table(answer, list(answer.rows())))
    download(page, f"{view.network}-{view.device}-layers")
    st.markdown("**What it was computed from**")
    say_facts(page.facts)
    if answer.memory is not None:
        for table in memory_tables(answer.memory, by_part=True):
            show_table(table)
    say_notes(page.notes)
    st.markdown("The same in a terminal:")
    st.code(view.predict_command(view.device, *own_file(view.device)), language="bash", wrap_lines=True)


def batch_view(view: View) -> None:
    """Throughput and time over the batch size, up to what each device holds."""
    predictions: list[Prediction] = []
    order = list(view.gpu)  # each device has its colour by its place, whichever of them cannot answer
    for place, gpu in enumerate(view.gpu):
        answer = attempt(lambda gpu=gpu: predict(view, gpu))  # type: ignore[misc]
        if isinstance(answer, Failed):
            say_failed(answer)
            continue
        order[place] = answer.device.id
        largest = answer.memory.largest_batch if answer.memory is not None else None
        if largest is None:
            say_failed(Failed(f"{devices()[gpu].name}: not even one sample fits into its memory"))
            continue
        predictions += [predict(view, gpu, 2**power) for power in range(largest.bit_length()) if 2**power <= _LARGEST]
    if not predictions:
        return
    show_chart(lambda: batch_chart(predictions, order), columns=2)
    st.caption("Up to the largest power of two that fits into a device's memory.")
    table = side_by_side(Predictions(predictions))
    show_long_table(table)
    download(Document("", content=[table]), f"{view.network}-batch-sizes")

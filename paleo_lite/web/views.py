"""The views of the page: time per device, batch sizes, scaling, serving, and an uploaded profile."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import streamlit as st

from ..calibration.side_by_side import Predictions
from ..counting import GENERATION_PHASES
from ..distributed.table import ScaleRow
from ..profiles.detect import READERS, load_reader
from ..reporting.charts.devices import batch_chart, devices_chart
from ..reporting.charts.layers import kind_chart, layer_chart, pass_chart, prediction_title
from ..reporting.charts.local import local_chart
from ..reporting.charts.profiles import class_chart, kernel_roofline, timeline_chart
from ..reporting.charts.roofline import prediction_roofline
from ..reporting.charts.scaling import scaling_chart
from ..reporting.charts.serving import serving_chart
from ..reporting.document import Document, Table
from ..reporting.efficiency import efficiency_page
from ..reporting.kernels import kernels_page
from ..reporting.local import advice_page
from ..reporting.pipelines import pipeline_page
from ..reporting.predictions import headline, layer_table, memory_fact, memory_tables, prediction_page
from ..reporting.scale import scale_page
from ..reporting.serving import serving_page
from ..reporting.side_by_side import comparison_table, describe_bounds
from ..timing import Prediction, describe_model
from ..units import format_interval, format_number, format_si
from .answers import (
    Failure,
    advise,
    devices,
    named_device,
    own_device_files,
    pictures,
    predict,
    read_profile,
    scale_possible,
    serve,
    try_call,
    writes_text,
)
from .charts import show_cost, show_memory, show_schedule
from .controls import KEY, draw_shown
from .offer import offer_language_model
from .show import (
    download,
    escape_markdown,
    show_chart,
    show_document,
    show_facts,
    show_failure,
    show_long_table,
    show_notes,
    show_table,
)
from .view import DEVICES_AT_MOST, View, read_workers

_CARDS_PER_ROW = 3
_LARGEST_BATCH = 4096


def time_view(view: View) -> None:
    """Show the predictions of all devices, and the charts of one of them."""
    answers = {gpu: try_call(lambda gpu=gpu: predict(view, gpu)) for gpu in view.gpu}  # type: ignore[misc]
    for first in range(0, len(view.gpu), _CARDS_PER_ROW):
        row = view.gpu[first : first + _CARDS_PER_ROW]
        for column, gpu in zip(st.columns(len(row)), row):
            with column, st.container(border=True, height="stretch"):
                _card(gpu, answers[gpu])
    predictions = [answer for answer in answers.values() if isinstance(answer, Prediction)]
    if len(predictions) > 1:
        show_chart(lambda: devices_chart(Predictions(predictions), list(view.gpu)))
        page = Document("", content=[comparison_table(Predictions(predictions))])
        show_table(page.tables[0])
        download(page, f"{view.network}-side-by-side")
        show_cost(predictions)
    draw_shown(view)
    answer = answers[view.device]
    if isinstance(answer, Prediction):
        _explain(view, answer)


def _card(gpu: str, answer: Prediction | Failure) -> None:
    """Show the main figures of a prediction."""
    name = devices()[gpu].name
    if isinstance(answer, Failure):
        st.markdown(escape_markdown(name))
        show_failure(answer)
        return
    st.metric(escape_markdown(f"{answer.network} on {name}"), format_si(answer.time_s, "s"))
    fit = answer.memory
    if fit is not None and not fit.fits:
        st.error(escape_markdown(memory_fact(fit)[1]))
    lines = []
    if answer.interval is not None:
        lines.append(f"{format_interval(answer.interval)} at 90%")
    if answer.throughput_per_s is not None:
        unit = "tokens" if answer.phase == "decode" else "samples"
        lines.append(f"{format_number(answer.throughput_per_s)} {unit}/s")
    lines.append(describe_bounds(answer))
    st.markdown("  \n".join(map(escape_markdown, lines)))
    show_notes([describe_model(answer.model) if answer.model.label else f"{answer.model.name} model", *answer.notes])


def _explain(view: View, answer: Prediction) -> None:
    """Show the charts and tables of a prediction, and its command."""
    page, prefix = prediction_page(answer, None), prediction_title(answer)
    st.markdown(f"**{escape_markdown(headline(answer))}**")
    show_chart(lambda: prediction_roofline(answer), omitted_prefix=prefix)
    show_chart(lambda: layer_chart(answer), omitted_prefix=prefix)
    show_chart(lambda: kind_chart(answer), columns=3, omitted_prefix=prefix)
    show_table(page.tables[0])
    if len(answer.terms.passes) > 1:
        show_chart(lambda: pass_chart(answer), omitted_prefix=prefix)
    show_long_table(layer_table(answer, list(answer.rows())))
    download(page, f"{view.network}-{view.device}-layers")
    st.markdown("**Details**")
    show_facts(page.facts)
    if answer.memory is not None:
        for table in memory_tables(answer.memory, by_part=True):
            show_table(table)
    show_notes(page.notes)
    st.markdown("The same on the command line:")
    st.code(view.predict_command(view.device, *own_device_files(view.device)), language="bash", wrap_lines=True)


def batch_view(view: View) -> None:
    """Show throughput and time over the batch size, up to the largest that fits into memory."""
    predictions: list[Prediction] = []
    order = list(view.gpu)  # colours depend on the position of a device, also if others fail
    for index, gpu in enumerate(view.gpu):
        answer = try_call(lambda gpu=gpu: predict(view, gpu))  # type: ignore[misc]
        if isinstance(answer, Failure):
            show_failure(answer)
            continue
        order[index] = answer.device.id
        largest = answer.memory.largest_batch if answer.memory is not None else None
        if largest is None:
            show_failure(Failure(f"{devices()[gpu].name}: not even one sample fits into memory"))
            continue
        predictions += [
            predict(view, gpu, 2**power) for power in range(largest.bit_length()) if 2**power <= _LARGEST_BATCH
        ]
    if not predictions:
        return
    show_chart(lambda: batch_chart(predictions, order), columns=2)
    st.caption("Up to the largest power of two that fits into the device's memory.")
    show_memory(view)
    table = comparison_table(Predictions(predictions))
    show_long_table(table)
    download(Document("", content=[table]), f"{view.network}-batch-sizes")


_FIRST_OF_SCALING = ("workers", "time_s", "interval", "speedup", "efficiency", "cost", "limited_by")


def scale_view(view: View) -> None:
    """Show the scaling of all devices in one chart, and a table for each."""
    known = devices()
    workers = try_call(lambda: read_workers(view.workers))
    if isinstance(workers, Failure):
        show_failure(workers)
        return
    answers = {gpu: try_call(lambda gpu=gpu: scale_possible(view, gpu)) for gpu in view.gpu}  # type: ignore[misc]
    rows: list[ScaleRow] = []
    for gpu, answer in answers.items():
        if isinstance(answer, Failure):
            st.error(escape_markdown(f"{known[gpu].name}: {answer.reason}"))
        else:
            _, table, reasons = answer
            if reasons:
                st.caption(escape_markdown(f"{known[gpu].name}, left out: {'; '.join(reasons)}"))
            # The series of the chart are strategies and collectives; here they are devices.
            rows += [msgspec.structs.replace(row, strategy=gpu, collective="") for row in table.rows]
    if not rows:
        return
    strategy = "tensor parallelism" if view.phase in GENERATION_PHASES else view.strategy
    subtitle = f"{view.network}, {view.precision} {view.phase}, {strategy}, {view.scaling} scaling, {view.link}"
    bounds = [gpu for gpu, answer in answers.items() if not isinstance(answer, Failure) and not answer[1].is_forecast]
    show_chart(lambda: scaling_chart(rows, [subtitle], bounds, view.gpu), columns=3 if len(view.gpu) == 1 else 2)
    for gpu, answer in answers.items():
        if isinstance(answer, Failure):
            continue
        possible, table, _ = answer
        page = scale_page(table)
        st.markdown(f"**{escape_markdown(page.title)}**")
        tables = [_reorder_columns(each, _FIRST_OF_SCALING) for each in page.tables]
        shown = page.replace(content=tables, data=page.tables[0])
        show_schedule(table)
        show_document(shown, f"{view.network}-{gpu}-scaling")
        st.code(possible.scale_command(gpu, *own_device_files(gpu)), language="bash", wrap_lines=True)


def serve_view(view: View) -> None:
    """Show a deployment of a language model under traffic on each device."""
    if not writes_text(view):
        offer_language_model(view, "Serving")
        return
    for gpu in view.gpu:
        answer = try_call(lambda gpu=gpu: serve(view, gpu))  # type: ignore[misc]
        if isinstance(answer, Failure):
            st.error(escape_markdown(f"{devices()[gpu].name}: {answer.reason}"))
            continue
        page = serving_page(answer)
        st.markdown(f"**{escape_markdown(page.title)}**")
        show_chart(lambda answer=answer: serving_chart(answer), columns=2)  # type: ignore[misc]
        show_document(page, f"{view.network}-{gpu}-serving")
        for purpose, command in page.commands:
            st.caption(escape_markdown(purpose))
            st.code(command, language="bash", wrap_lines=True)
        st.code(view.serve_command(gpu, *own_device_files(gpu)), language="bash", wrap_lines=True)


def pictures_view(view: View) -> None:
    """Show the time and memory of a pipeline for pictures or videos on each device."""
    for gpu in view.gpu:
        answer = try_call(lambda gpu=gpu: pictures(view, gpu))  # type: ignore[misc]
        if isinstance(answer, Failure):
            st.error(escape_markdown(f"{devices()[gpu].name}: {answer.reason}"))
            continue
        page = pipeline_page(answer, memory=True)
        st.markdown(f"**{escape_markdown(page.title)}**")
        show_document(page, f"{view.generator}-{gpu}")
        st.code(view.pictures_command(gpu, *own_device_files(gpu)), language="bash", wrap_lines=True)


def local_view(view: View) -> None:
    """Show a language model on one's own machine: the devices in one format, and the formats on one of them."""
    if not writes_text(view):
        offer_language_model(view, view.execution)
        return
    if len(view.gpu) > 1:
        _show_advice(view, list(view.gpu), view.stored_in)
    draw_shown(view)
    _show_advice(view, [view.device], None)


_FIRST_OF_ADVICE = ("device", "weights", "tokens_per_s", "slowest_tokens_per_s", "fastest_tokens_per_s", "placement")


def _show_advice(view: View, gpus: list[str], weights: str | None) -> None:
    """Show a ranking, its chart and its command."""
    advice = try_call(lambda: advise(view, gpus, weights))
    if isinstance(advice, Failure):
        st.error(escape_markdown(advice.reason))
        return
    page = advice_page(advice)
    st.markdown(f"**{escape_markdown(page.title)}**")
    show_chart(lambda: local_chart(advice), columns=2, has_title=False)
    shown = _reorder_columns(page.tables[0], _FIRST_OF_ADVICE)
    # A short table needs no sorting, and shows what is missing as a dash.
    shown = shown.replace(sortable=len(shown.rows) > DEVICES_AT_MOST)
    show_document(page.replace(content=[shown], data=page.tables[0]), f"{view.network}-{advice.by}")
    files = [file for gpu in gpus for file in own_device_files(gpu)]
    st.code(view.local_command(gpus, *files), language="bash", wrap_lines=True)


def _reorder_columns(table: Table, first: Sequence[str]) -> Table:
    """Return the table with the most important columns first, as a phone shows few columns."""
    columns = {column.key: column for column in table.columns}
    order = [key for key in first if key in columns] + [key for key in columns if key not in first]
    return table.replace(columns=[columns[key] for key in order])


_UPLOAD_KEY, _PROFILE_KEY, _DEVICE_NOTE_KEY = "dropped", "profile", "taken device"
"""Keys of the session state."""


def profile_view(view: View) -> None:
    """Ask for a profile and show its results for the device."""
    draw_shown(view)
    device = devices()[view.device]
    st.file_uploader(
        f"Profile (up to {st.get_option('server.maxUploadSize')} MB)",
        key=_UPLOAD_KEY,
        on_change=_store_profile,
        help="The format is detected from the content. The file stays on this computer.",
    )
    if _PROFILE_KEY not in st.session_state:
        formats = "; ".join(load_reader(*reader).description for reader in READERS)
        st.caption(escape_markdown(f"Supported formats: {formats}."))
        st.caption(
            f"Peaks: {escape_markdown(device.name)} in {view.precision}, selected in the sidebar. "
            "If the profile names its device, that device is selected."
        )
        return
    device_note = st.session_state.get(_DEVICE_NOTE_KEY)
    if device_note:
        st.info(escape_markdown(device_note))
    name, content = st.session_state[_PROFILE_KEY]
    with st.spinner("Reading the profile"):
        answer = read_profile(name, content, device, view.precision)
    if isinstance(answer.kernels, Failure):
        show_failure(answer.kernels)
        return
    page = kernels_page(answer.kernels, None)
    title = f"{name} on {device.name}"
    st.markdown(f"**{escape_markdown(page.title.replace(answer.kernels.path, title))}**")
    _show_efficiency(answer.efficiency)
    left, right = st.columns(2)
    with left:
        show_chart(lambda: class_chart(answer.kernels))
    with right:
        show_chart(lambda: kernel_roofline(answer.kernels))
    timeline = answer.timeline
    if isinstance(timeline, Failure):
        st.info(escape_markdown(timeline.reason))
    else:
        show_chart(lambda: timeline_chart(timeline, "Timeline"))
    show_document(page, "kernels")


def _store_profile() -> None:
    """Store the uploaded profile, also while other views are shown, and select the device it names."""
    upload = st.session_state[_UPLOAD_KEY]
    if not hasattr(upload, "getvalue"):  # removed by the user or by the server
        st.session_state.pop(_PROFILE_KEY, None)
        return
    st.session_state[_PROFILE_KEY] = name, content = upload.name, upload.getvalue()
    device = named_device(name, content)
    selected = st.session_state[KEY + "gpu"]
    st.session_state[_DEVICE_NOTE_KEY] = ""
    if device is not None and device.id not in selected:
        st.session_state[KEY + "gpu"] = [device.id]
        st.session_state[_DEVICE_NOTE_KEY] = f"The profile was recorded on {device.name}, which was selected."


def _show_efficiency(answer: object) -> None:
    if isinstance(answer, Failure):
        st.info(escape_markdown(answer.reason))
        return
    page = efficiency_page(answer)  # type: ignore[arg-type]
    st.markdown(escape_markdown(page.title))
    # The column of the file name is redundant for one profile.
    tables = [
        table.replace(columns=[column for column in table.columns if column.key != "file"]) for table in page.tables
    ]
    show_document(page.replace(content=tables, facts=()))

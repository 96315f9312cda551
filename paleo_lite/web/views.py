"""The views of the page: how long on each device, and why; batch sizes; many devices; a profile that is dropped in."""

from __future__ import annotations

import msgspec
import streamlit as st

from ..calibration.several import Predictions
from ..counting import GENERATING
from ..distributed.table import ScaleRow
from ..profiles.detect import READERS, load_reader
from ..reporting.charts.devices import batch_chart, devices_chart
from ..reporting.charts.layers import kind_chart, layer_chart, pass_chart, title_of
from ..reporting.charts.profiles import class_chart, kernel_roofline, timeline_chart
from ..reporting.charts.roofline import prediction_roofline
from ..reporting.charts.scaling import scaling_chart
from ..reporting.document import Document, Table
from ..reporting.efficiency import efficiency_page
from ..reporting.kernels import kernels_page
from ..reporting.predictions import headline, layer_table, memory_fact, memory_tables, prediction_page
from ..reporting.scale import scale_page
from ..reporting.side_by_side import bound_sentence, side_by_side
from ..timing import Prediction, describe
from ..units import format_si, say_interval, say_number
from .answers import Failed, attempt, devices, named_device, own_file, predict, read_profile, scale
from .controls import KEY, draw_shown
from .show import (
    download,
    plain,
    say_facts,
    say_failed,
    say_notes,
    show_chart,
    show_document,
    show_long_table,
    show_table,
)
from .view import View, read_workers

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


_DROPPED, _KEPT, _TAKEN = "dropped", "profile", "taken device"  # keys of the session


def profile_view(view: View) -> None:
    """Ask for a file, and say what it says against the device."""
    draw_shown(view)
    device = devices()[view.device]
    st.file_uploader(
        f"A profile, of up to {st.get_option('server.maxUploadSize')} MB", key=_DROPPED, on_change=_keep,
        help="The format is known by the content. The file stays on this computer.",
    )  # fmt: skip
    if _KEPT not in st.session_state:
        st.caption(plain(f"It may be: {'; '.join(load_reader(*reader).what for reader in READERS)}."))
        st.caption(
            f"It is held against {plain(device.name)} in {view.precision}: choose both at the side. "
            "Where the profile names its device, that is taken."
        )
        return
    if taken := st.session_state.get(_TAKEN):
        st.info(plain(taken))
    name, content = st.session_state[_KEPT]
    with st.spinner("Reading the profile"):
        answer = read_profile(name, content, device, view.precision)
    if isinstance(answer.kernels, Failed):
        say_failed(answer.kernels)
        return
    page = kernels_page(answer.kernels, None)
    title = f"{name} on {device.name}"
    st.markdown(f"**{plain(page.title.replace(answer.kernels.path, title))}**")
    _efficiency(answer.efficiency)
    left, right = st.columns(2)
    with left:
        show_chart(lambda: class_chart(answer.kernels))
    with right:
        show_chart(lambda: kernel_roofline(answer.kernels))
    timeline = answer.timeline
    if isinstance(timeline, Failed):
        st.info(plain(timeline.why))
    else:
        show_chart(lambda: timeline_chart(timeline, "What ran when"))
    show_document(page, "kernels")


def _keep() -> None:
    """Keep the file while other views are looked at, until it is taken away or another one comes."""
    dropped = st.session_state[_DROPPED]
    if not hasattr(dropped, "getvalue"):  # taken away, by somebody or by the server
        st.session_state.pop(_KEPT, None)
        return
    st.session_state[_KEPT] = name, content = dropped.name, dropped.getvalue()
    found = named_device(name, content)
    chosen = st.session_state[KEY + "gpu"]
    st.session_state[_TAKEN] = ""
    if found is not None and found.id not in chosen:
        st.session_state[KEY + "gpu"] = [found.id]
        st.session_state[_TAKEN] = f"The profile names {found.name}: it is held against that."


def _efficiency(answer: object) -> None:
    if isinstance(answer, Failed):
        st.info(plain(answer.why))
        return
    page = efficiency_page(answer)  # type: ignore[arg-type]
    st.markdown(plain(page.title))
    # There is one profile, and its name stands above.
    tables = [table.but(columns=[column for column in table.columns if column.key != "file"]) for table in page.tables]
    show_document(page.but(content=tables, facts=()))

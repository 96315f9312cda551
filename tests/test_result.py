"""Methods of every result."""

from __future__ import annotations

import copy
import csv
import io
from html.parser import HTMLParser

import msgspec
import pytest

import paleo_lite as pl
from asked import scaling
from paleo_lite.units import format_si


class _Cells(HTMLParser):
    """Texts of the cells of a page, by tag."""

    def __init__(self) -> None:
        super().__init__()
        self.found: dict[str, list[str]] = {}
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.open.append(tag)
        self.found.setdefault(tag, []).append("")

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag, "tags close in the order in which they opened"

    def handle_data(self, data: str) -> None:
        if self.open:
            self.found[self.open[-1]][-1] += data


@pytest.fixture(scope="module")
def table() -> object:
    return scaling("alexnet", gpu="k80-die", link="ethernet20", workers="1,2,4", time_model="roofline")


def test_a_frame_is_what_csv_says(table) -> None:
    """Read back by the standard library's reader, column by column."""
    pytest.importorskip("pandas")
    out = io.StringIO()
    table.document().write_csv(out)
    rows = list(csv.DictReader(io.StringIO(out.getvalue())))
    frame = table.to_frame()
    assert list(frame.columns) == list(rows[0]) and len(frame) == len(rows) == 3
    assert [int(row["workers"]) for row in rows] == list(frame["workers"]) == [1, 2, 4]
    assert frame.attrs["title"] == table.document().title


def test_a_notebook_shows_every_cell_of_the_document(table) -> None:
    page = _Cells()
    page.feed(table._repr_html_())
    document = table.document()
    (shown,) = document.tables
    assert not page.open and page.found["b"] == [document.title]
    assert page.found["th"] == [column.heading for column in shown.columns]
    assert page.found["td"] == [column.text(row) for row in shown.rows for column in shown.columns]


def test_its_repr_is_the_headline_of_one_answer(table) -> None:
    """Of several numbers of workers none answers for the table: the repr has the time of each."""
    (row, *_) = table.rows
    alone = msgspec.structs.replace(table, rows=[row])
    assert repr(alone) == f"<ScaleTable: {alone.document().title}>"
    assert table.time_s is None and alone.time_s == row.time_s
    assert all(f"{row.workers} workers {format_si(row.time_s, 's')}" in repr(table) for row in table.rows)


def test_misspelt_attributes_are_answered_by_those_that_are_nearest() -> None:
    prediction, served = pl.predict("resnet50", gpu="t4"), pl.serve("qwen3-0.6b", gpu="l4", rate=1, num_requests=20)
    for result in (prediction, served, pl.layers("resnet50")):
        for name in ("to_dict", "to_frame", "document"):
            with pytest.raises(AttributeError, match=rf"has no attribute '{name[:-1]}': did you mean .*\.{name}"):
                getattr(result, name[:-1])
    with pytest.raises(AttributeError, match=r"Prediction has no attribute 'time': did you mean \.time_s or"):
        _ = prediction.time
    with pytest.raises(AttributeError, match=r"no attribute 'xyzzy': dir\(\) lists"):
        _ = prediction.xyzzy
    assert not hasattr(prediction, "_ipython_display_") and copy.deepcopy(prediction).time_s == prediction.time_s


def test_a_property_keeps_the_message_of_its_own() -> None:
    with pytest.raises(AttributeError, match="is a table of several answers, each of which has a time"):
        _ = pl.predict("resnet50", gpu=["t4", "k80"]).time_s

"""The registry of columns: each quantity has one heading, unit, form and meaning, and no view types its own."""

from __future__ import annotations

import ast
import importlib.util
from pathlib import Path

import pytest

import paleo_lite
from paleo_lite.reporting.columns import COLUMNS, GROUPS, find_column, option_column, part_column, select_columns
from paleo_lite.reporting.document import Table
from paleo_lite.reporting.formats import format_bytes, format_time, format_time_short
from paleo_lite.sweeps.chunk import NUMBER_COLUMNS, STRING_COLUMNS
from paleo_lite.sweeps.rows import COLUMNS as ROW_COLUMNS
from paleo_lite.sweeps.rows import WITH_INTERVALS

PACKAGE = Path(paleo_lite.__file__).parent
MAY_MAKE_COLUMNS = {
    "reporting/columns.py": "the registry",
    "reporting/document.py": "raw values for CSV, which have their key as heading",
    "reporting/measurements.py": "quantities of result files, which result_files/quantities.py lists",
    "reporting/terminal.py": "bars beside a column",
}
"""Modules that make columns by themselves, with what for."""


def calls_of(name: str, path: Path) -> list[ast.Call]:
    """Return the calls of a name in a module."""
    nodes = ast.walk(ast.parse(path.read_text(encoding="utf-8")))
    return [node for node in nodes if isinstance(node, ast.Call) and getattr(node.func, "id", "") == name]


def test_only_the_registry_makes_columns():
    making = {
        path.relative_to(PACKAGE).as_posix()
        for path in PACKAGE.rglob("*.py")
        if "Column(" in path.read_text(encoding="utf-8") and calls_of("Column", path)
    }
    assert making == set(MAY_MAKE_COLUMNS), "name the column in paleo_lite/reporting/columns.py, and select it"


def test_every_column_is_listed_once_and_has_a_meaning():
    listed = [column for group in GROUPS.values() for column in group]
    assert len(listed) == len(COLUMNS)
    for column in listed:
        assert len(column.meaning.split()) >= 2, column.key
        assert not column.meaning.endswith("."), column.key
        assert not column.drop_order and not column.bar, f"{column.key}: what is dropped first is the view's"


def test_every_column_is_in_some_table():
    views = [path for path in (PACKAGE / "reporting").rglob("*.py") if path.name != "columns.py"]
    nodes = [node for path in views for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))]
    texts = {node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)}
    assert set(COLUMNS) - {column.key for column in GROUPS["Files of rows"]} <= texts


def test_every_column_of_a_file_of_rows_is_listed(writer):
    ends = {f"{name}_{end}" for name in WITH_INTERVALS for end in ("low", "high")}
    written = {name for names in ROW_COLUMNS.values() for name in names} | {*NUMBER_COLUMNS, *STRING_COLUMNS}
    others = {key for keys in writer.other_keys().values() for key in keys}
    assert written - ends <= set(COLUMNS) | others


def test_no_two_quantities_have_the_same_heading_and_unit():
    owner: dict[tuple[str, str], str] = {}
    for column in COLUMNS.values():
        if column.heading:  # a column of marks has none
            other = owner.setdefault((column.heading, column.unit), column.key)
            assert other == column.key, f"{column.key} and {other} are both {column.heading!r} in {column.unit!r}"


def test_a_heading_that_a_view_changes_is_justified():
    """A comment on the line, or above, says why."""
    for path in (PACKAGE / "reporting").rglob("*.py"):
        lines = path.read_text(encoding="utf-8").splitlines()
        for call in calls_of("find_column", path):
            titles = [keyword.value for keyword in call.keywords if keyword.arg == "title"]
            if titles and isinstance(titles[0], ast.Constant):
                nearby = "\n".join(lines[max(call.lineno - 6, 0) : call.end_lineno])
                assert "#" in nearby, f"{path.name}:{call.lineno}: say why the heading differs"


def test_what_a_view_drops_or_draws_is_one_of_its_columns():
    """Columns that a table has only sometimes are among the names that the call gives."""
    checked = 0
    for path in (PACKAGE / "reporting").rglob("*.py"):
        for call in calls_of("select_columns", path):
            if any(isinstance(getattr(part, "value", part), ast.Name) for part in call.args):
                continue  # a column or a list that stands elsewhere
            named = {node.value for part in call.args for node in ast.walk(part) if isinstance(node, ast.Constant)}
            for keyword in call.keywords:
                if keyword.arg in ("drop", "bars"):
                    checked += 1
                    listed = {node.value for node in ast.walk(keyword.value) if isinstance(node, ast.Constant)}
                    assert listed <= named, f"{path.name}:{call.lineno}: {listed - named}"
    assert checked > 30


def test_a_view_changes_columns_only_where_it_says_so():
    low, time, memory = select_columns(
        "low_s", find_column("time_s", key="step_s"), "memory_bytes", drop=("memory_bytes", "low_s"), short=True
    )
    assert (low.drop_order, time.drop_order, memory.drop_order) == (1, 0, 2)
    assert time.key == "step_s" and time.title == "time" and time.show is format_time_short
    assert memory.text({"memory_bytes": 12345678}) == "12.3 MB"
    assert find_column("time_s").show is format_time  # the registry itself is as before
    assert [column.bar for column in select_columns("time_s", "share", bars=("share",))] == [False, True]


def test_columns_of_options_and_parts_have_their_name_as_heading():
    assert [option_column("response_tokens").text({"response_tokens": given}) for given in (1000.0, 0.95)] == [
        "1,000",
        "0.95",
    ]
    option, part = option_column("micro_batch"), part_column("activations", format_bytes)
    assert option.heading == "micro batch" and option.left and option.text({"micro_batch": "4\x1b[2J"}) == "4 [2J"
    assert part.text({"activations": 2.5e9}) == "2.5 GB"
    assert Table("", [option, part], []).markdown().startswith("| micro batch | activations |")


def test_an_unknown_name_is_an_error():
    with pytest.raises(KeyError, match="no_such"):
        select_columns("no_such")


@pytest.fixture(scope="module")
def writer():
    """The module that writes the reference page."""
    root = PACKAGE.parent
    spec = importlib.util.spec_from_file_location("docs_columns", root / "docs/columns.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_reference_page_is_current(writer):
    written = writer.PAGE.read_text(encoding="utf-8")
    assert written == writer.columns_page(), "python docs/columns.py writes it anew"
    assert "| `rank` | rank |" in written and "| `time_s`, `window_s` | time | s |" in written

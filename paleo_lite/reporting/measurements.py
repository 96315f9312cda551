"""Documents of result files: the rows of each, what it leaves out, its doubts, and forecasts beside them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..result_files.beside import MeasuredBesideForecast
from ..result_files.configuration import FACTS
from ..result_files.detect import Measurements
from ..result_files.findings import Findings, Reading
from ..result_files.quantities import KINDS, QUANTITIES
from ..text import format_plural
from ..units import format_number, format_si
from .columns import find_column, select_columns
from .document import Column, Document, Table, raw_table
from .formats import format_percent

_TITLES = {
    "network": "network", "gpu": "GPU", "devices": "devices", "nodes": "nodes", "engine": "engine",
    "engine_version": "version of the engine", "precision": "precision", "weights": "format of weights",
    "kv_cache": "format of the KV cache", "tensor": "tensor parallel", "pipeline": "pipeline stages",
    "data": "data parallel", "global_batch_size": "global batch", "cpu": "CPU",
    "micro_batch": "micro-batch", "max_num_seqs": "max num seqs", "chunk_tokens": "tokens per chunk",
    "gpu_layers": "blocks on the GPU",
}  # fmt: skip
_FROM_FILE = 8  # files of which each gets its own table; of more, only the summary is shown
_SIDE_BY_SIDE = 3  # rows of a kind that are shown as columns, because they have more figures than fit into a line
_LEAST_FIGURES = 8
_KEPT = (
    "label", "network", "operation", "variant", "path", "shape", "precision", "weights", "batch_size", "tokens",
    "depth", "bytes", "devices", "concurrency_limit", "request_rate", "device", "power_limit_w", "steps", "tpot_s",
    "ttft_s", "output_tokens_per_s", "tokens_per_s", "step_s", "samples_per_s", "time_s", "bus_bytes_per_s",
    "bytes_per_s", "power_w", "flops_per_s",
)  # fmt: skip
"""Columns that a narrow terminal shows first."""
_MAIN = ("tpot_s", "tokens_per_s", "output_tokens_per_s", "step_s", "bus_bytes_per_s", "bytes_per_s", "power_w",
         "flops_per_s", "time_s")  # fmt: skip
"""Figures of the summary of many files: the first that a file has."""


def measurements_page(result: Measurements, top: int | None = None) -> Document:
    """Return the document of any number of result files, with at most `top` rows of each table."""
    if len(result.files) == 1:
        return _file_page(result.files[0], top)
    tables: list[Table] = [_summary(result, top)]
    if len(result.files) <= _FROM_FILE:
        for findings in result.files:
            tables += _tables(findings, top, f"{findings.name}: ")
    notes = []
    if len(result.files) <= _FROM_FILE:
        notes = [f"{findings.name}: {note}" for findings in result.files for note in _notes(findings)]
    elif any(_notes(findings) for findings in result.files):
        notes = ["The rows and the doubts of a file are shown where it is given alone, or with few others."]
    count = format_plural(len(result.files), "result file")
    return Document(f"Measurements of {count}", content=tables, notes=notes, data=lambda: _all_rows(result.files))


def _file_page(findings: Findings, top: int | None) -> Document:
    tool = f"{findings.tool} {findings.version}".strip()
    facts = []
    for name, value in findings.configuration.items():
        how = findings.guessed.get(name)
        text = f"{value:g}" if isinstance(value, float) else str(value)
        facts.append((_TITLES.get(name, name.replace("_", " ")), f"{text} (a guess: {how})" if how else text))
    return Document(
        f"{findings.name}: {tool}",
        facts=facts,
        content=_tables(findings, top, ""),
        notes=_notes(findings),
        data=lambda: _all_rows([findings]),
    )


def _notes(findings: Findings) -> list[str]:
    """Return the doubts about a file and what it leaves out; a doubt that several rows share is listed once."""
    notes = []
    for doubt, numbers in findings.doubts_by_rows():
        others = len(numbers) - 1
        rows = f" ({others} more {'row' if others == 1 else 'rows'} likewise)" if others else ""
        notes.append(f"{doubt}{rows}")
    return [_sentence(note) for note in [*notes, *findings.doubts, *findings.missing]]


def _sentence(text: str) -> str:
    """Return a text that starts with a capital letter and ends with a full stop."""
    return text[:1].upper() + text[1:] + ("" if text.endswith((".", "?", "!")) else ".")


def _tables(findings: Findings, top: int | None, prefix: str) -> list[Table]:
    """Return a table for each kind of row of a file."""
    tables = []
    for kind, name in KINDS.items():
        rows = [reading for reading in findings.readings if reading.kind == kind]
        if not rows:
            continue
        shown = rows[:top]
        extent = f", the first {len(shown)} of {len(rows):,}" if len(shown) < len(rows) else ""
        title = f"{prefix}{name}{extent}" if prefix else f"{name[:1].upper()}{name[1:]}{extent}"
        columns = _columns(rows)
        if len(rows) <= _SIDE_BY_SIDE and len(columns) >= _LEAST_FIGURES:
            tables.append(_side_by_side(title, columns, _dicts(shown)))
        else:
            tables.append(Table(title, columns, _dicts(shown)))
    return tables


def _side_by_side(title: str, columns: Sequence[Column], rows: Sequence[dict[str, Any]]) -> Table:
    """Return a table with a line for each quantity and a column for each row."""
    lines = []
    for column in columns:
        texts = {str(number): column.text(row) for number, row in enumerate(rows)}
        lines.append({"quantity": column.heading, **texts})
    beside = [
        find_column("value", key=str(number), title=f"run {number + 1}" if len(rows) > 1 else "value", left=False)
        for number in range(len(rows))
    ]
    return Table(title, select_columns("quantity", *beside), lines)


def _columns(rows: Sequence[Reading]) -> list[Column]:
    """Return the columns that the rows have."""
    present = {name for reading in rows for name in reading.values}
    columns: list[Column] = []
    for name, quantity in QUANTITIES.items():
        if name not in present:
            continue
        is_text = any(isinstance(reading.values.get(name), str) for reading in rows)
        drop_order = 0 if name in _KEPT else len(columns) + 1
        title, text = quantity.title, _formatter(quantity.unit)
        columns.append(Column(name, title, text, left=is_text, drop_order=drop_order, wrap=name == "shape"))
    return columns


def _formatter(unit: str) -> Any:
    """Return the function that shows a value of a unit."""

    def show(value: Any) -> str:
        if isinstance(value, (str, bool)):
            return str(value)
        if unit == "%":
            return format_percent(value)
        if unit in ("", "1/s"):
            return format_number(value)
        return format_si(value, unit)

    return show


def _dicts(rows: Sequence[Reading]) -> list[dict[str, Any]]:
    return [dict(reading.values) for reading in rows]


def _summary(result: Measurements, top: int | None) -> Table:
    """Return a row for each file: its tool, its rows, its first figure and how many doubts there are."""
    rows = []
    for findings in result.files[:top]:
        first = next((name for name in _MAIN if any(name in reading.values for reading in findings.readings)), None)
        values = [reading.values[first] for reading in findings.readings if first in reading.values] if first else []
        unit = _formatter(QUANTITIES[first].unit) if first else str
        low_to_high = f"{unit(min(values))} to {unit(max(values))}" if len(set(values)) > 1 else ""
        rows.append(
            {
                "file": findings.name,
                "tool": findings.tool,
                "rows": len(findings.readings),
                "figure": QUANTITIES[first].title if first else None,
                "value": low_to_high or (unit(values[0]) if values else None),
                "missing": ", ".join(name for name in FACTS if _lacks(findings, name)) or None,
                "doubts": len(findings.doubts) + len({doubt for row in findings.readings for doubt in row.doubts}),
            }
        )
    columns = select_columns(
        find_column("file", wrap=True),
        "tool",
        "rows",
        "figure",
        "value",
        find_column("missing", wrap=True),
        "doubts",
        drop=("figure", "value", "tool"),
    )
    title = "Files" if len(rows) == len(result.files) else f"Files, the first {len(rows)} of {len(result.files):,}"
    return Table(title, columns, rows)


def _lacks(findings: Findings, name: str) -> bool:
    """Return whether a file lacks a fact that the user can state."""
    return any(f"`{name} = " in sentence for sentence in findings.missing)


def _all_rows(files: Sequence[Findings]) -> Table:
    """Return the rows of all files as they are, for CSV."""
    rows = [{"file": findings.name, "tool": findings.tool, "kind": reading.kind, **reading.values}
            for findings in files for reading in findings.readings]  # fmt: skip
    present = {name for row in rows for name in row}
    keys = ["file", "tool", "kind", *(name for name in QUANTITIES if name in present)]
    return raw_table(rows, keys)


def beside_page(result: MeasuredBesideForecast, top: int | None = None) -> Document:
    """Return the document of a result file beside its forecasts, with at most `top` rows."""
    rows = [{**row._asdict(), "figure": QUANTITIES[row.figure].title, "ratio": row.ratio, "key": row.figure}
            for row in result.rows]  # fmt: skip
    for row in rows:
        show = _formatter(QUANTITIES[row["key"]].unit)
        row["measured_text"], row["forecast_text"] = show(row["measured"]), show(row["forecast"])
        low, high = row["low"], row["high"]
        row["interval_text"] = None if low is None or high is None else f"{show(low)} to {show(high)}"
        row["inside"] = None if low is None or high is None else low <= row["measured"] <= high
    shown = rows[:top]
    extent = f", the first {len(shown)} of {len(rows):,}" if len(shown) < len(rows) else ""
    # The others are texts with their units; the ratio is to the forecast beside it.
    columns = select_columns(
        "situation", "figure", "measured_text", "forecast_text", "interval_text",
        find_column("ratio", title="measured /\nforecast"),  # of any figure, not of a time
        "inside",
        drop=("inside", "interval_text"),
    )  # fmt: skip
    facts = [(_TITLES.get(name, name.replace("_", " ")), str(value)) for name, value in result.question.items()]
    facts.append(("typical factor", f"{result.typical_factor:.2f} between measured and forecast"))
    return Document(
        f"{result.file}: {result.tool}, beside the forecast",
        facts=facts,
        content=[Table(f"Measured and forecast{extent}", columns, shown)],
        notes=[_sentence(f"left out: {reason}") for reason in result.left_out]
        + [_sentence(note) for note in result.notes],
        data=lambda: _beside_rows(result),
    )


def _beside_rows(result: MeasuredBesideForecast) -> Table:
    """Return the rows of a comparison as they are, for CSV."""
    keys = ("row", "kind", "situation", "figure", "measured", "forecast", "low", "high", "ratio")
    return raw_table([{**row._asdict(), "ratio": row.ratio} for row in result.rows], keys)

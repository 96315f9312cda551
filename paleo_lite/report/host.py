"""What the host did, to look at: by kind, by module, by function."""

from __future__ import annotations

from ..efficiency.host import KINDS, HostReport
from ..units import format_si
from .document import Column, Document, Table, say_count, say_percent, say_time


def host_page(report: HostReport, top: int | None = 20, order: str = "time") -> Document:
    """The page of a profile of the host.

    Parameters
    ----------
    top : int or None
        How many functions to list; None lists all.
    order : str
        Ignored: the host has no peak to rank by.
    """
    rows = report.to_dict()["hotspots"]
    columns = [
        Column("name", "function", left=True),
        Column("kind", "kind", left=True, spare=2),
        Column("module", "module", left=True, spare=1),
        Column("calls", "calls", say_count, spare=4),
        Column("time_s", "time in it", say_time),
        Column("total_s", "with what\nit called", say_time, spare=3),
        _SHARE,
    ]
    functions = Table("Functions", columns, rows, sortable=True, filterable=True).known()
    listed = functions.first(top)
    tables = [listed.but(title=f"{listed.title}, by {_what(report)}")]
    for key in ("module", "kind"):
        groups = report.sums(key)
        if len(groups) > 1:
            of = [{**group, "meaning": KINDS.get(group[key] or "")} for group in groups]
            tables.insert(0, Table(f"By {key}", _columns(report, key), of, sortable=True))
    facts = [("format", report.format)]
    if report.configuration:
        facts.append(("run", ", ".join(f"{name} {value}" for name, value in report.configuration.items())))
    facts.append(("time", f"{_what(report)} of the host, summed over threads: nothing in it ran on a device"))
    return Document(_headline(report), facts, tables, (), functions.but(title=""))


_SHARE = Column("share", "share", say_percent, bar=True)


def _what(report: HostReport) -> str:
    return "cycles" if report.time_s is None else "time"


def _headline(report: HostReport) -> str:
    first = report.hotspots[0]
    spent = "" if report.time_s is None else f"{format_si(report.time_s, 's', 5)} of the host, "
    return f"{report.path}: {spent}{first.share:.0%} of the {_what(report)} in {first.name[:60]}"


def _columns(report: HostReport, key: str) -> list[Column]:
    columns = [
        Column(key, key, left=True),
        Column("functions", "functions", say_count, spare=2),
        Column("time_s", "time in it", say_time),
        _SHARE,
    ]
    if report.time_s is None:
        del columns[2]
    return [*columns, Column("meaning", "what it is", left=True, spare=1)] if key == "kind" else columns

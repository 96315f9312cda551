"""Write the summary table of docs/accuracy.md from the tables of docs/accuracy-tables.md."""

from __future__ import annotations

import re
from pathlib import Path
from statistics import fmean

DOCS = Path(__file__).parent
START, END = "<!-- summary -->", "<!-- end of summary -->"

QUESTIONS = {
    "Leave one network out": "a new network, on a measured device",
    "Leave one family out": "a network of a family without measurements",
    "Leave one batch out": "another range of batch sizes",
    "Leave one source out": "a measured device, with the host and software of another source",
    "Leave one execution out": "TensorRT or compiled from eager measurements, or vice versa",
    "Leave one gpu out": "a device without measurements",
    "Leave one host out": "a device without measurements, on a host with measurements of other devices",
    "Leave one generation out": "a device of a generation without measurements",
}
"""Sections of the tables, and the kind of prediction that each one evaluates."""


def summary(tables: str) -> list[str]:
    """Return the lines of the table: error, coverage and interval width, and the errors of simpler models."""
    sections = dict(re.findall(r"^## (.+)\n((?:(?!^## ).*\n?)*)", tables, re.MULTILINE))
    lines = [
        "| prediction | points | error | inside the 90% interval | interval width | roofline | one PPP |",
        "| :-- | --: | --: | --: | --: | --: | --: |",
    ]
    for heading, question in QUESTIONS.items():
        section = sections[heading]
        error = re.search(r"\*\*.*: ([\d.]+)% mean absolute error", section)
        inside = re.search(r"- (?:coverage|within): (\d+)% of (\d+) points", section)
        assert error and inside, f"{heading}: no error or no coverage"
        width = "interval width" if "| interval width |" in section else "width"  # the earlier heading
        columns = (_column(section, name) for name in (width, "roofline", "one PPP"))
        others = [f"{fmean(column):.0f}%" if column else "-" for column in columns]
        cells = [question, f"{int(inside[2]):,}", f"**{error[1]}%**", f"{inside[1]}%", *others]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def _column(section: str, name: str) -> list[float]:
    """Return the percentages in a column of the section's first table."""
    table = re.search(r"\*\*Held-out error\*\*\n\n((?:\|.*\n)+)", section)
    assert table, "no table of held-out errors"
    header, _, *rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in table[1].splitlines()]
    return [float(row[header.index(name)].rstrip("%")) for row in rows if row[header.index(name)] != "-"]


def main() -> None:
    """Write the table into the page."""
    page = DOCS / "accuracy.md"
    before, rest = page.read_text().split(START)
    table = "\n".join(summary((DOCS / "accuracy-tables.md").read_text()))
    page.write_text(f"{before}{START}\n\n{table}\n\n{END}{rest.split(END)[1]}")


if __name__ == "__main__":
    main()

"""Write `reference/columns.md`, the page of the columns of all tables, from their registry.

python docs/columns.py
"""

from __future__ import annotations

from pathlib import Path

from paleo_lite.reporting.columns import GROUPS
from paleo_lite.reporting.document import Column

PAGE = Path(__file__).parent / "reference/columns.md"

INTRODUCTION = """# Columns of tables

The same quantity has the same heading in every table. A key is the name of the column in `--format csv`, and in most
rows of `--format json`; numbers there are in the unit of the column, without prefixes. A unit of 1 is that of shares
and ratios. Where the rows of one table have another key, its page says so ([Output](../output.md)).

Written by `python docs/columns.py` from `paleo_lite/reporting/columns.py`.
"""


def columns_page() -> str:
    """Return the page: a section for each group of columns."""
    sections = [INTRODUCTION]
    for title, columns in GROUPS.items():
        rows = "\n".join(_row(column) for column in columns)
        sections.append(f"## {title}\n\n| key | heading | unit | meaning |\n| :-- | :-- | :-- | :-- |\n{rows}\n")
    return "\n".join(sections)


def _row(column: Column) -> str:
    """Return the row of a column in Markdown."""
    return f"| `{column.key}` | {column.heading} | {column.unit} | {column.meaning} |"


if __name__ == "__main__":
    PAGE.write_text(columns_page(), encoding="utf-8")

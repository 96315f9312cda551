"""Write `reference/columns.md`, the page of the columns of all tables, from their registry.

python docs/columns.py
"""

from __future__ import annotations

import ast
from collections.abc import Sequence
from pathlib import Path

import paleo_lite
from paleo_lite.reporting.columns import GROUPS
from paleo_lite.reporting.document import Column

PAGE = Path(__file__).parent / "reference/columns.md"

INTRODUCTION = """# Columns of tables

The same quantity has the same heading in every table. A key is the name of the column in `--format csv`, and in most
rows of `--format json`; numbers there are in the unit of the column, without prefixes. A unit of 1 is that of shares
and ratios. Some tables have another key, which is listed behind it. [Output](../output.md) lists the JSON of each
answer.

A question with `-o FILE` writes rows with these columns; those that no table has are in
[the last section](#files-of-rows). `NAME_low` and `NAME_high` in such a file are the ends of the 90% interval of
`NAME`.

Written by `python docs/columns.py` from `paleo_lite/reporting/columns.py`.
"""


def columns_page() -> str:
    """Return the page: a section for each group of columns."""
    sections, others = [INTRODUCTION], other_keys()
    for title, columns in GROUPS.items():
        rows = "\n".join(_row(column, others.get(column.key, ())) for column in columns)
        sections.append(f"## {title}\n\n| key | heading | unit | meaning |\n| :-- | :-- | :-- | :-- |\n{rows}\n")
    return "\n".join(sections)


def other_keys() -> dict[str, list[str]]:
    """Return the other keys of each column that views give it, by its name in the registry."""
    keys_by_name: dict[str, set[str]] = {}
    for path in (Path(paleo_lite.__file__).parent / "reporting").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "find_column":
                name, keys = node.args[0], [keyword.value for keyword in node.keywords if keyword.arg == "key"]
                if keys and isinstance(name, ast.Constant) and isinstance(keys[0], ast.Constant):
                    keys_by_name.setdefault(str(name.value), set()).add(str(keys[0].value))
    return {name: sorted(keys) for name, keys in keys_by_name.items()}


def _row(column: Column, others: Sequence[str]) -> str:
    """Return the row of a column in Markdown."""
    keys = ", ".join(f"`{key}`" for key in (column.key, *others))
    return f"| {keys} | {column.heading} | {column.unit} | {column.meaning} |"


if __name__ == "__main__":
    PAGE.write_text(columns_page(), encoding="utf-8")

"""Page of what a few measurements of a group teach about its others."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from paleo_lite.reporting.document import Column, Document, Table
from paleo_lite.reporting.evidence import FIGURES
from paleo_lite.reporting.formats import format_percent, format_percent_rounded

from .hold_out import EvidenceErrors


def evidence_page(rows: Sequence[EvidenceErrors]) -> Document:
    """Return the errors by figure and by how many measurements of a group are known."""

    table = Table(
        "Groups of which some measurements are known",
        [
            Column("kind", "kind", left=True),
            Column("figure", "figure", left=True),
            Column("known", "known"),
            Column("groups", "groups"),
            Column("points", "forecasts"),
            Column("before", "error\nbefore", format_percent),
            Column("after", "error\nafter", format_percent),
            Column("large_groups", "groups\nabove 10%"),
            Column("large_before", "their error\nbefore", format_percent),
            Column("large_after", "their error\nafter", format_percent),
            Column("large_median_before", "median\nbefore", format_percent),
            Column("large_median_after", "median\nafter", format_percent),
            Column("coverage_before_90", "within\n90%", format_percent_rounded),
            Column("coverage_90", "within\n90% after", format_percent_rounded),
            Column("width", "width to\nbefore", "{:.2f}".format),
        ],
        [
            {
                **msgspec.to_builtins(row),
                "figure": FIGURES[row.figure],
                "known": row.known or "on other devices",
            }
            for row in rows
        ],
    )
    texts = [
        f"{FIGURES[row.figure]} {row.large_median_before:.1%} off in the median, {row.large_median_after:.1%} with one"
        for row in rows
        if row.known == 1
    ]
    return Document(
        f"Groups that are more than 10% off: {'; '.join(texts)} known measurement",
        (),
        [table],
        ["Errors are means unless said; no group is in the fit of the prior that forecasts it."],
        table,
    )

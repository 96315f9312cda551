"""The validation of classes of work in profiles to look at."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from paleo_lite.report.charts.accuracy import Pair
from paleo_lite.report.sheet import Column, Page, Sheet
from paleo_lite.units import format_si

from .hold_out import ProfileRow


def profile_validation_page(rows: Sequence[ProfileRow]) -> Page:
    """Times of classes of work at batch sizes that the fit has not seen."""
    sheet = Sheet(
        "Classes of work",
        [
            Column("work_class", "class", left=True),
            Column("phase", "phase", left=True),
            Column("layers", "fitted\ntimes", spare=2),
            Column("batch_size", "batch\nsize", spare=1),
            Column("measured_s", "measured", lambda value: format_si(value, "s")),
            Column("predicted_s", "predicted", lambda value: format_si(value, "s")),
            Column("interval", "90 % interval", left=True, spare=3),
            Column("error", "error", lambda value: f"{value:+.1%}"),
        ],
        [
            {
                **msgspec.to_builtins(row),
                "interval": f"{format_si(row.low_s, 's')} to {format_si(row.high_s, 's')}",
            }
            for row in sorted(rows, key=lambda row: (row.batch_size, row.phase != "forward", -row.measured_s))
        ],
    )
    first = rows[0]
    sums = [row for row in rows if row.work_class == "all"]
    facts = [
        (f"{row.phase}, batch {row.batch_size}", f"{row.error:+.1%} ({format_si(row.measured_s, 's')} measured)")
        for row in sums
    ]
    inside = sum(row.low_s <= row.measured_s <= row.high_s for row in rows)
    facts.append(("within", f"{inside} of {len(rows)} lie in their 90 % interval"))
    number = sum({row.batch_size: row.profiles for row in rows}.values())
    headline = (
        f"{first.network} on {first.gpu} in {first.precision}: fitted to batch {first.fitted_batch_size}, "
        f"{number} profiles of others predicted"
    )
    return Page(headline, facts, [sheet], (), sheet)


def profile_pairs(rows: Iterable[ProfileRow]) -> list[Pair]:
    """Classes of work as points of a chart, by pass."""
    return [
        Pair(f"{row.work_class}, batch {row.batch_size}", row.phase, row.measured_s, row.predicted_s,
             (row.low_s, row.high_s))
        for row in rows
    ]  # fmt: skip

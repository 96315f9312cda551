"""Pages and chart points of the validation against profiles."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from paleo_lite.calibration.accuracy import sharpness
from paleo_lite.reporting.charts.accuracy import Pair
from paleo_lite.reporting.document import Column, Document, Table
from paleo_lite.units import format_si

from .hold_out import ProfileRow
from .ppp import ProfilePrediction


def profile_validation_page(rows: Sequence[ProfileRow]) -> Document:
    """Return the page of classes of work at held-out batch sizes."""
    table = Table(
        "Classes of work",
        [
            Column("work_class", "class", left=True),
            Column("phase", "phase", left=True),
            Column("layers", "fitted\ntimes", drop_order=2),
            Column("batch_size", "batch\nsize", drop_order=1),
            Column("measured_s", "measured", lambda value: format_si(value, "s")),
            Column("predicted_s", "predicted", lambda value: format_si(value, "s")),
            Column("interval", "90% interval", left=True, drop_order=3),
            Column("error", "error", lambda value: f"{value:+.1%}"),
        ],
        [
            {
                **msgspec.structs.asdict(row),
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
    facts.append(("within", f"{inside} of {len(rows)} lie in their 90% interval"))
    ratio = sharpness([row.low_s for row in rows], [row.high_s for row in rows])
    facts.append(("sharpness", f"a ratio of {ratio:.2f} between its ends (median)"))
    number = sum({row.batch_size: row.profiles for row in rows}.values())
    headline = (
        f"{first.network} on {first.gpu} in {first.precision}: fitted to batch {first.fitted_batch_size}, "
        f"{number} profiles of others predicted"
    )
    return Document(headline, facts, [table], (), table)


def profile_pairs(rows: Iterable[ProfileRow]) -> list[Pair]:
    """Return the points of the chart of classes of work, by pass."""
    return [
        Pair(f"{row.work_class}, batch {row.batch_size}", row.phase, row.measured_s, row.predicted_s,
             (row.low_s, row.high_s))
        for row in rows
    ]  # fmt: skip


def comparison_page(rows: Sequence[ProfilePrediction]) -> Document:
    """Return the page that compares a PPP and the calibrated model on held-out profiles."""
    table = Table(
        "A single PPP and the calibrated model",
        [
            Column("fitted_to", "fitted to", left=True),
            Column("predicted", "predicted", left=True),
            Column("phase", "pass", left=True),
            Column("batch_size", "batch\nsize"),
            Column("measured_s", "measured", lambda value: format_si(value, "s")),
            Column("ppp", "PPP\noff by", lambda value: f"{value:+.1%}"),
            Column("ppp_inside", "inside\n90%", lambda value: "yes" if value else "no"),
            Column("calibrated", "calibrated\noff by", lambda value: f"{value:+.1%}"),
            Column("calibrated_inside", "inside\n90%", lambda value: "yes" if value else "no"),
        ],
        _rows_by_step(rows),
    )
    facts = []
    for model in dict.fromkeys(row.model for row in rows):
        of_model = [row for row in rows if row.model == model]
        error = sum(abs(row.error) for row in of_model) / len(of_model)
        inside = sum(row.low_s <= row.measured_s <= row.high_s for row in of_model)
        ratio = sharpness([row.low_s for row in of_model], [row.high_s for row in of_model])
        text = f"{error:.1%} mean absolute error, {inside} of {len(of_model)} in their 90% interval"
        facts.append((model, f"{text}, a ratio of {ratio:.2f} between its ends (median)"))
    return Document("models fitted to some profiles predict the others", facts, [table], (), table)


def _rows_by_step(rows: Sequence[ProfilePrediction]) -> list[dict[str, object]]:
    """Return a row for each step, with the predictions of all models."""
    steps: dict[tuple[object, ...], dict[str, object]] = {}
    for row in rows:
        key = row.fitted_to, row.predicted, row.phase, row.batch_size
        step = steps.setdefault(key, msgspec.structs.asdict(row))
        step |= {row.model: row.error, f"{row.model}_inside": row.low_s <= row.measured_s <= row.high_s}
    return list(steps.values())


def comparison_pairs(rows: Iterable[ProfilePrediction]) -> list[Pair]:
    """Return the points of the chart of passes, by model."""
    return [
        Pair(
            f"{row.predicted} from {row.fitted_to}", row.model, row.measured_s, row.predicted_s, (row.low_s, row.high_s)
        )
        for row in rows
    ]

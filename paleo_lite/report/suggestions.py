"""Measurements that would narrow an answer, to look at."""

from __future__ import annotations

import msgspec

from ..calibration.suggest import Suggestions, narrowest
from ..timing import Prediction
from ..units import format_si, say_interval
from .document import Column, Document, Table, raw_table, say_many, say_time_briefly


def suggestions_page(found: Suggestions) -> Document:
    """What to measure, what that takes, and what is known of the answer after it."""
    keys = ["network", "batch_size", "phase", "time_s", "measuring_s", "low_s", "high_s", "factor"]
    rows = [
        {**msgspec.to_builtins(each), **dict(zip(("low_s", "high_s"), each.interval or ()))}
        for each in found.suggestions
    ]
    before = {"network": "(nothing yet)", "interval": found.interval, "factor": found.factor}
    columns = [
        Column("number", ""),
        Column("network", "measure", left=True),
        Column("batch_size", "batch"),
        Column("phase", "phase", left=True),
        Column("time_s", "expected\nstep", say_time_briefly, spare=1),
        Column("measuring_s", "measuring", say_time_briefly),
        *([Column("interval", "then at 90%", say_interval)] if found.interval else []),
        Column("factor", "high / low", "{:.2f}".format),
    ]
    table = Table("", columns, [before, *({**row, "number": place} for place, row in enumerate(rows, 1))])
    about = found.network or "typical networks"
    batch = "" if found.batch_size is None else f", batch {found.batch_size}"
    expected = [] if found.time_s is None else [("expected", format_si(found.time_s, "s"))]
    return Document(
        f"{say_many(len(rows), 'measurement')} would narrow {about} on {found.gpu}, {found.precision} "
        f"{found.phase}{batch}: the high end of the 90% interval from {found.factor:.2f} to "
        f"{found.suggestions[-1].factor:.2f} times the low end",
        [
            *expected,
            ("known so far", found.known),
            ("chosen", f"from {found.candidates} steps, each after those above it, whatever times they will give"),
            ("measure", found.command),
            ("then", f"paleo-lite calibrate measured.csv --gpu {found.gpu} --precision {found.precision} -o mine.toml"),
        ],
        [table],
        (),
        raw_table(rows, keys),
    )


def narrowing(prediction: Prediction) -> list[tuple[str, str]]:
    """Which one measurement would narrow a prediction, and to what, should it come true: a fact, or none."""
    found = narrowest(prediction)
    if found is None:
        return []
    step, interval = found
    said = f"{step.network.name}, {step.phase}, batch {step.batch_size}"
    more = f"--gpu {prediction.device.id} --precision {prediction.precision} --network {prediction.network}"
    more += "" if prediction.batch_size == 1 else f" --batch-size {prediction.batch_size}"
    more += "" if prediction.phase == "inference" else f" --phase {prediction.phase}"
    return [("narrower", f"{say_interval(interval)} once {said} is measured: paleo-lite calibrate --suggest 3 {more}")]

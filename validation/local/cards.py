"""Forecasts for different cards in one machine beside speeds that people published.

``python -m validation compare cards`` prints them. Nothing was fitted to these rows.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from paleo_lite.api.local import predict_local
from paleo_lite.own_machines.question import LocalQuestion
from paleo_lite.reporting.document import Column, Document, Table
from paleo_lite.reporting.formats import format_yes_no

from ..comparisons import describe_errors
from ..tables import rows_of

PUBLISHED = Path(__file__).parent / "cards.csv"


class MachineSpeed(msgspec.Struct, frozen=True):
    """A published speed of answers on a machine with different cards, and its forecast, in tokens per second."""

    gpu: str  # cards, joined by plus signs
    network: str
    weights: str
    split: str  # proportions of ``--tensor-split``; empty for the default
    measured_per_s: float
    rate_per_s: float
    low_per_s: float
    high_per_s: float

    @property
    def error(self) -> float:
        """Forecast over measured speed, minus 1."""
        return self.rate_per_s / self.measured_per_s - 1

    @property
    def is_inside(self) -> bool:
        """Whether the 90% interval contains the measured speed."""
        return self.low_per_s <= self.measured_per_s <= self.high_per_s


def predict_speed(line: dict[str, str]) -> MachineSpeed:
    """Return a published row with its forecast."""
    proportions = line["tensor_split"]
    question = LocalQuestion(
        weights=line["weights"],
        kv_cache=line["kv_cache"],
        context=int(line["context"]),
        tensor_split=tuple(map(float, proportions.split(","))) if proportions else None,
    )
    prediction = predict_local(line["network"], line["gpu"].split("+"), question)
    low_s, high_s = prediction.token_interval_s
    return MachineSpeed(
        line["gpu"], line["network"], line["weights"], line["tensor_split"], float(line["tokens_per_s"]),
        prediction.tokens_per_s, 1 / high_s, 1 / low_s,
    )  # fmt: skip


def compare_page(data: Path | None) -> Document:
    """Return the page of the speeds and of their errors."""
    speeds = [predict_speed(line) for line in rows_of(PUBLISHED)]
    columns = [
        Column("gpu", "cards", left=True),
        Column("network", "network", left=True),
        Column("weights", "weights", left=True),
        Column("split", "split", left=True),
        Column("measured_per_s", "measured\ntokens/s", "{:.1f}".format),
        Column("rate_per_s", "forecast\ntokens/s", "{:.1f}".format),
        Column("is_inside", "within\n90%", format_yes_no),
    ]
    rows = [{**msgspec.structs.asdict(speed), "is_inside": speed.is_inside} for speed in speeds]
    return Document(f"Different cards in one machine: {describe_errors(speeds)}", [], [Table("Answers", columns, rows)])

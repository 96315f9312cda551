"""Tokens that the KV cache of a server holds, as engines print them when they start, and as they are predicted.

Lines of the role ``fitted`` gave a constant of `paleo_lite.engines.memory` or of an engine's record; the others are
judged. ``held_gib`` is memory that software of the time kept beside the engine, computed from what it kept.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from paleo_lite.api.question import Question, resolve_question
from paleo_lite.engines.division import Division
from paleo_lite.engines.records import find_server
from paleo_lite.serving.cache import measure_room
from paleo_lite.serving.placement import ModelOnDevice, tensor_group, with_kernels

from ..tables import rows_of

PUBLISHED = Path(__file__).with_name("cache_capacity.csv")

MEAN_TOKENS = 2048
"""Tokens of a request, which matter to layers with a window only."""


class Line(NamedTuple):
    """A line of an engine."""

    url: str  # where the line is printed
    name: str  # engine, network and devices
    # Tokens.
    published: int
    predicted: int
    is_fitted: bool

    @property
    def error(self) -> float:
        """Relative error of the prediction."""
        return self.predicted / self.published - 1


def lines() -> list[Line]:
    """Return all lines with their predictions."""
    return [_line(row) for row in rows_of(PUBLISHED)]


def name_of(row: dict[str, str]) -> str:
    """Return the engine, network and devices of a row."""
    return f"{row['engine']}, {row['network']}, {row['devices']} {row['device']} at {row['memory_fraction']}"


def _line(row: dict[str, str]) -> Line:
    workload, machine, model = resolve_question(
        Question(
            row["network"], row["device"], precision=row["precision"], phase="decode", weights=row["weights"] or None
        )
    )
    kv_cache = "fp16" if row["precision"] == "fp16" else "bf16"
    group = tensor_group(machine.device, Division(int(row["devices"])))
    alone = ModelOnDevice(workload, machine, model, group, kv_cache)
    on_device = with_kernels(alone, row["engine"])
    settings = {key: int(row[key]) for key in ("max_batched_tokens", "max_sequences") if row[key]}
    engine = find_server(row["engine"], machine.device, memory_fraction=float(row["memory_fraction"]), **settings)
    room = measure_room(on_device, engine, mean_tokens=MEAN_TOKENS, prompt_tokens=MEAN_TOKENS // 2)
    held_bytes = float(row["held_gib"] or 0) * 2**30
    held_tokens = round(held_bytes / room.sequence_bytes * MEAN_TOKENS)
    return Line(row["url"], name_of(row), int(row["tokens"]), room.tokens - held_tokens, row["role"] == "fitted")

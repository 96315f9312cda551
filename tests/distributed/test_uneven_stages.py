"""What a pipeline gains with stages of unlike numbers of blocks."""

from __future__ import annotations

import re
from typing import Any

import pytest

import paleo_lite as pl


def _asked(network: str = "llama-3.1-8b", **options: Any) -> Any:
    (row,) = pl.train(network, gpu="h100-sxm", workers=8, pipeline=4, mixed_precision=True, **options).rows
    return row


def _note(row: Any) -> str | None:
    return next((note for note in row.notes if "slowest of the" in note), None)


@pytest.mark.parametrize("options", [{}, {"schedule": "interleaved=2"}, {"execution": "compiled"}])
def test_the_named_layout_takes_the_named_time(options: dict[str, Any]) -> None:
    """A vocabulary of 128,256 makes the last of equal stages the slowest."""
    row = _asked(batch_size=8, **options)
    note = _note(row)
    assert note is not None and "the last, whose output head" in note
    layout, time_ms = re.search(r"layout=([\d,]+)` takes ([\d.]+) m?s per", note).groups()  # type: ignore[union-attr]
    blocks = list(map(int, layout.split(",")))
    assert sum(blocks) == 32 and min(blocks[3::4]) < max(blocks)
    changed = _asked(batch_size=8, **{**options, "schedule": f"layout={layout}"})
    scale = 1e3 if f"{time_ms} ms" in note else 1.0
    assert changed.time_s * scale == pytest.approx(float(time_ms), rel=1e-3)
    assert changed.time_s < 0.98 * row.time_s
    assert _note(changed) is None


def test_a_small_vocabulary_has_no_such_note() -> None:
    """GPT-3's 50,257 words take less than a block of 12,288 features."""
    assert _note(_asked("gpt3-175b", batch_size=8)) is None


def test_megatron_divides_evenly_and_pytorch_as_torchtitan() -> None:
    """The stage with most blocks has 8 of 32 and the head, or 9 as one of the middle: the same layouts as numbers."""
    for options, layout in (({}, "8,8,8,8"), ({"execution": "compiled"}, "8,9,8,7")):
        default, stated = _asked(**options), _asked(**options, schedule=f"layout={layout}")
        assert default.time_s == pytest.approx(stated.time_s) and default.memory_bytes == stated.memory_bytes


def test_a_given_layout_is_compared_with_a_balanced_one() -> None:
    """Stages of 12 blocks beside stages of 4 have the note that the default has, with the same layout."""
    note = _note(_asked(batch_size=8, schedule="layout=4,12,12,4"))
    assert note is not None and "number 2" in note
    default = _note(_asked(batch_size=8))
    assert default is not None
    assert re.findall("layout=[0-9,]+", note) == re.findall("layout=[0-9,]+", default)
    assert _note(_asked(batch_size=8, schedule="layout=8,9,9,6")) is None

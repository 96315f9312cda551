"""The note on a larger micro-batch: what it names fits, and is as fast as it says."""

from __future__ import annotations

import re
from typing import Any

import pytest

import paleo_lite as pl
from paleo_lite.distributed.micro_batches import Trial, find_faster_micro_batch
from paleo_lite.errors import BadValue

NOTE = re.compile(
    r"a larger micro-batch .* ([\d,.]+) times as fast: ([\d,.]+) instead of [\d,.]+ samples/s with `--(\S+) (\d+)`"
)
IN_TENSORS = {"network": "gpt3-1.3b", "platform": "dgx-a100", "workers": 8, "tensor": 2, "global_batch_size": 48}


@pytest.mark.parametrize(
    "asked",
    [
        {"network": "gpt2", "gpu": "a100-sxm-80gb"},
        {"network": "gpt2", "gpu": "a100-sxm-80gb", "batch_size": 2, "accumulation": 2},
        {"network": "gpt2", "gpu": "a100-sxm-80gb", "workers": 1},
        {"network": "gpt2", "gpu": "a100-sxm-80gb", "workers": 2, "batch_size": 16, "micro_batch": 1},
        IN_TENSORS,
    ],
)  # fmt: skip
def test_what_the_note_names_fits_and_is_as_fast_as_it_says(asked: dict[str, Any]) -> None:
    answer: Any = pl.train(**asked)
    ratio, per_s, option, value = next(filter(None, map(NOTE.match, answer.notes))).groups()  # type: ignore[union-attr]
    changed: Any = pl.train(**{**asked, option.replace("-", "_"): int(value)})
    before, after = (result.rows[-1] if "workers" in asked else result for result in (answer, changed))
    assert after.fits
    assert after.throughput_per_s == pytest.approx(float(per_s.replace(",", "")), rel=1e-3)
    assert after.throughput_per_s / before.throughput_per_s == pytest.approx(float(ratio), abs=0.006)
    assert not any(map(NOTE.match, changed.notes))


def test_sizes_that_do_not_divide_the_batch_are_not_named() -> None:
    """Each of four replicas has 12 samples: two, or four, but not eight or 64 make up its micro-batches."""
    answer: Any = pl.train(**IN_TENSORS)
    assert "with `--micro-batch 4`" in next(note for note in answer.notes if NOTE.match(note))


def test_the_largest_that_fits_and_is_faster_is_named() -> None:
    trials = {64: Trial(False, 90.0), 32: Trial(True, 10.2), 8: Trial(None, 11.0), 4: Trial(True, 20.0)}

    def attempt(size: int) -> Trial:
        if size not in trials:
            raise BadValue("the batch cannot be divided so")
        return trials[size]

    note = find_faster_micro_batch("--micro-batch", 10.0, (64, 32, 16, 8, 4), attempt)
    assert note is not None
    assert "1.10 times as fast: 11 instead of 10 samples/s with `--micro-batch 8`" in note
    assert find_faster_micro_batch("--micro-batch", 30.0, trials, attempt) is None

"""What makes a run fit that does not fit, and what a pipeline gains with unlike stages, or a larger micro-batch.

Tests: distributed/fitting.py, distributed/remedies.py.
"""

from __future__ import annotations

import re
from typing import Any

import pytest

import paleo_lite as pl
from paleo_lite.distributed.remedies import Trial, _largest_by_line, find_faster_micro_batch
from paleo_lite.errors import BadValue

LARGER = re.compile(
    r"a larger micro-batch .* ([\d,.]+) times as fast: ([\d,.]+) instead of [\d,.]+ samples/s with `--(\S+) (\d+)`"
)
IN_TENSORS = {"network": "gpt3-1.3b", "platform": "dgx-a100", "workers": 8, "tensor": 2, "global_batch_size": 48}


def _remedies(**options: object) -> list[str]:
    table = pl.train("llama-3-70b", gpu="h100-sxm", **options)
    return [note for note in table.rows[-1].notes if "fit" in note and "workers" not in note]


@pytest.mark.spread(1)
@pytest.mark.parametrize(
    "asked",
    [
        {"platform": "dgx-h100", "workers": 8, "sequence_length": 8192, "batch_size": 8},
        {"gpu": "l40s", "link": "pcie4-x16", "workers": 4, "batch_size": 8, "accumulation": 4, "sequence_length": 1024},
        {"gpu": "rtx4090", "link": "pcie4-x16", "workers": 8, "sequence_length": 2048, "strategy": "full-shard"},
    ],
    ids=["one micro-batch", "accumulation", "sharded"],
)
def test_changes_take_the_time_and_memory_that_the_note_states(asked: dict[str, Any]) -> None:
    """Given as the note writes them, also over links that reach less than their data sheet."""
    (row,) = pl.train("llama-3.1-8b", precision="bf16", **asked).rows
    (note,) = [note for note in row.notes if note.startswith("fits with")]
    stated = re.findall(r"`([^`]+)` \(([\d.]+) GB and ([\d.]+) (m?)s per step\)", note)
    assert len(stated) == 3
    for options, memory_gb, time_s, milli in stated:
        words = options.split()
        named = {name.strip("-").replace("-", "_"): value for name, value in zip(words[::2], words[1::2])}
        (changed,) = pl.train("llama-3.1-8b", precision="bf16", **{**asked, **named}).rows
        assert changed.fits
        assert changed.memory_bytes / 1e9 == pytest.approx(float(memory_gb), rel=5e-3)
        assert changed.time_s == pytest.approx(float(time_s) * (1e-3 if milli else 1), rel=5e-3)


def test_the_note_names_changes_that_do_fit() -> None:
    """The option that it names first, given as it is written, fits and needs what the note says."""
    (note,) = _remedies(workers=8, strategy="full-shard")
    assert note.startswith("fits with `--tensor 8 --communication sequence-parallel=yes` (")
    (row,) = pl.train(
        "llama-3-70b", gpu="h100-sxm", workers=8, strategy="full-shard", tensor=8, communication="sequence-parallel=yes"
    ).rows
    assert row.fits
    assert f"({row.memory_bytes / 1e9:.1f} GB" in note


@pytest.mark.thorough
def test_one_device_that_takes_its_batch_at_once_is_told_of_micro_batches() -> None:
    question = {"gpu": "rtx4090", "precision": "bf16", "lora": 16, "weights": "int4", "sequence_length": 1024,
                "global_batch_size": 16, "workers": 1, "recompute": "full"}  # fmt: skip
    notes = pl.train("llama-3.1-8b", **question).rows[-1].notes
    (note,) = [note for note in notes if note.startswith("fits with `--micro-batch 8` (")]
    (row,) = pl.train("llama-3.1-8b", **question, micro_batch=8).rows
    assert row.fits and f"({row.memory_bytes / 1e9:.1f} GB" in note
    assert "`--micro-batch 8 " not in note  # which needs no other option


def test_a_run_that_fits_has_no_such_note() -> None:
    assert _remedies(workers=8, strategy="full-shard", tensor=8, communication="sequence-parallel=yes") == []


def test_too_few_devices_are_said_to_be_too_few() -> None:
    table = pl.train("llama-3.1-405b", gpu="h100-sxm", workers=2)
    (note,) = [note for note in table.rows[-1].notes if note.startswith("it does not fit with any two")]
    assert "use more devices" in note


def test_stages_of_a_dense_network_name_no_experts() -> None:
    asked = {"gpu": "h100-sxm", "workers": 128, "sequence_length": 2048, "mixed_precision": True}
    notes = " ".join(pl.train("llama-3.1-405b", **asked).rows[-1].notes)
    stages = [words for words in re.findall(r"`([^`]*)`", notes) if "--pipeline" in words]
    assert stages and all("--expert-parallel" not in words for words in stages)


def test_the_least_memory_that_is_named_is_at_most_that_of_a_division() -> None:
    asked = {"gpu": "h100-sxm", "workers": 64, "sequence_length": 8192, "mixed_precision": True}
    (note,) = [note for note in pl.train("llama-3.1-405b", **asked).rows[-1].notes if "the least is" in note]
    (row,) = pl.train("llama-3.1-405b", **asked, tensor=8, pipeline=8, communication="sequence-parallel=yes").rows
    (least_gb,) = re.findall(r"the least is (\d+) GB", note)
    assert 80 < float(least_gb) <= row.memory_bytes / 1e9


@pytest.mark.parametrize("workers", [8, [4, 8]])
def test_the_headline_says_what_is_missing(workers: object) -> None:
    table = pl.train("llama-3-70b", gpu="h100-sxm", workers=workers, strategy="full-shard")
    assert "does not fit into memory: needs 148.8 GB, 84.03 GB usable" in table.document().title
    assert "does not fit" in repr(table)


def _row_of_pipeline(network: str = "llama-3.1-8b", **options: Any) -> Any:
    (row,) = pl.train(network, gpu="h100-sxm", workers=8, pipeline=4, mixed_precision=True, **options).rows
    return row


def _layout_note(row: Any) -> str | None:
    return next((note for note in row.notes if "slowest of the" in note), None)


@pytest.mark.spread(1)
@pytest.mark.parametrize("options", [{}, {"schedule": "interleaved=2"}, {"execution": "compiled"}])
def test_the_named_layout_takes_the_named_time(options: dict[str, Any]) -> None:
    """A vocabulary of 128,256 makes the last of equal stages the slowest."""
    row = _row_of_pipeline(batch_size=8, **options)
    note = _layout_note(row)
    assert note is not None and "the last, whose output head" in note
    layout, time_ms = re.search(r"layout=([\d,]+)` takes ([\d.]+) m?s per", note).groups()  # type: ignore[union-attr]
    blocks = list(map(int, layout.split(",")))
    assert sum(blocks) == 32 and min(blocks[3::4]) < max(blocks)
    changed = _row_of_pipeline(batch_size=8, **{**options, "schedule": f"layout={layout}"})
    scale = 1e3 if f"{time_ms} ms" in note else 1.0
    assert changed.time_s * scale == pytest.approx(float(time_ms), rel=1e-3)
    assert changed.time_s < 0.98 * row.time_s
    assert _layout_note(changed) is None


def test_a_small_vocabulary_has_no_such_layout_note() -> None:
    """GPT-3's 50,257 words take less than a block of 12,288 features."""
    assert _layout_note(_row_of_pipeline("gpt3-175b", batch_size=8)) is None


def test_megatron_divides_evenly_and_pytorch_as_torchtitan() -> None:
    """The stage with most blocks has 8 of 32 and the head, or 9 as one of the middle: the same layouts as numbers."""
    for options, layout in (({}, "8,8,8,8"), ({"execution": "compiled"}, "8,9,8,7")):
        default, stated = _row_of_pipeline(**options), _row_of_pipeline(**options, schedule=f"layout={layout}")
        assert default.time_s == pytest.approx(stated.time_s) and default.memory_bytes == stated.memory_bytes


def test_a_given_layout_is_compared_with_a_balanced_one() -> None:
    """Stages of 12 blocks beside stages of 4 have the note that the default has, with the same layout."""
    note = _layout_note(_row_of_pipeline(batch_size=8, schedule="layout=4,12,12,4"))
    assert note is not None and "number 2" in note
    default = _layout_note(_row_of_pipeline(batch_size=8))
    assert default is not None
    assert re.findall("layout=[0-9,]+", note) == re.findall("layout=[0-9,]+", default)
    assert _layout_note(_row_of_pipeline(batch_size=8, schedule="layout=8,9,9,6")) is None


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
def test_what_the_note_on_micro_batches_names_fits_and_is_as_fast_as_it_says(asked: dict[str, Any]) -> None:
    answer: Any = pl.train(**asked)
    ratio, per_s, option, value = next(filter(None, map(LARGER.match, answer.notes))).groups()  # type: ignore[union-attr]
    changed: Any = pl.train(**{**asked, option.replace("-", "_"): int(value)})
    before, after = (result.rows[-1] if "workers" in asked else result for result in (answer, changed))
    assert after.fits
    assert after.throughput_per_s == pytest.approx(float(per_s.replace(",", "")), rel=1e-3)
    assert after.throughput_per_s / before.throughput_per_s == pytest.approx(float(ratio), abs=0.006)
    assert not any(map(LARGER.match, changed.notes))


def test_sizes_that_do_not_divide_the_batch_are_not_named() -> None:
    """Each of four replicas has 12 samples: two, or four, but not eight or 64 make up its micro-batches."""
    answer: Any = pl.train(**IN_TENSORS)
    assert "with `--micro-batch 4`" in next(note for note in answer.notes if LARGER.match(note))


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


def test_remedies_on_several_devices_are_the_answers_of_their_options() -> None:
    asked: dict[str, Any] = {"gpu": "a100-sxm-80gb", "sequence_length": 2048, "batch_size": 16, "precision": "bf16"}
    alone = pl.train("llama-3.2-1b", **asked)
    sharded = {remedy.options: remedy for remedy in alone.memory.remedies if "zero-2" in remedy.options}
    (remedy,) = sharded.values()
    assert remedy.options == "--workers 8 --strategy zero-2 --micro-batch 16"
    step = pl.train("llama-3.2-1b", workers=8, strategy="zero-2", micro_batch=16, **asked)[0]
    assert remedy.total_bytes == int(step.memory_bytes)
    assert remedy.time_ratio == pytest.approx(step.time_s / alone.time_s)


def test_the_largest_micro_batch_is_on_a_line() -> None:
    """10 GB, and 3 GB more with each sample: 22.5 GB hold four samples, and 12 GB none."""
    assert _largest_by_line(lambda samples: 10e9 + 3e9 * samples, 22.5e9) == 4
    assert _largest_by_line(lambda samples: 10e9 + 3e9 * samples, 13e9) == 1
    assert _largest_by_line(lambda samples: 10e9 + 3e9 * samples, 12e9) is None


@pytest.mark.parametrize(
    ("network", "asked"),
    [
        ("qwen3-30b-a3b", {"gpu": "a100-sxm-80gb", "sequence_length": 32768, "tensor": 2}),
        ("llama-3-70b", {"gpu": "h100-sxm", "sequence_length": 4096}),
        ("mixtral-8x7b", {"gpu": "a100-sxm-80gb", "sequence_length": 8192}),
    ],
)
def test_three_changes_are_named_where_no_two_are_enough(network: str, asked: dict[str, Any]) -> None:
    """Given as the note writes them, they fit and need what it says; without any one of the three nothing fits."""
    asked = {"workers": 2, "global_batch_size": 2, **asked}
    (note,) = [note for note in pl.train(network, **asked).rows[-1].notes if note.startswith("fits with")]
    options, memory_gb = re.findall(r"`([^`]+)` \(([\d.]+) GB and", note)[0]
    words = options.split()
    named = {name.strip("-").replace("-", "_"): value for name, value in zip(words[::2], words[1::2])}
    (changed,) = pl.train(network, **{**asked, **named}).rows
    assert changed.fits and changed.memory_bytes / 1e9 == pytest.approx(float(memory_gb), rel=5e-3)
    for name in ("recompute", "offload"):  # of each of the three cases
        (without,) = pl.train(network, **{**asked, **{key: value for key, value in named.items() if key != name}}).rows
        assert not without.fits

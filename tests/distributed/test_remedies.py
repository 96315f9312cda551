"""What makes a run fit that does not fit."""

from __future__ import annotations

import pytest

import paleo_lite as pl


def _remedies(**options: object) -> list[str]:
    table = pl.train("llama-3-70b", gpu="h100-sxm", **options)
    return [note for note in table.rows[-1].notes if "fit" in note and "workers" not in note]


def test_the_note_names_changes_that_do_fit() -> None:
    """The option that it names first, given as it is written, fits and needs what the note says."""
    (note,) = _remedies(workers=8, strategy="full-shard")
    assert note.startswith("fits with `--tensor 8 --communication sequence-parallel=yes` (")
    (row,) = pl.train(
        "llama-3-70b", gpu="h100-sxm", workers=8, strategy="full-shard", tensor=8, communication="sequence-parallel=yes"
    ).rows
    assert row.fits
    assert f"({row.memory_bytes / 1e9:.1f} GB" in note


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
    table = pl.train("llama-3-70b", gpu="h100-sxm", workers=2)
    (note,) = [note for note in table.rows[-1].notes if note.startswith("it does not fit with any two")]
    assert "use more devices" in note


@pytest.mark.parametrize("workers", [8, [4, 8]])
def test_the_headline_says_what_is_missing(workers: object) -> None:
    headline = str(pl.train("llama-3-70b", gpu="h100-sxm", workers=workers, strategy="full-shard")).splitlines()[0]
    assert "does not fit into memory: needs 148.8 GB, 84.03 GB usable" in headline

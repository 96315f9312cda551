"""Notes on bounds: how far a device may beat that of its data sheet.

Tests: timing/notes.py.
"""

from __future__ import annotations

import paleo_lite as pl


def test_a_bound_says_what_caches_and_clocks_leave_of_it() -> None:
    """TensorRT computes 44,238 images/s of ResNet-50 in int8 on an RTX 4090, whose cache holds most activations."""
    found = pl.predict("resnet50", gpu="rtx4090", precision="int8", batch_size=128, execution="folded")
    roofline = pl.predict(
        "resnet50", gpu="rtx4090", precision="int8", batch_size=128, execution="folded", time_model="roofline"
    )
    assert not found.is_forecast and found.time_s == found.bound_s < 128 / 44_238 < roofline.time_s
    # No less than the arithmetic takes at the clock that the board holds.
    assert found.bound_s > found.terms.compute_s.sum() / 1.06
    (note,) = {note for note in (*found.notes, *roofline.notes) if note.startswith("the roofline of")}
    assert "L2 cache of 72 MB" in note and "a clock 1.06 times" in note


def test_a_bound_keeps_nothing_in_the_cache_of_steps_of_generation() -> None:
    """The keys and values of 64 sequences are larger than any cache, and each is read once a step."""
    asked = {"gpu": "mi300x", "precision": "bf16", "phase": "decode", "batch_size": 64}
    times = [pl.predict("llama-3.1-8b", **asked, time_model=name).time_s for name in ("bound", "roofline")]
    assert times[0] == times[1]


def test_a_bound_without_cache_and_clock_on_record_has_no_note() -> None:
    found = pl.predict("vgg16", gpu="k40m", precision="fp32", time_model="roofline")
    assert not any("the roofline of" in note for note in found.notes)

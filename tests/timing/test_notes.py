"""Notes on bounds: how far a device may beat that of its data sheet.

Tests: timing/notes.py.
"""

from __future__ import annotations

import paleo_lite as pl


def test_a_bound_says_what_caches_and_clocks_leave_of_it() -> None:
    """TensorRT computes 44,238 images/s of ResNet-50 in int8 on an RTX 4090, whose cache holds most activations."""
    found = pl.predict("resnet50", gpu="rtx4090", precision="int8", batch_size=128, execution="folded")
    note = next(note for note in found.notes if note.startswith("the bound moves every activation"))
    fastest_s = 1e-3 * float(note.split()[-2])
    assert note.endswith(" ms") and fastest_s < 128 / 44_238 < found.time_s
    assert "L2 cache of 72 MB" in note and "a clock 1.06 times" in note
    # No less than the arithmetic takes at the clock that the board holds.
    assert fastest_s > found.terms.compute_s.sum() / 1.06


def test_a_bound_without_cache_and_clock_on_record_has_no_note() -> None:
    found = pl.predict("vgg16", gpu="k40m", precision="fp32", time_model="roofline")
    assert not any("the bound moves" in note for note in found.notes)

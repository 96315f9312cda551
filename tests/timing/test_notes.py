"""Notes on bounds: how far a device may beat that of its data sheet.

Tests: timing/notes.py.
"""

from __future__ import annotations

import re

import pytest

import paleo_lite as pl
from paleo_lite.machines import find_device
from paleo_lite.timing.notes import _notes_below_bound
from paleo_lite.units import format_si


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


def test_an_interval_below_the_arithmetic_of_the_data_sheet_has_a_note() -> None:
    """Convolutions of VGG-16 are bound by arithmetic; decoding by memory, and nothing was measured above its rate."""
    prediction = pl.predict("vgg16", gpu="k40m", precision="fp32", batch_size=32)
    assert prediction.interval[0] < prediction.bound_s < prediction.time_s
    (note,) = [note for note in prediction.notes if "the interval begins below" in note]
    assert f"{format_si(prediction.bound_s, 's')} of the data sheet" in note
    calm = pl.predict("llama-3.1-8b", gpu="t4", phase="decode", precision="fp16")
    assert calm.interval[0] >= 0.99 * calm.bound_s
    assert not any("the interval begins below" in note for note in calm.notes)


def test_no_note_on_what_the_highest_clock_allows() -> None:
    """Products of an H100 are listed at 1,830 MHz, and its highest clock is 1,980 MHz (hardware/h100-sxm.toml)."""
    device = find_device("h100-sxm")
    assert _notes_below_bound(1.1, 1830 / 1980, 1.0, device, "why") == []
    (note,) = _notes_below_bound(1.1, 0.97 * 1830 / 1980, 1.0, device, "why")
    assert note == "the interval begins below the 1 s of the data sheet, which is not a strict bound: why"


@pytest.mark.parametrize(
    ("network", "asked", "reason"),
    [
        ("vgg16", {"batch_size": 256}, "devices may clock higher, .*, and convolutions may multiply less"),
        ("gpt-oss-20b", {"phase": "decode", "batch_size": 16}, "tokens of real text may choose fewer experts"),
    ],
)
def test_an_interval_below_the_bound_has_a_reason_of_the_network(network: str, asked: dict, reason: str) -> None:
    """A language model has no convolutions, and the kernels of experts read those that tokens choose."""
    prediction = pl.predict(network, gpu="mi300x" if network == "gpt-oss-20b" else "k80-die", **asked)
    assert prediction.interval[0] < prediction.bound_s
    (note,) = [note for note in prediction.notes if note.startswith("the interval begins below")]
    assert re.search(f"not a strict bound: {reason}", note)


def test_several_devices_have_the_reason_of_their_network() -> None:
    """A step of VGG-16 on two K80 dies is by far convolutions."""
    table = pl.train("vgg16", gpu="k80-die", workers=2, link="pcie3-x16", batch_size=64)
    (note,) = [note for note in table.notes if "not a strict bound" in note]
    assert note.endswith("and convolutions may multiply less")


@pytest.mark.parametrize(("gpu", "limit", "is_sold_higher"), [("rtx4090", None, True), ("rtx4090", 450, False),
                                                              ("h100-sxm", None, False)])  # fmt: skip
def test_cards_of_makers_may_draw_more_than_the_data_sheet(gpu: str, limit: float | None, is_sold_higher: bool) -> None:
    """The limit of an RTX 4090 is 450 W (hardware/rtx4090.toml), and cards with 1.25 times that are sold."""
    prediction = pl.predict("vgg16", gpu=gpu, batch_size=256, precision="fp16", power_limit=limit)
    notes = [note for note in prediction.notes if "the interval of the power ends above the 450 W" in note]
    assert bool(notes) == is_sold_higher == (prediction.power_interval_w[1] > prediction.device.power_w)
    assert all("up to about 562 W" in note for note in notes)


@pytest.mark.parametrize(
    ("network", "gpu", "options", "is_said"),
    [
        ("resnet18", "a100-sxm-80gb", {}, True),
        ("resnet18", "a100-sxm-80gb", {"precision": "tf32"}, False),
        ("resnet18", "v100-sxm2", {}, False),  # tensor cores of Volta have no tf32
        ("vit_b_16", "a100-sxm-80gb", {}, False),  # whose products of matrices stay in fp32
    ],
)
def test_convolutions_that_pytorch_computes_in_tf32_are_named(network, gpu, options, is_said) -> None:
    """`torch.backends.cudnn.allow_tf32` is True by default, `torch.backends.cuda.matmul.allow_tf32` False (PyTorch)."""
    notes = pl.predict(network, gpu=gpu, **options).notes
    assert any("PyTorch computes convolutions in tf32" in note for note in notes) is is_said

"""Input pipelines of several devices.

Tests: distributed/scale.py.
"""

from __future__ import annotations

import pytest

from asked import scaling
from paleo_lite.distributed.request import Feed
from paleo_lite.errors import BadValue

ASKED = {"gpu": "k80-die", "topology": "4x @ pcie3, 2 nodes @ ethernet20", "time_model": "roofline", "batch_size": 32}


def test_slow_decoding_limits_the_step() -> None:
    """4 devices with 32 samples each at 100 samples/s: 1.28 s per step, on one node and on two."""
    for workers in (4, 8):
        row = scaling("resnet50", workers=[workers], feed=Feed(decode="100/s"), **ASKED)[0]
        assert row.time_s == pytest.approx(4 * 32 / 100)
        assert row.limited_by == "input: decode"
        assert row.input_s == pytest.approx(row.time_s - row.compute_s - row.exposed_s - row.update_s)


def test_fast_storage_does_not_limit_the_step() -> None:
    free, fed = (scaling("resnet50", workers=[8], **ASKED, **more)[0] for more in ({}, {"feed": Feed("nvme")}))
    assert fed == free
    slow = scaling("resnet50", workers=[8], feed=Feed("5 MB/s"), **ASKED)[0]
    assert slow.time_s == pytest.approx(4 * 32 * 110e3 / 5e6)
    assert slow.limited_by == "input: storage"


def test_pageable_copies_of_all_devices_are_serial() -> None:
    """AlexNet, 512 images of 602 kB for each of 4 devices, at 5.5 GB/s: 0.224 s before each step."""
    free, fed = (scaling("alexnet", workers=[4], **{**ASKED, "batch_size": 512}, feed=Feed(pageable=pageable))[0]
                 for pageable in (False, True))  # fmt: skip
    assert fed.time_s - free.time_s == pytest.approx(4 * 512 * 3 * 224 * 224 * 4 / 5.5e9)
    assert (fed.bound_s, fed.limited_by) == (free.bound_s, "input: copy")


def test_invalid_decode_rates() -> None:
    for wrong in ("0/s", "-5", "x", "inf", "3 GB/s"):
        with pytest.raises(BadValue, match="`--feed decode` must be a number of samples per second > 0"):
            scaling("resnet50", workers=[8], feed=Feed(decode=wrong), **ASKED)

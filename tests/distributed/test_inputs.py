"""Several devices that wait for their samples.

Tests: distributed/scale.py.
"""

from __future__ import annotations

import pytest

import paleo_lite
from paleo_lite.errors import BadValue

ASKED = {"gpu": "k80-die", "topology": "4x @ pcie3, 2 nodes @ ethernet20", "time_model": "roofline", "batch_size": 32}


def test_a_node_that_decodes_too_little_sets_the_pace() -> None:
    """4 devices of 32 samples, 100 a second: 1.28 s a step, whatever the device takes; two nodes as one."""
    for workers in (4, 8):
        row = paleo_lite.scale("resnet50", workers=[workers], decode="100/s", **ASKED)[0]
        assert row.time_s == pytest.approx(4 * 32 / 100)
        assert row.limited_by == "input: decode"
        assert row.input_s == pytest.approx(row.time_s - row.compute_s - row.exposed_s - row.update_s)


def test_storage_that_keeps_up_is_not_waited_for() -> None:
    free, fed = (paleo_lite.scale("resnet50", workers=[8], **ASKED, **more)[0] for more in ({}, {"storage": "nvme"}))
    assert fed == free
    slow = paleo_lite.scale("resnet50", workers=[8], storage="5 MB/s", **ASKED)[0]
    assert slow.time_s == pytest.approx(4 * 32 * 110e3 / 5e6)
    assert slow.limited_by == "input: storage"


def test_one_process_copies_for_all_devices_in_turn() -> None:
    """AlexNet, 512 images of 602 kB for each of 4 devices, at 5.5 GB/s: 0.224 s before each step."""
    free, fed = (paleo_lite.scale("alexnet", workers=[4], **{**ASKED, "batch_size": 512}, pageable=said)[0]
                 for said in (False, True))  # fmt: skip
    assert fed.time_s - free.time_s == pytest.approx(4 * 512 * 3 * 224 * 224 * 4 / 5.5e9)
    assert (fed.bound_s, fed.limited_by) == (free.bound_s, "input: copy")


def test_what_is_no_feeding() -> None:
    for wrong in ("0/s", "-5", "x", "inf", "3 GB/s"):
        with pytest.raises(BadValue, match="--decode must be samples a second of a node"):
            paleo_lite.scale("resnet50", workers=[8], decode=wrong, **ASKED)

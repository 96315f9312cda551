"""`Machine`: the rates of a device at a clock, against data sheets.

Tests: machines/registry.py.
"""

from __future__ import annotations

import pytest

from paleo_lite.errors import UnknownPrecision
from paleo_lite.machines import Machine, find_device
from paleo_lite.timing import PeakModel, Workload, predict


def test_products_go_by_the_fastest_unit_and_all_else_by_the_vector_units():
    """NVIDIA's V100 data sheet: 125 TFLOP/s of tensor cores, 15.7 of fp32, 7.8 of fp64, 900 GB/s."""
    v100 = Machine(find_device("v100-sxm2"))
    assert v100.peak("fp16").per_s == 125e12
    assert v100.vector_peak("fp16").per_s == v100.peak("fp32").per_s == 15.7e12
    assert v100.vector_peak("fp64").per_s == 7.8e12
    assert v100.device.bandwidth_bytes_per_s == 900e9


def test_clock_and_unit_of_a_machine():
    """GK210 of a K80: 2,496 lanes of 2 FLOP at 560 and at 875 MHz."""
    die = find_device("k80-die")
    assert Machine(die, clock="base").peak("fp32").per_s == pytest.approx(2 * 2496 * 560e6, rel=0.01)
    assert Machine(die, clock="boost").peak("fp32").per_s == pytest.approx(2 * 2496 * 875e6, rel=0.01)
    assert Machine(find_device("v100-sxm2"), unit="vector").peak("fp16").peak.unit == "vector"
    with pytest.raises(UnknownPrecision, match="no fp16"):
        Machine(die).peak("fp16")


def test_board_with_two_devices_is_noted():
    notes = predict(Workload.from_flops(1e9), Machine(find_device("k80")), PeakModel()).notes
    (note,) = [note for note in notes if "board" in note]
    assert "2 devices on one board" in note and "k80-die" in note

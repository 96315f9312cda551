"""The sustained clock: its formula by hand, its limits, and achievable rates that were published.

Tests: timing/power.py.
"""

from __future__ import annotations

import msgspec
import pytest

import paleo_lite as pl
from paleo_lite.errors import BadValue
from paleo_lite.machines import Machine, find_device, list_devices
from paleo_lite.machines.registry import limit_power
from paleo_lite.timing.calibrated import library_peak
from paleo_lite.timing.power import PowerModel, energy_j, node_nm_of, power_model, sustained_fraction
from paleo_lite.units import parse_quantity

MODEL = PowerModel(
    energy_j_per_flop={"vector": 10e-12, "tensor": 1e-12},
    node_exponent=1.0,
    clock_exponent=0.5,
    efficiency={"vector": 1.0, "tensor": 1.0},
    idle_share=0.2,
    deviation=0.1,
    devices=[],
    sources=[],
)


def rate_of(name, precision):
    return library_peak(Machine(find_device(name)), precision)


def test_a_limit_of_a_quarter_of_the_power_halves_the_clock():
    """At 7 nm 10 pJ per FLOP: 19.5 TFLOP/s of an A100 draw 195 W, and 80% of 60.9 W is a quarter of that."""
    rate = rate_of("a100-sxm-40gb", "fp32")
    assert node_nm_of(find_device("a100-sxm-40gb")) == 7
    device = limit_power(find_device("a100-sxm-40gb"), 195 / 4 / 0.8)
    fraction = sustained_fraction(device, rate, MODEL)
    assert rate.per_s == pytest.approx(19.5e12, rel=2e-3)
    assert fraction == pytest.approx(0.5, rel=2e-3)


def test_energy_follows_the_width_and_the_process():
    """Half the bits take half the energy; at 14 nm with an exponent of 1 a FLOP takes twice that of 7 nm."""
    assert MODEL.energy_per_flop_j("tensor", "fp8", 7) == MODEL.energy_per_flop_j("tensor", "fp16", 7) / 2
    assert MODEL.energy_per_flop_j("vector", "fp32", 14) == pytest.approx(20e-12)


def test_a_lower_limit_and_a_higher_clock_bind_more():
    device = find_device("t4")
    fractions = [
        sustained_fraction(limit_power(device, f"{watts} W"), rate_of("t4", "fp32")) for watts in (30, 70, 999)
    ]
    assert 0 < fractions[0] < fractions[1] < fractions[2] == 1
    slow = library_peak(Machine(device, "600 MHz"), "fp32")
    assert slow.per_s == pytest.approx(8.1e12 * 600 / 1590, rel=0.01)
    assert sustained_fraction(device, slow) > fractions[1]


@pytest.mark.parametrize("limit", ["0 W", "-3 W", "many", "300 GB"])
def test_an_invalid_power_limit_is_refused(limit):
    with pytest.raises(BadValue, match="`--power-limit` must be"):
        limit_power(find_device("t4"), limit)


def test_a_capped_card_and_a_locked_clock_take_longer():
    asked = {"gpu": "t4", "precision": "fp32", "batch_size": 8, "sequence_length": 128}
    free, capped = pl.predict("bert-base", **asked), pl.predict("bert-base", power_limit="35 W", **asked)
    locked = pl.predict("bert-base", clock="600 MHz", **asked)
    assert free.time_s < capped.time_s < 3 * free.time_s
    assert free.time_s < locked.time_s
    assert capped.energy_j < free.energy_j


@pytest.mark.parametrize("name", [device.id for device in list_devices() if device.measured])
def test_published_rates_of_matrix_products_are_within_the_sustained_clock(name):
    """``mamf-finder`` (Bekman, ml-engineering) and aiconfigurator: the best rate found is no more than sustained."""
    device = find_device(name)
    checked = 0
    for measured in device.measured:
        if not measured.startswith("gemm_"):
            continue
        precision = measured.removeprefix("gemm_")
        rate = library_peak(Machine(device), precision)
        found = parse_quantity(device.measured[measured].value, "OP/s" if precision == "int8" else "FLOP/s")
        assert found <= 1.05 * rate.per_s * sustained_fraction(device, rate)
        checked += 1
    if not checked:
        pytest.skip("no measured rate of matrix products")


@pytest.mark.parametrize("name", ["t4", "l4", "v100-sxm2", "h100-sxm"])
def test_energy_lies_between_idle_power_and_the_limit(name):
    device, rate = find_device(name), rate_of(name, "fp16")
    model, limit_w = power_model(), device.power_w
    idle = energy_j(device, rate, 0.0, 0.0, 2.0)
    assert idle == pytest.approx(2 * model.idle_share * limit_w)
    sustained = rate.per_s * sustained_fraction(device, rate)
    busy = energy_j(device, rate, 2 * sustained * model.efficiency[rate.peak.unit], 0.0, 2.0)
    assert idle < busy <= 2 * limit_w * (1 + 1e-9)


def test_devices_of_an_unknown_process_are_not_limited():
    device = msgspec.structs.replace(find_device("t4"), architecture="Unknown")
    assert sustained_fraction(device, rate_of("t4", "fp32")) == 1
    assert energy_j(device, rate_of("t4", "fp32"), 1e9, 1e9, 1.0) is None

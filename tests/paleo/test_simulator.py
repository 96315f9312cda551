"""PALEO's times on one device, against the tables that its release printed."""

from __future__ import annotations

import csv
import re

import numpy as np
import pytest

from measured import REFERENCES
from paleo_lite.architectures import find_network
from paleo_lite.errors import BadValue, UnknownName
from paleo_lite.paleo.layers import PASSES
from paleo_lite.paleo.simulator import DEVICES, find_paleo_device, make_simulator

TABLES = REFERENCES / "paleo_layers"
COLUMNS = dict(zip(("fwd", "bwd_data", "bwd_filter"), range(len(PASSES))))


@pytest.mark.needs_data
def test_every_layer_of_the_published_tables():
    """Eleven tables of the last revision, GEMM mode, PPP 1: arithmetic and memory of every layer and pass, to 1e-6."""
    tables = sorted(TABLES.glob("*.csv"))
    compared = 0
    for table in tables:
        name, device, batch = re.fullmatch(r"(.+)_(K40|TITAN_X)_b(\d+)_ppp1.0_gemm", table.stem).groups()
        layers = find_network(f"paleo_{name}").layers
        times = make_simulator(device, "pcie3", revision="last").times(layers, [int(batch)])
        places = {layer.name: place for place, layer in enumerate(layers)}
        for row in csv.DictReader(table.open()):
            if row["type"] == "input":
                continue
            for column, index in COLUMNS.items():
                got = [array[index, places[row["layer"]], 0] for array in times]
                expected = [float(row[f"{column}_{kind}_ms"]) for kind in ("comp", "mem")]
                np.testing.assert_allclose(got, expected, rtol=1e-6, err_msg=f"{table.name}: {row['layer']} {column}")
                compared += 2
    assert len(tables) == 11
    assert compared == 6 * (3 * 14 + 3 * 125 + 2 * 14 + 3 * 24)


def test_formulas_by_hand():
    """Dropout of 32 x 4096 on the K40 at a PPP of 0.5: FLOPs / peak, bytes in GiB over GB/s; and the least, a tick."""
    layers = find_network("paleo_alex_v2").layers
    dropout, softmax = ([layer.name for layer in layers].index(name) for name in ("dropout6", "softmax"))
    times = make_simulator("K40", "pcie3", ppp=0.5).times(layers, [1, 32])
    assert times.compute_ms[0, dropout, 1] == pytest.approx(32 * 4096 / 4290e9 * 1e3 / 0.5, rel=1e-12)
    assert times.memory_ms[0, dropout, 1] == pytest.approx(2 * 4 * 32 * 4096 / 2**30 / 288 * 1e3 / 0.5, rel=1e-12)
    tick = 1 / 745e6 * 1e3
    # One sample: 4096 FLOPs would take 1.9 ns; the clock ticks every 1.34 ns.
    assert times.compute_ms[0, dropout, 0] == pytest.approx(max(tick, 4096 / 4290e9 * 1e3 / 0.5), rel=1e-12)
    assert times.compute_ms[0, softmax, 0] == 0
    fast = make_simulator("K40", "pcie3", ppp=10.0).times(layers, [1])
    assert fast.compute_ms[0, dropout, 0] == pytest.approx(tick, rel=1e-12)


def test_overlap_is_the_maximum_of_compute_and_memory_time():
    times = make_simulator("K20X", "pcie3").times(find_network("paleo_nin").layers, [16, 64])
    for direction, passes in enumerate(([0], [1, 2])):
        compute, memory = times.compute_ms[passes].sum(0), times.memory_ms[passes].sum(0)
        assert times.layer_ms(concurrent=True)[direction] == pytest.approx(np.maximum(compute, memory))
        assert times.layer_ms()[direction] == pytest.approx(compute + memory)
    assert times.total_ms() == pytest.approx((times.compute_ms + times.memory_ms).sum((0, 1)))


def test_update_by_hand():
    """10^6 parameters on the Titan X: 2e6 FLOPs at 6144 GFLOP/s, three times 4e6 bytes at 336.5 "GB/s"."""
    titan = DEVICES["TITAN_X"]
    memory = 3 * 4e6 / 2**30 / 336.5 * 1e3
    assert titan.update_ms(4_000_000) == pytest.approx(2e6 / 6144e9 * 1e3 + memory, rel=1e-12)
    assert titan.update_ms(4_000_000, concurrent=True) == pytest.approx(memory, rel=1e-12)
    assert titan.update_ms(0) == 0


@pytest.mark.parametrize(
    "name, expected", [("TITAN_X", "TITAN_X"), ("titanx-maxwell", "TITAN_X"), ("k40m", "K40"), ("Tesla K80", "K80"),
                       ("i7-5930k", "CPU_I7"), ("GEFORCE_780_TI", "GEFORCE_780_TI")]
)  # fmt: skip
def test_devices_by_either_name(name, expected):
    assert find_paleo_device(name) is DEVICES[expected]


def test_other_devices_come_from_the_registry():
    """H100 SXM's data sheet: 67 TFLOP/s of fp32, 3.35 TB/s."""
    device = find_paleo_device("h100-sxm")
    assert (device.peak_gflops, device.bandwidth_gb_per_s) == pytest.approx((67_000, 3350), rel=0.01)
    with pytest.raises(UnknownName, match="no GPU is called 'k400'"):
        find_paleo_device("k400")


@pytest.mark.parametrize("ppp", [0, float("nan")])
@pytest.mark.parametrize("name", ["ppp", "ppp_comm"])
def test_an_impossible_ppp(name, ppp):
    with pytest.raises(BadValue, match="must be > 0"):
        make_simulator("K40", "pcie3", **{name: ppp})


def test_an_impossible_batch():
    with pytest.raises(BadValue, match="batch size must be an integer >= 1"):
        make_simulator("K40", "pcie3").times(find_network("paleo_nin").layers, [0])


@pytest.mark.parametrize("change", [{"revision": "middle"}, {"algorithm": "strassen"}])
def test_unknown_names(change):
    with pytest.raises(UnknownName, match=next(iter(change.values()))):
        make_simulator("K40", "pcie3", **change)

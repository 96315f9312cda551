"""Devices: published values, agreement with the reference table, peaks at a clock, names."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import get_args

import msgspec
import pytest

from measured import REFERENCES
from paleo_lite.errors import UnknownPrecision
from paleo_lite.machines import find_device, list_devices
from paleo_lite.machines.device import Device, LinkRegistry, Peak
from paleo_lite.text import normalize_name
from paleo_lite.units import parse_quantity

ROOT = Path(__file__).parents[2]


DEVICES = {device.id: device for device in list_devices()}  # read once for the tests of a process


def test_values_this_project_started_from():
    k40m, k80 = DEVICES["k40m"], DEVICES["k80"]
    assert k40m.find_peak("fp32").per_s == 4.29e12 and k40m.find_peak("fp32").clock == "base"
    assert k40m.bandwidth_bytes_per_s == 288e9
    assert k80.find_peak("fp32").per_s == 8.73e12 and k80.find_peak("fp64").per_s == 2.91e12
    assert k80.bandwidth_bytes_per_s == 480e9 and k80.memory_bytes == 24e9


# --- the reference table: column, and the corresponding field

IDS = {"k80-board": "k80", "mi250x-package": "mi250x"}
PEAKS = {  # column: (precision, unit, accumulate, clock); None where the column does not say
    "fp64": ("fp64", "vector", None, None),
    "fp64_tensor": ("fp64", "tensor", None, None),
    "fp32_base": ("fp32", "vector", None, "base"),
    "fp32_boost": ("fp32", "vector", None, "boost"),
    "tf32_tensor": ("tf32", "tensor", None, None),
    "fp16_vector": ("fp16", "vector", None, None),
    "fp16_tensor_fp32acc": ("fp16", "tensor", "fp32", None),
    "fp16_tensor_fp16acc": ("fp16", "tensor", "fp16", None),
    "bf16_tensor": ("bf16", "tensor", None, None),
    "fp8_tensor": ("fp8", "tensor", None, None),
    "int8_tops": ("int8", None, None, None),
}
FIGURES = {  # column: (figure of a device, unit, factor from the column's unit)
    "sms": (lambda d: d.cores.multiprocessors, "", 1),
    "fp32_cores": (lambda d: d.cores.fp32_lanes, "", 1),
    "base_mhz": (lambda d: d.clocks.base, "Hz", 1e6),
    "boost_mhz": (lambda d: d.clocks.boost, "Hz", 1e6),
    "tensor_mhz": (lambda d: d.clocks.tensor, "Hz", 1e6),
    "mem_gb": (lambda d: d.memory.capacity, "B", 1e9),
    "mem_bus_bits": (lambda d: d.memory.bus, "bit", 1),
    "mem_bw_gbs": (lambda d: d.memory.bandwidth, "B/s", 1e9),
    "l2_mb": (lambda d: d.memory.l2, "B", 1e6),
    "tdp_w": (lambda d: d.power, "W", 1),
    "pcie_gbs_per_dir": (lambda d: d.links[0].per_direction, "B/s", 1e9),
    "link_gbs_bidir_total": (lambda d: d.links[1].per_direction, "B/s", 0.5e9),
    "measured_read_bw_gbs": (lambda d: d.measured["read_bandwidth"], "B/s", 1e9),
    "measured_triad_bw_gbs": (lambda d: d.measured["triad_bandwidth"], "B/s", 1e9),
    "measured_gemm_bf16_tflops": (lambda d: d.measured["gemm_bf16"], "FLOP/s", 1e12),
}


def reference_rows() -> dict[str, dict[str, str]]:
    path = REFERENCES / "gpus.csv"
    with path.open(encoding="utf-8", newline="") as file:
        return {row["id"]: row for row in csv.DictReader(file)}


def number(text: str) -> float:
    """A cell; "2x384" is a product and the first of "12|24" is the version in the file."""
    first, _, factor = text.split("|", maxsplit=1)[0].partition("x")
    return float(first) * float(factor or 1)


@pytest.mark.needs_data
def test_every_reference_row_has_its_file():
    rows = reference_rows()
    assert len(rows) == 40 and {IDS.get(name, name) for name in rows} <= DEVICES.keys()


@pytest.mark.needs_data
@pytest.mark.parametrize("column", [*PEAKS, *FIGURES])
def test_figures_agree_with_the_reference_table(column):
    compared = 0
    for name, row in reference_rows().items():
        if not row[column]:
            continue
        device = DEVICES[IDS.get(name, name)]
        if column in PEAKS:
            precision, unit, accumulate, clock = PEAKS[column]
            matching = [
                peak.per_s
                for peak in device.peaks
                if peak.precision == precision
                and unit in (None, peak.unit)
                and clock in (None, peak.clock)
                and accumulate in (None, peak.accumulate)
            ]
            assert len(matching) == 1, (name, column)
            value, expected = matching[0], number(row[column]) * 1e12
        else:
            figure, unit, factor = FIGURES[column]
            value, expected = parse_quantity(figure(device).value, unit), number(row[column]) * factor
        assert value == pytest.approx(expected, rel=1e-3), (name, column)  # 8.73 of the data sheet against 8.736
        compared += 1
    assert compared > 0


# --- peaks at a clock


@pytest.mark.parametrize(
    ("name", "asked", "per_s", "scaled_from"),
    [
        ("k40m", {"precision": "fp32"}, 4.29e12, ""),
        ("k40m", {"precision": "fp32", "clock": "boost"}, 5.04e12, ""),
        ("k40m", {"precision": "fp64"}, 1.68e12 * 745 / 875, "boost"),  # listed at 875 MHz only
        ("k80", {"precision": "fp64", "clock": "base"}, 2.91e12 * 560 / 875, "boost"),
        ("h100-sxm", {"precision": "fp16"}, 989.4e12, ""),  # the tensor clock stands for boost
        ("h100-sxm", {"precision": "fp16", "unit": "vector"}, 133.8e12, ""),
        ("h100-sxm", {"precision": "fp16", "clock": "base"}, 989.4e12 * 1065 / 1830, "tensor"),
        ("rtx4090", {"precision": "fp16"}, 165.2e12, ""),  # sums in fp16 are faster, but nobody asked for them
        ("p4", {"precision": "int8"}, 21.8e12, ""),
    ],
)
def test_peak_at_a_clock(name, asked, per_s, scaled_from):
    rate = DEVICES[name].find_peak(**asked)
    assert rate.per_s == pytest.approx(per_s, rel=1e-12) and rate.scaled_from == scaled_from


@pytest.mark.parametrize(
    ("name", "asked", "message"),
    [
        ("k40m", {"precision": "bf16"}, "Tesla K40m has no bf16 peak: it has fp32 (vector), fp64 (vector)"),
        ("k40m", {"precision": "fp32", "unit": "tensor"}, "no fp32 (tensor) peak"),
        ("k20x", {"precision": "fp32", "clock": "boost"}, "has no boost clock on record"),
    ],
)
def test_missing_peak(name, asked, message):
    with pytest.raises(UnknownPrecision) as caught:
        DEVICES[name].find_peak(**asked)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("name", "precision", "sparse_per_s"),
    [
        # GeForce pages of nvidia.com, "AI TOPS": int8 and fp8 with sparsity; from Blackwell on fp4, twice that
        ("rtx4060", "int8", 242e12),
        ("rtx4060ti", "int8", 353e12),
        ("rtx4070", "int8", 466e12),
        ("rtx4070super", "int8", 568e12),
        ("rtx4070ti", "int8", 641e12),
        ("rtx4070tisuper", "int8", 706e12),
        ("rtx4080", "int8", 780e12),
        ("rtx4080super", "int8", 836e12),
        ("rtx5070ti", "int8", 1406e12 / 2),
        ("rtx5080", "int8", 1801e12 / 2),
        ("rtx5070", "fp4", 988e12),
        ("rtx5070ti", "fp4", 1406e12),
        ("rtx5080", "fp4", 1801e12),
        ("rtx5090", "fp4", 3352e12),
        # data sheets of the RTX PRO 6000 Blackwell, of the HGX B200 and the GB200 NVL72 per GPU
        ("rtx-pro-6000", "fp4", 4000e12),
        ("rtx-pro-6000-max-q", "fp4", 3511e12),
        ("b200", "fp4", 18e15),
        ("gb200", "fp4", 20e15),
        # data sheets of the A30 and of the RTX 6000 Ada
        ("a30", "fp16", 330e12),
        ("a30", "int8", 661e12),
        ("rtx-6000-ada", "fp8", 1457e12),
        # Jetson data sheets, of the GPU alone
        ("jetson-agx-orin-64gb", "int8", 170e12),
        ("jetson-orin-nano-8gb", "int8", 40e12),
        ("jetson-orin-nano-4gb", "int8", 20e12),
        ("jetson-orin-nano-super", "int8", 67e12),
    ],
)
def test_a_peak_is_half_of_the_sparse_rate_that_is_advertised(name, precision, sparse_per_s):
    assert DEVICES[name].find_peak(precision, "tensor").per_s == pytest.approx(sparse_per_s / 2, rel=0.025)


@pytest.mark.parametrize(
    ("name", "dense_per_s"),
    [
        ("b300", 108e15 / 8),  # NVIDIA's HGX platform page: 108 PFLOPS dense of eight
        ("gb300", 1080e15 / 72),  # NVIDIA's GB300 NVL72 page: 1,080 PFLOPS dense
        ("mi355x", 10.1e15),  # AMD's MI355X page: 10.1 PFLOPS in MXFP4
    ],
)
def test_dense_rates_in_fp4_without_a_sparse_rate_of_twice_as_much(name: str, dense_per_s: float) -> None:
    assert DEVICES[name].find_peak("fp4", "tensor").per_s == pytest.approx(dense_per_s, rel=0.01)


@pytest.mark.parametrize(("name", "tflops"), [("rtx3060", 51), ("rtx3070", 81), ("rtx3060ti", 65)])
def test_ampere_geforce_tensor_rate_with_sums_in_fp16(name, tflops):
    """NVIDIA's announcements print 101, 163 and 130 "Tensor-TFLOPS": fp16 with sparsity."""
    (peak,) = (p for p in DEVICES[name].peaks if p.precision == "fp16" and p.accumulate == "fp16")
    assert peak.per_s / 1e12 == pytest.approx(tflops, rel=0.01)
    assert DEVICES[name].find_peak("fp16").per_s == pytest.approx(peak.per_s / 2, rel=1e-3)


def test_unsupported_precisions_are_not_listed():
    """Apple's GPUs have no fp64 (metal-benchmarks); AMD took tf32 out of CDNA 4; Vega 20 has no matrix cores."""
    assert DEVICES["apple-m2"].precisions == ["fp32", "fp16"]
    assert "tf32" not in DEVICES["mi355x"].precisions
    assert {peak.unit for peak in DEVICES["mi60"].peaks} == {"vector"}
    assert DEVICES["b300"].find_peak("fp64").per_s < 0.05 * DEVICES["b200"].find_peak("fp64").per_s


def test_description_of_a_peak():
    assert DEVICES["k80"].find_peak("fp64").describe() == "fp64 vector peak 2.91 TFLOP/s at the boost clock"
    assert "scaled from the boost clock" in DEVICES["k40m"].find_peak("fp64").describe()
    assert "130 TOP/s" in DEVICES["t4"].find_peak("int8").describe()
    assert DEVICES["t4"].find_peak("fp32", clock="900MHz").describe() == (
        "fp32 vector peak 4.608 TFLOP/s at a clock of 900 MHz (scaled from the boost clock)"  # 8.141 x 900 / 1590
    )


def test_precisions_are_listed_widest_first():
    assert DEVICES["t4"].precisions == ["fp64", "fp32", "fp16", "int8"]


def test_a_misspelt_field_is_named():
    with pytest.raises(msgspec.ValidationError, match="acumulate"):
        msgspec.convert({"precision": "fp16", "acumulate": "fp32"}, type=Peak)


def parts_of(kind: type) -> set[type]:
    """Return a type of a file and those of its fields."""
    found = {kind}
    for field in msgspec.structs.fields(kind):
        types = [field.type]
        while types:
            part = types.pop()
            types += get_args(part)
            if isinstance(part, type) and issubclass(part, msgspec.Struct) and part not in found:
                found |= parts_of(part)
    return found


@pytest.mark.parametrize("kind", sorted(parts_of(Device) | parts_of(LinkRegistry), key=lambda kind: kind.__name__))
def test_an_unknown_field_is_refused_wherever_it_is(kind):
    with pytest.raises(msgspec.ValidationError, match=r"unknown field `gpus`|missing required field"):
        msgspec.convert({"gpus": 8}, type=kind)
    assert kind.__struct_config__.forbid_unknown_fields, f"{kind.__name__} ignores misspelt fields"


# --- names that drivers, profilers and published measurements use


@pytest.mark.parametrize(
    ("reported", "expected"),
    [
        ("Tesla K40m", "k40m"),
        ("Tesla K40c", "k40c"),
        ("Tesla K20c", "k20"),
        ("K80 (1 of 2 GPUs)", "k80-die"),
        ("M60 (1 of 2 GPUs)", "m60-die"),
        ("GeForce GTX TITAN X", "titanx-maxwell"),
        ("TITAN_X_MAXWELL", "titanx-maxwell"),
        ("TITAN X (Pascal)", "titanx-pascal"),
        ("TITAN Xp", "titan-xp"),
        ("GTX TITAN Black", "titan-black"),
        ("GTX TITAN (Kepler)", "titan-kepler"),
        ("P100-SXM2 (DGX-1)", "p100-sxm2"),
        ("Tesla P100-PCIE-16GB", "p100-pcie-16gb"),
        ("Tesla V100-SXM2-16GB", "v100-sxm2"),
        ("Tesla V100-PCIE-32GB", "v100-pcie-32gb"),
        ("NVIDIA TITAN V", "titan-v"),
        ("GeForce RTX 2080 Ti(1)", "rtx2080ti"),
        ("NVIDIA GeForce RTX 3090", "rtx3090"),
        ("NVIDIA RTX A6000", "rtx-a6000"),
        ("NVIDIA A100-SXM4-40GB", "a100-sxm-40gb"),
        ("NVIDIA A100-SXM4-80GB", "a100-sxm-80gb"),
        ("NVIDIA A100-PCIE-40GB", "a100-pcie-40gb"),
        ("NVIDIA A100 80GB PCIe", "a100-pcie-80gb"),
        ("NVIDIA H100 80GB HBM3", "h100-sxm"),
        ("NVIDIA H100 PCIe", "h100-pcie"),
        ("NVIDIA H100 NVL", "h100-nvl"),
        ("NVIDIA H200", "h200-sxm"),
        ("NVIDIA GH200 480GB", "gh200"),
        ("NVIDIA GB200", "gb200"),
        ("NVIDIA B200", "b200"),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", "rtx-pro-6000"),
        ("NVIDIA L40S", "l40s"),
        ("AMD Instinct MI300X", "mi300x"),
        ("MI25", "mi25"),
        ("Vega FE", "vega-fe"),
        ("GEFORCE_780_TI", "gtx780ti"),
        ("NVIDIA GeForce RTX 3060", "rtx3060"),
        ("NVIDIA GeForce RTX 4060 Ti", "rtx4060ti"),
        ("NVIDIA GeForce RTX 4070 SUPER", "rtx4070super"),
        ("NVIDIA GeForce RTX 5070 Ti", "rtx5070ti"),
        ("NVIDIA A30", "a30"),
        ("NVIDIA RTX 6000 Ada Generation", "rtx-6000-ada"),
        ("NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition", "rtx-pro-6000-max-q"),
        ("NVIDIA B300", "b300"),
        ("Jetson AGX Orin 64GB", "jetson-agx-orin-64gb"),
        ("Xavier NX", "jetson-xavier-nx"),
        ("MI60", "mi60"),
        ("AMD Instinct MI355X", "mi355x"),
        ("Intel Arc B580", "arc-b580"),
        ("Intel Arc Pro B60", "arc-pro-b60"),
        ("Apple M1", "apple-m1"),
        ("M2 Ultra", "apple-m2-ultra"),
        ("Apple M4 Max", "apple-m4-max"),
    ],
)
def test_reported_name_is_known(reported, expected):
    assert [name for name, device in DEVICES.items() if normalize_name(reported) in names(device)] == [expected]


@pytest.mark.parametrize("ambiguous", ["TITAN X", "K40", "P100", "V100", "A100", "H100", "RTX 6000", "Orin"])
def test_ambiguous_alias_is_not_assigned(ambiguous):
    assert not any(normalize_name(ambiguous) in names(device) for device in DEVICES.values())


def names(device: Device) -> set[str]:
    return {normalize_name(name) for name in (device.id, device.name, *device.aliases)}


@pytest.mark.parametrize(
    ("gpu", "reported"),
    [
        ("a100-sxm-80gb", 84_990_623_744),
        ("a100-sxm-40gb", 42_505_273_344),
        ("h100-sxm", 85_018_279_936),
        ("b200", 191_503_138_816),
        ("gb200", 189_471 * 2**20),
        ("b300", 275_040 * 2**20),
        ("gb300", 284_208 * 2**20),
        ("v100-sxm2", 16_945_512_448),
        ("mi300x", 206_141_652_992),
        ("l4", 23_034 * 2**20),
        ("l40s", 46_068 * 2**20),
        ("t4", 15_109 * 2**20),
        ("k80-die", 11_441 * 2**20),
    ],
)
def test_drivers_report_gibibytes(gpu: str, reported: int) -> None:
    """`totalGlobalMem` of published traces, and what nvidia-smi prints of cards whose error correction takes a part."""
    assert find_device(gpu).reported_memory_bytes == pytest.approx(reported, rel=0.015)

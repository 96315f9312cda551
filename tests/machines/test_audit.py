"""The shipped hardware files pass the audit, and the audit detects errors."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from paleo_lite.machines import list_devices
from paleo_lite.machines.audit import TENSOR_RATES, AuditFinding, audit_device, audit_links, audit_registry
from paleo_lite.machines.device import Device, LinkRegistry

HARDWARE = Path(__file__).parents[2] / "hardware"


def decode(name: str, text: str) -> Device:
    return msgspec.structs.replace(msgspec.toml.decode(text, type=Device), id=name)


DEVICES = {device.id: device for device in list_devices()}  # read once for the tests of a process
LINKS_TEXT = (HARDWARE / "links.toml").read_text("utf-8")
LINKS = msgspec.toml.decode(LINKS_TEXT, type=LinkRegistry)


def mutated(name: str, old: str, new: str) -> list[AuditFinding]:
    text = (HARDWARE / f"{name}.toml").read_text("utf-8")
    assert old in text, f"{name}.toml no longer holds {old!r}"
    return audit_device(decode(name, text.replace(old, new, 1)), DEVICES.get, LINKS)


def errors(findings: list[AuditFinding]) -> list[AuditFinding]:
    return [finding for finding in findings if finding.severity == "error"]


def test_shipped_files_have_no_unexplained_finding():
    assert errors(audit_registry(DEVICES.values(), LINKS)) == []


def test_tensor_units_multiply_matrices_of_powers_of_two():
    """Each white paper states this; rounding in a data sheet would hide an error of 1.

    In fp4 Blackwell Ultra has 1.5 times the rate of Blackwell (NVIDIA 2025, Inside NVIDIA Blackwell Ultra).
    """
    rates = {(capability, name): rate for capability, row in TENSOR_RATES.items() for name, rate in row.items()}
    assert rates.pop(("10.3", "fp4")) == 1.5 * rates["10.0", "fp4"]
    assert [place for place, rate in rates.items() if rate.bit_count() != 1] == []


def test_every_exception_is_a_sentence():
    peaks = [peak.audit_exception for device in DEVICES.values() for peak in device.peaks]
    for text in filter(None, [*peaks, *(device.memory.audit_exception for device in DEVICES.values())]):
        assert text.endswith(".") and len(text.split()) > 8, text


@pytest.mark.parametrize(
    ("name", "old", "new", "field", "message"),
    [
        # sources
        (
            "k40m",
            'value = "15", source = "board-spec"',
            'value = "15", source = "hearsay"',
            "cores.multi",
            "not declared",
        ),
        ("k40m", "[sources]", '[sources]\nspare = "a book"', "sources.spare", "not used by any figure"),
        # units
        ("k40m", '"288 GB/s"', '"288 GB"', "memory.bandwidth", "not in B/s"),
        ("k40m", '"288 GB/s"', '"288G"', "memory.bandwidth", "has no unit"),
        ("k40m", '"12 GB"', '"0 GB"', "memory.capacity", "not above 0"),
        ("k40m", '"745 MHz"', '"745 W"', "clocks.base", "not in Hz"),
        ("k40m", '"235 W"', '"235 J"', "power", "not in W"),
        ("k40m", '"384 bit"', '"384 B"', "memory.bus", "not in bit"),
        ("k40m", '"6.008 Gbit/s"', '"6.008 GB/s"', "memory.rate", "not in bit/s"),
        ("k40m", '"1.5 MB"', '"1.5 MHz"', "memory.l2", "not in B"),
        ("k40m", '"2880"', '"2880.5"', "cores.fp32_lanes", "is not an integer above 0"),
        ("t4", '"130 TOP/s"', '"130 TFLOP/s"', "peaks.int8", "not in OP/s"),
        # peaks against lanes, multiprocessors and clocks
        ("k40m", '"4.29 TFLOP/s"', '"5.04 TFLOP/s"', "peaks.fp32.vector.base", "2880 lanes x 2 x 745 MHz"),
        ("k40m", '"1.68 TFLOP/s"', '"1.9 TFLOP/s"', "peaks.fp64.vector", "875 MHz x 0.333"),
        ("k80-die", '"4.368 TFLOP/s"', '"8.73 TFLOP/s"', "peaks.fp32.vector.boost", "2496 lanes"),
        ("h100-sxm", '"989.4 TFLOP/s"', '"1978.9 TFLOP/s"', "peaks.fp16.tensor", "132 multiprocessors x 4096"),
        ("rtx4090", '"165.2 TFLOP/s"', '"330.3 TFLOP/s"', "peaks.fp16.tensor.boost.fp32", "128 multiprocessors x 512"),
        ("a10", '"62.5 TFLOP/s"', '"31.2 TFLOP/s"', "peaks.tf32.tensor", "72 multiprocessors x 512"),
        ("h100-sxm", 'capability = "9.0"', 'capability = "3.9"', "peaks.tf32", "no tensor rate of 3.9"),
        ("h100-sxm", "tensor = {", "# tensor = {", "peaks.tf32", "its clock, tensor, is not listed"),
        ("jetson-agx-orin-64gb", '"85.2 TOP/s"', '"170 TOP/s"', "peaks.int8.tensor", "16 multiprocessors x 4096"),
        ("mi355x", '"78.6 TFLOP/s"', '"157.3 TFLOP/s"', "peaks.fp64.tensor", "256 multiprocessors x 128"),
        ("arc-b580", '"218.7 TOP/s"', '"437.45 TOP/s"', "peaks.int8", "20 multiprocessors x 4096"),
        ("b300", '"2250 TFLOP/s"', '"4500 TFLOP/s"', "peaks.fp16", "148 multiprocessors x 8192"),
        ("mi300x", "audit_exception", "note", "peaks.fp32.vector", "is not 19456 lanes"),
        ("jetson-tx1", 'precision = "fp32"', 'precision = "bf16"', "peaks", "no fp32 vector peak"),
        ("h100-nvl", '"835.5 TFLOP/s"', '"989.4 TFLOP/s"', "peaks.fp16", "fp16 is 2.37 x tf32, not 2 x"),
        # exceptions have to explain something
        (
            "t4",
            '"65 TFLOP/s"',
            '"65 TFLOP/s"\naudit_exception = "It is so."',
            "peaks.fp16",
            "deviation that does not exist",
        ),
        ("k40m", "[[peaks]]", 'audit_exception = "It is so."\n\n[[peaks]]', "memory", "deviation that does not exist"),
        # memory, clocks, year, scope
        ("k40m", '"384 bit"', '"256 bit"', "memory.bandwidth", "256 bit x 6.008 Gbit/s"),
        ("k20x", 'default = "base"', 'default = "boost"', "clocks.default", "has no value"),
        ("k20", '"758 MHz"', '"658 MHz"', "clocks.base", "is above boost"),
        ("k40m", "year = 2013", "year = 1913", "year", "not a plausible release year"),
        ("k40m", 'scope = "die"', 'scope = "board"', "parts", "must name its parts"),
        # prices
        ("v100-sxm2", '"3.06 USD/h"', '"3.06"', "rent", "has no unit"),
        ("v100-sxm2", 'source = "skypilot-2024-01"', 'source = "hearsay"', "rent", "not declared"),
        ("v100-sxm2", "date = 2024-01-05", "date = 2003-01-05", "rent.date", "before the device"),
        ("v100-sxm2", "date = 2024-01-05", "date = 2999-01-05", "rent.date", "in the future"),
        ("k80", '"1.80 USD/h"', '"0.90 USD/h"', "rent", "not 2 x 0.90 USD/h"),
        # parts
        ("k80", '"480 GB/s"', '"240 GB/s"', "memory.bandwidth", "not 2 x 240 GB/s"),
        ("k80", '"4992"', '"2496"', "cores.fp32_lanes", "not 2 x 2496"),
        ("mi250x", '"128 GB"', '"64 GB"', "memory.capacity", "not 2 x 64 GB"),
        ("mi250x", '"383 TFLOP/s"', '"191.5 TFLOP/s"', "peaks.fp16.tensor", "not 2 x 191.5"),
        ("k80", 'device = "k80-die"', 'device = "k80-dye"', "parts.device", "device 'k80-dye' does not exist"),
        # links and measurements
        ("k40m", '"pcie3-x16"', '"pcie9-x16"', "links.pcie9-x16", "no such link"),
        ("k40m", '"15.75 GB/s"', '"31.5 GB/s"', "links.pcie3-x16", "not the 15.75 GB/s"),
        ("l40", '"844 GB/s"', '"944 GB/s"', "measured.read_bandwidth", "above the peak"),
        ("a100-sxm-40gb", '"271.2 TFLOP/s"', '"371.2 TFLOP/s"', "measured.gemm_bf16", "above the peak"),
    ],
)
def test_audit_catches(name, old, new, field, message):
    found = errors(mutated(name, old, new))
    assert any(f.device == name and f.field.startswith(field) and message in f.message for f in found), found


def test_an_explained_deviation_is_reported_but_no_error():
    findings = audit_device(DEVICES["mi300x"])
    assert [(f.field, f.severity) for f in findings] == [("peaks.fp32.vector.boost", "explained")]
    assert "packed" in findings[0].message


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('source = "sata-io"', 'source = "hearsay"', "not declared"),
        ("[sources]", '[sources]\nspare = "a book"', "not used by any figure"),
        ('"15.75 GB/s"', '"16 GB/s"', "not 16 x pcie3"),
        ('"56.25 GB/s"', '"112.5 GB/s"', "not 4 x nvlink3-ga102"),
        ('"0.5 us"', '"0.5 GB"', "not in s"),
        ('"86 IOPS"', '"86 GB"', "not in IOPS"),
        ('"86 IOPS"', '"0 IOPS"', "not above 0"),
        ('aliases = ["pcie2"]', 'aliases = ["PCIe-3"]', "also belongs to"),
    ],
)
def test_audit_of_links_catches(old, new, message):
    assert old in LINKS_TEXT
    found = errors(audit_links(msgspec.toml.decode(LINKS_TEXT.replace(old, new, 1), type=LinkRegistry)))
    assert any(message in finding.message for finding in found), found


def test_a_name_belongs_to_one_device():
    twins = [msgspec.structs.replace(DEVICES[name], aliases=["K40"]) for name in ("k40m", "k40c")]
    found = errors(audit_registry(twins, LINKS))
    assert [(f.device, f.field) for f in found] == [("k40c", "aliases")] and "'k40'" in found[0].message

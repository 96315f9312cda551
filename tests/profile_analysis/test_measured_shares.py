"""Shares of peak that Nsight Compute measured, in the efficiency of a profile."""

from __future__ import annotations

from pathlib import Path

import pytest

from measured import DATA
from paleo_lite import efficiency
from paleo_lite.profile_analysis.measured_shares import MeasuredShare, measure_shares, share_of_kernels
from paleo_lite.profiles.detect import open_profile

RULE = "    ----------------------- ----------- ------------"
SECTION = (("Metric Name", "Metric Unit", "Metric Value"),)


def printed_kernel(name: str, duration_us: float, dram: float, compute: float | None) -> str:
    """Return a kernel as ncu prints its Speed of Light section, on a device of compute capability 8.9."""
    rows = [("DRAM Throughput", "%", f"{dram}"), ("Duration", "usecond", f"{duration_us}")]
    if compute is not None:
        rows.append(("Compute (SM) Throughput", "%", f"{compute}"))
    lines = ["    {:<23} {:>11} {:>12}".format(*row) for row in (*SECTION, *rows)]
    lines = [RULE, lines[0], RULE, *lines[1:], RULE]
    title = f"  {name} (32, 1, 1)x(128, 1, 1), Context 1, Stream 7, Device 0, CC 8.9"
    return "\n".join([title, "    Section: GPU Speed Of Light Throughput", *lines, ""])


def write(folder: Path, *kernels: tuple[str, float, float, float | None]) -> Path:
    path = folder / "ncu.txt"
    path.write_text("\n".join(printed_kernel(*kernel) for kernel in kernels))
    return path


def test_shares_are_means_over_the_time_of_the_kernels(tmp_path: Path) -> None:
    path = write(tmp_path, ("copy", 30.0, 90.0, 20.0), ("product", 10.0, 10.0, 80.0), ("copy", 10.0, 50.0, 60.0))
    shares = measure_shares(open_profile(path))
    copy = MeasuredShare(memory=(90 * 30 + 50 * 10) / 40 / 100, compute=(20 * 30 + 60 * 10) / 40 / 100, time_s=40e-6)
    assert shares["copy"].memory == pytest.approx(copy.memory)
    assert shares["copy"].compute == pytest.approx(copy.compute)
    assert shares["copy"].time_s == pytest.approx(copy.time_s)
    both = share_of_kernels(shares, ("copy", "product"))
    assert both is not None and both.memory == pytest.approx((90 * 30 + 50 * 10 + 10 * 10) / 50 / 100)
    assert share_of_kernels(shares, ("copy", "other")) is None


def test_operations_are_bound_by_what_was_measured(tmp_path: Path) -> None:
    path = write(tmp_path, ("copy", 30.0, 90.0, 20.0), ("product", 20.0, 10.0, 80.0), ("tiny", 10.0, 5.0, 8.0))
    row = efficiency(path, gpu="rtx4090").to_dict()["rows"][0]
    found = {operator["op"]: (operator["bound"], operator["of_roofline"]) for operator in row["operators"]}
    assert found == {
        "copy": ("memory", pytest.approx(0.9)),
        "product": ("compute", pytest.approx(0.8)),
        "tiny": (None, pytest.approx(0.08)),
    }
    assert row["bandwidth_efficiency"] == pytest.approx((90 * 30 + 10 * 20 + 5 * 10) / 60 / 100)


def test_memory_alone_is_enough(tmp_path: Path) -> None:
    path = write(tmp_path, ("copy", 30.0, 90.0, None), ("product", 20.0, 10.0, 80.0))
    shares = measure_shares(open_profile(path))
    assert shares["copy"].compute is None and shares["copy"].bound() == ("memory", pytest.approx(0.9))
    both = share_of_kernels(shares, shares)
    assert both is not None and both.compute is None


def test_the_capability_that_ncu_prints_must_be_that_of_the_device(tmp_path: Path) -> None:
    path = write(tmp_path, ("copy", 30.0, 90.0, 20.0))
    refused = efficiency(path, gpu="h100-sxm")
    assert refused.device_conflict == ("it was taken on a device of compute capability 8.9, H100 SXM5 80GB has 9.0")
    assert refused.to_dict()["rows"][0]["bandwidth_efficiency"] is None


@pytest.mark.needs_data
def test_a_paged_attention_reads_at_the_rate_that_ncu_printed() -> None:
    """In a public report, ncu prints 94.59% for the kernel of 272.16 us, and 4.59% for that of 3.36 us."""
    row = efficiency(DATA / "profiles/small_texts/ncu_text.txt", gpu="rtx4090").to_dict()["rows"][0]
    first, second = row["operators"]
    assert (first["bound"], first["of_roofline"]) == ("memory", pytest.approx(0.9459))
    assert (second["bound"], second["of_roofline"]) == (None, pytest.approx(0.0459))
    assert row["bandwidth_efficiency"] == pytest.approx((94.59 * 272.16 + 4.59 * 3.36) / (272.16 + 3.36) / 100)

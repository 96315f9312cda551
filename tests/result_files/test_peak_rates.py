"""Rates above all peaks of a device: NVIDIA's data of the GeForce RTX 4090 have 660.6 TOPS of int8 without sparsity.

NVIDIA's data sheet of the H100 SXM5 has a limit of up to 700 W.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from paleo_lite.result_files.findings import Findings
from paleo_lite.result_files.peak_rates import doubt_impossible_rates


@pytest.mark.parametrize(
    ("kind", "gpu", "tflops", "doubts"),
    [
        (
            "kernel",
            "NVIDIA GeForce RTX 4090",
            11_790.0,
            ("11.79 PFLOP/s are 17.8 times the fastest peak of GeForce RTX 4090 (660.6 TFLOP/s): "
             "the time or the FLOPs are wrong",),
        ),
        ("kernel", "NVIDIA GeForce RTX 4090", 1_300.0, ()),  # with sparsity
        ("kernel", "a device of the user", 11_790.0, ()),
        ("step", "NVIDIA GeForce RTX 4090", 11_790.0, ()),  # of many devices
    ],
)  # fmt: skip
def test_rates_of_kernels_above_all_peaks_are_doubted(kind: str, gpu: str, tflops: float, doubts: tuple) -> None:
    findings = Findings(Path("file.txt"), "ggml-operators", "ggml's test-backend-ops")
    findings.record(gpu=gpu)
    findings.add(kind, flops_per_s=tflops * 1e12)
    doubt_impossible_rates(findings)
    assert findings.readings[0].doubts == doubts


@pytest.mark.parametrize(
    ("watts", "limit_w", "is_doubted"), [(900.0, None, True), (720.0, None, False), (900.0, 900.0, False)]
)
def test_watts_above_the_limit_of_a_device_are_doubted(watts: float, limit_w: float | None, is_doubted: bool) -> None:
    findings = Findings(Path("power.csv"), "nvidia-smi", "nvidia-smi")
    findings.record(gpu="NVIDIA H100 80GB HBM3")
    findings.add("power", power_w=watts, power_limit_w=limit_w)
    doubt_impossible_rates(findings)
    assert ["may draw" in doubt for doubt in findings.readings[0].doubts] == [True] * is_doubted


@pytest.mark.parametrize(("figures", "said"), [
    ({"mfu": 1.925}, "an MFU of 192.5% is above the peak"),
    ({"memory_bytes": 167.6e9}, "are above the"),
    ({"mfu": 0.35, "memory_bytes": 84.9e9}, None),  # 79.1 GiB, as drivers report the 80 GB
])  # fmt: skip
def test_shares_and_memory_of_steps_are_doubted(figures: dict[str, float], said: str | None) -> None:
    findings = Findings(Path("run.log"), "torchtitan", "torchtitan")
    findings.record(gpu="NVIDIA H100 80GB HBM3")
    findings.add("step", phase="training", **figures)
    doubt_impossible_rates(findings)
    assert [said in doubt for doubt in findings.readings[0].doubts] == [True] * (said is not None)

"""Rates above all peaks of a device: NVIDIA's data of the GeForce RTX 4090 have 660.6 TOPS of int8 without sparsity."""

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

"""Reasons of rates above a peak, with names of real kernels and the figures of data sheets.

Tests: profile_analysis/above_peak.py.
"""

from __future__ import annotations

import pytest

from paleo_lite.machines import find_device
from paleo_lite.profile_analysis.above_peak import explain_bytes_above_peak, explain_flops_above_peak

V100 = find_device("v100-sxm2")
FP32 = V100.find_peak("fp32")
WINOGRAD = "volta_scudnn_winograd_128x128_ldg1_ldg4_relu_tile148t_nt_v1"
GEMM = "volta_sgemm_128x64_nn"


@pytest.mark.parametrize(
    ("share", "kernels", "options", "reason"),
    [
        (1.0, [WINOGRAD], {}, ""),
        (1.57, [WINOGRAD, GEMM], {}, "Winograd kernels need fewer multiplications"),
        (1.57, ["fft2d_r2c_32x32"], {}, "FFT kernels need fewer multiplications"),
        (6.0, ["volta_h884gemm_256x128_ldg8_nn"], {}, "kernels use tensor cores, but the peak is the fp32 vector peak"),
        (1.04, [GEMM], {}, "the clock was probably above the boost clock of the data sheet"),
        (1.8, [GEMM], {"device_count": 2}, "the rate is a sum over 2 devices"),
        (1.8, ["sm80_xmma_gemm_f16f16_f16f32_f32_sptensorop"], {}, "sparse kernels skip zeros"),
        (2.5, [GEMM], {"counted_by_profiler": True}, "the FLOP count in the profile is probably too high"),
        (2.5, [GEMM], {}, "check `--gpu` and `--precision`"),
    ],
)
def test_reasons_for_flops(share, kernels, options, reason):
    explained = explain_flops_above_peak(share, FP32, kernels, **{"counted_by_profiler": False, **options})
    assert reason in explained and bool(explained) == bool(reason)


def test_reasons_for_bytes():
    """A V100 has 6 MB of L2 cache (NVIDIA's V100 whitepaper)."""
    assert explain_bytes_above_peak(1e6, 0.99, V100) == ""
    assert "read from the L2 cache of 6" in explain_bytes_above_peak(1e6, 1.5, V100)
    assert "reused in caches" in explain_bytes_above_peak(1e9, 1.5, V100)

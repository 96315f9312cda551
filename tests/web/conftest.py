"""Profiles that the tests of the page upload, in the documented formats of the tools."""

from __future__ import annotations

import io
import json
from functools import cache

import pytest


@pytest.fixture(scope="session", autouse=True)
def _packages_read_once():
    """Cache the metadata of installed packages, which Streamlit reads for each page that is tested without browser."""
    try:
        from streamlit.components.v2 import manifest_scanner
    except ImportError:
        yield
        return
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(manifest_scanner, "scan_component_manifests", cache(manifest_scanner.scan_component_manifests))
        yield


@pytest.fixture(scope="session")
def pyprof_profile() -> bytes:
    """pyprof's columns: 4.29 GFLOP in 2 ms are half of the Tesla K40m's 4.29 TFLOP/s; half of the time is no FLOPs."""
    pa = pytest.importorskip("pyarrow")
    import pyarrow.parquet as pq

    columns = {
        "Kernel": ["cudnn::detail::implicit_convolve_sgemm", "cudnn::detail::dgrad_alg1_engine", "elementwise_kernel"],
        "Sil(ns)": [2_000_000, 3_000_000, 1_000_000],
        "FLOPs": [4.29e9, 0.0, 1e6],
        "Bytes": [1e6, 0.0, 1.44e8],
        "Direction": ["fprop", "bprop", "fprop"],
        "Op": ["conv2d", "conv2d", "relu"],
    }
    out = io.BytesIO()
    pq.write_table(pa.table(columns), out)
    return out.getvalue()


@pytest.fixture(scope="session")
def trace_profile() -> bytes:
    """A Chrome trace of the PyTorch profiler: three kernels on one stream, 10 + 30 + 60 us, with pauses of 10 us."""
    events = []
    start = 1000
    for name, microseconds in (
        ("volta_sgemm_128x64_nn", 10),
        ("void at::native::vectorized_elementwise_kernel<4>(int)", 30),
        ("cudnn::bn_fw_tr_1C11_kernel_NCHW", 60),
    ):
        args = {"stream": 7, "device": 0, "correlation": start, "grid": [8, 1, 1], "block": [64, 1, 1]}
        events.append(
            {"ph": "X", "cat": "kernel", "name": name, "pid": 0, "tid": 7, "ts": start, "dur": microseconds,
             "args": args}
        )  # fmt: skip
        start += microseconds + 10
    return json.dumps({"schemaVersion": 1, "traceEvents": events}).encode()

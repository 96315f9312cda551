"""AMD's own tuning logs (MIT): convolutions as MIOpen's find database times them, matrix products of rocBLAS."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

from paleo_lite.counting import Layer
from paleo_lite.machines import Machine, find_device

from ..tables import rows_of
from .published import hash_of
from .timed import LayerTime, Operation, linear

MODERN = Path("..") / "modern"
SAMPLE = 200
"""Rows kept of each device, precision and pass."""

_MIOPEN = {
    "Instinct MI50 class": "mi50",
    "Instinct MI100": "mi100",
    "Instinct MI210 / MI250 GCD": "mi210",
    "Instinct MI300X": "mi300x",
}
_ROCBLAS = {
    "MI50/MI60 (gfx906)": "mi50",
    "MI100 (gfx908)": "mi100",
    "MI250X GCD / MI210 family (gfx90a)": "mi210",
}
"""Devices by what the tables call them; of Vega and Polaris cards no table says which."""

_PASSES = {"forward": "forward", "backward_data": "backward_data", "backward_weights": "backward_weight"}
_PRECISIONS = ("fp32", "fp16", "bf16", "fp64")


def amd_operations(measured: Path) -> list[LayerTime]:
    """A sample of both tables, the shapes whose hashes are smallest.

    Raises
    ------
    BadFile
        If the folder beside `measured` does not hold them.
    """
    groups: dict[tuple[str, ...], list[tuple[int, LayerTime]]] = defaultdict(list)
    for row in rows_of(measured / MODERN / "conv_amd_miopen.csv.gz"):
        if row["gpu"] in _MIOPEN and row["layout"] == "NCHW":
            found = _convolution(row)
            groups[found.gpu, found.precision, found.phase].append((hash_of(found.shape), found))
    for row in rows_of(measured / MODERN / "gemm_amd_rocblas.csv.gz"):
        if row["gpu"] in _ROCBLAS and row["dtype"] in _PRECISIONS:
            found = _product(row)
            groups[found.gpu, found.precision, "product"].append((hash_of(found.shape), found))
    return [
        each
        for _, rows in sorted(groups.items())
        for _, each in sorted(rows, key=lambda pair: (pair[0], pair[1].time_s))[:SAMPLE]
    ]


def _convolution(row: dict[str, str]) -> LayerTime:
    size = {name: int(row[name]) for name in
            ("batch", "in_channels", "height", "width", "out_channels", "kernel_h", "kernel_w", "pad_h", "pad_w",
             "stride_h", "stride_w", "dilation_h", "dilation_w", "groups")}  # fmt: skip
    out = tuple(
        (size[side] + 2 * size[f"pad_{of}"] - size[f"dilation_{of}"] * (size[f"kernel_{of}"] - 1) - 1)
        // size[f"stride_{of}"] + 1
        for side, of in (("height", "h"), ("width", "w"))
    )  # fmt: skip
    inputs, outputs, groups = size["in_channels"], size["out_channels"], size["groups"]
    layer = Layer(
        "conv", "conv2d", ((inputs, size["height"], size["width"]),), ((outputs, *out),),
        ((outputs, inputs // groups, size["kernel_h"], size["kernel_w"]),),
        attributes={"stride": [size["stride_h"], size["stride_w"]], "groups": groups},
    )  # fmt: skip
    part = _PASSES[row["pass"]]
    return LayerTime(
        _MIOPEN[row["gpu"]], row["dtype"], "MIOpen find-db", "conv", "conv", part, repr(sorted(size.items())) + part,
        size["batch"], float(row["time_ms"]) / 1e3, (Operation(layer, part),),
    )  # fmt: skip


def _product(row: dict[str, str]) -> LayerTime:
    """Of some GPUs the share of peak is given instead of a time."""
    m, n, k, batch = (int(row[name]) for name in ("m", "n", "k", "batch"))
    gpu, precision = _ROCBLAS[row["gpu"]], row["dtype"]
    peak = Machine(find_device(gpu)).peak(precision).per_s
    reached = float(row["gflops"]) * 1e9 if row["gflops"] else float(row["efficiency_percent_of_peak"]) / 100 * peak
    return LayerTime(
        gpu, precision, "rocBLAS", "gemm", "gemm", "product", f"{m} {n} {k} {batch} {row['transpose']}", m * batch,
        2 * m * n * k * batch / reached, (Operation(linear(k, n), "forward"),),
    )  # fmt: skip

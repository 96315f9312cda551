"""Reader of AMD's tuning logs (MIT): convolutions of MIOpen's find database, and matrix products of rocBLAS."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

from paleo_lite.counting import Layer
from paleo_lite.machines import Machine, find_device

from ..tables import rows_of
from .published import hash_of
from .timed import LayerTime, TimedOperation, linear

MODERN = Path("..") / "modern"
"""Folder of the tables, relative to that of the older ones."""

SAMPLE = 200
"""Number of rows sampled for each device, precision and pass."""

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
"""Ids of the devices in the tables; the models of Vega and Polaris cards are not given."""

_PASSES = {"forward": "forward", "backward_data": "backward_data", "backward_weights": "backward_weight"}
_PRECISIONS = ("fp32", "fp16", "bf16", "fp64")


def amd_operations(measured: Path) -> list[LayerTime]:
    """Read a sample of both tables: the shapes with the smallest hashes.

    Raises
    ------
    BadFile
        If ``../modern`` relative to `measured` does not contain the tables.
    """
    groups: dict[tuple[str, ...], list[tuple[int, LayerTime]]] = defaultdict(list)
    for row in rows_of(measured / MODERN / "conv_amd_miopen.csv.gz"):
        if row["gpu"] in _MIOPEN and row["layout"] == "NCHW":
            layer = _convolution(row)
            groups[layer.gpu, layer.precision, layer.phase].append((hash_of(layer.shape), layer))
    for row in rows_of(measured / MODERN / "gemm_amd_rocblas.csv.gz"):
        if row["gpu"] in _ROCBLAS and row["dtype"] in _PRECISIONS:
            layer = _product(row)
            groups[layer.gpu, layer.precision, "product"].append((hash_of(layer.shape), layer))
    sample: list[LayerTime] = []
    for _, rows in sorted(groups.items()):
        rows.sort(key=lambda pair: (pair[0], pair[1].time_s))
        sample += [layer for _, layer in rows[:SAMPLE]]
    return sample


_CONVOLUTION_SIZES = (
    "batch", "in_channels", "height", "width", "out_channels", "kernel_h", "kernel_w", "pad_h", "pad_w", "stride_h",
    "stride_w", "dilation_h", "dilation_w", "groups",
)  # fmt: skip


def _convolution(row: dict[str, str]) -> LayerTime:
    size = {name: int(row[name]) for name in _CONVOLUTION_SIZES}
    out = []
    for side, axis in (("height", "h"), ("width", "w")):
        window = size[f"dilation_{axis}"] * (size[f"kernel_{axis}"] - 1) + 1
        positions = size[side] + 2 * size[f"pad_{axis}"] - window
        out.append(positions // size[f"stride_{axis}"] + 1)
    inputs, outputs, groups = size["in_channels"], size["out_channels"], size["groups"]
    layer = Layer(
        "conv", "conv2d", ((inputs, size["height"], size["width"]),), ((outputs, *out),),
        ((outputs, inputs // groups, size["kernel_h"], size["kernel_w"]),),
        attributes={"stride": [size["stride_h"], size["stride_w"]], "groups": groups},
    )  # fmt: skip
    part = _PASSES[row["pass"]]
    return LayerTime(
        _MIOPEN[row["gpu"]], row["dtype"], "MIOpen find-db", "conv", "conv", part, repr(sorted(size.items())) + part,
        size["batch"], float(row["time_ms"]) / 1e3, (TimedOperation(layer, part),),
    )  # fmt: skip


def _product(row: dict[str, str]) -> LayerTime:
    """Read a matrix product; for some GPUs the table gives the fraction of the peak instead of a rate."""
    m, n, k, batch = (int(row[name]) for name in ("m", "n", "k", "batch"))
    gpu, precision = _ROCBLAS[row["gpu"]], row["dtype"]
    peak = Machine(find_device(gpu)).peak(precision).per_s
    achieved_per_s = (
        float(row["gflops"]) * 1e9 if row["gflops"] else float(row["efficiency_percent_of_peak"]) / 100 * peak
    )
    # The logs of each architecture were made on another computer.
    source, shape = f"rocBLAS {row['tensile_arch']}", f"{m} {n} {k} {batch} {row['transpose']}"
    return LayerTime(
        gpu, precision, source, "gemm", "gemm", "product", shape, m * batch,
        2 * m * n * k * batch / achieved_per_s, (TimedOperation(linear(k, n), "forward"),),
    )  # fmt: skip

"""Reader of DeepBench (Baidu, Apache-2.0): cuDNN convolutions with the fastest algorithm, and cuBLAS products."""

from __future__ import annotations

from paleo_lite.counting import Layer

from .timed import OperationReading, TimedOperation, linear

_PASSES = {"forward": "forward", "backward_data": "backward_data", "backward_weights": "backward_weight"}


def deepbench_convolution(row: dict[str, str]) -> OperationReading:
    """Read a convolution in one pass."""
    size = {name: int(row[name]) for name in
            ("N", "C", "H", "W", "K", "R", "S", "pad_h", "pad_w", "stride_h", "stride_w")}  # fmt: skip
    out = []
    for side, kernel, axis in (("H", "R", "h"), ("W", "S", "w")):
        positions = size[side] + 2 * size[f"pad_{axis}"] - size[kernel]
        out.append(positions // size[f"stride_{axis}"] + 1)
    layer = Layer(
        "conv", "conv2d", ((size["C"], size["H"], size["W"]),), ((size["K"], *out),),
        ((size["K"], size["C"], size["R"], size["S"]),), attributes={"stride": [size["stride_h"], size["stride_w"]]},
    )  # fmt: skip
    part = _PASSES[row["phase"]]
    return OperationReading(_source(row), "conv", "conv", part, size["N"], (TimedOperation(layer, part),))


def deepbench_product(row: dict[str, str]) -> OperationReading:
    """Read a product M x K by K x N as a linear layer over N samples."""
    rows, columns, inner = int(row["M"]), int(row["N"]), int(row["K"])
    layer = linear(inner, rows)
    return OperationReading(_source(row), "gemm", "gemm", "forward", columns, (TimedOperation(layer, "forward"),))


def _source(row: dict[str, str]) -> str:
    return f"DeepBench {row['framework_version']}"

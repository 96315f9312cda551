"""DeepBench (Baidu, Apache-2.0): convolutions and matrix products in cuDNN and cuBLAS, the best of its algorithms."""

from __future__ import annotations

from paleo_lite.counting import Layer

from .timed import Operation, Reading, linear

_PASSES = {"forward": "forward", "backward_data": "backward_data", "backward_weights": "backward_weight"}


def deepbench_convolution(row: dict[str, str]) -> Reading:
    """A convolution in one pass, and the padding that shapes its output."""
    size = {name: int(row[name]) for name in
            ("N", "C", "H", "W", "K", "R", "S", "pad_h", "pad_w", "stride_h", "stride_w")}  # fmt: skip
    out = tuple(
        (size[side] + 2 * size[f"pad_{name}"] - size[taps]) // size[f"stride_{name}"] + 1
        for side, taps, name in (("H", "R", "h"), ("W", "S", "w"))
    )
    layer = Layer(
        "conv", "conv2d", ((size["C"], size["H"], size["W"]),), ((size["K"], *out),),
        ((size["K"], size["C"], size["R"], size["S"]),), attributes={"stride": [size["stride_h"], size["stride_w"]]},
    )  # fmt: skip
    part = _PASSES[row["phase"]]
    return Reading(_source(row), "conv", "conv", part, size["N"], (Operation(layer, part),))


def deepbench_product(row: dict[str, str]) -> Reading:
    """A product M x K by K x N, as a linear layer over N samples."""
    rows, columns, inner = int(row["M"]), int(row["N"]), int(row["K"])
    layer = linear(inner, rows)
    return Reading(_source(row), "gemm", "gemm", "forward", columns, (Operation(layer, "forward"),))


def _source(row: dict[str, str]) -> str:
    return f"DeepBench {row['framework_version']}"

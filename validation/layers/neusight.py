"""Reader of NeuSight (MIT): kernels of PyTorch 2.1, fastest 5 of 25 runs."""

from __future__ import annotations

from paleo_lite.counting import Layer

from .timed import OperationReading, TimedOperation, linear

_SIZES = (
    "b", "m", "n", "k", "h", "input_channel", "output_channel", "kernel_size", "input_size", "stride", "padding",
)  # fmt: skip
_KINDS = {"ln": "layer_norm", "addu": "add", "divu": "div", "mulu": "mul", "powu": "pow"}
_TWO_OPERANDS = ("add", "div", "mul", "pow")  # "addu" and the like have a scalar as second operand


def neusight(row: dict[str, str]) -> OperationReading:
    """Read a forward kernel."""
    op = row["op"]
    size = {name: int(float(row[name])) for name in _SIZES if row[name]}
    batch_size, kind = size["b"], op
    if op == "conv":
        side, kernel = size["input_size"], size["kernel_size"]
        out = (side + 2 * size["padding"] - kernel) // size["stride"] + 1
        inputs, outputs = size["input_channel"], size["output_channel"]
        layer = Layer(
            op, "conv2d", ((inputs, side, side),), ((outputs, out, out),), ((outputs, inputs, kernel, kernel),),
            attributes={"stride": [size["stride"]] * 2},
        )  # fmt: skip
    elif op == "linear":
        layer = linear(size["k"], size["n"])
        batch_size *= size["m"]
    elif op == "bmm":
        m, n, k = size["m"], size["n"], size["k"]
        layer = Layer(op, "matmul", ((1, m, k), (1, k, n)), ((1, m, n),))
    else:
        shape = (size["h"],)
        weights = (shape, shape) if op == "ln" else ()
        operands = 2 if op in _TWO_OPERANDS else 1
        layer = Layer(op, _KINDS.get(op, op), (shape,) * operands, (shape,), weights)
        kind = {"ln": "layer norm", "softmax": "softmax"}.get(op, "elementwise")
    return OperationReading(
        "NeuSight pytorch 2.1", kind, kind, "inference", batch_size, (TimedOperation(layer, "inference"),)
    )

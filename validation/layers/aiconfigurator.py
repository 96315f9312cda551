"""Reader of aiconfigurator (Apache-2.0): matrix products in bf16 and fp8 as executed by TensorRT-LLM.

In fp8 the time includes the conversion of the input, with launches of its own.
"""

from __future__ import annotations

from .timed import OperationReading, TimedOperation, linear


def modern_product(row: dict[str, str]) -> OperationReading:
    """Read a matrix product of shape M x N with inner dimension K."""
    rows, columns, inner = int(float(row["M"])), int(float(row["N"])), int(float(row["K"]))
    source = f"aiconfigurator {row['framework']}"
    if row["precision"] == "fp8":
        source += " with conversion"
    return OperationReading(
        source, "gemm", "matrix product", "inference", rows, (TimedOperation(linear(inner, columns), "inference"),)
    )

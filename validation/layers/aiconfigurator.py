"""Reader of aiconfigurator (Apache-2.0): bf16 matrix products as executed by TensorRT-LLM."""

from __future__ import annotations

from .timed import Operation, Reading, linear


def modern_product(row: dict[str, str]) -> Reading:
    """Read a matrix product of shape M x N with inner dimension K."""
    rows, columns, inner = int(float(row["M"])), int(float(row["N"])), int(float(row["K"]))
    source = f"aiconfigurator {row['framework']}"
    return Reading(
        source, "gemm", "matrix product", "inference", rows, (Operation(linear(inner, columns), "inference"),)
    )

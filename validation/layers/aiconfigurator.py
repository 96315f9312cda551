"""aiconfigurator (Apache-2.0): matrix products as TensorRT-LLM runs them, in bf16."""

from __future__ import annotations

from .timed import Operation, Reading, linear


def modern_product(row: dict[str, str]) -> Reading:
    """One product of M rows, N columns and a sum of K."""
    rows, columns, inner = int(float(row["M"])), int(float(row["N"])), int(float(row["K"]))
    source = f"aiconfigurator {row['framework']}"
    return Reading(
        source, "gemm", "matrix product", "inference", rows, (Operation(linear(inner, columns), "inference"),)
    )

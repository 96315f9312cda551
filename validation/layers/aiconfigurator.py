"""aiconfigurator (Apache-2.0): matrix products as TensorRT-LLM runs them, in bf16 and fp8.

In fp8 the time holds what makes the 16-bit input fp8 before the product: a maximum set to 0, found, and the input
divided by it, three launches (``invokeComputeScalesAndQuantizeMatrix`` of TensorRT-LLM).
"""

from __future__ import annotations

from paleo_lite.counting import Layer

from .timed import Operation, Reading, linear


def modern_product(row: dict[str, str]) -> Reading:
    """One product of M rows, N columns and a sum of K."""
    rows, columns, inner = int(float(row["M"])), int(float(row["N"])), int(float(row["K"]))
    source = f"aiconfigurator {row['framework']}"
    layers = (*(_quantised(inner) if row["precision"] == "fp8" else ()), linear(inner, columns))
    operations = tuple(Operation(layer, "inference") for layer in layers)
    return Reading(source, "gemm", "matrix product", "inference", rows, operations)


def _quantised(inner: int) -> tuple[Layer, ...]:
    """Bytes are counted in elements of fp8: an element of the input has two."""
    x = (inner,)
    return (
        Layer("zero", "copy", ((1,),), ((1,),)),
        Layer("maximum", "copy", (x, x), ((1,),)),
        Layer("scaled", "copy", (x, x), (x,)),
    )

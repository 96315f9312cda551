"""`gemm`: the time of matrix products."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from .names import Names, PrecisionNames
from .option import argument, option
from .predict import ENGINES
from .records import ENGINE_GROUP, NETWORK_GROUP, DeviceOptions, TimeModelOptions
from .values import INTEGER, SHAPE


@dataclass(frozen=True)
class MatrixProducts(TimeModelOptions, DeviceOptions):
    """Predict the time of matrix products (M x K) @ (K x N), and the gain of batching several into one."""

    compares: ClassVar[bool] = False

    m: int = argument("Rows of the product.")
    n: int = argument("Columns of the product.")
    k: int = argument("Terms of each sum: columns of the left operand, rows of the right one.")
    peak: float | str | None = option(
        metavar="RATE", help="Peak in FLOP/s instead of a device, such as '6000 GFLOP/s'."
    )
    precision: str = option(
        "fp32", group=NETWORK_GROUP, type=PrecisionNames("precision", ".units:PRECISION_BYTES"),
        help="Precision of the arithmetic.",
    )  # fmt: skip
    weights: str | None = option(
        group=NETWORK_GROUP, type=Names("format of weights", ".formats:FORMATS"), metavar="FORMAT",
        help="Format in which the right operand is stored: fp8-block, nvfp4, int4, ... [default: that of the "
        "precision]",
    )  # fmt: skip
    engine: str | None = option(
        group=ENGINE_GROUP, type=ENGINES, help="Engine whose kernels are timed. [default: the mean of all engines]"
    )
    count: int = option(1, group=NETWORK_GROUP, type=INTEGER, help="Number of products.")
    into: int = option(
        1, group=NETWORK_GROUP, type=INTEGER,
        help="Number of products after batching: products that share their right operand become one with more rows.",
    )  # fmt: skip
    tile: str | tuple[int, ...] = option(
        (64, 64), group=NETWORK_GROUP, type=SHAPE, metavar="ROWSxCOLUMNS",
        help="Rows and columns of the output tiles that form waves. [default: 64x64]",
    )  # fmt: skip

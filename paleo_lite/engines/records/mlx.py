"""MLX, on Macs."""

from __future__ import annotations

from ...gguf_types import MIXTURES, MLX_MIXTURES
from .record import Engine, LocalEngine, Versions

MLX = Engine(
    name="mlx",
    versions=Versions(),
    kernels=None,
    launcher=None,
    local=LocalEngine(
        "mlx",
        "MLX on a Mac, for one request at a time",
        {"Apple": ("mlx",)},
        {"f16": MIXTURES["f16"], **MLX_MIXTURES},
        "mlx-4bit",
        ("f16",),
        ("f16", "mlx-8bit", "mlx-6bit", "mlx-5bit", "mlx-4bit", "mlx-3bit"),
        aliases={"mxfp4": "mlx-mxfp4", "nvfp4": "mlx-nvfp4", "mxfp8": "mlx-mxfp8", "mxfp4_moe": "mlx-mxfp4-q8"},
    ),
    sources=(
        "https://github.com/ml-explore/mlx-lm (formats)",
        "https://ml-explore.github.io/mlx/build/html/python/_autosummary/mlx.core.quantize.html (modes)",
    ),
)

RECORDS = (MLX,)

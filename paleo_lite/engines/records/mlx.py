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
    ),
    sources=("https://github.com/ml-explore/mlx-lm (formats)",),
)

RECORDS = (MLX,)

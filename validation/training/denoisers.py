"""Published training of a denoiser on many devices, to which no constant is fitted.

The rows are the runs of FLUX.1-schnell of MLPerf Training v5.1 in ``runs/training_runs.csv`` (mlcommons/
training_results_v5.1, Apache-2.0). The configurations of the submissions state Megatron's distributed optimizer, the
recipe mxfp8, the compiler and one graph per iteration; those of 512 devices and more split layers among the four
devices of a node (config_GB200_128x04x16xtp4.sh, config_GB200_288x04x08xtp4.sh). Pictures of 256 x 256 and texts are
encoded beforehand. The published hours include an evaluation of 29,696 samples after every 262,144 (mlcommons/training,
text_to_image), a forward pass that is counted as a third of a training step. `python -m validation compare denoisers`
prints the forecasts.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

import paleo_lite as pl
from paleo_lite.distributed.table import ScaleTable
from paleo_lite.reporting.document import Column, Document

from ..comparisons import ComparedStep, require_data, steps_page
from ..tables import rows_of

TABLE = "runs/training_runs.csv"
NETWORKS = {"black-forest-labs/FLUX.1-schnell": "flux.1-schnell"}
LARGEST_WITHOUT_TENSOR_PARALLELISM = 72
"""Devices of the largest run that is divided by samples alone."""

TENSOR = 4
"""Tensor-parallel devices of the larger runs."""

EVALUATION_SHARE = 29_696 / 262_144 / 3
"""Seconds of evaluations per second of training."""


class DenoiserStep(ComparedStep, frozen=True, kw_only=True):
    """A published step of training a denoiser and its forecast."""

    device: str
    batch_size: int


def denoiser_steps(data: Path) -> list[DenoiserStep]:
    """Return the published steps with their forecasts."""
    return [_forecast(row) for row in rows_of(data / TABLE) if row["hf_id"] in NETWORKS]


def _forecast(row: dict[str, str]) -> DenoiserStep:
    network, device = NETWORKS[row["hf_id"]], row["device"].lower()
    workers, batch_size = int(row["devices"]), int(row["global_batch_tokens"])
    table = pl.train(
        network,
        gpu=device,
        workers=workers,
        global_batch_size=batch_size,
        strategy="distributed-optimizer",
        precision="mxfp8",
        mixed_precision=True,
        execution="compiled",
        image_size=256,
        tensor=1 if workers <= LARGEST_WITHOUT_TENSOR_PARALLELISM else TENSOR,
    )
    assert isinstance(table, ScaleTable)
    (predicted,) = table.rows
    assert predicted.interval is not None
    steps = float(row["tokens_or_samples"]) / batch_size
    run_s = float(row["gpu_hours"]) * 3600 / workers
    low_s, high_s = predicted.interval
    return DenoiserStep(
        network=network,
        device=device,
        workers=workers,
        batch_size=batch_size,
        measured_s=run_s / steps / (1 + EVALUATION_SHARE),
        time_s=float(predicted.time_s),
        low_s=float(low_s),
        high_s=float(high_s),
    )


def compare_page(data: Path | None) -> Document:
    """Return the page of the steps.

    Raises
    ------
    BadValue
        If no folder of published data is given.
    """
    steps = denoiser_steps(require_data(data))
    columns = [
        Column("network", "network", left=True),
        Column("workers", "devices"),
        Column("device", "device", left=True),
        Column("batch_size", "batch"),
    ]
    return steps_page(
        "FLUX.1 in MLPerf Training v5.1", columns, [msgspec.structs.asdict(step) for step in steps], steps
    )

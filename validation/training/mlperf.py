"""Step times in the logs of MLPerf Training v5.1, to which no constant is fitted.

``mlperf.csv`` has them with their sources: files of mlcommons/training_results_v5.1 (Apache-2.0, commit 4da2d1c), the
log of a run and the script of its configuration. The seconds are the median of the last printed steps (AMD: samples per
second of the last block), without evaluation. Stages are laid out with the embedding and the loss as blocks of their
own (``ASYM_PP_EMBED``, ``ASYM_PP_LOSS``), which the default layout of as many stages does as well.
`python -m validation compare mlperf` prints the forecasts.
"""

from __future__ import annotations

from pathlib import Path

from paleo_lite.distributed.parallel_config import ParallelConfig
from paleo_lite.distributed.platforms import find_computer
from paleo_lite.reporting.document import Column, Document

from ..comparisons import steps_page
from ..tables import rows_of
from .pretraining import Pretraining, PretrainingForecast, forecast

TABLE = Path(__file__).with_name("mlperf.csv")

RELEASE = "25.09"
"""Release of NeMo's container in the logs."""


def mlperf_steps() -> list[Pretraining]:
    """Return the published steps."""
    return [_read(row) for row in rows_of(TABLE)]


def mlperf_forecasts() -> list[PretrainingForecast]:
    """Return the steps with their forecasts."""
    return forecast(mlperf_steps())


def _read(row: dict[str, str]) -> Pretraining:
    computer = find_computer(row["platform"])
    assert computer is not None
    tensor = int(row["tensor"])
    parallel = ParallelConfig(
        tensor=tensor,
        pipeline=int(row["pipeline"]),
        virtual_stages=int(row["interleaved"]),
        sequence_parallel=tensor > 1,
        micro_batch_size=int(row["micro_batch_size"]),
        context=int(row["context"]),
    )
    return Pretraining(
        release=RELEASE,
        network=row["network"],
        platform=row["platform"],
        device=computer.device,
        precision=row["precision"],
        workers=int(row["workers"]),
        batch_size=int(row["batch_size"]),
        length=int(row["length"]),
        parallel=parallel,
        fused_loss=None,
        time_s=float(row["seconds"]),
    )


def compare_page(data: Path | None) -> Document:
    """Return the page of the steps."""
    forecasts = mlperf_forecasts()
    columns = [
        Column("network", "network", left=True),
        Column("workers", "devices"),
        Column("device", "device", left=True),
        Column("precision", "precision", left=True),
    ]
    rows = [
        {
            "network": step.step.network,
            "workers": step.step.workers,
            "device": step.step.device,
            "precision": step.step.precision,
            "measured_s": step.step.time_s,
            "time_s": step.time_s,
        }
        for step in forecasts
    ]
    return steps_page("Logs of MLPerf Training v5.1", columns, rows, forecasts)

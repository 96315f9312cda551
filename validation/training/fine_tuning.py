"""Published fine-tuning with LoRA in Megatron-Bridge, to which no constant is fitted.

The rows are those of ``modern/transformer_training.csv`` (NVIDIA-NeMo/Megatron-Bridge, Apache-2.0,
``docs/performance-summary-archive.md``). The table does not say which layers have adapters: they are taken to be the
projections to queries, keys and values, with rank 16, as the recipe of Llama 3.1 405B names them.
`python -m validation compare fine-tuning` prints the forecasts.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from paleo_lite.api.question import Question
from paleo_lite.api.scaling import PARALLEL_3D, predict_cluster
from paleo_lite.distributed.parallel_config import ParallelConfig
from paleo_lite.distributed.request import ClusterRequest
from paleo_lite.distributed.settings import Settings
from paleo_lite.reporting.document import Column, Document
from paleo_lite.timing.training_options import TrainingOptions

from ..comparisons import ComparedStep, require_data, steps_page
from ..tables import rows_of
from .pretraining import NETWORKS, TABLE_OF_GB300

PLATFORMS = {"GB200": "gb200-nvl72", "GB300": "gb300-nvl72"}
RANK, MODULES = 16, ("q_proj", "k_proj", "v_proj")


class FineTuningStep(ComparedStep, frozen=True, kw_only=True):
    """A published step of fine-tuning and its forecast."""

    device: str
    precision: str


def fine_tuning_steps(data: Path) -> list[FineTuningStep]:
    """Return the published steps with their forecasts."""
    rows = [row for row in rows_of(data / TABLE_OF_GB300) if "LoRA" in row["software"]]
    return [_forecast(row) for row in rows]


def _forecast(row: dict[str, str]) -> FineTuningStep:
    workers, batch_size, length = (int(row[name]) for name in ("n_gpus", "global_batch_seqs", "seq_len"))
    stages = int(row["pp"])
    config = ParallelConfig(
        tensor=int(row["tp"]),
        pipeline=stages,
        virtual_stages=int(float(row["vpp"])) if stages > 1 else 1,
        micro_batch_size=int(row["micro_batch"]),
    )
    question = Question(
        NETWORKS[row["model"]],
        None,
        precision=row["precision"],
        phase="training",
        sequence_length=length,
        training=TrainingOptions("adam", mixed_precision=True, lora_rank=RANK, lora_modules=MODULES),
    )
    request = ClusterRequest(
        [workers], platform=PLATFORMS[row["gpu"]], batch_size=batch_size, scaling="strong", strategy=PARALLEL_3D
    )
    predicted = predict_cluster(question, request, Settings(parallel=config)).rows[0]
    assert predicted.interval is not None
    measured_s = batch_size * length / (float(row["tokens_per_s_per_gpu"]) * workers)
    low_s, high_s = predicted.interval
    return FineTuningStep(
        network=NETWORKS[row["model"]],
        device=row["gpu"].lower(),
        workers=workers,
        precision=row["precision"],
        measured_s=measured_s,
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
    steps = fine_tuning_steps(require_data(data))
    columns = [
        Column("network", "network", left=True),
        Column("workers", "devices"),
        Column("device", "device", left=True),
        Column("precision", "precision", left=True),
    ]
    return steps_page("LoRA in Megatron-Bridge", columns, [msgspec.structs.asdict(step) for step in steps], steps)

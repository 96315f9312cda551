"""Published steps of mixtures of experts in torchtitan, to which no constant is fitted.

``mixtures.csv`` has the figures with their sources. The throughput of DeepSeek-V3 on 256 B200 is from PyTorch's blog
("Enabling up to 41% faster pre-training", 2026), its configuration from the scripts that the source publishes; the
loads of its experts are forced to be equal. torchtitan keeps whole parameters after the forward pass where there is a
pipeline. DeepSeek-V3 on 256 GB300 is from torchtitan's own report: whole parameters, products of experts in MXFP8 and
the others in bf16, and one graph for the whole step. Its forecast is that of Megatron-LM with all products in MXFP8.
`python -m validation compare mixtures` prints the forecasts.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

import paleo_lite as pl
from paleo_lite.api.question import Question
from paleo_lite.api.scaling import PARALLEL_3D, predict_cluster
from paleo_lite.distributed.parallel_config import ParallelConfig
from paleo_lite.distributed.request import ClusterRequest
from paleo_lite.distributed.settings import Settings
from paleo_lite.reporting.document import Column, Document

from ..comparisons import ComparedStep, steps_page
from ..tables import rows_of

TABLE = Path(__file__).with_name("mixtures.csv")


class MixtureStep(ComparedStep, frozen=True, kw_only=True):
    """A published step of a mixture of experts and its forecast."""

    dispatch: str  # how tokens are exchanged; empty for no exchange


def mixture_steps() -> list[MixtureStep]:
    """Return the published steps with their forecasts."""
    return [_forecast(row) for row in rows_of(TABLE)]


def _forecast(row: dict[str, str]) -> MixtureStep:
    config = ParallelConfig(
        tensor=int(row["tensor"]),
        pipeline=int(row["pipeline"]),
        virtual_stages=int(row["interleaved"]),
        sequence_parallel=int(row["tensor"]) > 1,
        micro_batch_size=int(row["micro_batch_size"]),
        recompute=row["recompute"],
        sharding=row["sharding"],
        expert=int(row["expert"]),
        execution=row["execution"],
        dispatch=row["dispatch"],
        expert_kernels=row["expert_kernels"],
    )
    workers, batch_size, length = int(row["workers"]), int(row["batch_size"]), int(row["length"])
    question = Question(
        row["network"],
        None,
        precision=row["precision"],
        phase="training",
        sequence_length=length,
        training=pl.TrainingOptions("adamw", mixed_precision=True, loss_chunks=int(row["loss_chunks"])),
    )
    request = ClusterRequest(
        [workers], platform=row["platform"], batch_size=batch_size, scaling="strong", strategy=PARALLEL_3D
    )
    (predicted,) = predict_cluster(question, request, Settings(parallel=config))
    assert predicted.interval is not None
    measured_s = batch_size * length / (float(row["tokens_per_s_per_gpu"]) * workers)
    low_s, high_s = predicted.interval
    return MixtureStep(
        network=row["network"],
        workers=workers,
        dispatch=row["dispatch"],
        measured_s=measured_s,
        time_s=float(predicted.time_s),
        low_s=low_s,
        high_s=high_s,
    )


def compare_page(data: Path | None) -> Document:
    """Return the page of the steps."""
    steps = mixture_steps()
    columns = [
        Column("network", "network", left=True),
        Column("workers", "devices"),
        Column("dispatch", "dispatch", lambda name: name or "none", left=True),
    ]
    return steps_page("Mixtures in torchtitan", columns, [msgspec.structs.asdict(step) for step in steps], steps)

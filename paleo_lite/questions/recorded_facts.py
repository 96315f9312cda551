"""`RunFacts`: facts of a measured run that its result file does not record."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from .completion import LINK
from .names import Names, StrategyNames
from .option import Options, option
from .records import NETWORK_GROUP, PARALLEL_GROUP, TRAINING_GROUP
from .values import INTEGER


@dataclass(frozen=True)
class RunFacts(Options):
    """Facts of a measured run that its result file does not record."""

    compares: ClassVar[bool] = False

    engine: str | None = option(
        group=NETWORK_GROUP, metavar="ENGINE", help="Inference engine, where the files do not record it."
    )
    devices: int | None = option(
        group=PARALLEL_GROUP,
        type=INTEGER,
        metavar="N",
        spellings=("--devices", "--workers"),
        help="Number of devices, where the files do not record it.",
    )
    tensor: int | None = option(
        group=PARALLEL_GROUP, type=INTEGER, metavar="N", help="Tensor parallelism, where the files do not record it."
    )
    pipeline: int | None = option(
        group=PARALLEL_GROUP, type=INTEGER, metavar="N", help="Pipeline stages, where the files do not record them."
    )
    context_parallel: int | None = option(
        group=PARALLEL_GROUP, type=INTEGER, metavar="N", help="Context parallelism, where the files do not record it."
    )
    expert_parallel: int | None = option(
        group=PARALLEL_GROUP, type=INTEGER, metavar="N", help="Expert parallelism, where the files do not record it."
    )
    link: str | None = option(
        group=PARALLEL_GROUP, type=LINK, metavar="LINK",
        help="Link between the devices, where the files do not record it.",
    )  # fmt: skip
    strategy: str | None = option(
        group=PARALLEL_GROUP, metavar="NAME",
        type=StrategyNames("strategy", ".distributed.strategies:STRATEGIES", ".distributed.parallel_config:SHARDINGS"),
        help="How devices divide a training step, as in train, where the files do not record it.",
    )  # fmt: skip
    global_batch_size: int | None = option(
        group=TRAINING_GROUP, type=INTEGER, metavar="N",
        help="Samples per training step of all devices, where the files do not record them.",
    )  # fmt: skip
    micro_batch: int | None = option(
        group=TRAINING_GROUP, type=INTEGER, metavar="N",
        help="Samples per micro-batch of training, where the files do not record them.",
    )  # fmt: skip
    recompute: str | None = option(
        group=TRAINING_GROUP, metavar="NAME[:DETAIL]",
        help="Activation recomputation of training, as in train, where the files do not record it.",
    )  # fmt: skip
    execution: str | None = option(
        group=TRAINING_GROUP, type=Names("execution", ".counting.fusion:EXECUTIONS"), metavar="NAME",
        help="Software stack of training, as in train, where the files do not record it.",
    )  # fmt: skip

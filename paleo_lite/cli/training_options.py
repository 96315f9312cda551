"""Options of training and fine-tuning, and of the amount of training that hours, cost and energy refer to."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..questions.values import INTEGER, Names, Quantity
from .options import SharedOption

if TYPE_CHECKING:
    from ..timing.workload import TrainingOptions

optimizer = SharedOption(
    "--optimizer",
    type=Names("optimizer", ".timing.optimizers:OPTIMIZERS"),
    help="Optimizer of training. [default: sgd; with --lora adamw]",
)
mixed_precision = SharedOption(
    "--mixed-precision", is_flag=True, help="Train in fp16 or bf16 with master weights in fp32."
)
checkpointing = SharedOption(
    "--checkpointing",
    type=Names("checkpointing", ".timing.workload:CHECKPOINTING"),
    help="Activation recomputation: none, in about sqrt(n) segments, in each block (block), or between all "
    "possible cuts (all). [default: none]",
)
accumulation = SharedOption(
    "--accumulation",
    type=INTEGER,
    metavar="N",
    help="Gradient accumulation: micro-batches per update of the weights. [default: 1]",
)
offload = SharedOption(
    "--offload",
    type=Names("offload", ".timing.workload:OFFLOADS", ".timing.pipeline_run:PIPELINE_OFFLOADS"),
    help="Keep gradients and optimizer state in the memory of the host (cpu) or on NVMe drives (nvme), and "
    "update there. Of a pipeline: keep the parameters of each part (model) or layer (sequential) in the memory "
    "of the host until it runs. [default: none]",
)
images = SharedOption(
    "--images",
    metavar="COUNT",
    help="Samples per epoch, 1.28M or '300B tokens', to predict hours, cost and energy.",
)
samples = SharedOption(
    "--samples",
    type=Quantity(""),
    metavar="COUNT",
    help="Samples per epoch, 52k, to predict hours, cost and energy.",
)
epochs = SharedOption("--epochs", type=float, metavar="NUMBER", help="Epochs for hours and cost. [default: 1]")

_FIELDS = ("optimizer", "mixed_precision", "checkpointing", "accumulation")
"""Options of training that a report takes, which are fields of `TrainingOptions`."""


def take_training_options(arguments: dict[str, Any]) -> TrainingOptions | None:
    """Remove the options of training from the arguments of a command, and return them; None if none is given."""
    given = {name: arguments.pop(name) for name in _FIELDS}
    given = {name: value for name, value in given.items() if value is not None and value is not False}
    if not given:
        return None
    from ..timing.workload import TrainingOptions

    given.setdefault("optimizer", "sgd")
    return TrainingOptions(**given)

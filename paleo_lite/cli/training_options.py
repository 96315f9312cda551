"""Options of training and fine-tuning, and of the amount of training that hours, cost and energy refer to."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from ..errors import BadValue
from ..questions.values import INTEGER, Names, Quantity
from .options import Decorator, SharedOption, combine

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

_FIELDS = {
    "optimizer": "optimizer",
    "mixed_precision": "mixed_precision",
    "checkpointing": "checkpointing",
    "accumulation": "accumulation",
    "lora": "lora_rank",
    "lora_modules": "lora_modules",
    "freeze": "freeze",
    "train_only": "train_only",
    "fused_loss": "fused_loss",
    "loss_chunks": "loss_chunks",
    "fp32_gradients": "fp32_gradients",
    "offload": "offload",
}
"""Fields of `TrainingOptions` by the options that state them."""


def fine_tuning() -> Decorator:
    """Add the options of fine-tuning, of the precision of gradients, and of offloading."""
    return combine(
        click.option(
            "--lora", type=INTEGER, metavar="RANK", help="Train LoRA adapters of this rank; all else is frozen."
        ),
        click.option(
            "--lora-modules",
            metavar="NAMES",
            help="Layers with adapters, such as q_proj,v_proj. [default: all linear layers except the output head]",
        ),
        click.option(
            "--freeze",
            metavar="PATTERNS",
            help="Layers that are not trained, by name or pattern: 'model.embed_tokens,model.layers.[0-9].*'.",
        ),
        click.option(
            "--train-only", metavar="PATTERNS", help="The only layers that are trained; last is the last one."
        ),
        click.option(
            "--fused-loss/--no-fused-loss",
            default=None,
            help="Cross entropy in one kernel (flash-attn, Liger, Transformer Engine) instead of in fp32. [default: in "
            "fp32; in one kernel with scale --execution megatron from Hopper on]",
        ),
        click.option(
            "--loss-chunks",
            type=INTEGER,
            metavar="N",
            help="Compute head and loss for one n-th of the tokens at a time. [default: 1]",
        ),
        click.option("--fp32-gradients", is_flag=True, help="Keep gradients in fp32 in mixed precision."),
        offload(),
    )


def amount_of_tokens() -> Decorator:
    """Add the options that state an amount of training in samples or tokens of a language model."""
    return combine(
        samples(),
        click.option("--tokens", metavar="COUNT", help="Tokens per epoch, 15B, to predict hours, cost and energy."),
        click.option(
            "--packing",
            is_flag=True,
            help="Several samples of --samples share a sequence. [default: each is padded to a sequence]",
        ),
        click.option("--mean-length", type=float, metavar="TOKENS", help="Mean tokens per sample, with --packing."),
    )


def take_training_options(arguments: dict[str, Any]) -> TrainingOptions | None:
    """Remove the options of training from the arguments of a command, and return them; None if none is given."""
    given = {field: arguments.pop(option, None) for option, field in _FIELDS.items()}
    given = {field: value for field, value in given.items() if value is not None}
    for flag in ("mixed_precision", "fp32_gradients"):
        if given.get(flag) is False:
            del given[flag]
    if not given:
        return None
    from ..timing.workload import TrainingOptions

    rank = given.get("lora_rank")
    if rank is not None and rank < 1:
        raise BadValue(f"`--lora` must be an integer >= 1 (got {rank})")
    given.setdefault("optimizer", "adamw" if rank else "sgd")
    for field in ("lora_modules", "freeze", "train_only"):
        given[field] = _split_names(given.get(field))
    return TrainingOptions(**given)


def _split_names(text: str | None) -> tuple[str, ...]:
    """Return the names in a comma-separated text."""
    return tuple(name.strip() for name in (text or "").split(",") if name.strip())

"""What a training step does beside its passes: from the words of options to `TrainingOptions`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..errors import BadValue
from .compare import reads_tokens
from .division import CHECKPOINTING_OF_RECOMPUTE
from .records import settings_of

if TYPE_CHECKING:
    from ..timing.training_options import TrainingOptions

SAMPLES_PER_DEVICE = 32
"""Samples per device if no batch size is given, except for networks that read tokens: those get one sequence."""


def default_batch_size(question: Any) -> int:
    """Return the samples per device if none are given."""
    return 1 if reads_tokens(question) else SAMPLES_PER_DEVICE


def training_options(
    question: Any,  # with the options of `UpdateOptions` and `AdapterOptions`
    offload: str | None,  # where gradients and optimizer state are kept
    *,
    # Whether recomputation is that of a network in blocks on several devices, which is not an option of the step.
    is_in_blocks: bool,
    optimizer: str = "sgd",  # without adapters if none is given
) -> TrainingOptions | None:
    """Return the options of a training step; None if none is given and plain SGD updates."""
    fields: dict[str, Any] = {} if offload is None else {"offload": offload}
    if question.recompute is not None and not is_in_blocks:
        fields["checkpointing"] = _checkpointing(question.recompute)
    if question.loss is not None:
        fields |= _loss_options(question.loss)
    for name, field in _TRAINING_FIELDS.items():
        value = getattr(question, name)
        if value is not None and value is not False:
            fields[field] = value
    gradients = settings_of(question.training_settings).get("gradients")
    if gradients is not None:
        fields["fp32_gradients" if gradients == "fp32" else "gradient_release"] = True
    for key, value in settings_of(question.trainable).items():
        if key == "kernels":
            fields["fused_adapters"] = value == "fused"
        else:
            fields[_TRAINABLE_FIELDS[key]] = value if key == "dropout" else _split_names(value)
    if not fields and optimizer == "sgd":
        return None
    from ..timing.training_options import TrainingOptions

    fields.setdefault("optimizer", "adamw" if question.lora else optimizer)
    return TrainingOptions(**fields)


_TRAINING_FIELDS = {
    "optimizer": "optimizer",
    "mixed_precision": "mixed_precision",
    "accumulation": "accumulation",
    "lora": "lora_rank",
}
"""Fields of `TrainingOptions` by the options that state them."""

_TRAINABLE_FIELDS = {"only": "train_only", "except": "freeze", "adapters": "lora_modules", "dropout": "lora_dropout"}
"""Fields of `TrainingOptions` by the settings of ``--trainable``."""


def _checkpointing(recompute: str) -> str:
    """Return the checkpointing of a network that is not divided into blocks of several devices."""
    if recompute in CHECKPOINTING_OF_RECOMPUTE:
        return CHECKPOINTING_OF_RECOMPUTE[recompute]
    names = ", ".join(name for name in CHECKPOINTING_OF_RECOMPUTE if name != "block")
    raise BadValue(
        f"`--recompute {recompute}` is for networks in blocks on several devices: give `--workers` and `--tensor` or "
        f"`--sharding`, or one of {names}"
    )


CUT_PARTS = 4096
"""Parts of the logits of which cut cross-entropy holds one in fast memory."""


def _loss_options(loss: str) -> dict[str, Any]:
    """Return the fields of `TrainingOptions` for ``--training-settings loss``.

    Cut cross-entropy (Wijmans et al. 2024) writes no logits to memory; it computes them twice, and leaves out as much
    of their gradients, so that it takes the time of a fused loss.
    """
    if loss in ("fused", "fp32"):
        return {"fused_loss": loss == "fused"}
    if loss == "cut":
        return {"fused_loss": True, "loss_chunks": CUT_PARTS}
    if str(loss).isdecimal() and int(loss) >= 1:
        return {"loss_chunks": int(loss)}
    raise BadValue(f"`--training-settings loss` must be fp32, fused, cut or a number of parts >= 1 (got {loss!r})")


def _split_names(text: str) -> tuple[str, ...]:
    """Return the names in a comma-separated text."""
    return tuple(name.strip() for name in text.split(",") if name.strip())

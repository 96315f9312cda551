"""From the words of the options of training to what a step does beside its passes, and how devices divide it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ..errors import BadValue
from .compare import is_pipeline, reads_tokens
from .names import ACTIVATIONS
from .records import settings_of

if TYPE_CHECKING:
    from ..api.question import PictureOptions
    from ..architectures import Network
    from ..distributed.parallel_config import ParallelConfig
    from ..timing.training_options import TrainingOptions

SAMPLES_PER_DEVICE = 32
"""Samples per device if no batch size is given, except for networks that read tokens: those get one sequence."""

CHECKPOINTING_OF_RECOMPUTE = {"none": "none", "sqrt": "sqrt", "full": "block", "block": "block", "all": "all"}
"""Checkpointing of a network layer by layer, by the recomputation that asks for it."""


def default_batch_size(question: Any) -> int:
    """Return the samples per device if none are given."""
    return 1 if is_pipeline(question.network) or reads_tokens(question) else SAMPLES_PER_DEVICE


def pictures_of(question: Any) -> PictureOptions:
    """Return what is asked of the pictures or videos on which a pipeline's denoiser is trained."""
    from ..api.question import PictureOptions

    return PictureOptions(frames=question.frames)


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


def _loss_options(loss: str) -> dict[str, Any]:
    """Return the fields of `TrainingOptions` for ``--training-settings loss``.

    Cut cross-entropy (Wijmans et al. 2024) writes no logits to memory; it computes them twice, and leaves out as much
    of their gradients, so that it takes the time of a fused loss.
    """
    if loss in ("fused", "fp32"):
        return {"fused_loss": loss == "fused"}
    if loss == "cut":
        from ..timing.training_options import CUT_LOSS

        return dict(CUT_LOSS)
    if str(loss).isdecimal() and int(loss) >= 1:
        return {"loss_chunks": int(loss)}
    raise BadValue(f"`--training-settings loss` must be fp32, fused, cut or a number of parts >= 1 (got {loss!r})")


def _split_names(text: str) -> tuple[str, ...]:
    """Return the names in a comma-separated text."""
    return tuple(name.strip() for name in text.split(",") if name.strip())


def replica_of(question: Any) -> str | None:
    """Return the revision of the released PALEO that is reproduced; None for a time model of today."""
    name, _, revision = str(question.time_model or "").partition("-")
    return revision or "first" if name == "paleo" else None


def offload_of(question: Any) -> tuple[str | None, float | None]:
    """Return the place of gradients and optimizer state, and the share of activations that is copied to the host."""
    place, share = None, None
    for part in (question.offload or "").split("+"):
        name, _, detail = part.partition(":")
        if name == ACTIVATIONS:
            share = float(detail)
        elif name:
            place = name
    return place, share


IN_BLOCKS = "3d"
"""Strategy that divides a network in blocks."""

_LAYERWISE = {"ddp": "data", "distributed-optimizer": "zero-1", "shard-grad-op": "zero-2", "full-shard": "zero-3"}
"""Strategies of networks that are divided layer by layer, by the names that frameworks give to them."""


def division_of(question: Any) -> tuple[str, ParallelConfig | None]:
    """Return the strategy, and how a network in blocks is divided; None if it is divided layer by layer.

    Language models are timed block by block on several devices, as the published steps are that the constants of
    training were fitted to; other networks layer by layer unless an option divides blocks.
    """
    from ..distributed.parallel_config import SHARDINGS

    name = question.strategy or "data"
    if splits_layers(question):
        return _LAYERWISE.get(name, name), None
    if name in REPLICATING and not divides_blocks(question):
        return _division_of_replicas(question)
    parallel = _parallel_config(question, None)
    if question.strategy in REPLICATING and parallel is not None:
        name = "ddp"  # only where no strategy is stated do networks in blocks shard the state of the optimizer
    if name not in SHARDINGS:
        return name, parallel
    if parallel is not None or _resolved_network(question).is_language_model:
        return IN_BLOCKS, _parallel_config(question, name)
    if name == "hybrid-shard":
        raise BadValue("`--sharding hybrid-shard` is for networks in blocks, such as language models: give zero-3")
    return _LAYERWISE.get(name, name), None


LAYERWISE_RECOMPUTATION = ("sqrt", "all")
"""Recomputation of segments of layers, whatever the blocks of a network are."""

REPLICATING = ("data", "ddp")
"""The two names of plain data parallelism."""


def _division_of_replicas(question: Any) -> tuple[str, ParallelConfig | None]:
    """Return the strategy of plain data parallelism, with the whole batch of a device in `--accumulation` parts."""
    from ..distributed.parallel_config import STACKS, ParallelConfig

    is_of_layers = (
        question.advise is not None
        or replica_of(question) is not None
        or (question.execution is not None and question.execution not in STACKS)
        # One device has the layers of the answer without `--workers`.
        or (question.recompute in LAYERWISE_RECOMPUTATION and question.workers == 1)
    )
    if is_of_layers or not has_blocks(question):
        return "data", None
    _check_in_blocks(question)
    fields = _recompute_fields(question, "ddp")
    if question.experts is not None:
        fields["expert_kernels"] = settings_of(question.experts)["kernels"]
    if question.micro_batch is None:
        fields["micro_batches"] = question.accumulation or 1
    else:
        fields["micro_batch_size"] = question.micro_batch
    return IN_BLOCKS, ParallelConfig(sharding="ddp", execution=question.execution or "eager", **fields)


def has_blocks(question: Any) -> bool:
    """Return whether the network is a language model whose blocks can be divided."""
    network = _resolved_network(question)
    return network.is_language_model and network.rebuild is not None and network.blocks > 0


def _resolved_network(question: Any) -> Network:
    """Return the network that is asked for."""
    from ..api.question import resolve_network, square_size
    from ..architectures.network import SequenceOptions

    if is_pipeline(question.network):
        return resolve_network(question.network, None, (), SequenceOptions(phase="training"))
    return resolve_network(question.network, square_size(question.image_size, question.network), question.inputs)


def compares_divisions(question: Any) -> bool:
    """Return whether advice compares divisions of the blocks of a network on several devices."""
    return question.advise is not None and question.workers != 1 and _resolved_network(question).blocks > 0


def stated_division(question: Any) -> dict[str, Any]:
    """Return the fields of `ParallelConfig` that the options state, which advice then keeps."""
    from ..distributed.parallel_config import SHARDINGS

    _check_in_blocks(question)
    name = question.strategy if "strategy" in question.given() else None
    sharding = "ddp" if name == "data" else name
    if sharding is not None and sharding not in SHARDINGS:
        if sharding != IN_BLOCKS:
            raise BadValue(
                f"`--strategy {name}` divides layers, and `--advise` compares divisions of the blocks of "
                f"{question.network}: leave one of them out"
            )
        sharding = None
    fields = _parallel_fields(question, sharding)
    if question.recompute == "none":
        fields["recompute"] = "none"
    for name in ("execution", "attention"):
        if getattr(question, name) is not None:
            fields[name] = getattr(question, name)
    if question.accumulation is not None and question.micro_batch is None:
        fields |= {"micro_batches": question.accumulation, "micro_batch_size": 1}  # the number determines the size
    return fields


def _parallel_config(question: Any, sharding: str | None) -> ParallelConfig | None:
    """Return how a network in blocks is divided; None if no option of it is given."""
    fields = _parallel_fields(question, sharding)
    if not fields:
        return None
    _check_in_blocks(question)
    if question.accumulation is not None and question.micro_batch is None:
        fields["micro_batches"] = question.accumulation
    from ..distributed.parallel_config import ParallelConfig

    return ParallelConfig(**fields)


def _parallel_fields(question: Any, sharding: str | None) -> dict[str, Any]:
    """Return the fields of `ParallelConfig` that options of networks in blocks state."""
    experts, schedule = settings_of(question.experts), settings_of(question.schedule)
    fields: dict[str, Any] = {
        "tensor": question.tensor,
        "pipeline": question.pipeline,
        "context": question.context_parallel,
        "expert": question.expert_parallel,
    }
    fields = {field: degree for field, degree in fields.items() if degree != 1}
    fields |= {
        "layout": schedule.get("layout"),
        "virtual_stages": schedule.get("interleaved"),
        "sequence_parallel": settings_of(question.communication).get("sequence-parallel") or None,
        "dispatch": experts.get("dispatch"),
        "expert_kernels": experts.get("kernels"),
        "expert_tensor": experts.get("tensor"),
        "expert_imbalance": experts.get("imbalance"),
        "expert_capacity": experts.get("capacity"),
        "expert_overlap": experts.get("overlap"),
        "micro_batch_size": question.micro_batch,
        "offloaded_share": offload_of(question)[1],
        "sharding": sharding,
    }
    if _resolved_network(question).blocks or divides_blocks(question):
        fields |= _recompute_fields(question, sharding)
    return {field: value for field, value in fields.items() if value is not None}


def _check_in_blocks(question: Any) -> None:
    """Raise BadValue if an option is given that only networks have that are divided layer by layer."""
    if question.recompute in LAYERWISE_RECOMPUTATION:
        raise BadValue(
            f"`--recompute {question.recompute}` is for one device and for networks that are divided layer by layer, "
            "such as resnet50: a network in blocks recomputes `full`, `full:N` or `selective`"
        )
    if "bucket" in settings_of(question.communication):
        raise BadValue(
            "`--communication bucket` is for networks that are divided layer by layer, such as resnet50: leave it out, "
            "as a network in blocks exchanges the gradients of whole blocks"
        )


def _recompute_fields(question: Any, sharding: str | None) -> dict[str, Any]:
    """Return the fields of `ParallelConfig` for ``--recompute``; none for recomputation layer by layer."""
    name, _, detail = (question.recompute or "").partition(":")
    if name == "selective":
        modules = tuple(module for module in detail.replace("+", " ").split())
        return {"recompute": name, "recompute_modules": modules} if modules else {"recompute": name}
    if name in ("full", "block"):
        if detail and not detail.isdecimal():
            raise BadValue(
                f"`--recompute {name}:N` takes the number of blocks of which one is recomputed (got {detail!r})"
            )
        return {"recompute": "full", "recompute_every": int(detail)} if detail else {"recompute": "full"}
    if detail:
        raise BadValue(f"`--recompute {name}` has no details: give `--recompute {name}`")
    if name == "offload":
        return {"recompute": name}
    if name and name not in CHECKPOINTING_OF_RECOMPUTE:
        raise BadValue(
            f"`--recompute` must be none, sqrt, all, full, full:N, selective, selective:MODULE+MODULE or offload "
            f"(got {question.recompute!r})"
        )
    return {"recompute": "none"} if name == "none" and (sharding or divides_blocks(question)) else {}


def divides_blocks(question: Any) -> bool:
    """Return whether another option divides a network in blocks."""
    return _names_blocks(question) and not splits_layers(question)


def _names_blocks(question: Any) -> bool:
    """Return whether an option is given that divides blocks of networks that have them."""
    names = ("tensor", "pipeline", "context_parallel", "expert_parallel")
    settings = {*settings_of(question.schedule), *settings_of(question.communication)}
    return (
        question.strategy == IN_BLOCKS
        or not set(names).isdisjoint(question.given())
        or (question.experts is not None and not chooses_pytorch_experts(question))
        or not settings.isdisjoint(("interleaved", "layout", "sequence-parallel"))
        or offload_of(question)[1] is not None
    )


def splits_layers(question: Any) -> bool:
    """Return whether `--tensor` splits the layers of a network without blocks, such as a pipeline's denoiser."""
    if question.tensor == 1 or question.strategy == IN_BLOCKS or _resolved_network(question).rebuild is not None:
        return False
    return not _names_blocks(replace(question, tensor=1))


def chooses_pytorch_experts(question: Any) -> bool:
    """Return whether `--experts` only says how PyTorch computes experts, which is not a division among devices."""
    from ..timing.expert_kernels import TUNED_KERNELS

    settings = settings_of(question.experts)
    return settings.keys() == {"kernels"} and settings["kernels"] not in TUNED_KERNELS

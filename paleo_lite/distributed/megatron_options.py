"""A parallel configuration in the option names of Megatron-LM (``megatron/training/arguments.py``)."""

from __future__ import annotations

from .expert_exchange import DISPATCHERS
from .parallel_config import STACK_DISPATCHER, ParallelConfig
from .pipeline_layout import megatron_layout

_RECIPE_OPTIONS = {
    None: "--bf16",
    "fp8": "--bf16 --fp8-format hybrid --fp8-recipe tensorwise",
    "mxfp8": "--bf16 --fp8-format e4m3 --fp8-recipe mxfp8",
    "nvfp4": "--bf16 --fp4-format e2m1 --fp4-recipe nvfp4",
}

_OPTIMIZER_OPTIONS = {
    "sgd": "--optimizer sgd --sgd-momentum 0",
    "momentum": "--optimizer sgd",
    "adam": "--optimizer adam",
    "adamw": "--optimizer adam",
    "muon": "--optimizer muon",
}
"""Options of the optimizers that Megatron-LM has."""

_DATA_PARALLEL_OPTIONS = (
    "--overlap-grad-reduce",
    "--use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather",
    "--use-megatron-fsdp --data-parallel-sharding-strategy optim_grads --use-distributed-optimizer",
    "--use-megatron-fsdp --data-parallel-sharding-strategy optim_grads_params --use-distributed-optimizer",
)
"""Options of each ZeRO stage."""


def megatron_options(
    config: ParallelConfig,
    batch_size: int,  # global batch in sequences
    sequence_length: int,  # tokens per sequence
    # Number of blocks of each virtual stage of each device of the pipeline, first by device.
    stage_blocks: tuple[tuple[int, ...], ...],
    recipe: str | None = None,  # of narrow products; None for bf16
    optimizer: str = "adam",  # name in `paleo_lite.timing.optimizers.OPTIMIZERS`
    fuses_loss: bool = False,  # whether the loss is one kernel
) -> str:
    """Return the options of Megatron-LM that choose a configuration."""
    options = [
        f"--tensor-model-parallel-size {config.tensor}",
        f"--pipeline-model-parallel-size {config.pipeline}",
        f"--micro-batch-size {config.micro_batch_size}",
        f"--global-batch-size {batch_size}",
        f"--seq-length {sequence_length}",
    ]
    if config.pipeline > 1:
        options.append(_pipeline_options(config, stage_blocks))
    if config.sequence_parallel:
        options.append("--sequence-parallel --tp-comm-overlap")
    if config.context > 1:
        options.append(f"--context-parallel-size {config.context}")
    if config.expert > 1:
        options.append(f"--expert-model-parallel-size {config.expert}")
        options.append(f"--expert-tensor-parallel-size {config.expert_tensor}")
        options.append(DISPATCHERS[config.dispatch or STACK_DISPATCHER].megatron_options)
    if config.expert_capacity is not None:
        options.append(f"--moe-expert-capacity-factor {config.expert_capacity:g}")
    if config.expert_overlap:
        options.append("--overlap-moe-expert-parallel-comm")
    options += [_DATA_PARALLEL_OPTIONS[config.zero_stage], _RECIPE_OPTIONS[recipe]]
    options.append(_OPTIMIZER_OPTIONS.get(optimizer, ""))
    if fuses_loss:
        options.append("--cross-entropy-loss-fusion --cross-entropy-fusion-impl te")
    options += _recomputation_options(config, max(map(sum, stage_blocks)))
    return " ".join(filter(None, options))


def describe_adapters(lora_rank: int | None) -> str:
    """Return what the options leave out of a step with LoRA adapters, as the end of a sentence; empty without any."""
    if not lora_rank:
        return ""
    return (
        f"; these train all weights: adapters of rank {lora_rank} are those of Megatron Bridge, "
        f"`peft=LoRA(dim={lora_rank})` of its recipes"
    )


def _pipeline_options(config: ParallelConfig, stage_blocks: tuple[tuple[int, ...], ...]) -> str:
    """Return the layout of a pipeline: a number of blocks per stage if they are equal, else every stage."""
    if config.layout:
        return f"--pipeline-model-parallel-layout '{megatron_layout(config.layout)}'"
    stages = [stage_blocks[device][part] for part in range(config.virtual_stages) for device in range(config.pipeline)]
    if len(set(stages)) > 1:
        text = "|".join("t" * blocks for blocks in stages)
        return f"--pipeline-model-parallel-layout 'E{text}L'"
    if config.virtual_stages == 1:
        return ""
    return f"--num-layers-per-virtual-pipeline-stage {stages[0]}"


def _recomputation_options(config: ParallelConfig, blocks_per_device: int) -> list[str]:
    """Return the options of recomputation; of whole blocks it is for a number of them per device."""
    options = []
    if config.recompute_modules:
        modules = " ".join(config.recompute_modules)
        options.append(f"--recompute-granularity selective --recompute-modules {modules}")
    elif config.recompute == "selective":
        options.append("--recompute-granularity selective --recompute-modules core_attn")
    elif config.recompute in ("full", "offload"):
        blocks = max(-(-blocks_per_device // config.recompute_every), 1)
        options.append(f"--recompute-granularity full --recompute-method block --recompute-num-layers {blocks}")
    if config.offloaded_share:
        options.append("--fine-grained-activation-offloading --offload-modules moe_act core_attn")
    return options

"""Options of `rl`: a step of reinforcement learning of a language model."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..counting.work import MEGATRON
from ..errors import BadValue
from ..reinforcement.frameworks import FRAMEWORKS, OPTIMIZER, PARAMETERS
from .completion import NETWORK, PLATFORM
from .names import CombinedNames, Names
from .option import Several, option
from .records import (
    ATTENTION,
    CACHE_FORMATS,
    COST_GROUP,
    ENGINE_GROUP,
    PARALLEL_GROUP,
    TRAINING_GROUP,
    DeviceOptions,
    NetworkAsked,
    PriceOptions,
    SiteOptions,
    TimeModelOptions,
    settings_of,
)
from .serve_options import SPECULATION_SETTINGS
from .values import INTEGER, NUMBER, TOKENS, KeyValues, MeanTokens, Number, Quantity, WholeNumber, YesNo

_MOST_SAMPLES = 2**22
"""Most responses in a step: the length of each is drawn."""

if TYPE_CHECKING:
    from ..reinforcement.algorithms import RlAlgorithm
    from ..reinforcement.frameworks import Framework

MEGATRON_SHARDING = "distributed-optimizer"
"""How Megatron-LM shards its state."""

STEP_GROUP = "Step"
ROLLOUT_GROUP = "Rollouts"

ENGINE_SETTINGS = KeyValues(
    {
        "eager": YesNo(),
        "max-sequences": INTEGER,
        "memory-fraction": Number(0, 1),
        "kv-cache": CACHE_FORMATS,
        "experts": INTEGER,
        "transfer": Names("transfer", ".reinforcement.frameworks:TRANSFERS"),
    }
)
REWARD_SETTINGS = KeyValues({"model": NETWORK, "seconds": Quantity("s")})
TURN_SETTINGS = KeyValues({"turns": INTEGER, "seconds": Quantity("s")})


@dataclass(frozen=True)
class Rl(PriceOptions, SiteOptions, TimeModelOptions, DeviceOptions, NetworkAsked):
    """Predict a step of reinforcement learning: rollouts, scoring, update, transfer of weights, memory and cost.

    Several values of options are a comparison of all combinations; with --advise divisions of the devices are ranked.
    """

    platform: Several[str | None] = option(
        group=PARALLEL_GROUP, is_common=True, type=PLATFORM, metavar="NAME|FILE",
        help="Computers of the devices, by name, dgx-h100. [default: those into which the device is usually built]",
    )  # fmt: skip
    workers: Several[int] = option(
        8, group=PARALLEL_GROUP, is_common=True, type=INTEGER, metavar="N",
        help="Number of all devices, of trainer and engines together.",
    )  # fmt: skip
    algorithm: Several[str] = option(
        "grpo", group=STEP_GROUP, is_common=True, metavar="NAME",
        type=Names("algorithm", ".reinforcement.algorithms:ALGORITHMS"),
        help="Algorithm: grpo, dapo, ppo, rloo, reinforce++, dpo, sft (on rollouts) or distillation (on policy).",
    )  # fmt: skip
    framework: Several[str] = option(
        "generic", group=STEP_GROUP, is_common=True, metavar="NAME",
        type=Names("framework", ".reinforcement.frameworks:FRAMEWORKS"),
        help=f"Framework, with its order of phases and its defaults: {', '.join(FRAMEWORKS)}.",
    )  # fmt: skip
    prompts: Several[int] = option(
        64, group=STEP_GROUP, is_common=True, type=INTEGER, metavar="N", help="Prompts per step."
    )
    samples_per_prompt: Several[int | None] = option(
        group=STEP_GROUP, is_common=True, type=INTEGER, metavar="N",
        help="Responses to each prompt. [default: 16 of grpo and dapo, 1 of ppo, otherwise 1 or 4]",
    )  # fmt: skip
    prompt_tokens: Several[int] = option(
        256, group=STEP_GROUP, is_common=True, type=TOKENS, metavar="TOKENS", help="Mean tokens of a prompt."
    )
    response_tokens: Several[float] = option(
        1024, group=STEP_GROUP, is_common=True, type=MeanTokens(example="1024 or 2k"), metavar="TOKENS",
        help="Mean tokens of a response.",
    )  # fmt: skip
    lengths: str | Path | None = option(
        group=STEP_GROUP, is_single=True, type=click.Path(path_type=Path, dir_okay=False), metavar="FILE",
        help="File with the tokens of one response per line, instead of --response-tokens.",
    )  # fmt: skip
    max_tokens: Several[int | None] = option(
        group=STEP_GROUP, is_common=True, type=TOKENS, metavar="TOKENS",
        help="Most tokens of prompt and response; longer responses are cut off. [default: the prompt and four times "
        "the mean response]",
    )  # fmt: skip
    clipped_share: Several[float | None] = option(
        group=STEP_GROUP, type=Number(0, 1), metavar="FRACTION",
        help="Fraction of the responses that is cut off. [default: that of a usual spread of lengths]",
    )  # fmt: skip
    updates_per_step: Several[int] = option(
        1, group=STEP_GROUP, is_common=True, type=INTEGER, metavar="N",
        help="Updates of the weights per step, each with a part of the samples.",
    )  # fmt: skip
    micro_batch: Several[int | None] = option(
        group=TRAINING_GROUP, is_common=True, type=INTEGER, metavar="N",
        spellings=("--micro-batch", "--micro-batch-size"),
        help="Samples per micro-batch of the trainer. [default: as many as --micro-batch-tokens has room for; 1 of "
        "frameworks that do not pack]",
    )  # fmt: skip
    micro_batch_tokens: Several[int | None] = option(
        group=TRAINING_GROUP, type=TOKENS, metavar="TOKENS",
        help="Tokens of a packed micro-batch per device. [default: those of the framework; with verl those of the "
        "longest sample, if they are more]",
    )  # fmt: skip
    precision: Several[str] = option(
        "bf16", group=TRAINING_GROUP, is_common=True, metavar="NAME",
        type=Names("precision", ".timing.training_options:TRAINING_PRECISIONS"),
        help="Precision of the trainer.",
    )  # fmt: skip
    tensor: Several[int] = option(
        1, group=TRAINING_GROUP, is_common=True, type=INTEGER, metavar="N",
        spellings=("--tensor", "--tensor-parallel-size"), help="Tensor-parallel size of the trainer.",
    )  # fmt: skip
    pipeline: Several[int] = option(
        1, group=TRAINING_GROUP, is_common=True, type=INTEGER, metavar="N",
        spellings=("--pipeline", "--pipeline-parallel-size"), help="Pipeline stages of the trainer.",
    )  # fmt: skip
    context_parallel: Several[int] = option(
        1, group=TRAINING_GROUP, is_common=True, type=INTEGER, metavar="N",
        spellings=("--context-parallel", "--context-parallel-size"), help="Context-parallel size of the trainer.",
    )  # fmt: skip
    expert_parallel: Several[int] = option(
        1, group=TRAINING_GROUP, is_common=True, type=INTEGER, metavar="N",
        spellings=("--expert-parallel", "--expert-parallel-size"), help="Expert-parallel size of the trainer.",
    )  # fmt: skip
    sharding: Several[str | None] = option(
        group=TRAINING_GROUP, type=Names("sharding", ".distributed.parallel_config:SHARDINGS"), metavar="NAME",
        spellings=("--sharding", "--strategy"),
        help="How the trainer shards its state: full-shard (FSDP), zero-3 (DeepSpeed), distributed-optimizer "
        "(Megatron-LM). [default: that of the framework; Megatron-LM's with --tensor, --pipeline or "
        "--expert-parallel]",
    )  # fmt: skip
    offload: Several[str | None] = option(
        group=TRAINING_GROUP, type=CombinedNames("offload", ".reinforcement.frameworks:OFFLOADS"), metavar="STATE",
        help="State of the trainer in the memory of the host while nothing needs it: none, optimizer, parameters, "
        "optimizer+parameters. [default: that of the framework: none with verl, both with nemo-rl]",
    )  # fmt: skip
    recompute: Several[str | None] = option(
        group=TRAINING_GROUP, type=Names("recomputation", ".distributed.parallel_config:RECOMPUTATIONS"),
        metavar="NAME",
        help="Activation recomputation: none, selective, full. [default: with Megatron-LM from Hopper on as much "
        "as the memory requires, otherwise full]",
    )  # fmt: skip
    attention: Several[str | None] = option(
        group=TRAINING_GROUP, type=ATTENTION, metavar="NAME",
        help="Implementation of attention of the trainer: eager, sdpa, flash1, flash2, flash3, cudnn. [default: flash2 "
        "up to Hopper, then cudnn; with Megatron-LM from Hopper on cudnn]",
    )  # fmt: skip
    lora: Several[int | None] = option(
        group=TRAINING_GROUP, is_common=True, type=INTEGER, metavar="RANK",
        spellings=("--lora", "--lora-rank"), help="Train LoRA adapters of this rank; all else is frozen.",
    )  # fmt: skip
    reference: bool | None = option(
        group=STEP_GROUP, type=YesNo(), is_single=True, metavar="yes|no",
        help="Whether log-probabilities under a reference are computed, for a penalty. [default: that of the "
        "algorithm; no with prime-rl]",
    )  # fmt: skip
    reward: dict[str, Any] | str | None = option(
        group=STEP_GROUP, type=REWARD_SETTINGS, metavar="KEY=VALUE,...",
        help="Rewards: model=NETWORK (a forward pass over all samples), seconds=TIME (of all rewards of a step). "
        "[default: a rule on the host]",
    )  # fmt: skip
    rollout_workers: Several[int | None] = option(
        group=ROLLOUT_GROUP, is_common=True, type=INTEGER, metavar="N",
        help="Devices of the engines alone, of those of --workers. [default: trainer and engines take turns on all; "
        "half of them with prime-rl]",
    )  # fmt: skip
    rollout_tensor: Several[int] = option(
        1, group=ROLLOUT_GROUP, is_common=True, type=INTEGER, metavar="N", help="Tensor-parallel size of an engine."
    )
    rollout_precision: Several[str | None] = option(
        group=ROLLOUT_GROUP, is_common=True, type=Names("format", ".formats:FORMATS"), metavar="FORMAT",
        help="Format of the weights of the engines, such as fp8. [default: --precision]",
    )  # fmt: skip
    steps_off: Several[int | None] = option(
        group=ROLLOUT_GROUP, is_common=True, type=WholeNumber(minimum=0), metavar="N",
        help="Steps by which rollouts may be older than the weights: trainer and engines work at the same time. "
        "[default: 0; 8 with prime-rl]",
    )  # fmt: skip
    engine: Several[str | None] = option(
        group=ENGINE_GROUP, is_common=True, metavar="NAME", type=Names("serving engine", ".engines.records:SERVERS"),
        help="Engine of the rollouts. [default: that of the framework]",
    )  # fmt: skip
    engine_settings: dict[str, Any] | str | None = option(
        group=ENGINE_GROUP, type=ENGINE_SETTINGS, metavar="KEY=VALUE,...",
        help="Settings of the engine: eager=yes (kernels are launched one by one, without graphs), max-sequences=N, "
        "memory-fraction=FRACTION, kv-cache=FORMAT, experts=N (groups of the --rollout-tensor devices that divide the "
        "experts of a mixture), transfer=WAY (of new weights: gathered on every device, broadcast by one, "
        "resharded, paired).",
    )  # fmt: skip
    speculation: dict[str, Any] | str | None = option(
        group=ENGINE_GROUP, type=SPECULATION_SETTINGS, metavar="KEY=VALUE,...",
        help="Speculative decoding: tokens=N (drafted per iteration), acceptance=PROBABILITY, draft=NETWORK "
        "or heads of the network (mtp, eagle3, parallel).",
    )  # fmt: skip
    tools: dict[str, Any] | str | None = option(
        group=ROLLOUT_GROUP, type=TURN_SETTINGS, metavar="KEY=VALUE,...",
        help="Agentic rollouts: turns=N (parts of a response), seconds=TIME (of a tool between two of them).",
    )  # fmt: skip
    advise: bool = option(
        False, group=PARALLEL_GROUP, is_common=True,
        help="Divide the devices between trainer and engines, choose the parallelism of both, and rank all divisions.",
    )  # fmt: skip
    steps: int | None = option(
        group=COST_GROUP, is_common=True, is_single=True, type=INTEGER, metavar="N",
        help="Number of steps, for hours, cost and energy.",
    )  # fmt: skip
    epochs: float | None = option(
        group=COST_GROUP, is_single=True, type=NUMBER, metavar="NUMBER",
        help="Passes over the prompts of --dataset-prompts. [default: 1]",
    )  # fmt: skip
    dataset_prompts: float | str | None = option(
        group=COST_GROUP, is_single=True, type=Quantity(""), metavar="COUNT",
        help="Prompts of the data set, 17k, instead of --steps.",
    )  # fmt: skip

    @property
    def rules(self) -> RlAlgorithm:
        """The record of the algorithm."""
        from ..reinforcement.algorithms import ALGORITHMS

        return ALGORITHMS[self.algorithm]

    @property
    def framework_rules(self) -> Framework:
        """The record of the framework, with the state that is offloaded as asked for."""
        framework = FRAMEWORKS[self.framework]
        if self.offload is None:
            return framework
        parts = str(self.offload).split("+")
        return framework._replace(offloads_optimizer=OPTIMIZER in parts, offloads_parameters=PARAMETERS in parts)

    @property
    def uses_megatron(self) -> bool:
        """Whether the trainer is Megatron-LM: where its divisions are asked for, or the framework has no other."""
        if self.sharding is not None:
            return self.sharding == MEGATRON_SHARDING
        divides = {self.tensor, self.pipeline, self.expert_parallel} != {1}
        return divides or self.framework_rules.execution == MEGATRON

    @property
    def execution(self) -> str:
        """The stack of the trainer."""
        return MEGATRON if self.uses_megatron else "eager"

    @property
    def used_sharding(self) -> str:
        """How the trainer shards its state."""
        if self.sharding is not None:
            return str(self.sharding)
        return MEGATRON_SHARDING if self.uses_megatron else self.framework_rules.sharding

    @property
    def used_rollout_precision(self) -> str:
        """Precision of the rollouts."""
        return str(self.rollout_precision or self.precision)

    @property
    def used_steps_off(self) -> int:
        """Steps by which rollouts may be older than the weights: those of the framework, on devices of their own."""
        if self.steps_off is not None:
            return int(self.steps_off)
        return 0 if self.rollout_workers is None else self.framework_rules.steps_off

    @property
    def is_eager(self) -> bool:
        """Whether the engine launches its kernels one by one."""
        is_eager: bool = settings_of(self.engine_settings).get("eager", self.framework_rules.is_eager)
        return is_eager

    def memory_fraction(self, *, is_colocated: bool) -> float | None:
        """Return the fraction of the memory that the engine takes; None for its own default.

        Beside a trainer on the same devices it is that of the framework.
        """
        usual = self.framework_rules.memory_fraction if is_colocated else None
        fraction: float | None = settings_of(self.engine_settings).get("memory-fraction", usual)
        return fraction

    @property
    def used_samples_per_prompt(self) -> int:
        """Responses to a prompt."""
        return self.samples_per_prompt or self.rules.samples_per_prompt

    @property
    def samples(self) -> int:
        """Samples of a step."""
        samples = int(self.prompts) * self.used_samples_per_prompt
        if samples > _MOST_SAMPLES:
            raise BadValue(
                f"`--prompts` times `--samples-per-prompt` must be at most {_MOST_SAMPLES:,} responses in a step "
                f"(got {samples:,})"
            )
        return samples

    @property
    def longest_response(self) -> int:
        """Most tokens of a response."""
        prompt_tokens: int = self.prompt_tokens
        longest: int = self.max_tokens or prompt_tokens + round(4 * self.response_tokens)
        if longest <= prompt_tokens:
            raise BadValue(
                f"`--max-tokens` counts prompt and response, and must exceed the {prompt_tokens:,} tokens of "
                f"`--prompt-tokens` (got {longest:,})"
            )
        return longest - prompt_tokens

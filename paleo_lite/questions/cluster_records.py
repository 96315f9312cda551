"""Options of training on many devices: how much is trained, on which devices, and how they divide a step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import click

from .completion import LINK, PLATFORM
from .names import ListedNames, Names, StrategyNames
from .option import Options, option
from .records import COST_GROUP, PARALLEL_GROUP
from .values import INTEGER, NUMBER, PPP, KeyValues, Quantity, YesNo


@dataclass(frozen=True)
class AmountOptions(Options):
    """How much is trained, for hours, cost and energy."""

    samples: float | str | None = option(
        group=COST_GROUP, is_common=True, type=Quantity(""), metavar="COUNT",
        help="Samples per epoch, 52k or 1.28M, to predict hours, cost and energy; each sample of a language model is "
        "padded to a sequence.",
    )  # fmt: skip
    tokens: float | str | None = option(
        group=COST_GROUP, is_common=True, metavar="COUNT",
        help="Tokens per epoch, 15B, to predict hours, cost and energy; of packed samples their number times their "
        "mean length.",
    )  # fmt: skip
    epochs: float | None = option(
        group=COST_GROUP, is_common=True, type=NUMBER, metavar="NUMBER",
        spellings=("--epochs", "--num-train-epochs"), help="Epochs for hours and cost. [default: 1]",
    )  # fmt: skip


@dataclass(frozen=True)
class ClusterOptions(Options):
    """Several devices, and how they are connected."""

    workers: int | str | Sequence[int] | None = option(
        group=PARALLEL_GROUP, is_common=True, type=INTEGER, metavar="RANGE",
        spellings=("--workers", "--num-processes"),
        help="Number of devices: 8, 1,2,4,...,128 or 1:128:x2. [default: 1, or all of a topology]",
    )  # fmt: skip
    platform: str | None = option(
        group=PARALLEL_GROUP, is_common=True, type=PLATFORM, metavar="NAME|TEXT|FILE",
        spellings=("--platform", "--topology"),
        help="Computers by name, p4d.24xlarge or dgx-h100, or with measured scaling, ec2-p2-k80 or dgx1-p100; or a "
        "topology, '2x k40m @ pcie3, 16 nodes @ infiniband', or a TOML file. [default: the computer into which the "
        "device is usually built]",
    )  # fmt: skip
    link: str | None = option(
        group=PARALLEL_GROUP, type=LINK, metavar="LINK",
        help="Link between all devices, instead of --platform: ethernet20, infiniband-fdr, '25 GB/s'.",
    )  # fmt: skip


EXPERT_SETTINGS = KeyValues(
    {
        "dispatch": Names("library", ".distributed.expert_exchange:DISPATCHERS"),
        "kernels": Names("kernels", ".timing.expert_kernels:EXPERT_KERNELS"),
        "tensor": INTEGER,
        "imbalance": NUMBER,
        "capacity": NUMBER,
        "overlap": NUMBER,
    }
)
SCHEDULE_SETTINGS = KeyValues({"layout": click.STRING, "interleaved": INTEGER, "micro-batches": INTEGER})
COMMUNICATION_SETTINGS = KeyValues(
    {
        "collective": Names("collective", ".distributed.collectives:COLLECTIVES"),
        "precision": ListedNames("precision", ("fp32", "fp16", "bf16")),
        "bucket": Quantity("B"),
        "overlap": YesNo(),
        "slowdown": NUMBER,
        "interference": NUMBER,
        "ppp": PPP,
        "sequence-parallel": YesNo(),
    }
)
FEED_SETTINGS = KeyValues({"storage": LINK, "decode": click.STRING, "pageable": YesNo()})


@dataclass(frozen=True)
class ParallelOptions(Options):
    """How several devices divide a training step."""

    strategy: str | None = option(
        group=PARALLEL_GROUP, is_common=True, metavar="NAME", spellings=("--strategy", "--sharding", "--fsdp"),
        type=StrategyNames("strategy", ".distributed.strategies:STRATEGIES", ".distributed.parallel_config:SHARDINGS"),
        help="How devices divide a step: data (ddp), zero-1 to zero-3, FSDP's full-shard, shard-grad-op and "
        "hybrid-shard, Megatron-LM's distributed-optimizer; of networks layer by layer also hybrid, tensor, "
        "pipeline-1f1b, ... [default: data; zero-1 with --tensor, --pipeline or another option of networks in blocks]",
    )  # fmt: skip
    tensor: int = option(
        1, group=PARALLEL_GROUP, is_common=True, type=INTEGER, metavar="N",
        spellings=("--tensor", "--tensor-parallel-size", "--tensor-model-parallel-size", "-tp"),
        help="Tensor-parallel size, within a node: of blocks, or of the layers of other networks, such as denoisers.",
    )  # fmt: skip
    pipeline: int = option(
        1, group=PARALLEL_GROUP, is_common=True, type=INTEGER, metavar="N",
        spellings=("--pipeline", "--pipeline-parallel-size", "--pipeline-model-parallel-size", "-pp"),
        help="Pipeline-parallel size: stages of about equally many blocks.",
    )  # fmt: skip
    context_parallel: int = option(
        1, group=PARALLEL_GROUP, type=INTEGER, metavar="N", spellings=("--context-parallel", "--context-parallel-size"),
        help="Context-parallel size (ring attention).",
    )  # fmt: skip
    expert_parallel: int = option(
        1, group=PARALLEL_GROUP, type=INTEGER, metavar="N",
        spellings=("--expert-parallel", "--expert-model-parallel-size"),
        help="Expert-parallel size, for mixtures of experts.",
    )  # fmt: skip
    micro_batch: int | None = option(
        group=PARALLEL_GROUP, type=INTEGER, metavar="N",
        spellings=(
            "--micro-batch", "--micro-batch-size", "--per-device-train-batch-size", "--train-micro-batch-size-per-gpu"
        ),
        help="Samples per micro-batch, of which --accumulation make up the batch of a device. [default: the batch over "
        "--accumulation; 1 of networks in blocks]",
    )  # fmt: skip
    experts: dict[str, Any] | str | None = option(
        group=PARALLEL_GROUP, type=EXPERT_SETTINGS, metavar="KEY=VALUE,...",
        help="Mixtures of experts: dispatch=LIBRARY (which sends tokens to their experts), kernels=separate|fused "
        "(of megatron) or grouped|loop|dense|dense-loop (of PyTorch: one kernel for all experts, as in transformers "
        "from 5.0 on; before, a loop over experts, or in Llama 4 every expert on every token), tensor=N (devices that "
        "divide the matrices of every expert), imbalance=FACTOR (tokens of the experts of the busiest device over the "
        "mean), capacity=FACTOR (tokens beyond so many times the mean are dropped), overlap=FRACTION (of the exchange, "
        "which computation hides).",
    )  # fmt: skip
    schedule: dict[str, Any] | str | None = option(
        group=PARALLEL_GROUP, type=SCHEDULE_SETTINGS, metavar="KEY=VALUE,...",
        help="Schedule of pipeline parallelism: interleaved=N (virtual stages per device), micro-batches=N, "
        "layout=TEXT (blocks of each stage, as 6,9,9,8 or as Megatron-LM writes them: 'Et*3|(tt|)*29,L', last in the "
        "list).",
    )  # fmt: skip
    communication: dict[str, Any] | str | None = option(
        group=PARALLEL_GROUP, type=COMMUNICATION_SETTINGS, metavar="KEY=VALUE,...",
        help="Exchange of gradients and activations: collective=NAME (of the all-reduce), precision=fp32|fp16|bf16, "
        "bucket=SIZE "
        "(default 25 MiB, the first 1 MiB), overlap=no (after the backward pass instead of during it), "
        "slowdown=FRACTION (slowdown of computation on several devices), interference=FRACTION (of computation "
        "while communication is hidden), ppp=FRACTION (of the link bandwidth that is reached), "
        "sequence-parallel=yes (tensor-parallel devices divide the activations between products, too; with megatron "
        "and for mixtures of experts the default).",
    )  # fmt: skip
    feed: dict[str, Any] | str | None = option(
        group=PARALLEL_GROUP, type=FEED_SETTINGS, metavar="KEY=VALUE,...",
        help="Input of each node: storage=hdd|ssd|nvme|memory|'500 MB/s', decode=RATE (samples per second that a node "
        "decodes), pageable=yes (one process copies the samples of all devices of a node from pageable memory).",
    )  # fmt: skip

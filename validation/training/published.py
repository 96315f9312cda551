"""Published training steps of language models on 2 to 256 devices.

The tables are ``modern/transformer_training.csv`` and ``today/transformer_training_h100.csv``.

Sources: mosaicml/llm-foundry 8c8dd48 (Apache-2.0), VIA-Research/vTrain f8dda84 (MIT), NVIDIA-NeMo/Megatron-Bridge
067f987 (Apache-2.0). From Megatron-Bridge only pre-training in 8 bits is read, for networks with sizes in the table.
Mixtures of experts have none: `validation.training.pretraining` judges them, with the constants of a tuned stack.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from paleo_lite.distributed.parallel_config import ParallelConfig
from paleo_lite.errors import BadFile

from ..tables import rows_of

_BOARDS = {
    "A100 SXM4 80GB": "a100-sxm-80gb",
    "A100 SXM4 40GB": "a100-sxm-40gb",
    "H100 SXM5 80GB": "h100-sxm",
    "GB200": "gb200",
    "B200": "b200",
}
"""Ids of the devices in the tables."""

TABLES = ("modern/transformer_training.csv", "today/transformer_training_h100.csv")
"""Tables of training steps in the folder of measurements."""


class TrainedStep(NamedTuple):
    """A measured step."""

    source: str
    gpu: str
    model: str
    billions: float  # parameters in billions
    config: str  # hugging Face config in JSON
    # Tokens per sequence, global batch size in sequences, and number of devices.
    length: int
    batch_size: int
    workers: int
    split: ParallelConfig
    precision: str
    topology: str
    time_s: float
    fused_loss: bool = False  # whether the cross entropy is computed by a single kernel


class Published(NamedTuple):
    """Steps that were read, and the number of omitted rows by reason."""

    steps: list[TrainedStep]
    left_out: dict[str, int]


def trained_steps(folder: Path) -> Published:
    """Read the tables; count the omitted rows by reason.

    Raises
    ------
    BadFile
        If a table is missing or a row cannot be read.
    """
    left_out: Counter[str] = Counter()
    steps = []
    for table in TABLES:
        path = folder / table
        for row in rows_of(path):
            source = row["source"].split("@")[0].split("/")[-1]
            reason = _reason_to_omit(row)
            if reason:
                left_out[f"{source}: {reason}"] += 1
                continue
            try:
                steps.append(_step(source, row))
            except (KeyError, ValueError) as error:
                raise BadFile(f"{path}: a row cannot be read: {error}") from None
    return Published(steps, dict(left_out))


def _reason_to_omit(row: dict[str, str]) -> str:
    if not row["layers"]:
        return "the table does not contain the sizes of the network"
    if row["gpu"] not in _BOARDS:
        return f"no hardware file for {row['gpu']}"
    if "Pre-Training" not in row["software"] and "Performance" in row["software"]:
        return "fine-tuning"
    return "4 bits" if row["precision"] == "nvfp4" else ""


def _step(source: str, row: dict[str, str]) -> TrainedStep:
    def integer(name: str) -> int:
        return int(float(row[name] or 1))

    length, batch_size, workers = integer("seq_len"), integer("global_batch_seqs"), integer("n_gpus")
    tokens_per_s = float(row["tokens_per_s_per_gpu"]) * workers
    time_s = float(row["iteration_ms"]) / 1e3 if row["iteration_ms"] else batch_size * length / tokens_per_s
    hidden, layers = integer("hidden"), integer("layers")
    inner, vocabulary = integer("ffn_hidden"), integer("vocab")
    billions = float(row["params_b"] or 0) or layers * hidden * (hidden * 2.25 + 3 * inner) / 1e9
    setup = _SOURCES[source](row, integer)
    sizes = {
        "hidden": hidden,
        "layers": layers,
        "heads": integer("heads"),
        "kv_heads": integer("kv_heads"),
        "inner": inner,
        "vocabulary": vocabulary,
        "length": length,
    }
    return TrainedStep(
        source, _BOARDS[row["gpu"]], row["model"], billions, json.dumps(setup.config(**sizes)), length, batch_size,
        workers, setup.split, setup.precision, setup.topology.format(
            device=_BOARDS[row["gpu"]], inside=min(workers, setup.node), nodes=max(workers // setup.node, 1)
        ), time_s, setup.fused_loss,
    )  # fmt: skip


class _Setup(NamedTuple):
    """Training setup of a source: config, parallelism, precision and machine."""

    config: Callable[..., dict[str, Any]]
    split: ParallelConfig
    precision: str
    topology: str
    node: int
    fused_loss: bool = False


def _gpt(hidden: int, layers: int, heads: int, inner: int, vocabulary: int, length: int, **rest: Any) -> dict[str, Any]:
    attention = rest.get("attention", "sdpa")
    return {
        "model_type": "gpt2", "vocab_size": vocabulary, "n_embd": hidden, "n_layer": layers, "n_head": heads,
        "n_inner": inner, "n_positions": length, "activation_function": "gelu_pytorch_tanh",
        "attn_implementation": attention,
    }  # fmt: skip


def _llama(
    hidden: int, layers: int, heads: int, inner: int, vocabulary: int, length: int, kv_heads: int
) -> dict[str, Any]:
    return {
        "model_type": "llama", "vocab_size": vocabulary, "hidden_size": hidden, "num_hidden_layers": layers,
        "num_attention_heads": heads, "num_key_value_heads": kv_heads, "intermediate_size": inner,
        "max_position_embeddings": length,
    }  # fmt: skip


_A100 = "{inside}x {device} @ nvlink3-x12, {nodes} nodes @ 1600 Gbit/s"
_H100 = "{inside}x {device} @ nvlink4-x18, {nodes} nodes @ 3200 Gbit/s"


def _llm_foundry(row: dict[str, str], integer: Callable[..., int]) -> _Setup:
    """Return the setup of llm-foundry: FSDP, the first FlashAttention, nodes of 8 devices at 1,600 or 3,200 Gbit/s.

    The benchmark asked for Triton's kernel (``--attn_impl`` of scripts/train/benchmarking/submit_benchmarks.py), and
    its table of A100 is older than FlashAttention 2. Over 65,536 tokens attention takes most of a step: it reaches 0.33
    of the peak of A100 and 0.18 of that of H100.
    """
    split = ParallelConfig(
        micro_batch_size=integer("micro_batch"),
        zero_stage=3,
        recompute=row["activation_checkpointing"],
        execution="eager",
        attention="flash1",
    )
    return _Setup(_gpt, split, "bf16", _H100 if row["gpu"].startswith("H100") else _A100, 8, True)


def _vtrain(row: dict[str, str], integer: Callable[..., int]) -> _Setup:
    """Return the setup of vTrain: Megatron-DeepSpeed with unfused attention on one node."""
    split = ParallelConfig(integer("tp"), integer("pp"), micro_batch_size=integer("micro_batch"), zero_stage=0)
    return _Setup(lambda **sizes: _gpt(**sizes, attention="eager"), split, "fp16", _A100, 8)


def _bridge(row: dict[str, str], integer: Callable[..., int]) -> _Setup:
    """Return the setup of Megatron-Bridge: fp8 matrix products, bf16 otherwise; FSDP without model parallelism."""
    is_data_parallel = integer("tp") == integer("pp") == integer("ep") == 1
    split = ParallelConfig(
        integer("tp"), integer("pp"), integer("vpp"), integer("tp") > 1, integer("micro_batch"),
        zero_stage=3 if is_data_parallel else 1, expert=integer("ep"),
    )  # fmt: skip
    node = 64 if row["gpu"].startswith("GB") else 8
    topology = f"{{inside}}x {{device}} @ nvlink5-x18, {{nodes}} nodes @ {node}x infiniband-ndr"
    return _Setup(_llama, split, "fp8", topology, node)


_SOURCES: dict[str, Callable[..., _Setup]] = {
    "llm-foundry": _llm_foundry, "vTrain": _vtrain, "Megatron-Bridge": _bridge,
}  # fmt: skip

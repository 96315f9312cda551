"""Training steps of language models that others timed on 2 to 256 devices.

The tables are ``modern/transformer_training.csv`` and ``today/transformer_training_h100.csv``.

mosaicml/llm-foundry 8c8dd48 (Apache-2.0), VIA-Research/vTrain f8dda84 (MIT), NVIDIA-NeMo/Megatron-Bridge 067f987
(Apache-2.0). Of Megatron-Bridge the networks whose sizes are in the table, pre-trained in 8 bits, and Qwen3's mixtures
of experts, whose sizes their own configs say (Apache-2.0).
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from paleo_lite.distributed.job import ParallelConfig
from paleo_lite.errors import BadFile

from ..tables import rows_of

_MIXTURES: dict[str, dict[str, float]] = {
    "Qwen3_30B_a3B": {"hidden": 2048, "layers": 48, "heads": 32, "ffn_hidden": 768, "params_b": 3.3},
    "Qwen3_235B_a22B": {"hidden": 4096, "layers": 94, "heads": 64, "ffn_hidden": 1536, "params_b": 22},
}
"""Sizes of Qwen/Qwen3-30B-A3B and Qwen/Qwen3-235B-A22B, and the parameters that a token takes."""

_BOARDS = {
    "A100 SXM4 80GB": "a100-sxm-80gb",
    "A100 SXM4 40GB": "a100-sxm-40gb",
    "H100 SXM5 80GB": "h100-sxm",
    "GB200": "gb200",
    "B200": "b200",
}
"""Devices of the tables, and their hardware files."""

TABLES = ("modern/transformer_training.csv", "today/transformer_training_h100.csv")
"""Tables of training steps in the folder of measurements."""


class TrainedStep(NamedTuple):
    """A measured step.

    Attributes
    ----------
    source, gpu, model : str
    billions : float
        Parameters; of a mixture of experts those that a token takes.
    config : str
        As Hugging Face would write it, in JSON.
    length, batch_size, workers : int
        Tokens of a sequence; sequences and devices together.
    split : ParallelConfig
    precision : str
    topology : str
    time_s : float
    fused_loss : bool
        Whether the cross entropy is one kernel.
    """

    source: str
    gpu: str
    model: str
    billions: float
    config: str
    length: int
    batch_size: int
    workers: int
    split: ParallelConfig
    precision: str
    topology: str
    time_s: float
    fused_loss: bool = False

    @property
    def is_mixture(self) -> bool:
        """Whether tokens choose among experts."""
        return "num_experts" in self.config


class Published(NamedTuple):
    """Steps, and how many rows were left out for which reason."""

    steps: list[TrainedStep]
    left_out: dict[str, int]


def trained_steps(folder: Path) -> Published:
    """Every row, read or counted with the reason why not.

    Raises
    ------
    BadFile
        If the folder does not hold the table, or a row cannot be read.
    """
    left_out: Counter[str] = Counter()
    steps = []
    for table in TABLES:
        path = folder / table
        for fields in rows_of(path):
            sizes = _MIXTURES.get(fields["model"], {})
            row = {**fields, **{name: str(size) for name, size in sizes.items()}}
            source = row["source"].split("@")[0].split("/")[-1]
            reason = _why_not(row)
            if reason:
                left_out[f"{source}: {reason}"] += 1
                continue
            try:
                steps.append(_step(source, row))
            except (KeyError, ValueError) as error:
                raise BadFile(f"{path}: a row cannot be read: {error}") from None
    return Published(steps, dict(left_out))


def _why_not(row: dict[str, str]) -> str:
    if not row["layers"]:
        return "the sizes of the network are not in the table"
    if row["gpu"] not in _BOARDS:
        return f"no hardware file of {row['gpu']}"
    if "Pre-Training" not in row["software"] and "Performance" in row["software"]:
        return "fine-tuning"
    return "4 bits" if row["precision"] == "nvfp4" else ""


def _step(source: str, row: dict[str, str]) -> TrainedStep:
    def whole(name: str, otherwise: int = 1) -> int:
        return int(float(row[name] or otherwise))

    length, batch_size, workers = whole("seq_len"), whole("global_batch_seqs"), whole("n_gpus")
    tokens_per_s = float(row["tokens_per_s_per_gpu"]) * workers
    time_s = float(row["iteration_ms"]) / 1e3 if row["iteration_ms"] else batch_size * length / tokens_per_s
    hidden, layers = whole("hidden"), whole("layers")
    inner, vocabulary = whole("ffn_hidden"), whole("vocab")
    billions = float(row["params_b"] or 0) or layers * hidden * (hidden * 2.25 + 3 * inner) / 1e9
    how = _SOURCES[source](row, whole)
    sizes = {"hidden": hidden, "layers": layers, "heads": whole("heads"), "kv_heads": whole("kv_heads"), "inner": inner,
             "vocabulary": vocabulary, "length": length}  # fmt: skip
    return TrainedStep(
        source, _BOARDS[row["gpu"]], row["model"], billions, json.dumps(how.config(**sizes)), length, batch_size,
        workers, how.split, how.precision, how.topology.format(
            device=_BOARDS[row["gpu"]], inside=min(workers, how.node), nodes=max(workers // how.node, 1)
        ), time_s, how.fused_loss,
    )  # fmt: skip


class _How(NamedTuple):
    """How a source trains: what its config is, how work is shared out, on which machine."""

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


def _qwen3(
    hidden: int, layers: int, heads: int, inner: int, vocabulary: int, length: int, kv_heads: int
) -> dict[str, Any]:
    return {
        "model_type": "qwen3_moe", "vocab_size": 151936, "hidden_size": hidden, "num_hidden_layers": layers,
        "num_attention_heads": heads, "num_key_value_heads": 4, "head_dim": 128, "intermediate_size": inner,
        "moe_intermediate_size": inner, "num_experts": 128, "num_experts_per_tok": 8, "norm_topk_prob": True,
        "max_position_embeddings": 40960,
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


def _llm_foundry(row: dict[str, str], whole: Callable[..., int]) -> _How:
    """FSDP in PyTorch, attention in one kernel; nodes of eight, 1,600 or 3,200 Gbit/s between them."""
    split = ParallelConfig(
        micro_batch_size=whole("micro_batch"),
        zero_stage=3,
        recompute=row["activation_checkpointing"],
        execution="eager",
        attention="flash2",
    )
    return _How(_gpt, split, "bf16", _H100 if row["gpu"].startswith("H100") else _A100, 8, True)


def _vtrain(row: dict[str, str], whole: Callable[..., int]) -> _How:
    """Megatron-DeepSpeed, attention in several kernels; one node."""
    split = ParallelConfig(whole("tp"), whole("pp"), micro_batch_size=whole("micro_batch"), zero_stage=0)
    return _How(lambda **sizes: _gpt(**sizes, attention="eager"), split, "fp16", _A100, 8)


def _bridge(row: dict[str, str], whole: Callable[..., int]) -> _How:
    """Megatron's products in 8 bits, all else in bf16; where nothing shares the network, its state is (FSDP)."""
    alone = whole("tp") == whole("pp") == whole("ep") == 1
    split = ParallelConfig(
        whole("tp"), whole("pp"), whole("vpp"), whole("tp") > 1, whole("micro_batch"), zero_stage=3 if alone else 1,
        expert=whole("ep"),
    )  # fmt: skip
    node = 64 if row["gpu"].startswith("GB") else 8
    topology = f"{{inside}}x {{device}} @ nvlink5-x18, {{nodes}} nodes @ {node}x infiniband-ndr"
    return _How(_qwen3 if row["model"] in _MIXTURES else _llama, split, "fp8", topology, node)


_SOURCES: dict[str, Callable[..., _How]] = {
    "llm-foundry": _llm_foundry, "vTrain": _vtrain, "Megatron-Bridge": _bridge,
}  # fmt: skip

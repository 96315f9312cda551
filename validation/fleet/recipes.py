"""Deployments of published runs with split pools: `recipes.csv`.

The measurements name devices, parallelism and users, but not how many workers each pool has, nor whether they draft.
Those are the settings with which InferenceX ran DeepSeek-R1 (SemiAnalysisAI/InferenceX on GitHub, Apache-2.0,
`.github/configs/nvidia-master.yaml`): per line the replicas of each pool with their tensor, expert and attention
data-parallel degrees, tokens drafted by the network's own heads, and the sequences of a decode rank (TensorRT-LLM) or
replica (SGLang; empty where its default holds). Tokens drafted under SGLang are not published: 2 are assumed.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import NamedTuple

from ..tables import rows_of

FILE = Path(__file__).with_name("recipes.csv")


class PoolSize(NamedTuple):
    """Replicas of a pool, and how each is divided."""

    replicas: int
    tensor: int
    experts: int
    attention: int
    sequences: int = 0  # at the same time; 0 for the default of the engine


class Recipe(NamedTuple):
    """A published deployment."""

    gpu: str
    engine: str
    precision: str
    input_tokens: int
    output_tokens: int
    concurrency: int
    drafted: int
    prefill: PoolSize
    decode: PoolSize


@cache
def recipes() -> tuple[Recipe, ...]:
    """Return all deployments, one per number of users."""
    published = []
    for row in rows_of(FILE):
        prefill, decode = _pool(row, "prefill"), _pool(row, "decode")
        for users in row["concurrency"].split():
            published.append(
                Recipe(
                    row["gpu"], row["engine"], row["precision"], int(row["input_tokens"]), int(row["output_tokens"]),
                    int(users), int(row["drafted"]), prefill, decode,
                )
            )  # fmt: skip
    return tuple(published)


def _pool(row: dict[str, str], name: str) -> PoolSize:
    """Return a pool of a row."""
    replicas, tensor, experts, attention = (
        int(row[f"{name}_{field}"]) for field in ("replicas", "tensor", "experts", "attention")
    )
    return PoolSize(replicas, tensor, experts, attention, int(row.get(f"{name}_sequences") or 0))

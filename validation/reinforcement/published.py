"""Published steps as questions, and the reader of NeMo-RL's performance summaries."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import paleo_lite as pl

from ..tables import rows_of

NEMO_MODELS = {
    "LLAMA3.1_8B": "llama-3.1-8b",
    "DeepSeek V3": "deepseek-v3",
    "Qwen3-235B": "qwen3-235b-a22b",
    "Qwen3-30B3A": "qwen3-30b-a3b",
    "Qwen3-32B": "qwen3-32b",
    "Nemotron-3-Nano-30B-A3B": "nemotron-3-nano-30b-a3b",
}
"""Networks by the names of the summaries."""

NEMO_DEVICES = {"H100": "h100-sxm", "GB200": "gb200"}
PROMPT_TOKENS = 105
"""Mean tokens of a prompt of the data set of the summaries."""

SAMPLES_PER_PROMPT = {2048: 32, 512: 16}
"""Responses to a prompt by the samples of a step, as the recipes say."""


STEP, TRAINER, TRANSFER = "step", "trainer", "transfer"
"""What a published row gives enough for: a whole step, the passes of the trainer alone, the transfer of weights."""


class RlMeasurement(NamedTuple):
    """A published step, or a part of one."""

    source: str
    framework: str
    version: str
    question: pl.Rl
    time_s: float | None  # of a whole step
    phases: dict[str, float]  # seconds of the phases that are published, by their names in `PHASES`
    part: str = STEP
    # Whether a transfer has the conversion to a narrower format: not where weights were converted before.
    has_conversion: bool = True

    @property
    def network(self) -> str:
        """Name of the network."""
        return str(self.question.network)

    @property
    def gpu(self) -> str:
        """ID of the device."""
        return str(self.question.gpu)


def nemo_rows(data: Path) -> Iterator[RlMeasurement]:
    """Iterate over the steps of NeMo-RL's summaries of which the division is published."""
    for row in rows_of(data / "rl" / "nemo_rl.csv"):
        off = 0 if row["policy"].startswith("On") else int(row["policy"].split("-")[0])
        if off and not row["rollout_gpus"]:
            continue  # which devices generate is not known
        yield RlMeasurement(
            "NeMo-RL's performance summaries",
            "nemo-rl",
            row["version"],
            _nemo_question(row, off),
            float(row["step_s"]),
            {},
        )


def _nemo_question(row: dict[str, str], off: int) -> pl.Rl:
    """Return the question about a row of the summaries."""
    degrees = [part.strip() for part in row["training"].strip("[]").split(",")]
    if len(degrees) == 7:  # of the first recipes: degrees by another order, without experts
        tensor, context, expert, pipeline = int(degrees[0]), int(degrees[1]), 1, int(degrees[5])
    else:
        tensor, context, expert, pipeline = (int(part) for part in degrees[:4])
    workers, samples = int(row["gpus"]), int(row["rollout_batch"])
    rollout_workers = int(row["rollout_gpus"]) if row["rollout_gpus"] else None
    per_prompt = SAMPLES_PER_PROMPT[samples]
    return pl.Rl(
        network=NEMO_MODELS[row["model"]],
        gpu=NEMO_DEVICES[row["system"]],
        workers=workers,
        algorithm=row["algorithm"].lower(),
        framework="nemo-rl",
        prompts=samples // per_prompt,
        samples_per_prompt=per_prompt,
        prompt_tokens=PROMPT_TOKENS,
        response_tokens=float(row["mean_sequence"]),
        max_tokens=int(row["max_sequence"]),
        updates_per_step=samples // int(row["train_batch"]),
        tensor=tensor,
        context_parallel=context,
        expert_parallel=min(expert, workers - (rollout_workers or 0)),
        pipeline=pipeline,
        rollout_tensor=json.loads(row["generation"])[0],
        rollout_workers=rollout_workers,
        steps_off=off,
        precision="fp8" if "Training FP8" in row["precision"] else "bf16",
        rollout_precision="fp8" if "Generation FP8" in row["precision"] else None,
    )

"""Predicted and measured speedup of fp16 over fp32: the tables of ``docs/training.md``.

    python benchmarks/fp16_speedup.py            predictions for V100, T4 and A100
    python benchmarks/fp16_speedup.py DATA       also measured speedups, from the published measurements in DATA

They test the claim "between 1.5x and 5x for common models" (course slides "Performance and Profiling").
"""

from __future__ import annotations

import statistics
import sys
from collections import defaultdict
from pathlib import Path

from paleo_lite.api.prediction import predict_pass
from paleo_lite.api.question import Question
from paleo_lite.errors import PaleoError
from paleo_lite.timing.training_options import TrainingOptions
from validation.steps.published import published_steps

NETWORKS = (
    "alexnet", "vgg16", "googlenet", "inception_v3", "resnet18", "resnet50", "resnet152", "resnext50_32x4d",
    "wide_resnet50_2", "densenet121", "squeezenet1_0", "mobilenet_v2", "efficientnet_b0", "vit_b_16", "swin_t",
)  # fmt: skip
DEVICES = ("v100-sxm2", "t4", "a100-sxm-40gb")
BATCH_SIZE = 64
LOW, HIGH = 1.5, 5.0


def speedup(network: str, gpu: str, batch_size: int, phase: str, time_model: str | None = None) -> float:
    """Return the time in fp32 over the time in fp16; a training step in fp16 uses mixed precision."""
    times = []
    for precision in ("fp32", "fp16"):
        options = TrainingOptions("momentum", mixed_precision=precision == "fp16") if phase == "training" else None
        question = Question(
            network, gpu, precision=precision, batch_size=batch_size, phase=phase, training=options,
            time_model=time_model,
        )  # fmt: skip
        times.append(predict_pass(question).time_s)
    return times[0] / times[1]


def predicted_table() -> None:
    """Print predicted speedups at batch size 64, and the bound of the roofline."""
    phases = ("inference", "training")
    print(f"Predicted, batch {BATCH_SIZE}; in brackets the roofline's figure:\n")
    print("| network | " + " | ".join(f"{gpu} {phase}" for gpu in DEVICES for phase in phases) + " |")
    print("| :-- |" + " --: |" * (len(DEVICES) * len(phases)))
    inside: dict[tuple[str, str], list[bool]] = defaultdict(list)
    for network in NETWORKS:
        cells = []
        for gpu in DEVICES:
            for phase in phases:
                expected = speedup(network, gpu, BATCH_SIZE, phase)
                inside[gpu, phase].append(LOW <= expected <= HIGH)
                cells.append(f"{expected:.2f} ({speedup(network, gpu, BATCH_SIZE, phase, 'roofline'):.1f})")
        print(f"| {network} | " + " | ".join(cells) + " |")
    share = [f"**{sum(inside[gpu, phase])} of {len(NETWORKS)}**" for gpu in DEVICES for phase in phases]
    print("| **within 1.5 to 5** | " + " | ".join(share) + " |")


def measured_table(folder: Path) -> None:
    """Print measured and predicted speedups by source, device, phase and batch size."""
    times: dict[tuple[str, ...], dict[str, float]] = defaultdict(dict)
    for step in published_steps(folder / "measured").measurements:
        if step.precision in ("fp32", "fp16"):
            key = (step.gpu, step.source, step.phase, str(step.batch_size), step.network)
            times[key][step.precision] = step.time_s
    groups: dict[tuple[str, ...], list[tuple[str, float, float]]] = defaultdict(list)
    for (gpu, source, phase, batch_size, network), pair in times.items():
        if len(pair) == 2:
            try:
                expected = speedup(network, gpu, int(batch_size), phase)
            except PaleoError as error:
                sys.exit(f"{network} on {gpu}: {error}")
            groups[gpu, source, phase, batch_size].append((network, pair["fp32"] / pair["fp16"], expected))
    print("\nMeasured, and predicted for the same:\n")
    titles = "gpu | phase | batch | networks | median | smallest | largest | within 1.5 to 5 | predicted | mean error"
    print(f"| {titles} |")
    print("| :-- | :-- | --: | --: | --: | :-- | :-- | --: | --: | --: |")
    for (gpu, _, phase, batch_size), rows in sorted(
        groups.items(), key=lambda group: (*group[0][:3], int(group[0][3]))
    ):
        ratios = [measured for _, measured, _ in rows]
        low, high = (min(rows, key=lambda row: row[1]), max(rows, key=lambda row: row[1]))
        error = statistics.mean(abs(expected / measured - 1) for _, measured, expected in rows)
        inside = sum(LOW <= ratio <= HIGH for ratio in ratios)
        print(
            f"| {gpu} | {phase} | {batch_size} | {len(rows)} | {statistics.median(ratios):.2f} "
            f"| {low[1]:.2f} {low[0]} | {high[1]:.2f} {high[0]} | {inside} "
            f"| {statistics.median(expected for *_, expected in rows):.2f} | {error:.0%} |"
        )


if __name__ == "__main__":
    predicted_table()
    if len(sys.argv) > 1:
        measured_table(Path(sys.argv[1]))

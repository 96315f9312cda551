"""Reader of ``nvidia_examples.csv``: ResNet-50 in MXNet, PaddlePaddle and TensorFlow, from NVIDIA's tables.

The tables are those of the README files of NVIDIA/DeepLearningExamples, at the commit that each row names. In fp16,
MXNet and PaddlePaddle fuse batch norms with the ReLU and the addition that follow (``--fuse-bn-relu 1
--fuse-bn-add-relu 1`` in MXNet's ``runner``; ``fuse_bn_act_ops`` and ``fuse_bn_add_act_ops`` in PaddlePaddle's
``program.py``), and XLA fuses pointwise operations: the execution is ``compiled``. TensorFlow without XLA computes fp16
in the channels-last layout.

Not copied: several GPUs, of which ``scaling/published_clusters.csv`` has some; the V100 of a DGX-2, which has another
power limit; and TensorRT in PaddlePaddle, whose times include copies of the inputs.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from itertools import pairwise
from pathlib import Path

from paleo_lite.calibration.measurements import Measurement
from paleo_lite.counting.work import COMPILED

from ..tables import device_of, rows_of
from .dataset import MeasuredSteps

QUOTED = Path(__file__).parent / "nvidia_examples.csv"

INPUT_BOUND_LOSS = 0.05
"""Least relative loss of throughput with a larger batch that shows that a series waits for its images, which are read
and decoded at the same time."""


def nvidia_examples(folder: Path) -> MeasuredSteps:
    """Read all steps, except those of inference that wait for their images, or with fused kernels.

    The execution ``compiled`` stands for ``torch.compile``, whose host time per kernel differs from that of XLA and
    MXNet. With their inference in the pool, single images in PyTorch would be forecast to take twice as long.

    Parameters
    ----------
    folder : Path
        Not used: the table is part of the repository.
    """
    series: dict[tuple[str, ...], list[dict[str, str]]] = defaultdict(list)
    for row in rows_of(QUOTED):
        series[tuple(row[name] for name in ("page", "execution", "gpu", "precision", "network", "phase"))].append(row)
    measurements = []
    left_out = Counter[str]()
    for rows in series.values():
        phase, execution = rows[0]["phase"], rows[0]["execution"]
        if phase == "inference" and execution == COMPILED:
            left_out["inference with fused kernels: the host time differs from PyTorch's"] += len(rows)
        elif _is_input_bound([float(row["images_per_s"]) for row in rows]):
            left_out["throughput falls with the batch size: waits for its images"] += len(rows)
        else:
            measurements += [_measurement(row) for row in rows]
    return MeasuredSteps(sorted(measurements), dict(left_out))


def _is_input_bound(images_per_s: list[float]) -> bool:
    """Return whether throughputs, in the order of batch sizes, fall from one to the next."""
    for smaller_batch, larger_batch in pairwise(images_per_s):
        if larger_batch < (1 - INPUT_BOUND_LOSS) * smaller_batch:
            return True
    return False


def _measurement(row: dict[str, str]) -> Measurement:
    batch_size = int(row["batch_size"])
    return Measurement(
        gpu=device_of(row["gpu"]),
        network=row["network"],
        batch_size=batch_size,
        phase=row["phase"],
        precision=row["precision"],
        time_s=batch_size / float(row["images_per_s"]),
        framework=row["software"],
        source=f"DeepLearningExamples {row['software']}",
        execution=row["execution"],
    )

"""The time in which a server starts: the program, the weights, compilation and captured graphs.

Published starts of vLLM are few, and differ several times with the disk, what is cached on it and the number of
captured batch sizes. Each part is the geometric mean of them, per layer where it grows with the layers, so that the
whole start is known to about a factor of 2.
"""

from __future__ import annotations

import math
from typing import NamedTuple


class PublishedStart(NamedTuple):
    """The parts of a published start in seconds; NaN for what is not published."""

    layers: int
    read_bytes: float  # of the weights
    program_s: float  # imports, the engine and its processes, checks of links
    read_s: float
    compile_s: float
    capture_s: float
    source: str


STARTS = (
    PublishedStart(
        32, 16.06e9, 94, 33, 10 + 42, 54,
        "Llama 3.1 8B on an L40S, https://tensorfuse.io/docs/blogs/reducing_gpu_cold_start (nothing cached)",
    ),
    PublishedStart(
        80, math.nan, 60, math.nan, 15 + 70, 60,
        "Llama 70B in fp8 on 8 devices, https://github.com/vllm-project/vllm/issues/19824 (weights in the page cache)",
    ),
    PublishedStart(
        32, math.nan, math.nan, math.nan, 4.6 + 14.77, 15,
        "Llama 3 8B, https://github.com/vllm-project/vllm/pull/11005",
    ),
    PublishedStart(
        28, math.nan, 25, math.nan, math.nan, 17,
        "Llama 3.2 3B in 8 bits, https://github.com/vllm-project/vllm/issues/20264 (a compiled graph is cached)",
    ),
    PublishedStart(
        32, 16.06e9, math.nan, 47.99, math.nan, math.nan,
        "Llama 3 8B from a gp3 disk, https://run.ai/blog/run-ai-model-streamer-performance-benchmarks (safetensors)",
    ),
)  # fmt: skip
"""Published starts of vLLM."""


def _mean(values: list[float]) -> float:
    """Return the geometric mean of those that are published."""
    logarithms = [math.log(value) for value in values if not math.isnan(value)]
    return math.exp(sum(logarithms) / len(logarithms))


PROGRAM_S = _mean([start.program_s for start in STARTS])
READ_BYTES_PER_S = _mean([start.read_bytes / start.read_s for start in STARTS])
"""Bytes of a checkpoint that are read per second, by all devices of a replica together: a disk over the network."""

COMPILE_S_PER_LAYER = _mean([start.compile_s / start.layers for start in STARTS])
CAPTURE_S_PER_LAYER = _mean([start.capture_s / start.layers for start in STARTS])

START_FACTOR = 2.0
"""Ratio of published starts to these parts: 233 s of Llama 3.1 8B on the L40S are 1.7 times, 34 s of Llama 3 8B without
its program 0.6 times as long."""


class StartTime(NamedTuple):
    """Seconds of the parts of a start."""

    program_s: float
    read_s: float
    compile_s: float
    capture_s: float

    @property
    def seconds(self) -> float:
        """Seconds of the whole start."""
        return sum(self)

    def describe(self) -> str:
        """Return the start as text, with its parts."""
        return (
            f"a replica starts in {self.seconds:.0f} s, known to a factor of {START_FACTOR:g}: {self.program_s:.0f} s "
            f"for the program, {self.read_s:.0f} s to read weights at {READ_BYTES_PER_S / 1e9:.2f} GB/s, "
            f"{self.compile_s:.0f} s to compile, {self.capture_s:.0f} s to capture graphs; give `--scaling start=TIME`"
        )


def estimate_start(layers: float, read_bytes: float) -> StartTime:
    """Return the time in which a replica with some layers per device starts, of which only the checkpoint is there."""
    return StartTime(
        PROGRAM_S, read_bytes / READ_BYTES_PER_S, layers * COMPILE_S_PER_LAYER, layers * CAPTURE_S_PER_LAYER
    )

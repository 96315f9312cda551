"""Options of training on several devices: `Settings`, `InputSettings`, and the batch by the number of devices."""

from __future__ import annotations

import math
from typing import Any

import msgspec

from ..errors import BadValue
from ..input_pipeline.feeding import DEFAULT_SAMPLE_BYTES, Store
from ..units import element_bytes, parse_quantity
from .parallel_config import ParallelConfig

BUCKET_BYTES = 25 * 2**20
"""Default bucket size of PyTorch's DistributedDataParallel: ``bucket_cap_mb=25``, which its code counts in MiB."""

SCALINGS = {
    "weak": "constant batch size per worker",
    "strong": "constant global batch size",
}

_MOST_SHARE = 1e6
"""Largest slowdown as a fraction, far from every measured one, so that no time that follows is infinite."""


class ScaledBatch(msgspec.Struct, frozen=True):
    """Batch of a step on any number of workers; raise BadValue if it scales in no known way."""

    size: int  # samples per worker for weak scaling, of all workers for strong scaling
    scaling: str = "weak"  # one of `SCALINGS`

    def __post_init__(self) -> None:
        if self.scaling not in SCALINGS:
            raise BadValue(f"the scaling must be weak or strong (got {self.scaling!r})")

    def of_all(self, workers: int) -> int:
        """Return the samples per step of all workers."""
        return self.size * workers if self.scaling == "weak" else self.size


STRAGGLERS = "stragglers"
"""Cause of the time that a slowdown of computation on several devices costs, in what limits a row."""


class Settings(msgspec.Struct, frozen=True):
    """Options of training on several devices.

    Attributes
    ----------
    collective : str or None
        All-reduce algorithm, one of `collectives.COLLECTIVES`; None chooses the fastest.
    gradient_precision : str or None
        Precision in which gradients are exchanged; None uses the precision of the computation.
    overlap : bool
        Whether gradients are exchanged during the backward pass.
    bucket_bytes : float
        Bucket size in bytes: a bucket of gradients is exchanged once it holds this many.
    micro_batches : int or None
        Number of micro-batches for the pipeline strategies; None uses at least four per stage, as far as the batch
        allows.
    slowdown : float
        Slowdown of computation on several devices, as a fraction of the computation time: a shared power limit or host.
    interference : float
        Slowdown of computation while communication runs concurrently, as a fraction of the communication time.
    overlap_efficiency : float
        Fraction of the overlappable communication that is actually hidden behind the backward pass, 0 to 1.
    straggler_penalty : float
        Relative increase of the computation time per doubling of the number of workers, since all workers wait for
        the slowest one.
    inputs : InputSettings or None
        Input pipeline of each node; None: devices never wait for samples.
    parallel : ParallelConfig or None
        Degrees of parallelism for the strategy ``3d``.
    stated : tuple of (str, object)
        Fields of `ParallelConfig` that every configuration has which advice compares.
    tensor : int
        Tensor-parallel devices among which the layers of a network without blocks are split, beside data parallelism.
    """

    collective: str | None = None
    gradient_precision: str | None = None
    overlap: bool = True
    bucket_bytes: float = BUCKET_BYTES
    micro_batches: int | None = None
    slowdown: float = 0.0
    interference: float = 0.0
    overlap_efficiency: float = 1.0
    straggler_penalty: float = 0.0
    inputs: InputSettings | None = None
    parallel: ParallelConfig | None = None
    stated: tuple[tuple[str, Any], ...] = ()
    tensor: int = 1

    def __post_init__(self) -> None:
        if self.gradient_precision is not None:
            element_bytes(self.gradient_precision)
        if not self.bucket_bytes > 0:
            raise BadValue(f"the bucket size must be > 0 bytes (got {self.bucket_bytes:g})")
        if self.micro_batches is not None and self.micro_batches < 1:
            raise BadValue(f"the number of micro-batches must be >= 1 (got {self.micro_batches})")
        for name in ("slowdown", "interference", "straggler_penalty"):
            value = getattr(self, name)
            if not 0 <= value < math.inf:
                raise BadValue(f"{name} must be a fraction >= 0 (got {value:g})")
            if value > _MOST_SHARE:
                raise BadValue(f"{name} must be at most {_MOST_SHARE:g} (got {value:g})")
        if not 0 <= self.overlap_efficiency <= 1:
            raise BadValue(f"overlap_efficiency must be between 0 and 1 (got {self.overlap_efficiency:g})")

    def with_straggler_slowdown(self, workers: int) -> Settings:
        """Return settings for this number of workers, with the straggler penalty added to `slowdown`."""
        waiting = self.straggler_penalty * math.log2(workers)
        if not waiting:
            return self
        return msgspec.structs.replace(self, slowdown=self.slowdown + waiting, straggler_penalty=0.0)


class InputSettings(msgspec.Struct, frozen=True):
    """Input pipeline of one node; see `paleo_lite.input_pipeline.feeding.InputPipeline`.

    Attributes
    ----------
    store : Store or None
        Storage of the samples; None: they are in host memory.
    decode_per_s : float or None
        Samples per second that a node decodes; None: the samples need no decoding.
    pageable : bool
        Whether one process copies the samples of all devices from pageable memory, one device after another, before
        they compute.
    link : str
        Name of the host link of each device.
    link_bytes_per_s : float
        Bandwidth of that link in one direction.
    sample_bytes : float
        Bytes of one sample in storage.
    """

    store: Store | None
    decode_per_s: float | None
    pageable: bool
    link: str
    link_bytes_per_s: float
    sample_bytes: float = parse_quantity(DEFAULT_SAMPLE_BYTES, "")

"""`Setup`: where and how torch runs what is timed: device, precision, threads, memory format, compiler."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import msgspec

from ..errors import BadValue
from ..extras import need
from .clock import Clock, EventClock, HostClock

PRECISIONS = {"fp32": "float32", "fp64": "float64", "fp16": "float16", "bf16": "bfloat16", "tf32": "float32"}
"""Precisions that torch runs whole networks in, and the type of their numbers."""

DEVICES = ("cpu", "cuda")


class Setup(msgspec.Struct, frozen=True):
    """How to run.

    Attributes
    ----------
    device : {"cpu", "cuda"}
    precision : str
        One of `PRECISIONS`.
    threads : int
        Of the CPU; on CUDA they only launch.
    channels_last, compiled : bool
        Memory format of images, and whether networks go through ``torch.compile``.
    """

    torch: Any
    device: str
    precision: str
    threads: int
    channels_last: bool
    compiled: bool
    clock: Clock

    @property
    def dtype(self) -> Any:
        """The torch type of the numbers."""
        return getattr(self.torch, PRECISIONS[self.precision])

    @property
    def software(self) -> str:
        """Framework and options, as a measurement records them; no comma, which a CSV would take for its own."""
        words = [f"torch {self.torch.__version__.partition('+')[0]}"]
        if self.device == "cpu":
            words.append(f"{self.threads} threads" if self.threads != 1 else "1 thread")
        words += ["channels-last"] * self.channels_last + ["compiled"] * self.compiled
        return " ".join(words)

    def images(self, *shape: int) -> Any:
        """Random numbers of a shape; what a network does takes as long whatever they are."""
        made = self.torch.rand(*shape, device=self.device).to(self.dtype)
        if self.channels_last and len(shape) == 4:
            made = made.contiguous(memory_format=self.torch.channels_last)
        return made


@contextmanager
def set_up(
    device: str, precision: str, threads: int | None = None, channels_last: bool = False, compiled: bool = False
) -> Iterator[Setup]:
    """Prepare torch, and leave it afterwards as it was.

    In fp32 on CUDA the tensor cores' tf32 is switched off, which torch leaves on for convolutions: it is a precision of
    its own.

    Raises
    ------
    BadValue
        If the device or precision is unavailable here.
    """
    torch = need("torch", "measuring this machine", "torch")
    if device not in DEVICES:
        raise BadValue(f"the device is {' or '.join(DEVICES)}, not {device!r}")
    if precision not in PRECISIONS:
        raise BadValue(f"torch cannot run whole networks in {precision}: measure in one of {', '.join(PRECISIONS)}")
    if device == "cuda" and not torch.cuda.is_available():
        raise BadValue("torch sees no CUDA device here: measure with --device cpu, or install a CUDA build of torch")
    if device == "cpu" and precision == "tf32":
        raise BadValue("tf32 is a precision of tensor cores, which a CPU lacks: measure fp32")
    if threads is not None and threads < 1:
        raise BadValue(f"threads must be a whole number of 1 or more, not {threads!r}")
    before = (torch.get_num_threads(), torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32)
    try:
        if threads is not None:
            torch.set_num_threads(threads)
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = precision == "tf32"
        clock: Clock = EventClock(torch.cuda) if device == "cuda" else HostClock()
        yield Setup(torch, device, precision, torch.get_num_threads(), channels_last, compiled, clock)
    finally:
        torch.set_num_threads(before[0])
        torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = before[1:]

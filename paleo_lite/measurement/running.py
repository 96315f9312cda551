"""Execution of steps of whole networks and of probes with torch, for timing.

A probe is a single operation: a `Layer` at a batch size, counted by the same rules as the layers of a network.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import msgspec

from ..counting import Layer
from ..counting.layer import INPUT
from ..errors import BadValue
from ..extras import require
from ..units import check_integer
from .clock import ROUNDS, Clock, Effort, EventClock, HostClock, Run, Timing, best_of, time_call

PRECISIONS = {"fp32": "float32", "fp64": "float64", "fp16": "float16", "bf16": "bfloat16", "tf32": "float32"}
"""Precisions in which torch runs whole networks, with the torch type of each."""

DEVICES = ("cpu", "cuda")


class Setup(msgspec.Struct, frozen=True):
    """Device, precision and options of a measurement."""

    torch: Any
    device: str
    precision: str  # one of `PRECISIONS`
    threads: int  # number of CPU threads; on CUDA, they only launch kernels
    # Memory format of images, and whether networks go through ``torch.compile``
    channels_last: bool
    compiled: bool
    clock: Clock

    @property
    def dtype(self) -> Any:
        """Torch type of the precision."""
        return getattr(self.torch, PRECISIONS[self.precision])

    @property
    def software(self) -> str:
        """Framework and options, as stored with a measurement; without commas, which separate the columns of a CSV."""
        words = [f"torch {self.torch.__version__.partition('+')[0]}"]
        if self.device == "cpu":
            words.append(f"{self.threads} threads" if self.threads != 1 else "1 thread")
        words += ["channels-last"] * self.channels_last + ["compiled"] * self.compiled
        return " ".join(words)

    def images(self, *shape: int) -> Any:
        """Return a tensor of random numbers; the time of a network does not depend on the values."""
        tensor = self.torch.rand(*shape, device=self.device).to(self.dtype)
        if self.channels_last and len(shape) == 4:
            tensor = tensor.contiguous(memory_format=self.torch.channels_last)
        return tensor


@contextmanager
def set_up(
    device: str, precision: str, threads: int | None = None, channels_last: bool = False, compiled: bool = False
) -> Iterator[Setup]:
    """Configure torch, and restore its configuration afterwards.

    In fp32 on CUDA, tf32 on tensor cores is disabled, because it is a separate precision here; by default, torch
    enables it for convolutions. Raise BadValue if the device or precision is unavailable here.
    """
    torch = require("torch", "measuring this machine", "torch")
    if device not in DEVICES:
        raise BadValue(f"the device must be {' or '.join(DEVICES)} (got {device!r})")
    if precision not in PRECISIONS:
        raise BadValue(f"torch cannot run whole networks in {precision}: choose one of {', '.join(PRECISIONS)}")
    if device == "cuda" and not torch.cuda.is_available():
        raise BadValue("torch finds no CUDA device: use `--device cpu`, or install a CUDA build of torch")
    if device == "cpu" and precision == "tf32":
        raise BadValue("tf32 is a precision of tensor cores, which a CPU does not have: use fp32")
    if threads is not None:
        check_integer("threads", threads, 1)
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


# Steps of whole networks ----------------------------------------------------------------------------------------------


STEPS = ("inference", "forward+backward", "training")
"""Phases that can be timed separately."""


class OutOfMemory(Exception):
    """A step does not fit into the memory of the device; a smaller batch may fit."""


def time_step(
    module: Any,  # network with images as input; it is moved to the device and precision of the setup
    setup: Setup,
    phase: str,  # one of `STEPS`; training is forward, backward and a step of plain stochastic gradient descent
    batch_size: int,
    image_size: int = 224,
    effort: Effort | None = None,
) -> Timing:
    """Time a step of a network.

    Raise BadValue if the phase is not in `STEPS`, and OutOfMemory if the step does not fit into the memory of the
    device.
    """
    if phase not in STEPS:
        raise BadValue(f"the phase must be one of {', '.join(STEPS)} (got {phase!r})")
    torch = setup.torch
    try:
        module = module.to(setup.device, setup.dtype)
        if setup.channels_last:
            module = module.to(memory_format=torch.channels_last)
        module.train(phase != "inference")
        if setup.compiled:
            # Compile each batch size separately; otherwise torch reaches its limit of recompilations.
            torch.compiler.reset()
        forward = torch.compile(module, dynamic=False) if setup.compiled else module
        images = setup.images(batch_size, 3, image_size, image_size)
        if phase == "inference":
            with torch.inference_mode():
                return time_call(lambda: forward(images), setup.clock, effort)
        step = _make_training_step(module, forward, images, setup, has_update=phase == "training")
        return time_call(step, setup.clock, effort)
    except RuntimeError as error:
        # Only CUDA has an exception class for this error.
        if not isinstance(error, torch.cuda.OutOfMemoryError) and "allocate memory" not in str(error):
            raise
        raise OutOfMemory(str(error).partition("\n")[0]) from None
    finally:
        module.zero_grad(set_to_none=True)  # free memory for the next batch size


def _make_training_step(module: Any, forward: Any, images: Any, setup: Setup, has_update: bool) -> Run:
    """Return a function that runs a training step; its loss is the sum of the outputs, which takes negligible time."""
    # The learning rate is not 0, because some libraries then skip the update; it is too small to change the weights.
    optimizer = setup.torch.optim.SGD(module.parameters(), lr=1e-12)

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        forward(images).sum().backward()
        if has_update:
            optimizer.step()

    return step


# Probes ---------------------------------------------------------------------------------------------------------------


class Probe(msgspec.Struct, frozen=True):
    """An operation to time."""

    purpose: str
    layer: Layer
    batch_size: int

    @property
    def is_product(self) -> bool:
        """Whether the operation is a matrix product, or a dense 1x1 convolution of stride 1, which is equivalent."""
        plain = self.layer.attributes.get("stride") == [1, 1] and "groups" not in self.layer.attributes
        return self.purpose == "gemm" or (
            self.purpose == "convolution" and plain and self.layer.weights[0][2:] == (1, 1)
        )


class Probed(msgspec.Struct, frozen=True):
    """A probe with its timing."""

    probe: Probe
    timing: Timing


def gemm(rows: int, columns: int, inner: int) -> Probe:
    """Return a probe of the product of ``rows x inner`` and ``inner x columns`` matrices."""
    weight = (columns, inner)
    layer = Layer(
        f"gemm {rows}x{columns}x{inner}", "linear", ((1, inner),), ((1, columns),), (weight,), (INPUT,), columns * inner
    )
    return Probe("gemm", layer, rows)


def convolution(
    channels: int, outputs: int, size: int, kernel: int, batch_size: int, groups: int = 1, stride: int = 1
) -> Probe:
    """Return a probe of a convolution of square images, padded to an output size of input size / stride."""
    weight = (outputs, channels // groups, kernel, kernel)
    output_size = -(-size // stride)
    attributes: dict[str, Any] = {"stride": [stride, stride], "padding": [kernel // 2, kernel // 2]}
    if groups > 1:
        attributes["groups"] = groups
    if groups == channels:
        kind = "depthwise"
    elif groups > 1:
        kind = "grouped"
    else:
        kind = "conv"
    layer = Layer(
        f"{kind} {kernel}x{kernel}/{stride} {channels}-{outputs} at {size}", "conv2d",
        ((1, channels, size, size),), ((1, outputs, output_size, output_size),), (weight,), (INPUT,),
        outputs * (channels // groups) * kernel * kernel, attributes,
    )  # fmt: skip
    return Probe("convolution", layer, batch_size)


def elementwise(purpose: str, kind: str, elements: int) -> Probe:
    """Return a probe of a copy or a ReLU, which reads and writes `elements` numbers."""
    return Probe(purpose, Layer(f"{kind} {elements}", kind, ((1, elements),), ((1, elements),), (), (INPUT,)), 1)


def probes(quick: bool, scale: int = 1) -> list[Probe]:
    """Return the probes of a calibration, fewer and smaller ones for a quick one.

    The scale is a factor on batch sizes and on the sizes of matrices and streams; a GPU needs larger operations than a
    CPU to reach its peak.
    """
    side = (1024 if quick else 2048) * min(scale, 4)
    batch = (2 if quick else 4) * scale
    stream = 2**24 * (1 if quick else 4) * scale  # elements; more than the caches hold
    convolutions = [
        convolution(64, 64, 56, 3, batch), convolution(256, 256, 14, 3, batch),
        convolution(256, 64, 56, 1, batch), convolution(256, 1024, 14, 1, batch),
        convolution(64, 128, 56, 3, batch, stride=2), convolution(3, 64, 224, 7, batch, stride=2),
        convolution(256, 256, 28, 3, batch, groups=32), convolution(96, 96, 56, 3, batch, groups=96),
        convolution(384, 384, 14, 3, batch, groups=384),
    ]  # fmt: skip
    if not quick:
        convolutions += [
            convolution(128, 128, 28, 3, batch), convolution(512, 512, 7, 3, batch),
            convolution(128, 512, 28, 1, batch), convolution(512, 2048, 7, 1, batch),
            convolution(256, 512, 14, 3, batch, stride=2), convolution(512, 512, 14, 3, batch, groups=32),
            convolution(192, 192, 28, 5, batch, groups=192),
        ]  # fmt: skip
    return [
        *(gemm(size, size, size) for size in (side // 4, side // 2, side)),
        *convolutions,
        elementwise("stream", "copy", stream), elementwise("stream", "relu", stream),
        elementwise("launch", "relu", 16),
    ]  # fmt: skip


def run_probes(chosen: Sequence[Probe], setup: Setup, effort: Effort | None = None) -> list[Probed]:
    """Time probes one after the other, in `ROUNDS` rounds, and return the fastest timing of each."""
    with setup.torch.inference_mode():
        rounds = []
        for _ in range(ROUNDS):
            rounds.append([time_call(_make_call(probe, setup), setup.clock, effort) for probe in chosen])
    return [Probed(probe, best_of(timings)) for probe, timings in zip(chosen, zip(*rounds))]


def _make_call(probe: Probe, setup: Setup) -> Run:
    """Return a function that runs the probe on tensors that are allocated beforehand."""
    torch, layer = setup.torch, probe.layer
    numbers = setup.images(probe.batch_size, *layer.inputs[0][1:])
    if layer.kind == "linear":
        weight = setup.images(*layer.weights[0])
        return lambda: torch.nn.functional.linear(numbers, weight)
    if layer.kind == "conv2d":
        weight = setup.images(*layer.weights[0])
        stride, padding = layer.attributes["stride"], layer.attributes["padding"]
        groups = layer.attributes.get("groups", 1)
        return lambda: torch.nn.functional.conv2d(numbers, weight, None, stride, padding, 1, groups)
    output = torch.empty_like(numbers)  # allocated beforehand, because page faults take longer than the copy
    if layer.kind == "copy":
        return lambda: output.copy_(numbers)
    return lambda: torch.clamp_min(numbers, 0, out=output)

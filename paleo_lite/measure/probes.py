"""Probes: single operations whose work is known by their shapes alone, and what they take.

Each is a `Layer` at a batch size, so that it is counted by the same rules as the layers of a network.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from ..counting import Layer
from ..counting.layer import INPUT
from .clock import ROUNDS, Effort, Run, Timing, best_of, time_call
from .setup import Setup


class Probe(msgspec.Struct, frozen=True):
    """One operation to time.

    Attributes
    ----------
    purpose : {"gemm", "convolution", "stream", "launch"}
    """

    purpose: str
    layer: Layer
    batch_size: int

    @property
    def is_product(self) -> bool:
        """Whether it is a matrix product and nothing else, as a dense 1x1 convolution of stride 1 is too."""
        plain = self.layer.attributes.get("stride") == [1, 1] and "groups" not in self.layer.attributes
        return self.purpose == "gemm" or (
            self.purpose == "convolution" and plain and self.layer.weights[0][2:] == (1, 1)
        )


class Probed(msgspec.Struct, frozen=True):
    """A probe and what it took."""

    probe: Probe
    timing: Timing


def gemm(rows: int, columns: int, inner: int) -> Probe:
    """A product of ``rows x inner`` by ``inner x columns``."""
    weight = (columns, inner)
    layer = Layer(
        f"gemm {rows}x{columns}x{inner}", "linear", ((1, inner),), ((1, columns),), (weight,), (INPUT,), columns * inner
    )
    return Probe("gemm", layer, rows)


def convolution(
    channels: int, outputs: int, size: int, kernel: int, batch_size: int, groups: int = 1, stride: int = 1
) -> Probe:
    """A convolution of square images, padded so that its output is as large as its input over the stride."""
    weight = (outputs, channels // groups, kernel, kernel)
    after = -(-size // stride)
    attributes: dict[str, Any] = {"stride": [stride, stride], "padding": [kernel // 2, kernel // 2]}
    if groups > 1:
        attributes["groups"] = groups
    kind = "depthwise" if groups == channels else "grouped" if groups > 1 else "conv"
    layer = Layer(
        f"{kind} {kernel}x{kernel}/{stride} {channels}-{outputs} at {size}", "conv2d",
        ((1, channels, size, size),), ((1, outputs, after, after),), (weight,), (INPUT,),
        outputs * (channels // groups) * kernel * kernel, attributes,
    )  # fmt: skip
    return Probe("convolution", layer, batch_size)


def elementwise(purpose: str, kind: str, elements: int) -> Probe:
    """A copy or a ReLU of so many numbers: reads them, writes as many."""
    return Probe(purpose, Layer(f"{kind} {elements}", kind, ((1, elements),), ((1, elements),), (), (INPUT,)), 1)


def probes(quick: bool, scale: int = 1) -> list[Probe]:
    """The probes of a calibration.

    Parameters
    ----------
    quick : bool
        Fewer and smaller ones.
    scale : int
        Batch sizes and sizes of matrices and streams grow by it: a GPU needs more work than a CPU to show what it can
        do.
    """
    side, batch = (1024 if quick else 2048) * min(scale, 4), (2 if quick else 4) * scale
    stream = 2**24 * (1 if quick else 4) * scale  # numbers: more than caches hold
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
    """Time probes, one after the other, in `ROUNDS`."""
    with setup.torch.inference_mode():
        rounds = [[time_call(_call(probe, setup), setup.clock, effort) for probe in chosen] for _ in range(ROUNDS)]
    return [Probed(probe, best_of(timings)) for probe, timings in zip(chosen, zip(*rounds))]


def _call(probe: Probe, setup: Setup) -> Run:
    """What runs the probe, its tensors made beforehand."""
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
    written = torch.empty_like(numbers)  # memory that is there already: a fresh page costs more than its bytes
    if layer.kind == "copy":
        return lambda: written.copy_(numbers)
    return lambda: torch.clamp_min(numbers, 0, out=written)

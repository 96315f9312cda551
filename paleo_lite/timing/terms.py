"""What a time model gives: `Terms`, the seconds of a workload by pass and layer, and `Times` of many cases at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import numpy as np

from ..machines import Device
from .activity import Activity, divide_time, narrow_factor
from .intervals import INTERVAL_LEVEL, interval_of
from .workload import Workload

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Seconds = NDArray[np.float64]


RECOMPUTE = "recompute"
"""Name of the pass that computes activations again."""


class LaunchedKernels(NamedTuple):
    """Kernels that a model times in place of layers; arrays have the shape (kernels,)."""

    names: tuple[str, ...]  # each of them once
    kinds: tuple[str, ...]  # names as users know them, which several kernels may have in common
    launches: NDArray[np.int64]
    flops: Seconds
    bytes: Seconds
    activity: Activity  # what the device does in each of them
    cache_bytes_per_sequence: float
    speed: float  # under the power limit and at the clock of the device, relative to that without them


class Terms(msgspec.Struct, frozen=True, eq=False):
    """Seconds of a workload by pass and layer, and properties of the whole step."""

    passes: tuple[str, ...]  # names of the passes
    compute_s: Seconds  # of arithmetic alone, shape (passes, layers)
    memory_s: Seconds  # of memory traffic alone, shape (passes, layers)
    # Of each layer according to the model, shape (passes, layers); their sum is the step without its overhead.
    layers_s: Seconds
    overhead_s: float = 0.0  # of a step that belong to no layer; 0 if the model has no overhead
    # Standard deviation of the logarithm of the time; None if the model has no uncertainty.
    deviation: float | None = None
    host_slowdown: float = 1.0  # factor by which waiting for the host stretches the layers; 1 if the device never waits
    # Of the shortest possible kernels, shape (passes, layers); None if the model has no such term.
    floor_s: Seconds | None = None
    # Part of `layers_s` in which the device waits for what its host stores or updates, shape (passes, layers); None
    # without offloading.
    offloaded_s: Seconds | None = None
    # Derivatives of the logarithm of the time with respect to the logarithms of the model's parameters, shape
    # (parameters,).
    slopes: Seconds | None = None
    # Kernels that are timed in place of the layers of the network; None where the layers are timed.
    launched: LaunchedKernels | None = None

    @property
    def time_s(self) -> float:
        """Seconds of the whole step."""
        return float(self.layers_s.sum()) + self.overhead_s

    def activity(self, peak_s: float) -> Activity:
        """Return the activity of the device in the step; `peak_s` is the time of the arithmetic at data-sheet peak."""
        by_layer = self.activity_by_layer(0.0)
        return Activity(*(float(np.sum(seconds)) for seconds in by_layer._replace(peak_s=peak_s)))

    def activity_by_layer(self, peak_s: Any) -> Activity:
        """Return what the device does in each layer, arrays of shape (layers,); `peak_s` is that of each layer."""
        floor_s = 0.0 if self.floor_s is None else self.floor_s
        divided = divide_time(self.device_s, self.compute_s, self.memory_s, floor_s)
        arithmetic_s, memory_s = (seconds.sum(axis=0) for seconds in divided)
        offloaded_s = 0.0 if self.offloaded_s is None else self.offloaded_s.sum(axis=0)
        return Activity(arithmetic_s, memory_s, peak_s=peak_s, offloaded_s=offloaded_s)

    @property
    def device_s(self) -> Seconds:
        """Seconds in which the device itself is busy, shape (passes, layers)."""
        busy_s = self.layers_s if self.offloaded_s is None else self.layers_s - self.offloaded_s
        seconds: Seconds = busy_s / self.host_slowdown
        return seconds

    def seconds_of(self, *passes: str) -> Seconds:
        """Return the seconds of some passes by layer, shape (layers,); passes that the step does not have count 0."""
        is_selected = [name in passes for name in self.passes]
        seconds: Seconds = self.layers_s[is_selected].sum(axis=0)
        return seconds

    @property
    def passes_s(self) -> dict[str, float]:
        """Seconds by pass, with both gradients as ``backward``, and the overhead; they add up to the time."""
        return {**_sum_by_shown_pass(self.passes, self.layers_s), "overhead": self.overhead_s}

    @property
    def waiting_s(self) -> dict[str, float]:
        """Seconds of each of `passes_s` in which the device waits for the host."""
        return {**_sum_by_shown_pass(self.passes, self.layers_s - self.device_s), "overhead": 0.0}

    def interval(self, level: float = INTERVAL_LEVEL) -> tuple[float, float] | None:
        """Return the interval that contains the step time with the probability `level`; None without uncertainty."""
        if self.deviation is None:
            return None
        return interval_of(self.time_s, self.deviation, level)


def _sum_by_shown_pass(passes: Sequence[str], seconds: Seconds) -> dict[str, float]:
    """Return the sums of seconds of shape (passes, layers) by pass, with both gradients as ``backward``."""
    sums: dict[str, float] = {}
    for name, pass_s in zip(passes, seconds.sum(axis=1), strict=True):
        shown = "backward" if name.startswith("backward") else name
        sums[shown] = sums.get(shown, 0.0) + float(pass_s)
    return sums


TIME_LIMITS = {
    "arithmetic": "layers whose arithmetic takes longer than their memory traffic",
    "memory traffic": "layers whose memory traffic takes longer than their arithmetic",
    "short kernels": "layers so small that starting and ending a kernel takes longer than either",
    "waiting for the host": "the device is idle until the host has launched the next kernel, or sent or updated the "
    "optimizer state that it stores",
    "overhead": "a constant time per step, whatever the layers are",
}
"""The categories of time by limiting factor, and their meaning."""


def layers_peak_s(bound: Terms, workload: Workload, device: Device) -> Seconds:
    """Return the seconds that the arithmetic of each layer takes at the peak, as `Activity.peak_s`, shape (layers,).

    `bound` has the times at the peaks of the data sheet; the workload has the precisions of the products.
    """
    factor = narrow_factor(device, workload.precision)
    of_products = narrow_factor(device, workload.product_precision)
    factors = np.where(workload.narrow_products_in(bound.passes), of_products, factor)
    seconds: Seconds = (bound.compute_s * factors).sum(axis=0)
    return seconds


def seconds_by_limit(terms: Terms, uses_memory: bool) -> dict[str, float]:
    """Return the seconds by limiting factor, in the order of `TIME_LIMITS`; their sum is the time of the step.

    Each layer and pass is assigned to its largest term. If the host launches more slowly than the device computes, the
    excess of the stretched time over the device's time is waiting. `uses_memory` says whether memory traffic
    contributes to the time in this model.
    """
    device_s = terms.device_s
    zeros = np.zeros_like(device_s)
    memory_s = terms.memory_s if uses_memory else zeros
    floor_s = zeros if terms.floor_s is None else terms.floor_s
    largest_term = np.argmax(np.stack([terms.compute_s, memory_s, floor_s]), axis=0)
    compute_limited_s, memory_limited_s, floor_limited_s = (
        float(device_s[largest_term == term].sum()) for term in range(3)
    )
    return {
        "arithmetic": compute_limited_s,
        "memory traffic": memory_limited_s,
        "short kernels": floor_limited_s,
        "waiting for the host": float(terms.layers_s.sum() - device_s.sum()),
        "overhead": terms.overhead_s,
    }


class RequestedOutputs(NamedTuple):
    """Optional outputs of `TimeModel.evaluate_many`."""

    interval: bool = True
    pieces: bool = False  # the seconds of each piece
    activity: bool = False  # what the device does


class Times(NamedTuple):
    """Times of many cases and batch sizes."""

    time_s: Seconds  # per batch, shape (cases, batch sizes)
    low_s: Seconds | None  # ends of the interval, with `high_s`; None if not requested or without uncertainty
    high_s: Seconds | None
    # Of each piece of a case: pieces of the forward pass, update, of the backward pass (`CaseStack.first_piece`),
    # shape (pieces, batch sizes). Their sum is the time without the overhead of the model. None if not requested.
    pieces_s: Seconds | None
    # What the device does, arrays of shape (cases, batch sizes); None if not requested. A forecast leaves the seconds
    # at the peak of the data sheet to the bound.
    activity: Activity | None

"""PALEO's times of layers and of an all-reduce on a machine, in milliseconds: the `Simulator`.

The time of a layer is the sum of its terms or, with `concurrent`, the larger of computation and memory traffic.

The all-reduce of D bytes over n workers, with ``t1 = D / bandwidth / PPP``, takes ``2 (n - 1) t1`` (one-to-all),
``2 ceil(log2 n) t1`` (tree), ``ceil(log2 n) t1`` (butterfly) or ``t1`` (butterfly mixing, even for one worker). There
is no latency and no overlap with computation.

Source: ``profilers/flops_profiler.py`` and ``comm.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from math import ceil, log
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import numpy as np

from ..counting.layer import Layer
from ..counting.work import check_batch_size
from ..distributed.links import LinkRate, link_rate
from ..errors import BadValue, UnknownName, UnknownPrecision
from ..machines import find_device, read_links
from ..text import normalize_name
from . import REVISIONS
from .layers import ALGORITHMS, PASSES, layer_terms

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = NDArray[np.float64]

COLLECTIVES: dict[str, Callable[[int], int]] = {
    "one-to-all": lambda n: 2 * (n - 1),
    "tree": lambda n: 2 * ceil(log(n) / log(2)),
    "butterfly": lambda n: ceil(log(n) / log(2)),
    "butterfly-mixing": lambda n: 1,
}
"""Number of sequential transfers of all bytes between n workers, by collective."""


def check_name(category: str, name: str, names: Collection[str]) -> None:
    """Raise `UnknownName` if a name is not among the known ones."""
    if name not in names:
        raise UnknownName(f"{category} of PALEO", name, names)


class PaleoTimes(NamedTuple):
    """Milliseconds of computation and memory traffic, shape (passes, layers, batches); passes as in `PASSES`."""

    compute_ms: Array
    memory_ms: Array

    def layer_ms(self, concurrent: bool = False) -> Array:
        """Return the forward time and the backward time of each layer, shape (2, layers, batches)."""
        compute, memory = (np.add.reduceat(times, (0, 1)) for times in self)
        times: Array = combine_ms(compute, memory, concurrent)
        return times

    def total_ms(self, concurrent: bool = False) -> Array:
        """Return the time of forward and backward pass over all layers, shape (batches,)."""
        total: Array = self.layer_ms(concurrent).sum((0, 1))
        return total


class Simulator(msgspec.Struct, frozen=True):
    """A machine and the options of PALEO.

    Attributes
    ----------
    link : LinkRate
        Link between all workers.
    ppp, ppp_comm : float
        Platform percent of peak, as a fraction: of computation and memory traffic, and of communication.
    revision : str
        One of `REVISIONS`.
    algorithm : str
        Convolution algorithm where cuDNN supports it: one of `ALGORITHMS`.
    concurrent : bool
        Whether memory traffic and computation of a layer overlap.

    Raises
    ------
    BadValue
        If a PPP is not > 0.
    """

    device: PaleoDevice
    link: LinkRate
    ppp: float = 1.0
    ppp_comm: float = 1.0
    revision: str = REVISIONS[0]
    algorithm: str = ALGORITHMS[0]
    concurrent: bool = False

    def __post_init__(self) -> None:
        check_name("revision", self.revision, REVISIONS)
        check_name("convolution algorithm", self.algorithm, ALGORITHMS)
        for name, ppp in (("the PPP", self.ppp), ("the PPP of communication", self.ppp_comm)):
            if not ppp > 0:
                raise BadValue(f"{name} must be > 0 (got {ppp!r})")

    def times(self, layers: Sequence[Layer], batch_sizes: Sequence[int]) -> PaleoTimes:
        """Return the times of every layer at every batch size per worker."""
        for batch_size in batch_sizes:
            check_batch_size(batch_size)
        batches = np.asarray(batch_sizes, dtype=np.float64)
        times = PaleoTimes(*np.zeros((2, len(PASSES), len(layers), len(batches))))
        for row, pass_name in enumerate(PASSES):
            for column, layer in enumerate(layers):
                for term in layer_terms(layer, pass_name, batches, self.revision, self.algorithm):
                    if term.compute:
                        times.compute_ms[row, column] += term.repeats * self.device.compute_ms(term.amount, self.ppp)
                    else:
                        times.memory_ms[row, column] += term.repeats * self.device.transfer_ms(term.amount, self.ppp)
        return times

    def exchange_ms(self, collective: str, size_bytes: float, workers: int) -> float:
        """Return the milliseconds of an all-reduce by one of `COLLECTIVES`, without latency."""
        transfer_ms = size_bytes / self.link.bandwidth_bytes_per_s * 1e3 / self.ppp_comm
        return COLLECTIVES[collective](workers) * transfer_ms


def make_simulator(device: str, link: str, **options: Any) -> Simulator:
    """Return a simulator from the names of a device and a link.

    Parameters
    ----------
    device : str
        A device of PALEO, by its name there (``TITAN_X``) or here (``k20x``), with PALEO's figures; or any other device
        of the registry.
    link : str
        ``aws``, ``ethernet``, ``ethernet20``, ``infiniband``, ``pcie2``, ``pcie3`` with PALEO's rates, or any
        link that `link_rate` accepts.
    **options
        ``ppp``, ``ppp_comm``, ``revision``, ``algorithm`` and ``concurrent`` of a `Simulator`.
    """
    paleo_link = read_links().link.get(f"paleo-{link.lower()}")
    return Simulator(find_paleo_device(device), link_rate(paleo_link or link), **options)


# Devices, by the three figures that PALEO has for each, and their times in milliseconds -------------------------------
#
# ``compute = max(tick, FLOPs / peak / PPP)``, ``transfer = max(tick, bytes / 2^30 / (bandwidth in GB/s) / PPP)``: the
# bytes are counted in GiB although the bandwidth is in GB/s, so that transfers are 7% too fast.
# Source: ``device.py`` and ``profilers/flops_profiler.py``.


class PaleoDevice(msgspec.Struct, frozen=True):
    """A device of PALEO; its methods accept a number or an array."""

    clock_mhz: float
    peak_gflops: float
    bandwidth_gb_per_s: float

    @property
    def tick_ms(self) -> float:
        """One clock cycle, the minimum time of a term."""
        return 1 / self.clock_mhz / 1000

    def compute_ms(self, flops: Any, ppp: float = 1.0) -> Any:
        """Return the time of a number of FLOPs."""
        return np.maximum(self.tick_ms, flops / 1e6 / self.peak_gflops / ppp)

    def transfer_ms(self, size_bytes: Any, ppp: float = 1.0, bandwidth_gb_per_s: float | None = None) -> Any:
        """Return the time of a transfer to or from memory, or over a link with another bandwidth."""
        bandwidth = bandwidth_gb_per_s or self.bandwidth_gb_per_s
        return np.maximum(self.tick_ms, size_bytes / 2**30 / bandwidth * 1e3 / ppp)

    def update_ms(self, size_bytes: int, concurrent: bool = False) -> float:
        """Return the time of a gradient descent step: 2 FLOPs and three transfers per parameter, at a PPP of 1."""
        if not size_bytes:
            return 0.0
        compute_ms = self.compute_ms(size_bytes // 4 * 2)
        memory_ms = 3 * self.transfer_ms(size_bytes)
        return float(combine_ms(compute_ms, memory_ms, concurrent))


def combine_ms(compute_ms: Any, memory_ms: Any, concurrent: bool) -> Any:
    """Return the sum of computation and memory traffic, or the larger one if they overlap."""
    return np.maximum(compute_ms, memory_ms) if concurrent else compute_ms + memory_ms


DEVICES = {
    "TITAN_X": PaleoDevice(1000, 6144, 336.5),
    "K20": PaleoDevice(1000, 3520, 208),
    "K20X": PaleoDevice(1000, 3935, 250),
    "K40": PaleoDevice(745, 4290, 288),
    "K80": PaleoDevice(560, 5600, 480),  # both dies, at the base clock
    "GEFORCE_780_TI": PaleoDevice(875, 5040, 336),
    "GEFORCE_750_M": PaleoDevice(941, 722.7, 80),
    "CPU_I7": PaleoDevice(6 * 35000, 289, 68),  # 210 GHz, as in the release
}
"""Devices of PALEO, with the figures of the release."""

_OURS = {
    "titanx-maxwell": "TITAN_X", "k20": "K20", "k20x": "K20X", "k40c": "K40", "k40m": "K40", "k80": "K80",
    "gtx780ti": "GEFORCE_780_TI", "gt750m": "GEFORCE_750_M", "i7-5930k": "CPU_I7",
}  # fmt: skip
"""Name in PALEO of a device, by its id in the device registry."""


def find_paleo_device(name: str) -> PaleoDevice:
    """Return a device of PALEO, or any other device with its fp32 peak, clock and bandwidth in the registry.

    Raises
    ------
    UnknownPrecision
        If the device has no vector fp32 peak or no clock on record.
    """
    names = {normalize_name(key): key for key in DEVICES}
    if normalize_name(name) in names:
        return DEVICES[names[normalize_name(name)]]
    device = find_device(name)
    if device.id in _OURS:
        return DEVICES[_OURS[device.id]]
    clock_hz = device.clock_hz(device.clocks.default)
    if clock_hz is None:
        raise UnknownPrecision(f"{device.name} has no known clock, which PALEO requires")
    peak = device.find_peak("fp32", "vector").per_s
    return PaleoDevice(clock_hz / 1e6, peak / 1e9, device.bandwidth_bytes_per_s / 1e9)

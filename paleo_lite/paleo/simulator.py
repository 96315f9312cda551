"""The released PALEO's times on one device, in milliseconds, defects included: see ``docs/paleo.md``.

``compute = max(tick, FLOPs / peak / PPP)``, ``memory = max(tick, bytes / 2^30 / (bandwidth in GB/s) / PPP)``: the bytes
are counted in GiB though the bandwidth is given in GB, 7 % too fast. A layer takes the sum of its terms, one after the
other, or with overlap the larger of the two kinds.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from ..counting.layer import Layer
from ..errors import BadValue, UnknownPrecision
from ..hardware import Device, find_device
from ..hardware.registry import key
from .layers import PARTS, paleo_terms

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = NDArray[np.float64]


class PaleoDevice(msgspec.Struct, frozen=True):
    """A device by the three figures that PALEO knows of it.

    Attributes
    ----------
    name : str
    clock_mhz, peak_gflops, bandwidth_gb_per_s : float
    ids : tuple of str
        What paleo-lite calls it.
    source : str
    """

    name: str
    clock_mhz: float
    peak_gflops: float
    bandwidth_gb_per_s: float
    ids: tuple[str, ...] = ()
    source: str = "PALEO's device table"

    @property
    def tick_ms(self) -> float:
        """One cycle of the clock: the least that any term takes."""
        return 1 / self.clock_mhz / 1000


DEVICES = {
    device.name: device
    for device in (
        PaleoDevice("TITAN_X", 1000, 6144, 336.5, ("titanx-maxwell",)),
        PaleoDevice("K20", 1000, 3520, 208, ("k20",)),
        PaleoDevice("K20X", 1000, 3935, 250, ("k20x",)),
        PaleoDevice("K40", 745, 4290, 288, ("k40c", "k40m")),
        PaleoDevice("K80", 560, 5600, 480, ("k80",)),  # both dies, at the base clock
        PaleoDevice("GEFORCE_780_TI", 875, 5040, 336, ("gtx780ti",)),
        PaleoDevice("GEFORCE_750_M", 941, 722.7, 80, ("gt750m",)),
        PaleoDevice("CPU_I7", 6 * 35000, 289, 68, ("i7-5930k",)),  # 210 GHz: entered so
    )
}
"""PALEO's devices as its release has them."""


def find_paleo_device(name: str | Device) -> PaleoDevice:
    """A device of PALEO's by its own name or ours; any other one by the registry's fp32 peak, clock and bandwidth.

    Raises
    ------
    UnknownName
        If nothing is called that.
    UnknownPrecision
        If the device has no vector fp32 peak or no clock on record.
    """
    if isinstance(name, str):
        for paleo in DEVICES.values():
            if key(name) in {key(known) for known in (paleo.name, *paleo.ids)}:
                return paleo
    device = find_device(name) if isinstance(name, str) else name
    for paleo in DEVICES.values():
        if device.id in paleo.ids:
            return paleo
    clock_hz = device.clock_hz(device.clocks.default)
    if clock_hz is None:
        raise UnknownPrecision(f"{device.name} has no clock on record, which PALEO needs")
    peak = device.find_peak("fp32", "vector").per_s
    return PaleoDevice(
        device.id, clock_hz / 1e6, peak / 1e9, device.bandwidth_bytes_per_s / 1e9, (device.id,), "the device registry"
    )


class PaleoTimes(msgspec.Struct, frozen=True, eq=False):
    """Milliseconds per batch size, pass and layer.

    Attributes
    ----------
    names : tuple of str
    batch_sizes : ndarray of int, shape (batches,)
    compute_ms, memory_ms : ndarray, shape (batches, passes, layers)
        Passes as in `paleo_lite.paleo.layers.PARTS`.
    """

    names: tuple[str, ...]
    batch_sizes: NDArray[np.int64]
    compute_ms: Array
    memory_ms: Array

    def layer_ms(self, direction: str, overlap: bool = False) -> Array:
        """Time of each layer, forward or backward, shape (batches, layers).

        Parameters
        ----------
        direction : {"forward", "backward"}
        overlap : bool
            The larger of arithmetic and memory (PALEO's ``use_pipeline``), for both gradients together.
        """
        parts = slice(0, 1) if direction == "forward" else slice(1, 3)
        compute, memory = self.compute_ms[:, parts].sum(1), self.memory_ms[:, parts].sum(1)
        times: Array = np.maximum(compute, memory) if overlap else compute + memory
        return times

    def total_ms(self, direction: str, overlap: bool = False) -> Array:
        """Time of a whole pass, shape (batches,)."""
        total: Array = self.layer_ms(direction, overlap).sum(-1)
        return total


def paleo_times(
    layers: Sequence[Layer],
    device: PaleoDevice,
    batch_sizes: Sequence[int],
    ppp: float = 1.0,
    *,
    revision: str = "last",
    algorithm: str = "gemm",
) -> PaleoTimes:
    """Time every layer at every batch size.

    Every term is affine in the batch size, so that two of them give all: one broadcast over batches and terms.

    Parameters
    ----------
    layers : sequence of Layer
    device : PaleoDevice
    batch_sizes : sequence of int
        Per worker.
    ppp : float
        The platform's share of peak, for arithmetic and memory alike.
    revision, algorithm : str
        See `paleo_terms`.

    Raises
    ------
    CountFailed
        If PALEO does not know a layer, or fails on it.
    BadValue
        If PPP or a batch size are not above 0.
    """
    if not ppp > 0:
        raise BadValue(f"the PPP must be above 0, not {ppp!r}")
    batches = np.asarray(batch_sizes, dtype=np.int64)
    if batches.ndim != 1 or not len(batches) or batches.min() < 1:
        raise BadValue(f"batch sizes must be whole numbers of 1 or more, not {list(batch_sizes)!r}")
    found = [
        (place, one, two)
        for place, (part, layer) in enumerate((part, layer) for part in PARTS for layer in layers)
        for one, two in zip(*(paleo_terms(layer, part, n, revision, algorithm) for n in (1, 2)))
    ]
    compute = np.array([one.compute for _, one, _ in found], dtype=bool)
    first = np.array([one.amount for _, one, _ in found], dtype=np.float64)
    second = np.array([two.amount for _, _, two in found], dtype=np.float64)
    amounts = (second - first) * batches[:, np.newaxis] + (2 * first - second)
    rate = np.where(compute, device.peak_gflops * 1e6, device.bandwidth_gb_per_s * 2**30 / 1e3)
    times = np.maximum(device.tick_ms, amounts / rate / ppp) * [one.repeats for _, one, _ in found]
    times[:, compute] = np.where(amounts[:, compute] > 0, times[:, compute], 0.0)
    places = np.array([place for place, _, _ in found], dtype=np.int64)
    shape = (len(batches), len(PARTS), len(layers))
    kinds = []
    for wanted in (True, False):
        total = np.zeros((len(batches), len(PARTS) * len(layers)))
        np.add.at(total.T, places[compute == wanted], times.T[compute == wanted])
        kinds.append(total.reshape(shape))
    return PaleoTimes(tuple(layer.name for layer in layers), batches, *kinds)


def update_ms(size_bytes: int, device: PaleoDevice, overlap: bool = False) -> float:
    """Gradient descent on parameters of that size: 2 FLOPs and three transfers each, always at a PPP of 1."""
    if not size_bytes:
        return 0.0
    compute = max(device.tick_ms, size_bytes // 4 * 2 / 1e6 / device.peak_gflops)
    memory = 3 * transfer_ms(size_bytes, device.bandwidth_gb_per_s, device.tick_ms)
    return max(compute, memory) if overlap else compute + memory


def transfer_ms(size_bytes: float, bandwidth_gb_per_s: float, tick_ms: float, ppp: float = 1.0) -> float:
    """Moving bytes as PALEO times it: GiB over GB/s."""
    return max(tick_ms, size_bytes / 2**30 / bandwidth_gb_per_s * 1e3 / ppp)


__all__ = ["DEVICES", "PaleoDevice", "PaleoTimes", "find_paleo_device", "paleo_times", "transfer_ms", "update_ms"]

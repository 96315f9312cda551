"""`Prediction`: how long, layer by layer, and what it was computed from."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from ..counting import Layer
from ..errors import UnknownName
from ..extras import need
from ..hardware import Device, PeakRate
from ..units import format_si
from .models import TimeModel

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from .capacity import MemoryFit

    Array = NDArray[np.float64]


class Prediction(msgspec.Struct, frozen=True, eq=False):
    """The answer to "how long?", with everything it was made of.

    Attributes
    ----------
    network : str
        Name of the network, or the FLOP count that stood in for one.
    device : Device
    precision, phase : str
    batch_size : int
    model : TimeModel
    convention : str
        How FLOPs were counted.
    peak : PeakRate
        The peak that multiply-accumulates are held against.
    vector_peak : PeakRate
        The peak that all other arithmetic is held against.
    bandwidth_bytes_per_s : float
    names, kinds : tuple of str
        One per layer; empty where only a FLOP count was given.
    passes : tuple of str
        The passes that the phase consists of: the first dimension of the arrays below.
    counts_by_pass, macs_by_pass, bytes_by_pass : ndarray, shape (passes, layers)
        Counts in the convention, MACs and bytes.
    compute_s, memory_s, times_s : ndarray, shape (passes, layers)
        Seconds of arithmetic at peak, of memory traffic at peak bandwidth, and the model's.
    matrix : ndarray of bool, shape (layers,)
        Layers that are held against `peak` rather than `vector_peak`.
    counted : ndarray of bool, shape (layers,)
        False where no rule counts the layer.
    parameters : int or None
    has_bytes : bool
        False where only a FLOP count was given.
    constant_s : float
        Seconds that a step takes besides its layers; 0 for models that know of none.
    interval : tuple of float or None
        Seconds between which the time lies at 90 %; None for models that do not say.
    intervals : dict of str to tuple of float
        The same for each level in percent, ``"80"`` and ``"90"``; empty for models that do not say.
    memory : MemoryFit or None
        Peak memory held against the device's; None where nobody asked.
    notes : tuple of str
        What somebody who uses the number should know.
    execution : str
        ``eager``, or what was fused.
    kernels : int or None
        Launched in all; None where only a FLOP count was given.
    carrier : ndarray of int or None
        For each layer the one in whose row its fused kernel stands.
    layers : tuple of Layer
        Empty where only a FLOP count was given.
    """

    network: str
    device: Device
    precision: str
    phase: str
    batch_size: int
    model: TimeModel
    convention: str
    peak: PeakRate
    vector_peak: PeakRate
    bandwidth_bytes_per_s: float
    names: tuple[str, ...]
    kinds: tuple[str, ...]
    passes: tuple[str, ...]
    counts_by_pass: NDArray[np.int64]
    macs_by_pass: NDArray[np.int64]
    bytes_by_pass: NDArray[np.int64]
    compute_s: Array
    memory_s: Array
    times_s: Array
    matrix: NDArray[np.bool_]
    counted: NDArray[np.bool_]
    parameters: int | None
    has_bytes: bool = True
    constant_s: float = 0.0
    interval: tuple[float, float] | None = None
    intervals: dict[str, tuple[float, float]] = {}
    memory: MemoryFit | None = None
    notes: tuple[str, ...] = ()
    execution: str = "eager"
    kernels: int | None = None
    carrier: NDArray[np.int64] | None = None
    layers: tuple[Layer, ...] = ()

    @property
    def time_s(self) -> float:
        """Seconds for one batch."""
        return float(self.times_s.sum()) + self.constant_s

    @property
    def throughput_per_s(self) -> float | None:
        """Samples per second; None where nothing takes time."""
        return self.batch_size / self.time_s if self.time_s else None

    @property
    def flops(self) -> int:
        """The count, in the convention."""
        return int(self.counts_by_pass.sum())

    @property
    def macs(self) -> int | None:
        """Multiply-accumulates; None where only a FLOP count was given."""
        return int(self.macs_by_pass.sum()) if self.has_bytes else None

    @property
    def bytes(self) -> int | None:
        """Bytes read and written; None where only a FLOP count was given."""
        return int(self.bytes_by_pass.sum()) if self.has_bytes else None

    @property
    def intensity(self) -> float | None:
        """Arithmetic intensity, FLOPs per byte."""
        return self.flops / self.bytes if self.bytes else None

    @property
    def ridge_point(self) -> float:
        """The intensity, FLOPs per byte, at which arithmetic and memory traffic take equally long at peak."""
        return self.peak.per_s / self.bandwidth_bytes_per_s

    def bound(self, layer: int) -> str:
        """``compute``, ``memory``, ``nothing`` (it takes no time), ``fused`` (into another), ``unknown`` (no rule)."""
        if not self.counted[layer]:
            return "unknown"
        if self.carrier is not None and self.carrier[layer] != layer:
            return "fused"
        compute, memory = self.compute_s[:, layer], self.memory_s[:, layer]
        if not self.times_s[:, layer].sum():
            return "nothing"
        if not self.model.uses_memory:
            return "compute"
        # Over several passes: the term that rules the larger part of the time.
        ruled = np.where(compute >= memory, self.times_s[:, layer], -self.times_s[:, layer])
        return "compute" if ruled.sum() >= 0 else "memory"

    def peak_of(self, part: str, layer: int) -> PeakRate:
        """The peak that a layer's arithmetic is held against in a pass."""
        return self.peak if self.matrix[layer] and part != "update" else self.vector_peak

    def rows(self) -> Iterator[dict[str, Any]]:
        """One dict per layer: name, kind, flops, bytes, time_s, bound; flops is None where no rule counts it."""
        flops, moved, seconds = self.counts_by_pass.sum(0), self.bytes_by_pass.sum(0), self.times_s.sum(0)
        for index, name in enumerate(self.names):
            yield {
                "name": name,
                "kind": self.kinds[index],
                "flops": int(flops[index]) if self.counted[index] else None,
                "bytes": int(moved[index]),
                "time_s": float(seconds[index]),
                "bound": self.bound(index),
            }

    def by_kind(self) -> dict[str, dict[str, Any]]:
        """Per kind of layer: layers, flops, bytes, time_s and share of the time; longest first."""
        kinds: dict[str, dict[str, Any]] = {}
        for row in self.rows():
            entry = kinds.setdefault(row["kind"], {"layers": 0, "flops": 0, "bytes": 0, "time_s": 0.0})
            entry["layers"] += 1
            for key in ("flops", "bytes", "time_s"):
                entry[key] = None if row[key] is None or entry[key] is None else entry[key] + row[key]
        for entry in kinds.values():
            entry["share"] = entry["time_s"] / self.time_s if self.time_s else 0.0
        return dict(sorted(kinds.items(), key=lambda item: (-item[1]["time_s"], item[0])))

    def layer_index(self, name: str) -> int:
        """Where a layer stands.

        Raises
        ------
        UnknownName
            If there is no such layer.
        """
        if name not in self.names:
            raise UnknownName(f"layer of {self.network}", name, self.names)
        return self.names.index(name)

    def to_dict(self) -> dict[str, Any]:
        """The documented JSON: stable names, SI units."""
        return {
            "network": self.network,
            "gpu": self.device.id,
            "precision": self.precision,
            "batch_size": self.batch_size,
            "phase": self.phase,
            "time_model": self.model.name,
            "convention": self.convention,
            "clock": self.peak.clock,
            "flops": self.flops,
            "macs": self.macs,
            "bytes": self.bytes,
            "parameters": self.parameters,
            "peak_flops": self.peak.per_s,
            "peak_unit": self.peak.peak.unit,
            "bandwidth_bytes_per_s": self.bandwidth_bytes_per_s,
            "ppp": self.model.ppp,
            "intensity": self.intensity,
            "ridge_point": self.ridge_point,
            "time_s": self.time_s,
            "throughput_per_s": self.throughput_per_s,
            "constant_s": self.constant_s,
            "interval": None if self.interval is None else list(self.interval),
            "execution": self.execution,
            "kernels": self.kernels,
            "intervals": {level: list(interval) for level, interval in self.intervals.items()} or None,
            "memory": None if self.memory is None else self.memory.to_dict(),
            "notes": list(self.notes),
            "by_kind": self.by_kind(),
            "layers": list(self.rows()),
        }

    def to_frame(self) -> Any:
        """The layers as a pandas DataFrame.

        Raises
        ------
        MissingExtra
            If pandas is not installed.
        """
        columns = ["name", "kind", "flops", "bytes", "time_s", "bound"]
        return need("pandas", "a data frame", "profiles").DataFrame(list(self.rows()), columns=columns)

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        throughput = self.throughput_per_s
        return [
            ("network", self.network),
            ("gpu", self.device.id),
            ("precision", self.precision),
            ("batch_size", self.batch_size),
            ("phase", self.phase),
            ("time_model", self.model.name),
            ("time", format_si(self.time_s, "s")),
            ("throughput", "-" if throughput is None else f"{throughput:.5g} per s"),
        ]

    def __repr__(self) -> str:
        return f"Prediction({', '.join(f'{name}={value!r}' for name, value in self.__rich_repr__())})"

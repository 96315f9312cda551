"""`Prediction`: how long, layer by layer, and what it was computed from."""

from __future__ import annotations

from collections.abc import Iterator
from operator import attrgetter
from typing import TYPE_CHECKING, Any, ClassVar

import msgspec
import numpy as np

from ..counting import Layer
from ..errors import UnknownName
from ..extras import need
from ..hardware import Device, Machine, PeakRate
from ..result import Result
from ..units import format_si, say_interval
from ..version import __version__
from .generating import generating_dict, tokens_per_s
from .models import TimeModel
from .terms import QUANTILES, Terms
from .workload import Workload

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from .capacity import MemoryFit


def _of(path: str) -> Any:
    """A property that asks one of a prediction's parts."""
    return property(attrgetter(path))


class Prediction(Result, msgspec.Struct, frozen=True, eq=False):
    """The answer to "how long?", with everything it was made of.

    Attributes
    ----------
    workload : Workload
        What is computed; its batch is that of the whole step.
    terms : Terms
        Seconds by pass and layer.
    counts_by_pass, macs_by_pass, bytes_by_pass : ndarray of int, shape (passes, layers)
        Counts in the workload's convention, MACs and bytes, of the passes in `terms`.
    matrix : ndarray of bool, shape (layers,)
        Layers that are held against `peak` rather than `vector_peak`.
    kernels : int or None
        Launched in all; None where only a FLOP count was given.
    notes : tuple of str
        What somebody who uses the number should know.
    memory : MemoryFit or None
        Peak memory held against the device's; None where it was not asked for.
    bound_terms : Terms or None
        What the data sheet allows; None where the model itself is a bound, and its own terms say it.
    board_bound_s : float or None
        The bound of all devices of a board together, if they could share the work; None for single devices.
    """

    _page: ClassVar[str] = "paleo_lite.report.predictions:prediction_page"

    workload: Workload
    machine: Machine
    model: TimeModel
    terms: Terms
    counts_by_pass: NDArray[np.int64]
    macs_by_pass: NDArray[np.int64]
    bytes_by_pass: NDArray[np.int64]
    matrix: NDArray[np.bool_]
    kernels: int | None
    notes: tuple[str, ...] = ()
    memory: MemoryFit | None = None
    bound_terms: Terms | None = None
    board_bound_s: float | None = None

    # What is asked of its parts. Without layers, where only a FLOP count was given, those are empty.
    network: ClassVar[str] = _of("workload.network.name")
    device: ClassVar[Device] = _of("machine.device")
    precision: ClassVar[str] = _of("workload.precision")
    phase: ClassVar[str] = _of("workload.phase")
    batch_size: ClassVar[int] = _of("workload.batch_size")
    convention: ClassVar[str] = _of("workload.convention")
    execution: ClassVar[str] = _of("workload.execution")
    layers: ClassVar[tuple[Layer, ...]] = _of("workload.layers")
    names: ClassVar[tuple[str, ...]] = _of("workload.work.names")
    kinds: ClassVar[tuple[str, ...]] = _of("workload.work.kinds")
    bandwidth_bytes_per_s: ClassVar[float] = _of("machine.bandwidth_bytes_per_s")
    time_s: ClassVar[float] = _of("terms.time_s")
    # Whether the time is what to expect; else it is what cannot be beaten: a bound.
    is_forecast: ClassVar[bool] = _of("model.is_forecast")

    @property
    def parameters(self) -> int | None:
        """Of the network; None where only a FLOP count was given."""
        return self.workload.network.parameters if self.workload.has_layers else None

    @property
    def peak(self) -> PeakRate:
        """The peak that multiply-accumulates are held against."""
        return self.model.peak(self.machine, self.precision)

    @property
    def vector_peak(self) -> PeakRate:
        """The peak that all other arithmetic is held against."""
        return self.machine.vector_peak(self.precision) if self.workload.has_layers else self.peak

    @property
    def bound_s(self) -> float:
        """Seconds that the data sheet allows: the roofline's, or FLOPs / peak for a bare count."""
        return (self.bound_terms or self.terms).time_s

    @property
    def calibration(self) -> str | None:
        """What the model's parameters were learnt from; None for models without."""
        return self.model.label or None

    @property
    def mfu(self) -> float | None:
        """Model FLOP/s utilisation: FLOPs over the peak, over the time; None where nothing takes time.

        Chowdhery et al. 2022 (PaLM, appendix B), here of all FLOPs, those of what is computed again too; None in a
        convention that counts a multiply-accumulate as 1.
        """
        in_flops = self.workload.work.convention.unit == "FLOP"
        return self.flops / self.peak.per_s / self.time_s if in_flops and self.time_s else None

    @property
    def interval(self) -> tuple[float, float] | None:
        """Seconds between which the time lies at 90%; None for models that do not say."""
        return self.terms.interval()

    @property
    def intervals(self) -> dict[str, tuple[float, float]]:
        """The same for each level in percent, ``"80"`` and ``"90"``; empty for models that do not say."""
        said = {f"{level:.0%}".rstrip("%"): self.terms.interval(level) for level in QUANTILES}
        return {level: interval for level, interval in said.items() if interval is not None}

    @property
    def throughput_per_s(self) -> float | None:
        """Samples per second on one device; None where nothing takes time."""
        return self.batch_size / self.time_s if self.time_s else None

    @property
    def board(self) -> dict[str, Any] | None:
        """Of a board of several devices what all do at once, each its own batch; and what the data sheet says of it."""
        if self.machine.board is None:
            return None
        together = self.machine.together
        throughput = None if self.throughput_per_s is None else together * self.throughput_per_s
        return {
            "gpu": self.machine.board.id,
            "devices": together,
            "throughput_per_s": throughput,
            "bound_s": self.board_bound_s,
        }

    @property
    def passes_s(self) -> dict[str, float]:
        """Seconds by pass, the two gradients together as ``backward``, and the overhead: together the time."""
        seconds: dict[str, float] = {}
        for name in self.terms.passes:
            shown = "backward" if name.startswith("backward") else name
            seconds[shown] = seconds.get(shown, 0.0) + float(self.terms.of(name).sum())
        return {**seconds, "overhead": self.terms.overhead_s}

    @property
    def waiting_s(self) -> dict[str, float]:
        """Seconds of each of `passes_s` that the device waits for the host: what is left is the same in every phase."""
        waiting = 1 - 1 / self.terms.waiting
        return {name: 0.0 if name == "overhead" else seconds * waiting for name, seconds in self.passes_s.items()}

    @property
    def flops(self) -> int:
        """The count, in the convention."""
        return int(self.counts_by_pass.sum())

    @property
    def macs(self) -> int | None:
        """Multiply-accumulates; None where only a FLOP count was given."""
        return int(self.macs_by_pass.sum()) if self.workload.has_layers else None

    @property
    def bytes(self) -> int | None:
        """Bytes read and written; None where only a FLOP count was given."""
        return int(self.bytes_by_pass.sum()) if self.workload.has_layers else None

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
        work, seconds = self.workload.work, self.terms.layers_s[:, layer]
        if not work.counted[layer]:
            return "unknown"
        if work.carrier is not None and work.carrier[layer] != layer:
            return "fused"
        if not seconds.sum():
            return "nothing"
        if not self.model.uses_memory:
            return "compute"
        # Over several passes: the term that rules the larger part of the time.
        ruled = np.where(self.terms.compute_s[:, layer] >= self.terms.memory_s[:, layer], seconds, -seconds)
        return "compute" if ruled.sum() >= 0 else "memory"

    def peak_of(self, part: str, layer: int) -> PeakRate:
        """The peak that a layer's arithmetic is held against in a pass."""
        return self.peak if self.matrix[layer] and part != "update" else self.vector_peak

    def rows(self) -> Iterator[dict[str, Any]]:
        """One dict per layer: name, kind, flops (None where no rule counts it), bytes, time_s, bound_s, bound."""
        flops, moved, seconds = self.counts_by_pass.sum(0), self.bytes_by_pass.sum(0), self.terms.layers_s.sum(0)
        bound_s = (self.bound_terms or self.terms).layers_s.sum(0)
        counted = self.workload.work.counted
        for index, name in enumerate(self.names):
            yield {
                "name": name,
                "kind": self.kinds[index],
                "flops": int(flops[index]) if counted[index] else None,
                "bytes": int(moved[index]),
                "time_s": float(seconds[index]),
                "bound_s": float(bound_s[index]),
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
            "calibration": self.calibration,
            "is_forecast": self.is_forecast,
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
            "bound_s": self.bound_s,
            "throughput_per_s": self.throughput_per_s,
            "tokens_per_s": tokens_per_s(self),
            "generating": generating_dict(self),
            "passes_s": self.passes_s,
            "waiting_s": self.waiting_s,
            "mfu": self.mfu,
            "constant_s": self.terms.overhead_s,
            "interval": None if self.interval is None else list(self.interval),
            "execution": self.execution,
            "kernels": self.kernels,
            "intervals": {level: list(interval) for level, interval in self.intervals.items()} or None,
            "memory": None if self.memory is None else self.memory.to_dict(),
            "board": self.board,
            "version": __version__,
            "notes": list(self.notes),
            "by_kind": self.by_kind(),
            "layers": list(self.rows()),
        }

    def to_frame(self) -> Any:
        """The layers as a pandas DataFrame, and a row of the overhead: together the time.

        What holds for all of them, such as the calibration and the bound, is in its ``attrs``.

        Raises
        ------
        MissingExtra
            If pandas is not installed.
        """
        columns = ["name", "kind", "flops", "bytes", "time_s", "bound_s", "bound"]
        frame = need("pandas", "a data frame", "profiles").DataFrame(list(self.steps()), columns=columns)
        frame.attrs = {key: value for key, value in self.to_dict().items() if key not in ("layers", "by_kind")}
        return frame

    def steps(self) -> Iterator[dict[str, Any]]:
        """The rows of all layers, and one of the overhead where there is any: together the time."""
        yield from self.rows()
        if self.terms.overhead_s:
            yield {
                "name": "overhead",
                "kind": "overhead",
                "time_s": self.terms.overhead_s,
                "bound_s": 0.0,
                "bound": "host",
            }

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
            ("interval", None if self.interval is None else say_interval(self.interval)),
            ("bound", format_si(self.bound_s, "s")),
            ("throughput", "-" if throughput is None else f"{throughput:.5g} per s"),
        ]

    def __repr__(self) -> str:
        return f"Prediction({', '.join(f'{name}={value!r}' for name, value in self.__rich_repr__())})"

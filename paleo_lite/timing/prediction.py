"""`Prediction`, the predicted time of a workload on a machine, with the times of all layers."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

import msgspec
import numpy as np

from ..counting import Layer
from ..counting.work import PHASES_WITH_GRADIENTS
from ..errors import UnknownName
from ..extras import require
from ..machines import Device, Machine, PeakRate
from ..units import format_interval, format_si
from .activity import Activity
from .answer import Answer, as_json
from .energy import Power, power_of
from .facility import Facility
from .generating import generation_figures, tokens_per_batch
from .intervals import DIRECT_PRECISIONS, QUANTILES, not_below
from .layer_rows import kernel_rows, layer_rows, sum_by_kind
from .models import TimeModel
from .power import sustained_fraction
from .terms import RECOMPUTE, LaunchedKernels, Terms, layers_peak_s
from .workload import Workload

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from .budget import Budget, TrainingRun
    from .memory import MemoryFit


class Prediction(Answer, msgspec.Struct, frozen=True, eq=False, dict=True):
    """Predicted time of a workload on a machine, with the times and counts of all layers.

    Attributes
    ----------
    workload : Workload
        Predicted workload; its batch size is that of the whole step.
    terms : Terms
        Seconds by pass and layer.
    counts_by_pass, macs_by_pass, bytes_by_pass : ndarray of int, shape (passes, layers)
        Counts in the workload's convention, MACs and bytes, of the passes in `terms`; those of the layers of the
        network also where the kernels of an engine are timed.
    matrix : ndarray of bool, shape (layers,)
        Whether a layer uses `peak` rather than `vector_peak`.
    kernels : int or None
        Number of kernel launches; None for a FLOP count alone.
    notes : tuple of str
        Caveats.
    memory : MemoryFit or None
        Peak memory compared with the device's; None for a bare FLOP or MAC count.
    bound_terms : Terms or None
        Terms of the lower bound; None if the model itself is a bound.
    board_bound_s : float or None
        Bound of all devices of a board, if they shared the work; None for single devices.
    budget : Budget or None
        Amount of training, for hours, cost and energy; None if it was not requested.
    facility : Facility or None
        What surrounds the devices; None if it was not requested.
    """

    _page: ClassVar[str] = "paleo_lite.reporting.predictions:prediction_page"

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
    budget: Budget | None = None
    facility: Facility | None = None

    # Properties of the workload, the machine and the derived quantities.

    @property
    def network(self) -> str:
        """Name of the network."""
        return self.workload.network.name

    @property
    def device(self) -> Device:
        """Device that the workload runs on."""
        return self.machine.device

    @property
    def gpu(self) -> str:
        """ID of the device."""
        return self.device.id

    @property
    def precision(self) -> str:
        """Precision that was asked for: the recipe of training with narrow products, or that of the network."""
        return self.workload.options.recipe or self.workload.precision

    @property
    def phase(self) -> str:
        """Phase of the workload."""
        return self.workload.phase

    @property
    def batch_size(self) -> int:
        """Batch size of the step."""
        return self.workload.batch_size

    @property
    def convention(self) -> str:
        """Counting convention."""
        return self.workload.convention

    @property
    def execution(self) -> str:
        """Execution of the kernels, or the engine that launches them."""
        return self.workload.execution_or_engine

    @property
    def layers(self) -> tuple[Layer, ...]:
        """Layers that are timed; empty for a FLOP count alone and for the kernels of an engine."""
        return self.workload.layers if self.launched is None else ()

    @property
    def launched(self) -> LaunchedKernels | None:
        """Kernels of an engine that are timed in place of layers; None where layers are timed."""
        return self.terms.launched

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the layers or kernels."""
        return self.workload.work.names if self.launched is None else self.launched.names

    @property
    def kinds(self) -> tuple[str, ...]:
        """Kinds of the layers or kernels."""
        return self.workload.work.kinds if self.launched is None else self.launched.kinds

    @property
    def bandwidth_bytes_per_s(self) -> float:
        """Peak memory bandwidth in bytes per second."""
        return self.device.bandwidth_bytes_per_s

    @property
    def time_s(self) -> float:
        """Predicted time in seconds."""
        return self.terms.time_s

    @property
    def sustained_fraction(self) -> float:
        """Clock that the device sustains in matrix products under its power limit, relative to that of its peak."""
        return sustained_fraction(self.device, self.peak)

    @cached_property
    def activity(self) -> Activity:
        """What the device does in the step."""
        return Activity(*(float(np.sum(seconds)) for seconds in self._activity_by_layer))

    @cached_property
    def _activity_by_layer(self) -> Activity:
        """What the device does in each layer or kernel, arrays of shape (layers,)."""
        if self.launched is not None:
            return self.launched.activity
        peak_s = layers_peak_s(self.bound_terms or self.terms, self.workload, self.device)
        return self.terms.activity_by_layer(peak_s)

    @cached_property
    def power(self) -> Power | None:
        """What the device draws; None if its power limit or process is unknown."""
        relative_clock = 1.0
        if self.machine.clock is not None:
            default_machine = msgspec.structs.replace(self.machine, clock=None)
            relative_clock = self.peak.per_s / self.model.peak(default_machine, self.workload.precision).per_s
        has_experts = self.workload.has_layers and self.workload.has_experts
        return power_of(self.device, relative_clock, constants=self.model.power_constants, has_experts=has_experts)

    @property
    def price_usd_per_h(self) -> float | None:
        """Price on record of the device per hour; None without one."""
        return self.device.rent_usd_per_h

    @property
    def memory_bytes(self) -> float | None:
        """Peak memory in bytes; None for a bare FLOP or MAC count."""
        return None if self.memory is None else self.memory.total_bytes

    @property
    def fits(self) -> bool | None:
        """Whether the peak memory fits; None for a bare FLOP or MAC count."""
        return None if self.memory is None else self.memory.fits

    @property
    def is_forecast(self) -> bool:
        """Whether the time is a forecast; otherwise it is a bound."""
        return self.model.is_forecast

    @cached_property
    def flops(self) -> int:
        """FLOPs in the workload's convention, of the kernels of an engine where they are timed.

        Those leave out the pairs that a mask hides. Conventions other than ``flops`` have rules for layers alone.
        """
        if self.launched is not None and self.convention == "flops":
            return round(float(self.launched.flops.sum()))
        return int(self.counts_by_pass.sum())

    @cached_property
    def macs(self) -> int | None:
        """Multiply-accumulates of the layers, or of an engine's kernels as `flops`; None for a FLOP count alone.

        The FLOPs of kernels are those of their products, two per multiply-accumulate.
        """
        if self.launched is not None and self.convention == "flops":
            return self.flops // 2
        return int(self.macs_by_pass.sum()) if self.workload.has_layers else None

    @cached_property
    def bytes(self) -> int | None:
        """Bytes read and written, by the kernels of an engine where they are timed; None for a FLOP count alone."""
        if self.launched is not None:
            return round(float(self.launched.bytes.sum()))
        return int(self.bytes_by_pass.sum()) if self.workload.has_layers else None

    @property
    def parameters(self) -> int | None:
        """Number of parameters; None for a FLOP count alone."""
        return self.workload.network.parameters if self.workload.has_layers else None

    @property
    def intensity(self) -> float | None:
        """Arithmetic intensity in FLOPs per byte."""
        return self.flops / self.bytes if self.bytes else None

    @cached_property
    def peak(self) -> PeakRate:
        """Peak rate of multiply-accumulates."""
        return self.model.peak(self.machine, self.workload.precision)

    @cached_property
    def vector_peak(self) -> PeakRate:
        """Peak rate of all other arithmetic."""
        return self.machine.vector_peak(self.workload.precision) if self.workload.has_layers else self.peak

    @property
    def ridge_point(self) -> float:
        """Intensity at which arithmetic and memory traffic take equally long at peak, in FLOPs per byte."""
        return self.peak.per_s / self.bandwidth_bytes_per_s

    @property
    def bound_s(self) -> float:
        """Lower bound of the time in seconds: the roofline, or FLOPs / peak for a FLOP count alone."""
        return (self.bound_terms or self.terms).time_s

    @property
    def traffic_s(self) -> float:
        """Seconds of the bytes that must move at the bandwidth of the data sheet, below which no interval extends.

        0 of the kernels of an engine, whose intervals do not extend below theirs, and without a bound.
        """
        if self.bound_terms is None or self.launched is not None:
            return 0.0
        return float(self.bound_terms.memory_s.sum())

    @property
    def throughput_per_s(self) -> float | None:
        """Samples per second on one device; None if the time is 0."""
        return self.batch_size / self.time_s if self.time_s else None

    @property
    def tokens_per_s(self) -> float | None:
        """Tokens per second on one device; None for networks without sequences."""
        tokens = tokens_per_batch(self.workload)
        return None if tokens is None or not self.time_s else tokens / self.time_s

    @property
    def mfu(self) -> float | None:
        """Model FLOP/s utilisation: FLOPs without recomputed ones over peak, over the time.

        None if the time is 0, or in a convention that counts a multiply-accumulate as 1 (Chowdhery et al. 2022, PaLM,
        appendix B).
        """
        if not self.time_s or self.workload.unfused_work.convention.unit != "FLOP":
            return None
        return self.flops / (1 + self.recomputed_fraction) / self.peak.per_s / self.time_s

    @property
    def hfu(self) -> float | None:
        """Hardware FLOP/s utilisation of a training step: MFU with recomputed FLOPs included (PaLM, appendix B)."""
        if self.mfu is None or self.phase not in PHASES_WITH_GRADIENTS:
            return None
        return self.mfu * (1 + self.recomputed_fraction)

    @cached_property
    def recomputed_fraction(self) -> float:
        """FLOPs that are computed again, as a fraction of those of the passes."""
        if RECOMPUTE not in self.terms.passes:
            return 0.0
        recomputed = int(self.counts_by_pass[self.terms.passes.index(RECOMPUTE)].sum())
        return recomputed / (int(self.counts_by_pass.sum()) - recomputed)

    @cached_property
    def intervals(self) -> dict[str, tuple[float, float]]:
        """Intervals by level in percent, ``"80"`` and ``"90"``; empty for models without intervals."""
        intervals: dict[str, tuple[float, float]] = {}
        for level in QUANTILES:
            interval = self.terms.interval(level)
            if interval is None:
                break
            low_s, high_s = interval
            least_s = self.traffic_s
            if self.workload.precision in DIRECT_PRECISIONS and self.bound_terms is not None:
                least_s = self.bound_terms.time_s
            low_s = float(not_below(low_s, least_s, self.time_s))
            intervals[f"{level:.0%}".rstrip("%")] = (low_s, high_s)
        return intervals

    @property
    def board(self) -> dict[str, Any] | None:
        """Throughput of all devices of a board, each with its own batch, and its bound; None for single devices."""
        if self.machine.board is None:
            return None
        device_per_s, devices = self.throughput_per_s, self.machine.device_count
        return {
            "gpu": self.machine.board.id,
            "devices": devices,
            "throughput_per_s": None if device_per_s is None else devices * device_per_s,
            "bound_s": self.board_bound_s,
        }

    @property
    def calibration(self) -> str | None:
        """Label of the calibration of the model's parameters; None for models without."""
        return self.model.label or None

    @property
    def run(self) -> TrainingRun | None:
        """Hours, cost and energy of the amount of training; None without one."""
        if self.budget is None:
            return None
        from .budget import training_run

        power_w, interval_w = self.power_w or self.device.power_w, self.power_interval_w
        return training_run(self.budget, self.time_s, self.interval, self.batch_size, 1, power_w, interval_w)

    @property
    def trainable_parameters(self) -> int | None:
        """Number of parameters that a training step updates; None in phases without an update."""
        return self.workload.trainable_parameters if self.phase == "training" else None

    @property
    def passes_s(self) -> dict[str, float]:
        """Seconds by pass, with both gradients as ``backward``, and the overhead; they add up to the time."""
        return self.terms.passes_s

    @property
    def waiting_s(self) -> dict[str, float]:
        """Seconds of each of `passes_s` in which the device waits for the host."""
        return self.terms.waiting_s

    def peak_of(self, part: str, layer: int) -> PeakRate:
        """Return the peak rate of a layer's arithmetic in a pass."""
        return self.peak if self.matrix[layer] and part != "update" else self.vector_peak

    def rows(self) -> Iterator[dict[str, Any]]:
        """Return one dict per layer: name, kind, flops (None without a counting rule), bytes, time_s, bound_s, bound.

        The last is ``compute``, ``memory``, ``nothing`` (the layer takes no time), ``fused`` (into another layer) or
        ``unknown`` (no counting rule). Kernels of an engine have their ``launches``, too, and may be bound by the
        ``launch``.
        """
        bound_terms = self.bound_terms or self.terms
        if self.launched is not None:
            return kernel_rows(self.launched, self.terms, bound_terms)
        return layer_rows(
            self.workload.work,
            self.terms,
            bound_terms,
            self.counts_by_pass.sum(0),
            self.bytes_by_pass.sum(0),
            uses_memory=self.model.uses_memory,
        )

    def bound(self, layer: int) -> str:
        """Return the bound of a layer, as in `rows`."""
        return str(list(self.rows())[layer]["bound"])

    @property
    def layers_energy_j(self) -> NDArray[np.float64] | None:
        """Joules of each layer, shape (layers,); None if the power is unknown.

        The energy of the step is divided in proportion to what the layers would draw alone, without a limit; the
        overhead of the step draws idle power.
        """
        power, terms = self.power, self.terms
        if power is None or self.energy_j is None:
            return None
        layers_s = terms.layers_s.sum(axis=0)
        demand_j = power.demand_w(self._activity_by_layer.shares_of(layers_s)) * layers_s
        energy_j: NDArray[np.float64] = self.energy_j * demand_j / (demand_j.sum() + power.idle_w * terms.overhead_s)
        return energy_j

    def by_kind(self) -> dict[str, dict[str, Any]]:
        """Return layers, flops, bytes, time_s, energy_j and share of the time for each kind of layer, longest first."""
        return sum_by_kind(self.rows(), self.layers_energy_j, self.time_s)

    def layer_index(self, name: str) -> int:
        """Return the index of a layer.

        Raises
        ------
        UnknownName
            If there is no such layer.
        """
        if name not in self.names:
            raise UnknownName(f"layer of {self.network}", name, self.names)
        return self.names.index(name)

    def to_dict(self) -> dict[str, Any]:
        """Return the documented JSON, with stable names and SI units."""
        fields = {
            "batch_size": self.batch_size,
            "phase": self.phase,
            "time_model": self.model.name,
            "convention": self.convention,
            "clock": self.peak.clock,
            "flops": self.flops,
            "macs": self.macs,
            "bytes": self.bytes,
            "parameters": self.parameters,
            "trainable_parameters": self.trainable_parameters,
            "peak_flops": self.peak.per_s,
            "peak_unit": self.peak.peak.unit,
            "bandwidth_bytes_per_s": self.bandwidth_bytes_per_s,
            "ppp": self.model.ppp,
            "intensity": self.intensity,
            "ridge_point": self.ridge_point,
            "generating": self.generation_dict(),
            "passes_s": self.passes_s,
            "waiting_s": self.waiting_s,
            "mfu": self.mfu,
            "hfu": self.hfu,
            "power_interval_w": as_json(self.power_interval_w),
            "energy_interval_j": as_json(self.energy_interval_j),
            "site": None if self.site is None else self.site.to_dict(),
            "sustained_fraction": self.sustained_fraction,
            "constant_s": self.terms.overhead_s,
            "kernels": self.kernels,
            "intervals": {level: list(interval) for level, interval in self.intervals.items()} or None,
            "memory": None if self.memory is None else self.memory.to_dict(),
            "board": self.board,
            "run": None if self.run is None else self.run.to_dict(),
            "by_kind": self.by_kind(),
            "layers": list(self.rows()),
        }
        return self.with_common_fields(fields)

    def to_frame(self) -> Any:
        """Return the layers as a pandas DataFrame, with a row for the overhead; the times add up to the predicted one.

        Quantities of the whole prediction, such as the calibration and the bound, are in its ``attrs``.

        Raises
        ------
        MissingExtra
            If pandas is not installed.
        """
        columns = ["name", "kind", "flops", "bytes", "time_s", "bound_s", "bound"]
        frame = require("pandas", "a data frame", "profiles").DataFrame(list(self.steps()), columns=columns)
        frame.attrs = {key: value for key, value in self.to_dict().items() if key not in ("layers", "by_kind")}
        return frame

    def steps(self) -> Iterator[dict[str, Any]]:
        """Yield the rows of all layers, and one for the overhead if any; the times add up to the predicted time."""
        yield from self.rows()
        if self.terms.overhead_s:
            yield {
                "name": "overhead",
                "kind": "overhead",
                "time_s": self.terms.overhead_s,
                "bound_s": 0.0,
                "bound": "host",
            }

    def generation_dict(self) -> dict[str, Any] | None:
        """Return the documented JSON of text generation; None in phases other than prefill and decode."""
        cache_bytes = None if self.launched is None else self.launched.cache_bytes_per_sequence
        return generation_figures(
            self.workload, self.time_s, self.peak.per_s, self.bandwidth_bytes_per_s, cache_bytes_of_kernels=cache_bytes
        )

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
            ("interval", None if self.interval is None else format_interval(self.interval)),
            ("bound", format_si(self.bound_s, "s")),
            ("throughput", "-" if throughput is None else f"{throughput:.5g} per s"),
        ]

    def __repr__(self) -> str:
        return f"Prediction({', '.join(f'{name}={value!r}' for name, value in self.__rich_repr__())})"

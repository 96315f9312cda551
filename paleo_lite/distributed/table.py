"""Result of a scaling prediction: `ScaleTable`, with a `ScaleRow` per number of workers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

import msgspec

from ..result import Result
from ..timing.budget import Budget, TrainingRun, training_run
from ..timing.facility import Facility, SiteEnergy
from ..units import format_si
from .step import Step

COLUMNS = (
    "workers",
    "batch_size",
    "compute_s",
    "communication_s",
    "exposed_s",
    "update_s",
    "time_s",
    "throughput_per_s",
    "speedup",
    "efficiency",
    "memory_bytes",
    "cost",
)
"""Documented columns of a row, in their order; further columns follow."""

PER_DEVICE = ("flops_per_s", "mfu", "hfu", "tokens_per_s", "kwh_per_million", "cost_per_million", "kwh")
"""Columns on utilisation, and on the energy and cost of a million samples or of all samples."""

_TABLE_FIELDS = (
    "network",
    "gpu",
    "precision",
    "phase",
    "scaling",
    "batch_size",
    "topology",
    "model",
    "is_forecast",
    "images",
    "epochs",
    "price_usd_per_h",
    "price",
    "trainable_parameters",
)


class ScaleTable(Result, msgspec.Struct, frozen=True):
    """Training or text generation on several numbers of devices, or with several strategies on one number.

    Attributes
    ----------
    network, gpu, gpu_name, precision : str
        Subject of the prediction; `gpu` is the device's id.
    scaling : str
        ``weak`` or ``strong``.
    batch_size : int
        Batch size as requested: per worker for weak scaling, of all workers for strong scaling.
    topology : str
        Description of the machine.
    links : tuple of str
        Descriptions of its links, with the bandwidth that they reach.
    model : str
        Description of the time model of computation.
    memory_bytes : float or None
        Memory of a device; None if it plays no part.
    rows : list of ScaleRow
        One row per number of workers, or per strategy.
    images, epochs, price_usd_per_h : float or None
        Budget that hours and cost refer to.
    price : str or None
        The price, with who asks it; None without a budget.
    why : str
        Explanation of the recommended strategy, if strategies were compared.
    refused : dict of str to str
        Strategies that are impossible, with the reason, if strategies were compared.
    notes : tuple of str
        Remarks for the user.
    assumptions : tuple of str
        What names of links and platforms were taken to mean; the first line of an answer says so.
    is_forecast : bool
        Whether times are forecasts; otherwise they are lower bounds by data sheets.
    phase : {"training", "prefill", "decode"}
        Predicted phase.
    trainable_parameters : int or None
        Number of parameters that a training step updates.
    facility : Facility or None
        What surrounds the devices; None if it is not described.
    """

    _page: ClassVar[str] = "paleo_lite.reporting.scale:scale_page"

    network: str
    gpu: str
    gpu_name: str
    precision: str
    scaling: str
    batch_size: int
    topology: str
    links: tuple[str, ...]
    model: str
    memory_bytes: float | None
    rows: list[ScaleRow]
    images: float | None = None
    epochs: float | None = None
    price_usd_per_h: float | None = None
    why: str = ""
    refused: dict[str, str] = {}
    notes: tuple[str, ...] = ()
    assumptions: tuple[str, ...] = ()
    is_forecast: bool = True
    phase: str = "training"
    trainable_parameters: int | None = None
    facility: Facility | None = None
    price: str | None = None

    def __iter__(self) -> Iterator[ScaleRow]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: Any) -> Any:
        rows = self.rows[index]
        if isinstance(index, slice):
            return msgspec.structs.replace(self, rows=rows)
        return rows

    def to_dict(self) -> dict[str, Any]:
        """Return the documented JSON."""
        answer = {name: getattr(self, name) for name in _TABLE_FIELDS}
        if self.why:
            fitting = [row for row in self.rows if row.fits]
            answer["best"] = fitting[0].strategy if fitting else None
            answer["runner_up"] = fitting[1].strategy if len(fitting) > 1 else None
            answer["why"] = self.why
            answer["refused"] = self.refused
        answer["rows"] = [row.to_dict() for row in self.rows]
        answer["notes"] = [*self.assumptions, *self.notes]
        return answer


class ScaleRow(Step, frozen=True, kw_only=True):
    """Step on some number of workers, compared with a single worker.

    Attributes
    ----------
    workers : int
        Number of devices.
    batch_size : int
        Global batch size: samples per step of all workers.
    single_worker_per_s : float
        Samples per second of a single worker (strong scaling: with the global batch), the baseline of the speed-up.
    baseline_workers : int
        Number of workers that the baseline was measured on, per worker; 1 if a single worker can hold the network.
    limited_by : str
        Main cause of the difference to an ideal speed-up.
    strategy : str
        Parallelization strategy.
    fits : bool or None
        Whether the network fits into the memory of a device; None if unknown.
    bound_s : float or None
        Lower bound of the step time by data sheets: roofline computation, and links at full bandwidth. None if it was
        not computed.
    flops : float or None
        FLOPs of the model per step of all workers, without recomputation.
    tokens : float or None
        Tokens per step of all workers; None if the network reads no tokens.
    peak_per_s, power_w, price_usd_per_h : float or None
        Peak FLOP/s in the precision, average power in W and price per hour of one device.
    power_interval_w : tuple of float or None
        90% interval of the power; None if `power_w` is the rated power.
    images, epochs : float or None
        See `Budget`.
    facility : Facility or None
        What surrounds the devices; None if it is not described.
    """

    workers: int
    batch_size: int
    single_worker_per_s: float
    limited_by: str = ""
    strategy: str = "data"
    fits: bool | None = None
    bound_s: float | None = None
    flops: float | None = None
    tokens: float | None = None
    peak_per_s: float | None = None
    power_w: float | None = None
    power_interval_w: tuple[float, float] | None = None
    baseline_workers: int = 1
    price_usd_per_h: float | None = None
    images: float | None = None
    epochs: float = 1.0
    facility: Facility | None = None

    def __repr__(self) -> str:
        time = format_si(self.time_s, "s")
        return f"<ScaleRow: {self.workers} workers, {time} per step, speed-up {self.speedup:.4g}>"

    @property
    def throughput_per_s(self) -> float:
        """Samples per second of all workers."""
        return float(self.batch_size / self.time_s)

    @property
    def speedup(self) -> float:
        """Throughput relative to `single_worker_per_s`."""
        return self.throughput_per_s / self.single_worker_per_s

    @property
    def efficiency(self) -> float:
        """Scaling efficiency: speed-up divided by the number of workers."""
        return self.speedup / self.workers

    @property
    def efficiency_interval(self) -> tuple[float, float] | None:
        """90% interval of the efficiency; the uncertainty of a single worker's time cancels out."""
        if self.cluster_interval is None:
            return None
        best_s, worst_s = self.cluster_interval
        return self.efficiency * self.time_s / worst_s, self.efficiency * self.time_s / best_s

    @property
    def energy_j(self) -> float | None:
        """Energy of all devices in a step, in joules; None if their power is unknown."""
        return None if self.power_w is None else float(self.power_w * self.workers * self.time_s)

    @property
    def energy_per_sample_j(self) -> float | None:
        """Energy of all devices per sample, in joules."""
        return None if self.energy_j is None else self.energy_j / self.batch_size

    @property
    def site(self) -> SiteEnergy | None:
        """Energy of a step at the meter, and what it costs; None if the facility is not described."""
        if self.facility is None or self.energy_j is None:
            return None
        return self.facility.site_energy(self.energy_j, float(self.workers * self.time_s))

    @property
    def flops_per_s(self) -> float | None:
        """Achieved FLOP/s of one device."""
        return None if self.flops is None else float(self.flops / self.time_s / self.workers)

    @property
    def mfu(self) -> float | None:
        """Model FLOPs utilisation: achieved over peak FLOP/s (Chowdhery et al. 2022, PaLM, appendix B)."""
        if self.flops_per_s is None or not self.peak_per_s:
            return None
        return self.flops_per_s / self.peak_per_s

    @property
    def hfu(self) -> float | None:
        """Hardware FLOPs utilisation: MFU with recomputed FLOPs included (PaLM, appendix B)."""
        return None if self.mfu is None else self.mfu * (1 + self.recomputed_fraction)

    @property
    def tokens_per_s(self) -> float | None:
        """Tokens per second of all workers."""
        return None if self.tokens is None else float(self.tokens / self.time_s)

    @property
    def run(self) -> TrainingRun | None:
        """Hours, cost and energy for all samples and epochs; None without a number of samples."""
        budget = Budget(self.images, self.epochs, self.price_usd_per_h)
        return training_run(
            budget, self.time_s, self.interval, self.batch_size, self.workers, self.power_w, self.power_interval_w
        )

    @property
    def hours(self) -> float | None:
        """Hours for all samples and epochs; None without a number of samples."""
        return None if self.run is None else self.run.hours

    @property
    def cost(self) -> float | None:
        """Cost in USD for all samples and epochs."""
        return None if self.run is None else self.run.cost_usd

    @property
    def kwh(self) -> float | None:
        """Energy of the devices in kWh for all samples and epochs; hosts and cooling are not included."""
        return None if self.run is None else self.run.kwh

    @property
    def cost_per_million(self) -> float | None:
        """Cost in USD of a million samples."""
        return self._times_workers(1e6 / self.throughput_per_s / 3600, self.price_usd_per_h)

    @property
    def kwh_per_million(self) -> float | None:
        """Energy in kWh of a million samples."""
        return self._times_workers(1e6 / self.throughput_per_s / 3600, self.power_w, 1e-3)

    def _times_workers(self, hours: float | None, rate_per_h: float | None, unit: float = 1.0) -> float | None:
        """Return the amount for all workers, given a rate per worker and hour; None if either is unknown."""
        if hours is None or rate_per_h is None:
            return None
        return hours * self.workers * rate_per_h * unit

    def to_dict(self) -> dict[str, Any]:
        """Return the documented JSON: `COLUMNS` first."""
        row = {name: getattr(self, name) for name in COLUMNS}
        for name in ("strategy", "collective", "limited_by", "hours", "fits"):
            row[name] = getattr(self, name)
        row["bound_s"] = self.bound_s
        row["input_s"] = self.input_s
        row["speedup_over"] = self.baseline_workers
        for name in PER_DEVICE:
            row[name] = getattr(self, name)
        for name in ("interval", "efficiency_interval"):
            interval = getattr(self, name)
            row[name] = None if interval is None else list(interval)
        row["power_w"], row["energy_j"] = self.power_w, self.energy_j
        row["site"] = None if self.site is None else self.site.to_dict()
        row["run"] = None if self.run is None else self.run.to_dict()
        row["notes"] = list(self.notes)
        return row

"""Result of a scaling prediction: `ScaleTable`, with a `ScaleRow` per number of workers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

import msgspec

from ..errors import BadValue
from ..timing.answer import FIELDS_OF_ROWS, Answer, TableAnswer, answer_json, as_json
from ..timing.budget import Budget, TrainingRun, training_run
from ..timing.facility import Facility
from ..timing.memory import RESERVE_BYTES
from ..units import SECONDS_PER_HOUR, format_hours, format_si
from .job import Step
from .parallel_config import ParallelConfig

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
    "cost_usd",
)
"""Documented columns of a row, in their order; further columns follow."""

PER_DEVICE = ("flops_per_s", "mfu", "hfu", "tokens_per_s", "kwh_per_million", "usd_per_million", "kwh")
"""Columns on utilisation, and on the energy and cost of a million samples or of all samples."""

_TABLE_FIELDS = (
    "phase",
    "scaling",
    "batch_size",
    "topology",
    "model",
    "images",
    "epochs",
    "price_usd_per_h",
    "price",
    "trainable_parameters",
)


class ScaleTable(TableAnswer, msgspec.Struct, frozen=True):
    """Training or text generation on several numbers of devices, or with several strategies on one number.

    Time, memory, power and cost of the table are those of the row that answers for it: of the only number of devices,
    or of the best strategy that fits. They are None where `answering_row` is.

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
    device_memory_bytes : float or None
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
    device_memory_bytes: float | None
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
    execution: str | None = None  # execution of the kernels, or the engine
    calibration: str | None = None  # source of the parameters of the time model
    command: str | None = None  # that asks for the recommended strategy alone
    ranked_by: str | None = None  # of `advise.RANKINGS`; None if strategies were not compared

    def __iter__(self) -> Iterator[ScaleRow]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: Any) -> Any:
        rows = self.rows[index]
        if isinstance(index, slice):
            return msgspec.structs.replace(self, rows=rows)
        return rows

    @property
    def usable_bytes(self) -> float | None:
        """Memory of a device without the reserve; None if the memory plays no part."""
        return None if self.device_memory_bytes is None else self.device_memory_bytes - RESERVE_BYTES

    def with_deadline(self, seconds: float) -> ScaleTable:
        """Return the table with the rows that end in time marked, and a note that names the fewest devices.

        Raises
        ------
        BadValue
            If the amount of training is unknown.
        """
        if any(row.hours is None for row in self.rows):
            raise BadValue("`--within` needs an amount of training: give `--tokens 15B` or `--samples 52k`")
        hours = seconds / SECONDS_PER_HOUR
        rows = [msgspec.structs.replace(row, deadline_hours=hours) for row in self.rows]
        in_time = [row for row in rows if row.in_time]
        if in_time:
            fewest = min(in_time, key=lambda row: row.workers)
            cost = "" if fewest.cost_usd is None else f" and cost {fewest.cost_usd:,.0f} USD"
            note = f"{fewest.workers} workers are the fewest here that end within {format_hours(hours)}: they take "
            note += f"{format_hours(fewest.hours or 0.0)}{cost}"
        else:
            fitting = [row for row in rows if row.fits is not False] or rows
            fastest = min(fitting, key=lambda row: row.hours or 0.0)
            note = f"none of these numbers of workers ends within {format_hours(hours)}: the fastest, "
            note += f"{fastest.workers}, takes {format_hours(fastest.hours or 0.0)}"
            note += "" if fastest.fits is not False else ", if it had the memory"
        return msgspec.structs.replace(self, rows=rows, notes=(note, *self.notes))

    @property
    def answering_row(self) -> ScaleRow | None:
        """Row that answers for the table: the only one, or the best strategy that fits; None of several numbers."""
        if self.why:
            return next((row for row in self.rows if row.fits), None)
        return self.rows[0] if len(self.rows) == 1 else None

    def __repr__(self) -> str:
        """Return the answer in one line, or the time of each of several numbers of workers, of which none answers."""
        if self.answering_row is not None or self.why or not self.rows:
            return super().__repr__()
        times = ", ".join(
            f"{row.workers} workers {format_si(row.time_s, 's')}{' (does not fit)' if row.fits is False else ''}"
            for row in self.rows
        )
        return f"<ScaleTable: {self.network} on {self.gpu_name}, per step: {times}>"

    def to_dict(self) -> dict[str, Any]:
        """Return the documented JSON; what differs between rows is that of `answering_row`."""
        common = {**self.common_json(), "notes": [*self.assumptions, *self.notes]}
        fields = {name: getattr(self, name) for name in _TABLE_FIELDS}
        if self.why:
            fitting = [row for row in self.rows if row.fits]
            fields["best"] = fitting[0].strategy if fitting else None
            fields["runner_up"] = fitting[1].strategy if len(fitting) > 1 else None
            fields["why"] = self.why
            fields["refused"] = self.refused
            fields["command"] = self.command
        fields["rows"] = [row.to_dict() for row in self.rows]
        return answer_json(common, fields)


class ScaleRow(Step, Answer, frozen=True, kw_only=True):
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
    is_forecast : bool
        Whether the time is a forecast; otherwise it is a bound.
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
    is_forecast: bool = True
    deadline_hours: float | None = None  # hours within which the run is to end
    parallel: ParallelConfig | None = None  # how an advised row divides the blocks of the network

    def __repr__(self) -> str:
        time = format_si(self.time_s, "s")
        return f"<ScaleRow: {self.workers} workers, {time} per step, speed-up {self.speedup:.4g}>"

    @property
    def devices(self) -> int:
        """Number of devices."""
        return self.workers

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
    def energy_per_sample_j(self) -> float | None:
        """Energy of all devices per sample, in joules."""
        return None if self.energy_j is None else self.energy_j / self.batch_size

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
    def in_time(self) -> bool | None:
        """Whether the run fits into the memory and ends by the deadline; None without one."""
        if self.deadline_hours is None or self.hours is None:
            return None
        return self.fits is not False and self.hours <= self.deadline_hours

    @property
    def cost_usd(self) -> float | None:
        """Cost in USD for all samples and epochs."""
        return None if self.run is None else self.run.cost_usd

    @property
    def kwh(self) -> float | None:
        """Energy of the devices in kWh for all samples and epochs; hosts and cooling are not included."""
        return None if self.run is None else self.run.kwh

    @property
    def kwh_per_million(self) -> float | None:
        """Energy in kWh of a million samples."""
        if self.power_w is None:
            return None
        return 1e6 / self.throughput_per_s / 3600 * self.workers * self.power_w * 1e-3

    def to_dict(self) -> dict[str, Any]:
        """Return the documented JSON: `COLUMNS` first."""
        names = (
            *COLUMNS,
            "strategy",
            "collective",
            "limited_by",
            "hours",
            "in_time",
            "fits",
            "bound_s",
            "input_s",
            *PER_DEVICE,
        )
        row = {name: getattr(self, name) for name in names}
        row["speedup_over"] = self.baseline_workers
        row["efficiency_interval"] = as_json(self.efficiency_interval)
        row |= {name: as_json(getattr(self, name)) for name in FIELDS_OF_ROWS}
        row["site"] = None if self.site is None else self.site.to_dict()
        row["run"] = None if self.run is None else self.run.to_dict()
        row["notes"] = list(self.notes)
        return row

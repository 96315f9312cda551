"""The time of a batch of pictures or videos by part, its energy, and the memory in which it fits.

Errors of the parts are those of one calibration on one device, so that the deviations of their times add up like the
times themselves.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import msgspec
import numpy as np

from ..architectures.pipelines.records import Part, Pipeline
from ..architectures.pipelines.sampling import Sampling
from ..machines import Device, Machine
from .activity import Activity, Shares
from .answer import Answer, as_json
from .diffusion import diffusion_constants
from .energy import Power
from .facility import Facility
from .intervals import QUANTILES, interval_of, not_below
from .memory import MemoryRemedy
from .models import TimeModel
from .pipeline_run import PipelineRun
from .prediction import Prediction
from .sequence_parallel import SequenceSplit

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .budget import Budget, TrainingRun

OVERHEAD = "overhead"
"""Kind of what is not a layer: copies of parameters, exchanges between devices, and the host."""


class PartPrediction(NamedTuple):
    """The time of one run of a part, and how often it runs."""

    part: Part
    prediction: Prediction  # prediction of one run
    runs: int  # number of runs for a batch
    transfer_s: float = 0.0  # seconds in which parameters are copied from the host, for all runs
    split_s: float | None = None  # seconds of one run over several devices; None on one
    devices: int = 1  # number of devices that share the work of a run
    groups: int = 1  # groups of such devices, each with one of the predictions of classifier-free guidance

    @property
    def run_s(self) -> float:
        """Seconds of one run."""
        return self.prediction.time_s if self.split_s is None else self.split_s

    @property
    def time_s(self) -> float:
        """Seconds of all runs."""
        return self.runs * self.run_s + self.transfer_s

    @property
    def bound_s(self) -> float:
        """Lower bound of the seconds of all runs."""
        return self.runs * self.prediction.bound_s / self.devices

    @property
    def traffic_s(self) -> float:
        """Seconds of the bytes that must move in all runs, at the bandwidth of the data sheet."""
        return self.runs * self.prediction.traffic_s / self.devices

    @property
    def activity(self) -> Activity:
        """What one device does in all runs; while others are waited for, it exchanges data."""
        activity = self.prediction.activity
        if self.split_s is not None:
            divided_s = min(self.prediction.time_s / self.devices, self.split_s)
            activity = activity.in_larger_step(
                self.prediction.time_s, self.split_s, exchanging_s=self.split_s - divided_s
            )
        return activity.times(self.runs)

    def kinds_j(self, power: Power, energy_j: float) -> dict[str, float]:
        """Return the joules of one device by kind of layer, and the rest of `energy_j` as ``overhead``.

        The time in which no layer is computed shares the energy by what the device would draw without a limit.
        """
        prediction = self.prediction
        assert prediction.energy_j is not None
        computing_s = self.runs * prediction.time_s / self.devices
        rest_s = max(self.time_s - computing_s, 0.0)
        computing_j = float(power.demand_w(prediction.shares)) * computing_s
        rest_j = float(power.demand_w(Shares(links=self.activity.links_s / max(rest_s, 1e-30)))) * rest_s
        layers_j = energy_j * computing_j / (computing_j + rest_j)
        joules = {
            kind: layers_j * entry["energy_j"] / prediction.energy_j for kind, entry in prediction.by_kind().items()
        }
        return {**joules, OVERHEAD: energy_j - sum(joules.values())}

    def kinds_s(self) -> dict[str, float]:
        """Return the seconds by kind of layer, and the rest of the time as ``overhead``."""
        runs = self.runs / self.devices
        seconds = {kind: runs * entry["time_s"] for kind, entry in self.prediction.by_kind().items()}
        return {**seconds, OVERHEAD: self.time_s - sum(seconds.values())}

    @property
    def parameters_bytes(self) -> int:
        """Bytes of the parameters, 0 where an earlier part has loaded them."""
        if self.part.is_loaded_before:
            return 0
        from .memory import model_bytes

        return self.part.copies * model_bytes(self.prediction.workload)[0]


class PipelineMemory(NamedTuple):
    """Memory of a pipeline in bytes."""

    total_bytes: int  # peak under the chosen placement of parameters
    by_offload: dict[str, int]  # peak under each placement of `PIPELINE_OFFLOADS`
    parameters_bytes: int  # parameters of all parts
    # Memory of the device, and without the reserve.
    capacity_bytes: float
    usable_bytes: float
    largest_batch: int | None  # most pictures or videos in one batch that fit; None if not even one does
    # The fastest change with which a pipeline fits that does not fit; empty if it does, or if none suffices.
    remedies: tuple[MemoryRemedy, ...] = ()

    @property
    def fits(self) -> bool:
        """Whether the peak is at most the usable memory."""
        return self.total_bytes <= self.usable_bytes


class PipelinePrediction(Answer, msgspec.Struct, frozen=True, eq=False, dict=True):
    """Predicted time of a batch of pictures or videos, from text to decoded pictures."""

    _page: ClassVar[str] = "paleo_lite.reporting.pipelines:pipeline_page"
    time_of: ClassVar[str] = "batch"

    run: PipelineRun  # the pipeline and how it runs
    machine: Machine
    model: TimeModel  # the time model
    parts: tuple[PartPrediction, ...]  # parts in the order of execution
    memory: PipelineMemory  # memory of the pipeline
    notes: tuple[str, ...] = ()  # caveats
    facility: Facility | None = None  # what surrounds the devices, for the energy at the meter
    budget: Budget | None = None  # number of pictures or videos, and the price of a device

    @property
    def pipeline(self) -> Pipeline:
        """The pipeline."""
        return self.run.pipeline

    @property
    def sampling(self) -> Sampling:
        """What is asked of it."""
        return self.run.sampling

    @property
    def steps(self) -> int:
        """Denoising steps."""
        return self.sampling.steps

    @property
    def width(self) -> int:
        """Width of the pictures in pixels."""
        return self.sampling.width

    @property
    def height(self) -> int:
        """Height of the pictures in pixels."""
        return self.sampling.height

    @property
    def frames(self) -> int:
        """Frames of each video; 1 for pictures."""
        return self.sampling.frames

    @property
    def guidance(self) -> float:
        """Scale of classifier-free guidance."""
        return self.sampling.guidance

    @property
    def images(self) -> int:
        """Pictures or videos in one batch."""
        return self.sampling.images

    @property
    def tiled(self) -> bool:
        """Whether the decoder computes tiles, one at a time."""
        return self.sampling.tiled

    @property
    def step_caching(self) -> float:
        """Steps for each step that the denoiser computes."""
        return self.sampling.step_caching

    @property
    def offload(self) -> str:
        """Placement of the parameters that the device does not need."""
        return self.run.offload

    @property
    def ulysses(self) -> int:
        """Devices that share the heads of attention."""
        return self.split.ulysses

    @property
    def ring(self) -> int:
        """Devices that pass keys and values around a ring."""
        return self.split.ring

    @property
    def guidance_parallel(self) -> bool:
        """Whether two devices compute the two predictions of guidance."""
        return self.split.guidance > 1

    @property
    def time_model(self) -> str:
        """Name of the time model."""
        return self.model.name

    @property
    def precision(self) -> str:
        """Precision of the denoiser."""
        return self.run.precision

    @property
    def gpu(self) -> str:
        """ID of the device."""
        return self.device.id

    @property
    def weights(self) -> str:
        """Format in which the denoiser's matrices are stored."""
        return self.run.weights or self.run.products or self.run.precision

    @property
    def execution(self) -> str:
        """Execution of the kernels."""
        return self.run.execution

    @property
    def devices(self) -> int:
        """Number of devices that share the denoiser's sequence."""
        return self.split.devices

    @property
    def price_usd_per_h(self) -> float | None:
        """Price on record of the device per hour; None without one."""
        return self.device.rent_usd_per_h

    @property
    def memory_bytes(self) -> float:
        """Peak memory in bytes."""
        return self.memory.total_bytes

    @property
    def fits(self) -> bool:
        """Whether the peak memory fits."""
        return self.memory.fits

    @property
    def split(self) -> SequenceSplit:
        """Devices that share the denoiser's sequence."""
        return self.run.split

    @property
    def made(self) -> str:
        """Name of what the pipeline makes: ``image`` or ``video``."""
        return "video" if self.pipeline.is_video else "image"

    @property
    def denoiser(self) -> PartPrediction:
        """The part that runs once per step."""
        return next(part for part in self.parts if part.part.role == "denoiser")

    @property
    def network(self) -> str:
        """Name of the pipeline."""
        return self.pipeline.name

    @property
    def device(self) -> Device:
        """The device."""
        return self.machine.device

    @property
    def phase(self) -> str:
        """Phase of the denoiser."""
        return self.denoiser.prediction.phase

    @property
    def convention(self) -> str:
        """Counting convention."""
        return self.denoiser.prediction.convention

    @property
    def calibration(self) -> str | None:
        """Label of the calibration of the model's parameters; None for models without."""
        return self.model.label or None

    @property
    def batch_size(self) -> int:
        """Pictures or videos in the batch."""
        return self.sampling.images

    @property
    def time_s(self) -> float:
        """Seconds of the batch, from text to decoded pictures."""
        return sum(part.time_s for part in self.parts)

    @property
    def amount(self) -> TrainingRun | None:
        """Hours, cost and energy of a number of pictures or videos; None without one."""
        if self.budget is None:
            return None
        from .budget import training_run

        return training_run(
            self.budget, self.time_s, self.interval, self.batch_size, self.devices, self.power_w, self.power_interval_w
        )

    @property
    def time_per_image_s(self) -> float:
        """Seconds per picture or video."""
        return self.time_s / self.sampling.images

    @property
    def bound_s(self) -> float:
        """Lower bound of the seconds of the batch."""
        return sum(part.bound_s for part in self.parts)

    @property
    def is_forecast(self) -> bool:
        """Whether the time is a forecast; otherwise it is a bound."""
        return self.model.is_forecast

    @property
    def throughput_per_s(self) -> float:
        """Pictures or videos per second."""
        return self.sampling.images / self.time_s

    @cached_property
    def activity(self) -> Activity:
        """What one device does in the batch."""
        total = Activity()
        for part in self.parts:
            total = total.plus(part.activity)
        return total

    @cached_property
    def power(self) -> Power | None:
        """What a device draws; None if its power limit or process is unknown."""
        return self.parts[0].prediction.power

    @property
    def parts_energy_j(self) -> list[float] | None:
        """Joules of each part, of all devices; they share those of the batch as each would draw alone."""
        if self.power is None or self.energy_j is None:
            return None
        alone_j = [float(self.power.watts(part.activity.shares_of(part.time_s))) * part.time_s for part in self.parts]
        return [self.energy_j * joules / sum(alone_j) for joules in alone_j]

    @cached_property
    def deviation(self) -> float | None:
        """Standard deviation of the logarithm of the time; None for models without uncertainty."""
        deviations = [part.prediction.terms.deviation for part in self.parts]
        if any(deviation is None for deviation in deviations):
            return None
        if self.split.devices > 1:
            several = diffusion_constants().sequence.deviation
            deviations = [
                np.hypot(deviation or 0.0, several) if part.split_s else deviation
                for part, deviation in zip(self.parts, deviations)
            ]
        weighted = [part.time_s * (deviation or 0.0) for part, deviation in zip(self.parts, deviations)]
        return float(sum(weighted)) / self.time_s

    @property
    def intervals(self) -> dict[str, tuple[float, float]]:
        """Intervals by level in percent; empty for models without uncertainty."""
        if self.deviation is None:
            return {}
        traffic_s = sum(part.traffic_s for part in self.parts)
        intervals = {}
        for level in QUANTILES:
            low_s, high_s = interval_of(self.time_s, self.deviation, level)
            intervals[f"{level * 100:.0f}"] = float(not_below(low_s, traffic_s, self.time_s)), float(high_s)
        return intervals

    @property
    def macs(self) -> int:
        """Multiply-accumulates of the batch."""
        return sum(part.groups * part.runs * (part.prediction.macs or 0) for part in self.parts)

    @property
    def parameters(self) -> int:
        """Number of parameters of all parts."""
        loaded = [part for part in self.parts if not part.part.is_loaded_before]
        return sum(part.part.copies * (part.prediction.parameters or 0) for part in loaded)

    @property
    def mfu(self) -> float:
        """Share of the peak FLOP/s in the precision that the pipeline's multiply-accumulates reach."""
        peak = self.model.peak(self.machine, self.precision)
        return 2 * self.macs / peak.per_s / self.split.devices / self.time_s

    def by_kind(self) -> dict[str, dict[str, Any]]:
        """Return time_s, energy_j and share of the time for each kind of layer over all parts, most joules first."""
        parts_energy_j: Sequence[float | None] = self.parts_energy_j or [None] * len(self.parts)
        seconds: dict[str, float] = {}
        joules: dict[str, float] = {}
        for part, energy_j in zip(self.parts, parts_energy_j, strict=True):
            _add(seconds, part.kinds_s())
            if self.power is not None and energy_j is not None:
                _add(joules, part.kinds_j(self.power, energy_j))
        return {
            kind: {"time_s": time_s, "energy_j": joules.get(kind), "share": time_s / self.time_s}
            for kind, time_s in sorted(seconds.items(), key=lambda item: (-joules.get(item[0], 0.0), -item[1]))
        }

    def rows(self) -> list[dict[str, Any]]:
        """Return a dict per part: its role, network, runs, samples, MACs per run, seconds, share, joules and bytes."""
        parts_energy_j: Sequence[float | None] = self.parts_energy_j or [None] * len(self.parts)
        return [
            {
                "part": part.part.role,
                "network": part.part.descriptor,
                "runs": part.runs,
                "samples": part.prediction.batch_size,
                "macs": part.prediction.macs,
                "run_s": part.run_s,
                "transfer_s": part.transfer_s,
                "time_s": part.time_s,
                "share": part.time_s / self.time_s,
                "bound_s": part.bound_s,
                "energy_j": energy_j,
                "parameters_bytes": part.parameters_bytes,
            }
            for part, energy_j in zip(self.parts, parts_energy_j, strict=True)
        ]

    def to_dict(self) -> dict[str, Any]:
        """Return the documented JSON; times and energy are those of the whole batch."""
        fields = {
            "time_model": self.time_model,
            **msgspec.structs.asdict(self.sampling),
            "weights": self.weights,
            "offload": self.offload,
            "ulysses": self.ulysses,
            "ring": self.ring,
            "guidance_parallel": self.guidance_parallel,
            "time_per_image_s": self.time_per_image_s,
            "intervals": {level: list(interval) for level, interval in self.intervals.items()} or None,
            "power_interval_w": as_json(self.power_interval_w),
            "energy_interval_j": as_json(self.energy_interval_j),
            "site": None if self.site is None else self.site.to_dict(),
            "macs": self.macs,
            "mfu": self.mfu,
            "parameters": self.parameters,
            "memory": {
                **self.memory._asdict(),
                "remedies": [msgspec.structs.asdict(remedy) for remedy in self.memory.remedies],
            },
            "run": None if self.amount is None else self.amount.to_dict(),
            "parts": self.rows(),
            "by_kind": self.by_kind(),
        }
        return self.with_common_fields(fields)


def _add(totals: dict[str, float], further: dict[str, float]) -> None:
    """Add numbers by kind to totals."""
    for kind, number in further.items():
        totals[kind] = totals.get(kind, 0.0) + number

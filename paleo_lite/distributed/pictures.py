"""Pipelines for pictures and videos on several devices: copies of the pipeline, guidance and sequences in parallel."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Any, ClassVar

import msgspec

from ..errors import BadValue, PaleoError
from ..machines import Device, Machine
from ..text import format_plural
from ..timing.answer import FIELDS_OF_ROWS, Answer, TableAnswer, answer_json, as_json
from ..timing.budget import Budget, TrainingRun, training_run
from ..timing.models import TimeModel
from ..timing.pipeline_prediction import PipelinePrediction
from ..timing.pipeline_run import PipelineRun
from ..timing.pipelines import on_several_devices, predict_pipeline
from ..timing.sequence_parallel import SequenceSplit
from ..units import format_si

PHASES = ("inference",)
"""Phases that are predicted on several devices."""

_MAX_WORKERS = 4096


class PictureScaleRow(Answer, msgspec.Struct, frozen=True, eq=False):
    """A pipeline on a number of devices, among whose copies a batch is divided."""

    time_of: ClassVar[str] = "batch"

    devices: int
    replicas: int  # copies of the pipeline
    prediction: PipelinePrediction  # of the copy with the most pictures
    images: int  # pictures or videos of all copies
    notes: tuple[str, ...] = ()  # of this number of devices

    @property
    def network(self) -> str:
        """Name of the pipeline."""
        return self.prediction.network

    @property
    def device(self) -> Device:
        """The device, of which there are several."""
        return self.prediction.device

    @property
    def precision(self) -> str:
        """Numeric type of the arithmetic."""
        return self.prediction.precision

    @property
    def phase(self) -> str:
        """What the pipeline does: inference."""
        return self.prediction.phase

    @property
    def batch_size(self) -> int:
        """Pictures or videos of all copies."""
        return self.images

    @property
    def throughput_per_s(self) -> float:
        """Pictures or videos per second."""
        return self.images / self.prediction.time_s

    @property
    def amount(self) -> TrainingRun | None:
        """Hours, cost and energy of a number of pictures or videos; None without one."""
        prediction = self.prediction
        if prediction.budget is None:
            return None
        return training_run(
            prediction.budget, self.time_s, self.interval, self.images, self.devices, self.power_w,
            prediction.power_interval_w,
        )  # fmt: skip

    @property
    def power_w(self) -> float | None:
        """Average power of a device in watts; None if unknown."""
        return self.prediction.power_w

    @property
    def price_usd_per_h(self) -> float | None:
        """Price on record of a device per hour; None if none is."""
        return self.prediction.price_usd_per_h

    @property
    def is_forecast(self) -> bool:
        """Whether the time is a forecast; otherwise it is a bound."""
        return self.prediction.is_forecast

    @property
    def time_s(self) -> float:
        """Seconds of the batch."""
        return self.prediction.time_s

    @property
    def interval(self) -> tuple[float, float] | None:
        """90% interval of the seconds; None for models without uncertainty."""
        return self.prediction.interval

    @property
    def bound_s(self) -> float:
        """Lower bound of the seconds."""
        return self.prediction.bound_s

    @property
    def memory_bytes(self) -> float:
        """Peak memory of a device in bytes."""
        return self.prediction.memory_bytes

    @property
    def fits(self) -> bool:
        """Whether the peak memory fits."""
        return self.prediction.fits


class PictureScaling(TableAnswer, msgspec.Struct, frozen=True, eq=False):
    """A pipeline on several numbers of devices.

    Attributes
    ----------
    one : PipelinePrediction
        On one device.
    found : tuple of PictureScaleRow
        The fastest division of the batch for each number of devices.
    """

    _page: ClassVar[str] = "paleo_lite.reporting.pipelines:scaling_page"

    one: PipelinePrediction
    found: tuple[PictureScaleRow, ...]

    @property
    def network(self) -> str:
        """Name of the pipeline."""
        return self.one.network

    @property
    def gpu(self) -> str:
        """ID of the device."""
        return self.one.gpu

    @property
    def precision(self) -> str:
        """Precision of the arithmetic."""
        return self.one.precision

    @property
    def execution(self) -> str | None:
        """Execution of the kernels."""
        return self.one.execution

    @property
    def is_forecast(self) -> bool:
        """Whether times are forecasts; otherwise they are bounds."""
        return self.one.is_forecast

    @property
    def calibration(self) -> str | None:
        """Label of the calibration of the model's parameters; None for models without."""
        return self.one.calibration

    @property
    def answering_row(self) -> PictureScaleRow | None:
        """The only row; None of several numbers of devices."""
        return self.found[0] if len(self.found) == 1 else None

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes of the pipeline, and of each number of devices."""
        return (*self.one.notes, *(note for row in self.found for note in row.notes))

    def with_budget(self, budget: Budget) -> PictureScaling:
        """Return the scaling for a number of pictures or videos, with its hours, cost and energy."""
        found = [
            msgspec.structs.replace(row, prediction=msgspec.structs.replace(row.prediction, budget=budget))
            for row in self.found
        ]
        one = msgspec.structs.replace(self.one, budget=budget)
        return msgspec.structs.replace(self, one=one, found=tuple(found))

    def rows(self) -> list[dict[str, Any]]:
        """Return one dict per number of devices."""
        rows = []
        for row in self.found:
            split, speedup = row.prediction.split, row.throughput_per_s / self.one.throughput_per_s
            rows.append(
                {
                    "workers": row.devices,
                    "replicas": row.replicas,
                    "guidance": split.guidance,
                    "ulysses": split.ulysses,
                    "ring": split.ring,
                    "images": row.images,
                    "low_s": None if row.interval is None else row.interval[0],
                    "high_s": None if row.interval is None else row.interval[1],
                    "speedup": speedup,
                    "efficiency": speedup / row.devices,
                    "hours": None if row.amount is None else row.amount.hours,
                    "cost_usd": None if row.amount is None else row.amount.cost_usd,
                    "kwh": None if row.amount is None else row.amount.kwh,
                    **{name: as_json(getattr(row, name)) for name in FIELDS_OF_ROWS},
                }
            )
        return rows

    def to_dict(self) -> dict[str, Any]:
        """Return the documented JSON; of several numbers of devices, what differs between them is null."""
        return answer_json(self.common_json(), {**msgspec.structs.asdict(self.one.sampling), "rows": self.rows()})


def scale_pipeline(
    run: PipelineRun,
    machine: Machine,
    model_in: Callable[..., TimeModel],
    workers: Sequence[int],
) -> PictureScaling:
    """Predict a pipeline on several numbers of devices.

    If it splits its sequence or guidance, all numbers of devices have this split in each copy; otherwise each has the
    fastest one. Machine and `model_in` are as for `predict_pipeline`. Raise BadValue if a number of devices cannot be
    divided so.
    """

    @cache
    def predict_groups(images: int, guidance: int) -> PipelinePrediction:
        """Predict a batch without a split of the sequence, from which those with one follow."""
        sampling = msgspec.structs.replace(run.sampling, images=images)
        split = SequenceSplit(guidance=guidance)
        return predict_pipeline(msgspec.structs.replace(run, sampling=sampling, split=split), machine, model_in)

    fastest_rows = []
    for number in workers:
        if not 1 <= number <= _MAX_WORKERS:
            raise BadValue(f"--workers must be from 1 to {_MAX_WORKERS:,} devices (got {number:,})")
        rows = list(_rows(run, predict_groups, number))
        if not rows:
            raise BadValue(_why_undivided(run, number))
        fewer = [row for devices in _divisors(number)[:-1] for row in _rows(run, predict_groups, devices)]
        fastest_rows.append(_with_note(min(rows, key=_time_s), min(fewer, key=_time_s, default=None)))
    return PictureScaling(predict_groups(run.sampling.images, 1), tuple(fastest_rows))


def _why_undivided(run: PipelineRun, workers: int) -> str:
    """Return the sentence about a number of devices over which a batch cannot be divided."""
    images, share, made = run.sampling.images, run.split.devices, "video" if run.pipeline.is_video else "picture"
    of_batch = f"a batch of {format_plural(images, made)}"
    if share > 1:
        possible = f"{share}" if images == 1 else f"a multiple of {share} up to {share * images}"
        return (
            f"`--workers` must be {possible} for {of_batch} of {run.pipeline.name}, of which {share} devices share "
            f"each (got {workers})"
        )
    return (
        f"{format_plural(workers, 'device')} cannot be divided among copies of {run.pipeline.name}, guidance and "
        f"sequence for {of_batch}: choose other `--workers`, or a larger `--batch-size`"
    )


def _time_s(row: PictureScaleRow) -> float:
    """Return the seconds of a row."""
    return float(row.prediction.time_s)


def _with_note(row: PictureScaleRow, fewer: PictureScaleRow | None) -> PictureScaleRow:
    """Return the row, with a note if the fastest division over fewer devices takes less time."""
    if fewer is None or row.time_s <= fewer.time_s:
        return row
    note = (
        f"{row.devices} devices take longer than {fewer.devices} ({format_si(fewer.time_s, 's')}): they exchange keys "
        f"and values for longer than they compute less; `--workers {fewer.devices}` is faster"
    )
    return msgspec.structs.replace(row, notes=(note,))


def _rows(
    run: PipelineRun, predict_groups: Callable[[int, int], PipelinePrediction], workers: int
) -> Iterator[PictureScaleRow]:
    """Yield the possible divisions of a batch over a number of devices."""
    images = run.sampling.images
    splits = list(_splits(run, workers)) if run.split.devices == 1 else [run.split]
    for split in splits:
        replicas, rest = divmod(workers, split.devices)
        if rest or not 1 <= replicas <= images:
            continue
        try:
            prediction = on_several_devices(predict_groups(-(-images // replicas), split.guidance), split)
        except PaleoError:
            if run.split.devices > 1:
                raise
            continue  # the heads or tokens cannot be divided so
        yield PictureScaleRow(workers, replicas, prediction, images)


def _divisors(number: int) -> list[int]:
    return [divisor for divisor in range(1, number + 1) if number % divisor == 0]


def _splits(run: PipelineRun, workers: int) -> Iterator[SequenceSplit]:
    """Yield the ways to split guidance and sequence over divisors of a number of devices."""
    is_guided = run.sampling.guidance > 1 and run.pipeline.guided != "none"
    for devices in _divisors(workers):
        for guidance in (1, 2) if is_guided else (1,):
            shared, rest = divmod(devices, guidance)
            if rest:
                continue
            for ulysses in _divisors(shared):
                yield SequenceSplit(ulysses, shared // ulysses, guidance)

"""Rows of answers: what a comparison, and a file of rows, say of every answer, whatever its kind of question.

`answer_row` turns an answer into a dict with the columns of `COLUMNS`; those that the answer does not have are absent.
`energy_j` is the energy of the time in `time_s`; `hours`, `cost_usd` and `kwh` are those of a number of samples.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import date
from typing import TYPE_CHECKING, Any, NamedTuple

from ..units import format_si
from ..version import __version__
from .columns import listed_price, price_text

if TYPE_CHECKING:
    from ..distributed.pictures import PictureScaling
    from ..distributed.table import ScaleRow, ScaleTable
    from ..machines import Device
    from ..own_machines.predict import LocalPrediction
    from ..reinforcement.answer import RlAnswer
    from ..serving.answers import Serving
    from ..timing import Prediction
    from ..timing.answer import Answer
    from ..timing.budget import TrainingRun
    from ..timing.pipeline_prediction import PipelinePrediction

Row = dict[str, Any]

_SECONDS_PER_HOUR = 3600

SERVING_FIGURES = (
    "output_tokens_per_s",
    "output_tokens_per_s_per_gpu",
    "output_tokens_per_s_per_user",
    "requests_per_s",
    "saturation_requests_per_s",
    "cache_occupancy",
    "utilisation",
    "usd_per_million_output_tokens",
    "joules_per_million_output_tokens",
)
"""Columns with the figures of `serving.answers.FIGURES` of the same names."""

SERVING_LATENCIES = {
    "ttft_p50_s": ("ttft_s", "p50"),
    "ttft_p99_s": ("ttft_s", "p99"),
    "tpot_p50_s": ("tpot_s", "p50"),
    "tpot_p99_s": ("tpot_s", "p99"),
    "latency_p50_s": ("latency_s", "p50"),
    "latency_p99_s": ("latency_s", "p99"),
}
"""Columns with latencies, and their latency and percentile in `serving.answers.LATENCIES`."""

WITH_INTERVALS = ("ttft_p50_s", "tpot_p50_s", "latency_p50_s", "output_tokens_per_s", "saturation_requests_per_s")
"""Columns that are accompanied by the ends of their 90% intervals, ``NAME_low`` and ``NAME_high``."""


def _with_ends(names: tuple[str, ...]) -> list[str]:
    """Return the names of columns, followed by those of the ends of their intervals."""
    columns = []
    for name in names:
        columns.append(name)
        if name in WITH_INTERVALS:
            columns += [f"{name}_low", f"{name}_high"]
    return columns


_OF_ALL = ("devices", "power_limit_w", "answer", "version", "reason")
_OF_STEPS = (
    "precision", "batch_size", "strategy", "collective", "execution", "time_s", "low_s", "high_s", "bound_s",
    "throughput_per_s", "tokens_per_s", "memory_bytes", "exposed_s", "speedup", "speedup_over", "scaling_efficiency",
    "efficiency", "power_w", "energy_j", "usd_per_million", "hours", "cost_usd", "kwh", "price", "time_model",
    "calibration",
)  # fmt: skip

COLUMNS: Mapping[str, tuple[str, ...]] = {
    "predict": (*_OF_ALL, *_OF_STEPS),
    "train": (*_OF_ALL, *_OF_STEPS),
    "serve": (
        *_OF_ALL, "precision", "engine", "weights", "kv_cache", "rate_per_s", "overloaded", "meets", "usd_per_h",
        *_with_ends((*SERVING_LATENCIES, *SERVING_FIGURES)),
    ),
    "local": (
        *_OF_ALL, "engine", "weights", "kv_cache", "gpu_blocks", "largest_context", "time_s", "low_s", "high_s",
        "tokens_per_s", "prompt_s", "prompt_low_s", "prompt_high_s", "prompt_tokens_per_s", "file_bytes",
        "memory_bytes", "host_bytes", "power_w", "energy_j",
    ),
    "rl": (
        *_OF_ALL, "precision", "time_s", "low_s", "high_s", "bound_s", "throughput_per_s", "tokens_per_s",
        "tokens_per_s_per_device", "generation_s", "update_s", "trainer_s", "rollouts_s", "transfer_s",
        "memory_bytes", "rollout_bytes", "fits", "power_w", "energy_j", "usd_per_million", "usd_per_step",
        "hours", "cost_usd", "kwh", "limited_by",
    ),
    "diffusion": (*_OF_ALL, "image_size", "steps", "frames", "time_per_image_s", *_OF_STEPS),
}  # fmt: skip
"""Columns of answers by kind of question, beside those that state the question."""

STRINGS = (
    "precision", "overloaded", "meets", "answer", "version", "reason", "strategy", "collective", "execution", "price",
    "time_model", "calibration", "engine", "weights", "kv_cache", "image_size", "limited_by",
)  # fmt: skip
"""Columns of strings of an answer."""

INTEGERS = ("devices", "batch_size", "speedup_over", "gpu_blocks", "largest_context", "steps", "frames")
"""Columns of integers; all others are of numbers."""


class RowTerms(NamedTuple):
    """What hours, cost and energy of a row refer to, unless the question says it."""

    samples: float | None = 1e6  # number of samples; None for no such columns
    as_of: date | None = None  # day that decides which prices are old; None for today

    def amounts_of(self, device: Device, devices: int, throughput_per_s: float | None, power_w: float | None) -> Row:
        """Return hours, cost and energy of the samples on some devices, at the price on record and as text."""
        if throughput_per_s is None or self.samples is None:
            return {}
        listing = listed_price(device, None, None)
        hours = self.samples / throughput_per_s / _SECONDS_PER_HOUR
        return {
            "hours": hours,
            "cost_usd": None if listing is None else hours * devices * listing.usd_per_h,
            "kwh": None if power_w is None else hours * devices * power_w / 1e3,
            "price": price_text(listing, self.as_of or date.today()) or None,
        }


def answer_rows(answer: Any, terms: RowTerms) -> list[Row]:
    """Return the rows of an answer: one, or of a table over numbers of devices one for each number."""
    kind, rows_of = _ROWS[type(answer).__name__]
    rows = [{"version": __version__, **row} for row in rows_of(answer, terms)]
    return [{name: value for name, value in row.items() if name in COLUMNS[kind]} for row in rows]


def answer_row(answer: Any, terms: RowTerms) -> Row:
    """Return the row of an answer to a single combination."""
    return answer_rows(answer, terms)[-1]


def _step_row(prediction: Prediction, terms: RowTerms) -> Row:
    """Return the row of a network on one device."""
    row: Row = {
        "precision": prediction.precision,
        "batch_size": prediction.batch_size,
        "execution": prediction.execution,
        "power_limit_w": _limit_w(prediction.device),
    }
    memory = prediction.memory
    if memory is not None and not memory.fits:
        return _without_memory(prediction, {**row, "reason": _too_large(memory.total_bytes, memory.usable_bytes)})
    row |= prediction.row()
    row |= {"time_model": prediction.model.name, "calibration": prediction.calibration, "efficiency": prediction.mfu}
    run = prediction.run
    if run is not None:
        return {**row, **_run_amounts(run)}
    return {**row, **terms.amounts_of(prediction.device, 1, prediction.throughput_per_s, prediction.power_w)}


def _picture_row(prediction: PipelinePrediction, terms: RowTerms) -> Row:
    """Return the row of a pipeline for pictures or videos."""
    sampling, memory = prediction.sampling, prediction.memory
    row: Row = {
        "precision": prediction.precision,
        "batch_size": prediction.batch_size,
        "image_size": f"{sampling.width}x{sampling.height}",
        "steps": sampling.steps,
        "frames": sampling.frames,
        "power_limit_w": _limit_w(prediction.device),
    }
    if not memory.fits:
        return _without_memory(prediction, {**row, "reason": _too_large(memory.total_bytes, memory.usable_bytes)})
    amounts = terms.amounts_of(prediction.device, prediction.devices, prediction.throughput_per_s, prediction.power_w)
    if prediction.amount is not None:
        amounts = _run_amounts(prediction.amount)
    return {
        **row,
        **prediction.row(),
        **amounts,
        "time_per_image_s": prediction.time_per_image_s,
    }


TIMES = ("time_s", "low_s", "high_s", "bound_s")
"""Columns of the time of a step, which it would take with more memory."""


def _without_memory(answer: Answer, row: Row) -> Row:
    """Return the row of an answer that does not fit into memory: its settings, and what it would need and take.

    It has neither a throughput nor a cost, as it cannot run, and of a bound no time.
    """
    stated = ("devices", "memory_bytes", *(TIMES if answer.is_forecast else ("bound_s",)))
    return {**row, **{name: value for name, value in answer.row().items() if name in stated}}


def _run_amounts(run: TrainingRun) -> Row:
    """Return hours, cost and energy of an amount of training."""
    return {"hours": run.hours, "cost_usd": run.cost_usd, "kwh": run.kwh, "price": run.price}


def _table_row(table: ScaleTable, step: ScaleRow, terms: RowTerms) -> Row:
    """Return the row of a step of several devices."""
    row: Row = {"precision": table.precision, "strategy": step.strategy}
    if step.fits is False:
        return _without_memory(step, {**row, "reason": f"does not fit into the memory of {table.gpu_name}"})
    row |= step.row()
    row |= {
        "exposed_s": step.exposed_s,
        "speedup": step.speedup,
        "speedup_over": step.baseline_workers,
        "scaling_efficiency": step.efficiency,
        "efficiency": step.mfu,
        "collective": step.collective or None,
        "price": table.price,
        "execution": table.execution,
        "calibration": table.calibration,
    }
    if step.run is not None:
        return {**row, **_run_amounts(step.run), "price": table.price}
    if terms.samples is None:
        return row
    usd_per_million, kwh_per_million = step.usd_per_million, step.kwh_per_million
    return {
        **row,
        "hours": terms.samples / step.throughput_per_s / _SECONDS_PER_HOUR,
        "cost_usd": None if usd_per_million is None else usd_per_million * terms.samples / 1e6,
        "kwh": None if kwh_per_million is None else kwh_per_million * terms.samples / 1e6,
    }


def _scaled_picture_row(scaling: PictureScaling, index: int, terms: RowTerms) -> Row:
    """Return the row of a pipeline on several devices."""
    scaled = scaling.found[index]
    row = _picture_row(scaled.prediction, terms)
    if "reason" in row:
        return {**row, "devices": scaled.devices}
    figures = scaling.rows()[index]
    device = scaled.prediction.device
    amounts = terms.amounts_of(device, scaled.devices, scaled.throughput_per_s, scaled.power_w)
    if scaled.amount is not None:
        amounts = _run_amounts(scaled.amount)
    return {
        **row,
        **scaled.row(),
        **amounts,
        "time_per_image_s": 1 / scaled.throughput_per_s,
        "speedup": figures["speedup"],
        "scaling_efficiency": figures["efficiency"],
    }


def _local_row(prediction: LocalPrediction) -> Row:
    """Return the row of a language model on one's own machine; times are those of a token."""
    prompt_low_s, prompt_high_s = prediction.prompt_interval_s
    return {
        **prediction.row(),
        "engine": prediction.execution,
        "weights": prediction.weights,
        "kv_cache": prediction.kv_cache,
        "gpu_blocks": prediction.gpu_blocks,
        "largest_context": prediction.largest_context,
        "prompt_s": prediction.prompt_s,
        "prompt_low_s": prompt_low_s,
        "prompt_high_s": prompt_high_s,
        "prompt_tokens_per_s": prediction.prompt_tokens_per_s,
        "file_bytes": prediction.file_bytes,
        "host_bytes": prediction.host_bytes,
    }


def _serving_row(served: Serving) -> Row:
    """Return the row of a server."""
    row: Row = {
        **served.row(),
        "engine": served.engine,
        "weights": served.weights,
        "kv_cache": served.kv_cache,
        "usd_per_h": served.usd_per_h,
        "precision": served.precision,
        # Of users who wait for their answers nobody arrives too fast.
        "overloaded": None if served.offered_requests_per_s is None else "yes" if served.is_overloaded else "no",
        "meets": None if served.slo is None else "no" if served.slo["missed"] else "yes",
    }
    figures = {name: served.figures[name] for name in SERVING_FIGURES}
    for name, (latency, statistic) in SERVING_LATENCIES.items():
        figures[name] = served.latencies[latency][statistic]
    if served.is_overloaded:
        saturation = served.figures["saturation_requests_per_s"].value
        row["reason"] = f"overloaded: it answers {saturation:.4g} requests/s"
    for name, figure in figures.items():
        row[name] = figure.value
        if name in WITH_INTERVALS:
            row[f"{name}_low"] = figure.low
            row[f"{name}_high"] = figure.high
    return row


def _rl_row(answer: RlAnswer) -> Row:
    """Return the row of a step of reinforcement learning, with what all steps take if their number is given."""
    totals = answer.totals
    return {
        **answer.row(),
        "precision": answer.precision,
        "tokens_per_s_per_device": answer.tokens_per_s_per_device,
        "generation_s": answer.phases.get("generation"),
        "update_s": answer.phases["update"],
        "trainer_s": answer.trainer_s,
        "rollouts_s": answer.rollouts_s,
        "transfer_s": answer.phases.get("transfer"),
        "rollout_bytes": answer.rollout_bytes,
        "fits": answer.fits,
        "reason": _too_large(answer.memory_bytes or 0, answer.usable_bytes) if answer.fits is False else None,
        "usd_per_step": answer.usd_per_step,
        "hours": None if totals is None else totals.hours,
        "cost_usd": None if totals is None else totals.usd,
        "kwh": None if totals is None else totals.kwh,
        "limited_by": answer.limited_by,
    }


_ROWS: Mapping[str, tuple[str, Callable[[Any, RowTerms], list[Row]]]] = {
    "Prediction": ("predict", lambda answer, terms: [_step_row(answer, terms)]),
    "PipelinePrediction": ("diffusion", lambda answer, terms: [_picture_row(answer, terms)]),
    "ScaleTable": ("train", lambda answer, terms: [_table_row(answer, step, terms) for step in answer.rows]),
    "PictureScaling": (
        "diffusion",
        lambda answer, terms: [_scaled_picture_row(answer, index, terms) for index in range(len(answer.found))],
    ),
    "LocalPrediction": ("local", lambda answer, terms: [_local_row(answer)]),
    "RlAnswer": ("rl", lambda answer, terms: [_rl_row(answer)]),
    "Serving": ("serve", lambda answer, terms: [_serving_row(answer)]),
}
"""Kind of question that has the columns of an answer, and the function from the answer to its rows, by the name of the
answer's class, whose module is not imported for it."""


def _limit_w(device: Device) -> float | None:
    """Return the requested power limit of a device in watts, but at most that of the data sheet; None without one."""
    requested: float | None = device.requested_power_limit_w
    if requested is None:
        return None
    return min(requested, device.rated_power_w or requested)


def _too_large(needed_bytes: float, usable_bytes: float) -> str:
    """Return the reason of a row that does not fit."""
    needed, usable = (format_si(size, "B") for size in (needed_bytes, usable_bytes))
    return f"does not fit into memory: needs {needed}, {usable} usable"

"""Rows of answers: what a comparison, and a file of rows, say of every answer, whatever its kind of question.

`answer_row` turns an answer into a dict with the columns of `ANSWER_COLUMNS`; a column that the answer does not have is
absent. Times are in seconds, and hours, cost and energy are those of a number of samples.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import date
from typing import TYPE_CHECKING, Any, NamedTuple

from ..units import format_si
from ..version import __version__
from .columns import BOUND, FORECAST, listed_price, price_text

if TYPE_CHECKING:
    from ..distributed.pictures import PictureScaling
    from ..distributed.table import ScaleRow, ScaleTable
    from ..own_machines.predict import LocalPrediction
    from ..serving.answers import Serving
    from ..timing import Prediction
    from ..timing.pipeline_prediction import PipelinePrediction

Row = dict[str, Any]

_SECONDS_PER_HOUR = 3600
_JOULES_PER_KWH = 3.6e6

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
    "efficiency", "hours", "cost", "energy_j", "price", "time_model", "calibration",
)  # fmt: skip

COLUMNS: Mapping[str, tuple[str, ...]] = {
    "predict": (*_OF_ALL, *_OF_STEPS),
    "train": (*_OF_ALL, *_OF_STEPS),
    "serve": (
        *_OF_ALL, "precision", "engine", "weights", "kv_cache", "rate_per_s", "overloaded", "usd_per_h",
        *_with_ends((*SERVING_LATENCIES, *SERVING_FIGURES)),
    ),
    "local": (
        *_OF_ALL, "engine", "weights", "kv_cache", "gpu_blocks", "largest_context", "time_s", "low_s", "high_s",
        "tokens_per_s", "prompt_s", "prompt_low_s", "prompt_high_s", "prompt_tokens_per_s", "file_bytes",
        "memory_bytes", "host_bytes", "energy_j",
    ),
    "diffusion": (*_OF_ALL, "image_size", "steps", "frames", "time_per_image_s", *_OF_STEPS),
}  # fmt: skip
"""Columns of answers by kind of question, beside those that state the question."""

STRINGS = (
    "precision", "overloaded", "answer", "version", "reason", "strategy", "collective", "execution", "price",
    "time_model", "calibration", "engine", "weights", "kv_cache", "image_size",
)  # fmt: skip
"""Columns of strings of an answer."""

INTEGERS = ("devices", "batch_size", "speedup_over", "gpu_blocks", "largest_context", "steps", "frames")
"""Columns of integers; all others are of numbers."""


class RowTerms(NamedTuple):
    """What hours, cost and energy of a row refer to, unless the question says it."""

    samples: float = 1e6  # number of samples
    as_of: date | None = None  # day that decides which prices are old; None for today

    def cost_of(self, device: Any, device_hours: float) -> Row:
        """Return the cost of some hours of a device, with its price as text."""
        listing = listed_price(device, None, None)
        price = None if listing is None else listing.usd_per_h
        return {
            "cost": None if price is None else device_hours * price,
            "price": price_text(listing, self.as_of or date.today()) or None,
        }


def answer_rows(answer: Any, terms: RowTerms) -> list[Row]:
    """Return the rows of an answer: one, or of a table over numbers of devices one for each number."""
    return [{"version": __version__, **row} for row in _ROWS[type(answer).__name__](answer, terms)]


def answer_row(answer: Any, terms: RowTerms) -> Row:
    """Return the row of an answer to a single combination."""
    return answer_rows(answer, terms)[-1]


def _step_row(prediction: Prediction, terms: RowTerms) -> Row:
    """Return the row of a network on one device."""
    memory = prediction.memory
    row: Row = {
        "precision": prediction.precision,
        "batch_size": prediction.batch_size,
        "execution": prediction.execution,
        "power_limit_w": _limit_w(prediction.device),
        "devices": 1,
        "memory_bytes": None if memory is None else memory.total_bytes,
    }
    if memory is not None and not memory.fits:
        return {**row, "reason": _too_large(memory.total_bytes, memory.usable_bytes)}
    throughput = prediction.throughput_per_s
    row |= _times(prediction)
    row |= {"time_model": prediction.model.name, "calibration": prediction.calibration}
    row |= {"tokens_per_s": prediction.tokens_per_s, "efficiency": prediction.mfu}
    if prediction.run is not None:
        run = prediction.run
        energy_j = None if run.kwh is None else run.kwh * _JOULES_PER_KWH
        return {**row, "hours": run.hours, "cost": run.cost_usd, "energy_j": energy_j, "price": run.price}
    if throughput is None:
        return row
    hours = terms.samples / throughput / _SECONDS_PER_HOUR
    energy_j = prediction.energy_j
    return {
        **row,
        **terms.cost_of(prediction.device, hours),
        "hours": hours,
        "energy_j": None if energy_j is None else energy_j * terms.samples / prediction.batch_size,
    }


def _picture_row(prediction: PipelinePrediction, terms: RowTerms) -> Row:
    """Return the row of a pipeline for pictures or videos."""
    sampling, memory = prediction.sampling, prediction.memory
    row: Row = {
        "precision": prediction.precision,
        "batch_size": prediction.batch_size,
        "image_size": f"{sampling.width}x{sampling.height}",
        "steps": sampling.steps,
        "frames": sampling.frames,
        "devices": prediction.split.devices,
        "power_limit_w": _limit_w(prediction.device),
        "memory_bytes": memory.total_bytes,
    }
    if not memory.fits:
        return {**row, "reason": _too_large(memory.total_bytes, memory.usable_bytes)}
    hours = terms.samples / prediction.throughput_per_s / _SECONDS_PER_HOUR
    energy_j = prediction.energy_j
    return {
        **row,
        **_times(prediction),
        **terms.cost_of(prediction.device, hours * prediction.split.devices),
        "time_per_image_s": prediction.time_per_image_s,
        "hours": hours,
        "energy_j": None if energy_j is None else energy_j * terms.samples / sampling.images,
    }


def _times(prediction: Prediction | PipelinePrediction) -> Row:
    """Return the times of a prediction, with what kind of answer they are."""
    low_s, high_s = prediction.interval or (None, None)
    return {
        "answer": FORECAST if prediction.is_forecast else BOUND,
        "time_s": prediction.time_s,
        "low_s": low_s,
        "high_s": high_s,
        "bound_s": prediction.bound_s,
        "throughput_per_s": prediction.throughput_per_s,
    }


def _table_row(table: ScaleTable, step: ScaleRow, terms: RowTerms) -> Row:
    """Return the row of a step of several devices."""
    row: Row = {
        "precision": table.precision,
        "strategy": step.strategy,
        "devices": step.workers,
        "memory_bytes": step.memory_bytes,
    }
    if step.fits is False:
        return {**row, "reason": f"does not fit into the memory of {table.gpu_name}"}
    low_s, high_s = step.interval or (None, None)
    hours = terms.samples / step.throughput_per_s / _SECONDS_PER_HOUR
    cost, energy_j = step.cost_per_million, step.energy_per_sample_j
    row |= {
        "answer": FORECAST if table.is_forecast else BOUND,
        "time_s": step.time_s,
        "low_s": low_s,
        "high_s": high_s,
        "bound_s": step.bound_s,
        "throughput_per_s": step.throughput_per_s,
        "tokens_per_s": step.tokens_per_s,
        "exposed_s": step.exposed_s,
        "speedup": step.speedup,
        "speedup_over": step.baseline_workers,
        "scaling_efficiency": step.efficiency,
        "efficiency": step.mfu,
        "collective": step.collective or None,
        "hours": hours,
        "cost": None if cost is None else cost * terms.samples / 1e6,
        "energy_j": None if energy_j is None else energy_j * terms.samples,
        "price": table.price,
    }
    if step.run is not None:
        row |= {"hours": step.hours, "cost": step.cost}
        row["energy_j"] = None if step.kwh is None else step.kwh * _JOULES_PER_KWH
    return row


def _scaled_picture_row(scaling: PictureScaling, index: int, terms: RowTerms) -> Row:
    """Return the row of a pipeline on several devices."""
    last = scaling.found[index]
    alone = _picture_row(last.prediction, terms)
    if "reason" in alone:
        return {**alone, "devices": last.workers}
    figures = scaling.rows()[index]
    ratio = figures["throughput_per_s"] / last.prediction.throughput_per_s  # of all copies to one of them
    cost = alone["cost"]
    return {
        **alone,
        "devices": last.workers,
        "throughput_per_s": figures["throughput_per_s"],
        "time_per_image_s": 1 / figures["throughput_per_s"],
        "speedup": figures["speedup"],
        "scaling_efficiency": figures["efficiency"],
        "hours": alone["hours"] / ratio,
        "cost": None if cost is None else cost / ratio * last.workers / last.prediction.split.devices,
    }


def _local_row(prediction: LocalPrediction) -> Row:
    """Return the row of a language model on one's own machine; times are those of a token."""
    low_s, high_s = prediction.token_interval_s
    prompt_low_s, prompt_high_s = prediction.prompt_interval_s
    energy = prediction.energy
    return {
        "engine": prediction.execution,
        "weights": prediction.weights,
        "kv_cache": prediction.kv_cache,
        "devices": prediction.gpus,
        "gpu_blocks": prediction.gpu_blocks,
        "largest_context": prediction.largest_context,
        "answer": FORECAST,
        "time_s": prediction.token_s,
        "low_s": low_s,
        "high_s": high_s,
        "tokens_per_s": prediction.tokens_per_s,
        "prompt_s": prediction.prompt_s,
        "prompt_low_s": prompt_low_s,
        "prompt_high_s": prompt_high_s,
        "prompt_tokens_per_s": prediction.prompt_tokens_per_s,
        "file_bytes": prediction.file_bytes,
        "memory_bytes": prediction.weight_bytes + prediction.cache_bytes + prediction.buffer_bytes,
        "host_bytes": prediction.host_bytes,
        "energy_j": None if energy is None else energy.kwh_per_million_tokens * 3.6,
    }


def _serving_row(served: Serving) -> Row:
    """Return the row of a server."""
    row: Row = {
        "engine": served.engine,
        "weights": served.weights,
        "kv_cache": served.kv_cache,
        "devices": served.devices,
        "usd_per_h": served.usd_per_h,
        "precision": served.precision,
        "overloaded": "yes" if served.is_overloaded else "no",
        "answer": FORECAST if served.is_forecast else BOUND,
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


_ROWS: Mapping[str, Callable[[Any, RowTerms], list[Row]]] = {
    "Prediction": lambda answer, terms: [_step_row(answer, terms)],
    "PipelinePrediction": lambda answer, terms: [_picture_row(answer, terms)],
    "ScaleTable": lambda answer, terms: [_table_row(answer, step, terms) for step in answer.rows],
    "PictureScaling": lambda answer, terms: [
        _scaled_picture_row(answer, index, terms) for index in range(len(answer.found))
    ],
    "LocalPrediction": lambda answer, terms: [_local_row(answer)],
    "Serving": lambda answer, terms: [_serving_row(answer)],
}
"""Function from an answer to its rows, by the name of the answer's class, whose module is not imported for it."""


def _limit_w(device: Any) -> float | None:
    """Return the requested power limit of a device in watts, but at most that of the data sheet; None without one."""
    requested: float | None = device.requested_power_limit_w
    if requested is None:
        return None
    return min(requested, device.rated_power_w or requested)


def _too_large(needed_bytes: float, usable_bytes: float) -> str:
    """Return the reason of a row that does not fit."""
    needed, usable = (format_si(size, "B") for size in (needed_bytes, usable_bytes))
    return f"does not fit into memory: needs {needed}, {usable} usable"

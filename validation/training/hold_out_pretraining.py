"""Errors of the constants of the training stack on held-out pre-training: by device, network and precision."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
import numpy as np

from paleo_lite.calibration.accuracy import interval_accuracy, relative_errors
from paleo_lite.machines import find_device
from paleo_lite.reporting.charts.accuracy import Pair
from paleo_lite.reporting.document import Column, Document, Table
from paleo_lite.reporting.formats import format_percent_rounded
from paleo_lite.timing.blocks import StackConstants

from ..columns import ERROR_COLUMNS
from .pretraining import (
    FIRST_FUSED,
    KnownTimes,
    Pretraining,
    PretrainingForecast,
    fit,
    forecast,
    pretraining_steps,
    rounded,
    write_constants,
)


class HeldOutPretraining(msgspec.Struct, frozen=True):
    """Errors on the steps of a held-out part, as fractions.

    Attributes
    ----------
    split, held_out : str
        Property by which the steps were split, and its value that was left out of the fit.
    points : int
    mape, median, bias : float
        Mean and median absolute relative error, and median relative error.
    coverage_90, width_90 : float
        Fraction of steps inside their 90% interval, and median relative width of the intervals.
    sharpness_90 : float
        Median ratio between the ends of the intervals.
    fits : float
        Fraction of steps whose forecast memory fits the device.
    smallest_memory : float
        Smallest forecast memory over the memory of its device.
    """

    split: str
    held_out: str
    points: int
    mape: float
    median: float
    bias: float
    coverage_90: float
    width_90: float
    sharpness_90: float
    fits: float
    smallest_memory: float


def _row(split: str, held_out: str, forecasts: Sequence[PretrainingForecast]) -> HeldOutPretraining:
    memory = np.array([point.memory_bytes / find_device(point.step.device).memory_bytes for point in forecasts])
    return HeldOutPretraining(
        split,
        held_out,
        len(forecasts),
        **relative_errors([point.error for point in forecasts]),
        **interval_accuracy(*zip(*((point.step.time_s, point.low_s, point.high_s) for point in forecasts))),
        width_90=float(np.median([(point.high_s - point.low_s) / point.time_s for point in forecasts])),
        fits=float(np.mean(memory <= 1)),
        smallest_memory=float(memory.min()),
    )


def _rows_of_device(
    device: str, steps: Sequence[Pretraining], constants: StackConstants
) -> tuple[list[HeldOutPretraining], list[PretrainingForecast]]:
    """Return the errors with all that is known, without the kernels of a release, and without the recipe; forecasts."""
    forecasts = forecast(steps, constants)
    rows = [_row("device", device, forecasts)]
    for title, known_steps in (
        ("release not given", [step.without_release() for step in steps]),
        ("recipe not given", [step.without_recipe() for step in steps]),
    ):
        rows.append(_row("device", f"{device}, {title}", forecast(known_steps, constants)))
    return rows, forecasts


def splits(steps: Sequence[Pretraining]) -> Iterator[tuple[str, str, list[Pretraining], list[Pretraining]]]:
    """Yield the name of each split, what is left out, and the steps that are fitted and judged."""
    for split in ("device", "network", "precision"):
        for value in dict.fromkeys(getattr(step, split) for step in steps):
            fitted = [step for step in steps if getattr(step, split) != value]
            yield split, value, fitted, [step for step in steps if getattr(step, split) == value]
    dense = [step for step in steps if not step.is_mixture]
    yield "experts", "mixtures", dense, [step for step in steps if step.is_mixture]


def validate_pretraining(steps: Sequence[Pretraining]) -> tuple[list[HeldOutPretraining], list[PretrainingForecast]]:
    """Fit to all steps but those of a device, a network, a precision or with experts, and judge these.

    Return the errors, and the held-out steps by device.
    """
    rows, by_device, known = [], [], KnownTimes()
    for split, value, fitted, left_out in splits(steps):
        if not fitted or not left_out:
            continue
        constants = rounded(fit(fitted, known))
        if split == "device":
            of_device, forecasts = _rows_of_device(value, left_out, constants)
            rows += of_device
            by_device += forecasts
        else:
            rows.append(_row(split, value, forecast(left_out, constants)))
    early = [point for point in by_device if point.step.release < FIRST_FUSED]
    late = [point for point in by_device if point.step.release >= FIRST_FUSED]
    rows += [
        _row("device", f"each, releases {period}", part)
        for period, part in (("to 26.04", early), ("from 26.06", late))
        if part
    ]
    return rows, by_device


def pretraining_page(rows: Sequence[HeldOutPretraining], left_out: dict[str, int]) -> Document:
    """Return a page with error, coverage, width and memory by held-out part."""
    table = Table(
        "Pre-training of language models held out",
        [
            Column("split", "split", left=True),
            Column("held_out", "held out", left=True),
            Column("points", "steps"),
            *ERROR_COLUMNS,
            Column("fits", "fits", format_percent_rounded),
            Column("smallest_memory", "least\nmemory", format_percent_rounded),
        ],
        [msgspec.to_builtins(row) for row in rows],
    )
    headline = (
        f"{len(rows)} parts held out: {np.mean([row.mape for row in rows]):.1%} mean absolute error on average, "
        f"{np.mean([row.coverage_90 for row in rows]):.0%} within 90%"
    )
    notes = [f"left out: {number} of {reason}" for reason, number in sorted(left_out.items())]
    return Document(headline, (), [table], notes)


def pretraining_pairs(forecasts: Sequence[PretrainingForecast]) -> list[Pair]:
    """Return the points of the chart, grouped by device."""
    return [
        Pair(
            f"{point.step.network}, {point.step.workers} {point.step.device} {point.step.precision}, "
            f"{point.step.release}",
            point.step.device,
            point.step.time_s,
            point.time_s,
            (point.low_s, point.high_s),
        )
        for point in forecasts
    ]


def ship_stack(data: Path, folder: Path) -> Iterator[tuple[str, str]]:
    """Fit the constants to all steps, and write them with the errors on held-out steps."""
    steps = pretraining_steps(data).steps
    rows, _ = validate_pretraining(steps)
    errors = []
    for split in dict.fromkeys(row.split for row in rows):
        mean = np.mean([row.mape for row in rows if row.split == split])
        errors.append(f"{split} {mean:.0%}")
    held_out = ", ".join(errors)
    constants = fit(steps)
    kernels = msgspec.structs.replace(constants.kernels, held_out=held_out)
    write_constants(msgspec.structs.replace(constants, kernels=kernels), folder)
    yield "training_stack", f"{len(steps)} steps; held out: {held_out}"

"""Errors of the seconds of pictures and videos: with a model or device held out, and of sources that no fit uses."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np

from paleo_lite.calibration.accuracy import interval_accuracy, relative_errors
from paleo_lite.errors import PaleoError
from paleo_lite.machines import find_device
from paleo_lite.reporting.document import Column, Document, Table
from paleo_lite.timing.diffusion import diffusion_constants

from ..columns import error_columns
from .fit import (
    PicturePieces,
    ask,
    fit_one_device,
    hold_out,
    hold_out_split,
    pieces_of,
    predicted_s,
    split_pieces_of,
    time_of,
)
from .published import PictureMeasurement, mlenergy_rows, project_rows, user_rows

NOTHING = "nothing"
"""What is held out where the shipped constants are judged on what they are fitted to."""

NOT_FITTED = "the source"
"""What is held out where nothing is fitted to a source."""


class PictureErrors(msgspec.Struct, frozen=True):
    """Errors of the seconds of batches.

    Attributes
    ----------
    held_out, source : str
        What the constants do not know, and whose measurements are judged.
    points : int
    mape, median, bias : float
        Mean and median absolute relative error, and median relative error.
    coverage_90, sharpness_90 : float or None
        Fraction of the batches inside their 90% interval, and median ratio between its ends; None without intervals,
        which only the shipped constants have.
    joules : float or None
        Mean absolute relative error of the energy at the measured times; None where no power was measured.
    """

    held_out: str
    source: str
    points: int
    mape: float
    median: float
    bias: float
    coverage_90: float | None = None
    sharpness_90: float | None = None
    joules: float | None = None


class PictureValidation(NamedTuple):
    """Rows of errors, and why other measurements are left out."""

    rows: list[PictureErrors]
    left_out: list[str]


def validate_pictures(data: Path) -> PictureValidation:
    """Return the errors of pictures and videos."""
    measured = list(mlenergy_rows(data))
    of_one_device = [pieces_of(row) for row in measured if row.gpus == 1]
    constants = diffusion_constants()
    several = [split_pieces_of(row, constants) for row in measured if row.gpus > 1]
    of_one, of_several = "ML.ENERGY, one device", "ML.ENERGY, two to eight devices"
    held_out = [
        _from_ratios("model", of_one, hold_out(of_one_device, lambda row: row.pipeline)),
        _from_ratios("device", of_one, hold_out(of_one_device, lambda row: row.gpu)),
        _from_ratios("videos and device", of_one, _videos_of_other_devices(of_one_device)),
        _from_ratios("model", of_several, hold_out_split(several, lambda row: row.pipeline)),
        _from_ratios("device", of_several, hold_out_split(several, lambda row: row.gpu)),
    ]
    users = [best for best, _ in user_rows(data)]
    is_nvidia = {gpu: find_device(gpu).vendor == "NVIDIA" for gpu in {row.gpu for row in users}}
    sources = [
        (NOTHING, of_one, [row for row in measured if row.gpus == 1]),
        (NOTHING, of_several, [row for row in measured if row.gpus > 1]),
        (NOT_FITTED, "tables of projects", list(project_rows(data))),
        (NOT_FITTED, "users of NVIDIA's cards, upper fifth", [row for row in users if is_nvidia[row.gpu]]),
        (NOT_FITTED, "users of other cards, upper fifth", [row for row in users if not is_nvidia[row.gpu]]),
    ]
    judged, left_out = [], []
    for held_out_name, source, rows in sources:
        errors, reasons = _with_shipped_constants(held_out_name, source, rows)
        judged.append(errors)
        left_out += reasons
    return PictureValidation([*judged[:1], *held_out[:3], judged[1], *held_out[3:], *judged[2:]], left_out)


def _from_ratios(held_out: str, source: str, ratios: dict[str, list[float]]) -> PictureErrors:
    """Return the errors of predicted over measured times by group."""
    errors = np.concatenate(list(ratios.values())) - 1
    return PictureErrors(held_out, source, len(errors), **relative_errors(errors))


def _videos_of_other_devices(measured: Sequence[PicturePieces]) -> dict[str, list[float]]:
    """Return the ratios of videos by device, from a fit to pictures on the other ones."""
    ratios = {}
    for gpu in sorted({pieces.row.gpu for pieces in measured}):
        others = [pieces for pieces in measured if pieces.row.gpu != gpu and pieces.row.frames == 1]
        constants = fit_one_device(others)
        videos = [pieces for pieces in measured if pieces.row.gpu == gpu and pieces.row.frames > 1]
        ratios[gpu] = [time_of(pieces, constants) / pieces.row.time_s for pieces in videos]
    return ratios


def _with_shipped_constants(
    held_out: str, source: str, rows: Sequence[PictureMeasurement]
) -> tuple[PictureErrors, list[str]]:
    """Return the errors of the shipped constants on a source, and why other rows are left out."""
    errors, joules, intervals, left_out = [], [], [], []
    for row in rows:
        try:
            prediction = ask(row)
        except PaleoError as error:
            left_out.append(f"{row.pipeline} on {row.gpu}: {error}")
            continue
        if prediction.interval is None:
            left_out.append(f"{row.pipeline} on {row.gpu}: there is only a bound")
            continue
        time_s = predicted_s(row, prediction)
        low_s, high_s = (end_s / prediction.time_s * time_s for end_s in prediction.interval)
        errors.append(time_s / row.time_s - 1)
        intervals.append((row.time_s, low_s, high_s))
        if row.watts is not None and prediction.energy_j is not None:
            joules.append(prediction.energy_j / (row.watts * row.time_s) - 1)
    picture_errors = PictureErrors(
        held_out,
        source,
        len(errors),
        **relative_errors(errors),
        **interval_accuracy(*zip(*intervals)),
        joules=float(np.abs(joules).mean()) if joules else None,
    )
    return picture_errors, left_out


def pictures_page(validation: PictureValidation) -> Document:
    """Return the page of the errors."""
    table = Table(
        "Seconds of batches of pictures and videos",
        [
            Column("source", "measured by", left=True),
            Column("held_out", "held out", left=True),
            Column("points", "batches"),
            *error_columns("mape", "median", "bias", "coverage_90", "sharpness_90"),
            Column("joules", "joules,\nmean", "{:.1%}".format),
        ],
        [msgspec.structs.asdict(row) for row in validation.rows],
    )
    model, tables = validation.rows[1], next(row for row in validation.rows if row.held_out == NOT_FITTED)
    headline = (
        f"Pictures and videos: {model.mape:.1%} off in the mean with a model held out on one device, "
        f"{tables.mape:.1%} in tables to which nothing is fitted"
    )
    return Document(headline, (), [table], [f"left out: {reason}" for reason in validation.left_out], table)

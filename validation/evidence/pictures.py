"""Published times of pictures and videos as evidence, beside forecasts without their device or their source."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec

from paleo_lite.calibration.picture_causes import KIND, TIME, picture_shares, picture_traits
from paleo_lite.calibration.posterior import Observation
from paleo_lite.errors import PaleoError
from paleo_lite.timing.diffusion import DiffusionConstants, diffusion_constants
from paleo_lite.timing.pipelines import predict_pipeline

from ..diffusion.fit import fit_one_device, pieces_of, predicted_s, resolved
from ..diffusion.published import PictureMeasurement, mlenergy_rows, project_rows
from .groups import Grouped


def measured_pictures(data: Path) -> list[Grouped]:
    """Return the published batches on one device, with the machine and the software that each is of.

    What users submit is of many machines under the name of one device, and says nothing of any of them.
    """
    return [observation for row, constants in rows_with_constants(data) for observation in grouped(row, constants)]


def rows_with_constants(data: Path) -> Iterator[tuple[PictureMeasurement, DiffusionConstants]]:
    """Yield the rows of all sources, with constants that were fitted without their device or their source."""
    measured = [row for row in mlenergy_rows(data) if row.gpus == 1]
    pieces = [pieces_of(row) for row in measured]
    for gpu in dict.fromkeys(row.gpu for row in measured):
        fitted = fit_one_device([piece for piece in pieces if piece.row.gpu != gpu])
        constants = msgspec.structs.replace(diffusion_constants(), **fitted)
        yield from ((row, constants) for row in measured if row.gpu == gpu)
    yield from ((row, diffusion_constants()) for row in project_rows(data))


def grouped(row: PictureMeasurement, constants: DiffusionConstants) -> Iterator[Grouped]:
    """Yield a measured batch beside its forecast; none where there is only a bound."""
    try:
        run, machine, model_in = resolved(row)
        prediction = predict_pipeline(run, machine, model_in, constants)
    except PaleoError:  # the table of errors of pictures says which and why
        return
    if prediction.interval is None:
        return
    traits = picture_traits(run, machine.device.id, row.source)
    shares = picture_shares(run, machine, model_in, is_step=row.is_step, constants=constants)
    situation = f"{row.pipeline} {row.images} {row.width}x{row.height} {row.frames} {row.steps}"
    forecast_s = predicted_s(row, prediction)
    low_s, high_s = (forecast_s * end_s / prediction.time_s for end_s in prediction.interval)
    observation = Observation(KIND, TIME, situation, traits, row.time_s, forecast_s, shares, (low_s, high_s))
    yield Grouped((row.source, row.gpu, row.execution, row.precision), observation)

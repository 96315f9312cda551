"""Readers of published times of pipelines, and the fit of their constants."""

from __future__ import annotations

from functools import cache
from itertools import islice

import numpy as np
import pytest

from measured import DATA
from paleo_lite.files import read_typed
from paleo_lite.timing.diffusion import DiffusionConstants, diffusion_constants
from validation.diffusion.fit import (
    PRIOR,
    PicturePieces,
    ask,
    fit_one_device,
    hold_out,
    pieces_of,
    predicted_s,
    time_of,
)
from validation.diffusion.published import PictureMeasurement, mlenergy_rows, project_rows, user_rows
from validation.diffusion.ship import write_constants
from validation.evidence.pictures import grouped, rows_with_constants

pytestmark = pytest.mark.needs_data


@cache
def large_batches() -> list[PicturePieces]:
    """Return the pieces of the batches of four pictures or videos on one device."""
    return [pieces_of(row) for row in mlenergy_rows(DATA) if row.gpus == 1 and row.images == 4]


def test_readers_read_every_row() -> None:
    """422 and 43 rows, as SOURCES.md states; the users' cards are those that have a hardware file."""
    rows = list(mlenergy_rows(DATA))
    assert len(rows) == 422 and all(row.ulysses * row.ring == row.gpus for row in rows)
    assert len(list(project_rows(DATA))) == 43
    pairs = list(user_rows(DATA))
    assert len(pairs) > 30 and all(best.time_s <= median.time_s for best, median in pairs)


def test_a_step_is_compared_with_a_step() -> None:
    row = next(row for row in project_rows(DATA) if row.is_step and row.gpu == "rtx4090")
    prediction = ask(row)
    assert predicted_s(row, prediction) < prediction.time_s


def shipped_constants() -> dict[str, float]:
    """Return the shipped constants that are fitted to one device."""
    return {name: getattr(diffusion_constants(), name) for name in PRIOR}


def test_pieces_add_up_to_the_prediction() -> None:
    """With the shipped constants they give about the time of the model, which combines terms of a layer by a norm."""
    for pieces in large_batches():
        assert time_of(pieces, shipped_constants()) == pytest.approx(ask(pieces.row).time_s, rel=0.1)


def test_the_fit_finds_the_constants_of_times_made_with_them() -> None:
    made_with = {"flops_per_cycle": 1800.0, "scores_per_cycle": 10.0, "bytes_per_cycle": 7.0, "row_cycles": 100.0}
    made_with["host_s"] = 6e-6
    made = [pieces._replace(row=pieces.row._replace(time_s=time_of(pieces, made_with))) for pieces in large_batches()]
    fitted = fit_one_device(made)
    times = [time_of(pieces, made_with) for pieces in made]
    assert [time_of(pieces, fitted) for pieces in made] == pytest.approx(times, rel=0.03)


def test_held_out_devices_are_within_15_percent_in_the_mean() -> None:
    ratios = hold_out(large_batches(), lambda row: row.gpu)
    assert all(np.abs(np.array(values) - 1).mean() < 0.15 for values in ratios.values())


def test_held_out_models_are_within_15_percent_in_the_mean() -> None:
    ratios = hold_out(large_batches(), lambda row: row.pipeline)
    errors = np.abs(np.concatenate(list(ratios.values())) - 1)
    assert errors.mean() < 0.15


def test_written_constants_are_read_again(tmp_path) -> None:
    path = tmp_path / "diffusion.toml"
    write_constants(diffusion_constants(), path)
    assert read_typed(path, DiffusionConstants, "constants", 2**16) == diffusion_constants()


def test_rows_are_of_known_pipelines() -> None:
    from paleo_lite.architectures.pipelines.records import pipelines

    rows: list[PictureMeasurement] = [*mlenergy_rows(DATA), *project_rows(DATA)]
    assert {row.pipeline for row in rows} <= pipelines().keys()


def test_pictures_of_one_machine_are_evidence() -> None:
    rows = list(islice(rows_with_constants(DATA), 2))
    found = [one for row, constants in rows for one in grouped(row, constants)]
    assert [one.row.measured for one in found] == [row.time_s for row, _ in rows]
    for one, (row, constants) in zip(found, rows):
        assert one.group == (row.source, row.gpu, row.execution, row.precision)
        assert constants.flops_per_cycle != diffusion_constants().flops_per_cycle  # fitted without the device
        assert sum(one.row.shares.values()) == pytest.approx(1)

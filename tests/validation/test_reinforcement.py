"""Readers of published steps of reinforcement learning, the fit of their constants, and held-out errors."""

from __future__ import annotations

from pathlib import Path

import pytest

from measured import DATA
from paleo_lite.files import read_typed
from paleo_lite.reinforcement.constants import RlConstants, rl_constants
from validation.reinforcement.fit import PRIOR, hold_out, pieces_of, time_of, with_fit
from validation.reinforcement.fit_parts import part_s, parts_of
from validation.reinforcement.framework_steps import Refused, framework_rows
from validation.reinforcement.hold_out import (
    Judged,
    RlValidation,
    errors_of,
    forecast,
    ordered_share,
    phase_errors,
    rl_page,
    write_constants,
)
from validation.reinforcement.published import STEP, TRAINER, TRANSFER, RlMeasurement, nemo_rows


def rows() -> list[RlMeasurement]:
    """Return the published steps of the smallest network."""
    return [row for row in nemo_rows(DATA) if row.network == "llama-3.1-8b"]


@pytest.mark.needs_data
def test_readers_read_the_steps_that_can_be_asked_for() -> None:
    """52 rows, as SOURCES.md states, of which one does not say which devices generate."""
    found = list(nemo_rows(DATA))
    assert len(found) == 51 and {row.framework for row in found} == {"nemo-rl"}
    assert all(row.time_s > 0 and row.question.prompts > 0 for row in found)


@pytest.mark.needs_data
def test_every_row_of_the_frameworks_is_asked_or_refused_with_a_reason() -> None:
    """279 rows, as SOURCES.md states, one of which is asked without what its optimizer on the host takes."""
    found = list(framework_rows(DATA))
    asked = [row for row in found if isinstance(row, RlMeasurement)]
    partly = [row for row in asked if row.part == STEP and row.time_s is None]
    assert [row.source.split()[0] for row in partly] == ["miles"] and not {"update"} & set(partly[0].phases)
    assert len(found) == 279 + len(partly) and all(len(row.reason) > 20 for row in found if isinstance(row, Refused))
    counts = {part: sum(row.part == part for row in asked) for part in (STEP, TRAINER, TRANSFER)}
    assert counts[STEP] >= 20 and counts[TRAINER] >= 30 and counts[TRANSFER] >= 30
    steps = [row for row in asked if row.part == STEP and row not in partly]
    assert all(row.time_s is not None and row.phases["generation"] < row.time_s for row in steps)
    assert all(seconds >= 0 for row in asked for seconds in row.phases.values())
    with_xformers = {row.question.engine for row in steps if "XFORMERS" in row.version}
    assert with_xformers == {"vllm-0.7"}  # vLLM 0.8 starts its former engine for it
    assert {row.question.engine for row in steps if "XFORMERS" not in row.version} == {None}
    reached = {row.question.longest_response for row in steps if row.question.lora}
    assert reached == {512, 633, 749, 811, 1024}  # of a limit of 1,024, as the notes of three rows say
    assert {row.question.attention for row in asked if "micro-step" in row.source} == {None, "flash3"}


@pytest.mark.needs_data
def test_parts_give_the_times_of_the_forecasts() -> None:
    """With the shipped constants, of a transfer and of a trainer."""
    constants = rl_constants()
    known = {name: getattr(constants, name) for name in PRIOR}
    asked = [row for row in framework_rows(DATA) if isinstance(row, RlMeasurement)]
    transfer = next(row for row in asked if row.part == TRANSFER)
    narrow = [row for row in asked if row.part == TRANSFER and row.question.rollout_precision == "fp8"]
    converted, as_stored = (next(row for row in narrow if row.has_conversion is kind) for kind in (True, False))
    assert not any(row.has_conversion for row in narrow if row.framework == "checkpoint-engine")  # a checkpoint in fp8
    trainer = next(row for row in asked if row.part == TRAINER and row.question.sharding == "full-shard")
    transfers = (transfer, converted, as_stored)
    for row, phase in (*((row, "transfer") for row in transfers), (trainer, "update")):
        part = parts_of([row], constants)[0]
        assert part_s(part, known) == pytest.approx(forecast(row, constants).phases[phase], rel=0.02)


@pytest.mark.needs_data
def test_pieces_give_the_time_of_the_forecast() -> None:
    """With the shipped constants; on devices apart the forecast of a step takes the larger side, as the pieces do."""
    from paleo_lite.api.reinforcement import predict_rl

    shipped = {name: getattr(rl_constants(), name) for name in PRIOR}
    for row in rows()[:1]:
        assert time_of(pieces_of(row), shipped) == pytest.approx(predict_rl(row.question).step.time_s, rel=0.1)


@pytest.mark.needs_data
def test_held_out_steps_are_not_fitted_to() -> None:
    pieces = [pieces_of(row) for row in rows()[:4]]
    judged = hold_out(pieces, lambda row: row.gpu)
    assert len(judged) == 4
    assert with_fit(rl_constants(), pieces) != rl_constants()


@pytest.mark.needs_data
def test_errors_of_steps_and_phases() -> None:
    judged = [forecast(row, rl_constants()) for row in rows()[:3]]
    errors = errors_of("nothing", judged)
    assert errors.points == 3 and 0 < errors.median < 0.5 and errors.sharpness_90 is not None
    assert phase_errors("generation", judged) is None
    known = [Judged(one.row._replace(phases={"generation": 50.0}), one.phases, one.step) for one in judged]
    found = phase_errors("generation", known)
    assert found is not None and found.points == 3
    assert ordered_share(judged[:1]) is None
    text = rl_page(RlValidation([errors, errors], ["a step: why"])).title
    assert "3 published steps with a network held out" in text


def test_constants_are_written_as_they_are_read(tmp_path: Path) -> None:
    path = tmp_path / "reinforcement.toml"
    write_constants(rl_constants(), path)
    assert read_typed(path, RlConstants, "constants", 2**16) == rl_constants()

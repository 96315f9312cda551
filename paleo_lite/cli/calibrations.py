"""``paleo-lite calibrations list|show``."""

from __future__ import annotations

import click

from ..api.calibrations import calibrations as find_calibrations
from .options import Answer, AnswerCommand
from .values import CALIBRATION


@click.group()
def calibrations() -> None:
    """List the shipped calibrations, or show what one learnt."""


@calibrations.command("list", cls=AnswerCommand)
def list_calibrations() -> Answer:
    """List the shipped calibrations with their held-out error."""
    answer = find_calibrations()
    return Answer(answer.to_dict, answer.document)


@calibrations.command("show", cls=AnswerCommand)
@click.argument("calibration", type=CALIBRATION)
def show_calibration(calibration: str) -> Answer:
    """Show every parameter of CALIBRATION (a name or a file), its interval and what would narrow it."""
    answer = find_calibrations(calibration)
    return Answer(answer.to_dict, answer.document)

"""``paleo-lite calibrations list|show``."""

from __future__ import annotations

import click

from ..api.calibrations import calibrations as find_calibrations
from ..result import Result
from .options import AnswerCommand
from .values import CALIBRATION


@click.group()
def calibrations() -> None:
    """List the shipped calibrations, or show what one learnt."""


@calibrations.command("list", cls=AnswerCommand)
def list_calibrations() -> Result:
    """List the shipped calibrations with their held-out error."""
    return find_calibrations()


@calibrations.command("show", cls=AnswerCommand)
@click.argument("calibration", type=CALIBRATION)
def show_calibration(calibration: str) -> Result:
    """Show every parameter of CALIBRATION (a name or a file), its interval and what would narrow it."""
    return find_calibrations(calibration)

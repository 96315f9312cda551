"""``paleo-lite calibrations list|show``."""

from __future__ import annotations

import click

from ..api.calibrations import calibrations as find_calibrations
from ..questions.completion import CALIBRATION
from ..result import Result
from .answers import AnswerCommand, Subcommands


@click.group(cls=Subcommands)
def calibrations() -> None:
    """List the shipped calibrations, or show the parameters of one."""


@calibrations.command("list", cls=AnswerCommand)
def list_calibrations() -> Result:
    """List the shipped calibrations with their held-out error."""
    return find_calibrations()


@calibrations.command("show", cls=AnswerCommand)
@click.argument("calibration", type=CALIBRATION)
def show_calibration(calibration: str) -> Result:
    """Show the parameters of CALIBRATION (a name or a file), their intervals and the measurements that would help."""
    return find_calibrations(calibration)

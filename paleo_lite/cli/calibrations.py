"""``paleo-lite calibrations list|show``."""

from __future__ import annotations

import click
import msgspec

from ..calibration.store import find_calibration, read_calibration, shipped_calibrations
from ..report.calibrations import calibrations_page, page_of
from .command import Answer, AnswerCommand


@click.group()
def calibrations() -> None:
    """List the shipped calibrations, or show what one learnt."""


@calibrations.command("list", cls=AnswerCommand)
def list_calibrations() -> Answer:
    """List the shipped calibrations with their held-out error."""
    page = calibrations_page({name: read_calibration(path) for name, path in shipped_calibrations().items()})
    return Answer(lambda: {"calibrations": list(page.tables[0].rows)}, lambda: page)


@calibrations.command("show", cls=AnswerCommand)
@click.argument("calibration")
def show_calibration(calibration: str) -> Answer:
    """Show every parameter of CALIBRATION (a name or a file), its interval and what would narrow it."""
    found = find_calibration(calibration)
    return Answer(lambda: msgspec.to_builtins(found), lambda: page_of(found))

"""``paleo-lite validate``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from ..api.calibrations import answer_validation
from ..questions.measured import ValidationQuestion
from .answers import CommandResult, command, progress_of_long_answers


@command(ValidationQuestion)
@click.option(
    "--data",
    type=click.Path(path_type=Path),
    required=True,
    help="A measurements CSV, or a .json file with the output of this command.",
)
def validate(data: Path, **arguments: Any) -> CommandResult:
    """Cross-validate the time model: hold measurements out, predict them from the others, and report the errors.

    One network, network family, device or source is held out at a time. Simpler models are evaluated on the same folds:
    one PPP per device, the roofline, one PPP per class of work.

    \b
      paleo-lite calibrate --template > measured.csv
      paleo-lite validate --data measured.csv --split network --format json > held_out.json
      paleo-lite plot accuracy --data held_out.json -o accuracy.png
    """
    with progress_of_long_answers("holding out, by device"):
        validation = answer_validation(ValidationQuestion(data=data, **arguments))
    return CommandResult(validation.to_dict, validation.document, lambda: validation)

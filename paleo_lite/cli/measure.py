"""``paleo-lite measure``."""

from __future__ import annotations

from typing import Any

import click

from ..api.measuring import answer
from ..progress import listening_to_steps
from ..questions.measured import MeasuringQuestion
from ..reporting.tools import ToolReport
from .answers import CommandResult, command


@command(MeasuringQuestion)
@click.argument("steps", nargs=-1, metavar="[STEP]...")
def measure(**arguments: Any) -> CommandResult:
    """Calibrate this machine: time operations and networks, fit the model, then predict and time other networks.

    With STEPs, such as resnet18:16:inference (network, batch size, phase), only these are timed, and each is compared
    with its prediction. `paleo-lite calibrate --suggest` names the most informative steps.

    \b
      paleo-lite measure --quick
      paleo-lite measure vgg11:1:inference resnet18:16:training --device cuda -o mine.csv
      paleo-lite measure -o mine.csv --calibration-out mine.toml --hardware-out mine-hw.toml
      paleo-lite predict vgg16 --gpu ID --hardware-file mine-hw.toml --calibration mine.toml
      paleo-lite measure --tools llama-bench --model llama-3.1-8b-q4_k_m.gguf --calibration-out mine.toml
      paleo-lite measure --tools vllm --address http://localhost:8000 --model meta-llama/Llama-3.1-8B --gpu h100-sxm
    """
    with listening_to_steps(_show_step):
        report = answer(MeasuringQuestion(**arguments))
    has_failed = isinstance(report, ToolReport) and not report.measured
    return CommandResult(report.to_dict, report.document, exit_code=int(has_failed))


def _show_step(description: str) -> None:
    click.echo(f"measuring {description}", err=True)

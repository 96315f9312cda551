"""``paleo-lite compare``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from ..errors import BadValue
from ..files import file_exists
from ..questions.profile_comparison import ComparisonQuestion, answer_comparison
from . import options
from .answers import CommandResult, command, progress_of_long_answers


@command(ComparisonQuestion)
@click.argument("paths", nargs=-1, type=click.Path(path_type=Path))
@click.option("--a", "more_a", multiple=True, type=click.Path(path_type=Path), help="A further repeat of A.")
@click.option("--b", "more_b", multiple=True, type=click.Path(path_type=Path), help="A further repeat of B.")
@options.top()
@options.decompressed()
def compare(
    paths: tuple[Path, ...], more_a: tuple[Path, ...], more_b: tuple[Path, ...], top: int | None, **arguments: Any
) -> CommandResult:
    """Compare the kernels of two profiles A and B, a prediction with a profile, or a result file with its forecasts.

    Repeated profiles of a side are given with --a and --b, or joined by commas. With repeats, every difference is
    compared with the spread between them.

    A single result file of a benchmark is compared with the forecasts for its own configuration.

    \b
      paleo-lite compare before.parquet after.parquet --direction fprop
      paleo-lite compare a1.json,a2.json b1.json,b2.json --by op
      paleo-lite compare --predict resnet50 --gpu k40m run.parquet --batch-size 32
      paleo-lite compare --predict config.json trace.json.gz --precision bf16 --batch-size 16 --sequence-length 559
      paleo-lite compare bench.json --gpu h100-sxm
    """
    if len(paths) > 2:
        raise BadValue(
            f"`compare` takes two profiles (got {len(paths)}): join the repeats of a side by commas, "
            "or use `--a` and `--b`"
        )
    side_a = _split_at_commas(paths[0]) if paths else []
    side_b = _split_at_commas(paths[1]) if len(paths) > 1 else []
    with progress_of_long_answers("forecasting rows"):
        comparison = answer_comparison(ComparisonQuestion(a=[*side_a, *more_a], b=[*side_b, *more_b], **arguments))
    return CommandResult(comparison.to_dict, lambda: comparison.document(top=top), lambda: comparison)


def _split_at_commas(path: Path) -> list[Path]:
    """Return the paths joined by commas; the name of an existing file may contain commas."""
    text = str(path)
    if "," not in text or file_exists(path, Path.exists):
        return [path]
    return [Path(part) for part in text.split(",") if part]

"""``paleo-lite compare``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from ..api.profiles import compare as compare_profiles
from ..errors import BadValue
from ..files import is_there
from . import options
from .options import Answer, Documented, command
from .values import NETWORK, Names


@command()
@click.argument("paths", nargs=-1, type=click.Path(path_type=Path))
@click.option("--a", "more_a", multiple=True, type=click.Path(path_type=Path), help="A further repeat of A.")
@click.option("--b", "more_b", multiple=True, type=click.Path(path_type=Path), help="A further repeat of B.")
@click.option("--repeats", cls=Documented, of="compare", is_flag=True)
@options.direction()
@click.option(
    "--by",
    cls=Documented,
    of="compare",
    type=Names("grouping", ".profile_analysis:BY"),
    default="kernel",
    show_default=True,
)
@click.option(
    "--predict", metavar="NETWORK", type=NETWORK,
    help="Lay a prediction for this network beside the one profile; the options below are for it.",
)  # fmt: skip
@options.gpu(required=False, help="Device that the profile was taken on.")
@options.precision()
@options.batch_size(default=None, help="Samples per pass. [default: what the profile's name says]")
@options.time_model()
@options.ppp()
@options.calibration()
@options.top()
@options.name_pattern()
@options.decompressed()
@options.hardware_files()
def compare(
    paths: tuple[Path, ...], more_a: tuple[Path, ...], more_b: tuple[Path, ...], top: int | None, **question: Any
) -> Answer:  # fmt: skip
    """Lay the kernels of two profiles A and B side by side, or a prediction beside one.

    Several repeats of a side are given with --a and --b, or joined by commas. With repeats every difference is
    judged against the spread between them.

    \b
      paleo-lite compare before.parquet after.parquet --direction fprop
      paleo-lite compare a1.json,a2.json b1.json,b2.json --by op
      paleo-lite compare --predict resnet50 --gpu k40m run.parquet --batch-size 32
    """
    if len(paths) > 2:
        raise BadValue(
            f"compare takes two profiles, not {len(paths)}: join repeats of a side by commas, or use --a, --b"
        )
    first, second = (_split(paths[place]) if len(paths) > place else [] for place in (0, 1))
    comparison = compare_profiles([*first, *more_a], [*second, *more_b], **question)
    return Answer(comparison.to_dict, lambda: comparison.document(top=top), lambda: comparison)


def _split(path: Path) -> list[Path]:
    """Paths joined by commas, unless there is a file of that very name."""
    text = str(path)
    if "," not in text or is_there(path, Path.exists):
        return [path]
    return [Path(part) for part in text.split(",") if part]

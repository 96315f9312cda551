"""``paleo-lite compare``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from ..api import predict as run_prediction
from ..errors import BadProfile, BadValue
from ..timing.models import PppModel
from . import options
from .command import Answer, command


@command()
@click.argument("paths", nargs=-1, type=click.Path(path_type=Path))
@click.option("--a", "more_a", multiple=True, type=click.Path(path_type=Path), help="A further repeat of A.")
@click.option("--b", "more_b", multiple=True, type=click.Path(path_type=Path), help="A further repeat of B.")
@click.option("--repeats", is_flag=True, help="Also read the repeats that lie beside A and B, by their names.")
@options.direction()
@click.option(
    "--predict", "network", metavar="NETWORK", shell_complete=options.complete_networks,
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
@options.hardware_files()
def compare(
    paths: tuple[Path, ...],
    more_a: tuple[Path, ...],
    more_b: tuple[Path, ...],
    repeats: bool,
    direction: str,
    network: str | None,
    top: int | None,
    name_pattern: str | None,
    **question: Any,
) -> Answer:
    """Lay the kernels of two profiles A and B side by side, or a prediction beside one.

    Several repeats of a side are given with --a and --b, or joined by commas. With repeats every difference is
    judged against the spread between them.

    \b
      paleo-lite compare before.parquet after.parquet --direction fprop
      paleo-lite compare a1.json,a2.json b1.json,b2.json
      paleo-lite compare --predict resnet50 --gpu k40m run.parquet --batch-size 32
    """
    options.need_pyarrow()
    from ..efficiency.compare import compare as compare_profiles
    from ..efficiency.compare import find_repeats
    from ..profiles.detect import open_profile
    from ..report.compare import comparison_page

    if network is not None:
        return _beside(paths, name_pattern, top, network, **question)
    if any(question[name] is not None for name in ("gpu", "batch_size", "time_model", "ppp", "calibration")):
        raise BadValue("--gpu, --batch-size, --time-model, --ppp and --calibration go with --predict")
    if len(paths) > 2:
        raise BadValue(
            f"compare takes two profiles, not {len(paths)}: join repeats of a side by commas, or use --a, --b"
        )
    first, second = (_split(paths[place]) if len(paths) > place else [] for place in (0, 1))
    sides = [[*first, *more_a], [*second, *more_b]]
    if not all(sides):
        raise BadValue("compare takes two profiles, A and B (or --predict NETWORK and one)")
    if repeats:
        sides = [[repeat for path in side for repeat in find_repeats(path, name_pattern)] for side in sides]
    profiles = [[open_profile(path, name_pattern) for path in dict.fromkeys(side)] for side in sides]
    comparison = compare_profiles(profiles[0], profiles[1], direction)
    return Answer(comparison.to_dict, lambda: comparison_page(comparison, top), lambda: [comparison])


def _split(path: Path) -> list[Path]:
    """Paths joined by commas, unless there is a file of that very name."""
    text = str(path)
    return [path] if "," not in text or path.exists() else [Path(part) for part in text.split(",") if part]


def _beside(
    paths: tuple[Path, ...], name_pattern: str | None, top: int | None, network: str, *, gpu: str | None,
    batch_size: int | None, **question: Any,
) -> Answer:  # fmt: skip
    import msgspec

    from ..calibration.beside import lay_beside, learnt_from
    from ..calibration.ppp import fit_beside
    from ..efficiency.by_kind import measure_passes
    from ..efficiency.contradictions import question as doubt
    from ..profiles.detect import open_profile
    from ..report.predicted import predicted_page
    from .provenance import used_calibration

    if gpu is None or len(paths) != 1:
        raise BadValue("--predict takes one profile and the device it was taken on: --gpu DEVICE")
    profile = open_profile(paths[0], name_pattern)
    batch_size = batch_size or profile.configuration.get("batch_size")
    if not isinstance(batch_size, int):
        raise BadProfile(f"{paths[0]}: its name does not give the batch size: use --batch-size")
    question |= {"gpu": gpu, "batch_size": batch_size}
    is_fitted = question["time_model"] == PppModel.name and question["ppp"] is question["calibration"] is None
    if is_fitted:
        question["ppp"] = 1.0
    asked = run_prediction(network, **question)  # an unknown network or device is said before the profile is read
    doubt(profile, asked.device, asked.network, asked.precision)
    measured = measure_passes(profile)
    beside = lay_beside(str(paths[0]), measured, run_prediction(network, phase=measured.phase, **question))
    if is_fitted:
        beside = fit_beside(beside)
    elif (learnt := used_calibration(beside.prediction, question["calibration"])) is not None:
        beside = msgspec.structs.replace(beside, remarks=learnt_from(beside, learnt.provenance))
    return Answer(beside.to_dict, lambda: predicted_page(beside, top), lambda: [beside])

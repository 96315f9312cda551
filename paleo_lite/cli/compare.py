"""``paleo-lite compare``."""

from __future__ import annotations

from pathlib import Path

import click

from ..api import predict as run_prediction
from ..errors import BadProfile, BadValue
from ..timing import TIME_MODELS
from ..units import PRECISION_BYTES
from .common import SHARE, WHOLE, complete_devices, complete_networks, hardware_files, output_options, show
from .plot_options import Drawing, plot_options
from .profile_options import direction_option, need_pyarrow, parse_top, pattern_option, top_option


@click.command()
@click.argument("paths", nargs=-1, type=click.Path(path_type=Path))
@click.option("--a", "more_a", multiple=True, type=click.Path(path_type=Path), help="A further repeat of A.")
@click.option("--b", "more_b", multiple=True, type=click.Path(path_type=Path), help="A further repeat of B.")
@click.option("--repeats", is_flag=True, help="Also read the repeats that lie beside A and B, by their names.")
@direction_option
@click.option(
    "--predict", "network", metavar="NETWORK", shell_complete=complete_networks,
    help="Lay a prediction for this network beside the one profile.",
)  # fmt: skip
@click.option("--gpu", metavar="DEVICE", shell_complete=complete_devices, help="The device, with --predict.")
@click.option(
    "--precision", type=click.Choice(list(PRECISION_BYTES)), default="fp32", show_default=True, help="With --predict."
)
@click.option("--batch-size", type=WHOLE, help="With --predict; default: what the profile's name says.")
@click.option(
    "--time-model",
    type=click.Choice(list(TIME_MODELS)),
    help="With --predict; default: ppp with --ppp, calibrated where there is a calibration, else roofline.",
)
@click.option("--ppp", type=SHARE, help="With --predict: the share of peak that the platform reaches.")
@top_option
@pattern_option
@hardware_files
@plot_options("compare")
@output_options
def compare(
    paths: tuple[Path, ...],
    more_a: tuple[Path, ...],
    more_b: tuple[Path, ...],
    repeats: bool,
    direction: str,
    network: str | None,
    gpu: str | None,
    precision: str,
    batch_size: int | None,
    time_model: str | None,
    ppp: float | None,
    top: str,
    name_pattern: str | None,
    hardware_files: tuple[Path, ...],
    plot: Drawing | None,
    style: str,
) -> None:
    """Lay the kernels of two profiles A and B side by side, or a prediction beside one.

    Several repeats of a side are given with --a and --b, or joined by commas. With repeats every difference is
    judged against the spread between them.

    \b
      paleo-lite compare before.parquet after.parquet --direction fprop
      paleo-lite compare a1.json,a2.json b1.json,b2.json
      paleo-lite compare --predict resnet50 --gpu k40m run.parquet --batch-size 32
    """
    need_pyarrow()
    from ..efficiency.compare import compare as compare_profiles
    from ..efficiency.compare import find_repeats
    from ..profiles.detect import open_profile
    from ..report.compare import comparison_page

    listed = parse_top(top)
    if network is not None:
        _beside(
            paths, network, gpu, precision, batch_size, time_model, ppp, listed, name_pattern, hardware_files,
            plot, style,
        )  # fmt: skip
        return
    if gpu is not None or batch_size is not None or time_model is not None or ppp is not None:
        raise BadValue("--gpu, --batch-size, --time-model and --ppp go with --predict")
    if len(paths) > 2:
        raise BadValue(
            f"compare takes two profiles, not {len(paths)}: join repeats of a side by commas, or use --a, --b"
        )
    first, second = (_split(paths[place]) if len(paths) > place else [] for place in (0, 1))
    sides = [[*first, *more_a], [*second, *more_b]]
    if not all(sides):
        raise BadValue("compare takes two profiles, A and B (or --predict NETWORK and one)")
    if repeats:
        sides = [[found for path in side for found in find_repeats(path, name_pattern)] for side in sides]
    profiles = [[open_profile(path, name_pattern) for path in dict.fromkeys(side)] for side in sides]
    comparison = compare_profiles(profiles[0], profiles[1], direction)
    show(style, comparison.to_dict, lambda: comparison_page(comparison, listed))
    if plot is not None:
        plot.draw(comparison)


def _split(path: Path) -> list[Path]:
    """Paths joined by commas, unless there is a file of that very name."""
    text = str(path)
    return [path] if "," not in text or path.exists() else [Path(part) for part in text.split(",") if part]


def _beside(
    paths: tuple[Path, ...],
    network: str,
    gpu: str | None,
    precision: str,
    batch_size: int | None,
    time_model: str | None,
    ppp: float | None,
    listed: int | None,
    name_pattern: str | None,
    hardware_files: tuple[Path, ...],
    plot: Drawing | None,
    style: str,
) -> None:
    from ..calibration.beside import lay_beside
    from ..efficiency.by_kind import measure_passes
    from ..profiles.detect import open_profile
    from ..report.predicted import predicted_page

    if gpu is None or len(paths) != 1:
        raise BadValue("--predict takes one profile and the device it was taken on: --gpu DEVICE")
    profile = open_profile(paths[0], name_pattern)
    batch = batch_size or profile.configuration.get("batch_size")
    if not isinstance(batch, int):
        raise BadProfile(f"{paths[0]}: its name does not give the batch size: use --batch-size")

    def predicted(phase: str):  # type: ignore[no-untyped-def]
        return run_prediction(
            network, gpu=gpu or "", precision=precision, batch_size=batch, phase=phase, time_model=time_model, ppp=ppp,
            hardware_files=hardware_files,
        )  # fmt: skip

    predicted("inference")  # an unknown network or device is said before the profile is read
    measured = measure_passes(profile)
    beside = lay_beside(str(paths[0]), measured, predicted(measured.phase))
    show(style, beside.to_dict, lambda: predicted_page(beside, listed))
    if plot is not None:
        plot.draw(beside)

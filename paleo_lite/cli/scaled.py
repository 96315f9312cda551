"""``paleo-lite scaled``."""

from __future__ import annotations

from pathlib import Path

import click

from ..hardware import find_device
from . import options
from .command import Answer, command
from .options import WHOLE


@command()
@click.argument("paths", nargs=-1, required=True, type=click.Path(path_type=Path))
@options.gpu()
@click.option(
    "--durations", required=True, multiple=True, metavar="FILE", type=click.Path(path_type=Path, exists=True),
    help="Durations: CSV table, CSV of markers, TAU intervals, or a folder of these; the shortest counts.",
)  # fmt: skip
@click.option(
    "--tau-init", type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="TAU intervals of runs of one batch, whose median is taken for the initialisation.",
)  # fmt: skip
@click.option("--tau-batches", type=WHOLE, default=50, show_default=True, help="Batches of the TAU runs.")
@click.option(
    "--batches", type=WHOLE, default=25, show_default=True, help="How many batches the profiles' FLOPs are of."
)
@click.option(
    "--group-by", "groups", multiple=True, metavar="COLUMNS", help="Means by other columns: batch_size,nodes."
)
@options.precision()
@options.name_pattern()
@options.hardware_files()
def scaled(
    paths: tuple[Path, ...],
    gpu: str,
    durations: tuple[Path, ...],
    tau_init: Path | None,
    tau_batches: int,
    batches: int,
    groups: tuple[str, ...],
    precision: str,
    name_pattern: str | None,
    hardware_files: tuple[Path, ...],
) -> Answer:
    """Efficiencies over the time that batches really took, from the profiles PATHS (files or folders).

    \b
      paleo-lite scaled profiles/ --gpu k40m --durations batch_durations.csv
      paleo-lite scaled profiles/ --gpu k40m --durations markers/ --durations interval.parquet \\
          --tau-init one_batch.parquet
    """
    options.need_pyarrow()
    from ..efficiency.durations import read_durations
    from ..efficiency.files import find_files
    from ..efficiency.scaled import report_scaled
    from ..profiles.detect import open_profile
    from ..report.scaled import scaled_page

    device = find_device(gpu, hardware_files)
    device.find_peak(precision)  # before any work
    book = read_durations(durations, initialisation=tau_init, tau_batches=tau_batches, name_pattern=name_pattern)
    by = [[name.strip() for name in group.split(",") if name.strip()] for group in groups]
    profiles = [open_profile(path, name_pattern) for path in find_files(paths)]
    report = report_scaled(profiles, book, device, precision, batches=batches, groups=by or None)
    return Answer(report.to_dict, lambda: scaled_page(report))

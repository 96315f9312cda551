"""``paleo-lite efficiency``."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import click

from ..hardware import find_device
from ..units import PRECISION_BYTES
from .common import WHOLE, complete_devices, hardware_files, output_options, show
from .plot_options import Drawing, plot_options
from .profile_options import need_pyarrow


@click.command()
@click.argument("paths", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option(
    "--gpu", required=True, metavar="DEVICE", shell_complete=complete_devices, help="The device, such as k40m."
)
@click.option(
    "--method", type=click.Choice(["steady", "notebook"]), default="steady", show_default=True,
    help="One steady iteration with all that it computes, or all rows as SURFBoard's notebook counts them.",
)  # fmt: skip
@click.option(
    "--precision", type=click.Choice(list(PRECISION_BYTES)), default="fp32", show_default=True, help="Of the peak."
)
@click.option("--group-by", metavar="COLUMNS", default="", help="Print means too, such as by batch_size,nodes.")
@click.option(
    "--name-pattern",
    metavar="REGEX",
    help="How to read a run's settings from file names: named groups, (?P<nodes>\\d+).",
)
@click.option(
    "--durations", multiple=True, type=click.Path(path_type=Path, exists=True),
    help="Measured batch durations, used instead of kernel times; see `paleo-lite scaled`.",
)  # fmt: skip
@click.option("--jobs", type=WHOLE, metavar="N", help="Processes; default: one per core.")
@click.option("--scheduler", metavar="ADDRESS", help="A Dask scheduler, tcp://host:8786, whose workers do it.")
@click.option("--keep-going", is_flag=True, help="Report files that cannot be read and go on with the rest.")
@hardware_files
@plot_options("efficiency")
@output_options
@click.pass_context
def efficiency(
    ctx: click.Context,
    paths: tuple[Path, ...],
    gpu: str,
    method: str,
    precision: str,
    group_by: str,
    name_pattern: str | None,
    durations: tuple[Path, ...],
    jobs: int | None,
    scheduler: str | None,
    keep_going: bool,
    hardware_files: tuple[Path, ...],
    plot: Drawing | None,
    style: str,
) -> None:
    """Say how well the device was used, from profiles.

    PATHS are profiles, or folders of them; several are read in parallel.

    \b
      paleo-lite efficiency run.parquet --gpu k40m
      paleo-lite efficiency profiles/ --gpu k40m --group-by batch_size,nodes
      paleo-lite efficiency profiles/ --gpu k40m --method notebook --format csv
    """
    need_pyarrow()
    from ..efficiency.analysis import measure_efficiency
    from ..report.efficiency import efficiency_page

    device = find_device(gpu, hardware_files)
    device.find_peak(precision)  # before any work
    book = None
    if durations:
        from ..efficiency.durations import read_durations

        book = read_durations(durations, name_pattern=name_pattern)
    try:
        with _progress() as on_done:
            result = measure_efficiency(
                paths,
                device,
                method=method,  # type: ignore[arg-type]
                precision=precision,
                group_by=[name.strip() for name in group_by.split(",") if name.strip()],
                name_pattern=name_pattern,
                durations=book,
                jobs=jobs,
                scheduler=scheduler,
                keep_going=keep_going,
                on_done=on_done,
            )
    except KeyboardInterrupt:
        click.echo("paleo-lite: interrupted", err=True)
        ctx.exit(130)
    if result.rows or style == "json":
        show(style, result.to_dict, lambda: efficiency_page(result))
    for failure in result.failed:
        click.echo(f"paleo-lite: {failure['error']}", err=True)
    if plot is not None:
        plot.draw(result)
    if result.failed:
        ctx.exit(1)


@contextmanager
def _progress() -> Iterator[Callable[[int, int], None]]:
    """A bar on standard error where that is a terminal, gone when all is done."""
    if not sys.stderr.isatty():
        yield lambda done, total: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("reading profiles"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    # Without a thread of its own, so that processes can still be forked.
    with Progress(*columns, console=Console(stderr=True), transient=True, auto_refresh=False) as bar:
        task = bar.add_task("", total=None)

        def show_done(done: int, total: int) -> None:
            bar.update(task, completed=done, total=total)
            bar.refresh()

        yield show_done

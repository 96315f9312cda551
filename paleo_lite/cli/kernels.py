"""``paleo-lite kernels``."""

from __future__ import annotations

from pathlib import Path

import click

from ..hardware import find_device
from .common import hardware_files, output_options, show
from .plot_options import Drawing, plot_options
from .profile_options import (
    direction_option,
    gpu_option,
    need_pyarrow,
    parse_top,
    pattern_option,
    precision_option,
    top_option,
)


@click.command()
@click.argument("path", type=click.Path(path_type=Path))
@gpu_option
@precision_option
@direction_option
@top_option
@click.option(
    "--sort", "order", type=click.Choice(["time", "rank", "ppp"]), default="time", show_default=True,
    help="By time, by what to optimise first, or by share of peak.",
)  # fmt: skip
@click.option("--full-names", is_flag=True, help="One row per name as printed, with templates and parameters.")
@click.option(
    "--next-command", "tool", type=click.Choice(["nvprof", "ncu", "nsys"]),
    help="Print the command that collects counters of the kernels that matter.",
)  # fmt: skip
@click.option("--program", default="python train.py", show_default=True, help="What --next-command profiles.")
@pattern_option
@hardware_files
@plot_options("classes")
@output_options
def kernels(
    path: Path,
    gpu: str,
    precision: str,
    direction: str,
    top: str,
    order: str,
    full_names: bool,
    tool: str | None,
    program: str,
    name_pattern: str | None,
    hardware_files: tuple[Path, ...],
    plot: Drawing | None,
    style: str,
) -> None:
    """Say where the time of the profile PATH went, kernel by kernel, and what to optimise first.

    \b
      paleo-lite kernels run.parquet --gpu k40m
      paleo-lite kernels trace.json.gz --gpu v100-sxm2 --sort rank --top 10
      paleo-lite kernels run.parquet --gpu k40m --next-command nvprof --program "python train.py"
    """
    need_pyarrow()
    from ..efficiency.kernels import report_kernels
    from ..efficiency.next_command import next_command
    from ..profiles.detect import open_profile
    from ..report.kernels import command_lines, kernels_page

    listed = parse_top(top)
    device = find_device(gpu, hardware_files)
    device.find_peak(precision)  # before any work
    report = report_kernels(
        open_profile(path, name_pattern), device, precision, direction=direction, full_names=full_names
    )
    commands = None if tool is None else next_command(report.kernels, tool, program)
    if commands is None:
        show(style, report.to_dict, lambda: kernels_page(report, listed, order))
    elif style == "json":
        show(style, lambda: {**report.to_dict(), "next_command": commands}, lambda: kernels_page(report, listed, order))
    else:
        click.echo(command_lines(report, commands))
    if plot is not None:
        plot.draw(report)

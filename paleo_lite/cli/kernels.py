"""``paleo-lite kernels``."""

from __future__ import annotations

from pathlib import Path

import click

from ..hardware import find_device
from . import options
from .command import Answer, command
from .options import Names, Printing


@command()
@click.argument("path", type=click.Path(path_type=Path))
@options.gpu()
@options.precision()
@options.direction()
@options.top()
@click.option(
    "--sort", "order", type=Names("order", ".efficiency:ORDERS"), default="time", show_default=True, cls=Printing,
    help="By time, by what to optimise first, or by share of peak.",
)  # fmt: skip
@click.option(
    "--full-names", is_flag=True, cls=Printing, help="One row per name as printed, with templates and parameters."
)
@click.option(
    "--next-command", "tool", type=Names("profiler", ".efficiency:TOOLS"), cls=Printing,
    help="Print the command that collects counters of the kernels that matter.",
)  # fmt: skip
@click.option(
    "--program", default="python train.py", show_default=True, cls=Printing, help="What --next-command profiles."
)
@options.name_pattern()
@options.hardware_files()
def kernels(
    path: Path,
    gpu: str,
    precision: str,
    direction: str,
    top: int | None,
    order: str,
    full_names: bool,
    tool: str | None,
    program: str,
    name_pattern: str | None,
    hardware_files: tuple[Path, ...],
) -> Answer:
    """Say where the time of the profile PATH went, kernel by kernel, and what to optimise first.

    \b
      paleo-lite kernels run.parquet --gpu k40m
      paleo-lite kernels trace.json.gz --gpu v100-sxm2 --sort rank --top 10
      paleo-lite kernels run.parquet --gpu k40m --next-command nvprof --program "python train.py"
    """
    options.need_pyarrow()
    import msgspec

    from ..efficiency.contradictions import doubts
    from ..efficiency.kernels import report_kernels
    from ..efficiency.next_command import next_command
    from ..profiles.detect import open_profile
    from ..report.kernels import command_lines, kernels_page

    device = find_device(gpu, hardware_files)
    device.find_peak(precision)  # before any work
    profile = open_profile(path, name_pattern)
    report = report_kernels(profile, device, precision, direction=direction, full_names=full_names)
    report = msgspec.structs.replace(report, notes=(*doubts(profile, device), *report.notes))
    if tool is None:
        return Answer(report.to_dict, lambda: kernels_page(report, top, order), lambda: [report])
    commands = next_command(report.kernels, tool, program)
    return Answer(
        lambda: {**report.to_dict(), "next_command": commands},
        lambda: command_lines(report, commands),
        lambda: [report],
    )

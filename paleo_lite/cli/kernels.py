"""``paleo-lite kernels``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from ..api.profiles import kernels as report_kernels
from ..errors import BadValue
from . import options
from .options import Answer, Printing, command
from .values import Names


@command()
@click.argument("paths", nargs=-1, required=True, type=click.Path(path_type=Path))
@options.gpu(required=False, of="kernels")
@options.precision()
@options.direction()
@options.top()
@click.option(
    "--sort", "order", type=Names("order", ".profile_analysis:ORDERS"), default="time", show_default=True, cls=Printing,
    help="By time, by what to optimise first, or by share of peak.",
)  # fmt: skip
@click.option(
    "--full-names", is_flag=True, cls=Printing, help="One row per name as printed, with templates and parameters."
)
@click.option(
    "--next-command", "tool", type=Names("profiler", ".profile_analysis:TOOLS"), cls=Printing,
    help="Print the command that collects counters of the kernels that matter.",
)  # fmt: skip
@click.option(
    "--program", default="python train.py", show_default=True, cls=Printing, help="What --next-command profiles."
)
@options.name_pattern()
@options.decompressed()
@options.hardware_files()
def kernels(
    paths: tuple[Path, ...], top: int | None, order: str, tool: str | None, program: str, **question: Any
) -> Answer:  # fmt: skip
    """Say where the time of a profile went, kernel by kernel, and what to optimise first.

    PATHS are a profile; or several, or folders of them, whose kernels are summed: the ranks of a job.

    Of a profile in which nothing ran on a device: where the host's time went, function by function.

    \b
      paleo-lite kernels run.parquet --gpu k40m
      paleo-lite kernels vtune.csv
      paleo-lite kernels ranks/ --gpu a100-sxm-80gb
      paleo-lite kernels trace.json.gz --gpu v100-sxm2 --sort rank --top 10
      paleo-lite kernels run.parquet --gpu k40m --next-command nvprof --program "python train.py"
    """
    report = report_kernels(paths, **question)
    from ..profile_analysis.host import HostReport

    if isinstance(report, HostReport):
        if tool is not None:
            raise BadValue("--next-command is for kernels: nothing in this profile ran on a device")
        return Answer(report.to_dict, lambda: report.document(top=top, order=order))
    if tool is None:
        return Answer(report.to_dict, lambda: report.document(top=top, order=order), lambda: report)
    from ..profile_analysis.next_command import next_command
    from ..reporting.kernels import command_lines

    commands = next_command(report.kernels, tool, program)
    return Answer(
        lambda: {**report.to_dict(), "next_command": commands},
        lambda: command_lines(report, commands),
        lambda: report,
    )

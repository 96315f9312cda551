"""``paleo-lite kernels``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from ..errors import BadValue
from ..files import check_outputs
from ..questions.kernels import KernelsQuestion, answer_kernels, merge_traces, replay_operator
from ..questions.names import Names
from ..questions.option import OutputOption
from ..text import format_plural
from . import options
from .answers import CommandResult, command


@command(KernelsQuestion)
@click.argument("paths", nargs=-1, required=True, type=click.Path(path_type=Path))
@options.top()
@click.option(
    "--sort",
    "order",
    type=Names("order", ".profile_analysis:ORDERS"),
    default="time",
    show_default=True,
    cls=OutputOption,
    help="Sort by time, by optimization potential, or by fraction of peak.",
)
@click.option(
    "--next-command",
    "tool",
    type=Names("profiler", ".profile_analysis:TOOLS"),
    cls=OutputOption,
    help="Print the profiler command that collects counters of the most important kernels.",
)
@click.option(
    "--program",
    default="python train.py",
    show_default=True,
    cls=OutputOption,
    help="Program in the command of --next-command.",
)
@click.option(
    "--replay",
    metavar="OPERATOR",
    cls=OutputOption,
    help="Print a Python script that runs an operator again with its recorded shapes, such as aten::mm, or the longest "
    "(first).",
)
@click.option(
    "--trace",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    cls=OutputOption,
    help="Also write the activity of all devices into one trace for Perfetto, with counters of queues and copies: "
    ".json or .json.gz.",
)
@options.decompressed()
@click.pass_obj
def kernels(
    output: dict[str, Any],
    /,
    paths: tuple[Path, ...],
    top: int | None,
    order: str,
    tool: str | None,
    program: str,
    replay: str | None,
    trace: Path | None,
    **arguments: Any,
) -> CommandResult:
    """Break the time of a profile down by kernel, and rank the kernels by optimization potential.

    PATHS are a profile; or several, or folders of them, whose kernels are added up, such as the ranks of a job.

    A profile without device activity is broken down by function of the host.

    \b
      paleo-lite kernels run.parquet --gpu k40m
      paleo-lite kernels vtune.csv
      paleo-lite kernels ranks/ --gpu a100-sxm-80gb
      paleo-lite kernels trace.json.gz --gpu v100-sxm2 --sort rank --top 10
      paleo-lite kernels ranks/ --gpu a100-sxm-80gb --trace job.json.gz
      paleo-lite kernels trace.json.gz --replay aten::mm > mm.py
      paleo-lite kernels run.parquet --gpu k40m --next-command nvprof --program "python train.py"
    """
    if replay is not None:
        script = replay_operator(paths, None if replay == "first" else replay)
        return CommandResult(lambda: {"script": script}, lambda: script)
    if trace is not None:
        check_outputs(trace, force=bool(output.get("force")))
    report = answer_kernels(KernelsQuestion(paths=paths, **arguments))
    if trace is not None:
        written = merge_traces(paths, trace, force=bool(output.get("force")))
        ranks = format_plural(len(written.ranks), "rank")
        click.echo(f"{written.path}: the activity of {ranks}, {written.size / 1e6:.2f} MB", err=True)
    from ..profile_analysis.host import HostReport

    if isinstance(report, HostReport):
        if tool is not None:
            raise BadValue("`--next-command` needs kernels: this profile has no device activity")
        return CommandResult(report.to_dict, lambda: report.document(top=top, order=order))
    if tool is None:
        return CommandResult(report.to_dict, lambda: report.document(top=top, order=order), lambda: report)
    from ..profile_analysis.counters import check_profiler, vendor_of
    from ..profile_analysis.next_command import next_command
    from ..reporting.kernels import command_lines

    check_profiler(tool, vendor_of(report.device, report.format))
    commands = next_command(report.kernels, tool, program)
    return CommandResult(
        lambda: {**report.to_dict(), "next_command": commands},
        lambda: command_lines(report, commands),
        lambda: report,
    )

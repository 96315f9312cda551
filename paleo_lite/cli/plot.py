"""``paleo-lite plot KIND``: every chart, with the options of the command whose result it draws."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from ..api.charted import memory_ranges, rank_locally, timeline
from ..api.plotting import CHARTS_OF_STEPS, KINDS
from ..errors import BadValue, UnknownName
from ..questions.charts import LocalChart, MemoryChart
from ..questions.kind import KINDS as QUESTIONS
from ..questions.option import OutputOption, parameters_of
from ..questions.values import INTEGER, flatten
from . import DEBUG, options
from .answers import AnswerCommand, ChartOutput, CommandResult
from .question import make_command


class _PlotGroup(click.Group):
    """Group with one command per kind of chart."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(KINDS)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Kinds"):
            formatter.write_dl([(name, kind.sentence) for name, kind in KINDS.items()])

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name in KINDS:
            return _PlotCommand(name)
        if not name.startswith("-") and not ctx.resilient_parsing:
            raise click.UsageError(str(UnknownName("chart", name, KINDS, lists_all=True)), ctx)
        return None


@click.group(cls=_PlotGroup, subcommand_metavar="KIND [ARGS]...")
def plot() -> None:
    """Draw a chart into a .png, .svg or .html file.

    Each kind of chart takes the options of the command whose result it draws.

    \b
      paleo-lite plot roofline resnet50 --gpu titan-rtx --precision fp16 --batch-size 32 -o roofline.png
      paleo-lite plot batch resnet50 --gpu titan-rtx,v100-sxm2 --batch-size 1:256:x2 -o batch.svg
      paleo-lite plot scaling resnet50 --gpu k80-die --link ethernet20 --workers 1,2,4,...,128 -o scaling.html
      paleo-lite plot timeline trace.json.gz -o timeline.png --theme dark

    `paleo-lite plot KIND --help` explains each kind.
    """


class _PlotCommand(AnswerCommand):
    """Runs another command and draws its result instead of printing it."""

    def __init__(self, name: str) -> None:
        kind = KINDS[name]
        self.drawn_command = kind.command
        help_text = kind.sentence
        if kind.command:
            command = find_command(kind.command, kind.defaults)
            params = [param for param in command.params if param not in command.output_options]
            self.computation = click.Command(command.name, callback=command.callback, params=params)
            help_text += f"\n\nThe options are those of `paleo-lite {kind.command}`, which prints the numbers."
        else:
            self.computation = _CHART_COMMANDS[name]
            help_text = self.computation.help or help_text
        params = [param for param in self.computation.params if not isinstance(param, OutputOption)]
        super().__init__(
            name,
            params=params,
            help=help_text,
            chart=name,
            chart_option=("-o", "--output"),
            is_chart_required=True,
        )

    @property
    def command_of_options(self) -> str:
        """Name of the command whose result the chart draws."""
        return self.drawn_command or ""

    def invoke(self, ctx: click.Context) -> None:
        ctx.obj = {option.name: ctx.params.pop(option.name or "") for option in self.output_options}
        answer: CommandResult = ctx.invoke(self.computation, **ctx.params)
        chart: ChartOutput = ctx.obj["chart"]
        draws_steps = answer.chart in CHARTS_OF_STEPS and chart.kind in CHARTS_OF_STEPS
        if answer.chart not in ("", chart.kind) and not draws_steps:
            raise BadValue(
                f"the chart {chart.kind} shows a single prediction; for several use `paleo-lite plot {answer.chart}`"
            )
        chart.draw(answer._replace(chart=chart.kind))


def find_command(name: str, defaults: Callable[[], dict[str, Any]] = dict) -> AnswerCommand:
    """Return the command whose result a chart draws, with the defaults that the chart has for it."""
    if name in QUESTIONS:
        return make_command(name, defaults)
    command: AnswerCommand = getattr(importlib.import_module(f".{name}", __package__), name)
    return command


@click.command("timeline", params=[DEBUG])
@click.argument("path", type=click.Path(path_type=Path))
@click.option("--slices", type=INTEGER, default=500, show_default=True, help="Number of time slices.")
def _timeline(path: Path, slices: int) -> CommandResult:
    """Device activity over time in the profile PATH, by kernel class.

    \b
      paleo-lite plot timeline trace.json.gz -o timeline.png
    """
    return CommandResult(drawn=lambda: timeline(path, slices=slices))


@click.command("memory", params=[*parameters_of(MemoryChart), DEBUG])
@options.network()
def _memory(**arguments: Any) -> CommandResult:
    """Peak memory of the language model NETWORK by part, over the batch size and over the tokens.

    \b
      paleo-lite plot memory llama-3.1-8b --gpu h100-sxm --sequence-length 8192 -o memory.png
      paleo-lite plot memory llama-3.2-1b --gpu a100-sxm-80gb --phase training --token-counts 512:8192:x2 -o memory.png
    """
    ranges = memory_ranges(**arguments)
    return CommandResult(drawn=lambda: ranges)


@click.command("local", params=[*parameters_of(LocalChart), DEBUG])
@options.network()
def _local(network: str, gpus: tuple[Any, ...], weights: tuple[Any, ...], **arguments: Any) -> CommandResult:
    """Tokens per second of the language model NETWORK under llama.cpp, by device, or by format on one device.

    \b
      paleo-lite plot local llama-3.1-8b --gpu rtx3060,rtx4090,apple-m4-max -o local.png
      paleo-lite plot local qwen3-14b --gpu rtx3060 --context 8192 -o formats.png
    """
    advice = rank_locally(network, gpus=flatten(gpus) or None, weights=flatten(weights) or None, **arguments)
    return CommandResult(drawn=lambda: advice)


_CHART_COMMANDS = {
    "timeline": _timeline,
    "memory": _memory,
    "local": _local,
}

"""``paleo-lite plot KIND``: every chart, with the arguments of the command whose result it draws."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import click

from ..api.plotting import KINDS, batch, timeline
from ..errors import BadValue, UnknownName
from . import options
from .options import Answer, AnswerCommand, Printing
from .values import DEVICE, WHOLE


class _Kinds(click.Group):
    """A command per kind: the one whose answer it draws, with a chart's file in place of what says how to print."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(KINDS)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Kinds"):
            formatter.write_dl([(name, kind.sentence) for name, kind in KINDS.items()])

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in KINDS and not name.startswith("-") and not ctx.resilient_parsing:
            raise click.UsageError(str(UnknownName("chart", name, KINDS)), ctx)
        return _Drawn(name) if name in KINDS else None


@click.group(cls=_Kinds, subcommand_metavar="KIND [ARGS]...")
def plot() -> None:
    """Draw a chart into a .png, .svg or .html file.

    A kind takes the arguments of the command whose result it draws.

    \b
      paleo-lite plot roofline resnet50 --gpu titan-rtx --precision fp16 --batch-size 32 -o roofline.png
      paleo-lite plot batch resnet50 --gpu titan-rtx --gpu v100-sxm2 --batch-sizes 1:256:x2 -o batch.svg
      paleo-lite plot scaling resnet50 --gpu k80-die --link ethernet20 --workers 1,2,4,...,128 -o scaling.html
      paleo-lite plot timeline trace.json.gz -o timeline.png --theme dark

    `paleo-lite plot KIND --help` explains each kind.
    """


class _Drawn(AnswerCommand):
    """Asks a command, and draws its answer instead of printing it."""

    def __init__(self, name: str) -> None:
        kind = KINDS[name]
        text = kind.sentence
        if kind.command:
            command: AnswerCommand = getattr(importlib.import_module(f".{kind.command}", __package__), kind.command)
            params = [param for param in command.params if param not in command.own]
            self.asked = click.Command(command.name, callback=command.callback, params=params)
            text += f"\n\nThe arguments are those of `paleo-lite {kind.command}`, which prints the numbers."
        else:
            self.asked = _OWN[name]
            text = self.asked.help or text
        params = [param for param in self.asked.params if not isinstance(param, Printing)]
        super().__init__(name, params=params, help=text, chart=name, file=("-o", "--output"), is_chart=True)

    def invoke(self, ctx: click.Context) -> None:
        ctx.obj = {option.name: ctx.params.pop(option.name or "") for option in self.own}
        answer: Answer = ctx.invoke(self.asked, **ctx.params)
        drawing = ctx.obj["chart"]
        if answer.chart not in ("", drawing.kind):
            raise BadValue(f"the chart {drawing.kind} shows one answer: `paleo-lite plot {answer.chart}` shows several")
        drawing.draw(answer)


@click.command("batch")
@options.network()
@click.option(
    "--gpu", "gpus", required=True, multiple=True, metavar="DEVICE", type=DEVICE,
    help="Device, by name or alias; may be given several times.",
)  # fmt: skip
@click.option(
    "--batch-sizes", default="1:256:x2", show_default=True, metavar="RANGE", help="1,2,4 or 1:256:x2 or 8:64:+8."
)
@options.precision()
@options.phase()
@options.time_model()
@options.ppp()
@options.hardware_files()
@options.debug()
def _batch(network: str, gpus: tuple[str, ...], batch_sizes: str, **question: Any) -> Answer:
    """Throughput and time of NETWORK over the batch size, for one device or several.

    \b
      paleo-lite plot batch resnet50 --gpu titan-rtx --gpu v100-sxm2 --precision fp16 -o batch.png
    """
    several = batch(network, gpus=gpus, batch_sizes=batch_sizes, **question)
    for reason in several.left_out:
        click.echo(f"left out: {reason}", err=True)
    return Answer(drawn=lambda: several)


@click.command("timeline")
@click.argument("path", type=click.Path(path_type=Path))
@click.option("--slices", type=WHOLE, default=500, show_default=True, help="In how many parts time is shown.")
@options.debug()
def _timeline(path: Path, slices: int) -> Answer:
    """What ran when in the profile PATH: how busy each kind of kernel kept the device.

    \b
      paleo-lite plot timeline trace.json.gz -o timeline.png
    """
    return Answer(drawn=lambda: timeline(path, slices=slices))


_OWN = {"batch": _batch, "timeline": _timeline}

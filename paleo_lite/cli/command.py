"""What a command answers, and the one place where answers are printed and drawn."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import click

from ..api.plotting import KINDS, Plot, check_chart_file
from ..errors import BadValue
from . import set_debug
from .options import FORCE, Printing, remember
from .values import Names

FORMATS = ("table", "json", "csv", "markdown")


class Answer(NamedTuple):
    """What a command found.

    Attributes
    ----------
    to_dict : callable
        Gives the documented JSON.
    document : callable, optional
        Gives the `Document` (or lines) to print; without it only JSON is.
    drawn : callable, optional
        Gives what its chart draws; without it there is none.
    failures : sequence of str
        Sentences on what went wrong with a part of it; the command exits with 1.
    exit_code : int
    chart : str
        The chart that draws it, where it is not the command's usual one.
    """

    to_dict: Callable[[], Any] = dict
    document: Callable[[], Any] | None = None
    drawn: Callable[[], Any] | None = None
    failures: Sequence[str] = ()
    exit_code: int = 0
    chart: str = ""


class AnswerCommand(click.Command):
    """A command that returns an `Answer`, which is printed in a chosen format, and drawn where a chart is asked for.

    Parameters
    ----------
    chart : str, optional
        The chart that ``--plot`` draws; without it the first of the command's own.
    """

    def __init__(self, *words: Any, chart: str = "", **settings: Any) -> None:
        super().__init__(*words, **settings)
        chart = chart or next((name for name, kind in KINDS.items() if kind.command == self.name), "")
        own = any(param.name == "force" for param in self.params)
        self.params += chart_options(chart, "--plot", force=not own) if chart else []
        self.params += [
            Printing(["--format"], type=click.Choice(FORMATS), default="table", show_default=True, expose_value=False,
                     callback=remember, help="How to print."),
            click.Option(["--debug"], is_flag=True, expose_value=False, callback=set_debug,
                         help="Show tracebacks."),
        ]  # fmt: skip

    def invoke(self, ctx: click.Context) -> None:
        answer = super().invoke(ctx)
        if answer is None:  # the command has said all itself
            return
        _show(answer, ctx.meta["paleo_lite.format"])
        if (drawing := chart_of(ctx)) is not None:
            drawing.draw(answer)
        if answer.failures or answer.exit_code:
            ctx.exit(answer.exit_code or 1)


command = functools.partial(click.command, cls=AnswerCommand)


def _show(answer: Answer, style: str) -> None:
    if style == "json":
        import json

        click.echo(json.dumps(answer.to_dict(), indent=2, allow_nan=False))
    elif answer.document is not None:
        from ..report.terminal import show_document

        document = answer.document()
        if isinstance(document, str):
            click.echo(document)
        else:
            show_document(document, style, sys.stdout)
    for failure in answer.failures:
        click.echo(f"paleo-lite: {failure}", err=True)


@contextmanager
def progress(what: str) -> Iterator[Callable[[int, int], None]]:
    """A bar on standard error, where that is a terminal, of what is called with (done, total)."""
    if not sys.stderr.isatty():
        yield lambda done, total: None
        return
    with click.progressbar(length=1, label=what, show_pos=True, file=sys.stderr) as bar:

        def show(done: int, total: int) -> None:
            bar.length = total
            bar.update(done - bar.pos)

        yield show


class Drawing(NamedTuple):
    """A chart to be drawn into a file."""

    path: Path
    kind: str
    theme: str
    force: bool

    def draw(self, answer: Answer) -> None:
        """Draw an answer.

        Raises
        ------
        BadValue
            If the answer has nothing to draw.
        """
        if answer.drawn is None:
            raise BadValue("there is no chart of this answer: leave the chart's file out")
        kind = answer.chart or self.kind
        Plot(kind, answer.drawn(), self.theme).save(self.path, self.force)
        click.echo(f"{self.path}: {KINDS[kind].said}", err=True)


def chart_of(ctx: click.Context) -> Drawing | None:
    """The chart that was asked for beside the answer, if any."""
    drawing: Drawing | None = ctx.meta.get("paleo_lite.drawing")
    return drawing


def chart_options(kind: str, *names: str, required: bool = False, force: bool = True) -> list[click.Parameter]:
    """The file of a chart under one of `names`, and its theme, for `chart_of`; `force` where the command has none."""
    what = "The chart" if required else f"A chart beside the answer: {KINDS[kind].said}"
    replaced = [Printing(["--force"], **FORCE, expose_value=False)] if force else []
    return [
        Printing([*names, "chart"], metavar="FILE", type=click.Path(path_type=Path), required=required,
                 expose_value=False, callback=functools.partial(_check_chart, kind),
                 help=f"{what}; .png, .svg or .html."),
        Printing(["--theme"], type=Names("theme", ".report.charts.theme:THEMES"), default="light", show_default=True,
                 is_eager=True, expose_value=False, callback=remember,  # known when the file is
                 help="Colours of the chart."),
        *replaced,
    ]  # fmt: skip


def _check_chart(kind: str, ctx: click.Context, _: click.Parameter, path: Path | None) -> None:
    """Refuse before anything is computed: other formats, places that cannot be written, a missing extra."""
    if path is None or ctx.resilient_parsing:
        return
    force = bool(ctx.meta.get("paleo_lite.force"))
    check_chart_file(path, kind, force)
    ctx.meta["paleo_lite.drawing"] = Drawing(path, kind, ctx.meta["paleo_lite.theme"], force)

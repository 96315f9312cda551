"""What a command answers, and the one place where answers are printed and drawn."""

from __future__ import annotations

import functools
import importlib
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import click

from ..errors import BadFile, BadValue
from . import set_debug
from .options import Printing

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
        Gives what the function of its chart takes; without it there is none.
    failures : sequence of str
        Sentences on what went wrong with a part of it; the command exits with 1.
    exit_code : int
    """

    to_dict: Callable[[], Any] = dict
    document: Callable[[], Any] | None = None
    drawn: Callable[[], Sequence[Any]] | None = None
    failures: Sequence[str] = ()
    exit_code: int = 0


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
        self.params += chart_options(chart, "--plot") if chart else []
        self.params += [
            Printing(["--format"], type=click.Choice(FORMATS), default="table", show_default=True, expose_value=False,
                     callback=_remember, help="How to print."),
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


def _remember(ctx: click.Context, option: click.Parameter, value: Any) -> None:
    ctx.meta[f"paleo_lite.{option.name}"] = value


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


class Kind(NamedTuple):
    """A chart: the command whose answer it draws, the function that draws it, and what it shows."""

    command: str
    module: str
    function: str
    shows: str

    @property
    def said(self) -> str:
        """What it shows, inside a sentence."""
        first = self.shows[0] if self.shows[1].isupper() else self.shows[0].lower()  # FLOPs stay FLOPs
        return first + self.shows[1:].rstrip(".")


KINDS: dict[str, Kind] = {
    "roofline": Kind("predict", "roofline", "prediction_roofline", "Layers of a network under a device's peaks."),
    "layers": Kind("predict", "layers", "layer_chart", "Time, FLOPs and bytes of each layer in order."),
    "kinds": Kind("predict", "layers", "kind_chart", "Shares of time, FLOPs and bytes by kind of layer."),
    "passes": Kind("predict", "layers", "pass_chart", "Time of each pass by kind of layer."),
    "batch": Kind("", "curves", "batch_chart", "Throughput and time over the batch size, for several devices."),
    "scaling": Kind("scale", "scaling", "scale_chart", "Speed-up, time by part and cost over the workers."),
    "pareto": Kind(
        "best", "pareto", "pareto_chart", "The Pareto front of a sweep: rows that no other beats in both columns."
    ),
    "accuracy": Kind("validate", "accuracy", "accuracy_chart", "Predicted over measured time of what was held out."),
    "fit": Kind("calibrate", "accuracy", "accuracy_chart", "Fitted over measured time of a calibration."),
    "timeline": Kind("", "profiles", "timeline_chart", "What ran when in a profile."),
    "classes": Kind("kernels", "profiles", "class_chart", "Shares of the classes of kernels of a profile."),
    "kernels": Kind("kernels", "profiles", "kernel_roofline", "Kernels of a profile under a device's peaks."),
    "efficiency": Kind("efficiency", "efficiency", "efficiency_chart", "Shares of a device's peaks, by configuration."),
    "compare": Kind("compare", "beside", "comparison_chart", "Two profiles, or a prediction and one, side by side."),
}
"""Every chart that can be drawn; without a command it has arguments of its own."""


class Drawing(NamedTuple):
    """A chart to be drawn into a file, which is replaced if it is there."""

    path: Path
    kind: str
    theme: str

    def draw(self, answer: Answer) -> None:
        """Draw an answer.

        Raises
        ------
        BadFile
            If the file cannot be written.
        BadValue
            If the answer has nothing to draw.
        """
        from ..files import write_aside
        from ..report.charts.render import chart_suffix, render

        if answer.drawn is None:
            raise BadValue("there is no chart of this answer: leave the chart's file out")
        kind = KINDS[self.kind]
        module = importlib.import_module(f"...report.charts.{kind.module}", __name__)
        image = render(getattr(module, kind.function)(*answer.drawn()), chart_suffix(self.path), self.theme)
        try:
            write_aside(self.path, image)
        except OSError as error:
            raise BadFile(f"{self.path}: cannot be written ({error.strerror})") from None
        click.echo(f"{self.path}: {kind.said}", err=True)


def chart_of(ctx: click.Context) -> Drawing | None:
    """The chart that was asked for beside the answer, if any."""
    drawing: Drawing | None = ctx.meta.get("paleo_lite.drawing")
    return drawing


def chart_options(kind: str, *names: str, required: bool = False) -> list[click.Parameter]:
    """The file of a chart under one of `names`, and its theme, for `chart_of`."""
    what = "The chart" if required else f"A chart beside the answer: {KINDS[kind].said}"
    return [
        Printing([*names, "chart"], metavar="FILE", type=click.Path(path_type=Path), required=required,
                 expose_value=False, callback=functools.partial(_check_chart, kind),
                 help=f"{what}; .png, .svg or .html, replaced if it is there."),
        Printing(["--theme"], type=click.Choice(("light", "dark")), default="light", show_default=True, is_eager=True,
                 expose_value=False, callback=_remember, help="Colours of the chart."),  # known when the file is
    ]  # fmt: skip


def _check_chart(kind: str, ctx: click.Context, _: click.Parameter, path: Path | None) -> None:
    """Refuse before anything is computed: other formats, places that cannot be written, a missing extra."""
    if path is None or ctx.resilient_parsing:
        return
    from ..extras import need
    from ..report.charts.render import chart_suffix

    chart_suffix(path)
    if path.is_dir():
        raise BadFile(f"{path} is a folder: name a file for the chart")
    if not path.parent.is_dir():
        raise BadFile(f"{path}: cannot be written: the folder {path.parent} does not exist")
    if not os.access(path.parent, os.W_OK):
        raise BadFile(f"{path}: cannot be written: the folder {path.parent} is read-only")
    for library in ("altair", "vl_convert"):
        need(library, "drawing charts", "plots")
    ctx.meta["paleo_lite.drawing"] = Drawing(path, kind, ctx.meta["paleo_lite.theme"])

"""Charts on the command line: which there are, and the options that draw one beside a table."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import click

from ..errors import BadFile

Command = TypeVar("Command", bound=Callable[..., Any])


class Kind(NamedTuple):
    """A chart: the command whose result it draws, the function that draws it, and what it shows."""

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

    def draw(self, *found: Any) -> None:
        """Draw what the command found: the arguments of the chart's function.

        Raises
        ------
        BadFile
            If the file cannot be written.
        BadValue
            If the result has nothing to draw.
        """
        from ..files import write_aside
        from ..report.charts.render import chart_suffix, render

        kind = KINDS[self.kind]
        module = importlib.import_module(f"...report.charts.{kind.module}", __name__)
        image = render(getattr(module, kind.function)(*found), chart_suffix(self.path), self.theme)
        try:
            write_aside(self.path, image)
        except OSError as error:
            raise BadFile(f"{self.path}: cannot be written ({error.strerror})") from None
        click.echo(f"{self.path}: {kind.said}", err=True)


def plot_options(kind: str) -> Callable[[Command], Command]:
    """``--plot FILE`` and ``--theme``; the command gets ``plot``, a `Drawing` of that kind or None."""

    def add(command: Command) -> Command:
        command = theme_option(command)
        return click.option(
            "--plot", metavar="FILE", type=click.Path(path_type=Path), callback=_drawing(kind),
            help=f"Draw a chart too, .png, .svg or .html: {KINDS[kind].said}.",
        )(command)  # fmt: skip

    return add


def file_option(kind: str) -> click.Option:
    """``-o FILE`` of ``paleo-lite plot``."""
    return click.Option(
        ["-o", "--output", "plot"], required=True, metavar="FILE", type=click.Path(path_type=Path),
        callback=_drawing(kind), help="The chart: .png, .svg or .html; replaced if it is there.",
    )  # fmt: skip


def _remember_theme(ctx: click.Context, _: click.Parameter, value: str) -> None:
    ctx.meta["paleo_lite.theme"] = value


def _theme() -> dict[str, Any]:
    """What both sorts of option take; eager, so that it is known when the chart's file is."""
    return {
        "type": click.Choice(["light", "dark"]), "default": "light", "show_default": True, "is_eager": True,
        "expose_value": False, "callback": _remember_theme, "help": "Of the chart.",
    }  # fmt: skip


def theme_option(command: Command) -> Command:
    """``--theme``, as a decorator."""
    return click.option("--theme", **_theme())(command)


def make_theme_option() -> click.Option:
    """``--theme``, as a parameter."""
    return click.Option(["--theme"], **_theme())


def _drawing(kind: str) -> Callable[[click.Context, click.Parameter, Path | None], Drawing | None]:
    def check(ctx: click.Context, _: click.Parameter, path: Path | None) -> Drawing | None:
        """Refuse before anything is computed: other formats, places that cannot be written, a missing extra."""
        if path is None or ctx.resilient_parsing:
            return None
        from ..extras import need
        from ..report.charts.render import chart_suffix

        chart_suffix(path)
        _check_place(path)
        for library in ("altair", "vl_convert"):
            need(library, "drawing charts", "plots")
        return Drawing(path, kind, ctx.meta["paleo_lite.theme"])

    return check


def _check_place(path: Path) -> None:
    if path.is_dir():
        raise BadFile(f"{path} is a folder: name a file for the chart")
    if not path.parent.is_dir():
        raise BadFile(f"{path}: cannot be written: the folder {path.parent} does not exist")
    if not os.access(path.parent, os.W_OK):
        raise BadFile(f"{path}: cannot be written: the folder {path.parent} is read-only")

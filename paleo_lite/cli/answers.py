"""Answers of commands: printed in the chosen format, drawn as a chart, and reported while they are computed."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import click

from ..api.plotting import KINDS, Plot, check_chart_file
from ..errors import BadValue, UnknownName
from ..questions.kind import KINDS as QUESTIONS
from ..questions.names import ListedNames, Names
from ..questions.option import Options, OutputOption, parameters_of
from ..result import Result
from . import DEBUG
from .options import force

FORMATS = ("table", "json", "csv", "markdown")

MOST_FAILURES = 20
"""Most messages about failed parts that are printed; the others are only counted."""


class Subcommands(click.Group):
    """Group of the commands of a command, which lists them where an unknown one is called."""

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        """Return a command by its name; raise click's error with the valid names."""
        command = super().get_command(ctx, name)
        if command is None and not name.startswith("-") and not ctx.resilient_parsing:
            unknown = UnknownName(f"command of `{ctx.info_name}`", name, self.commands, lists_all=True)
            raise click.UsageError(str(unknown), ctx)
        return command


class CommandResult(NamedTuple):
    """The result of a command."""

    to_dict: Callable[[], Any] = dict  # returns the documented JSON
    # Returns the `Document`, or the text, to print; without it only JSON is printed.
    document: Callable[[], Any] | None = None
    drawn: Callable[[], Any] | None = None  # returns the result that the chart draws; without it there is no chart
    failures: Sequence[str] = ()  # messages about failed parts of the computation; the exit code is then 1
    exit_code: int = 0
    chart: str = ""  # kind of chart, if it is not the default of the command
    result: Any = None  # for a report


class ChartOutput(NamedTuple):
    """File and settings of a chart."""

    path: Path
    kind: str
    theme: str
    force: bool

    def draw(self, answer: CommandResult) -> None:
        """Write the chart of a result; raise BadValue if the result has nothing to draw."""
        if answer.drawn is None:
            raise BadValue("this result has no chart: leave the file of the chart out")
        kind = answer.chart or self.kind
        Plot(kind, answer.drawn(), self.theme).save(self.path, self.force)
        click.echo(f"{self.path}: {KINDS[kind].description}", err=True)


class ChartFile(click.ParamType):  # type: ignore[type-arg]
    """Path of a chart, which is checked before the computation starts: suffix, permissions, libraries."""

    name = "path"

    def __init__(self, kind: str) -> None:
        self.kind = kind

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> ChartOutput:
        """Return file and settings of the chart."""
        eager_options = {} if ctx is None else ctx.params
        chart = ChartOutput(
            Path(value),
            self.kind,
            theme=eager_options.get("theme", "light"),
            force=bool(eager_options.get("force")),
        )
        if ctx is None or not ctx.resilient_parsing:
            check_chart_file(chart.path, chart.kind, chart.force)
        return chart


class AnswerCommand(click.Command):
    """A command whose `CommandResult` or `Result` is printed in the chosen format and drawn as a chart.

    A command that returns None has printed its output itself. The values of the output options that this class adds
    (format, chart, theme, force) are not passed to the function; it gets them with ``click.pass_obj``, as a dict.
    """

    def __init__(
        self,
        *arguments: Any,
        chart: str = "",  # kind of chart; by default the first one for this command
        chart_option: Sequence[str] = ("--plot",),  # names of the option for the file of the chart
        is_chart_required: bool = False,  # whether the chart is the only output
        **settings: Any,
    ) -> None:
        super().__init__(*arguments, **settings)
        if not chart:
            chart = next((name for name, kind in KINDS.items() if kind.command == self.name), "")
        existing_names = {param.name for param in self.params}
        self.output_options: list[click.Option] = []
        if chart:
            self.output_options.append(_chart_option(chart, chart_option, is_chart_required))
            self.output_options.append(_theme_option())
            if "force" not in existing_names:
                self.output_options.append(force.option())
        if not is_chart_required:
            self.output_options.append(_format_option())
        self.params += self.output_options
        if "debug" not in existing_names:
            self.params.append(DEBUG)

    @property
    def command_of_options(self) -> str:
        """Name of the command whose options this one has."""
        return self.name or ""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the command line; an option of an earlier version gets a sentence that names the new one."""
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            from ..questions.upgrade import find_moved

            command = self.command_of_options
            moved = find_moved(command, error.option_name, is_question=command in QUESTIONS)
            if moved is None:
                raise
            raise BadValue(moved) from None

    def invoke(self, ctx: click.Context) -> None:
        """Call the function, print its result and draw the chart."""
        ctx.obj = {option.name: ctx.params.pop(option.name or "") for option in self.output_options}
        answer: CommandResult | Result | None = super().invoke(ctx)
        if answer is None:
            return
        if isinstance(answer, Result):
            answer = CommandResult(answer.to_dict, answer.document)
        _print_answer(answer, ctx.obj["format"])
        for failure in answer.failures[:MOST_FAILURES]:
            click.echo(f"paleo-lite: {failure}", err=True)
        if len(answer.failures) > MOST_FAILURES:
            further = len(answer.failures) - MOST_FAILURES
            click.echo(f"paleo-lite: {further:,} more could not be read: `--format json` lists them", err=True)
        chart: ChartOutput | None = ctx.obj.get("chart")
        if chart is not None:
            chart.draw(answer)
        if answer.exit_code:
            ctx.exit(answer.exit_code)
        if answer.failures:
            ctx.exit(1)


def _chart_option(chart: str, names: Sequence[str], is_required: bool) -> click.Option:
    description = "File of the chart" if is_required else f"Also draw a chart: {KINDS[chart].description}"
    return OutputOption(
        [*names, "chart"],
        metavar="FILE",
        type=ChartFile(chart),
        required=is_required,
        help=f"{description}; .png, .svg or .html.",
    )


def _theme_option() -> click.Option:
    """Return ``--theme``, which is parsed before the file of the chart."""
    return OutputOption(
        ["--theme"],
        type=Names("theme", ".reporting.charts.render:THEMES"),
        default="light",
        show_default=True,
        is_eager=True,
        help="Colours of the chart.",
    )


def _format_option() -> click.Option:
    return OutputOption(
        ["--format"],
        type=ListedNames("output format", FORMATS),
        default="table",
        show_default=True,
        help="Output format.",
    )


def _print_answer(answer: CommandResult, output_format: str) -> None:
    if output_format == "json":
        import json

        click.echo(json.dumps(answer.to_dict(), indent=2, allow_nan=False))
        return
    if answer.document is None:
        return
    document = answer.document()
    if isinstance(document, str):
        click.echo(document)
        return
    from ..reporting.terminal import show_document

    show_document(document, output_format, sys.stdout)
    sys.stdout.flush()  # report a full disk or a closed pipe here instead of at the exit of Python


def command(record: type[Options] | None = None) -> Callable[[Callable[..., Any]], AnswerCommand]:
    """Return the decorator of a command that prints its result, and that has the options of a record if it has one."""
    return click.command(cls=AnswerCommand, params=[] if record is None else list(parameters_of(record)))


SHOWN_AFTER_S = 1.0
"""Time after which a computation that is not finished shows its progress."""


@contextmanager
def progress_of_long_answers(label: str, clock: Callable[[], float] = time.monotonic) -> Iterator[None]:
    """Show the progress that is reported inside the block, as soon as it takes longer than `SHOWN_AFTER_S`."""
    from ..progress import listening

    start_s = clock()
    updates: list[Callable[[int, int], None]] = []
    with ExitStack() as stack:

        def update(completed: int, total: int) -> None:
            if not updates and clock() - start_s >= SHOWN_AFTER_S:
                updates.append(stack.enter_context(progress(label)))
            for shown in updates:
                shown(completed, total)

        with listening(update):
            yield


@contextmanager
def progress(label: str) -> Iterator[Callable[[int, int], None]]:
    """Show a progress bar on standard error, if this is a terminal.

    Yield a function to call with the number of completed and of all items.
    """
    if not sys.stderr.isatty():
        yield lambda completed, total: None
        return
    with click.progressbar(length=1, label=label, show_pos=True, file=sys.stderr) as bar:

        def update(completed: int, total: int) -> None:
            bar.length = total
            bar.update(completed - bar.pos)

        yield update

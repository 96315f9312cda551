"""The commands of the kinds of question, which are made from their records."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import click
import msgspec
from click.core import ParameterSource

from ..errors import BadValue
from ..questions.completion import LAYER, NETWORK
from ..questions.kind import QuestionKind, find_kind
from ..questions.option import Options, OutputOption, options_of, parameters_of
from ..questions.values import INTEGER, CommaSeparated
from .answers import AnswerCommand, CommandResult, progress, progress_of_long_answers
from .options import rules, top

_TOP = 10


def row_options() -> list[click.Option]:
    """Return the options, in the order of the help."""
    path = click.Path(path_type=Path, dir_okay=False)
    return [
        OutputOption(
            ["-o", "--output"], type=path, metavar="FILE",
            help="Write a row per combination of values to a .parquet or .csv file; an interrupted command resumes.",
        ),
        OutputOption(
            ["--best"], metavar="COLUMN",
            help="Show the best combinations by cost, time, energy, throughput or any column of these rows.",
        ),
        OutputOption(
            ["--pareto"], metavar="COLUMNS", help="Show the Pareto front of several of them, such as time,cost."
        ),
        OutputOption(
            ["--where"], metavar="CONDITION",
            help="Of --best and --pareto: only rows such as 'time_s < 0.1 and (gpu == k80 or workers >= 4)'.",
        ),
        OutputOption(["--jobs"], type=INTEGER, metavar="N", help="Processes for rows. [default: one per core]"),
        OutputOption(
            ["--scheduler"], metavar="ADDRESS", help="Dask scheduler, tcp://host:8786, whose workers compute rows."
        ),
        OutputOption(["--dry-run"], is_flag=True, help="Only print the number of combinations."),
        OutputOption(["--yes"], is_flag=True, help="Compute rows even if that takes more than two hours of a core."),
    ]  # fmt: skip


ROW_OPTIONS = ("output", "best", "pareto", "where", "jobs", "scheduler", "dry_run", "yes")
"""Python names of the options."""


def asks_for_rows(options: dict[str, Any]) -> bool:
    """Return whether an option that asks for rows is given.

    Raise BadValue if an option is given that has an effect only together with such an option.
    """
    if options["best"] and options["pareto"]:
        raise BadValue("give only one of `--best`, by one column, and `--pareto`, by several")
    is_ranked = bool(options["best"] or options["pareto"])
    if options["where"] and not is_ranked:
        raise BadValue("`--where` chooses among ranked rows: give `--best COLUMN` or `--pareto COLUMNS` as well")
    asks = is_ranked or options["output"] is not None or options["dry_run"]
    for name in ("jobs", "scheduler", "yes"):
        if options[name] and not asks:
            raise BadValue(
                f"`--{name}` is for rows of many combinations: give `-o FILE`, `--best` or `--pareto` as well"
            )
    return asks


def answer_with_rows(question: Options, options: dict[str, Any], output: dict[str, Any]) -> CommandResult:
    """Return the answer that writes rows, or ranks them."""
    from ..questions.sweep import sweep
    from ..sweeps.run import Sweep

    if getattr(question, "advise", None):
        raise BadValue(
            "`--advise` has a ranking of its own, beside which `-o`, `--best` and `--pareto` have no rows: leave it out"
        )
    columns = [name.strip() for name in options["pareto"].split(",")] if options["pareto"] else []
    has_chart = output.get("chart") is not None
    if has_chart and not (options["best"] or columns):
        raise BadValue(
            "`--plot` draws answers side by side, or with `--best` and `--pareto` a front of rows: leave `-o` out, or "
            "give one of them"
        )
    settings = {name: options[name] for name in ("jobs", "scheduler", "dry_run", "yes")}
    with tempfile.TemporaryDirectory() as folder:
        file = options["output"] or Path(folder) / "rows.parquet"
        force = bool(output.get("force")) and options["output"] is not None
        with progress("combinations, in chunks") as on_done:
            written = sweep(question, file, force=force and not has_chart, on_done=on_done, **settings)
        if not isinstance(written, Sweep) or not (options["best"] or columns):
            return CommandResult(written.to_dict, written.document)
        from ..sweeps.best import Goal, find_best
        from ..sweeps.front import BACKGROUND_ROWS, MAX_FRONT_ROWS

        try:
            result = find_best(
                file,
                Goal(objective=options["best"], pareto=columns),
                where=options["where"],
                top=MAX_FRONT_ROWS if has_chart else _TOP,
                sample=BACKGROUND_ROWS if has_chart else 0,
                facility=getattr(question, "facility", None),
            )
        except BadValue as error:
            raise BadValue(str(error).removeprefix(f"{file}: ")) from None  # a file that nobody asked for
    listed = msgspec.structs.replace(result, rows=result.rows[:_TOP])
    return CommandResult(listed.to_dict, listed.document, lambda: result, chart="pareto", result=result)


class QuestionCommand(AnswerCommand):
    """The command of one kind of question."""

    def __init__(self, kind: QuestionKind, defaults: Callable[[], dict[str, Any]] = dict) -> None:
        self.kind = kind
        self.defaults = defaults
        parameters: list[click.Parameter] = [
            click.Argument(["network"], required=False, type=CommaSeparated(NETWORK)),
            *parameters_of(kind.record),
            rules.option(),
            *(_SHOWN[name](kind) for name in kind.shown),
            _report(kind),
            *row_options(),
        ]
        parameters.append(_help_option("--help-all", _show_all, "Show all options."))
        parameters.append(_help_option("--help-group", _show_group, "Show the options of one group.", "GROUP"))
        super().__init__(
            kind.name,
            params=parameters,
            callback=self.answer,
            chart=kind.default_chart,
            help=_help_text(kind),
            short_help=kind.summary,
        )

    def answer(self, **arguments: Any) -> CommandResult:
        """Make the record from what the command line gives, and answer it."""
        context = click.get_current_context()
        of_rows = {name: arguments.pop(name, None) for name in ROW_OPTIONS}
        file = arguments.pop("report", None)
        shown = {name: arguments.pop(name) for name in self.kind.shown if name in arguments}
        stated = {name: value for name, value in arguments.items() if _is_stated(context, name)}
        question = self.kind.record(**{**self.defaults(), **stated})
        output = context.obj or {}
        if file is not None:
            from ..questions.report import check_report_file

            check_report_file(file, force=bool(output.get("force")), kind=self.kind)
            if of_rows["output"] is not None and not (of_rows["best"] or of_rows["pareto"]):
                raise BadValue("`--report` shows answers, not the rows of a file: give `--best` or `--pareto` as well")
        if asks_for_rows(of_rows):
            answer = answer_with_rows(question, of_rows, output)
        else:
            answer = self._answer(question, shown)
        if file is not None:
            _write_report(question, answer, file)
        return answer

    def _answer(self, question: Any, shown: dict[str, Any]) -> CommandResult:
        """Answer one question."""
        with progress_of_long_answers(self.kind.name):
            result = self.kind.answer(question)
        if shown.get("explain"):
            _check_layer(result, shown["explain"])
        shown.setdefault("memory", getattr(question, "memory", False))
        if question.several():
            from ..api.plotting import chart_of_comparison
            from ..sweeps.comparison import Comparison

            if isinstance(result, Comparison):
                if shown.get("explain"):
                    raise BadValue("`--explain` needs a single prediction: give one value of every option")
                chart = chart_of_comparison(result)
                return CommandResult(result.to_dict, result.document, lambda: result, chart=chart, result=result)
        make_document = self.kind.document
        chart = "" if self.kind.chart is None else self.kind.chart(result)
        if make_document is None:
            return CommandResult(result.to_dict, result.document, lambda: result, chart=chart, result=result)
        return CommandResult(
            result.to_dict, lambda: make_document(result, shown), lambda: result, chart=chart, result=result
        )

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options in groups: those that most questions need, or all."""
        which = ctx.meta.get(_HELP, "")
        declared = options_of(self.kind.record)
        for group, parameters in _by_group(self.kind, self.params):
            rows = [
                record
                for parameter in parameters
                if _is_shown(parameter, declared.get(parameter.name or ""), group, which)
                and (record := parameter.get_help_record(ctx)) is not None
            ]
            if rows:
                with formatter.section(group):
                    formatter.write_dl(rows)


_HELP = "paleo_lite.help"
_ALL = "all"
_OUTPUT = "Output"


def _is_shown(parameter: click.Parameter, declared: Any, group: str, which: str) -> bool:
    """Return whether the help shows a parameter."""
    if which == _ALL:
        return True
    if which:
        return group == which
    return parameter.name in _COMMON_OUTPUT if declared is None else declared.is_common


_COMMON_OUTPUT = ("output", "best", "chart", "report", "format", "help", "help_all")


def _by_group(kind: QuestionKind, parameters: Sequence[click.Parameter]) -> Iterator[tuple[str, list[click.Parameter]]]:
    """Yield the groups of the help with their options, in the order of the record; the output is the last."""
    declared = options_of(kind.record)
    groups: dict[str, list[click.Parameter]] = {}
    for parameter in parameters:
        if isinstance(parameter, click.Option) and parameter.name in declared:
            groups.setdefault(declared[parameter.name].group, []).append(parameter)
    for group in _ORDER_OF_GROUPS:
        if group in groups:
            yield group, groups.pop(group)
    yield from groups.items()
    yield (
        _OUTPUT,
        [
            parameter
            for parameter in parameters
            if isinstance(parameter, click.Option) and parameter.name not in declared and not parameter.hidden
        ],
    )


_ORDER_OF_GROUPS = (
    "Network",
    "Device",
    "Training",
    "Traffic",
    "Engine",
    "Parallelism",
    "Price and energy",
    "Time model",
)


def _help_text(kind: QuestionKind) -> str:
    """Return the help of a command: what the record says, then its examples."""
    import inspect

    description = inspect.getdoc(kind.record) or kind.summary
    examples = "\n".join(f"  paleo-lite {kind.name} {example}" for example in kind.examples)
    return f"{description}\n\n\b\n{examples}"


def _help_option(name: str, callback: Callable[..., None], text: str, metavar: str | None = None) -> click.Option:
    return OutputOption(
        [name],
        is_flag=metavar is None,
        metavar=metavar,
        expose_value=False,
        is_eager=True,
        callback=callback,
        help=text,
    )


def _show_all(ctx: click.Context, _: click.Parameter, value: bool) -> None:
    if value and not ctx.resilient_parsing:
        _show_help(ctx, _ALL)


def _show_group(ctx: click.Context, _: click.Parameter, value: str | None) -> None:
    if value is None or ctx.resilient_parsing:
        return
    command = ctx.command
    assert isinstance(command, QuestionCommand)
    groups = [group for group, _ in _by_group(command.kind, command.params)]
    matching = [group for group in groups if group.lower().startswith(value.lower())]
    if not matching:
        raise BadValue(f"`--help-group` must be one of {', '.join(groups)} (got {value!r})")
    _show_help(ctx, matching[0])


def _show_help(ctx: click.Context, which: str) -> None:
    ctx.meta[_HELP] = which
    click.echo(ctx.get_help())
    ctx.exit()


def _explain(kind: QuestionKind) -> click.Option:
    return OutputOption(["--explain"], metavar="LAYER", type=LAYER, help="Show the arithmetic of one layer.")


def _top(kind: QuestionKind) -> click.Option:
    option = top.option()
    option.default = str(kind.listed)
    return option


def _memory(kind: QuestionKind) -> click.Option:
    return OutputOption(["--memory"], is_flag=True, help="Show the peak memory by part.")


_SHOWN: dict[str, Callable[[QuestionKind], click.Option]] = {"explain": _explain, "top": _top, "memory": _memory}
"""Options of the output, which change no number."""


def _write_report(question: Any, answer: CommandResult, file: Path) -> None:
    """Write the report of an answer, and print its path, title and size."""
    from ..questions.report import write_report

    if answer.result is None:
        raise BadValue("`--report` shows answers: leave it out with `--dry-run`")
    written = write_report(question, answer.result, file)
    size = f"{written.bytes / 1e6:.2f} MB" if written.bytes >= 10_000 else f"{written.bytes:,} bytes"
    click.echo(f"{written.path}: {written.page.title}, {size}", err=True)


def _report(kind: QuestionKind) -> click.Option:
    """Return ``--report``, with the files that only this kind of question has."""
    further_files = "".join(f"; {ending}: {meaning}" for ending, (_, meaning) in kind.files.items())
    return OutputOption(
        ["--report"], metavar="FILE", type=click.Path(path_type=Path),
        help="Also write the answer with charts, sources and what reproduces it into a .html file, or all its tables "
        f"into .xlsx or .zip (of CSV files){further_files}.",
    )  # fmt: skip


def _check_layer(result: Any, layer: str) -> None:
    """Reject an unknown layer in every output format."""
    from ..timing import Prediction

    if isinstance(result, Prediction):
        result.layer_index(layer)


def _is_stated(context: click.Context | None, name: str) -> bool:
    """Return whether an option was given, to the command itself or to the one that invokes it, such as a chart's."""
    while context is not None:
        source = context.get_parameter_source(name)
        if source is not None:
            return source not in (ParameterSource.DEFAULT, ParameterSource.DEFAULT_MAP)
        context = context.parent
    return False


def make_command(name: str, defaults: Callable[[], dict[str, Any]] = dict) -> QuestionCommand:
    """Return the command of a kind of question; `defaults` returns options that it has unless they are given."""
    return QuestionCommand(find_kind(name), defaults)

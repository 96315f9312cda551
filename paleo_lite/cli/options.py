"""What commands share: options, each defined once, and answers, which are printed and drawn in one place.

An option is called where a command takes it, with what is different there: ``@options.gpu(required=False)``. Names come
from the list of the package that has them.
"""

from __future__ import annotations

import functools
import inspect
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from ..api.plotting import KINDS, Plot, check_chart_file
from ..errors import BadValue
from ..result import Result
from . import DEBUG, set_debug
from .values import (
    CALIBRATION,
    DEVICE,
    LINK,
    NETWORK,
    PLATFORM,
    SHARE,
    TOPOLOGY,
    WHOLE,
    Decompressed,
    ModuleInput,
    Names,
    Quantity,
    Rules,
    Top,
    Value,
)

if TYPE_CHECKING:
    from ..timing.workload import TrainingOptions

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]

PRECISIONS = Names("precision", ".units:PRECISION_BYTES")
PHASES = Names("phase", ".counting:PHASES")
PHASES_AND_GENERATING = Names("phase", ".counting:PHASES .counting:GENERATING")
PHASES_OF_MANY = Names("phase", ".distributed.scale:PHASES")
PHASES_AND_PASSES = Names("phase", ".counting:PHASES .counting:PASSES")
MODELS = Names("time model", ".timing:TIME_MODELS")
STRATEGIES = Names("strategy", ".distributed.strategies:STRATEGIES")
COLLECTIVES = Names("collective", ".distributed.collectives:COLLECTIVES")
SCALINGS = Names("scaling", ".distributed.scale:SCALINGS")
DEVICES = Names("device", ".cli.values:device_ids")


class Printing(click.Option):
    """An option that says how to print an answer, or what else to write: `paleo-lite plot` does without."""


class Documented(click.Option):
    """An option whose help is what a function of the Python face says of the argument in its documentation: said once.

    Parameters
    ----------
    of : str
        The function of `paleo_lite` whose argument has the option's name. Its text is read when help is asked for.
    """

    def __init__(self, *words: Any, of: str, **settings: Any) -> None:
        super().__init__(*words, **settings)
        self.of = of
        if self.help is None:
            del self.help

    @functools.cached_property
    def help(self) -> str | None:  # type: ignore[override]
        """What the function says, in the words of a terminal, where the option has no help of its own."""
        import paleo_lite

        text = inspect.getdoc(paleo_lite.__getattr__(self.of))
        if text is None:  # Python runs without any: -OO
            return ""
        entry = re.search(rf"^{self.name} : .*\n((?: +.*\n)+)", text, re.MULTILINE)
        assert entry is not None, f"the documentation of paleo_lite.{self.of} says nothing of {self.name}"
        plain = re.sub(
            r'``"?(.*?)"?``',
            lambda value: f"'{value[1]}'" if " " in value[1] else value[1],  # as a shell wants it
            " ".join(entry[1].split()),
        )
        return re.sub(r"`(\w+)`", lambda name: f"--{name[1].replace('_', '-')}", plain)


FORCE: dict[str, Any] = {"is_flag": True, "is_eager": True, "help": "Replace files that are there."}
"""Known when the files are."""


_option = partial(partial, click.option, show_default=True)
_documented = partial(_option, cls=Documented, of="predict")
_of_scale = partial(click.option, cls=Documented, of="scale")


def _together(options: Sequence[Decorator], command: Callable[..., Any]) -> Callable[..., Any]:
    """Several options at once, in the order in which help lists them."""
    for option in reversed(options):
        command = option(command)
    return command


debug = _option("--debug", is_flag=True, expose_value=False, callback=set_debug, help="Show tracebacks.")


# What is computed.

network = partial(click.argument, "network", type=NETWORK)
image_size = _documented("--image-size", type=WHOLE, metavar="PIXELS")
sequence_length = _documented("--sequence-length", type=WHOLE, metavar="TOKENS")
context = _documented("--context", type=WHOLE, metavar="TOKENS")
inputs = _option(
    "--input", "inputs", multiple=True, type=ModuleInput(), metavar="[NAME=][TYPE:]SHAPE",
    help="Shape of one sample for package.module:factory: 3x224x224, int64:128 or input_ids=int64:1-4096, a span of "
    "sequence lengths; lengths=int64:=100 where forward needs the numbers; once per input; proposals=300 of a "
    "detector's image. It runs that module's code: name only what you would run.",
)  # fmt: skip
rules = _option(
    "--rules", metavar="FILE", type=Rules(), multiple=True, expose_value=False, is_eager=True,
    help="A Python file that calls paleo_lite.rule for operations of your own, and is run.",
)  # fmt: skip
precision = _documented("--precision", type=PRECISIONS, default="fp32")
convention = _documented("--convention", type=Names("convention", ".counting:CONVENTIONS"), default="flops")
execution = _documented("--execution", type=Names("execution", ".counting.fusion:EXECUTIONS"))
weights = _documented("--weights", type=Names("precision of weights", ".units:WEIGHT_BYTES"))
batch_size = _documented("--batch-size", type=WHOLE, default=1)
fit_batch = _documented("--fit-batch", is_flag=True)
phase = _option(
    "--phase", type=PHASES, default="inference",
    help="training is forward + backward + update; forward alone is that of a training step.",
)  # fmt: skip
optimizer = _option(
    "--optimizer",
    type=Names("optimizer", ".timing.workload:OPTIMIZERS"),
    help="Update rule of training. [default: sgd]",
)
training = partial(_together, (
    optimizer(),
    _option("--mixed-precision", is_flag=True, help="Train in fp16 or bf16 with master weights in fp32.")(),
    _option(
        "--checkpointing", type=Names("checkpointing", ".timing.workload:CHECKPOINTING"),
        help="Activations that training computes again: none, those inside about sqrt(n) segments, or inside every "
        "block. [default: none]",
    )(),
    _option("--accumulation", type=WHOLE, metavar="N", help="Micro-batches per update of the weights. [default: 1]")(),
))  # fmt: skip
"""How a network is trained, which a command makes one argument with `trained`."""


def trained(question: dict[str, Any]) -> TrainingOptions | None:
    """How a network is trained, one argument out of four options; None where nothing is said of it."""
    names = ("optimizer", "mixed_precision", "checkpointing", "accumulation")
    said = {name: value for name in names if (value := question.pop(name))}
    if not said:
        return None
    from ..timing.workload import TrainingOptions

    return TrainingOptions(**{"optimizer": "sgd", **said})


# Where it runs.

gpu = _documented("--gpu", required=True, metavar="DEVICE", type=DEVICE)
clock = _documented("--clock", type=Names("clock", ".machines.device:CLOCKS"))
unit = _documented("--unit", type=Names("unit", ".machines.device:UNITS"))
hardware_files = _option(
    "--hardware-file", "hardware_files", multiple=True, type=click.Path(path_type=Path, dir_okay=False),
    help="A TOML with a further device; may be given several times.",
)  # fmt: skip

# How its time is modelled.

time_model = _documented("--time-model", type=MODELS)
ppp = _documented("--ppp", type=SHARE)
concurrent = _documented("--concurrent", is_flag=True)
calibration = _documented("--calibration", metavar="FILE|NAME", type=CALIBRATION)

# Many devices.

workers = _option(
    "--workers", metavar="RANGE",
    help="Devices together: 8, 1,2,4,...,128 or 1:128:x2. [default: all of --topology]",
)  # fmt: skip
price = _option(
    "--price", type=Quantity("USD/h"), metavar="USD/h",
    help="Price of an hour of one device. [default: what the registry has]",
)  # fmt: skip
cluster = partial(_together, (
    _of_scale("--link", metavar="LINK", type=LINK),
    _of_scale("--topology", metavar="TEXT|FILE", type=TOPOLOGY),
    _of_scale("--platform", metavar="NAME|FILE", type=PLATFORM),
    _of_scale("--scaling", type=SCALINGS),
    click.option("--strategy", type=STRATEGIES, default="data", show_default=True, help="How work is divided."),
    click.option("--collective", type=COLLECTIVES, help="How gradients are summed. [default: the fastest]"),
    _of_scale("--advise", is_flag=True),
    click.option(
        "--images", metavar="COUNT", help="Samples of an epoch: 1.28M, or '300B tokens'; gives hours, cost, energy."
    ),
    click.option("--epochs", type=float, metavar="NUMBER", help="Epochs that hours and cost are of. [default: 1]"),
    price(),
))  # fmt: skip
"""How many devices there are, how they are joined, and what they are asked."""


# Profiles.

direction = _option(
    "--direction", type=Names("direction", ".profile_analysis:DIRECTIONS"), default="all", help="Kernels of which pass."
)
decompressed = _option(
    "--decompressed", metavar="SIZE", type=Decompressed("B"), expose_value=False,
    help="What a gzip file may hold, such as 20GB. [default: 64 times its size]",
)  # fmt: skip
name_pattern = _documented("--name-pattern", metavar="REGEX", of="efficiency")

# Processes, tables and files.

jobs = _documented("--jobs", type=WHOLE, metavar="N", of="efficiency")
scheduler = _documented("--scheduler", metavar="ADDRESS", of="efficiency")
top = _option(
    "--top", type=Top(), default="20", metavar="N|all", cls=Printing, help="How many rows of a table to list."
)
output = _option("-o", "--output", type=click.Path(path_type=Path, dir_okay=False), cls=Printing)
force = partial(click.option, "--force", cls=Printing, **FORCE)


# Answers.

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
        click.echo(f"{self.path}: {KINDS[kind].shows}", err=True)


class ChartFile(Value):
    """The file of a chart; refused before anything is computed: other formats, what cannot be written, no libraries."""

    name = "path"
    fields = ("kind",)
    kind: str

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Drawing:
        said = {} if ctx is None else ctx.params
        drawing = Drawing(Path(value), self.kind, said.get("theme", "light"), bool(said.get("force")))
        if ctx is None or not ctx.resilient_parsing:
            check_chart_file(drawing.path, drawing.kind, drawing.force)
        return drawing


class AnswerCommand(click.Command):
    """A command that returns an `Answer`, which is printed in a chosen format, and drawn where a chart is asked for.

    A `Result` is an answer without a chart; a command that returns nothing has said all itself.
    What its own options say, the format and the chart's, its function does not get; ``click.pass_obj`` gives them.

    Parameters
    ----------
    chart : str, optional
        The chart that is drawn; without it the first of the command's own.
    file : sequence of str
        The names of the option for the chart's file.
    is_chart : bool
        Whether the chart is all that is asked for.
    """

    def __init__(
        self, *words: Any, chart: str = "", file: Sequence[str] = ("--plot",), is_chart: bool = False, **settings: Any
    ) -> None:
        super().__init__(*words, **settings)
        chart = chart or next((name for name, kind in KINDS.items() if kind.command == self.name), "")
        named = {param.name for param in self.params}
        self.own: list[click.Option] = []
        if chart:
            what = "The chart" if is_chart else f"A chart beside the answer: {KINDS[chart].shows}"
            self.own += [
                Printing([*file, "chart"], metavar="FILE", type=ChartFile(chart), required=is_chart,
                         help=f"{what}; .png, .svg or .html."),
                Printing(["--theme"], type=Names("theme", ".reporting.charts.render:THEMES"), default="light",
                         show_default=True, is_eager=True, help="Colours of the chart."),  # known when the file is
            ]  # fmt: skip
        if chart and "force" not in named:
            self.own.append(Printing(["--force"], **FORCE))
        if not is_chart:
            self.own.append(Printing(["--format"], type=click.Choice(FORMATS), default="table", show_default=True,
                                     help="How to print."))  # fmt: skip
        self.params += [*self.own, *([] if "debug" in named else [DEBUG])]

    def invoke(self, ctx: click.Context) -> None:
        ctx.obj = {option.name: ctx.params.pop(option.name or "") for option in self.own}
        answer: Answer | Result | None = super().invoke(ctx)
        if answer is None:
            return
        if isinstance(answer, Result):
            answer = Answer(answer.to_dict, answer.document)
        if ctx.obj["format"] == "json":
            import json

            click.echo(json.dumps(answer.to_dict(), indent=2, allow_nan=False))
        elif answer.document is not None:
            from ..reporting.terminal import show_document

            document = answer.document()
            if isinstance(document, str):
                click.echo(document)
            else:
                show_document(document, ctx.obj["format"], sys.stdout)
                sys.stdout.flush()  # what cannot be written is said here, and not as Python ends
        for failure in answer.failures:
            click.echo(f"paleo-lite: {failure}", err=True)
        if (drawing := ctx.obj.get("chart")) is not None:
            drawing.draw(answer)
        if answer.failures or answer.exit_code:
            ctx.exit(answer.exit_code or 1)


command = partial(click.command, cls=AnswerCommand)


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

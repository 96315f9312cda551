"""The options that commands share, each defined once, and what their values may be.

An option is a decorator of a command; one in which commands differ (whether a device must be named, say) is made by a
function of the difference. Names come from the list of the package that has them.
"""

from __future__ import annotations

import functools
import importlib
import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import CompletionItem

from ..errors import BadValue, UnknownName
from ..units import parse_shape
from . import set_debug

if TYPE_CHECKING:
    from ..timing.options import TrainingOptions

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]


class Names(click.Choice):  # type: ignore[type-arg]
    """One of the names in lists of the package: they are read when a name is given or explained, not at the start.

    Parameters
    ----------
    what : str
        What a name is called in a sentence: ``"time model"``.
    places : str
        ``"module:LIST"``, the module relative to the package; or a function that gives the list.
    """

    case_sensitive = True

    def __init__(self, what: str, *places: str) -> None:
        self.what, self.places = what, places

    @functools.cached_property
    def choices(self) -> tuple[str, ...]:  # type: ignore[override]
        """The names, in the order of their lists."""
        found: dict[str, None] = {}
        for place in self.places:
            module, _, name = place.partition(":")
            names = getattr(importlib.import_module(module, "paleo_lite"), name)
            found.update(dict.fromkeys(names() if callable(names) else names))
        return tuple(found)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        text = str(value)
        if param is not None and text == param.default:  # of the lists by construction: a cold start reads none
            return text
        if text not in self.choices:
            raise UnknownName(self.what, text, self.choices)
        return text


class Whole(click.ParamType):  # type: ignore[type-arg]
    """A whole number of 1 or more, and of no more than `most`."""

    name = "number"

    def __init__(self, most: int | None = None) -> None:
        self.most = most

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        text = str(value).strip()
        number = int(text) if text.isascii() and text.isdecimal() and len(text) <= _DIGITS_AT_MOST else 0
        if not 1 <= number <= (self.most or number):
            right = "of 1 or more" if self.most is None else f"from 1 to {self.most:,}"
            raise BadValue(f"{_called(param)} must be a whole number {right}, not {_quoted(text)}")
        return number


class Number(click.ParamType):  # type: ignore[type-arg]
    """A number above 0; or between two bounds, which it may reach."""

    name = "number"

    def __init__(self, least: float | None = None, most: float | None = None, like: str = "") -> None:
        self.least, self.most, self.like = least, most, like

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        try:
            number = float(value)
        except ValueError:
            number = float("nan")
        if self.least is not None and self.most is not None:
            fine, right = self.least <= number <= self.most, f"from {self.least:g} to {self.most:,.0f}"
        else:
            fine, right = 0 < number < float("inf"), "above 0"
        if not fine:
            example = f", such as {self.like}" if self.like else ""
            raise BadValue(f"{_called(param)} must be a number {right}{example}, not {_quoted(str(value))}")
        return number


class _Shape(click.ParamType):  # type: ignore[type-arg]
    """A shape such as 3x224x224."""

    name = "shape"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, ...]:
        return value if isinstance(value, tuple) else parse_shape(value)


class _Top(click.ParamType):  # type: ignore[type-arg]
    """How many rows: a whole number, or None for all."""

    name = "count"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int | None:
        text = str(value)
        if text == "all":
            return None
        if not text.isdecimal():
            raise BadValue(f"{_called(param)} takes a whole number or 'all', not {text!r}")
        return int(text)


_DIGITS_AT_MOST = 4000  # Python refuses to read longer numbers


def _called(param: click.Parameter | None) -> str:
    """How a sentence calls a parameter; outside a command line there is none."""
    if param is None:
        return "it"
    return param.opts[-1] if isinstance(param, click.Option) else param.human_readable_name


def _quoted(text: str) -> str:
    return text if re.fullmatch(r"-?\d[\d.,]{0,20}", text) else repr(text)


WHOLE, SHARE, SHAPE = Whole(), Number(like="0.62"), _Shape()

PRECISIONS = Names("precision", ".units:PRECISION_BYTES")
PHASES = Names("phase", ".counting:PHASES")
PHASES_AND_PASSES = Names("phase", ".counting:PHASES", ".counting:PASSES")
MODELS = Names("time model", ".timing:TIME_MODELS")
STRATEGIES = Names("strategy", ".distributed.strategies:STRATEGIES")
COLLECTIVES = Names("collective", ".distributed.collectives:COLLECTIVES")
SCALINGS = Names("scaling", ".distributed.scale:SCALINGS")
DEVICES = Names("device", ".cli.options:device_ids")


class Printing(click.Option):
    """An option that says how to print an answer, or what else to write: `paleo-lite plot` does without."""


def complete_networks(_: click.Context, __: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Names of shipped networks."""
    from ..networks import network_names

    return [CompletionItem(name) for name in network_names() if name.startswith(incomplete)]


def device_ids() -> list[str]:
    """Ids of the shipped devices, without reading their files."""
    from ..files import shipped

    return sorted(path.stem for path in shipped("hardware").glob("*.toml") if path.stem != "links")


def complete_devices(_: click.Context, __: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Ids of shipped devices."""
    return [CompletionItem(name) for name in device_ids() if name.startswith(incomplete)]


def together(*options: Decorator) -> Decorator:
    """Several options as one decorator, in the order in which help lists them."""

    def add(command: Any) -> Any:
        for option in reversed(options):
            command = option(command)
        return command

    return add


debug = click.option("--debug", is_flag=True, expose_value=False, callback=set_debug, help="Show tracebacks.")


def given(ctx: click.Context) -> list[click.Parameter]:
    """The parameters of a command that were given, not left to their defaults."""
    default = click.core.ParameterSource.DEFAULT
    return [
        param
        for param in ctx.command.params
        if ctx.get_parameter_source(param.name or "") is not default and ctx.params.get(param.name or "") is not None
    ]


# What is computed.


def network_argument(required: bool = True) -> Decorator:
    """The network."""
    return click.argument("network", required=required, shell_complete=complete_networks)


image_size = click.option(
    "--image-size", type=WHOLE, metavar="PIXELS", help="Another image size than the network's own (needs torch once)."
)
network_options = together(
    image_size,
    click.option(
        "--input", "inputs", multiple=True, type=SHAPE, metavar="SHAPE",
        help="Shape of one sample for package.module:factory, such as 3x224x224; once per input. It runs that module's "
        "code: name only what you would run.",
    ),
)  # fmt: skip
precision = click.option(
    "--precision", type=PRECISIONS, default="fp32", show_default=True, help="Precision of the arithmetic."
)
convention = click.option(
    "--convention", type=Names("convention", ".counting:CONVENTIONS"), default="flops", show_default=True,
    help="How FLOPs are counted.",
)  # fmt: skip
execution = click.option(
    "--execution", type=Names("execution", ".counting.fusion:EXECUTIONS"), default="eager", show_default=True,
    help="What is fused at inference: nothing; pointwise chains; also batch norms into convolutions.",
)  # fmt: skip
fit_batch = click.option("--fit-batch", is_flag=True, help="Take the largest batch that fits into the device's memory.")


def batch_size(default: int | None = 1, text: str = "Samples per pass.") -> Decorator:
    """``--batch-size``."""
    return click.option("--batch-size", type=WHOLE, default=default, show_default=default is not None, help=text)


def phase(default: str | None = "inference", text: str = "", names: Names = PHASES) -> Decorator:
    """``--phase``."""
    text = text or "training is forward + backward + update; forward alone is that of a training step."
    return click.option("--phase", type=names, default=default, show_default=default is not None, help=text)


def training_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """How a network is trained: the command gets ``training``, None where nothing is said of it."""

    @functools.wraps(command)
    def gathered(
        *words: Any,
        optimizer: str | None,
        mixed_precision: bool,
        checkpointing: str | None,
        accumulation: int | None,
        **rest: Any,
    ) -> Any:
        training = _training(optimizer, mixed_precision, checkpointing, accumulation)
        return command(*words, training=training, **rest)

    options = together(
        optimizer(),
        click.option("--mixed-precision", is_flag=True, help="Train in fp16 or bf16 with master weights in fp32."),
        click.option(
            "--checkpointing", type=Names("checkpointing", ".timing.options:CHECKPOINTING"),
            help="Activations that training computes again: none, those inside about sqrt(n) segments, or inside every "
            "block. [default: none]",
        ),
        click.option(
            "--accumulation", type=WHOLE, metavar="N", help="Micro-batches per update of the weights. [default: 1]"
        ),
    )  # fmt: skip
    with_options: Callable[..., Any] = options(gathered)
    return with_options


def optimizer(default: str | None = None) -> Decorator:
    """``--optimizer``; without a default the training options have it."""
    return click.option(
        "--optimizer", type=Names("optimizer", ".timing.options:OPTIMIZERS"), default=default,
        show_default=default is not None,
        help="Update rule of training." + ("" if default else " [default: sgd]"),
    )  # fmt: skip


def _training(
    optimizer: str | None, mixed_precision: bool, checkpointing: str | None, accumulation: int | None
) -> TrainingOptions | None:
    if not (optimizer or mixed_precision or checkpointing or accumulation):
        return None
    from ..timing.options import TrainingOptions

    return TrainingOptions(optimizer or "sgd", mixed_precision, checkpointing or "none", accumulation or 1)


# Where it runs.


def gpu(required: bool = True, text: str = "Device, by name or alias, such as k80 or v100-sxm2.") -> Decorator:
    """``--gpu``."""
    return click.option("--gpu", required=required, metavar="DEVICE", shell_complete=complete_devices, help=text)


hardware_files = click.option(
    "--hardware-file",
    "hardware_files",
    multiple=True,
    type=click.Path(path_type=Path, dir_okay=False),
    help="A TOML with a further device; may be given several times.",
)
machine_options = together(
    click.option("--clock", type=click.Choice(("base", "boost")), help="Clock of the device. [default: its own]"),
    click.option("--unit", type=click.Choice(("vector", "tensor")), help="Arithmetic units. [default: the faster]"),
)

# How its time is modelled.

time_model = click.option(
    "--time-model", type=MODELS,
    help="How times are predicted. [default: ppp with --ppp; calibrated, from fits of the device or of others; "
    "roofline where no fit covers it]",
)  # fmt: skip
ppp = click.option(
    "--ppp", type=SHARE, help="Share of peak that the platform reaches, for the model ppp; may exceed 1."
)
calibration = click.option(
    "--calibration", metavar="FILE|NAME", help="A calibration. [default: the shipped one of device and precision]"
)

# Many devices.


def workers(text: str = "Devices together: 8, 1,2,4,...,128 or 1:128:x2. [default: all of --topology]") -> Decorator:
    """``--workers``."""
    return click.option("--workers", metavar="RANGE", help=text)


cluster_options = together(
    click.option("--link", metavar="LINK", help="Between all workers: ethernet20, infiniband-fdr, '25 GB/s'."),
    click.option(
        "--topology", metavar="TEXT|FILE",
        help="'2x k40m @ pcie3, 16 nodes @ infiniband', or a TOML, in place of --link.",
    ),
    click.option(
        "--platform", metavar="NAME|FILE", help="A computer whose scaling was measured: ec2-p2-k80, dgx1-p100."
    ),
    click.option(
        "--scaling", type=SCALINGS, default="weak", show_default=True,
        help="weak: the batch per worker stays; strong: the batch of all together.",
    ),
    click.option("--strategy", type=STRATEGIES, default="data", show_default=True, help="How work is divided."),
    click.option("--collective", type=COLLECTIVES, help="How gradients are summed. [default: the fastest]"),
    click.option("--advise", is_flag=True, help="Try all strategies and collectives on one number of workers."),
    click.option("--images", metavar="COUNT", help="Samples of an epoch, such as 1.28M: gives hours and cost."),
    click.option("--epochs", type=float, metavar="NUMBER", help="Epochs that hours and cost are of. [default: 1]"),
    click.option(
        "--price", metavar="USD/h", help="Price of an hour of one device. [default: what the registry has]"
    ),
)  # fmt: skip

# Profiles.

direction = click.option(
    "--direction", type=Names("direction", ".efficiency:DIRECTIONS"), default="all", show_default=True,
    help="Kernels of which pass.",
)  # fmt: skip
name_pattern = click.option(
    "--name-pattern",
    metavar="REGEX",
    help="How to read a run's settings from file names: named groups, (?P<nodes>\\d+).",
)

# Processes and files.

jobs = click.option("--jobs", type=WHOLE, metavar="N", help="Processes. [default: one per core]")
scheduler = click.option(
    "--scheduler", metavar="ADDRESS", help="A Dask scheduler, tcp://host:8786, whose workers compute."
)


def top(default: str, of: str = "rows of a table") -> Decorator:
    """``--top``."""
    return click.option(
        "--top", type=_Top(), default=default, show_default=True, metavar="N|all", cls=Printing,
        help=f"How many {of} to list.",
    )  # fmt: skip


force = click.option("--force", is_flag=True, cls=Printing, help="Replace the file if it is there.")


def output(text: str, required: bool = False) -> Decorator:
    """``-o FILE``."""
    return click.option(
        "-o", "--output", type=click.Path(path_type=Path, dir_okay=False), required=required, cls=Printing, help=text
    )


def need_pyarrow() -> None:
    """Refuse in one sentence where what reads profiles is absent."""
    from ..extras import need

    need("pyarrow", "reading profiles", "profiles")


def check_new(*paths: Path | None, force: bool) -> None:
    """Refuse before any work what would replace a file unasked.

    Raises
    ------
    BadValue
        If a file is there and not to be replaced.
    """
    for path in paths:
        if path is not None and path.exists() and not force:
            raise BadValue(f"{path} already exists: choose another name, or --force to replace it")

"""The options that commands share, each defined once, and what their values may be.

An option is called where a command takes it, with what is different there: ``@options.gpu(required=False)``. Names come
from the list of the package that has them.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import CompletionItem

from ..errors import BadValue, UnknownName
from ..files import is_there
from ..units import parse_quantity, parse_shape
from . import set_debug

if TYPE_CHECKING:
    pass

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


class Several(click.ParamType):  # type: ignore[type-arg]
    """One value, or several with commas between them: a list then. A file whose name has commas is one value."""

    def __init__(self, one: Any = click.STRING) -> None:
        self.one, self.name = one, one.name

    def get_metavar(self, *where: Any, **named: Any) -> str | None:
        """That of one value."""
        metavar: str | None = self.one.get_metavar(*where, **named)
        return metavar and f"{metavar}[,...]"

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """That of one value."""
        found: list[CompletionItem] = self.one.shell_complete(ctx, param, incomplete)
        return found

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        text = str(value)
        if isinstance(self.one, Whole) and re.search("[,:]", text):
            from ..ranges import parse_range

            parts: list[Any] = list(map(str, parse_range(text, _called(param))))
        else:
            parts = [text] if is_there(text, Path.exists) else [part.strip() for part in text.split(",")]
        found = list(dict.fromkeys(self.one.convert(part, param, ctx) for part in parts))
        return found if len(found) > 1 else found[0]


class Quantity(click.ParamType):  # type: ignore[type-arg]
    """A quantity above 0 in a unit, such as 110k or 25 MiB."""

    name = "quantity"

    def __init__(self, unit: str) -> None:
        self.unit = unit

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        number = parse_quantity(value, self.unit)
        if not 0 < number < float("inf"):
            raise BadValue(f"{_called(param)} must be above 0, not {_quoted(str(value))}")
        return number


def _allow_decompressed(_: click.Context, __: click.Parameter, most: float | None) -> None:
    """Of all processes, also those that read files for this one."""
    if most is not None:
        from ..profiles.raw import allow

        allow(most)


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


class _Input(click.ParamType):  # type: ignore[type-arg]
    """What a module is called with, such as 3x224x224, int64:128 or input_ids=int64:128."""

    name = "input"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        from ..networks.inputs import read_input

        return read_input(value)


WHOLE, SHARE, SHAPE = Whole(), Number(like="0.62"), _Shape()

PRECISIONS = Names("precision", ".units:PRECISION_BYTES")
PHASES = Names("phase", ".counting:PHASES")
PHASES_AND_GENERATING = Names("phase", ".counting:PHASES", ".counting:GENERATING")
PHASES_AND_PASSES = Names("phase", ".counting:PHASES", ".counting:PASSES")
MODELS = Names("time model", ".timing:TIME_MODELS")
STRATEGIES = Names("strategy", ".distributed.strategies:STRATEGIES")
COLLECTIVES = Names("collective", ".distributed.collectives:COLLECTIVES")
SCALINGS = Names("scaling", ".distributed.scale:SCALINGS")
DEVICES = Names("device", ".cli.options:device_ids")


class Printing(click.Option):
    """An option that says how to print an answer, or what else to write: `paleo-lite plot` does without."""


def remember(ctx: click.Context, option: click.Parameter, value: Any) -> Any:
    """Keep a value where what is processed later finds it, whether the command's function takes it or not."""
    ctx.meta[f"paleo_lite.{option.name}"] = value
    return value


FORCE: dict[str, Any] = {
    "is_flag": True, "is_eager": True, "callback": remember, "help": "Replace files that are there.",
}  # fmt: skip
"""Known when the files are."""


def _run_rules(ctx: click.Context, option: click.Parameter, files: tuple[Path, ...]) -> None:
    """Run files that say how operations are counted."""
    import runpy

    from ..errors import BadFile

    for file in () if ctx.resilient_parsing else files:
        try:
            runpy.run_path(str(file))
        except Exception as error:
            raise BadFile(f"{file}: {type(error).__name__}: {error}") from error


def device_ids() -> list[str]:
    """Ids of the shipped devices, without reading their files."""
    from ..files import shipped

    return sorted(path.stem for path in shipped("hardware").glob("*.toml") if path.stem != "links")


def link_names() -> list[str]:
    """Links by name."""
    from ..hardware import read_links

    return list(read_links().link)


_LAST_NAME = re.compile(r"[\w.:/+-]*$")

Complete = Callable[[click.Context, click.Parameter, str], list[CompletionItem]]


def completing(*places: str, files: bool = False) -> Complete:
    """What completes an option from lists of the package, as `Names` finds them; of a list or condition its last name.

    Parameters
    ----------
    *places : str
        ``"module:LIST"``; or a function of the list, which may take what was typed before.
    files : bool
        Whether a file will do, too.
    """

    def complete(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        last = _LAST_NAME.search(incomplete)[0]  # type: ignore[index]  # it may be empty, so that it is found
        before = incomplete.removesuffix(last)
        found: dict[str, None] = {}
        for place in places:
            module, _, name = place.partition(":")
            names = getattr(importlib.import_module(module, "paleo_lite"), name)
            if callable(names):
                names = names(_typed(ctx)) if inspect.signature(names).parameters else names()
            found |= {known: None for known in names if known.startswith(last)}
        items = [CompletionItem(before + name) for name in found]
        return [*items, CompletionItem(incomplete, type="file")] if files else items

    return complete


def _typed(ctx: click.Context) -> dict[str, Any]:
    """What was typed before: click leaves arguments aside where the last option waits for its value."""
    typed, words = dict(ctx.params), list(ctx.args)
    for param in ctx.command.params:
        if isinstance(param, click.Argument) and param.name and not typed.get(param.name) and words:
            typed[param.name] = tuple(words) if param.nargs == -1 else words.pop(0)
    return typed


def layer_names(typed: dict[str, Any]) -> list[str]:
    """Layers of the networks that were typed before."""
    from ..errors import PaleoError
    from ..networks import find_network

    networks = typed.get("networks") or [typed.get("network")]
    try:
        return [
            layer.name for network in networks if isinstance(network, str) for layer in find_network(network).layers
        ]
    except PaleoError:  # not typed to the end, or wrong: there is nothing to offer yet
        return []


def column_names(typed: dict[str, Any]) -> list[str]:
    """Columns of the sweep's file that was typed before."""
    from ..errors import PaleoError
    from ..sweeps.best import columns_of

    try:
        return list(columns_of(Path(typed["file"]))) if typed.get("file") else []
    except PaleoError:
        return []


def configuration_names(typed: dict[str, Any]) -> list[str]:
    """Columns that the names of the profiles tell which were typed before."""
    from ..errors import PaleoError
    from ..profiles.configuration import parse_name

    try:
        paths = [Path(path) for path in typed.get("paths") or ()]
        inside = [file for path in paths for file in (sorted(path.iterdir()) if path.is_dir() else [path])]
        return list(parse_name(inside[0].name, typed.get("name_pattern"))) if inside else []
    except (PaleoError, OSError):
        return []


complete_networks = completing(".networks:network_names", files=True)
complete_devices = completing(".cli.options:device_ids")
complete_links = completing(".cli.options:link_names")
complete_platforms = completing(
    ".distributed.platforms:platform_names", ".distributed.computers:computer_names", files=True
)
complete_calibrations = completing(".calibration.store:shipped_calibrations", files=True)
complete_layers = completing(".cli.options:layer_names")
complete_columns = completing(".cli.options:column_names")
complete_topologies = completing(".cli.options:device_ids", ".cli.options:link_names", files=True)


def together(*options: Decorator) -> Decorator:
    """Several options as one decorator, in the order in which help lists them."""

    def add(command: Any) -> Any:
        for option in reversed(options):
            command = option(command)
        return command

    return add


_option = partial(partial, click.option, show_default=True)

debug = _option("--debug", is_flag=True, expose_value=False, callback=set_debug, help="Show tracebacks.")


def given(ctx: click.Context) -> list[click.Parameter]:
    """The parameters of a command that were given, not left to their defaults."""
    default = click.core.ParameterSource.DEFAULT
    return [
        param
        for param in ctx.command.params
        if ctx.get_parameter_source(param.name or "") is not default and ctx.params.get(param.name or "") is not None
    ]


# What is computed.

network = partial(click.argument, "network", shell_complete=complete_networks)
image_size = _option(
    "--image-size", type=WHOLE, metavar="PIXELS", help="Another image size than the network's own (needs torch once)."
)
sequence_length = _option(
    "--sequence-length", type=WHOLE, metavar="TOKENS",
    help="Tokens of a sequence, of networks that read them. [default: what the model knows, 2048 at most]",
)  # fmt: skip
context = _option("--context", type=WHOLE, metavar="TOKENS", help="For --phase decode: tokens in the cache already.")
inputs = _option(
    "--input", "inputs", multiple=True, type=_Input(), metavar="[NAME=][TYPE:]SHAPE",
    help="Shape of one sample for package.module:factory: 3x224x224, int64:128 or input_ids=int64:1-4096, a span of "
    "sequence lengths; once per input. It runs that module's code: name only what you would run.",
)  # fmt: skip
rules = _option(
    "--rules", metavar="FILE", type=click.Path(path_type=Path, dir_okay=False), multiple=True, expose_value=False,
    callback=_run_rules, is_eager=True,
    help="A Python file that calls paleo_lite.rule for operations of your own, and is run.",
)  # fmt: skip
precision = _option("--precision", type=PRECISIONS, default="fp32", help="Precision of the arithmetic.")
convention = _option(
    "--convention", type=Names("convention", ".counting:CONVENTIONS"), default="flops", help="How FLOPs are counted."
)
execution = _option(
    "--execution", type=Names("execution", ".counting.fusion:EXECUTIONS"),
    help="What is cast or fused: nothing; casts of mixed precision; at inference pointwise chains; also batch norms "
    "into convolutions; as engines do. "
    "[default: engine for prefill and decode, else eager]",
)  # fmt: skip
weights = _option(
    "--weights", type=Names("precision of weights", ".units:WEIGHT_BYTES"),
    help="What matrices are kept in at inference. [default: the precision]",
)  # fmt: skip
batch_size = _option("--batch-size", type=WHOLE, default=1, help="Samples per pass.")
fit_batch = _option("--fit-batch", is_flag=True, help="Take the largest batch that fits into the device's memory.")
phase = _option(
    "--phase", type=PHASES, default="inference",
    help="training is forward + backward + update; forward alone is that of a training step.",
)  # fmt: skip
optimizer = _option(
    "--optimizer", type=Names("optimizer", ".timing.options:OPTIMIZERS"), help="Update rule of training. [default: sgd]"
)
_TRAINING = (
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


def training(command: Callable[..., Any]) -> Callable[..., Any]:
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
        training = None
        if optimizer or mixed_precision or checkpointing or accumulation:
            from ..timing.options import TrainingOptions

            training = TrainingOptions(optimizer or "sgd", mixed_precision, checkpointing or "none", accumulation or 1)
        return command(*words, training=training, **rest)

    return together(*_TRAINING)(gathered)


# Where it runs.

gpu = _option(
    "--gpu", required=True, metavar="DEVICE", shell_complete=complete_devices,
    help="Device, by name or alias, such as k80 or v100-sxm2.",
)  # fmt: skip
clock = _option("--clock", type=click.Choice(("base", "boost")), help="Clock of the device. [default: its own]")
unit = _option("--unit", type=click.Choice(("vector", "tensor")), help="Arithmetic units. [default: the faster]")
hardware_files = _option(
    "--hardware-file", "hardware_files", multiple=True, type=click.Path(path_type=Path, dir_okay=False),
    help="A TOML with a further device; may be given several times.",
)  # fmt: skip

# How its time is modelled.

time_model = _option(
    "--time-model", type=MODELS,
    help="How times are predicted. [default: ppp with --ppp; calibrated, from fits of the device or of others; "
    "roofline where no fit covers it]",
)  # fmt: skip
ppp = _option("--ppp", type=SHARE, help="Share of peak that the platform reaches, for the model ppp; may exceed 1.")
calibration = _option(
    "--calibration",
    metavar="FILE|NAME",
    shell_complete=complete_calibrations,
    help="A calibration. [default: the shipped one of device and precision]",
)

# Many devices.

workers = _option(
    "--workers", metavar="RANGE",
    help="Devices together: 8, 1,2,4,...,128 or 1:128:x2. [default: all of --topology]",
)  # fmt: skip
price = _option(
    "--price", type=Quantity("USD/h"), metavar="USD/h",
    help="Price of an hour of one device. [default: what the registry has]",
)  # fmt: skip
cluster = together(
    click.option(
        "--link", metavar="LINK", shell_complete=complete_links,
        help="Between all workers: ethernet20, infiniband-fdr, '25 GB/s'.",
    ),
    click.option(
        "--topology", metavar="TEXT|FILE", shell_complete=complete_topologies,
        help="'2x k40m @ pcie3, 16 nodes @ infiniband', or a TOML, in place of --link.",
    ),
    click.option(
        "--platform", metavar="NAME|FILE", shell_complete=complete_platforms,
        help="A computer by name: p4d.24xlarge, dgx-h100; or one whose scaling was measured: ec2-p2-k80, dgx1-p100.",
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
    price(),
)  # fmt: skip

# Profiles.

direction = _option(
    "--direction", type=Names("direction", ".efficiency:DIRECTIONS"), default="all", help="Kernels of which pass."
)
decompressed = _option(
    "--decompressed", metavar="SIZE", type=Quantity("B"), expose_value=False, callback=_allow_decompressed,
    help="What a gzip file may hold, such as 20GB. [default: 64 times its size]",
)  # fmt: skip
name_pattern = _option(
    "--name-pattern", metavar="REGEX",
    help="How to read a run's settings from file names: named groups, (?P<nodes>\\d+).",
)  # fmt: skip

# Processes, tables and files.

jobs = _option("--jobs", type=WHOLE, metavar="N", help="Processes. [default: one per core]")
scheduler = _option("--scheduler", metavar="ADDRESS", help="A Dask scheduler, tcp://host:8786, whose workers compute.")
top = _option(
    "--top", type=_Top(), default="20", metavar="N|all", cls=Printing, help="How many rows of a table to list."
)
output = _option("-o", "--output", type=click.Path(path_type=Path, dir_okay=False), cls=Printing)
force = partial(click.option, "--force", cls=Printing, **FORCE)


def need_pyarrow() -> None:
    """Refuse in one sentence where what reads profiles is absent."""
    from ..extras import need

    need("pyarrow", "reading profiles", "profiles")

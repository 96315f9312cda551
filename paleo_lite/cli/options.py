"""The options that commands share, each defined once.

An option is called where a command takes it, with what is different there: ``@options.gpu(required=False)``. Names come
from the list of the package that has them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import click

from . import set_debug
from .completing import (
    complete_calibrations,
    complete_devices,
    complete_links,
    complete_networks,
    complete_platforms,
    complete_topologies,
)
from .documented import Documented
from .values import SHARE, WHOLE, ModuleInput, Names, Quantity, Top

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]


def _allow_decompressed(_: click.Context, __: click.Parameter, most: float | None) -> None:
    """Of all processes, also those that read files for this one."""
    if most is not None:
        from ..profiles.detect import allow

        allow(most)


PRECISIONS = Names("precision", ".units:PRECISION_BYTES")
PHASES = Names("phase", ".counting:PHASES")
PHASES_AND_GENERATING = Names("phase", ".counting:PHASES", ".counting:GENERATING")
PHASES_OF_MANY = Names("phase", ".distributed.scale:PHASES")
PHASES_AND_PASSES = Names("phase", ".counting:PHASES", ".counting:PASSES")
MODELS = Names("time model", ".timing:TIME_MODELS")
STRATEGIES = Names("strategy", ".distributed.strategies:STRATEGIES")
COLLECTIVES = Names("collective", ".distributed.collectives:COLLECTIVES")
SCALINGS = Names("scaling", ".distributed.scale:SCALINGS")
DEVICES = Names("device", ".cli.completing:device_ids")


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


def together(*options: Decorator) -> Decorator:
    """Several options as one decorator, in the order in which help lists them."""
    return lambda command: functools.reduce(lambda decorated, option: option(decorated), reversed(options), command)


_option = partial(partial, click.option, show_default=True)
_documented = partial(_option, cls=Documented, of="predict")
_of_scale = partial(click.option, cls=Documented, of="scale")

debug = _option("--debug", is_flag=True, expose_value=False, callback=set_debug, help="Show tracebacks.")


# What is computed.

network = partial(click.argument, "network", shell_complete=complete_networks)
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
    "--rules", metavar="FILE", type=click.Path(path_type=Path, dir_okay=False), multiple=True, expose_value=False,
    callback=_run_rules, is_eager=True,
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

gpu = _documented("--gpu", required=True, metavar="DEVICE", shell_complete=complete_devices)
clock = _documented("--clock", type=Names("clock", ".hardware.device:CLOCKS"))
unit = _documented("--unit", type=Names("unit", ".hardware.device:UNITS"))
hardware_files = _option(
    "--hardware-file", "hardware_files", multiple=True, type=click.Path(path_type=Path, dir_okay=False),
    help="A TOML with a further device; may be given several times.",
)  # fmt: skip

# How its time is modelled.

time_model = _documented("--time-model", type=MODELS)
ppp = _documented("--ppp", type=SHARE)
concurrent = _documented("--concurrent", is_flag=True)
calibration = _documented("--calibration", metavar="FILE|NAME", shell_complete=complete_calibrations)

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
    _of_scale("--link", metavar="LINK", shell_complete=complete_links),
    _of_scale("--topology", metavar="TEXT|FILE", shell_complete=complete_topologies),
    _of_scale("--platform", metavar="NAME|FILE", shell_complete=complete_platforms),
    _of_scale("--scaling", type=SCALINGS),
    click.option("--strategy", type=STRATEGIES, default="data", show_default=True, help="How work is divided."),
    click.option("--collective", type=COLLECTIVES, help="How gradients are summed. [default: the fastest]"),
    _of_scale("--advise", is_flag=True),
    click.option(
        "--images", metavar="COUNT", help="Samples of an epoch: 1.28M, or '300B tokens'; gives hours, cost, energy."
    ),
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
name_pattern = _documented("--name-pattern", metavar="REGEX", of="efficiency")

# Processes, tables and files.

jobs = _documented("--jobs", type=WHOLE, metavar="N", of="efficiency")
scheduler = _documented("--scheduler", metavar="ADDRESS", of="efficiency")
top = _option(
    "--top", type=Top(), default="20", metavar="N|all", cls=Printing, help="How many rows of a table to list."
)
output = _option("-o", "--output", type=click.Path(path_type=Path, dir_okay=False), cls=Printing)
force = partial(click.option, "--force", cls=Printing, **FORCE)

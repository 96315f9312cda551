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
from .values import SHARE, WHOLE, ModuleInput, Names, Quantity, Top

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]


def _allow_decompressed(_: click.Context, __: click.Parameter, most: float | None) -> None:
    """Of all processes, also those that read files for this one."""
    if most is not None:
        from ..profiles.raw import allow

        allow(most)


PRECISIONS = Names("precision", ".units:PRECISION_BYTES")
PHASES = Names("phase", ".counting:PHASES")
PHASES_AND_GENERATING = Names("phase", ".counting:PHASES", ".counting:GENERATING")
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
precision = _option("--precision", type=PRECISIONS, default="fp32", help="Precision of the arithmetic.")
convention = _option(
    "--convention", type=Names("convention", ".counting:CONVENTIONS"), default="flops", help="How FLOPs are counted."
)
execution = _option(
    "--execution", type=Names("execution", ".counting.fusion:EXECUTIONS"),
    help="What is cast or fused: nothing; casts of mixed precision; attention's softmax and residuals, as Megatron-LM; "
    "at inference pointwise chains; also batch norms into convolutions; as engines do. "
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
clock = _option(
    "--clock", type=Names("clock", ".hardware.device:CLOCKS"), help="Clock of the device. [default: its own]"
)
unit = _option("--unit", type=Names("unit", ".hardware.device:UNITS"), help="Arithmetic units. [default: the faster]")
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
name_pattern = _option(
    "--name-pattern", metavar="REGEX",
    help="How to read a run's settings from file names: named groups, (?P<nodes>\\d+).",
)  # fmt: skip

# Processes, tables and files.

jobs = _option("--jobs", type=WHOLE, metavar="N", help="Processes. [default: one per core]")
scheduler = _option("--scheduler", metavar="ADDRESS", help="A Dask scheduler, tcp://host:8786, whose workers compute.")
top = _option(
    "--top", type=Top(), default="20", metavar="N|all", cls=Printing, help="How many rows of a table to list."
)
output = _option("-o", "--output", type=click.Path(path_type=Path, dir_okay=False), cls=Printing)
force = partial(click.option, "--force", cls=Printing, **FORCE)


def need_pyarrow() -> None:
    """Refuse in one sentence where what reads profiles is absent."""
    from ..extras import need

    need("pyarrow", "reading profiles", "profiles")

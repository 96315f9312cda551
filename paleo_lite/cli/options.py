"""Options that several commands share: of networks, devices, time models, profiles and files.

An option is written once. A command calls it, which returns the decorator that adds it, and may replace settings such
as the default; a sweep asks for the same option with several values.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from ..questions.completion import CALIBRATION, DEVICE, NETWORK, CompletedText
from ..questions.names import Names, PrecisionNames
from ..questions.records import SITE_HELP, SITE_SETTINGS
from ..questions.values import INTEGER, PICTURE_SIZE, PPP, CommaSeparated, ModuleInput, WholeNumber
from . import set_debug
from .values import DecompressedSize, RowCount, RulesFile

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]

PRECISIONS = PrecisionNames("precision", ".units:PRECISION_BYTES")
TRAINING_PRECISIONS = PrecisionNames(
    "precision", ".timing.training_recipes:TRAINING_PRECISIONS", ".formats:FORMATS_OF_PRODUCTS"
)
INFERENCE_PRECISIONS = PrecisionNames("precision", ".units:PRECISION_BYTES", ".formats:FORMATS_OF_PRODUCTS")
PHASES = Names("phase", ".counting:PHASES")
PHASES_AND_GENERATING = Names("phase", ".counting:PHASES", ".counting:GENERATION_PHASES")
PHASES_AND_PASSES = Names("phase", ".counting:PHASES", ".counting:PASSES")
DEVICES = Names("device", ".questions.completion:device_ids")
MODELS = Names("time model", ".timing:TIME_MODELS")


class OutputOption(click.Option):
    """An option for the output of a result, which the Python function and `paleo-lite plot` do not have."""


class SharedOption:
    """An option that several commands have; called, it returns the decorator that adds it to a command.

    The names are those of the option, and of its Python parameter if that differs; the settings are those of
    `click.option`, and a command may replace them.
    """

    def __init__(self, *names: str, **settings: Any) -> None:
        self.names = names
        self.settings = settings

    def __call__(self, **changes: Any) -> Decorator:
        """Return the decorator that adds the option."""
        return click.option(*self.names, **{**self.settings, **changes})

    def several(self, parameter: str, **changes: Any) -> Decorator:
        """Return the decorator that adds the option with several values, separated by commas.

        The parameter is the name of the one in Python; the changes are settings of `click.option` that differ.
        """
        settings = {"metavar": "NAME", **self.settings, **changes}
        settings["metavar"] += "[,...]"
        single = settings.get("type")
        if isinstance(single, Names):  # not checked here, where `all` is no name
            settings["type"] = CompletedText(*single.sources)
        elif isinstance(single, WholeNumber):
            settings["type"] = CommaSeparated(single)
        return click.option(self.names[0], parameter, **settings)

    def option(self) -> click.Option:
        """Return the option itself."""
        settings = dict(self.settings)
        option_class: type[click.Option] = settings.pop("cls", click.Option)
        return option_class(list(self.names), **settings)


def combine(*decorators: Decorator) -> Decorator:
    """Return the decorator that adds several options, in this order."""

    def add_options(function: Callable[..., Any]) -> Callable[..., Any]:
        for decorator in reversed(decorators):
            function = decorator(function)
        return function

    return add_options


debug = SharedOption("--debug", is_flag=True, expose_value=False, callback=set_debug, help="Show tracebacks.")

# The network.


def network(required: bool = True, type: Any = NETWORK) -> Decorator:
    """Add the argument NETWORK."""
    return click.argument("network", required=required, type=type)


image_size = SharedOption(
    "--image-size",
    type=INTEGER,
    metavar="PIXELS",
    help="Image size, if it differs from the network's own; needs torch once.",
)
picture_size = SharedOption(
    "--image-size",
    type=PICTURE_SIZE,
    metavar="PIXELS",
    help="Image size, if it differs from the network's own; needs torch once. Of a pipeline also width x height, "
    "as in 1024x768.",
)
sequence_length = SharedOption(
    "--sequence-length",
    type=INTEGER,
    metavar="TOKENS",
    help="Tokens per sequence of a language model; in prefill the length of the prompt. [default: the maximum of "
    "the model, but at most 2048]",
)
context = SharedOption(
    "--context", type=INTEGER, metavar="TOKENS", help="Tokens in the KV cache, for the phase decode."
)
inputs = SharedOption(
    "--input",
    "inputs",
    multiple=True,
    type=ModuleInput(),
    metavar="[NAME=][TYPE:]SHAPE",
    help="Shape of one sample for package.module:factory, such as 3x224x224, int64:128 or input_ids=int64:1-4096 "
    "(a range of sequence lengths); lengths=int64:=100 where forward needs the values; proposals=300 for the "
    "images of a detector; one option per input. The module's code is executed: use only code that you trust.",
)
rules = SharedOption(
    "--rules",
    metavar="FILE",
    type=RulesFile(),
    multiple=True,
    expose_value=False,
    is_eager=True,
    help="A Python file that registers counting rules with paleo_lite.rule; it is executed.",
)
precision = SharedOption(
    "--precision", type=PRECISIONS, default="fp32", show_default=True, help="Precision of the arithmetic."
)
convention = SharedOption(
    "--convention",
    type=Names("convention", ".counting:CONVENTIONS"),
    default="flops",
    show_default=True,
    help="Convention of the FLOP count.",
)
execution = SharedOption(
    "--execution",
    type=Names("execution", ".counting.fusion:EXECUTIONS", ".engines.records:KERNEL_ENGINES"),
    help="Kernel fusion and casts: eager (none); autocast (casts for mixed precision); channels-last (images as "
    "NHWC); megatron (fused softmax and residuals, as Megatron-LM); compiled (fused pointwise chains); at inference "
    "folded (also batch norms folded into convolutions) and engine (fused as by an inference engine); in prefill and "
    "decode vllm, sglang and tensorrt-llm (the kernels of the engine). [default: eager; in prefill and decode vllm "
    "where its kernels are known, otherwise engine]",
)
weights = SharedOption(
    "--weights",
    type=Names("format of weights", ".formats:FORMATS"),
    metavar="FORMAT",
    help="Format in which matrices are stored at inference, such as fp8, int4 or nvfp4, or frozen ones in training: "
    "--weights int4 with --lora is QLoRA. [default: the precision]",
)
batch_size = SharedOption("--batch-size", type=INTEGER, default=1, show_default=True, help="Samples per pass.")
phase = SharedOption(
    "--phase",
    type=PHASES,
    default="inference",
    show_default=True,
    help="training is forward, backward and update; forward is the forward pass of a training step.",
)

# The device.

gpu = SharedOption(
    "--gpu",
    required=True,
    metavar="DEVICE",
    type=DEVICE,
    help="Device, by name or alias, such as k80 or v100-sxm2.",
)
gpus = SharedOption("--gpu", "gpus", multiple=True, metavar="DEVICE", type=CommaSeparated(DEVICE))
clock = SharedOption(
    "--clock",
    metavar="base|boost|FREQUENCY",
    help="Clock of the device, or a locked clock such as 1.2GHz. [default: the one in its data file]",
)
power_limit = SharedOption(
    "--power-limit",
    metavar="WATTS",
    help="Power limit of the device, such as 300W; a lower one slows it. [default: the one in its data file]",
)
unit = SharedOption(
    "--unit", type=Names("unit", ".machines.device:UNITS"), help="Arithmetic units. [default: the faster ones]"
)
hardware_files = SharedOption(
    "--hardware-file",
    "hardware_files",
    multiple=True,
    type=click.Path(path_type=Path, dir_okay=False),
    help="TOML file of a further device; may be given several times.",
)

# The time model.


def time_model(exceptions: str = "ppp with --ppp, otherwise ") -> Decorator:
    """Add ``--time-model``; `exceptions` are the cases in which the default is not the calibrated model."""
    return click.option(
        "--time-model",
        type=MODELS,
        help=f"Time model. [default: {exceptions}calibrated, with fits for this device or for others; roofline if no "
        "fit covers the device]",
    )


ppp = SharedOption(
    "--ppp", type=PPP, help="Platform percent of peak as a fraction, for the time model ppp; may exceed 1."
)
calibration = SharedOption(
    "--calibration",
    metavar="FILE|NAME",
    type=CALIBRATION,
    help="File or name of a calibration. [default: the shipped calibrations under PyTorch]",
)

# Profiles.

direction = SharedOption(
    "--direction",
    type=Names("direction", ".profile_analysis:DIRECTIONS"),
    default="all",
    show_default=True,
    help="Pass of the kernels.",
)
decompressed = SharedOption(
    "--decompressed",
    metavar="SIZE",
    type=DecompressedSize("B"),
    expose_value=False,
    help="Maximum decompressed size of a gzip file, such as 20GB. [default: 64 times its size]",
)
capture_traces = SharedOption(
    "--capture-trace",
    "capture_traces",
    multiple=True,
    metavar="PATH",
    type=click.Path(path_type=Path, exists=True),
    help="Trace of the capture of the CUDA or HIP graphs that the profiles replay, or a folder of such traces: "
    "kernels of the graphs get their operations and shapes.",
)
name_pattern = SharedOption(
    "--name-pattern",
    metavar="REGEX",
    help="Regular expression with named groups that reads the settings of a run from its file name: (?P<nodes>[0-9]+).",
)

# The place.

site = SharedOption("--site", type=SITE_SETTINGS, metavar="KEY=VALUE,...", help=SITE_HELP)

# Processes, tables and files.

jobs = SharedOption("--jobs", type=INTEGER, metavar="N", help="Number of processes. [default: one per core]")
scheduler = SharedOption(
    "--scheduler",
    metavar="ADDRESS",
    help="Dask scheduler, tcp://host:8786, on whose workers the computation runs.",
)
top = SharedOption(
    "--top",
    type=RowCount(),
    default="20",
    show_default=True,
    metavar="N|all",
    cls=OutputOption,
    help="Number of rows of a table to list.",
)
output = SharedOption("-o", "--output", type=click.Path(path_type=Path, dir_okay=False), cls=OutputOption)
# Parsed before the file names that it applies to.
force = SharedOption("--force", is_flag=True, is_eager=True, cls=OutputOption, help="Replace existing files.")

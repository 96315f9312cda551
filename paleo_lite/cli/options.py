"""Options that several commands share, and the output of results: formats, charts and progress bars.

Each option is a function that returns a decorator. Its parameters are the settings that differ between commands.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
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
    INTEGER,
    LINK,
    NETWORK,
    PICTURE_SIZE,
    PLATFORM,
    PPP,
    TOPOLOGY,
    CompletedText,
    DecompressedSize,
    ModuleInput,
    Names,
    Quantity,
    RowCount,
    RulesFile,
)

if TYPE_CHECKING:
    from ..timing.workload import TrainingOptions

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]

PRECISIONS = Names("precision", ".units:PRECISION_BYTES")
TRAINING_PRECISIONS = Names("precision", ".timing.training_recipes:TRAINING_PRECISIONS")
PHASES = Names("phase", ".counting:PHASES")
PHASES_AND_GENERATING = Names("phase", ".counting:PHASES", ".counting:GENERATION_PHASES")
PHASES_OF_SCALE = Names("phase", ".distributed.scale:PHASES", ".distributed.pictures:PHASES")
PHASES_AND_PASSES = Names("phase", ".counting:PHASES", ".counting:PASSES")
MODELS = Names("time model", ".timing:TIME_MODELS")
STRATEGIES = Names("strategy", ".distributed.strategies:STRATEGIES")
COLLECTIVES = Names("collective", ".distributed.collectives:COLLECTIVES")
SCALINGS = Names("scaling", ".distributed.scale:SCALINGS")
DEVICES = Names("device", ".cli.values:device_ids")


class OutputOption(click.Option):
    """An option for the output of a result, which the Python function and `paleo-lite plot` do not have."""


def debug() -> Decorator:
    """Add ``--debug``."""
    return click.option("--debug", is_flag=True, expose_value=False, callback=set_debug, help="Show tracebacks.")


# The network.


def network(required: bool = True, type: Any = NETWORK) -> Decorator:
    """Add the argument NETWORK."""
    return click.argument("network", required=required, type=type)


def image_size() -> Decorator:
    """Add ``--image-size``."""
    return click.option(
        "--image-size",
        type=INTEGER,
        metavar="PIXELS",
        help="Image size, if it differs from the network's own; needs torch once.",
    )


def picture_size() -> Decorator:
    """Add ``--image-size`` for networks and pipelines."""
    return click.option(
        "--image-size",
        type=PICTURE_SIZE,
        metavar="PIXELS",
        help="Image size, if it differs from the network's own; needs torch once. Of a pipeline also width x height, "
        "as in 1024x768.",
    )


def pipeline(images: bool = True) -> Decorator:
    """Add the options of pipelines for pictures and videos.

    Parameters
    ----------
    images : bool
        Whether to add ``--images``.
    """
    decorators = [
        click.option("--steps", type=INTEGER, metavar="N", help="Denoising steps of a pipeline. [default: its own]"),
        click.option(
            "--guidance",
            type=click.FLOAT,
            metavar="SCALE",
            help="Scale of classifier-free guidance, none at 1 and below. [default: the pipeline's]",
        ),
        click.option("--frames", type=INTEGER, metavar="N", help="Frames of each video. [default: the pipeline's]"),
        click.option(
            "--ulysses",
            type=INTEGER,
            metavar="N",
            help="Devices that split the sequence of a pipeline's denoiser, exchanging tokens for heads. [default: 1]",
        ),
        click.option(
            "--ring",
            type=INTEGER,
            metavar="N",
            help="Groups of devices that split the sequence of a pipeline's denoiser around a ring. [default: 1]",
        ),
        click.option(
            "--guidance-parallel",
            is_flag=True,
            help="Compute the two predictions of a pipeline's guidance on two groups of devices.",
        ),
        click.option(
            "--tiled", is_flag=True, help="Decode a pipeline's pictures in tiles that overlap, in less memory."
        ),
        click.option(
            "--step-caching",
            type=click.FLOAT,
            metavar="FACTOR",
            help="Steps per step that a pipeline's denoiser computes, with caching of its results. [default: 1]",
        ),
    ]

    if images:
        decorators.append(
            click.option("--images", type=INTEGER, metavar="N", help="Pictures or videos in one batch. [default: 1]")
        )

    def add_options(function: Callable[..., Any]) -> Callable[..., Any]:
        for decorator in reversed(decorators):
            function = decorator(function)
        return function

    return add_options


def sequence_length() -> Decorator:
    """Add ``--sequence-length``."""
    return click.option(
        "--sequence-length",
        type=INTEGER,
        metavar="TOKENS",
        help="Tokens per sequence of a language model; in prefill the length of the prompt. [default: the maximum of "
        "the model, but at most 2048]",
    )


def context() -> Decorator:
    """Add ``--context``."""
    return click.option(
        "--context", type=INTEGER, metavar="TOKENS", help="Tokens in the KV cache, for the phase decode."
    )


def inputs() -> Decorator:
    """Add ``--input``."""
    return click.option(
        "--input",
        "inputs",
        multiple=True,
        type=ModuleInput(),
        metavar="[NAME=][TYPE:]SHAPE",
        help="Shape of one sample for package.module:factory, such as 3x224x224, int64:128 or input_ids=int64:1-4096 "
        "(a range of sequence lengths); lengths=int64:=100 where forward needs the values; proposals=300 for the "
        "images of a detector; one option per input. The module's code is executed: use only code that you trust.",
    )


def rules() -> Decorator:
    """Add ``--rules``."""
    return click.option(
        "--rules",
        metavar="FILE",
        type=RulesFile(),
        multiple=True,
        expose_value=False,
        is_eager=True,
        help="A Python file that registers counting rules with paleo_lite.rule; it is executed.",
    )


def precision(type: Any = PRECISIONS) -> Decorator:
    """Add ``--precision``."""
    return click.option(
        "--precision", type=type, default="fp32", show_default=True, help="Precision of the arithmetic."
    )


def convention() -> Decorator:
    """Add ``--convention``."""
    return click.option(
        "--convention",
        type=Names("convention", ".counting:CONVENTIONS"),
        default="flops",
        show_default=True,
        help="Convention of the FLOP count.",
    )


def execution(
    default: str | None = None,
    help: str = "Kernel fusion and casts: eager (none); autocast (casts for mixed precision); channels-last (images as "
    "NHWC); megatron (fused softmax and residuals, as Megatron-LM); compiled (fused pointwise chains); at inference "
    "folded (also batch norms folded into convolutions) and engine (an inference engine). [default: engine for prefill "
    "and decode, otherwise eager]",
    sources: tuple[str, ...] = (".counting.fusion:EXECUTIONS",),
) -> Decorator:
    """Add ``--execution``."""
    return click.option(
        "--execution",
        type=Names("execution", *sources),
        default=default,
        show_default=True,
        help=help,
    )


def attention() -> Decorator:
    """Add ``--attention``."""
    return click.option(
        "--attention",
        type=Names("attention", ".timing.attention:ATTENTION_NAMES"),
        help="Implementation of attention: eager (writes the scores to memory), sdpa (PyTorch's choice), flash2, "
        "flash3 (Hopper), cudnn (Hopper, Blackwell). [default: that of the config; flash2 up to Hopper, then cudnn]",
    )


def weights() -> Decorator:
    """Add ``--weights``."""
    return click.option(
        "--weights",
        type=Names("format of weights", ".formats:FORMATS"),
        help="Format in which matrices are stored at inference, or frozen ones in training: --weights int4 with --lora "
        "is QLoRA. [default: the precision]",
    )


def batch_size(default: int | None = 1, type: Any = INTEGER, help: str = "Samples per pass.") -> Decorator:
    """Add ``--batch-size``."""
    return click.option("--batch-size", type=type, default=default, show_default=True, help=help)


def fit_batch() -> Decorator:
    """Add ``--fit-batch``."""
    return click.option(
        "--fit-batch", is_flag=True, help="Use the largest batch size that fits into the device memory."
    )


def phase(
    type: Any = PHASES,
    default: str | None = "inference",
    help: str = "training is forward, backward and update; forward is the forward pass of a training step.",
) -> Decorator:
    """Add ``--phase``."""
    return click.option("--phase", type=type, default=default, show_default=True, help=help)


# Training.


def optimizer(
    default: str | None = None, help: str = "Optimizer of training. [default: sgd; with --lora adamw]"
) -> Decorator:
    """Add ``--optimizer``."""
    return click.option(
        "--optimizer",
        type=Names("optimizer", ".timing.optimizers:OPTIMIZERS"),
        default=default,
        show_default=True,
        help=help,
    )


def mixed_precision() -> Decorator:
    """Add ``--mixed-precision``."""
    return click.option("--mixed-precision", is_flag=True, help="Train in fp16 or bf16 with master weights in fp32.")


def checkpointing() -> Decorator:
    """Add ``--checkpointing``."""
    return click.option(
        "--checkpointing",
        type=Names("checkpointing", ".timing.workload:CHECKPOINTING"),
        help="Activation recomputation: none, in about sqrt(n) segments, in each block (block), or between all "
        "possible cuts (all). [default: none]",
    )


def accumulation() -> Decorator:
    """Add ``--accumulation``."""
    return click.option(
        "--accumulation",
        type=INTEGER,
        metavar="N",
        help="Gradient accumulation: micro-batches per update of the weights. [default: 1]",
    )


def fine_tuning() -> Decorator:
    """Add the options of fine-tuning, of the precision of gradients, and of offloading."""
    decorators = [
        click.option(
            "--lora", type=INTEGER, metavar="RANK", help="Train LoRA adapters of this rank; all else is frozen."
        ),
        click.option(
            "--lora-modules",
            metavar="NAMES",
            help="Layers with adapters, such as q_proj,v_proj. [default: all linear layers except the output head]",
        ),
        click.option(
            "--freeze",
            metavar="PATTERNS",
            help="Layers that are not trained, by name or pattern: 'model.embed_tokens,model.layers.[0-9].*'.",
        ),
        click.option(
            "--train-only", metavar="PATTERNS", help="The only layers that are trained; last is the last one."
        ),
        click.option(
            "--fused-loss", is_flag=True, help="Cross entropy in one kernel (flash-attn, Liger) instead of in fp32."
        ),
        click.option(
            "--loss-chunks",
            type=INTEGER,
            metavar="N",
            help="Compute head and loss for one n-th of the tokens at a time. [default: 1]",
        ),
        click.option("--fp32-gradients", is_flag=True, help="Keep gradients in fp32 in mixed precision."),
        click.option(
            "--offload",
            type=Names("offload", ".timing.workload:OFFLOADS", ".timing.pipelines:PIPELINE_OFFLOADS"),
            help="Keep gradients and optimizer state in the memory of the host (cpu) or on NVMe drives (nvme), and "
            "update there. Of a pipeline: keep the parameters of each part (model) or layer (sequential) in the memory "
            "of the host until it runs. [default: none]",
        ),
    ]

    def add_options(function: Callable[..., Any]) -> Callable[..., Any]:
        for decorator in reversed(decorators):
            function = decorator(function)
        return function

    return add_options


def make_training_options(
    optimizer: str | None,
    mixed_precision: bool,
    checkpointing: str | None,
    accumulation: int | None,
    *,
    lora: int | None = None,
    lora_modules: str | None = None,
    freeze: str | None = None,
    train_only: str | None = None,
    fused_loss: bool = False,
    loss_chunks: int | None = None,
    fp32_gradients: bool = False,
    offload: str | None = None,
) -> TrainingOptions | None:
    """Return the training options, or None if no option of training is given."""
    values = (optimizer, checkpointing, accumulation, lora, lora_modules, freeze, train_only, offload, loss_chunks)
    has_value = any(value is not None for value in values)
    if not (has_value or mixed_precision or fused_loss or fp32_gradients):
        return None
    from ..timing.workload import TrainingOptions

    if lora is not None and lora < 1:
        raise BadValue(f"`--lora` must be an integer >= 1 (got {lora})")
    return TrainingOptions(
        optimizer=optimizer or ("adamw" if lora else "sgd"),
        mixed_precision=mixed_precision,
        checkpointing=checkpointing or "none",
        accumulation=1 if accumulation is None else accumulation,
        fused_loss=fused_loss,
        loss_chunks=1 if loss_chunks is None else loss_chunks,
        fp32_gradients=fp32_gradients,
        lora_rank=lora or 0,
        lora_modules=_split_names(lora_modules),
        freeze=_split_names(freeze),
        train_only=_split_names(train_only),
        offload=offload or "none",
    )


def _split_names(text: str | None) -> tuple[str, ...]:
    """Return the names in a comma-separated text."""
    return tuple(name.strip() for name in (text or "").split(",") if name.strip())


# The device.


def gpu(
    required: bool = True,
    type: Any = DEVICE,
    help: str = "Device, by name or alias, such as k80 or v100-sxm2.",
) -> Decorator:
    """Add ``--gpu``."""
    return click.option("--gpu", required=required, metavar="DEVICE", type=type, help=help)


def clock() -> Decorator:
    """Add ``--clock``."""
    return click.option(
        "--clock",
        metavar="base|boost|FREQUENCY",
        help="Clock of the device, or a locked clock such as 1.2GHz. [default: the one in its data file]",
    )


def power_limit() -> Decorator:
    """Add ``--power-limit``."""
    return click.option(
        "--power-limit",
        metavar="WATTS",
        help="Power limit of the device, such as 300W; a lower one slows it. [default: the one in its data file]",
    )


def unit() -> Decorator:
    """Add ``--unit``."""
    return click.option(
        "--unit", type=Names("unit", ".machines.device:UNITS"), help="Arithmetic units. [default: the faster ones]"
    )


def hardware_files() -> Decorator:
    """Add ``--hardware-file``."""
    return click.option(
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


def ppp() -> Decorator:
    """Add ``--ppp``."""
    return click.option(
        "--ppp", type=PPP, help="Platform percent of peak as a fraction, for the time model ppp; may exceed 1."
    )


def concurrent(
    help: str = "With --ppp: take the larger of arithmetic and memory time instead of their sum.",
) -> Decorator:
    """Add ``--concurrent``."""
    return click.option("--concurrent", is_flag=True, help=help)


def calibration() -> Decorator:
    """Add ``--calibration``."""
    return click.option(
        "--calibration",
        metavar="FILE|NAME",
        type=CALIBRATION,
        help="File or name of a calibration. [default: the shipped calibrations under PyTorch]",
    )


# Many devices.


def workers(help: str = "Number of devices: 8, 1,2,4,...,128 or 1:128:x2. [default: all of --topology]") -> Decorator:
    """Add ``--workers``."""
    return click.option("--workers", metavar="RANGE", help=help)


def link() -> Decorator:
    """Add ``--link``."""
    return click.option(
        "--link",
        metavar="LINK",
        type=LINK,
        help="Link between all workers: ethernet20, infiniband-fdr, '25 GB/s'. By default that of the computer into "
        "which the device is usually built.",
    )


def topology() -> Decorator:
    """Add ``--topology``."""
    return click.option(
        "--topology",
        metavar="TEXT|FILE",
        type=TOPOLOGY,
        help="Hierarchical topology instead of --link: '2x k40m @ pcie3, 16 nodes @ infiniband', or a TOML file.",
    )


def platform() -> Decorator:
    """Add ``--platform``."""
    return click.option(
        "--platform",
        metavar="NAME|FILE",
        type=PLATFORM,
        help="Computer instead of --link or --topology: by name, p4d.24xlarge or dgx-h100, or one with measured "
        "scaling, ec2-p2-k80 or dgx1-p100.",
    )


def scaling() -> Decorator:
    """Add ``--scaling``."""
    return click.option(
        "--scaling",
        type=SCALINGS,
        help="weak keeps the batch size per worker, strong the global batch size. [default: weak for training, strong "
        "for prefill and decode]",
    )


def strategy() -> Decorator:
    """Add ``--strategy``."""
    return click.option(
        "--strategy",
        type=STRATEGIES,
        default="data",
        show_default=True,
        help="Parallelism; 3d combines tensor, pipeline and data parallelism.",
    )


def collective() -> Decorator:
    """Add ``--collective``."""
    return click.option(
        "--collective", type=COLLECTIVES, help="All-reduce algorithm of gradients. [default: the fastest]"
    )


def advise() -> Decorator:
    """Add ``--advise``."""
    return click.option("--advise", is_flag=True, help="Rank all strategies and collectives for one number of workers.")


def images() -> Decorator:
    """Add ``--images``."""
    return click.option(
        "--images",
        metavar="COUNT",
        help="Samples per epoch, 1.28M or '300B tokens', to predict hours, cost and energy.",
    )


def amount_of_tokens() -> Decorator:
    """Add the options that state an amount of training in samples or tokens of a language model."""
    decorators = [
        click.option(
            "--samples",
            type=Quantity(""),
            metavar="COUNT",
            help="Samples per epoch, 52k, to predict hours, cost and energy.",
        ),
        click.option(
            "--tokens",
            metavar="COUNT",
            help="Tokens per epoch, 15B, to predict hours, cost and energy.",
        ),
        click.option(
            "--packing",
            is_flag=True,
            help="Several samples of --samples share a sequence. [default: each is padded to a sequence]",
        ),
        click.option("--mean-length", type=float, metavar="TOKENS", help="Mean tokens per sample, with --packing."),
    ]

    def add_options(function: Callable[..., Any]) -> Callable[..., Any]:
        for decorator in reversed(decorators):
            function = decorator(function)
        return function

    return add_options


def epochs() -> Decorator:
    """Add ``--epochs``."""
    return click.option("--epochs", type=float, metavar="NUMBER", help="Epochs for hours and cost. [default: 1]")


def price() -> Decorator:
    """Add ``--price``."""
    return click.option(
        "--price",
        type=Quantity("USD/h"),
        metavar="USD/h",
        help="Price per hour of one device. [default: its rental price on record]",
    )


def price_of() -> Decorator:
    """Add ``--price-of``."""
    return click.option(
        "--price-of",
        metavar="CLOUD",
        type=CompletedText(".machines.prices:cloud_names"),
        help="Use the price that this cloud asks for the device, such as AWS or Lambda, or the cheapest one.",
    )


def facility() -> Decorator:
    """Add ``--electricity``, ``--carbon-intensity``, ``--pue`` and ``--host-watts``."""
    decorators = [
        click.option("--electricity", type=Quantity("USD/kWh"), metavar="USD/kWh", help="Price of electricity."),
        click.option(
            "--carbon-intensity", type=Quantity("g/kWh"), metavar="g/kWh", help="Grams of CO2 per kWh of electricity."
        ),
        click.option(
            "--pue", type=float, metavar="RATIO", help="Energy at the meter over that of the machines. [default: 1]"
        ),
        click.option(
            "--host-watts",
            type=Quantity("W"),
            metavar="WATTS",
            help="Power of hosts, fans and power supplies, per device. [default: 0 W]",
        ),
    ]

    def add_options(function: Callable[..., Any]) -> Callable[..., Any]:
        for decorator in reversed(decorators):
            function = decorator(function)
        return function

    return add_options


# Profiles.


def direction() -> Decorator:
    """Add ``--direction``."""
    return click.option(
        "--direction",
        type=Names("direction", ".profile_analysis:DIRECTIONS"),
        default="all",
        show_default=True,
        help="Pass of the kernels.",
    )


def decompressed() -> Decorator:
    """Add ``--decompressed``."""
    return click.option(
        "--decompressed",
        metavar="SIZE",
        type=DecompressedSize("B"),
        expose_value=False,
        help="Maximum decompressed size of a gzip file, such as 20GB. [default: 64 times its size]",
    )


def capture_traces() -> Decorator:
    """Add ``--capture-trace``."""
    return click.option(
        "--capture-trace",
        "capture_traces",
        multiple=True,
        metavar="PATH",
        type=click.Path(path_type=Path, exists=True),
        help="Trace of the capture of the CUDA or HIP graphs that the profiles replay, or a folder of such traces: "
        "kernels of the graphs get their operations and shapes.",
    )


def name_pattern() -> Decorator:
    """Add ``--name-pattern``."""
    return click.option(
        "--name-pattern",
        metavar="REGEX",
        help="Regular expression with named groups that reads the settings of a run from its file name: "
        "(?P<nodes>[0-9]+).",
    )


# Processes, tables and files.


def jobs() -> Decorator:
    """Add ``--jobs``."""
    return click.option("--jobs", type=INTEGER, metavar="N", help="Number of processes. [default: one per core]")


def scheduler() -> Decorator:
    """Add ``--scheduler``."""
    return click.option(
        "--scheduler",
        metavar="ADDRESS",
        help="Dask scheduler, tcp://host:8786, on whose workers the computation runs.",
    )


def top(default: str = "20", help: str = "Number of rows of a table to list.") -> Decorator:
    """Add ``--top``."""
    return click.option(
        "--top", type=RowCount(), default=default, show_default=True, metavar="N|all", cls=OutputOption, help=help
    )


def output(help: str, required: bool = False) -> Decorator:
    """Add ``--output``."""
    return click.option(
        "-o",
        "--output",
        type=click.Path(path_type=Path, dir_okay=False),
        required=required,
        cls=OutputOption,
        help=help,
    )


def force() -> Decorator:
    """Add ``--force``, which is parsed before the file names that it applies to."""
    return click.option("--force", is_flag=True, is_eager=True, cls=OutputOption, help="Replace existing files.")


# Results.

FORMATS = ("table", "json", "csv", "markdown")


class Answer(NamedTuple):
    """The result of a command.

    Attributes
    ----------
    to_dict : callable
        Returns the documented JSON.
    document : callable, optional
        Returns the `Document`, or the text, to print; without it only JSON is printed.
    drawn : callable, optional
        Returns the result that the chart draws; without it there is no chart.
    failures : sequence of str
        Messages about failed parts of the computation; the exit code is then 1.
    exit_code : int
    chart : str
        Kind of chart, if it is not the default of the command.
    """

    to_dict: Callable[[], Any] = dict
    document: Callable[[], Any] | None = None
    drawn: Callable[[], Any] | None = None
    failures: Sequence[str] = ()
    exit_code: int = 0
    chart: str = ""


class ChartOutput(NamedTuple):
    """File and settings of a chart."""

    path: Path
    kind: str
    theme: str
    force: bool

    def draw(self, answer: Answer) -> None:
        """Write the chart of a result.

        Raises
        ------
        BadValue
            If the result has nothing to draw.
        """
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
    """A command that returns an `Answer` or a `Result`, which is printed in the chosen format and drawn as a chart.

    A command that returns None has printed its output itself. The values of the output options that this class adds
    (format, chart, theme, force) are not passed to the function; it gets them with ``click.pass_obj``, as a dict.

    Parameters
    ----------
    chart : str, optional
        Kind of chart; by default the first one for this command.
    chart_option : sequence of str
        Names of the option for the file of the chart.
    is_chart_required : bool
        Whether the chart is the only output.
    """

    def __init__(
        self,
        *arguments: Any,
        chart: str = "",
        chart_option: Sequence[str] = ("--plot",),
        is_chart_required: bool = False,
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
                self.output_options.append(_force_option())
        if not is_chart_required:
            self.output_options.append(_format_option())
        self.params += self.output_options
        if "debug" not in existing_names:
            self.params.append(DEBUG)

    def invoke(self, ctx: click.Context) -> None:
        """Call the function, print its result and draw the chart."""
        ctx.obj = {option.name: ctx.params.pop(option.name or "") for option in self.output_options}
        answer: Answer | Result | None = super().invoke(ctx)
        if answer is None:
            return
        if isinstance(answer, Result):
            answer = Answer(answer.to_dict, answer.document)
        _print_answer(answer, ctx.obj["format"])
        for failure in answer.failures:
            click.echo(f"paleo-lite: {failure}", err=True)
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


def _force_option() -> click.Option:
    """Return ``--force``, which is parsed before the file of the chart."""
    return OutputOption(["--force"], is_flag=True, is_eager=True, help="Replace existing files.")


def _format_option() -> click.Option:
    return OutputOption(
        ["--format"], type=click.Choice(FORMATS), default="table", show_default=True, help="Output format."
    )


def _print_answer(answer: Answer, output_format: str) -> None:
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


def command() -> Callable[[Callable[..., Any]], AnswerCommand]:
    """Return the decorator of a command that prints its result."""
    return click.command(cls=AnswerCommand)


@contextmanager
def progress(label: str) -> Iterator[Callable[[int, int], None]]:
    """Show a progress bar on standard error, if this is a terminal.

    Yields
    ------
    callable
        Function to call with the number of completed and of all items.
    """
    if not sys.stderr.isatty():
        yield lambda completed, total: None
        return
    with click.progressbar(length=1, label=label, show_pos=True, file=sys.stderr) as bar:

        def update(completed: int, total: int) -> None:
            bar.length = total
            bar.update(completed - bar.pos)

        yield update

"""``paleo-lite predict``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from ..api import predict as run_prediction
from ..counting import CONVENTIONS, PHASES
from ..errors import BadValue
from ..report.predictions import explain_layer, prediction_page
from ..timing import TIME_MODELS
from ..units import PRECISION_BYTES
from .common import (
    SHARE,
    WHOLE,
    complete_devices,
    complete_networks,
    hardware_files,
    network_options,
    output_options,
    parse_inputs,
    show,
)
from .plot_options import Drawing, plot_options

if TYPE_CHECKING:
    from ..timing.options import TrainingOptions

# As in `paleo_lite.timing.options`, which is imported only when one of them is asked for.
OPTIMIZER_NAMES = ("sgd", "momentum", "adam")
CHECKPOINTING = ("none", "sqrt", "all")


@click.command()
@click.argument("network", required=False, shell_complete=complete_networks)
@click.option(
    "--gpu", required=True, metavar="DEVICE", shell_complete=complete_devices, help="The device, such as k80."
)
@click.option(
    "--precision", type=click.Choice(list(PRECISION_BYTES)), default="fp32", show_default=True, help="Of the numbers."
)
@click.option("--batch-size", type=WHOLE, default=1, show_default=True, help="Samples per pass.")
@click.option(
    "--phase", type=click.Choice(list(PHASES)), default="inference", show_default=True,
    help="training is forward + backward + update; forward alone is that of a training step.",
)  # fmt: skip
@click.option(
    "--time-model",
    type=click.Choice(list(TIME_MODELS)),
    help="Default: ppp with --ppp; calibrated, or pooled from other devices; roofline where no fit covers it.",
)
@click.option("--ppp", type=SHARE, help="Share of peak that the platform reaches, for the ppp model; may exceed 1.")
@click.option("--overlap", is_flag=True, help="For the ppp model: arithmetic and memory traffic overlap.")
@click.option(
    "--convention",
    type=click.Choice(list(CONVENTIONS)),
    default="flops",
    show_default=True,
    help="How FLOPs are counted.",
)
@click.option("--clock", type=click.Choice(["base", "boost"]), help="Default: the device's own.")
@click.option("--unit", type=click.Choice(["vector", "tensor"]), help="Default: the faster one.")
@click.option("--flops", metavar="COUNT", help="A FLOP count for one sample, such as 15503M, in place of a network.")
@click.option(
    "--calibration", metavar="FILE|NAME", help="A calibration; default: the shipped one of device and precision."
)
@click.option(
    "--execution",
    type=click.Choice(["eager", "compiled", "folded"]),
    default="eager",
    show_default=True,
    help="What is fused at inference: nothing; pointwise chains; also batch norms into convolutions.",
)
@click.option("--optimizer", type=click.Choice(OPTIMIZER_NAMES), help="For training; default: sgd.")
@click.option("--mixed-precision", is_flag=True, help="For training in fp16 or bf16: master weights in fp32.")
@click.option(
    "--checkpointing",
    type=click.Choice(CHECKPOINTING),
    help="For training: activations of about sqrt(n) segments, or of every block, are computed again.",
)
@click.option("--accumulation", type=WHOLE, metavar="N", help="For training: micro-batches per update.")
@click.option("--fit-batch", is_flag=True, help="Take the largest batch that fits into the device's memory.")
@click.option("--memory", is_flag=True, help="Show the peak memory by part.")
@network_options
@hardware_files
@click.option("--explain", metavar="LAYER", help="Show the arithmetic of one layer.")
@click.option("--top", default="10", show_default=True, metavar="N|all", help="How many of the slowest layers to list.")
@plot_options("roofline")
@output_options
def predict(
    network: str | None,
    gpu: str,
    precision: str,
    batch_size: int,
    phase: str,
    time_model: str | None,
    ppp: float | None,
    overlap: bool,
    convention: str,
    clock: str | None,
    unit: str | None,
    flops: str | None,
    image_size: int | None,
    inputs: tuple[str, ...],
    hardware_files: tuple[Path, ...],
    calibration: str | None,
    execution: str,
    optimizer: str | None,
    mixed_precision: bool,
    checkpointing: str | None,
    accumulation: int | None,
    fit_batch: bool,
    memory: bool,
    explain: str | None,
    top: str,
    plot: Drawing | None,
    style: str,
) -> None:
    """Predict how long NETWORK takes on a device.

    NETWORK is a shipped network (`paleo-lite networks list`), a descriptor file, or package.module:factory with
    --input, which is imported and called.

    \b
      paleo-lite predict vgg16 --gpu k80 --precision fp64
      paleo-lite predict resnet50 --gpu v100-sxm2 --precision fp16 --batch-size 64 --phase training
      paleo-lite predict resnet50 --gpu t4 --phase training --fit-batch --optimizer adam --checkpointing sqrt
      paleo-lite predict vgg16 --gpu k40m --ppp 0.62
      paleo-lite predict --flops 15503M --gpu k80
    """
    prediction = run_prediction(
        network,
        gpu=gpu,
        precision=precision,
        batch_size=batch_size,
        phase=phase,
        time_model=time_model,
        ppp=ppp,
        overlap=overlap,
        convention=convention,
        clock=clock,
        unit=unit,
        image_size=image_size,
        inputs=parse_inputs(inputs),
        flops=flops,
        hardware_files=hardware_files,
        calibration=calibration,
        execution=execution,
        training=_training(optimizer, mixed_precision, checkpointing, accumulation),
        fit_batch=fit_batch,
        memory=memory or (style == "json" and flops is None),
    )
    listed = None if top == "all" else _number(top)
    if explain is not None and style != "json":
        page = explain_layer(prediction, explain)
        show(style, prediction.to_dict, lambda: page)
    else:
        show(style, prediction.to_dict, lambda: prediction_page(prediction, listed, memory))
    if plot is not None:
        plot.draw(prediction)


def _training(
    optimizer: str | None, mixed_precision: bool, checkpointing: str | None, accumulation: int | None
) -> TrainingOptions | None:
    """The training options, if any was given."""
    if optimizer is None and not mixed_precision and checkpointing is None and accumulation is None:
        return None
    from ..timing.options import TrainingOptions

    return TrainingOptions(optimizer or "sgd", mixed_precision, checkpointing or "none", accumulation or 1)


def _number(top: str) -> int:
    if not top.isdecimal():
        raise BadValue(f"--top takes a whole number or 'all', not {top!r}")
    return int(top)

"""``paleo-lite scale``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from ..errors import BadValue
from ..paleo import REVISIONS
from ..timing import TIME_MODELS
from ..units import PRECISION_BYTES, parse_quantity
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
    from ..distributed.table import ScaleTable

STRATEGIES = (
    "data", "zero-1", "zero-2", "zero-3", "hybrid", "tensor", "pipeline-gpipe", "pipeline-1f1b", "model-lower",
    "model-upper",
)  # fmt: skip
COLLECTIVES = ("one-to-all", "tree", "butterfly", "butterfly-mixing", "ring", "double-tree", "hierarchical")


@click.command()
@click.argument("network", shell_complete=complete_networks)
@click.option("--gpu", metavar="DEVICE", shell_complete=complete_devices, help="The device; a topology may name it.")
@click.option(
    "--workers", metavar="RANGE", help="Devices together: 8, 1,2,4,...,128 or 1:128:x2; default: all of --topology."
)
@click.option("--link", metavar="LINK", help="Between all workers: ethernet20, infiniband-fdr, '25 GB/s'.")
@click.option(
    "--topology", metavar="TEXT|FILE", help="'2x k40m @ pcie3, 16 nodes @ infiniband', or a TOML, in place of --link."
)
@click.option("--platform", metavar="NAME|FILE", help="A computer whose scaling was measured: ec2-p2-k80, dgx1-p100.")
@click.option(
    "--scaling", type=click.Choice(["weak", "strong"]), default="weak", show_default=True,
    help="weak: the batch per worker stays; strong: the batch of all together.",
)  # fmt: skip
@click.option(
    "--batch-size", type=WHOLE, help="Per worker (weak; default 32), of all workers (strong; default 32 each)."
)
@click.option("--strategy", type=click.Choice(STRATEGIES), default="data", show_default=True, help="Who does what.")
@click.option("--collective", type=click.Choice(COLLECTIVES), help="How gradients are summed; default: the fastest.")
@click.option("--advise", is_flag=True, help="Try all strategies and collectives on one number of workers.")
@click.option(
    "--precision", type=click.Choice(list(PRECISION_BYTES)), default="fp32", show_default=True, help="Of the numbers."
)
@click.option(
    "--gradient-precision",
    type=click.Choice(["fp32", "fp16", "bf16"]),
    help="Precision in which gradients are exchanged.",
)
@click.option("--bucket-size", metavar="SIZE", help="Gradients exchanged at once. [default: 25 MiB, first 1 MiB]")
@click.option("--no-overlap", is_flag=True, help="Exchange gradients after the backward pass, not beside it.")
@click.option("--micro-batches", type=WHOLE, help="Of a pipeline; default: at least 4 per stage.")
@click.option(
    "--slowdown", type=float, metavar="SHARE", help="By what share computing takes longer once several devices work."
)
@click.option(
    "--interference", type=float, metavar="SHARE", help="By what share of hidden exchanges computing takes longer."
)
@click.option("--optimizer", type=click.Choice(["sgd", "momentum", "adam"]), default="sgd", show_default=True)
@click.option("--mixed-precision", is_flag=True, help="fp16 or bf16 with fp32 master weights.")
@click.option(
    "--checkpointing", type=click.Choice(["none", "sqrt", "all"]), default="none", show_default=True,
    help="Which activations are computed again.",
)  # fmt: skip
@click.option("--accumulation", type=WHOLE, default=1, show_default=True, help="Passes before one update.")
@click.option("--time-model", type=click.Choice(list(TIME_MODELS)), help="As for predict.")
@click.option("--ppp", type=SHARE, help="Share of a device's peak that is reached, for the ppp model.")
@click.option("--ppp-comm", type=SHARE, help="Share of the links' bandwidth that is reached.")
@click.option("--calibration", metavar="FILE|NAME", help="A calibration; default: as for predict.")
@click.option("--clock", type=click.Choice(["base", "boost"]), help="Default: the device's own.")
@click.option("--unit", type=click.Choice(["vector", "tensor"]), help="Default: the faster one.")
@click.option("--images", metavar="COUNT", help="Samples of an epoch, such as 1.28M: gives hours and cost.")
@click.option("--epochs", type=float, metavar="NUMBER", help="Default: 1.")
@click.option("--price", metavar="USD/h", help="Of one device; default: what the registry has.")
@click.option("--cost", is_flag=True, help="Insist on a cost: an error where no price is known.")
@click.option("--compat", type=click.Choice(["paleo"]), help="Compute as the released PALEO does, defects and all.")
@click.option("--revision", type=click.Choice(REVISIONS), default=REVISIONS[0], show_default=True, help="Of PALEO.")
@network_options
@hardware_files
@plot_options("scaling")
@output_options
def scale(plot: Drawing | None, style: str, compat: str | None, revision: str, **asked: Any) -> None:
    """Predict how NETWORK trains on many devices: time by part, speed-up, hours, cost, and what limits it.

    \b
      paleo-lite scale resnet50 --gpu k80-die --link ethernet20 --workers 1,2,4,...,128
      paleo-lite scale vgg16 --gpu p100-sxm2 --link nvlink1-x4 --workers 8 --batch-size 64 --advise
      paleo-lite scale resnet50 --topology "2x k40m @ pcie3, 16 nodes @ infiniband-fdr" --workers 2,4,8,...,32
      paleo-lite scale vgg16 --gpu v100-sxm2 --link nvlink2-x6 --workers 8 --images 1.28M --epochs 74 --price 3.06
    """
    from ..report.scale import scale_page

    table = _paleo(revision, asked) if compat else _own(asked)
    show(style, table.to_dict, lambda: scale_page(table))
    if plot is not None:
        plot.draw(table)


def _own(asked: dict[str, Any]) -> ScaleTable:
    from ..api import scale as run
    from ..distributed.job import Settings
    from ..distributed.overlap import BUCKET_BYTES
    from ..timing.options import TrainingOptions

    bucket = asked.pop("bucket_size")
    settings = Settings(
        collective=asked.pop("collective"),
        gradient_precision=asked.pop("gradient_precision"),
        overlap=not asked.pop("no_overlap"),
        bucket_bytes=BUCKET_BYTES if bucket is None else parse_quantity(bucket, "B"),
        micro_batches=asked.pop("micro_batches"),
        slowdown=asked.pop("slowdown") or 0.0,
        interference=asked.pop("interference") or 0.0,
    )
    names = ("optimizer", "mixed_precision", "checkpointing", "accumulation")
    options = TrainingOptions(**{name: asked.pop(name) for name in names})
    asked["inputs"] = parse_inputs(asked["inputs"])
    return run(asked.pop("network"), settings=settings, options=options, **asked)


_PALEO_KNOWS = frozenset(
    ("network", "gpu", "workers", "link", "scaling", "batch_size", "strategy", "collective", "ppp", "ppp_comm",
     "images", "epochs", "price", "cost")
)  # fmt: skip


def _paleo(revision: str, asked: dict[str, Any]) -> ScaleTable:
    """What the released PALEO says, in the same table."""
    from ..distributed.run import Request
    from ..paleo.scale import paleo_table

    context = click.get_current_context()
    for option in context.command.params:
        name = option.name or ""
        given = context.get_parameter_source(name) is not click.core.ParameterSource.DEFAULT
        if name in asked and name not in _PALEO_KNOWS and given:
            raise BadValue(f"PALEO has no {option.opts[0]}: leave it out, or leave out --compat paleo")
    names = ("workers", "link", "batch_size", "scaling", "strategy", "ppp_comm", "images", "epochs", "price")
    request = Request(cost_asked=asked["cost"], **{name: asked[name] for name in names})
    collective, ppp = asked["collective"] or "tree", asked["ppp"] or 1.0
    return paleo_table(request, asked["network"], asked["gpu"], collective=collective, ppp=ppp, revision=revision)

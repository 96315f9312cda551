"""``paleo-lite sweep``."""

from __future__ import annotations

from functools import partial
from typing import Any

import click

from ..api.sweeps import sweep as run_sweep
from ..distributed.collectives import COLLECTIVES
from ..result import Result
from ..sweeps.space import AUTOMATIC, ROWS_UNASKED
from ..timing import TIME_MODELS
from . import options
from .options import command, progress
from .values import DEVICE, LINK, NETWORK, Offered, Quantity

_names = partial(click.option, metavar="NAMES", show_default=True)


@command()
@_names("--networks", required=True, type=NETWORK, help="Networks, with commas, or all.")
@_names("--gpus", required=True, type=DEVICE, metavar="DEVICES", help="Devices, with commas, or all.")
@_names("--precisions", type=Offered(".units:PRECISION_BYTES"), default="fp32", help="Precisions, with commas, or all.")
@_names(
    "--phases", type=Offered(".counting:PHASES .counting:GENERATING"), default="inference",
    help="Phases, with commas, or all.",
)  # fmt: skip
@click.option(
    "--batch-sizes", default="1", show_default=True, metavar="RANGE",
    help="1,2,4 or 1:1024:x2 (doubling) or 8:64:+8; of all workers together, or per worker for weak scaling.",
)  # fmt: skip
@click.option(
    "--sequence-lengths", default="", metavar="RANGE",
    help="Tokens of a sequence; in decode those in the cache. [default: as many as each network says]",
)  # fmt: skip
@_names(
    "--time-models", type=Offered(".timing:TIME_MODELS"), default=AUTOMATIC,
    help=f"{AUTOMATIC} (what predict takes), {', '.join(TIME_MODELS)}.",
)  # fmt: skip
@options.ppp()
@click.option(
    "--workers", default="1", show_default=True, metavar="RANGE", help="Devices together; a range as --batch-sizes."
)
@_names(
    "--strategies", type=Offered(".distributed.strategies:STRATEGIES"), default="data",
    help="How work is divided, as for `paleo-lite scale`.",
)  # fmt: skip
@_names(
    "--scalings", type=Offered(".distributed.scale:SCALINGS"), default="strong",
    help="strong, weak, or strong,weak for both.",
)  # fmt: skip
@_names(
    "--links", type=LINK, default="", show_default=False,
    help="Between workers: names of links, or rates: '25 GB/s'.",
)  # fmt: skip
@_names(
    "--collectives", type=Offered(".distributed.collectives:COLLECTIVES"), default="", show_default=False,
    help=f"How gradients are summed: {', '.join(COLLECTIVES)}. [default: the fastest]",
)  # fmt: skip
@options.optimizer(default="sgd", help="Update rule of training.")
@click.option(
    "--samples", type=Quantity(""), default="1M", show_default=True, metavar="COUNT",
    help="Samples that hours, cost and energy are for.",
)  # fmt: skip
@options.price()
@click.option(
    "--power", type=Quantity("W"), metavar="WATTS", help="Power of one device, in place of its limit on record."
)
@options.hardware_files()
@options.output(help=".parquet or .csv.", required=True)
@options.force()
@click.option("--yes", is_flag=True, help=f"Run also what has more than {ROWS_UNASKED:,} combinations.")
@click.option("--dry-run", is_flag=True, help="Say how many combinations there are, and stop.")
@options.jobs()
@options.scheduler()
def sweep(**question: Any) -> Result:
    """Predict every combination of networks, devices, batch sizes, ... into a file.

    \b
      paleo-lite sweep --networks resnet50,vgg16 --gpus all --batch-sizes 1:1024:x2 -o sweep.parquet
      paleo-lite sweep --networks all --gpus k80-die,v100-sxm2 --precisions fp32,fp16 --phases training \\
        --batch-sizes 32:512:x2 --workers 1,2,4,8 --links pcie3-x16,'100 Gbit/s' -o training.parquet
      paleo-lite best sweep.parquet --minimise cost --where "hours < 1"

    What is infeasible is kept with its reason. What is interrupted goes on from where it was: give the same command.
    """
    with progress("sweep, in chunks") as on_done:
        return run_sweep(on_done=on_done, **question)

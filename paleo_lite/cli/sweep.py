"""``paleo-lite sweep``."""

from __future__ import annotations

from typing import Any

import click

from ..api.sweeps import sweep as run_sweep
from ..distributed.collectives import COLLECTIVES
from ..sweeps.space import AUTOMATIC, ROWS_UNASKED
from ..timing import TIME_MODELS
from . import options
from .command import Answer, command, progress
from .completing import complete_devices, complete_links, complete_networks, completing
from .values import Quantity


@command()
@click.option(
    "--networks",
    required=True,
    shell_complete=complete_networks,
    metavar="NAMES",
    help="Networks, with commas, or all.",
)
@click.option(
    "--gpus",
    required=True,
    shell_complete=complete_devices,
    metavar="DEVICES",
    help="Devices, with commas, or all.",
)
@click.option(
    "--precisions",
    shell_complete=completing(".units:PRECISION_BYTES"),
    default="fp32",
    show_default=True,
    metavar="NAMES",
    help="Precisions, with commas, or all.",
)
@click.option(
    "--phases",
    shell_complete=completing(".counting:PHASES", ".counting:GENERATING"),
    default="inference",
    show_default=True,
    metavar="NAMES",
    help="Phases, with commas, or all.",
)
@click.option(
    "--batch-sizes", default="1", show_default=True, metavar="RANGE",
    help="1,2,4 or 1:1024:x2 (doubling) or 8:64:+8; of all workers together, or per worker for weak scaling.",
)  # fmt: skip
@click.option(
    "--sequence-lengths", default="", metavar="RANGE",
    help="Tokens of a sequence; in decode those in the cache. [default: as many as each network says]",
)  # fmt: skip
@click.option(
    "--time-models", shell_complete=completing(".timing:TIME_MODELS"), default=AUTOMATIC, show_default=True,
    metavar="NAMES",
    help=f"{AUTOMATIC} (what predict takes), {', '.join(TIME_MODELS)}.",
)  # fmt: skip
@options.ppp()
@click.option(
    "--workers", default="1", show_default=True, metavar="RANGE", help="Devices together; a range as --batch-sizes."
)
@click.option(
    "--strategies",
    shell_complete=completing(".distributed.strategies:STRATEGIES"),
    default="data",
    show_default=True,
    metavar="NAMES",
    help="How work is divided, as for `paleo-lite scale`.",
)
@click.option(
    "--scalings",
    shell_complete=completing(".distributed.scale:SCALINGS"),
    default="strong",
    show_default=True,
    metavar="NAMES",
    help="strong, weak, or strong,weak for both.",
)
@click.option(
    "--links",
    shell_complete=complete_links,
    default="",
    metavar="NAMES",
    help="Between workers: names of links, or rates: '25 GB/s'.",
)
@click.option(
    "--collectives",
    shell_complete=completing(".distributed.collectives:COLLECTIVES"),
    default="",
    metavar="NAMES",
    help=f"How gradients are summed: {', '.join(COLLECTIVES)}. [default: the fastest]",
)
@options.optimizer(default="sgd", help="Update rule of training.")
@click.option(
    "--samples",
    type=Quantity(""),
    default="1M",
    show_default=True,
    metavar="COUNT",
    help="Samples that hours, cost and energy are for.",
)
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
def sweep(**question: Any) -> Answer:
    """Predict every combination of networks, devices, batch sizes, ... into a file.

    \b
      paleo-lite sweep --networks resnet50,vgg16 --gpus all --batch-sizes 1:1024:x2 -o sweep.parquet
      paleo-lite sweep --networks all --gpus k80-die,v100-sxm2 --precisions fp32,fp16 --phases training \\
        --batch-sizes 32:512:x2 --workers 1,2,4,8 --links pcie3-x16,'100 Gbit/s' -o training.parquet
      paleo-lite best sweep.parquet --minimise cost --where "hours < 1"

    What is infeasible is kept with its reason. What is interrupted goes on from where it was: give the same command.
    """
    with progress("sweep, in chunks") as on_done:
        found = run_sweep(on_done=on_done, **question)
    return Answer(found.to_dict, found.document)

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


def _names(option: str, what: str, *lists: str, default: str | None = "", **settings: Any) -> options.Decorator:
    """Names with commas, completed from lists of the package; without a default (None) they are required."""
    settings |= {"required": True} if default is None else {"default": default, "show_default": bool(default)}
    settings |= {"shell_complete": completing(*lists)} if lists else {}
    return click.option(option, **{"metavar": "NAMES", "help": what, **settings})


@command()
@_names("--networks", "Networks, with commas, or all.", default=None, shell_complete=complete_networks)
@_names(
    "--gpus", "Devices, with commas, or all.", default=None, metavar="DEVICES",
    shell_complete=complete_devices,
)  # fmt: skip
@_names("--precisions", "Precisions, with commas, or all.", ".units:PRECISION_BYTES", default="fp32")
@_names("--phases", "Phases, with commas, or all.", ".counting:PHASES", ".counting:GENERATING", default="inference")
@click.option(
    "--batch-sizes", default="1", show_default=True, metavar="RANGE",
    help="1,2,4 or 1:1024:x2 (doubling) or 8:64:+8; of all workers together, or per worker for weak scaling.",
)  # fmt: skip
@click.option(
    "--sequence-lengths", default="", metavar="RANGE",
    help="Tokens of a sequence; in decode those in the cache. [default: as many as each network says]",
)  # fmt: skip
@_names(
    "--time-models", f"{AUTOMATIC} (what predict takes), {', '.join(TIME_MODELS)}.", ".timing:TIME_MODELS",
    default=AUTOMATIC,
)  # fmt: skip
@options.ppp()
@click.option(
    "--workers", default="1", show_default=True, metavar="RANGE", help="Devices together; a range as --batch-sizes."
)
@_names(
    "--strategies", "How work is divided, as for `paleo-lite scale`.", ".distributed.strategies:STRATEGIES",
    default="data",
)  # fmt: skip
@_names("--scalings", "strong, weak, or strong,weak for both.", ".distributed.scale:SCALINGS", default="strong")
@_names("--links", "Between workers: names of links, or rates: '25 GB/s'.", shell_complete=complete_links)
@_names(
    "--collectives", f"How gradients are summed: {', '.join(COLLECTIVES)}. [default: the fastest]",
    ".distributed.collectives:COLLECTIVES",
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
        answer = run_sweep(on_done=on_done, **question)
    return Answer(answer.to_dict, answer.document)

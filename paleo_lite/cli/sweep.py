"""``paleo-lite sweep``."""

from __future__ import annotations

import time
from pathlib import Path

import click

from ..calibration.choose import default_model
from ..counting import PHASES
from ..distributed.collectives import COLLECTIVES
from ..errors import BadValue
from ..hardware import list_devices
from ..networks import network_names
from ..report.sweep import size_lines, sweep_page
from ..sweeps.run import Sweep, run_sweep
from ..sweeps.space import AUTOMATIC, ROWS_UNASKED, Space, parse_names, parse_numbers
from ..timing import TIME_MODELS
from ..units import PRECISION_BYTES
from . import options
from .command import Answer, command, progress
from .options import Quantity


@command()
@click.option("--networks", required=True, metavar="NAMES", help="Networks, with commas, or all.")
@click.option("--gpus", required=True, metavar="DEVICES", help="Devices, with commas, or all.")
@click.option(
    "--precisions", default="fp32", show_default=True, metavar="NAMES", help="Precisions, with commas, or all."
)
@click.option("--phases", default="inference", show_default=True, metavar="NAMES", help="Phases, with commas, or all.")
@click.option(
    "--batch-sizes", default="1", show_default=True, metavar="RANGE",
    help="1,2,4 or 1:1024:x2 (doubling) or 8:64:+8; of all workers together, or per worker for weak scaling.",
)  # fmt: skip
@click.option(
    "--time-models", default=AUTOMATIC, show_default=True, metavar="NAMES",
    help=f"{AUTOMATIC} (what predict takes), {', '.join(TIME_MODELS)}.",
)  # fmt: skip
@options.ppp()
@click.option(
    "--workers", default="1", show_default=True, metavar="RANGE", help="Devices together; a range as --batch-sizes."
)
@click.option(
    "--strategies",
    default="data",
    show_default=True,
    metavar="NAMES",
    help="How work is divided, as for `paleo-lite scale`.",
)
@click.option(
    "--scalings", default="strong", show_default=True, metavar="NAMES", help="strong, weak, or strong,weak for both."
)
@click.option("--links", default="", metavar="NAMES", help="Between workers: names of links, or rates: '25 GB/s'.")
@click.option(
    "--collectives",
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
def sweep(
    networks: str,
    gpus: str,
    precisions: str,
    phases: str,
    batch_sizes: str,
    time_models: str,
    ppp: float | None,
    workers: str,
    strategies: str,
    scalings: str,
    links: str,
    collectives: str,
    optimizer: str,
    samples: float,
    price: float | None,
    power: float | None,
    hardware_files: tuple[Path, ...],
    output: Path,
    force: bool,
    yes: bool,
    dry_run: bool,
    jobs: int | None,
    scheduler: str | None,
) -> Answer:
    """Predict every combination of networks, devices, batch sizes, ... into a file.

    \b
      paleo-lite sweep --networks resnet50,vgg16 --gpus all --batch-sizes 1:1024:x2 -o sweep.parquet
      paleo-lite sweep --networks all --gpus k80-die,v100-sxm2 --precisions fp32,fp16 --phases training \\
        --batch-sizes 32:512:x2 --workers 1,2,4,8 --links pcie3-x16,'100 Gbit/s' -o training.parquet
      paleo-lite best sweep.parquet --minimise cost --where "hours < 1"

    What is infeasible is kept with its reason. What is interrupted goes on from where it was: give the same command.
    """
    if links and parse_numbers(workers, "workers") == (1,):
        raise BadValue("--links join several workers: give --workers, such as --workers 1,2,4,8")
    space = Space(
        networks=parse_names(networks, "networks", network_names()),
        gpus=parse_names(gpus, "GPUs", [device.id for device in list_devices(hardware_files)]),
        precisions=parse_names(precisions, "precisions", list(PRECISION_BYTES)),
        phases=parse_names(phases, "phases", list(PHASES)),
        batch_sizes=parse_numbers(batch_sizes, "batch sizes"),
        time_models=parse_names(time_models, "time models"),
        workers=parse_numbers(workers, "workers"),
        strategies=parse_names(strategies, "strategies"),
        scalings=parse_names(scalings, "scalings"),
        links=parse_names(links, "links") if links else ("",),
        collectives=parse_names(collectives, "collectives", list(COLLECTIVES)) if collectives else ("",),
        ppp=ppp,
        optimizer=optimizer,
        samples=samples,
        price_usd_per_h=price,
        power_w=power,
        hardware_files=tuple(str(path.absolute()) for path in hardware_files),
    ).resolved()
    space.check()
    if dry_run:
        return Answer(lambda: {"rows": space.size, "chunks": space.chunk_count}, lambda: size_lines(space))
    if space.size > ROWS_UNASKED and not yes:
        raise BadValue(
            f"the sweep has {space.size:,} combinations ({space.describe()}), which take about {space.hours():,.3g} "
            f"core hours and {space.gigabytes():,.3g} GB: narrow it, or say --yes"
        )
    started = time.perf_counter()
    with progress("sweep, in chunks") as on_done:
        done = run_sweep(
            space, output, default_model, jobs=jobs, scheduler=scheduler, force=force, progress=on_done
        )  # fmt: skip
    seconds = time.perf_counter() - started
    return Answer(lambda: to_dict(done, seconds), lambda: sweep_page(done, space, seconds))


def to_dict(done: Sweep, seconds: float) -> dict[str, object]:
    """The documented JSON."""
    return {
        "output": str(done.path),
        "rows": done.rows,
        "feasible": done.feasible,
        "chunks": done.chunks,
        "resumed": done.resumed,
        "seconds": seconds,
    }

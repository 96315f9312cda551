"""Options of many devices, and of their cost and energy."""

from __future__ import annotations

import click

from ..questions.values import LINK, PLATFORM, TOPOLOGY, CompletedText, Names, Quantity
from .options import Decorator, SharedOption, combine

PHASES = Names("phase", ".distributed.scale:PHASES", ".distributed.pictures:PHASES")
STRATEGIES = Names("strategy", ".distributed.strategies:STRATEGIES")
COLLECTIVES = Names("collective", ".distributed.collectives:COLLECTIVES")
SCALINGS = Names("scaling", ".distributed.scale:SCALINGS")

workers = SharedOption(
    "--workers",
    metavar="RANGE",
    help="Number of devices: 8, 1,2,4,...,128 or 1:128:x2. [default: all of --topology]",
)
link = SharedOption(
    "--link",
    metavar="LINK",
    type=LINK,
    help="Link between all workers: ethernet20, infiniband-fdr, '25 GB/s'. By default that of the computer into which "
    "the device is usually built.",
)
topology = SharedOption(
    "--topology",
    metavar="TEXT|FILE",
    type=TOPOLOGY,
    help="Hierarchical topology instead of --link: '2x k40m @ pcie3, 16 nodes @ infiniband', or a TOML file.",
)
platform = SharedOption(
    "--platform",
    metavar="NAME|FILE",
    type=PLATFORM,
    help="Computer instead of --link or --topology: by name, p4d.24xlarge or dgx-h100, or one with measured "
    "scaling, ec2-p2-k80 or dgx1-p100.",
)
scaling = SharedOption(
    "--scaling",
    type=SCALINGS,
    help="weak keeps the batch size per worker, strong the global batch size. [default: weak for training, strong "
    "for prefill and decode]",
)
strategy = SharedOption(
    "--strategy",
    type=STRATEGIES,
    default="data",
    show_default=True,
    help="Parallelism; 3d combines tensor, pipeline and data parallelism.",
)
collective = SharedOption(
    "--collective",
    type=COLLECTIVES,
    help="All-reduce algorithm of gradients. [default: the fastest]",
)
advise = SharedOption("--advise", is_flag=True, help="Rank all strategies and collectives for one number of workers.")
price = SharedOption(
    "--price",
    type=Quantity("USD/h"),
    metavar="USD/h",
    help="Price per hour of one device. [default: its rental price on record]",
)
price_of = SharedOption(
    "--price-of",
    metavar="CLOUD",
    type=CompletedText(".machines.prices:cloud_names"),
    help="Use the price that this cloud asks for the device, such as AWS or Lambda, or the cheapest one.",
)


def facility() -> Decorator:
    """Add ``--electricity``, ``--carbon-intensity``, ``--pue`` and ``--host-watts``."""
    return combine(
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
    )

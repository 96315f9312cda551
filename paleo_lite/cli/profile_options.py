"""What the commands that read profiles share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from ..errors import BadValue
from ..extras import need
from ..units import PRECISION_BYTES
from .common import complete_devices

Command = TypeVar("Command", bound=Callable[..., Any])

DIRECTIONS = ("all", "fprop", "bprop", "update")

gpu_option = click.option(
    "--gpu", required=True, metavar="DEVICE", shell_complete=complete_devices, help="The device, such as k40m."
)
precision_option = click.option(
    "--precision", type=click.Choice(list(PRECISION_BYTES)), default="fp32", show_default=True, help="Of the peak."
)
direction_option = click.option(
    "--direction", type=click.Choice(DIRECTIONS), default="all", show_default=True, help="Which kernels."
)
pattern_option = click.option(
    "--name-pattern",
    metavar="REGEX",
    help="How to read a run's settings from file names: named groups, (?P<nodes>\\d+).",
)
top_option = click.option(
    "--top", default="20", show_default=True, metavar="N|all", help="How many rows of a table to list."
)


def parse_top(top: str) -> int | None:
    """How many rows; None is all."""
    if top == "all":
        return None
    if not top.isdecimal():
        raise BadValue(f"--top takes a whole number or 'all', not {top!r}")
    return int(top)


def need_pyarrow() -> None:
    """Refuse in one sentence where the extra is absent."""
    need("pyarrow", "reading profiles", "profiles")

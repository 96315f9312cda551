"""Floor 7: the command line. One module per command; each fetches, calls, shows."""

from __future__ import annotations

import errno
import importlib
import io
import os
import sys
from typing import Any

import click

from ..errors import Interrupted, PaleoError, UnknownName, UsageProblem
from ..text import sentence
from ..version import __version__

GROUPS = {
    "How long will it take": {
        "predict": "Predict how long a network takes on a device.",
        "scale": "Predict how a network trains on many devices, or ask for advice.",
        "sweep": "Predict every combination of networks, devices, batch sizes and workers into a file.",
        "best": "Find the best rows of a sweep, or its Pareto front.",
        "gemm": "Time a matrix product, or several put into one.",
        "feeding": "Say whether storage, CPU and host link can feed a network, and what would help.",
    },
    "What is computed, and where": {
        "layers": "Count a network layer by layer.",
        "networks": "List, show and export networks.",
        "hardware": "List, show and audit devices and links.",
    },
    "Where did the time go": {
        "efficiency": "Say how well a device was used, from profiles.",
        "kernels": "Say where a profile's time went, kernel by kernel.",
        "compare": "Lay two profiles, or a prediction and a profile, side by side.",
    },
    "How sure is it": {
        "calibrate": "Learn a device's parameters, or its PPP, from measured steps and profiles.",
        "calibrations": "List and show what was learnt.",
        "measure": "Calibrate the machine this runs on, and check the predictions.",
        "validate": "Hold measurements out and say how far off predictions of them are.",
    },
    "Show it": {
        "plot": "Draw a chart: roofline, layers, batch sizes, scaling, timeline, ...",
        "report": "Write a report to send: one HTML file of a prediction or a profile.",
        "ui": "Open a page to explore in a browser.",
    },
}
"""The commands, as help groups them, and what each does."""

_COMMANDS = {name: text for commands in GROUPS.values() for name, text in commands.items()}


INTERRUPTED = 130
"""128 + SIGINT, as shells have it."""


class _Closed(io.TextIOBase):
    """Stands for an output that was closed before the program began."""

    def write(self, text: str) -> int:
        """Refuse, as a full disk does."""
        raise OSError(errno.EBADF, "it is closed")


class OneSentence(click.Group):
    """Commands whose errors become one sentence and an exit code."""

    def main(self, *words: Any, **settings: Any) -> Any:
        if sys.stdout is None:  # closed by whoever called: `>&-`
            sys.stdout = _Closed()
        try:
            return super().main(*words, **settings)
        except OSError as error:  # help and version are written before there is a command to invoke
            _say_unwritable(error)
            sys.exit(1)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except click.ClickException:
            raise
        except (click.exceptions.Exit, click.Abort, BrokenPipeError):
            raise
        except PaleoError as error:
            if _debugging(ctx):
                raise
            click.echo(f"paleo-lite: {error}", err=True)
            ctx.exit(INTERRUPTED if isinstance(error, Interrupted) else 2 if isinstance(error, UsageProblem) else 1)
        except KeyboardInterrupt:
            click.echo("paleo-lite: interrupted", err=True)
            ctx.exit(INTERRUPTED)
        except OSError as error:
            if _debugging(ctx):
                raise
            # Files of ours become errors of ours where they are opened: what is left is the output itself.
            _say_unwritable(error)
            ctx.exit(1)
        except Exception as error:
            if _debugging(ctx):
                raise
            what = sentence(f"{type(error).__name__}: {error}")
            click.echo(f"paleo-lite: a defect of paleo-lite, {what} (--debug shows where)", err=True)
            ctx.exit(1)


def _say_unwritable(error: OSError) -> None:
    click.echo(f"paleo-lite: the output cannot be written ({error.strerror or error})", err=True)
    if not isinstance(sys.stdout, _Closed):  # Python would try again at its end, complain, and exit with 120
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)


class _Commands(OneSentence):
    """Imports a command's module when it is called, and no other."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name in _COMMANDS:
            command: click.Command = getattr(importlib.import_module(f".{name}", __name__), name)
            return command
        if not name.startswith("-") and not ctx.resilient_parsing:
            raise click.UsageError(str(UnknownName("command", name, _COMMANDS)), ctx)
        return None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for question, commands in GROUPS.items():
            with formatter.section(question):
                formatter.write_dl(list(commands.items()))


def _debugging(ctx: click.Context) -> bool:
    return bool(ctx.find_root().meta.get("paleo_lite.debug"))


def set_debug(ctx: click.Context, _: click.Parameter, value: bool) -> None:
    """Remember ``--debug``, which every command takes."""
    if value:
        ctx.find_root().meta["paleo_lite.debug"] = True


DEBUG = click.Option(["--debug"], is_flag=True, expose_value=False, callback=set_debug, help="Show tracebacks.")


@click.group(
    cls=_Commands,
    params=[DEBUG],
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(__version__, message="paleo-lite %(version)s", help="Show the version.")
def main() -> None:
    """Predict how long a neural network takes on a machine, and say why.

    \b
      paleo-lite predict vgg16 --gpu k80 --precision fp64
      paleo-lite layers resnet50 --convention macs
      paleo-lite networks list
      paleo-lite hardware show k80

    `paleo-lite COMMAND --help` explains each command.
    """

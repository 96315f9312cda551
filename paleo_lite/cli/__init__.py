"""The command line: one module per command, which parses options, calls a function of `paleo_lite` and prints."""

from __future__ import annotations

import errno
import gc
import importlib
import io
import os
import sys
import warnings
from typing import Any, NoReturn

import click

from ..child import Terminated, end_orderly_when_terminated
from ..errors import Interrupted, PaleoError, UnknownName, UsageProblem
from ..questions.kind import KINDS
from ..text import clean_message
from ..version import __version__

GROUPS = {
    "Prediction": {
        "predict": "Predict how long one pass of a network takes on a device.",
        "train": "Predict training or fine-tuning on any number of devices: step, memory, hours, cost.",
        "serve": "Predict latency, throughput and cost of a language model that serves requests.",
        "local": "Predict how fast a language model writes on your own machine.",
        "diffusion": "Predict pictures and videos: time and memory of each part of a pipeline.",
        "rl": "Predict a step of reinforcement learning: rollouts, update, transfer of weights, memory and cost.",
        "best": "Find the best rows of a file that a question with -o wrote, or its Pareto front.",
        "gemm": "Predict the time of matrix products.",
        "feeding": "Predict whether storage, decoding and the host link can keep a device busy.",
    },
    "Networks and devices": {
        "layers": "Count a network layer by layer.",
        "networks": "List, show and export networks.",
        "hardware": "List, show and audit devices and links.",
    },
    "Profiles": {
        "efficiency": "Measure how well a device was used, from profiles.",
        "kernels": "Break the time of a profile down by kernel.",
        "compare": "Compare two profiles, or a prediction with a profile.",
    },
    "Calibration": {
        "measurements": "Read result files of benchmarks: what they measured, leave out and make doubtful.",
        "calibrate": "Fit the parameters of a device, or its PPP, to measured steps and profiles.",
        "calibrations": "List and show calibrations.",
        "measure": "Calibrate the machine on which this runs, and check the predictions.",
        "validate": "Cross-validate the time model on held-out measurements.",
    },
    "Charts": {
        "plot": "Draw a chart: roofline, layers, batch sizes, scaling, timeline, ...",
        "ui": "Open an interactive page in a browser.",
    },
}
"""The commands with a summary of each, in the groups of the help text."""

_COMMANDS = {name: summary for commands in GROUPS.values() for name, summary in commands.items()}


INTERRUPTED = 130
"""Exit code after an interrupt, 128 + SIGINT as in shells."""

TERMINATED = 143
"""Exit code after the signal to end, 128 + SIGTERM."""


class _ClosedOutput(io.TextIOBase):
    """Replacement for a standard output that was closed before the program started."""

    def write(self, text: str) -> int:
        """Raise OSError, as a full disk does."""
        raise OSError(errno.EBADF, "it is closed")


class ErrorHandlingGroup(click.Group):
    """Group of commands that prints an error as a one-line message and sets the exit code."""

    def main(self, *arguments: Any, **settings: Any) -> Any:
        """Run the command line."""
        # A command creates many objects, most of which it needs to the end: collect garbage less often.
        gc.set_threshold(50_000)
        _use_one_blas_thread()
        _silence_libraries()
        end_orderly_when_terminated()
        if sys.stdout is None:  # closed by the caller with `>&-`
            sys.stdout = _ClosedOutput()
        try:
            return super().main(*arguments, **settings)
        except OSError as error:  # help and version are written before a command is invoked
            _report_output_error(error)
            sys.exit(1)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the command line up to the command; what is wrong with it is one sentence."""
        try:
            return super().parse_args(ctx, args)
        except click.UsageError as error:
            _end_with_usage(ctx, error)

    def invoke(self, ctx: click.Context) -> Any:
        """Run a command."""
        try:
            return super().invoke(ctx)
        except click.UsageError as error:
            _end_with_usage(ctx, error)
        except click.ClickException:
            raise
        except (click.exceptions.Exit, click.Abort, BrokenPipeError):
            raise
        except PaleoError as error:
            if _is_debugging(ctx):
                raise
            click.echo(f"paleo-lite: {error}", err=True)
            ctx.exit(_exit_code(error))
        except KeyboardInterrupt as error:
            is_terminated = isinstance(error, Terminated)
            click.echo(f"paleo-lite: {'terminated' if is_terminated else 'interrupted'}", err=True)
            ctx.exit(TERMINATED if is_terminated else INTERRUPTED)
        except OSError as error:
            if _is_debugging(ctx):
                raise
            # Errors of input and output files are converted to BadFile where they are opened: this is standard output.
            _report_output_error(error)
            ctx.exit(1)
        except Exception as error:
            if _is_debugging(ctx):
                raise
            message = clean_message(f"{type(error).__name__}: {error}")
            click.echo(f"paleo-lite: internal error, {message} (use --debug to show where)", err=True)
            ctx.exit(1)


def _end_with_usage(ctx: click.Context, error: click.UsageError) -> NoReturn:
    """Print the sentence about a command line that cannot be parsed, and end with the exit code of click."""
    from .usage import usage_sentence

    if ctx.resilient_parsing or isinstance(error, click.exceptions.NoArgsIsHelpError):
        raise error
    click.echo(f"paleo-lite: {usage_sentence(error)}", err=True)
    ctx.exit(error.exit_code)


def _use_one_blas_thread() -> None:
    """Make numpy start one BLAS thread instead of one per core, which takes a third of a short command's time.

    The products of this program are too small to divide, and sweeps and profiles run one process per core. ``measure``
    is exempt, because torch may read the same variable.
    """
    if "numpy" not in sys.modules and "measure" not in sys.argv[1:2]:
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")


def _silence_libraries() -> None:
    """Keep warnings of libraries off the terminal, where they would precede an answer; ``python -W`` shows them."""
    if not sys.warnoptions:
        warnings.filterwarnings("ignore", module=_TALKATIVE)


_TALKATIVE = r"(torch|torchvision|transformers|diffusers|huggingface_hub|onnx|distributed|altair|pyarrow)\b"
"""Names of libraries whose warnings are about their own use."""


def _exit_code(error: PaleoError) -> int:
    if isinstance(error, Interrupted):
        return INTERRUPTED
    return 2 if isinstance(error, UsageProblem) else 1


def _report_output_error(error: OSError) -> None:
    click.echo(f"paleo-lite: the output cannot be written ({error.strerror or error})", err=True)
    if isinstance(sys.stdout, _ClosedOutput):
        return
    # Without this, Python would flush standard output again at exit, print another error and exit with 120.
    null_device = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null_device, sys.stdout.fileno())
    os.close(null_device)


class _LazyCommands(ErrorHandlingGroup):
    """Group that imports the module of a command when it is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name in KINDS:
            question_command: click.Command = importlib.import_module(".question", __name__).make_command(name)
            return question_command
        if name in _COMMANDS:
            command: click.Command = getattr(importlib.import_module(f".{name}", __name__), name)
            return command
        if not name.startswith("-") and not ctx.resilient_parsing:
            from ..questions.upgrade import MOVED_COMMANDS

            message = MOVED_COMMANDS.get(name) or str(UnknownName("command", name, _COMMANDS, lists_all=True))
            raise click.UsageError(message, ctx)
        return None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for group, commands in GROUPS.items():
            with formatter.section(group):
                formatter.write_dl(list(commands.items()))


def _is_debugging(ctx: click.Context) -> bool:
    return bool(ctx.find_root().meta.get("paleo_lite.debug"))


def set_debug(ctx: click.Context, _: click.Parameter, value: bool) -> None:
    """Store the value of ``--debug``, which every command has."""
    if value:
        ctx.find_root().meta["paleo_lite.debug"] = True


DEBUG = click.Option(["--debug"], is_flag=True, expose_value=False, callback=set_debug, help="Show tracebacks.")


@click.group(
    cls=_LazyCommands,
    params=[DEBUG],
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(__version__, message="paleo-lite %(version)s", help="Show the version.")
def main() -> None:
    """Predict how long a neural network takes on a machine, and explain why.

    \b
      paleo-lite predict vgg16 --gpu k80 --precision fp64
      paleo-lite layers resnet50 --convention macs
      paleo-lite networks list
      paleo-lite hardware show k80

    `paleo-lite COMMAND --help` explains each command.
    """

"""``paleo-lite plot KIND``: every chart, with the arguments of the command whose result it draws."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import click

from ..counting import PHASES
from ..errors import UnknownName
from ..units import PRECISION_BYTES
from . import set_debug
from .common import SHARE, WHOLE, complete_devices, complete_networks, hardware_files
from .plot_options import KINDS, Drawing, file_option, make_theme_option

_TABLES_ONLY = {
    "style", "plot", "theme", "top", "explain", "memory", "order", "full_names", "tool", "program", "output", "force",
    "date", "template",
}  # fmt: skip
"""Parameters of commands that say how to print, or what else to write."""


class _Kinds(click.Group):
    """A command per kind, made of the one whose result it draws."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(KINDS)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Kinds"):
            formatter.write_dl([(name, kind.shows) for name, kind in KINDS.items()])

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name in _OWN:
            return _completed(name, _OWN[name])
        return _made_of(name) if name in KINDS else None

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        if args and not args[0].startswith("-") and args[0] not in KINDS:
            raise click.UsageError(str(UnknownName("chart", args[0], KINDS)), ctx)
        return super().resolve_command(ctx, args)


@click.group(cls=_Kinds, subcommand_metavar="KIND [ARGS]...")
def plot() -> None:
    """Draw a chart into a .png, .svg or .html file.

    A kind takes the arguments of the command whose result it draws.

    \b
      paleo-lite plot roofline resnet50 --gpu titan-rtx --precision fp16 --batch-size 32 -o roofline.png
      paleo-lite plot batch resnet50 --gpu titan-rtx --gpu v100-sxm2 --batch-sizes 1:256:x2 -o batch.svg
      paleo-lite plot scaling resnet50 --gpu k80-die --link ethernet20 --workers 1,2,4,...,128 -o scaling.html
      paleo-lite plot timeline trace.json.gz -o timeline.png --theme dark

    `paleo-lite plot KIND --help` explains each kind.
    """


def _made_of(name: str) -> click.Command:
    """The command that computes what `name` draws, with the file in place of the options for tables."""
    kind = KINDS[name]
    base: click.Command = getattr(importlib.import_module(f".{kind.command}", __package__), kind.command)

    @click.pass_context
    def draw(ctx: click.Context, /, **asked: Any) -> None:
        ctx.invoke(base, style="none", **asked)

    params = [each for each in base.params if each.name not in _TABLES_ONLY]
    text = f"{kind.shows}\n\nThe arguments are those of `paleo-lite {kind.command}`, which prints the numbers."
    return _completed(name, click.Command(name, params=params, callback=draw, help=text))


def _completed(name: str, command: click.Command) -> click.Command:
    """The command with the file and its theme, once."""
    kept = [each for each in command.params if each.name not in ("plot", "theme")]
    command.params = [*kept, file_option(name), make_theme_option()]
    return command


@click.command("batch")
@click.argument("network", shell_complete=complete_networks)
@click.option(
    "--gpu", "gpus", required=True, multiple=True, metavar="DEVICE", shell_complete=complete_devices,
    help="The device; may be given several times.",
)  # fmt: skip
@click.option(
    "--batch-sizes", default="1:256:x2", show_default=True, metavar="RANGE", help="1,2,4 or 1:256:x2 or 8:64:+8."
)
@click.option("--precision", type=click.Choice(list(PRECISION_BYTES)), default="fp32", show_default=True)
@click.option("--phase", type=click.Choice(list(PHASES)), default="inference", show_default=True)
@click.option("--time-model", metavar="MODEL", help="As for predict.")
@click.option("--ppp", type=SHARE, help="For the ppp model.")
@hardware_files
@click.option("--debug", is_flag=True, expose_value=False, callback=set_debug, help="Show tracebacks.")
def _batch(
    network: str,
    gpus: tuple[str, ...],
    batch_sizes: str,
    precision: str,
    phase: str,
    time_model: str | None,
    ppp: float | None,
    hardware_files: tuple[Path, ...],
    plot: Drawing,
) -> None:
    """Throughput and time of NETWORK over the batch size, for one device or several.

    \b
      paleo-lite plot batch resnet50 --gpu titan-rtx --gpu v100-sxm2 --precision fp16 -o batch.png
    """
    from ..api import predict
    from ..sweeps.space import parse_numbers

    sizes = parse_numbers(batch_sizes, "batch sizes")
    plot.draw([
        predict(network, gpu=gpu, precision=precision, phase=phase, batch_size=size, time_model=time_model, ppp=ppp,
                hardware_files=hardware_files)
        for gpu in dict.fromkeys(gpus) for size in sizes
    ])  # fmt: skip


@click.command("timeline")
@click.argument("path", type=click.Path(path_type=Path))
@click.option("--slices", type=WHOLE, default=500, show_default=True, help="In how many parts time is shown.")
@click.option("--debug", is_flag=True, expose_value=False, callback=set_debug, help="Show tracebacks.")
def _timeline(path: Path, slices: int, plot: Drawing) -> None:
    """What ran when in the profile PATH: how busy each kind of kernel kept the device.

    \b
      paleo-lite plot timeline trace.json.gz -o timeline.png
    """
    from .profile_options import need_pyarrow

    need_pyarrow()
    from ..efficiency.timeline import read_timeline
    from ..profiles.detect import open_profile

    plot.draw(read_timeline(open_profile(path, None), slices), f"What ran when in {path.name}")


_OWN = {"batch": _batch, "timeline": _timeline}

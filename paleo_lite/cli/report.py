"""``paleo-lite report``."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..errors import BadFile, BadValue, PaleoError
from . import options

if TYPE_CHECKING:
    from ..report.document import Document

_OF_A_PROFILE = frozenset(
    ("profile", "gpu", "precision", "name_pattern", "program", "hardware_files", "output", "force", "network")
)
_OF_WORKERS = ("workers", "link", "topology", "platform", "scaling", "strategy", "collective", "advise", "images",
               "epochs", "price")  # fmt: skip


@click.command()
@options.network(required=False)
@click.option("--profile", type=click.Path(path_type=Path), help="Report on this profile instead of a network.")
@options.gpu()
@click.option("-o", "--output", required=True, type=click.Path(path_type=Path), help="The HTML file to write.")
@options.force()
@options.precision()
@options.batch_size(default=None, help="Samples per pass. [default: 1; 32 per worker with --workers]")
@options.phase(default=None, help="What is predicted. [default: inference; training with --workers]")
@options.time_model()
@options.ppp()
@options.calibration()
@options.clock()
@options.unit()
@options.execution()
@options.fit_batch()
@options.training
@options.workers(help="Training on several devices too: 8, 1,2,4,...,128 or 1:128:x2.")
@options.cluster
@options.name_pattern()
@click.option("--program", metavar="COMMAND", help="What to profile next. [default: python train.py]")
@options.image_size()
@options.sequence_length()
@options.inputs()
@options.hardware_files()
@options.debug()
@click.pass_context
def report(ctx: click.Context, /, **asked: Any) -> None:
    """Write a report of a prediction or a profile: one HTML file that opens offline.

    NETWORK is a shipped network, a descriptor file, or package.module:factory with --input, which is imported and
    called; with --profile there is none.

    \b
      paleo-lite report resnet50 --gpu v100-sxm2 --precision fp16 --batch-size 64 -o report.html
      paleo-lite report resnet50 --gpu k80-die --workers 1,2,4,...,64 --link ethernet20 --images 1.28M -o scaling.html
      paleo-lite report --profile run.parquet --gpu k40m -o profile.html
    """
    from ..files import write_aside
    from ..report.page.html import to_html

    output: Path = asked.pop("output")
    _check_output(output, asked.pop("force"))
    if (asked["network"] is None) == (asked["profile"] is None):
        raise BadValue("a report is of a network or of a profile (--profile PATH): one of the two")
    _need_libraries()
    made = _of_profile(ctx, asked) if asked["profile"] is not None else _of_network(ctx, asked)
    page = to_html(made).encode()
    try:
        write_aside(output, page)
    except OSError as error:
        raise BadFile(f"{output}: cannot be written ({error.strerror})") from None
    click.echo(f"{output}: {made.title}, {len(page) / 1e6:.2f} MB", err=True)


def _check_output(output: Path, force: bool) -> None:
    """Refuse what could not be written, before anything is computed."""
    if output.is_dir():
        raise BadValue(f"{output} is a folder: name a file in it, such as {output / 'report.html'}")
    if output.exists() and not force:
        raise BadValue(f"{output} already exists: choose another name, or --force to replace it")
    if output.suffix.lower() not in (".html", ".htm"):
        raise BadValue(f"{output}: a report is an .html file")
    folder = next(path for path in output.absolute().parents if path.exists())
    if not folder.is_dir():
        raise BadValue(f"{output} cannot be written: {folder} is not a folder")
    if not os.access(folder, os.W_OK):
        raise BadFile(f"{output} cannot be written: no permission to write in {folder}")


def _need_libraries() -> None:
    from ..extras import need

    for name in ("altair", "vl_convert", "jinja2"):
        need(name, "writing a report", "plots")


def _refuse(ctx: click.Context, names: Any, why: str) -> None:
    for option in options.given(ctx):
        if option.name in names:
            raise BadValue(f"{option.opts[0]} {why}")


def _of_profile(ctx: click.Context, asked: dict[str, Any]) -> Document:
    from ..hardware import find_device

    others = {option.name for option in ctx.command.params} - _OF_A_PROFILE
    _refuse(ctx, others, "is for the report of a network, not of a profile")
    options.need_pyarrow()
    from ..efficiency import TOOLS
    from ..efficiency.analysis import Reading, measure_efficiency
    from ..efficiency.kernels import report_kernels
    from ..efficiency.next_command import next_command
    from ..efficiency.timeline import read_timeline
    from ..profiles.detect import open_profile
    from ..report.page.profile import profile_report
    from .provenance import made_from, profile_sources

    path, pattern, precision = asked["profile"], asked["name_pattern"], asked["precision"]
    device = find_device(asked["gpu"], asked["hardware_files"])
    device.find_peak(precision)  # before any work
    kernels = report_kernels(open_profile(path, pattern), device, precision)

    def attempt(call: Any) -> Any:
        """What a part says, or the sentence why this profile cannot tell."""
        try:
            return call()
        except PaleoError as error:
            return str(error).removeprefix(f"{path}: ")

    further = []
    for tool in TOOLS:
        commands = attempt(lambda tool=tool: next_command(kernels.kernels, tool, asked["program"] or "python train.py"))
        if isinstance(commands, list):
            further += [(f"With {tool}" if first else "and then", line) for first, line in zip((True, False), commands)]
    return profile_report(
        kernels,
        made_from(ctx, profile_sources(path, device, asked["hardware_files"])),
        efficiency=attempt(
            lambda: measure_efficiency([path], device, Reading(name_pattern=pattern), precision, jobs=1)
        ),
        timeline=attempt(lambda: read_timeline(open_profile(path, pattern), 300)),
        next_commands=further,
    )


def _of_network(ctx: click.Context, asked: dict[str, Any]) -> Document:
    from ..api.prediction import predict, resolve
    from ..calibration.alternatives import try_alternatives
    from ..calibration.choose import used_calibration
    from ..networks.network import Tokens
    from ..report.page.prediction import prediction_report
    from .provenance import made_from, network_sources, same_figures

    _refuse(ctx, ("name_pattern", "program"), "is for the report of a profile: --profile PATH")
    several = any(asked[name] is not None for name in ("workers", "topology", "platform"))
    if not several:
        _refuse(ctx, _OF_WORKERS, "is for several devices: say how many, --workers 8")
    if several and asked["phase"] not in (None, "training"):
        raise BadValue(f"several devices train together: --phase training, or leave it out, not {asked['phase']}")
    phase = asked["phase"] or ("training" if several else "inference")
    if asked["fit_batch"] and asked["batch_size"] is not None:
        raise BadValue("fitting the batch chooses its size: leave the batch size out")
    question = {
        name: asked[name]
        for name in ("gpu", "precision", "time_model", "ppp", "clock", "unit", "calibration", "execution",
                     "hardware_files", "fit_batch")
    }  # fmt: skip
    question |= {
        "network": resolve(
            asked["network"], asked["image_size"], asked["inputs"], Tokens(asked["sequence_length"], phase=phase)
        ),
        "phase": phase,
        "batch_size": asked["batch_size"] or (32 if several and not asked["fit_batch"] else 1),
        "training": asked["training"],
        "memory": True,
    }
    prediction = predict(**question)
    calibration = used_calibration(prediction, asked["calibration"])
    return prediction_report(
        prediction,
        made_from(ctx, network_sources(asked, prediction, calibration), same_figures(ctx, prediction, _OF_WORKERS)),
        alternatives=try_alternatives(prediction, asked["time_model"], asked["hardware_files"]),
        scaling=_scaled(asked, question, prediction.batch_size) if several else None,
        calibration=calibration,
    )


def _scaled(asked: dict[str, Any], question: dict[str, Any], batch_size: int) -> Any:
    from ..api.prediction import scale
    from ..distributed.job import Settings

    same = {
        name: question[name]
        for name in ("network", "gpu", "precision", "time_model", "ppp", "clock", "unit", "calibration",
                     "hardware_files")
    }  # fmt: skip
    own = {name: asked[name] for name in _OF_WORKERS if name != "collective"}
    settings = Settings(collective=asked["collective"])
    return scale(**same, **own, batch_size=batch_size, settings=settings, training=asked["training"])

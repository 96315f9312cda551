"""``paleo-lite report``."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..counting import PHASES
from ..errors import BadFile, BadValue, PaleoError
from ..timing import TIME_MODELS
from ..units import PRECISION_BYTES
from .common import SHARE, WHOLE, complete_devices, complete_networks, hardware_files, network_options, parse_inputs
from .scale import COLLECTIVES, STRATEGIES

if TYPE_CHECKING:
    from ..report.page.document import Report
    from ..timing.options import TrainingOptions

_OF_A_PROFILE = frozenset(
    ("profile", "gpu", "precision", "name_pattern", "program", "hardware_files", "output", "force")
)
_OF_TRAINING = ("optimizer", "mixed_precision", "checkpointing", "accumulation")
_OF_WORKERS = ("workers", "link", "topology", "platform", "scaling", "strategy", "collective", "advise", "images",
               "epochs", "price")  # fmt: skip


@click.command()
@click.argument("network", required=False, shell_complete=complete_networks)
@click.option("--profile", type=click.Path(path_type=Path), help="Report on this profile instead of a network.")
@click.option(
    "--gpu", required=True, metavar="DEVICE", shell_complete=complete_devices, help="The device, such as k80."
)
@click.option("-o", "--output", required=True, type=click.Path(path_type=Path), help="The HTML file to write.")
@click.option("--force", is_flag=True, help="Replace the file if it is there.")
@click.option(
    "--precision", type=click.Choice(list(PRECISION_BYTES)), default="fp32", show_default=True, help="Of the numbers."
)
@click.option("--batch-size", type=WHOLE, help="Samples per pass. [default: 1; 32 per worker with --workers]")
@click.option("--phase", type=click.Choice(list(PHASES)), help="[default: inference; training with --workers]")
@click.option("--time-model", type=click.Choice(list(TIME_MODELS)), help="Default: as for predict.")
@click.option("--ppp", type=SHARE, help="Share of peak that the platform reaches, for the ppp model; may exceed 1.")
@click.option("--calibration", metavar="FILE|NAME", help="A calibration; default: as for predict.")
@click.option("--clock", type=click.Choice(["base", "boost"]), help="Default: the device's own.")
@click.option("--unit", type=click.Choice(["vector", "tensor"]), help="Default: the faster one.")
@click.option(
    "--execution", type=click.Choice(["eager", "compiled", "folded"]), default="eager", show_default=True,
    help="What is fused at inference.",
)  # fmt: skip
@click.option("--fit-batch", is_flag=True, help="Take the largest batch that fits into the device's memory.")
@click.option("--optimizer", type=click.Choice(["sgd", "momentum", "adam"]), help="For training; default: sgd.")
@click.option("--mixed-precision", is_flag=True, help="For training in fp16 or bf16: master weights in fp32.")
@click.option("--checkpointing", type=click.Choice(["none", "sqrt", "all"]), help="For training: what is recomputed.")
@click.option("--accumulation", type=WHOLE, metavar="N", help="For training: micro-batches per update.")
@click.option("--workers", metavar="RANGE", help="Training on several devices too: 8, 1,2,4,...,128 or 1:128:x2.")
@click.option("--link", metavar="LINK", help="Between all workers: ethernet20, infiniband-fdr, '25 GB/s'.")
@click.option("--topology", metavar="TEXT|FILE", help="In place of --link: '2x k40m @ pcie3, 16 nodes @ infiniband'.")
@click.option("--platform", metavar="NAME|FILE", help="A computer whose scaling was measured: ec2-p2-k80, dgx1-p100.")
@click.option(
    "--scaling", type=click.Choice(["weak", "strong"]), default="weak", show_default=True,
    help="weak: the batch per worker stays; strong: the batch of all together.",
)  # fmt: skip
@click.option("--strategy", type=click.Choice(STRATEGIES), default="data", show_default=True, help="Who does what.")
@click.option("--collective", type=click.Choice(COLLECTIVES), help="How gradients are summed; default: the fastest.")
@click.option("--advise", is_flag=True, help="Try all strategies and collectives on one number of workers.")
@click.option("--images", metavar="COUNT", help="Samples of an epoch, such as 1.28M: gives hours and cost.")
@click.option("--epochs", type=float, metavar="NUMBER", help="Default: 1.")
@click.option("--price", metavar="USD/h", help="Of one device; default: what the registry has.")
@click.option(
    "--name-pattern", metavar="REGEX", help="How to read a run's settings from a profile's name: (?P<nodes>\\d+)."
)
@click.option("--program", metavar="COMMAND", help="What to profile next. [default: python train.py]")
@network_options
@hardware_files
@click.option("--debug", is_flag=True, help="Show tracebacks.")
@click.pass_context
def report(ctx: click.Context, /, debug: bool, **asked: Any) -> None:
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


def _given(ctx: click.Context) -> list[str]:
    """Names of the options that were given, not defaulted."""
    default = click.core.ParameterSource.DEFAULT
    names = [option.name or "" for option in ctx.command.params]
    return [
        name for name in names if ctx.get_parameter_source(name) is not default and ctx.params.get(name) is not None
    ]


def _refuse(ctx: click.Context, names: Any, why: str) -> None:
    for option in ctx.command.params:
        if option.name in names and option.name in _given(ctx):
            raise BadValue(f"{option.opts[0]} {why}")


def _of_profile(ctx: click.Context, asked: dict[str, Any]) -> Report:
    from ..hardware import find_device
    from .profile_options import need_pyarrow

    known = {*_OF_A_PROFILE, "network", "debug"}
    _refuse(
        ctx, {option.name for option in ctx.command.params} - known, "is for the report of a network, not of a profile"
    )
    need_pyarrow()
    from ..efficiency.analysis import measure_efficiency
    from ..efficiency.kernels import report_kernels
    from ..efficiency.next_command import TOOLS, next_command
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
            lambda: measure_efficiency([path], device, precision=precision, name_pattern=pattern, jobs=1)
        ),
        timeline=attempt(lambda: read_timeline(open_profile(path, pattern), 300)),
        next_commands=further,
    )


def _of_network(ctx: click.Context, asked: dict[str, Any]) -> Report:
    from ..api import predict, resolve
    from ..report.page.prediction import prediction_report
    from .alternatives import try_alternatives
    from .provenance import made_from, network_sources, same_figures, used_calibration

    _refuse(ctx, ("name_pattern", "program"), "is for the report of a profile: --profile PATH")
    several = any(asked[name] is not None for name in ("workers", "topology", "platform"))
    if not several:
        _refuse(ctx, _OF_WORKERS, "is for several devices: say how many, --workers 8")
    if several and asked["phase"] not in (None, "training"):
        raise BadValue(f"several devices train together: --phase training, or leave it out, not {asked['phase']}")
    phase = asked["phase"] or ("training" if several else "inference")
    options = _training(asked, several)
    if asked["fit_batch"] and asked["batch_size"] is not None:
        raise BadValue("fitting the batch chooses its size: leave the batch size out")
    inputs = parse_inputs(asked["inputs"])
    question = {
        name: asked[name]
        for name in ("gpu", "precision", "time_model", "ppp", "clock", "unit", "calibration", "execution",
                     "hardware_files", "fit_batch")
    }  # fmt: skip
    question |= {
        "network": resolve(asked["network"], asked["image_size"], inputs),
        "phase": phase,
        "batch_size": asked["batch_size"] or (32 if several and not asked["fit_batch"] else 1),
        "training": options,
        "memory": True,
    }
    prediction = predict(**question)
    calibration = used_calibration(prediction, asked["calibration"])
    return prediction_report(
        prediction,
        made_from(ctx, network_sources(asked, prediction, calibration), same_figures(ctx, prediction, _OF_WORKERS)),
        options=options,
        alternatives=try_alternatives(question, prediction),
        scaling=_scaled(asked, question, prediction.batch_size, options) if several else None,
        calibration=calibration,
    )


def _training(asked: dict[str, Any], several: bool) -> TrainingOptions | None:
    """The training options, where any was given or several devices train."""
    if not several and not any(asked[name] for name in _OF_TRAINING):
        return None
    from ..timing.options import TrainingOptions

    return TrainingOptions(
        asked["optimizer"] or "sgd", asked["mixed_precision"], asked["checkpointing"] or "none",
        asked["accumulation"] or 1,
    )  # fmt: skip


def _scaled(asked: dict[str, Any], question: dict[str, Any], batch_size: int, options: TrainingOptions | None) -> Any:
    from ..api import scale
    from ..distributed.job import Settings

    same = {
        name: question[name]
        for name in ("network", "gpu", "precision", "time_model", "ppp", "clock", "unit", "calibration",
                     "hardware_files")
    }  # fmt: skip
    own = {name: asked[name] for name in _OF_WORKERS if name != "collective"}
    return scale(
        **same, **own, batch_size=batch_size, settings=Settings(collective=asked["collective"]), options=options
    )

"""How a report came about: the command line, the version, the date, and the files with their hashes."""

from __future__ import annotations

import datetime
import hashlib
import os
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..errors import BadFile
from ..files import shipped
from ..hardware import Device
from ..networks import is_network_file
from ..report.document import Made, Source
from ..timing import Prediction
from ..units import format_shape
from .options import given

if TYPE_CHECKING:
    from ..calibration.store import Calibration


def made_from(ctx: click.Context, sources: Sequence[Source], further: Sequence[tuple[str, str]] = ()) -> Made:
    """How this call makes its report; the date is SOURCE_DATE_EPOCH's where it is set, as for reproducible builds."""
    from ..version import __version__

    epoch = os.environ.get("SOURCE_DATE_EPOCH", "")
    now = datetime.datetime.fromtimestamp(int(epoch), datetime.timezone.utc) if epoch.isdecimal() else None
    date = (now or datetime.datetime.now(datetime.timezone.utc)).date().isoformat()
    names = [parameter.name or "" for parameter in ctx.command.params if parameter.name != "force"]
    return Made(shlex.join(words_of(ctx, ctx.command.name or "", names)), __version__, date, sources, further)


def words_of(ctx: click.Context, command: str, names: Sequence[str]) -> list[str]:
    """The words of a command line: what this call was given of the parameters called `names`."""
    words = ["paleo-lite", command]
    for parameter in given(ctx):
        value = ctx.params[parameter.name or ""]
        if parameter.name not in names:
            continue
        if isinstance(parameter, click.Argument):
            words.append(str(value))
        elif isinstance(parameter, click.Option) and parameter.is_flag:
            words += [parameter.opts[-1]] if value else []
        else:
            for word in value if isinstance(value, tuple) else [value]:
                words += [parameter.opts[-1], _word(word)]
    return words


def _word(value: Any) -> str:
    """A value as it is typed."""
    if isinstance(value, tuple):
        return format_shape(value)
    return repr(value).removesuffix(".0") if isinstance(value, float) else str(value)


def same_figures(ctx: click.Context, prediction: Prediction, workers: Sequence[str]) -> list[tuple[str, str]]:
    """Commands that give a report's figures as JSON; `workers` names the options that are for several devices."""
    shared = ["network", "gpu", "precision", "time_model", "ppp", "calibration", "clock", "unit", "image_size",
              "inputs", "hardware_files", "optimizer", "mixed_precision", "checkpointing", "accumulation"]  # fmt: skip
    batch = ["--batch-size", str(prediction.batch_size)]
    one = [*words_of(ctx, "predict", [*shared, "execution"]), *batch, "--phase", prediction.phase, "--format", "json"]
    found = [("The prediction as JSON", shlex.join(one))]
    if any(ctx.params[name] is not None for name in ("workers", "topology", "platform")):
        several = [*words_of(ctx, "scale", [*shared, *workers]), *batch, "--format", "json"]
        found.append(("Several devices as JSON", shlex.join(several)))
    return found


def network_sources(asked: dict[str, Any], prediction: Prediction, calibration: Calibration | None) -> list[Source]:
    """The files behind a prediction: descriptor, device, calibration or pool."""
    found = []
    name = asked["network"]
    if is_network_file(name):
        found.append(_source("network", Path(name)))
    elif (path := shipped("models") / f"{prediction.network}.json").is_file() and asked["image_size"] is None:
        found.append(_source("network", path))
    found += _device_sources(prediction.device, asked["hardware_files"])
    given = asked["calibration"]
    if calibration is not None:
        path = Path(given) if given and given.endswith(".toml") else _shipped_calibration(calibration)
        found.append(_source("calibration", path))
    elif prediction.model.label:
        from ..calibration.pool import POOL_FILE

        found.append(_source("fits of other devices", shipped("calibrations") / POOL_FILE))
    return found


def profile_sources(path: Path, device: Device, hardware_files: Sequence[Path]) -> list[Source]:
    """The files behind the report of a profile."""
    return [_source("profile", path), *_device_sources(device, hardware_files)]


def _shipped_calibration(calibration: Calibration) -> Path:
    return shipped("calibrations") / f"{calibration.device}-{calibration.precision}.toml"


def _device_sources(device: Device, hardware_files: Sequence[Path]) -> Iterator[Source]:
    own = [path for path in hardware_files if path.stem == device.id]
    for path in own or [shipped("hardware") / f"{device.id}.toml"]:
        if path.is_file():
            yield _source("device", path)


def _source(what: str, path: Path) -> Source:
    digest = hashlib.sha256()
    try:
        with path.open("rb") as file:
            while block := file.read(2**20):
                digest.update(block)
    except OSError as error:
        raise BadFile(f"{path}: cannot be read ({error.strerror})") from None
    return Source(what, path.name, digest.hexdigest())

"""How a report came about: the command line, the version, the date, and the files with their hashes."""

from __future__ import annotations

import datetime
import hashlib
import os
import shlex
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..counting import GENERATING
from ..errors import BadFile
from ..files import shipped
from ..hardware import Device
from ..networks import Network, is_network_file
from ..report.document import Made, Source
from ..timing import Prediction
from ..timing.workload import TrainingOptions
from ..units import format_shape
from .question import paths_of

if TYPE_CHECKING:
    from ..calibration.store import Calibration
    from .reporting import ReportQuestion


def given(question: Any) -> list[str]:
    """The names of what is not as it would be unasked."""
    unasked = dict(zip(reversed(question.__struct_fields__), reversed(question.__struct_defaults__)))
    return [
        name for name in question.__struct_fields__ if getattr(question, name) not in (unasked.get(name), None, (), [])
    ]


def option(name: str) -> str:
    """The option of an argument."""
    odd = {"inputs": "--input", "hardware_files": "--hardware-file", "training": "--optimizer",
           "overlap": "--no-overlap", "bucket_bytes": "--bucket-size"}  # fmt: skip
    return odd.get(name, f"--{name.replace('_', '-')}")


def words(question: Any, command: str, names: Collection[str] | None = None) -> list[str]:
    """The words of a command line that asks the same: of all that was given, or of what is called `names`.

    The first field of a question is the one that is said without an option.
    """
    line = ["paleo-lite", command]
    for name in given(question):
        value = getattr(question, name)
        if name == "force" or (names is not None and name not in names):
            continue
        if name == question.__struct_fields__[0]:
            line.append(_word(value))
        elif name == "training":
            line += _training(value)
        elif name in ("inputs", "hardware_files"):
            several = paths_of(value) if name == "hardware_files" else map(format_shape, value)
            line += [word for one in several for word in (option(name), str(one))]
        else:
            line += [option(name)] if value is True else [option(name), _word(value)]
    return line


def _word(value: Any) -> str:
    """A value as it is typed."""
    if isinstance(value, (tuple, list)):
        return ",".join(map(str, value))
    if isinstance(value, float):
        return repr(value).removesuffix(".0")
    return value.id if isinstance(value, Device) else value.name if isinstance(value, Network) else str(value)


def _training(training: TrainingOptions) -> list[str]:
    """How a network is trained, as options that are not at their defaults."""
    plain, line = TrainingOptions("sgd"), list[str]()
    for name in ("optimizer", "mixed_precision", "checkpointing", "accumulation"):
        value = getattr(training, name)
        if value != getattr(plain, name):
            line += [option(name)] if value is True else [option(name), str(value)]
    return line


def made_from(question: ReportQuestion, sources: Sequence[Source], further: Sequence[tuple[str, str]] = ()) -> Made:
    """How this call makes its report; the date is SOURCE_DATE_EPOCH's where it is set, as for reproducible builds."""
    from ..version import __version__

    epoch = os.environ.get("SOURCE_DATE_EPOCH", "")
    now = datetime.datetime.fromtimestamp(int(epoch), datetime.timezone.utc) if epoch.isdecimal() else None
    date = (now or datetime.datetime.now(datetime.timezone.utc)).date().isoformat()
    return Made(shlex.join(words(question, "report")), __version__, date, sources, further)


def same_figures(question: ReportQuestion, prediction: Prediction, workers: Sequence[str]) -> list[tuple[str, str]]:
    """Commands that give a report's figures as JSON; `workers` names the options that are for several devices."""
    shared = ["network", "gpu", "precision", "time_model", "ppp", "calibration", "clock", "unit", "image_size",
              "sequence_length", "context", "inputs", "hardware_files", "training", "weights"]  # fmt: skip
    batch = ["--batch-size", str(prediction.batch_size)]
    one = [*words(question, "predict", [*shared, "execution"]), *batch, "--phase", prediction.phase, "--format", "json"]
    lines = [("The prediction as JSON", shlex.join(one))]
    if question.several:
        writes = ["phase", "execution"] if question.phase in GENERATING else []
        several = [*words(question, "scale", [*shared, *workers, *writes]), *batch, "--format", "json"]
        lines.append(("Several devices as JSON", shlex.join(several)))
    return lines


def network_sources(question: ReportQuestion, prediction: Prediction, calibration: Calibration | None) -> list[Source]:
    """The files behind a prediction: descriptor, device, calibration or pool."""
    files, name = list[Source](), question.network
    if isinstance(name, str) and is_network_file(name):
        files.append(_source("network", Path(name)))
    elif (path := shipped("models") / f"{prediction.network}.json").is_file() and question.image_size is None:
        files.append(_source("network", path))
    files += _device_sources(prediction.device, paths_of(question.hardware_files))
    named = question.calibration
    if calibration is not None and (named is None or isinstance(named, str)):
        path = Path(named) if named and named.endswith(".toml") else _shipped_calibration(calibration)
        files.append(_source("calibration", path))
    elif calibration is None and prediction.model.label:
        from ..calibration.choose import POOL_FILE

        files.append(_source("fits of other devices", shipped("calibrations") / POOL_FILE))
    return files


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

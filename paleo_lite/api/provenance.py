"""How a report came about: the command line, the version, the date, and the files with their hashes."""

from __future__ import annotations

import datetime
import hashlib
import os
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import BadFile
from ..files import shipped
from ..hardware import Device
from ..networks import Network, is_network_file
from ..report.document import Made, Source
from ..timing import Prediction
from ..timing.options import TrainingOptions
from ..units import format_shape

if TYPE_CHECKING:
    from ..calibration.store import Calibration


class Asked:
    """What a function was asked, as the command of its name says it.

    Parameters
    ----------
    command : str
    values : dict
        Its arguments by name, in their order.
        The first is the one that is said without an option.
    unasked : dict
        What needs not be said, where that is not None.
    """

    def __init__(self, command: str, values: dict[str, Any], unasked: Mapping[str, Any]) -> None:
        self.command, self.values, self._unasked = command, values, unasked

    def __getitem__(self, name: str) -> Any:
        return self.values[name]

    @property
    def given(self) -> list[str]:
        """The names of what is not as it would be unasked."""
        return [name for name, value in self.values.items() if value not in (self._unasked.get(name), None, (), [])]

    @staticmethod
    def option(name: str) -> str:
        """The option of an argument."""
        odd = {"inputs": "--input", "hardware_files": "--hardware-file", "training": "--optimizer",
               "overlap": "--no-overlap", "bucket_bytes": "--bucket-size"}  # fmt: skip
        return odd.get(name, f"--{name.replace('_', '-')}")

    def words(self, command: str, names: Sequence[str] | None = None) -> list[str]:
        """The words of a command line that asks the same: of all that was given, or of what is called `names`."""
        words = ["paleo-lite", command]
        for name in self.given:
            value = self.values[name]
            if name == "force" or (names is not None and name not in names):
                continue
            if name == next(iter(self.values)):
                words.append(_word(value))
            elif name == "training":
                words += _training(value)
            elif name in ("inputs", "hardware_files"):
                show = format_shape if name == "inputs" else str
                words += [word for each in value for word in (self.option(name), show(each))]
            else:
                words += [self.option(name)] if value is True else [self.option(name), _word(value)]
        return words


def _word(value: Any) -> str:
    """A value as it is typed."""
    if isinstance(value, (tuple, list)):
        return ",".join(map(str, value))
    if isinstance(value, float):
        return repr(value).removesuffix(".0")
    return value.id if isinstance(value, Device) else value.name if isinstance(value, Network) else str(value)


def _training(training: TrainingOptions) -> list[str]:
    """How a network is trained, as options that are not at their defaults."""
    plain, words = TrainingOptions("sgd"), list[str]()
    for name in ("optimizer", "mixed_precision", "checkpointing", "accumulation"):
        value = getattr(training, name)
        if value != getattr(plain, name):
            words += [Asked.option(name)] if value is True else [Asked.option(name), str(value)]
    return words


def made_from(asked: Asked, sources: Sequence[Source], further: Sequence[tuple[str, str]] = ()) -> Made:
    """How this call makes its report; the date is SOURCE_DATE_EPOCH's where it is set, as for reproducible builds."""
    from ..version import __version__

    epoch = os.environ.get("SOURCE_DATE_EPOCH", "")
    now = datetime.datetime.fromtimestamp(int(epoch), datetime.timezone.utc) if epoch.isdecimal() else None
    date = (now or datetime.datetime.now(datetime.timezone.utc)).date().isoformat()
    return Made(shlex.join(asked.words(asked.command)), __version__, date, sources, further)


def same_figures(asked: Asked, prediction: Prediction, workers: Sequence[str]) -> list[tuple[str, str]]:
    """Commands that give a report's figures as JSON; `workers` names the options that are for several devices."""
    shared = ["network", "gpu", "precision", "time_model", "ppp", "calibration", "clock", "unit", "image_size",
              "sequence_length", "inputs", "hardware_files", "training"]  # fmt: skip
    batch = ["--batch-size", str(prediction.batch_size)]
    one = [*asked.words("predict", [*shared, "execution"]), *batch, "--phase", prediction.phase, "--format", "json"]
    found = [("The prediction as JSON", shlex.join(one))]
    if any(asked[name] is not None for name in ("workers", "topology", "platform")):
        several = [*asked.words("scale", [*shared, *workers]), *batch, "--format", "json"]
        found.append(("Several devices as JSON", shlex.join(several)))
    return found


def network_sources(asked: Asked, prediction: Prediction, calibration: Calibration | None) -> list[Source]:
    """The files behind a prediction: descriptor, device, calibration or pool."""
    found = []
    name = asked["network"]
    if isinstance(name, str) and is_network_file(name):
        found.append(_source("network", Path(name)))
    elif (path := shipped("models") / f"{prediction.network}.json").is_file() and asked["image_size"] is None:
        found.append(_source("network", path))
    found += _device_sources(prediction.device, asked["hardware_files"])
    given = asked["calibration"]
    if calibration is not None and (given is None or isinstance(given, str)):
        path = Path(given) if given and given.endswith(".toml") else _shipped_calibration(calibration)
        found.append(_source("calibration", path))
    elif calibration is None and prediction.model.label:
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

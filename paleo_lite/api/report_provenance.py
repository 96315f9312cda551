"""Provenance of a report: the command that reproduces it, the version, the date, and the hashes of its input files."""

from __future__ import annotations

import datetime
import hashlib
import os
import shlex
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from ..architectures import Network, is_network_file, path_of_network
from ..counting import GENERATION_PHASES
from ..errors import BadFile
from ..files import shipped_folder
from ..machines import Device
from ..reporting.document import Provenance, Source
from ..timing import Prediction
from ..timing.workload import TrainingOptions
from ..units import format_shape
from ..version import __version__
from .arguments import option_name, to_paths
from .report_arguments import PREDICTION_ARGUMENTS, SERVING_ARGUMENTS, WORKERS_ARGUMENTS, ReportArguments

if TYPE_CHECKING:
    from ..calibration.store import Calibration


def command_line(
    arguments: ReportArguments,
    command: str,
    names: Collection[str] | None = None,
    spelled: Callable[[str, Any], list[str] | None] = lambda name, value: None,
) -> list[str]:
    """Return a command line with the arguments that differ from their defaults.

    Parameters
    ----------
    command : str
        Name of the command.
    names : collection of str, optional
        Use only these arguments; by default all.
    spelled : callable
        Returns the words of an argument that the command spells in another way than `report`, else None.
    """
    line = ["paleo-lite", command]
    for name in arguments.used_arguments():
        if names is not None and name not in names:
            continue
        value = getattr(arguments, name)
        words = spelled(name, value)
        if words is not None:
            line += words
        elif name == "network":
            line.append(_format_argument(value))
        elif name == "training":
            line += _training_options(value)
        elif name == "hardware_files":
            for path in to_paths(value):
                line += [option_name(name), str(path)]
        elif name == "inputs":
            for shape in value:
                line += [option_name(name), format_shape(shape)]
        elif value is True:
            line.append(option_name(name))
        else:
            line += [option_name(name), _format_argument(value)]
    return line


def _training_options(training: TrainingOptions) -> list[str]:
    """Return the command-line options of the training options that differ from their defaults."""
    default = TrainingOptions("sgd")
    names = (
        "optimizer",
        "mixed_precision",
        "checkpointing",
        "accumulation",
        "fused_loss",
        "loss_chunks",
        "fp32_gradients",
        "lora_rank",
        "lora_modules",
        "freeze",
        "train_only",
        "offload",
    )
    options = []
    for name in names:
        value = getattr(training, name)
        if value == getattr(default, name):
            continue
        options.append(option_name(name))
        if value is not True:
            options.append(_format_argument(value))
    return options


def _format_argument(value: Any) -> str:
    if isinstance(value, (tuple, list)):
        return ",".join(str(item) for item in value)
    if isinstance(value, float):
        return repr(value).removesuffix(".0")
    if isinstance(value, Device):
        return value.id
    if isinstance(value, Network):
        return value.name
    return str(value)


def make_provenance(
    arguments: ReportArguments, sources: Sequence[Source], next_commands: Sequence[tuple[str, str]] = ()
) -> Provenance:
    """Return the provenance of a report; the date is SOURCE_DATE_EPOCH if set, as for reproducible builds."""
    epoch = os.environ.get("SOURCE_DATE_EPOCH", "")
    if epoch.isdecimal():
        now = datetime.datetime.fromtimestamp(int(epoch), datetime.UTC)
    else:
        now = datetime.datetime.now(datetime.UTC)
    command = shlex.join(command_line(arguments, "report"))
    return Provenance(command, __version__, now.date().isoformat(), sources, next_commands)


def json_commands(arguments: ReportArguments, prediction: Prediction) -> list[tuple[str, str]]:
    """Return the commands that give the numbers of a report as JSON."""
    batch_size = ["--batch-size", str(prediction.batch_size)]
    names: tuple[str, ...] = (*PREDICTION_ARGUMENTS, "execution")
    if prediction.phase == "training":
        predict_line = command_line(arguments, "train", names, _words_of_training)
    else:
        predict_line = command_line(arguments, "predict", names, _words_of_group)
        batch_size = [*batch_size, "--phase", prediction.phase]
    predict_line += [*batch_size, "--format", "json"]
    commands = [("The prediction as JSON", shlex.join(predict_line))]
    if arguments.has_workers:
        names = (*PREDICTION_ARGUMENTS, *WORKERS_ARGUMENTS)
        if arguments.phase in GENERATION_PHASES:
            scale_line = command_line(arguments, "predict", (*names, "phase", "execution"), _words_of_group)
        else:
            scale_line = command_line(arguments, "train", names, _words_of_training)
            if arguments.scaling == "strong":
                batch_size = ["--global-batch-size", str(prediction.batch_size)]
        scale_line += [*batch_size, "--format", "json"]
        commands.append(("Several devices as JSON", shlex.join(scale_line)))
    if arguments.rate is not None:
        names = (
            "network",
            "gpu",
            "precision",
            "weights",
            "rate",
            *SERVING_ARGUMENTS,
            "time_model",
            "clock",
            "power_limit",
            "unit",
            "hardware_files",
        )
        serve_line = [*command_line(arguments, "serve", names), "--format", "json"]
        commands.append(("Serving as JSON", shlex.join(serve_line)))
    return commands


def _words_of_training(name: str, value: Any) -> list[str] | None:
    """Return the words of ``train`` for an argument that `report` spells in another way."""
    if name == "training":
        return _training_words(value)
    if name == "images":
        tokens = str(value).removesuffix("tokens").strip()
        return ["--samples", str(value)] if tokens == str(value) else ["--tokens", tokens]
    if name == "collective":
        return ["--communication", f"collective={value}"]
    if name == "advise":
        return ["--advise", "time"]
    return [] if name == "scaling" else None  # the option of the batch size says it


def _training_words(training: TrainingOptions) -> list[str]:
    """Return the words of ``train`` for the training options that differ from their defaults."""
    words = _training_options(msgspec.structs.replace(training, checkpointing="none", fused_loss=None, loss_chunks=1))
    if training.checkpointing != "none":
        words += ["--recompute", training.checkpointing]
    if training.fused_loss is not None:
        words += ["--loss", "fused" if training.fused_loss else "fp32"]
    elif training.loss_chunks > 1:
        words += ["--loss", str(training.loss_chunks)]
    return words


def _words_of_group(name: str, value: Any) -> list[str] | None:
    """Return the words of ``predict`` for an argument that `report` spells in another way."""
    if name == "workers":
        return ["--tensor", _format_argument(value)]
    if name == "execution":
        from ..serving.engines import KERNEL_ENGINES

        return ["--engine" if value in KERNEL_ENGINES else "--execution", value]
    return ["--phase", value] if name == "phase" else None


def network_sources(
    arguments: ReportArguments, prediction: Prediction, calibration: Calibration | None
) -> list[Source]:
    """Return the input files of a prediction: descriptor, device, and calibration or pool of calibrations."""
    sources: list[Source] = []
    network = arguments.network
    shipped_descriptor = shipped_folder("models") / f"{prediction.network}.json"
    if isinstance(network, str) and is_network_file(network):
        sources.append(file_source("network", path_of_network(network)))
    elif shipped_descriptor.is_file() and arguments.image_size is None:
        sources.append(file_source("network", shipped_descriptor))
    sources += device_sources(prediction.device, arguments.hardware_paths)
    calibrations = shipped_folder("calibrations")
    named = arguments.calibration
    if calibration is not None and (named is None or isinstance(named, str)):
        if named and named.endswith(".toml"):
            path = Path(named)
        else:
            path = calibrations / f"{calibration.device}-{calibration.precision}.toml"
        sources.append(file_source("calibration", path))
    elif calibration is None and prediction.model.label:
        from ..calibration.choose import POOL_FILE

        sources.append(file_source("fits of other devices", calibrations / POOL_FILE))
    return sources


def device_sources(device: Device, hardware_paths: Sequence[Path]) -> list[Source]:
    """Return the file that describes a device."""
    paths = [path for path in hardware_paths if path.stem == device.id]
    if not paths:
        paths = [shipped_folder("hardware") / f"{device.id}.toml"]
    return [file_source("device", path) for path in paths if path.is_file()]


def file_source(description: str, path: Path) -> Source:
    """Return name and SHA-256 of a file."""
    digest = hashlib.sha256()
    try:
        with path.open("rb") as file:
            while block := file.read(2**20):
                digest.update(block)
    except OSError as error:
        raise BadFile(f"{path}: cannot be read ({error.strerror})") from None
    return Source(description, path.name, digest.hexdigest())

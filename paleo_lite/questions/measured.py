"""Records of `measurements`, `calibrate`, `validate` and `measure`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import click

from ..files import Paths, to_paths
from .completion import DEVICE, NETWORK
from .kind import make_function
from .names import Names
from .option import Options, argument, option, options_of
from .profile_options import FileNames, ProcessOptions
from .recorded_facts import RunFacts
from .records import DEVICE_GROUP, HARDWARE_FILES, MODEL_GROUP, NETWORK_GROUP, TRAINING_PRECISIONS
from .values import INTEGER, NUMBER, TOKENS, CommaSeparated

if TYPE_CHECKING:
    from ..calibration.measurements import Measurement
    from ..machines import Device
    from ..result_files.detect import Measurements

FILE_GROUP = "Files"
MEASURING_GROUP = "Measuring"
TOOL_GROUP = "Public tools"

OUTPUT_FILE = click.Path(path_type=Path, dir_okay=False)


@dataclass(frozen=True)
class NamedFacts(Options):
    """What was run on which device, where result files of benchmarks leave it out."""

    compares: ClassVar[bool] = False

    gpu: str | Device | None = option(
        group=DEVICE_GROUP, type=DEVICE, metavar="DEVICE", help="Device, where the files do not record it."
    )
    network: str | None = option(
        group=NETWORK_GROUP, type=NETWORK, metavar="NETWORK", help="Network, where the files do not record it."
    )
    precision: str | None = option(
        group=NETWORK_GROUP,
        type=TRAINING_PRECISIONS,
        metavar="NAME",
        help="Precision, where the files do not record it.",
    )
    sequence_length: int | None = option(
        group=NETWORK_GROUP, type=TOKENS, metavar="TOKENS",
        help="Tokens per sequence, where the files do not record them.",
    )  # fmt: skip


@dataclass(frozen=True)
class RecordedFacts(RunFacts, NamedFacts):
    """What result files of benchmarks may leave out."""

    compares: ClassVar[bool] = False


OF_RESULT_FILES = ("sequence_length", *options_of(RunFacts))
"""Facts that only result files of benchmarks may lack."""


@dataclass(frozen=True)
class ResultFilesQuestion(ProcessOptions, RecordedFacts):
    """Read result files of benchmark tools.

    Every file is recognised by its content. What a file does not record is listed as missing, unless an option or a
    sidecar ``NAME.toml`` beside the file gives it. Unreadable files are listed in `failed` with ``keep_going``.
    """

    paths: Paths = argument("Result files, folders of them, or archives (zip, tar); several are read in parallel.")


def answer_result_files(question: ResultFilesQuestion) -> Measurements:
    """Return what the files say.

    Raise PaleoError for a file that no reader recognises, or one that cannot be read.
    """
    from ..result_files.detect import read_results

    facts = options_of(RecordedFacts)
    user_facts = {name: getattr(question, name) for name in question.given() if name in facts}
    return read_results(to_paths(question.paths), user_facts, question.jobs, question.scheduler, question.keep_going)


measurements = make_function("measurements", ResultFilesQuestion, answer_result_files)


@dataclass(frozen=True)
class CalibrationQuestion(FileNames, RecordedFacts):
    """Fit the parameters of a device to measured steps, or learn from result files of benchmarks.

    Result files of servers, of llama.cpp and its like, and of training (`paleo_lite.measurements`) move the causes of
    their forecasts: they update what was known of other servers, machines and clusters.

    From a profile, the forward and backward pass of a steady iteration are taken. The fit starts from a prior: earlier
    measurements of this device and of others, under the software that the CSV names. Predictions take the result as
    their `calibration`. With `suggest`, nothing is fitted: the result is a list of measurements.
    """

    measured: Paths | Sequence[Measurement] = argument(
        "CSV files of measurements, profiles, folders of profiles, or result files of benchmarks; in Python also a "
        "sequence of `Measurement`. Optional with `suggest`.",
        (),
    )
    gpu: str | Device | None = option(
        group=DEVICE_GROUP, type=DEVICE, metavar="DEVICE",
        help="Device that was measured; only result files may record it.",
    )  # fmt: skip
    network: str | None = option(
        group=NETWORK_GROUP, type=NETWORK, metavar="NETWORK",
        help="Network of the profiles (required for profiles), or of the prediction with --suggest.",
    )  # fmt: skip
    precision: str | None = option(
        group=NETWORK_GROUP, type=TRAINING_PRECISIONS, metavar="NAME",
        help="Precision. [default: fp32, or that of result files]",
    )  # fmt: skip
    batch_size: int | None = option(
        group=NETWORK_GROUP, type=INTEGER, metavar="N",
        help="Use only profiles with this batch size; with --suggest the batch size of the prediction. [default: all; "
        "with --suggest 1]",
    )  # fmt: skip
    phase: str | None = option(
        group=NETWORK_GROUP, type=Names("phase", ".counting:PHASES"), metavar="NAME",
        help="With --suggest: phase of the prediction. [default: inference]",
    )  # fmt: skip
    time_model: str = option(
        "calibrated", group=MODEL_GROUP, type=Names("time model", ".timing:TIME_MODELS"),
        help="Model to fit: calibrated (all parameters), or ppp (platform percent of peak, the parameter of PALEO).",
    )  # fmt: skip
    suggest: int | None = option(
        group=MODEL_GROUP, type=INTEGER, metavar="K",
        help="Suggest the K measurements that would most reduce the prediction interval of --network, or of a typical "
        "set of networks.",
    )  # fmt: skip
    output: str | Path | None = option(
        group=FILE_GROUP, spellings=("--output", "-o"), type=OUTPUT_FILE, metavar="FILE", is_output=True,
        help="TOML file of the calibration.",
    )  # fmt: skip
    force: bool = option(False, group=FILE_GROUP, is_output=True, help="Replace existing files.")
    date: str = option("", group=FILE_GROUP, is_output=True, help="Date of the measurements, for the record.")
    hardware_files: Sequence[str | Path] = option((), **HARDWARE_FILES)


@dataclass(frozen=True)
class ValidationQuestion(Options):
    """Cross-validate the time model: hold measurements out, predict them from the others, and report the errors.

    One network, network family, device or source is held out at a time. Simpler models are evaluated on the same folds:
    one PPP per device, the roofline, one PPP per class of work.
    """

    compares: ClassVar[bool] = False

    data: str | Path | Sequence[Measurement] = argument(
        "A measurements CSV, or a ``.json`` file with an earlier result (`to_dict`), which keeps its split; in Python "
        "also a sequence of `Measurement`."
    )
    split: str = option(
        "network", type=Names("split", ".calibration.validate:SPLITS"),
        help="Groups that are held out one at a time.",
    )  # fmt: skip
    gpus: str | Sequence[str] = option(
        (), spellings=("--gpu",), is_repeatable=True, type=CommaSeparated(DEVICE), metavar="DEVICE[,...]",
        help="Report only these devices, separated by commas; the others are still used for fitting.",
    )  # fmt: skip
    precisions: str | Sequence[str] = option(
        (), spellings=("--precision",), is_repeatable=True, type=CommaSeparated(), metavar="NAME[,...]",
        help="Report only these precisions, separated by commas.",
    )  # fmt: skip


@dataclass(frozen=True)
class MeasuringQuestion(Options):
    """Calibrate this machine: time operations and networks, fit the model, then predict and time other networks.

    Given steps are compared with their predictions instead; `calibrate` with ``suggest`` names the most informative
    ones.
    """

    compares: ClassVar[bool] = False

    steps: str | Sequence[str] = argument(
        "Time only these steps, such as ``resnet18:16:inference`` (network, batch size, phase).", ()
    )
    device: str = option(
        "cpu", group=MEASURING_GROUP, type=Names("device", ".measurement.running:DEVICES"), help="Device to measure."
    )
    quick: bool = option(
        False, group=MEASURING_GROUP,
        help="Measure for less than a minute: fewer networks, inference only, wider intervals.",
    )  # fmt: skip
    threads: int | None = option(
        group=MEASURING_GROUP, type=INTEGER, metavar="N", help="Number of CPU threads. [default: that of torch]"
    )
    precision: str = option(
        "fp32", group=MEASURING_GROUP, type=Names("precision", ".measurement.running:PRECISIONS"),
        help="Precision of the arithmetic.",
    )  # fmt: skip
    phases: str | Sequence[str] = option(
        (), group=MEASURING_GROUP, spellings=("--phase",), is_repeatable=True, metavar="NAME[,...]",
        type=CommaSeparated(Names("phase", ".measurement.running:STEPS")),
        help="Phases to time. [default: inference,training]",
    )  # fmt: skip
    channels_last: bool = option(False, group=MEASURING_GROUP, help="Store images as NHWC.")
    compiled: bool = option(
        False, group=MEASURING_GROUP, spellings=("--compile",), help="Run networks through torch.compile."
    )
    tools: str | Sequence[str] = option(
        (), group=TOOL_GROUP, is_repeatable=True, metavar="NAME[,...]",
        type=CommaSeparated(Names("tool", ".measurement.tools:TOOLS")),
        help="Run these public benchmarks instead, llama-bench, nccl-tests or vllm, and calibrate from their files; "
        "print the commands of those that are not installed.",
    )  # fmt: skip
    model: str | None = option(
        group=TOOL_GROUP, is_single=True, metavar="FILE|NAME",
        help="GGUF file that llama-bench runs, or the name of the network as the server of vllm has it.",
    )  # fmt: skip
    address: str | None = option(
        group=TOOL_GROUP, is_single=True, metavar="URL", help="Running server for vllm, such as http://localhost:8000."
    )
    workers: int | None = option(
        group=TOOL_GROUP, type=INTEGER, metavar="N", help="Number of devices that nccl-tests exchanges data between."
    )
    tensor: int | None = option(
        group=TOOL_GROUP, type=INTEGER, metavar="N", help="Tensor parallelism of the server. [default: 1]"
    )
    network: str | None = option(
        group=TOOL_GROUP, type=NETWORK, metavar="NETWORK", help="Network, where the name of --model is not that of one."
    )
    minutes: float = option(
        10.0, group=TOOL_GROUP, type=NUMBER, metavar="N", help="Time that all benchmarks may take together."
    )
    results: str | Path | None = option(
        group=TOOL_GROUP, type=click.Path(path_type=Path, file_okay=False), metavar="FOLDER",
        help="Folder of the result files. [default: results]",
    )  # fmt: skip
    gpu: str | None = option(
        group=DEVICE_GROUP, type=DEVICE, metavar="DEVICE",
        help="Name of this device, if it is not recognised automatically.",
    )  # fmt: skip
    output: str | Path | None = option(
        group=FILE_GROUP, spellings=("--output", "-o"), type=OUTPUT_FILE, metavar="FILE", is_output=True,
        help="CSV file of the measurements.",
    )  # fmt: skip
    calibration_out: str | Path | None = option(
        group=FILE_GROUP, type=OUTPUT_FILE, metavar="FILE", help="TOML file of the calibration."
    )
    hardware_out: str | Path | None = option(
        group=FILE_GROUP, type=OUTPUT_FILE, metavar="FILE",
        help="TOML file of this machine with its measured peaks, even if the device is known.",
    )  # fmt: skip
    force: bool = option(False, group=FILE_GROUP, is_output=True, help="Replace existing files.")
    hardware_files: Sequence[str | Path] = option((), **HARDWARE_FILES)

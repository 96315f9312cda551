"""`report`: HTML reports, with the command line, version, date and hashes of input files that reproduce them."""

from __future__ import annotations

import datetime
import hashlib
import os
import shlex
from collections.abc import Callable, Collection, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from ..architectures import Network, is_network_file, path_of_network
from ..architectures.pipelines.records import Pipeline
from ..architectures.pipelines.sampling import find_pipeline
from ..counting import GENERATION_PHASES
from ..errors import BadFile, BadValue, PaleoError
from ..extras import require
from ..files import check_outputs, save, shipped_folder
from ..machines import Device, find_device
from ..reporting.document import Document, Provenance, Source
from ..result import Result
from ..timing import Prediction
from ..timing.pipelines import PipelinePrediction
from ..timing.workload import TrainingOptions
from ..units import format_shape
from ..version import __version__
from .arguments import InputShapes, Paths, option_name, to_paths
from .pipelines import PictureOptions, check_others
from .profiles import PROFILE_READER

if TYPE_CHECKING:
    from torch import nn

    from ..calibration.store import Calibration
    from ..distributed.table import ScaleTable
    from ..serving.answers import Serving


class Report(Result, msgspec.Struct, frozen=True, eq=False):
    """A written report.

    Attributes
    ----------
    path : Path
        The HTML file.
    page : Document
        Its content, with charts.
    bytes : int
        Size of the file in bytes.
    """

    path: Path
    page: Document
    bytes: int

    def document(self, **options: Any) -> Document:
        """Return the content of the report."""
        return self.page

    def to_dict(self) -> dict[str, Any]:
        """Return file, title, the command that reproduces it, version and size."""
        assert self.page.provenance is not None
        command, version = self.page.provenance.command, self.page.provenance.version
        return {"file": str(self.path), "title": self.page.title, "command": command, "version": version,
                "bytes": self.bytes}  # fmt: skip


class ReportArguments(msgspec.Struct, frozen=True, kw_only=True):
    """Checked arguments of `report`."""

    network: str | Network | nn.Module | None
    profile: str | os.PathLike[str] | None
    gpu: str | Device
    output: str | Path
    force: bool
    precision: str = "fp32"
    batch_size: int | None = None
    phase: str | None = None
    time_model: str | None = None
    ppp: float | None = None
    calibration: str | Calibration | None = None
    clock: str | None = None
    power_limit: float | str | None = None
    unit: str | None = None
    execution: str | None = None
    fit_batch: bool = False
    training: TrainingOptions | None = None
    workers: int | str | Sequence[int] | None = None
    link: str | None = None
    topology: str | None = None
    platform: str | None = None
    scaling: str | None = None
    strategy: str = "data"
    collective: str | None = None
    advise: bool = False
    images: float | str | None = None
    epochs: float | None = None
    price: float | str | None = None
    rate: float | str | None = None
    input_tokens: int | str | None = None
    output_tokens: int | str | None = None
    policy: str | None = None
    name_pattern: str | None = None
    program: str | None = None
    image_size: int | str | None = None
    steps: int | None = None
    frames: int | None = None
    sequence_length: int | None = None
    context: int | None = None
    weights: str | None = None
    inputs: InputShapes = ()
    hardware_files: Paths = ()

    def __post_init__(self) -> None:
        if (self.network is None) == (self.profile is None):
            raise BadValue("`report` needs a network or a profile (`--profile PATH`): exactly one of them")
        used = self.used_arguments()
        if self.profile is not None:
            for name in used:
                if name not in _COMMON_ARGUMENTS and name not in _PROFILE_ARGUMENTS:
                    raise BadValue(f"`{option_name(name)}` is for the report of a network, not of a profile")
            return
        for name in used:
            if name in _PROFILE_ARGUMENTS:
                raise BadValue(f"`{option_name(name)}` is for the report of a profile: `--profile PATH`")
            if name in _WORKERS_ARGUMENTS and not self.has_workers:
                raise BadValue(
                    f"`{option_name(name)}` is for several devices: give their number, such as `--workers 8`"
                )
            if name in _SERVING_ARGUMENTS and self.rate is None:
                raise BadValue(
                    f"`{option_name(name)}` is for serving: give the requests per second, such as `--rate 5`"
                )
        if self.has_workers and self.phase not in (None, "training", *GENERATION_PHASES):
            raise BadValue(
                f"several devices support `--phase` training, prefill and decode (got {self.phase}): "
                "leave `--workers` out, or choose another phase"
            )
        if self.fit_batch and self.batch_size is not None:
            raise BadValue("`--fit-batch` chooses the batch size: leave `--batch-size` out")

    @property
    def has_workers(self) -> bool:
        """Whether the report includes several devices."""
        return self.workers is not None or self.topology is not None or self.platform is not None

    @property
    def hardware_paths(self) -> list[Path]:
        """Paths of the hardware files."""
        return to_paths(self.hardware_files)

    def used_arguments(self) -> list[str]:
        """Return the names of the arguments that differ from their defaults."""
        names = self.__struct_fields__
        defaults = dict(zip(reversed(names), reversed(self.__struct_defaults__)))
        used = []
        for name in names:
            value = getattr(self, name)
            is_default = value in (defaults.get(name), None, (), [])
            if not is_default and name != "force":
                used.append(name)
        return used


_COMMON_ARGUMENTS = ("gpu", "precision", "hardware_files", "output", "force")
_PROFILE_ARGUMENTS = ("profile", "name_pattern", "program")
_WORKERS_ARGUMENTS = (
    "workers", "link", "topology", "platform", "scaling", "strategy", "collective", "advise", "images", "epochs",
    "price",
)  # fmt: skip
_SERVING_ARGUMENTS = ("input_tokens", "output_tokens", "policy")
_PREDICTION_ARGUMENTS = (
    "network", "gpu", "precision", "time_model", "ppp", "calibration", "clock", "power_limit", "unit", "image_size",
    "steps", "frames", "sequence_length", "context", "inputs", "hardware_files", "training", "weights",
)  # fmt: skip


def report(
    network: str | Network | nn.Module | None = None,
    *,
    profile: str | os.PathLike[str] | None = None,
    gpu: str | Device,
    output: str | Path,
    force: bool = False,
    precision: str = "fp32",
    batch_size: int | None = None,
    phase: str | None = None,
    time_model: str | None = None,
    ppp: float | None = None,
    calibration: str | Calibration | None = None,
    clock: str | None = None,
    power_limit: float | str | None = None,
    unit: str | None = None,
    execution: str | None = None,
    fit_batch: bool = False,
    training: TrainingOptions | None = None,
    workers: int | str | Sequence[int] | None = None,
    link: str | None = None,
    topology: str | None = None,
    platform: str | None = None,
    scaling: str | None = None,
    strategy: str = "data",
    collective: str | None = None,
    advise: bool = False,
    images: float | str | None = None,
    epochs: float | None = None,
    price: float | str | None = None,
    rate: float | str | None = None,
    input_tokens: int | str | None = None,
    output_tokens: int | str | None = None,
    policy: str | None = None,
    name_pattern: str | None = None,
    program: str | None = None,
    image_size: int | str | None = None,
    steps: int | None = None,
    frames: int | None = None,
    sequence_length: int | None = None,
    context: int | None = None,
    weights: str | None = None,
    inputs: InputShapes = (),
    hardware_files: Paths = (),
) -> Report:
    """Write a report of a prediction or a profile: one HTML file that opens offline.

    Parameters
    ----------
    network, gpu, precision, time_model, ppp, calibration, clock, power_limit, unit, execution, weights, fit_batch,
    training
        As for `paleo_lite.predict`.
    profile : path, optional
        Profile to report on, instead of a network.
    output : path
        The HTML file; an existing file is replaced only with `force`.
    batch_size : int, optional
        Samples per pass; by default 1, or 32 per worker for training on several workers.
    phase : str, optional
        Phase of the prediction; by default ``inference``, with several workers ``training``.
    workers, link, topology, platform, scaling, strategy, collective, advise, images, epochs, price
        Prediction on several devices: as for `paleo_lite.scale`.
    rate : float or str, optional
        Requests per second: the report also predicts the device as a server of the language model.
    input_tokens, output_tokens, policy
        Lengths of prompts and answers, and serving engine: as for `paleo_lite.serve`.
    name_pattern : str, optional
        For a profile: as for `paleo_lite.efficiency`.
    program : str, optional
        For a profile: the program in the suggested profiler commands; by default ``python train.py``.
    image_size, steps, frames, sequence_length, context, inputs, hardware_files
        As for `paleo_lite.predict`.

    Returns
    -------
    Report

    Raises
    ------
    PaleoError
        For an existing output file, a combination of arguments that is not supported, and as for `paleo_lite.predict`.
    """
    arguments = ReportArguments(
        network=network,
        profile=profile,
        gpu=gpu,
        output=output,
        force=force,
        precision=precision,
        batch_size=batch_size,
        phase=phase,
        time_model=time_model,
        ppp=ppp,
        calibration=calibration,
        clock=clock,
        power_limit=power_limit,
        unit=unit,
        execution=execution,
        fit_batch=fit_batch,
        training=training,
        workers=workers,
        link=link,
        topology=topology,
        platform=platform,
        scaling=scaling,
        strategy=strategy,
        collective=collective,
        advise=advise,
        images=images,
        epochs=epochs,
        price=price,
        rate=rate,
        input_tokens=input_tokens,
        output_tokens=output_tokens,
        policy=policy,
        name_pattern=name_pattern,
        program=program,
        image_size=image_size,
        steps=steps,
        frames=frames,
        sequence_length=sequence_length,
        context=context,
        weights=weights,
        inputs=inputs,
        hardware_files=hardware_files,
    )
    path = Path(output)
    check_outputs(path, force=force)
    if path.suffix.lower() not in (".html", ".htm"):
        raise BadValue(f"{path}: the file name of a report must end in .html")
    for library in ("vl_convert", "altair", "jinja2"):
        require(library, "writing a report", "plots")
    if profile is not None:
        page = _profile_page(arguments, Path(profile))
    else:
        from ..reporting.charts.render import warm_up_renderer

        warm_up_renderer()  # in a thread, during the prediction
        page = _network_page(arguments)
    from ..reporting.page.html import to_html

    content = to_html(page).encode()
    save(path, content)
    return Report(path, page, len(content))


def _profile_page(arguments: ReportArguments, path: Path) -> Document:
    """Return the report of a profile."""
    require(*PROFILE_READER)
    from ..profile_analysis import TOOLS
    from ..profile_analysis.analysis import ReadOptions, measure_efficiency
    from ..profile_analysis.kernels import report_kernels
    from ..profile_analysis.next_command import next_command
    from ..profile_analysis.timeline import read_timeline
    from ..profiles.detect import open_profile
    from ..reporting.page.profile import profile_report

    pattern = arguments.name_pattern
    precision = arguments.precision
    device = find_device(arguments.gpu, arguments.hardware_paths)
    device.find_peak(precision)  # raises UnknownPrecision before the file is read
    kernels = report_kernels(open_profile(path, pattern), device, precision)

    def result_or_message(function: Callable[[], Any]) -> Any:
        """Return the result of a function, or the message of its error without the file name."""
        try:
            return function()
        except PaleoError as error:
            return str(error).removeprefix(f"{path}: ")

    program = arguments.program or "python train.py"
    next_commands: list[tuple[str, str]] = []
    for tool in TOOLS:
        commands = result_or_message(partial(next_command, kernels.kernels, tool, program))
        if isinstance(commands, list):
            purposes = [f"With {tool}", "and then"]
            next_commands += zip(purposes, commands)
    sources = [_file_source("profile", path), *_device_sources(device, arguments.hardware_paths)]
    return profile_report(
        kernels,
        _make_provenance(arguments, sources),
        efficiency=result_or_message(
            lambda: measure_efficiency([path], device, ReadOptions(name_pattern=pattern), precision, jobs=1)
        ),
        timeline=result_or_message(lambda: read_timeline(open_profile(path, pattern), 300)),
        next_commands=next_commands,
    )


def _network_page(arguments: ReportArguments) -> Document:
    """Return the report of a prediction."""
    from ..architectures.network import SequenceOptions
    from ..calibration.alternatives import try_alternatives
    from ..calibration.choose import used_calibration
    from ..reporting.page.prediction import prediction_report
    from .prediction import predict_network, resolve_network, square_size

    phase = arguments.phase
    if phase is None:
        phase = "training" if arguments.has_workers else "inference"
    assert arguments.network is not None
    pipeline = find_pipeline(arguments.network) if isinstance(arguments.network, str) else None
    if pipeline is not None and phase == "inference":
        return _pipeline_page(arguments, pipeline)
    PictureOptions(steps=arguments.steps, frames=arguments.frames).check_absent(arguments.network)
    sequence = SequenceOptions(arguments.sequence_length, arguments.context, phase)
    network = resolve_network(
        arguments.network, square_size(arguments.image_size, arguments.network), arguments.inputs, sequence
    )
    batch_size = arguments.batch_size
    if batch_size is None:
        is_batch_per_worker = arguments.has_workers and phase == "training"
        batch_size = 32 if is_batch_per_worker and not arguments.fit_batch else 1
    prediction = predict_network(
        network,
        gpu=arguments.gpu,
        precision=arguments.precision,
        batch_size=batch_size,
        phase=phase,
        time_model=arguments.time_model,
        ppp=arguments.ppp,
        clock=arguments.clock,
        power_limit=arguments.power_limit,
        unit=arguments.unit,
        hardware_files=arguments.hardware_paths,
        calibration=arguments.calibration,
        training=arguments.training,
        fit_batch=arguments.fit_batch,
        memory=True,
        execution=arguments.execution,
        weights=arguments.weights,
    )
    scaling = None
    if arguments.has_workers:
        scaling = _predict_scaling(arguments, network, prediction.batch_size)
    serving = None if arguments.rate is None else _predict_serving(arguments, network)
    calibration = used_calibration(prediction, arguments.calibration)
    sources = _network_sources(arguments, prediction, calibration)
    return prediction_report(
        prediction,
        _make_provenance(arguments, sources, _json_commands(arguments, prediction)),
        alternatives=try_alternatives(prediction, arguments.time_model, arguments.hardware_paths),
        scaling=scaling,
        serving=serving,
        calibration=calibration,
    )


def _pipeline_page(arguments: ReportArguments, pipeline: Pipeline) -> Document:
    """Return the report of a pipeline's prediction."""
    from ..reporting.page.pipeline import pipeline_report
    from .prediction import predict

    check_others(
        pipeline,
        {
            "--workers": (arguments.has_workers, False),
            "--rate": (arguments.rate, None),
            "--fit-batch": (arguments.fit_batch, False),
        },
    )
    prediction = predict(
        arguments.network,
        gpu=arguments.gpu,
        precision=arguments.precision,
        batch_size=arguments.batch_size or 1,
        image_size=arguments.image_size,
        steps=arguments.steps,
        frames=arguments.frames,
        time_model=arguments.time_model,
        ppp=arguments.ppp,
        clock=arguments.clock,
        power_limit=arguments.power_limit,
        unit=arguments.unit,
        hardware_files=arguments.hardware_paths,
        calibration=arguments.calibration,
        execution=arguments.execution,
        weights=arguments.weights,
        sequence_length=arguments.sequence_length,
        context=arguments.context,
        inputs=arguments.inputs,
        training=arguments.training,
    )
    assert isinstance(prediction, PipelinePrediction)
    line = _command_line(arguments, "predict", (*_PREDICTION_ARGUMENTS, "execution", "batch_size"))
    commands = [("The prediction as JSON", shlex.join([*line, "--format", "json"]))]
    sources = _device_sources(prediction.device, arguments.hardware_paths)
    return pipeline_report(prediction, _make_provenance(arguments, sources, commands))


def _predict_serving(arguments: ReportArguments, network: Network) -> Serving:
    """Return the prediction of the device as a server of a language model."""
    from .serve import serve

    return serve(
        network,
        gpu=arguments.gpu,
        precision=arguments.precision,
        rate=arguments.rate,
        input_tokens=arguments.input_tokens or 1024,
        output_tokens=arguments.output_tokens or 256,
        policy=arguments.policy or "vllm",
        weights=arguments.weights,
        time_model=arguments.time_model,
        clock=arguments.clock,
        power_limit=arguments.power_limit,
        unit=arguments.unit,
        hardware_files=arguments.hardware_paths,
    )


def _predict_scaling(arguments: ReportArguments, network: Network, batch_size: int) -> ScaleTable:
    """Return the prediction on several devices."""
    from ..distributed.settings import Settings
    from .scaling import scale_network

    is_generating = arguments.phase in GENERATION_PHASES
    return scale_network(
        network,
        gpu=arguments.gpu,
        workers=arguments.workers,
        link=arguments.link,
        topology=arguments.topology,
        platform=arguments.platform,
        batch_size=batch_size,
        scaling=arguments.scaling,
        strategy=arguments.strategy,
        advise=arguments.advise,
        settings=Settings(collective=arguments.collective),
        precision=arguments.precision,
        phase=arguments.phase if is_generating and arguments.phase else "training",
        training=arguments.training,
        weights=arguments.weights if is_generating else None,
        execution=arguments.execution if is_generating else None,
        time_model=arguments.time_model,
        ppp=arguments.ppp,
        calibration=arguments.calibration,
        clock=arguments.clock,
        power_limit=arguments.power_limit,
        unit=arguments.unit,
        images=arguments.images,
        epochs=arguments.epochs,
        price=arguments.price,
        hardware_files=arguments.hardware_paths,
    )


def _command_line(arguments: ReportArguments, command: str, names: Collection[str] | None = None) -> list[str]:
    """Return a command line with the arguments that differ from their defaults.

    Parameters
    ----------
    command : str
        Name of the command.
    names : collection of str, optional
        Use only these arguments; by default all.
    """
    line = ["paleo-lite", command]
    for name in arguments.used_arguments():
        if names is not None and name not in names:
            continue
        value = getattr(arguments, name)
        if name == "network":
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


def _make_provenance(
    arguments: ReportArguments, sources: Sequence[Source], next_commands: Sequence[tuple[str, str]] = ()
) -> Provenance:
    """Return the provenance of a report; the date is SOURCE_DATE_EPOCH if set, as for reproducible builds."""
    epoch = os.environ.get("SOURCE_DATE_EPOCH", "")
    if epoch.isdecimal():
        now = datetime.datetime.fromtimestamp(int(epoch), datetime.timezone.utc)
    else:
        now = datetime.datetime.now(datetime.timezone.utc)
    command = shlex.join(_command_line(arguments, "report"))
    return Provenance(command, __version__, now.date().isoformat(), sources, next_commands)


def _json_commands(arguments: ReportArguments, prediction: Prediction) -> list[tuple[str, str]]:
    """Return the commands that give the numbers of a report as JSON."""
    batch_size = ["--batch-size", str(prediction.batch_size)]
    predict_line = _command_line(arguments, "predict", (*_PREDICTION_ARGUMENTS, "execution"))
    predict_line += [*batch_size, "--phase", prediction.phase, "--format", "json"]
    commands = [("The prediction as JSON", shlex.join(predict_line))]
    if arguments.has_workers:
        names = [*_PREDICTION_ARGUMENTS, *_WORKERS_ARGUMENTS]
        if arguments.phase in GENERATION_PHASES:
            names += ["phase", "execution"]
        scale_line = [*_command_line(arguments, "scale", names), *batch_size, "--format", "json"]
        commands.append(("Several devices as JSON", shlex.join(scale_line)))
    if arguments.rate is not None:
        names = [
            "network",
            "gpu",
            "precision",
            "weights",
            "rate",
            *_SERVING_ARGUMENTS,
            "time_model",
            "clock",
            "power_limit",
            "unit",
        ]
        serve_line = [*_command_line(arguments, "serve", [*names, "hardware_files"]), "--format", "json"]
        commands.append(("Serving as JSON", shlex.join(serve_line)))
    return commands


def _network_sources(
    arguments: ReportArguments, prediction: Prediction, calibration: Calibration | None
) -> list[Source]:
    """Return the input files of a prediction: descriptor, device, and calibration or pool of calibrations."""
    sources: list[Source] = []
    network = arguments.network
    shipped_descriptor = shipped_folder("models") / f"{prediction.network}.json"
    if isinstance(network, str) and is_network_file(network):
        sources.append(_file_source("network", path_of_network(network)))
    elif shipped_descriptor.is_file() and arguments.image_size is None:
        sources.append(_file_source("network", shipped_descriptor))
    sources += _device_sources(prediction.device, arguments.hardware_paths)
    calibrations = shipped_folder("calibrations")
    named = arguments.calibration
    if calibration is not None and (named is None or isinstance(named, str)):
        if named and named.endswith(".toml"):
            path = Path(named)
        else:
            path = calibrations / f"{calibration.device}-{calibration.precision}.toml"
        sources.append(_file_source("calibration", path))
    elif calibration is None and prediction.model.label:
        from ..calibration.choose import POOL_FILE

        sources.append(_file_source("fits of other devices", calibrations / POOL_FILE))
    return sources


def _device_sources(device: Device, hardware_paths: Sequence[Path]) -> list[Source]:
    """Return the file that describes a device."""
    paths = [path for path in hardware_paths if path.stem == device.id]
    if not paths:
        paths = [shipped_folder("hardware") / f"{device.id}.toml"]
    return [_file_source("device", path) for path in paths if path.is_file()]


def _file_source(description: str, path: Path) -> Source:
    """Return name and SHA-256 of a file."""
    digest = hashlib.sha256()
    try:
        with path.open("rb") as file:
            while block := file.read(2**20):
                digest.update(block)
    except OSError as error:
        raise BadFile(f"{path}: cannot be read ({error.strerror})") from None
    return Source(description, path.name, digest.hexdigest())

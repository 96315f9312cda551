"""`report`: HTML reports, with what reproduces them."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from ..architectures import Network
from ..architectures.pipelines.records import Pipeline
from ..architectures.pipelines.sampling import find_pipeline
from ..counting import GENERATION_PHASES
from ..errors import BadValue, PaleoError
from ..extras import require
from ..files import check_outputs, save
from ..machines import Device, find_device
from ..reporting.document import Document
from ..result import Result
from ..timing import Prediction
from ..timing.pipeline_prediction import PipelinePrediction
from ..timing.workload import TrainingOptions
from .arguments import InputShapes, Paths
from .pipelines import check_others
from .profiles import PROFILE_READER
from .report_arguments import PREDICTION_ARGUMENTS, ReportArguments
from .report_provenance import (
    command_line,
    device_sources,
    file_source,
    json_commands,
    make_provenance,
    network_sources,
)

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
    price_of: str | None = None,
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
    electricity: float | str | None = None,
    carbon_intensity: float | str | None = None,
    pue: float | None = None,
    host_watts: float | str | None = None,
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
    workers, link, topology, platform, scaling, strategy, collective, advise, images, epochs, price, price_of
        Prediction on several devices: as for `paleo_lite.scale`.
    rate : float or str, optional
        Requests per second: the report also predicts the device as a server of the language model.
    input_tokens, output_tokens, policy
        Lengths of prompts and answers, and serving engine: as for `paleo_lite.serve`.
    name_pattern : str, optional
        For a profile: as for `paleo_lite.efficiency`.
    program : str, optional
        For a profile: the program in the suggested profiler commands; by default ``python train.py``.
    image_size, steps, frames, sequence_length, context, inputs, electricity, carbon_intensity, pue, host_watts,
    hardware_files
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
        price_of=price_of,
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
        electricity=electricity,
        carbon_intensity=carbon_intensity,
        pue=pue,
        host_watts=host_watts,
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
    from ..profile_analysis.analysis import measure_efficiency
    from ..profile_analysis.kernels import report_kernels
    from ..profile_analysis.next_command import next_command
    from ..profile_analysis.one_file import ReadOptions
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
    sources = [file_source("profile", path), *device_sources(device, arguments.hardware_paths)]
    return profile_report(
        kernels,
        make_provenance(arguments, sources),
        efficiency=result_or_message(
            lambda: measure_efficiency([path], device, ReadOptions(name_pattern=pattern), precision, jobs=1)
        ),
        timeline=result_or_message(lambda: read_timeline(open_profile(path, pattern), 300)),
        next_commands=next_commands,
    )


def _network_page(arguments: ReportArguments) -> Document:
    """Return the report of a prediction."""
    from ..calibration.alternatives import try_alternatives
    from ..calibration.choose import used_calibration
    from ..reporting.page.prediction import prediction_report
    from .prediction import answer

    phase = arguments.phase
    if phase is None:
        phase = "training" if arguments.has_workers else "inference"
    assert arguments.network is not None
    pipeline = find_pipeline(arguments.network) if isinstance(arguments.network, str) else None
    if pipeline is not None and phase == "inference":
        return _pipeline_page(arguments, pipeline)
    batch_size = arguments.batch_size
    if batch_size is None:
        is_batch_per_worker = arguments.has_workers and phase == "training"
        batch_size = 32 if is_batch_per_worker and not arguments.fit_batch else 1
    prediction = answer(arguments.question(batch_size, phase))
    assert isinstance(prediction, Prediction)
    network = prediction.workload.network
    scaling = None
    if arguments.has_workers:
        scaling = _predict_scaling(arguments, network, prediction.batch_size)
    serving = None if arguments.rate is None else _predict_serving(arguments, network)
    calibration = used_calibration(prediction, arguments.calibration)
    sources = network_sources(arguments, prediction, calibration)
    return prediction_report(
        prediction,
        make_provenance(arguments, sources, json_commands(arguments, prediction)),
        alternatives=try_alternatives(prediction, arguments.time_model, arguments.hardware_paths),
        scaling=scaling,
        serving=serving,
        calibration=calibration,
    )


def _pipeline_page(arguments: ReportArguments, pipeline: Pipeline) -> Document:
    """Return the report of a pipeline's prediction."""
    from ..reporting.page.pipeline import pipeline_report
    from .prediction import answer

    check_others(
        pipeline,
        {
            "--workers": (arguments.has_workers, False),
            "--rate": (arguments.rate, None),
            "--fit-batch": (arguments.fit_batch, False),
        },
    )
    prediction = answer(arguments.question(arguments.batch_size or 1, "inference"))
    assert isinstance(prediction, PipelinePrediction)
    line = command_line(arguments, "predict", (*PREDICTION_ARGUMENTS, "execution", "batch_size"))
    commands = [("The prediction as JSON", shlex.join([*line, "--format", "json"]))]
    sources = device_sources(prediction.device, arguments.hardware_paths)
    return pipeline_report(prediction, make_provenance(arguments, sources, commands))


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
        price_of=arguments.price_of,
        hardware_files=arguments.hardware_paths,
    )

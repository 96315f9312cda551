"""Reports: one file with the answer to a question or to a profile, charts, sources, and what reproduces it."""

from __future__ import annotations

import datetime
import importlib
import os
import shlex
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from ..architectures import is_network_file, path_of_network
from ..arguments import check_arguments
from ..errors import BadValue, PaleoError
from ..extras import require
from ..files import check_outputs, save, sha256_of, shipped_folder
from ..machines import Device, find_device
from ..reporting.document import Document, KeyFigure, ReportProvenance, Source, Table, draw_chart
from ..result import Result
from ..timing import Prediction
from ..timing.pipeline_prediction import PipelinePrediction
from ..version import __version__
from .option import Options, command_words

if TYPE_CHECKING:
    from ..calibration.store import Calibration
    from ..profile_analysis.kernels import KernelRow
    from .kind import QuestionKind

_PAGES = (".html", ".htm")
_TABLES = (".xlsx", ".zip")


class Report(Result, msgspec.Struct, frozen=True, eq=False):
    """A written report."""

    path: Path  # the file
    page: Document  # its content, with charts
    bytes: int  # size of the file

    def document(self, **options: Any) -> Document:
        """Return the content of the report."""
        return self.page

    def to_dict(self) -> dict[str, Any]:
        """Return file, title, the command that reproduces it, version and size."""
        assert self.page.provenance is not None
        command, version = self.page.provenance.command, self.page.provenance.version
        return {"file": str(self.path), "title": self.page.title, "command": command, "version": version,
                "bytes": self.bytes}  # fmt: skip


def check_report_file(path: Path, *, force: bool, kind: QuestionKind | None = None) -> None:
    """Check the file of a report before its answer is computed.

    Raise BadValue if the file exists, or its name does not end in .html, .xlsx, .zip or as a file of the kind of
    question, BadFile if it cannot be written, and MissingExtra if a library for reports is not installed.
    """
    check_outputs(path, force=force)
    if kind is not None and _find_writer(kind, path):
        return
    suffix = path.suffix.lower()
    if suffix not in (*_PAGES, *_TABLES):
        others = "" if kind is None or not kind.files else f"; as {kind.name} has them, also in {', '.join(kind.files)}"
        raise BadValue(
            f"{path}: the file name of a report must end in .html, or for its tables alone in .xlsx or .zip "
            f"(of CSVs){others}"
        )
    if suffix == ".xlsx":
        require("xlsxwriter", "writing a workbook", "tables")
    for library in ("vl_convert", "altair", "jinja2"):
        require(library, "writing a report", "plots")


def _find_writer(kind: QuestionKind, path: Path) -> str:
    """Return what writes a file of a kind of question, by the end of its name; empty for pages and tables."""
    name = f".{path.name.lower()}"
    return next((writer for ending, (writer, _) in kind.files.items() if name.endswith(ending)), "")


@check_arguments
def report(question: Options, output: str | Path, *, force: bool = False) -> Report:
    """Answer a question, and write the answer with charts and sources into a page that opens offline, or its tables.

    >>> import paleo_lite as pl
    >>> pl.report(pl.Predict("resnet50", gpu="t4"), "report.html")  # doctest: +SKIP

    Parameters
    ----------
    question : Predict, Train, Serve, Local or Diffusion
        The question.
    output : path
        An HTML file, a workbook of all tables (.xlsx) or an archive of them as CSV files (.zip), or a file that the
        kind of question has besides (`QuestionKind.files`); an existing file is replaced only with `force`.

    Raises
    ------
    PaleoError
        If the question has no answer, the file exists, or the extra ``plots`` is missing.
    """
    from ..reporting.charts.render import warm_up_renderer
    from .sweep import kind_of

    path, kind = Path(output), kind_of(question)
    check_report_file(path, force=force, kind=kind)
    if not _find_writer(kind, path):
        warm_up_renderer()  # in a thread, during the prediction
    return write_report(question, kind.answer(question), path)


def write_report(question: Options, answer: Result, path: Path) -> Report:
    """Write the report of an answer, after `check_report_file`."""
    from .sweep import kind_of

    kind = kind_of(question)
    writer = _find_writer(kind, path)
    if writer:
        module, _, function = writer.partition(":")
        content: bytes = getattr(importlib.import_module(f".{module}", __package__), function)(question, answer, path)
        save(path, content)
        return Report(path, answer.document(), len(content))
    words = command_words(kind.name, question)
    files = [Path(file) for file in getattr(question, "hardware_files", ())]
    again = shlex.join([*words, "--report", str(path)])
    commands = [("The answer as JSON", shlex.join([*words, "--format", "json"]))]

    def provenance(sources: Sequence[Source]) -> ReportProvenance:
        return make_provenance(again, sources, commands)

    if isinstance(answer, Prediction) and answer.workload.has_layers:
        page = _prediction_page(question, answer, files, provenance)
    elif isinstance(answer, PipelinePrediction):
        from ..reporting.page.prediction import pipeline_report

        page = pipeline_report(answer, provenance(device_sources(answer.device, files)))
    else:
        page = _answer_page(kind, answer, provenance(_network_sources(getattr(question, "network", None))))
    return _save(path, page)


def _save(path: Path, page: Document) -> Report:
    """Write a page, or its tables alone."""
    suffix = path.suffix.lower()
    if suffix in _TABLES:
        from ..reporting.workbook import to_archive, to_workbook

        content = to_workbook(page) if suffix == ".xlsx" else to_archive(page)
    else:
        from ..reporting.page.html import to_html

        content = to_html(page).encode()
    save(path, content)
    return Report(path, page, len(content))


def _prediction_page(
    question: Any,
    prediction: Prediction,
    files: Sequence[Path],
    provenance: Callable[[Sequence[Source]], ReportProvenance],
) -> Document:
    """Return the report of a network on one device."""
    from ..calibration.alternatives import try_alternatives
    from ..calibration.choose import used_calibration
    from ..reporting.page.prediction import prediction_report

    calibration = used_calibration(prediction, question.calibration)
    sources = [
        *_network_sources(question.network),
        *device_sources(prediction.device, files),
        *_calibration_sources(prediction, question.calibration, calibration),
    ]
    return prediction_report(
        prediction,
        provenance(sources),
        alternatives=try_alternatives(prediction, question.time_model, list(files)),
        calibration=calibration,
    )


def _answer_page(kind: Any, answer: Result, provenance: ReportProvenance) -> Document:
    """Return the report of any answer: what the command prints, with its chart."""
    from ..api.plotting import KINDS, Plot
    from ..reporting.page.sections import figures_of, sources_section
    from ..reporting.side_by_side import CONCLUSIONS

    page = answer.document()
    content: list[Any] = []
    chart = _chart_of(kind, answer)
    if chart:
        description = KINDS[chart].sentence
        content.append(draw_chart(description, lambda: Plot(chart, answer).chart))
    content += [part.replace(sortable=len(part.rows) > 1) if isinstance(part, Table) else part for part in page.content]
    sections = [Document("Figures", page.facts, content, name="figures")]
    if page.notes:
        sections.append(Document("Notes", notes=page.notes, name="notes"))
    figures = [KeyFigure(name.capitalize(), *_split_at(text, ": ")) for name, text in page.facts if name in CONCLUSIONS]
    title, _, summary = page.title.partition(": ") if "side by side" not in page.title else (page.title, "", "")
    return Document(
        title=title,
        introduction=[f"{summary[0].upper()}{summary[1:]}.", *page.introduction] if summary else page.introduction,
        answers=figures or figures_of(answer),
        sections=[*sections, sources_section(provenance)],
        provenance=provenance,
    )


def _split_at(text: str, separator: str) -> tuple[str, str]:
    """Return a text in two parts."""
    first, _, rest = text.partition(separator)
    return first, rest


def _chart_of(kind: Any, answer: Any) -> str:
    """Return the kind of chart that draws an answer; empty if none does."""
    from ..api.plotting import KINDS, chart_of_comparison
    from ..sweeps.best import Best
    from ..sweeps.comparison import Comparison

    if isinstance(answer, Comparison):
        return chart_of_comparison(answer)
    if isinstance(answer, Best):
        return "pareto" if len(answer.columns) > 1 else ""
    chosen = kind.chart(answer) if kind.chart is not None else ""
    first = next((name for name, chart in KINDS.items() if chart.command == kind.name), "")
    return chosen or kind.default_chart or first


def make_provenance(
    command: str, sources: Sequence[Source], next_commands: Sequence[tuple[str, str]] = ()
) -> ReportProvenance:
    """Return the provenance of a report; the date is SOURCE_DATE_EPOCH if set, as for reproducible builds."""
    epoch = os.environ.get("SOURCE_DATE_EPOCH", "")
    now = datetime.datetime.now(datetime.UTC)
    if epoch.isdecimal():
        now = datetime.datetime.fromtimestamp(int(epoch), datetime.UTC)
    return ReportProvenance(command, __version__, now.date().isoformat(), sources, next_commands)


def _network_sources(network: Any) -> list[Source]:
    """Return the file of a network, if it has one."""
    if not isinstance(network, str):
        return []
    if is_network_file(network):
        return [file_source("network", path_of_network(network))]
    shipped = shipped_folder("models") / f"{network}.json"
    return [file_source("network", shipped)] if shipped.is_file() else []


def _calibration_sources(prediction: Prediction, named: Any, calibration: Calibration | None) -> list[Source]:
    """Return the file of the calibration, or that of the fits of other devices."""
    from ..calibration.store import evidence_of, names_of_parts

    folder = shipped_folder("calibrations")
    if evidence_of(named) is not None:
        parts = names_of_parts(named) if isinstance(named, str) else []
        return [file_source("calibration", Path(part)) for part in parts]
    if calibration is None:
        if not prediction.model.label:
            return []
        from ..calibration.pool import POOL_FILE

        return [file_source("fits of other devices", folder / POOL_FILE)]
    if named is not None and not isinstance(named, str):
        return []
    is_file = isinstance(named, str) and named.endswith(".toml")
    path = Path(named) if is_file and named else folder / f"{calibration.device}-{calibration.precision}.toml"
    return [file_source("calibration", path)]


def device_sources(device: Device, hardware_files: Sequence[Path]) -> list[Source]:
    """Return the file that describes a device."""
    paths = [path for path in hardware_files if path.stem == device.id]
    if not paths:
        paths = [shipped_folder("hardware") / f"{device.id}.toml"]
    return [file_source("device", path) for path in paths if path.is_file()]


def file_source(description: str, path: Path) -> Source:
    """Return name and SHA-256 of a file."""
    return Source(description, path.name, sha256_of(path))


@check_arguments
def report_profile(
    profile: str | Path,
    output: str | Path,
    *,
    gpu: str | Device,
    precision: str = "fp32",
    name_pattern: str | None = None,
    hardware_files: Sequence[str | Path] = (),
    force: bool = False,
) -> Report:
    """Write what a profile says into an HTML file: kernels, use of the device, timeline, and what to run next.

    Parameters
    ----------
    profile : path
        The profile.
    output : path
        An HTML file, a workbook of all tables (.xlsx) or an archive of them as CSV files (.zip), or a file that the
        kind of question has besides (`QuestionKind.files`); an existing file is replaced only with `force`.
    gpu : str or Device
        Device of the profile.
    precision : str
        Precision of the peaks.
    name_pattern : str, optional
        Regular expression that reads the settings of the run from the file name.
    hardware_files : sequence of paths
        TOML files of further devices.

    Raises
    ------
    PaleoError
        If the profile cannot be read, the file exists, or the extra ``plots`` is missing.
    """
    path, target = Path(profile), Path(output)
    check_report_file(target, force=force)
    from .profile_options import PROFILE_READER

    require(*PROFILE_READER)
    from ..profile_analysis.analysis import measure_efficiency
    from ..profile_analysis.counters import NVIDIA
    from ..profile_analysis.kernels import report_kernels
    from ..profile_analysis.one_file import ReadOptions
    from ..profile_analysis.timeline import read_timeline
    from ..profiles.detect import open_profile
    from ..reporting.page.profile import profile_report

    files = [Path(file) for file in hardware_files]
    device = find_device(gpu, files)
    device.find_peak(precision)  # raises UnknownPrecision before the file is read
    kernels = report_kernels(open_profile(path, name_pattern), device, precision)

    def result_or_message(function: Callable[[], Any]) -> Any:
        """Return the result of a function, or the message of its error without the file name."""
        try:
            return function()
        except PaleoError as error:
            return str(error).removeprefix(f"{path}: ")

    words = ["paleo-lite", "efficiency", str(path), "--gpu", device.id, "--report", str(target)]
    words += [] if precision == "fp32" else ["--precision", precision]
    words += [] if name_pattern is None else ["--name-pattern", name_pattern]
    words += [word for file in files for word in ("--hardware-file", str(file))]
    page = profile_report(
        kernels,
        make_provenance(shlex.join(words), [file_source("profile", path), *device_sources(device, files)]),
        efficiency=result_or_message(
            lambda: measure_efficiency([path], device, ReadOptions(name_pattern=name_pattern), precision, jobs=1)
        ),
        timeline=result_or_message(lambda: read_timeline(open_profile(path, name_pattern), 300)),
        next_commands=_next_commands(kernels.kernels) if device.vendor == NVIDIA else [],
    )
    return _save(target, page)


def _next_commands(kernels: Sequence[KernelRow]) -> list[tuple[str, str]]:
    """Return the commands that measure the most important kernels more closely, each after its description."""
    from ..profile_analysis import TOOLS
    from ..profile_analysis.next_command import kernels_to_profile, next_command

    if not kernels_to_profile(kernels):
        return []
    described = list[tuple[str, str]]()
    for tool in TOOLS:
        described += zip([f"With {tool}", "and then"], next_command(kernels, tool, "python train.py"))
    return described

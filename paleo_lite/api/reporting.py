"""Reports to send: `report`; and how one came about: the command line, the version, the date, files with hashes."""

from __future__ import annotations

import datetime
import hashlib
import os
import shlex
from collections.abc import Collection, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from ..architectures import Network, is_network_file
from ..counting import GENERATING
from ..errors import BadFile, BadValue, PaleoError
from ..extras import need
from ..files import check_new, save, shipped
from ..machines import Device, find_device
from ..reporting.document import Document, Made, Source
from ..result import Result
from ..timing import Prediction
from ..timing.workload import TrainingOptions
from ..units import format_shape
from ..version import __version__
from .profiles import READING
from .question import Paths, asked, option, paths_of

if TYPE_CHECKING:
    from torch import nn

    from ..calibration.store import Calibration

_OF_EITHER = ("gpu", "precision", "hardware_files", "output", "force")
_OF_A_PROFILE = ("profile", "name_pattern", "program")
_OF_WORKERS = ("workers", "link", "topology", "platform", "scaling", "strategy", "collective", "advise", "images",
               "epochs", "price")  # fmt: skip


class Report(Result, msgspec.Struct, frozen=True, eq=False):
    """A report that was written.

    Attributes
    ----------
    path : Path
    page : Document
        What it says, with its charts.
    bytes : int
        Size of the file.
    """

    path: Path
    page: Document
    bytes: int

    def document(self, **how: Any) -> Document:
        """What it says."""
        return self.page

    def to_dict(self) -> dict[str, Any]:
        """File, title, how to get it again, and size."""
        assert self.page.made is not None
        command, version = self.page.made.command, self.page.made.version
        return {"file": str(self.path), "title": self.page.title, "command": command, "version": version,
                "bytes": self.bytes}  # fmt: skip


class _Subject(msgspec.Struct, frozen=True):
    network: str | Network | nn.Module | None = None


class ReportQuestion(_Subject, frozen=True, kw_only=True):
    """What `report` is asked; see there."""

    profile: str | os.PathLike[str] | None = None
    gpu: str | Device
    output: str | Path
    force: bool = False
    precision: str = "fp32"
    batch_size: int | None = None
    phase: str | None = None
    time_model: str | None = None
    ppp: float | None = None
    calibration: str | Calibration | None = None
    clock: str | None = None
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
    name_pattern: str | None = None
    program: str | None = None
    image_size: int | None = None
    sequence_length: int | None = None
    context: int | None = None
    weights: str | None = None
    inputs: Sequence[str | Sequence[int]] = ()
    hardware_files: Paths = ()

    def __post_init__(self) -> None:
        if (self.network is None) == (self.profile is None):
            raise BadValue("a report is of a network or of a profile (--profile PATH): one of the two")
        of_a_network = set(self.__struct_fields__).difference(_OF_EITHER, _OF_A_PROFILE)
        if self.profile is not None:
            self._refuse(of_a_network, "is for the report of a network, not of a profile")
            return
        self._refuse(_OF_A_PROFILE, "is for the report of a profile: --profile PATH")
        if not self.several:
            self._refuse(_OF_WORKERS, "is for several devices: say how many, --workers 8")
        elif self.phase not in (None, "training", *GENERATING):
            raise BadValue(
                f"several devices train, or write text: --phase training, prefill or decode, not {self.phase}"
            )
        if self.fit_batch and self.batch_size is not None:
            raise BadValue("fitting the batch chooses its size: leave the batch size out")

    def _refuse(self, names: Collection[str], why: str) -> None:
        for name in _given(self):
            if name in names:
                raise BadValue(f"{option(name)} {why}")

    @property
    def several(self) -> bool:
        """Whether it asks of several devices, too."""
        return any(said is not None for said in (self.workers, self.topology, self.platform))

    def named(self, *names: str) -> dict[str, Any]:
        """What is asked of these names."""
        return {name: getattr(self, name) for name in names}


@partial(asked, ReportQuestion)
def report(question: ReportQuestion) -> Report:
    """Write a report of a prediction or a profile: one HTML file that opens offline.

    Parameters
    ----------
    network, gpu, precision, time_model, ppp, calibration, clock, unit, execution, weights, fit_batch, training
        As for `paleo_lite.predict`.
    profile : path, optional
        Report on this profile instead of a network.
    output : path
        The HTML file; `force` replaces one that is there.
    batch_size : int, optional
        Samples per pass; without it 1, in training on several workers 32 for each.
    phase : str, optional
        What is predicted: without it ``inference``, with several workers ``training``.
    workers, link, topology, platform, scaling, strategy, collective, advise, images, epochs, price
        On several devices, too: as for `paleo_lite.scale`.
    name_pattern : str, optional
        Of a profile: as for `paleo_lite.efficiency`.
    program : str, optional
        What to profile next; without it ``python train.py``.
    image_size, sequence_length, context, inputs, hardware_files
        As for `paleo_lite.predict`.

    Returns
    -------
    Report

    Raises
    ------
    PaleoError
        One of its classes: a file that is there already, options that do not go together, and as for predictions.
    """
    path = Path(question.output)
    check_new(path, force=question.force)
    if path.suffix.lower() not in (".html", ".htm"):
        raise BadValue(f"{path}: a report is an .html file")
    for name in ("vl_convert", "altair", "jinja2"):
        need(name, "writing a report", "plots")
    if question.profile is None:
        from ..reporting.charts.render import begin

        begin()
    page = _of_network(question) if question.profile is None else _of_profile(question, Path(question.profile))
    from ..reporting.page.html import to_html

    content = to_html(page).encode()
    save(path, content)
    return Report(path, page, len(content))


def _of_profile(question: ReportQuestion, path: Path) -> Document:
    need(*READING)
    from ..profile_analysis import TOOLS
    from ..profile_analysis.analysis import ReadAs, measure_efficiency
    from ..profile_analysis.kernels import report_kernels
    from ..profile_analysis.next_command import next_command
    from ..profile_analysis.timeline import read_timeline
    from ..profiles.detect import open_profile
    from ..reporting.page.profile import profile_report

    pattern, precision = question.name_pattern, question.precision
    device = find_device(question.gpu, paths_of(question.hardware_files))
    device.find_peak(precision)  # before any work
    kernels = report_kernels(open_profile(path, pattern), device, precision)

    def attempt(call: Any) -> Any:
        """What a card says, or the sentence why this profile cannot tell."""
        try:
            return call()
        except PaleoError as error:
            return str(error).removeprefix(f"{path}: ")

    further, program = [], question.program or "python train.py"
    for tool in TOOLS:
        commands = attempt(lambda tool=tool: next_command(kernels.kernels, tool, program))
        if isinstance(commands, list):
            further += [(f"With {tool}" if first else "and then", line) for first, line in zip((True, False), commands)]
    sources = [_source("profile", path), *_device_sources(device, paths_of(question.hardware_files))]
    return profile_report(
        kernels,
        _made_from(question, sources),
        efficiency=attempt(lambda: measure_efficiency([path], device, ReadAs(name_pattern=pattern), precision, jobs=1)),
        timeline=attempt(lambda: read_timeline(open_profile(path, pattern), 300)),
        next_commands=further,
    )


def _of_network(question: ReportQuestion) -> Document:
    from ..architectures.network import Tokens
    from ..calibration.alternatives import try_alternatives
    from ..calibration.choose import used_calibration
    from ..reporting.page.prediction import prediction_report
    from .prediction import predict, resolve

    phase = question.phase or ("training" if question.several else "inference")
    is_shared = question.several and phase == "training"  # every device has samples of its own
    assert question.network is not None
    tokens = Tokens(question.sequence_length, question.context, phase)
    network = resolve(question.network, question.image_size, question.inputs, tokens)
    files = paths_of(question.hardware_files)
    same = {"gpu": question.gpu, "hardware_files": files, "training": question.training, **question.named(
        "precision", "time_model", "ppp", "clock", "unit", "calibration",
    )}  # fmt: skip
    batch_size = question.batch_size
    if batch_size is None:
        batch_size = 32 if is_shared and not question.fit_batch else 1
    prediction = predict(
        network, **same, **question.named("weights", "execution", "fit_batch"), phase=phase, memory=True,
        batch_size=batch_size,
    )  # fmt: skip
    calibration = used_calibration(prediction, question.calibration)
    sources = _network_sources(question, prediction, calibration)
    return prediction_report(
        prediction,
        _made_from(question, sources, _same_figures(question, prediction)),
        alternatives=try_alternatives(prediction, question.time_model, files),
        scaling=_scaled(question, network, {**same, "batch_size": prediction.batch_size}),
        calibration=calibration,
    )


def _scaled(question: ReportQuestion, network: Network, same: dict[str, Any]) -> Any:
    if not question.several:
        return None
    from ..distributed.job import Settings
    from .scaling import scale

    own = question.named(*(name for name in _OF_WORKERS if name != "collective"))
    if question.phase in GENERATING:
        own |= question.named("phase", "weights", "execution")
    return scale(network, **same, **own, settings=Settings(collective=question.collective))


def _given(question: ReportQuestion) -> list[str]:
    """The names of what is not as it would be unasked."""
    fields = question.__struct_fields__
    unasked = dict(zip(reversed(fields), reversed(question.__struct_defaults__)))
    return [name for name in fields if getattr(question, name) not in (unasked.get(name), None, (), [])]


def _words(question: ReportQuestion, command: str, names: Collection[str] | None = None) -> list[str]:
    """The words of a command line that asks the same: of all that was given, or of what is called `names`."""
    said: list[tuple[str, Any]] = []
    for name in _given(question):
        value = getattr(question, name)
        if name == "force" or (names is not None and name not in names):
            continue
        if name == "training":
            plain = TrainingOptions("sgd")
            parts = ("optimizer", "mixed_precision", "checkpointing", "accumulation")
            said += [(part, getattr(value, part)) for part in parts if getattr(value, part) != getattr(plain, part)]
        elif name == "hardware_files":
            said += [(name, path) for path in paths_of(value)]
        elif name == "inputs":
            said += [(name, format_shape(shape)) for shape in value]
        else:
            said.append((name, value))
    line = ["paleo-lite", command]
    for name, value in said:
        if isinstance(value, (tuple, list)):
            word = ",".join(map(str, value))
        elif isinstance(value, float):
            word = repr(value).removesuffix(".0")
        else:
            word = value.id if isinstance(value, Device) else value.name if isinstance(value, Network) else str(value)
        line += [*([] if name == "network" else [option(name)]), *([] if value is True else [word])]
    return line


def _made_from(question: ReportQuestion, sources: Sequence[Source], further: Sequence[tuple[str, str]] = ()) -> Made:
    """How this call makes its report; the date is SOURCE_DATE_EPOCH's where it is set, as for reproducible builds."""
    epoch = os.environ.get("SOURCE_DATE_EPOCH", "")
    now = datetime.datetime.fromtimestamp(int(epoch), datetime.timezone.utc) if epoch.isdecimal() else None
    date = (now or datetime.datetime.now(datetime.timezone.utc)).date().isoformat()
    return Made(shlex.join(_words(question, "report")), __version__, date, sources, further)


def _same_figures(question: ReportQuestion, prediction: Prediction) -> list[tuple[str, str]]:
    """Commands that give a report's figures as JSON."""
    shared = ["network", "gpu", "precision", "time_model", "ppp", "calibration", "clock", "unit", "image_size",
              "sequence_length", "context", "inputs", "hardware_files", "training", "weights"]  # fmt: skip
    rest = ["--batch-size", str(prediction.batch_size), "--phase", prediction.phase, "--format", "json"]
    lines = [("The prediction as JSON", [*_words(question, "predict", [*shared, "execution"]), *rest])]
    if question.several:
        writes = ["phase", "execution"] if question.phase in GENERATING else []
        several = _words(question, "scale", [*shared, *_OF_WORKERS, *writes])
        lines.append(("Several devices as JSON", [*several, *rest[:2], *rest[4:]]))
    return [(what, shlex.join(line)) for what, line in lines]


def _network_sources(question: ReportQuestion, prediction: Prediction, calibration: Calibration | None) -> list[Source]:
    """The files behind a prediction: descriptor, device, calibration or pool."""
    files, name, known = list[Source](), question.network, shipped("calibrations")
    if isinstance(name, str) and is_network_file(name):
        files.append(_source("network", Path(name)))
    elif (path := shipped("models") / f"{prediction.network}.json").is_file() and question.image_size is None:
        files.append(_source("network", path))
    files += _device_sources(prediction.device, paths_of(question.hardware_files))
    named = question.calibration
    if calibration is not None and (named is None or isinstance(named, str)):
        is_file = named and named.endswith(".toml")
        path = Path(named or "") if is_file else known / f"{calibration.device}-{calibration.precision}.toml"
        files.append(_source("calibration", path))
    elif calibration is None and prediction.model.label:
        from ..calibration.choose import POOL_FILE

        files.append(_source("fits of other devices", known / POOL_FILE))
    return files


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

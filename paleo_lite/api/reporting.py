"""Reports to send: `report`."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict

import msgspec

from ..errors import BadValue, PaleoError
from ..extras import need
from ..files import check_new, save
from ..report.document import Document
from ..result import Result
from .profiles import Paths, need_pyarrow, paths_of
from .provenance import Asked, made_from, network_sources, profile_sources, same_figures

if TYPE_CHECKING:
    from torch import nn
    from typing_extensions import Unpack

    from ..calibration.store import Calibration
    from ..hardware import Device
    from ..networks import Network
    from ..timing.options import TrainingOptions

_OF_A_PROFILE = frozenset(
    ("profile", "gpu", "precision", "name_pattern", "program", "hardware_files", "output", "force", "network")
)
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


class ReportQuestion(TypedDict, total=False):
    """What a report may be asked besides; see `report`."""

    precision: str
    batch_size: int | None
    phase: str | None
    time_model: str | None
    ppp: float | None
    calibration: str | Calibration | None
    clock: str | None
    unit: str | None
    execution: str | None
    fit_batch: bool
    training: TrainingOptions | None
    workers: int | str | Sequence[int] | None
    link: str | None
    topology: str | None
    platform: str | None
    scaling: str
    strategy: str
    collective: str | None
    advise: bool
    images: float | str | None
    epochs: float | None
    price: float | str | None
    name_pattern: str | None
    program: str | None
    image_size: int | None
    sequence_length: int | None
    inputs: Sequence[str | Sequence[int]]
    hardware_files: Paths


_UNASKED = {"precision": "fp32", "fit_batch": False, "scaling": "weak", "strategy": "data", "advise": False,
            "inputs": (), "hardware_files": (), "force": False}  # fmt: skip
"""What the others than None are where nobody says them."""


def report(
    network: str | Network | nn.Module | None = None,
    *,
    gpu: str | Device,
    output: str | Path,
    profile: str | os.PathLike[str] | None = None,
    force: bool = False,
    **question: Unpack[ReportQuestion],
) -> Report:
    """Write a report of a prediction or a profile: one HTML file that opens offline.

    Parameters
    ----------
    network, gpu, precision, time_model, ppp, calibration, clock, unit, execution, fit_batch, training
        As for `paleo_lite.predict`.
    profile : path, optional
        Report on this profile instead of a network.
    output : path
        The HTML file; `force` replaces one that is there.
    batch_size : int, optional
        Samples per pass; without it 1, with several workers 32 for each.
    phase : str, optional
        What is predicted: without it ``inference``, with several workers ``training``.
    workers, link, topology, platform, scaling, strategy, collective, advise, images, epochs, price
        Training on several devices, too: as for `paleo_lite.scale`.
    name_pattern : str, optional
        Of a profile: as for `paleo_lite.efficiency`.
    program : str, optional
        What to profile next; without it ``python train.py``.
    image_size, sequence_length, inputs, hardware_files
        As for `paleo_lite.predict`.

    Returns
    -------
    Report

    Raises
    ------
    PaleoError
        One of its classes: a file that is there already, options that do not go together, and as for predictions.
    """
    if unknown := sorted(question.keys() - ReportQuestion.__annotations__.keys()):
        raise TypeError(f"report() has no argument {unknown[0]!r}")
    named = {"network": network, "profile": profile, "gpu": gpu, "output": output, "force": force}
    values: dict[str, Any] = {name: question.get(name, _UNASKED.get(name)) for name in ReportQuestion.__annotations__}
    values["hardware_files"] = paths_of(values["hardware_files"])
    asked = Asked("report", {**named, **values}, _UNASKED)
    path = Path(output)
    check_new(path, force=force)
    if path.suffix.lower() not in (".html", ".htm"):
        raise BadValue(f"{path}: a report is an .html file")
    if (network is None) == (profile is None):
        raise BadValue("a report is of a network or of a profile (--profile PATH): one of the two")
    for name in ("altair", "vl_convert", "jinja2"):
        need(name, "writing a report", "plots")
    page = _of_profile(asked) if profile is not None else _of_network(asked)
    from ..report.page.html import to_html

    content = to_html(page).encode()
    save(path, content)
    return Report(path, page, len(content))


def _refuse(asked: Asked, names: Iterable[str], why: str) -> None:
    for name in asked.given:
        if name in names:
            raise BadValue(f"{asked.option(name)} {why}")


def _of_profile(asked: Asked) -> Document:
    from ..hardware import find_device

    _refuse(asked, asked.values.keys() - _OF_A_PROFILE, "is for the report of a network, not of a profile")
    need_pyarrow()
    from ..efficiency import TOOLS
    from ..efficiency.analysis import Reading, measure_efficiency
    from ..efficiency.kernels import report_kernels
    from ..efficiency.next_command import next_command
    from ..efficiency.timeline import read_timeline
    from ..profiles.detect import open_profile
    from ..report.page.profile import profile_report

    path, pattern, precision = Path(asked["profile"]), asked["name_pattern"], asked["precision"]
    gpu = asked["gpu"]
    device = find_device(gpu, asked["hardware_files"]) if isinstance(gpu, str) else gpu
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
        made_from(asked, profile_sources(path, device, asked["hardware_files"])),
        efficiency=attempt(
            lambda: measure_efficiency([path], device, Reading(name_pattern=pattern), precision, jobs=1)
        ),
        timeline=attempt(lambda: read_timeline(open_profile(path, pattern), 300)),
        next_commands=further,
    )


def _of_network(asked: Asked) -> Document:
    from ..calibration.alternatives import try_alternatives
    from ..calibration.choose import used_calibration
    from ..networks.network import Tokens
    from ..report.page.prediction import prediction_report
    from .prediction import predict, resolve

    _refuse(asked, ("name_pattern", "program"), "is for the report of a profile: --profile PATH")
    several = any(asked[name] is not None for name in ("workers", "topology", "platform"))
    if not several:
        _refuse(asked, _OF_WORKERS, "is for several devices: say how many, --workers 8")
    if several and asked["phase"] not in (None, "training"):
        raise BadValue(f"several devices train together: --phase training, or leave it out, not {asked['phase']}")
    phase = asked["phase"] or ("training" if several else "inference")
    if asked["fit_batch"] and asked["batch_size"] is not None:
        raise BadValue("fitting the batch chooses its size: leave the batch size out")
    question = {
        name: asked[name]
        for name in ("gpu", "precision", "time_model", "ppp", "clock", "unit", "calibration", "execution",
                     "hardware_files", "fit_batch")
    }  # fmt: skip
    question |= {
        "network": resolve(
            asked["network"], asked["image_size"], asked["inputs"], Tokens(asked["sequence_length"], phase=phase)
        ),
        "phase": phase,
        "batch_size": asked["batch_size"] or (32 if several and not asked["fit_batch"] else 1),
        "training": asked["training"],
        "memory": True,
    }
    prediction = predict(**question)
    calibration = used_calibration(prediction, asked["calibration"])
    return prediction_report(
        prediction,
        made_from(asked, network_sources(asked, prediction, calibration), same_figures(asked, prediction, _OF_WORKERS)),
        alternatives=try_alternatives(prediction, asked["time_model"], asked["hardware_files"]),
        scaling=_scaled(asked, question, prediction.batch_size) if several else None,
        calibration=calibration,
    )


def _scaled(asked: Asked, question: dict[str, Any], batch_size: int) -> Any:
    from ..distributed.job import Settings
    from .scaling import scale

    same = {
        name: question[name]
        for name in ("network", "gpu", "precision", "time_model", "ppp", "clock", "unit", "calibration",
                     "hardware_files")
    }  # fmt: skip
    own = {name: asked[name] for name in _OF_WORKERS if name != "collective"}
    settings = Settings(collective=asked["collective"])
    return scale(**same, **own, batch_size=batch_size, settings=settings, training=asked["training"])

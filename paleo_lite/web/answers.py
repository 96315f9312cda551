"""What the page asks: the same calls as the commands make, remembered, since the same question has the same answer.

Files of one's own that are dropped into the page, networks, devices, calibrations, are kept for the session alone.
"""

from __future__ import annotations

import hashlib
import re
import tempfile
from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar, cast

import msgspec
import streamlit as st

from ..api.prediction import predict as run_prediction
from ..api.scaling import scale as run_scale
from ..architectures import Network, find_network
from ..architectures.catalog import read_network_file
from ..calibration.store import read_calibration, shipped_calibrations
from ..counting import GENERATING
from ..distributed.table import ScaleTable
from ..errors import BadFile, PaleoError
from ..machines import Device, find_device, list_devices
from ..timing import Prediction
from .view import View

SUFFIXES = ("json", "prototxt", "onnx", "toml")
FILES_AT_MOST = 12
_CALIBRATION = re.compile(rb"^device *=", re.MULTILINE)
_OWN, _READ = "own files", "own files read"  # keys of the session


class Own(msgspec.Struct, frozen=True):
    """What was dropped in.

    Attributes
    ----------
    network, gpu, calibration : dict of str to (thing, digest)
        By what the controls call them: networks and calibrations by their file's name, devices by their id.
    files : dict of str to str
        The file of each device.
    wrong : tuple of str
        A sentence for each file that is none of these.
    """

    network: dict[str, tuple[Network, str]] = {}
    gpu: dict[str, tuple[Device, str]] = {}
    calibration: dict[str, tuple[Any, str]] = {}
    files: dict[str, str] = {}
    wrong: tuple[str, ...] = ()

    def names(self, control: str) -> list[str]:
        """What a control offers beside what is shipped."""
        return list(getattr(self, control, ()))


def own() -> Own:
    """The session's own files."""
    kept: Own = st.session_state.get(_OWN) or Own()
    return kept


def own_file(gpu: str) -> list[str]:
    """The file that a command needs for a device."""
    return [own().files[gpu]] if gpu in own().files else []


def keep_own(files: Sequence[tuple[str, bytes]]) -> None:
    """Take the session's files to be these; they are read where they are others than before."""
    digests = [(name, hashlib.sha256(content).hexdigest()) for name, content in files]
    if st.session_state.get(_READ, []) != digests:
        st.session_state[_OWN], st.session_state[_READ] = read_own(files), digests


def read_own(files: Sequence[tuple[str, bytes]]) -> Own:
    """Read files, each as what its name and content say.

    Parameters
    ----------
    files : sequence of (name, content)
    """
    found, wrong = Own(network={}, gpu={}, calibration={}, files={}), []
    if len(files) > FILES_AT_MOST:
        wrong.append(f"of {len(files)} files the first {FILES_AT_MOST} are read: take some away")
    for name, content in files[:FILES_AT_MOST]:
        with tempfile.TemporaryDirectory(prefix="paleo-lite-") as folder:
            path = Path(folder) / file_name(name)
            path.write_bytes(content)
            try:
                _read(found, path, hashlib.sha256(content).hexdigest()[:16])
            except PaleoError as error:
                why = str(error).replace(f"{folder}/", "")
                wrong.append(why if path.name in why else f"{path.name}: {why}")
    return msgspec.structs.replace(found, wrong=tuple(wrong))


def _read(found: Own, path: Path, digest: str) -> None:
    if path.suffix != ".toml":
        if path.suffix[1:] not in SUFFIXES:
            raise BadFile(f"{path}: a file of one's own ends in {', '.join(SUFFIXES)}")
        found.network[path.name] = read_network_file(path), digest
    elif _CALIBRATION.search(path.read_bytes()):
        found.calibration[path.name] = read_calibration(path), digest
    else:
        known = {device.id for device in list_devices()}
        [device] = [device for device in list_devices([path]) if device.id not in known]
        found.gpu[device.id] = device, digest
        found.files[device.id] = path.name


def file_name(name: str) -> str:
    """The last part of a name that a browser gave, which tells the run's configuration; short, and none is hidden."""
    last = name.replace("\\", "/").rpartition("/")[2].replace("\0", "").lstrip(".")
    return last[-100:] or "file"


ANSWERS_KEPT, PROFILES_KEPT, NETWORKS_KEPT = 200, 4, 8
"""Answers that all sessions together remember: that of a profile may be some megabytes."""

_T = TypeVar("_T")
_Call = TypeVar("_Call", bound=Callable[..., Any])


def _remember(entries: int) -> Callable[[_Call], _Call]:
    """Remember the latest answers; they are frozen, so that all sessions may share one."""
    return cast(Callable[[_Call], _Call], st.cache_resource(show_spinner=False, max_entries=entries))


class Failed(msgspec.Struct, frozen=True):
    """A question without an answer, and the sentence why."""

    why: str


def attempt(call: Callable[[], _T]) -> _T | Failed:
    """An answer, or what to say instead."""
    try:
        return call()
    except PaleoError as error:
        return Failed(str(error))


def devices() -> dict[str, Device]:
    """All shipped devices by id, and the session's own."""
    mine = {name: device for name, (device, _) in own().gpu.items()}
    return {device.id: device for device in list_devices()} | mine


def predict(view: View, gpu: str, batch_size: int | None = None) -> Prediction:
    """The prediction for one of the devices, at the view's batch size or another.

    Raises
    ------
    PaleoError
    """
    asked = {
        "network": view.network, "gpu": gpu, "precision": view.precision, "batch_size": batch_size or view.batch,
        "phase": view.phase, "memory": True, **_lengths(view), **_model(view, gpu),
    }  # fmt: skip
    given, digests = _given(asked)
    return _predict(tuple(asked.items()), digests, given)


@_remember(ANSWERS_KEPT)
def _predict(asked: tuple[tuple[str, Any], ...], digests: tuple[str, ...], _given: dict[str, Any]) -> Prediction:
    return run_prediction(**_question(asked, _given))


_network = lru_cache(NETWORKS_KEPT)(find_network)


def _question(asked: tuple[tuple[str, Any], ...], given: dict[str, Any]) -> dict[str, Any]:
    """What is asked, of a network that is read once: what was counted of it then serves every device and batch size."""
    question = {**dict(asked), **given}
    if isinstance(question["network"], str):
        question["network"] = _network(question["network"])
    return question


def _given(asked: dict[str, Any]) -> tuple[dict[str, Any], tuple[str, ...]]:
    """What a question asks for of the session's own files, in place of their names; and the digests of these."""
    found = {name: getattr(own(), name).get(asked.get(name)) for name in ("network", "gpu", "calibration")}
    mine = {name: pair for name, pair in found.items() if pair is not None}
    return {name: thing for name, (thing, _) in mine.items()}, tuple(digest for _, digest in mine.values())


def reads_sequences(view: View) -> bool:
    """Whether the network is asked for a number of tokens."""
    mine, _ = own().network.get(view.network, (None, ""))
    network = mine or _network(view.network)
    return network.lengths is not None and network.tokens is not None


def _lengths(view: View) -> dict[str, Any]:
    """How many tokens a network reads; one that reads none is not asked."""
    name = "context" if view.phase == "decode" else "sequence_length"
    return {name: view.tokens} if view.tokens and reads_sequences(view) else {}


def _model(view: View, gpu: str) -> dict[str, Any]:
    """The time model; a calibration speaks of its own device alone, others keep what is best known of them."""
    calibrated = view.uses_calibration and view.calibration in offered(view, [gpu])
    return {
        "time_model": None if view.uses_calibration else view.model or None,
        "ppp": view.ppp if view.takes_ppp else None,
        "calibration": view.calibration if calibrated else None,
    }


def offered(view: View, gpus: Sequence[str]) -> list[str]:
    """The calibrations of some devices in the view's precision, the session's own first."""
    mine = [
        name
        for name, (found, _) in own().calibration.items()
        if found.device in gpus and found.precision == view.precision
    ]
    return [*mine, *(name for name in shipped_calibrations() if name in [f"{gpu}-{view.precision}" for gpu in gpus])]


def scale(view: View, gpu: str) -> ScaleTable:
    """Training, or writing text, on several of one of the devices.

    Raises
    ------
    PaleoError
    """
    asked = {
        "network": view.network, "gpu": gpu, "precision": view.precision, "batch_size": view.batch,
        "workers": view.workers, "link": view.link, "scaling": view.scaling, "strategy": view.strategy,
        "collective": view.collective or None, "images": view.images or None,
        "epochs": view.epochs if view.images else None, "price": (view.images and view.price) or None,
        **_lengths(view), **_model(view, gpu),
    }  # fmt: skip
    if view.phase in GENERATING:
        asked |= {"phase": view.phase, "strategy": "together"}
    given, digests = _given(asked)
    return _scale(tuple(asked.items()), digests, given)


@_remember(ANSWERS_KEPT)
def _scale(asked: tuple[tuple[str, Any], ...], digests: tuple[str, ...], _given: dict[str, Any]) -> ScaleTable:
    """Remembered by all that was asked."""
    from ..distributed.job import Settings

    question = _question(asked, _given)
    settings = Settings(collective=question.pop("collective"))
    return run_scale(question.pop("network"), settings=settings, **question)


class ProfileAnswer(msgspec.Struct, frozen=True):
    """What a profile says; each part is there or a sentence why not."""

    efficiency: Any
    kernels: Any
    timeline: Any


def named_device(name: str, content: bytes) -> Device | None:
    """The one device that a profile names; None where it names none, several, or one that is not known."""
    from ..profile_analysis.evidence import named_gpus
    from ..profiles.detect import open_profile

    with tempfile.TemporaryDirectory(prefix="paleo-lite-") as folder:
        path = Path(folder) / file_name(name)
        path.write_bytes(content)
        gpus = attempt(lambda: named_gpus(open_profile(path)))
    if isinstance(gpus, Failed) or len(gpus) != 1:
        return None
    found = attempt(lambda: find_device(gpus[0]))
    return None if isinstance(found, Failed) else found


def _questioned(profile: Any, device: Device, precision: str) -> Any:
    """The kernels of a profile, and first of all what in it speaks against the device."""
    from ..profile_analysis.evidence import doubts, evidence_of
    from ..profile_analysis.kernels import report_kernels

    report = report_kernels(profile, device, precision)
    return msgspec.structs.replace(report, notes=(*doubts(evidence_of(profile, report.raw_s), device), *report.notes))


def read_profile(name: str, content: bytes, device: Device, precision: str) -> ProfileAnswer:
    """A profile that somebody dropped in, through the readers that the commands use."""
    digest = hashlib.sha256(content + msgspec.json.encode(device)).hexdigest()
    return _read_profile(name, digest, precision, content, device)


@_remember(PROFILES_KEPT)
def _read_profile(name: str, digest: str, precision: str, _content: bytes, _device: Device) -> ProfileAnswer:
    """Remembered by what is read; underscores keep the content and the device themselves out of the key."""
    from ..profile_analysis.analysis import measure_efficiency
    from ..profile_analysis.timeline import read_timeline
    from ..profiles.detect import open_profile

    with tempfile.TemporaryDirectory(prefix="paleo-lite-") as folder:
        path = Path(folder) / file_name(name)
        path.write_bytes(_content)

        def tried(call: Callable[[], Any]) -> Any:
            answer = attempt(call)
            return Failed(answer.why.replace(f"{folder}/", "")) if isinstance(answer, Failed) else answer

        return ProfileAnswer(
            # In this process: a page forks none.
            tried(lambda: measure_efficiency([path], _device, precision=precision, jobs=1)),
            tried(lambda: _questioned(open_profile(path), _device, precision)),
            tried(lambda: read_timeline(open_profile(path))),
        )

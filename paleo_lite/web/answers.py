"""Calls of the API by the page, with cached results, and the files that users upload.

Uploaded networks, devices and calibrations are kept for the session only.
"""

from __future__ import annotations

import hashlib
import re
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar, cast

import msgspec
import streamlit as st

from ..api.charted import memory_ranges as run_memory_ranges
from ..api.local import advise_local
from ..api.prediction import predict as run_any_prediction
from ..api.prediction import predict_network as run_prediction
from ..api.scaling import scale_network
from ..api.serve import serve as run_serve
from ..architectures import Network, find_network
from ..architectures.catalog import read_network_file
from ..calibration.store import read_calibration, shipped_calibrations
from ..counting import GENERATION_PHASES
from ..distributed.table import ScaleTable
from ..errors import BadFile, PaleoError
from ..machines import Device, list_devices
from ..own_machines.advise import LocalAdvice
from ..own_machines.question import LocalQuestion
from ..serving.answers import Serving
from ..timing import Prediction
from ..timing.memory_ranges import MemoryRanges, tokens_of
from ..timing.pipeline_prediction import PipelinePrediction
from ..units import parse_range
from .view import View

SUFFIXES = ("json", "prototxt", "onnx", "toml")
FILES_AT_MOST = 12
_CALIBRATION = re.compile(rb"^device *=", re.MULTILINE)
_OWN_FILES_KEY, _DIGESTS_KEY = "own files", "own files read"
"""Keys of the session state."""


class OwnFiles(msgspec.Struct, frozen=True):
    """Uploaded files of a session."""

    # Keys are the names in the controls: file names of networks and calibrations, ids of devices; (object,
    # digest).
    network: dict[str, tuple[Network, str]] = {}
    gpu: dict[str, tuple[Device, str]] = {}
    calibration: dict[str, tuple[Any, str]] = {}
    files: dict[str, str] = {}  # file name of each device
    errors: tuple[str, ...] = ()  # message for each file that could not be read

    def names(self, control: str) -> list[str]:
        """Return the names that a control offers in addition to the shipped ones."""
        return list(getattr(self, control, ()))


def own_files() -> OwnFiles:
    """Return the uploaded files of the session."""
    files: OwnFiles = st.session_state.get(_OWN_FILES_KEY) or OwnFiles()
    return files


def own_device_files(gpu: str) -> list[str]:
    """Return the hardware file that a command needs for a device, if it was uploaded."""
    return [own_files().files[gpu]] if gpu in own_files().files else []


def store_own_files(files: Sequence[tuple[str, bytes]]) -> None:
    """Set the uploaded files of the session; they are read only if they changed."""
    digests = [(name, hashlib.sha256(content).hexdigest()) for name, content in files]
    if st.session_state.get(_DIGESTS_KEY, []) != digests:
        st.session_state[_OWN_FILES_KEY] = read_own_files(files)
        st.session_state[_DIGESTS_KEY] = digests


def read_own_files(files: Sequence[tuple[str, bytes]]) -> OwnFiles:
    """Read files as networks, devices or calibrations, by name and content.

    Parameters
    ----------
    files : sequence of (name, content)
    """
    own, errors = OwnFiles(network={}, gpu={}, calibration={}, files={}), []
    if len(files) > FILES_AT_MOST:
        errors.append(f"only the first {FILES_AT_MOST} of {len(files)} files are read: remove some")
    for name, content in files[:FILES_AT_MOST]:
        with tempfile.TemporaryDirectory(prefix="paleo-lite-") as folder:
            path = Path(folder) / file_name(name)
            path.write_bytes(content)
            try:
                _read_file(own, path, hashlib.sha256(content).hexdigest()[:16])
            except PaleoError as error:
                reason = str(error).replace(f"{folder}/", "")
                errors.append(reason if path.name in reason else f"{path.name}: {reason}")
    return msgspec.structs.replace(own, errors=tuple(errors))


def _read_file(own: OwnFiles, path: Path, digest: str) -> None:
    if path.suffix != ".toml":
        if path.suffix[1:] not in SUFFIXES:
            raise BadFile(f"{path}: the file name must end in {', '.join(SUFFIXES)}")
        own.network[path.name] = read_network_file(path), digest
    elif _CALIBRATION.search(path.read_bytes()):
        own.calibration[path.name] = read_calibration(path), digest
    else:
        shipped = {device.id for device in list_devices()}
        [device] = [device for device in list_devices([path]) if device.id not in shipped]
        own.gpu[device.id] = device, digest
        own.files[device.id] = path.name


def file_name(name: str) -> str:
    """Return the last part of an uploaded file's name, at most 100 characters and without leading dots."""
    last = name.replace("\\", "/").rpartition("/")[2].replace("\0", "").lstrip(".")
    return last[-100:] or "file"


CACHED_ANSWERS, CACHED_PROFILES = 600, 4
"""Cached results of all sessions; the result of a profile can be several megabytes."""

_T = TypeVar("_T")
_Call = TypeVar("_Call", bound=Callable[..., Any])


def _cached(entries: int) -> Callable[[_Call], _Call]:
    """Cache the latest results; all sessions share them, as they are immutable."""
    return cast(Callable[[_Call], _Call], st.cache_resource(show_spinner=False, max_entries=entries))


class Failure(msgspec.Struct, frozen=True):
    """The reason why a call failed."""

    reason: str


def try_call(call: Callable[[], _T]) -> _T | Failure:
    """Return the result of a call, or the reason why it failed."""
    try:
        return call()
    except PaleoError as error:
        return Failure(str(error))


def devices() -> dict[str, Device]:
    """Return the shipped and uploaded devices by id."""
    uploaded = {name: device for name, (device, _) in own_files().gpu.items()}
    return {device.id: device for device in list_devices()} | uploaded


def predict(view: View, gpu: str, batch_size: int | None = None) -> Prediction:
    """Return the prediction for one of the devices, by default at the batch size of the view.

    Raises
    ------
    PaleoError
    """
    question = {
        "network": view.network,
        "gpu": gpu,
        "precision": view.precision,
        "batch_size": batch_size or view.batch,
        "phase": view.phase,
        "memory": True,
        **_length_arguments(view),
        **_model_arguments(view, gpu),
    }
    return _ask(run_prediction, question)


def memory_ranges(view: View, gpu: str) -> MemoryRanges:
    """Return the memory of a language model over the batch size and over the tokens.

    Raises
    ------
    PaleoError
        If the network does not read sequences.
    """
    prediction = predict(view, gpu)
    question = {
        "network": view.network,
        "gpu": gpu,
        "precision": view.precision,
        "phase": view.phase,
        "batch_size": view.batch,
        "sequence_length": tokens_of(prediction.workload),
    }
    ranges: MemoryRanges = _ask(run_memory_ranges, question)
    return ranges


def _ask(function: Callable[..., _T], question: dict[str, Any]) -> _T:
    """Return the cached answer of a function to a question, which may name uploaded files."""
    uploaded, digests = _uploaded_arguments(question)
    return cast(_T, _answer(function.__name__, tuple(question.items()), digests, function, uploaded))


@_cached(CACHED_ANSWERS)
def _answer(
    name: str,
    question: tuple[tuple[str, Any], ...],
    digests: tuple[str, ...],
    _function: Callable[..., Any],
    _uploaded: dict[str, Any],
) -> Any:
    """Call a function; the arguments without an underscore are the key of the cache."""
    return _function(**_resolve_arguments(question, _uploaded))


def _resolve_arguments(question: tuple[tuple[str, Any], ...], uploaded: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of a call, with uploaded objects and the network in place of their names."""
    arguments = {**dict(question), **uploaded}
    if isinstance(arguments.get("network"), str):
        arguments["network"] = find_network(arguments["network"])
    return arguments


def _uploaded_arguments(question: dict[str, Any]) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return the uploaded objects that a question refers to by name, and the digests of their files."""
    own = own_files()
    objects, digests = {}, []
    for name in ("network", "gpu", "calibration"):
        uploaded = getattr(own, name).get(question.get(name))
        if uploaded is not None:
            objects[name], digest = uploaded
            digests.append(digest)
    return objects, tuple(digests)


def _network_of(view: View) -> Network:
    """Return the network, which may be an uploaded one."""
    uploaded, _ = own_files().network.get(view.network, (None, ""))
    return uploaded or find_network(view.network)


def reads_sequences(view: View) -> bool:
    """Return whether the network reads a sequence of tokens."""
    network = _network_of(view)
    return network.lengths is not None and network.tokens is not None


def writes_text(view: View) -> bool:
    """Return whether the network is a language model that writes text."""
    return _network_of(view).is_language_model


def _length_arguments(view: View) -> dict[str, Any]:
    """Return the sequence length or context of a network that reads sequences."""
    if not view.tokens or not reads_sequences(view):
        return {}
    name = "context" if view.phase == "decode" else "sequence_length"
    return {name: view.tokens}


def _model_arguments(view: View, gpu: str) -> dict[str, Any]:
    """Return the time model; the chosen calibration is used only for its own device."""
    is_calibrated = view.uses_calibration and view.calibration in available_calibrations(view, [gpu])
    return {
        "time_model": None if view.uses_calibration else view.model or None,
        "ppp": view.ppp if view.accepts_ppp else None,
        "calibration": view.calibration if is_calibrated else None,
    }


def available_calibrations(view: View, gpus: Sequence[str]) -> list[str]:
    """Return the calibrations of some devices in the view's precision, uploaded ones first."""
    uploaded = [
        name
        for name, (calibration, _) in own_files().calibration.items()
        if calibration.device in gpus and calibration.precision == view.precision
    ]
    names = [f"{gpu}-{view.precision}" for gpu in gpus]
    return uploaded + [name for name in shipped_calibrations() if name in names]


def scale(view: View, gpu: str) -> ScaleTable:
    """Return the scaling of training or text generation on several of one of the devices.

    Raises
    ------
    PaleoError
    """
    question = {
        "network": view.network,
        "gpu": gpu,
        "precision": view.precision,
        "batch_size": view.batch,
        "workers": view.workers,
        "link": view.link,
        "scaling": view.scaling,
        "strategy": view.strategy,
        "collective": view.collective or None,
        "images": view.images or None,
        "epochs": None,
        "price": None,
        **_length_arguments(view),
        **_model_arguments(view, gpu),
    }
    if view.images:
        question["epochs"] = view.epochs
        question["price"] = view.price or None
    if view.phase in GENERATION_PHASES:
        question["phase"] = view.phase
        question["strategy"] = "3d"
    return _ask(_run_scale, question)


def scale_possible(view: View, gpu: str) -> tuple[View, ScaleTable, list[str]]:
    """Return the scaling for the numbers of workers that are possible, the view with these, and reasons for the others.

    Raises
    ------
    PaleoError
        If no number of workers is possible.
    """
    try:
        return view, scale(view, gpu), []
    except PaleoError:
        counts = parse_range(view.workers, "workers")
        if view.phase not in GENERATION_PHASES or len(counts) == 1:
            raise
        answers = {n: try_call(lambda n=n: scale(with_workers(view, [n]), gpu)) for n in counts}  # type: ignore[misc]
        possible = [n for n, answer in answers.items() if not isinstance(answer, Failure)]
        if not possible:
            raise
        reasons = [f"{n} workers: {answer.reason}" for n, answer in answers.items() if isinstance(answer, Failure)]
        view = with_workers(view, possible)
        return view, scale(view, gpu), reasons


def with_workers(view: View, counts: Sequence[int]) -> View:
    """Return the view with other numbers of workers."""
    return msgspec.structs.replace(view, workers=",".join(map(str, counts)))


def _run_scale(network: Any, *, collective: str | None, **arguments: Any) -> ScaleTable:
    """Predict scaling with a collective."""
    from ..distributed.settings import Settings

    return scale_network(network, settings=Settings(collective=collective), **arguments)


REQUESTS_AT_MOST = 1000
"""Requests that the page simulates."""


def serve(view: View, gpu: str) -> Serving:
    """Return the prediction of a deployment on one of the devices.

    Raises
    ------
    PaleoError
    """
    question = {
        "network": view.network,
        "gpu": gpu,
        "precision": view.precision,
        "rate": view.rate,
        "input_tokens": view.input_tokens,
        "output_tokens": view.output_tokens,
        "tensor": view.tensor,
        "expert_parallel": view.expert_parallel,
        "attention_data_parallel": view.attention_data_parallel,
        "pipeline": view.pipeline,
        "policy": view.policy,
        "num_requests": REQUESTS_AT_MOST,
    }
    return _ask(run_serve, question)


def pictures(view: View, gpu: str) -> PipelinePrediction:
    """Return the prediction of a pipeline for pictures or videos on one of the devices.

    Raises
    ------
    PaleoError
    """
    question = {
        "pipeline": view.generator,
        "gpu": gpu,
        "precision": view.precision,
        "image_size": view.size or None,
        "steps": view.steps or None,
        "frames": view.frames or None,
        "images": view.pictures,
        "offload": view.offload,
    }
    return _ask(_run_pipeline, question)


def _run_pipeline(pipeline: str, **arguments: Any) -> PipelinePrediction:
    """Predict a pipeline."""
    return cast(PipelinePrediction, run_any_prediction(pipeline, **arguments))


def advise(view: View, gpus: Sequence[str], weights: str | None = None) -> LocalAdvice:
    """Return the ranking of devices on which a local engine runs the network, or of the formats of a single one.

    Raises
    ------
    PaleoError
    """
    found = devices()
    question = LocalQuestion(execution=view.execution, context=view.context, weights=weights)
    return advise_local(_network_of(view), [found[gpu] for gpu in gpus], question)


class ProfileAnswer(msgspec.Struct, frozen=True):
    """Results of a profile; each is a result or a `Failure`."""

    efficiency: Any
    kernels: Any
    timeline: Any


def named_device(name: str, content: bytes) -> Device | None:
    """Return the device that a profile names; None if it names none, several, or an unknown one."""
    from ..profile_analysis.recorded_device import identify_device
    from ..profiles.detect import open_profile

    with tempfile.TemporaryDirectory(prefix="paleo-lite-") as folder:
        path = Path(folder) / file_name(name)
        path.write_bytes(content)
        device = try_call(lambda: identify_device(open_profile(path)))
    return None if isinstance(device, Failure) else device


def _report_kernels(profile: Any, device: Device, precision: str) -> Any:
    """Return the kernels of a profile, with notes on evidence that it comes from another device."""
    from ..profile_analysis.evidence import device_warnings, find_contradictions, gather_evidence
    from ..profile_analysis.kernels import mark_device_conflict, report_kernels

    report = report_kernels(profile, device, precision)
    evidence = gather_evidence(profile, report.raw_s)
    return mark_device_conflict(report, find_contradictions(evidence, device), device_warnings(evidence, device))


def read_profile(name: str, content: bytes, device: Device, precision: str) -> ProfileAnswer:
    """Return the results of an uploaded profile."""
    digest = hashlib.sha256(content + msgspec.json.encode(device)).hexdigest()
    return _read_profile(name, digest, precision, content, device)


@_cached(CACHED_PROFILES)
def _read_profile(name: str, digest: str, precision: str, _content: bytes, _device: Device) -> ProfileAnswer:
    """Read a profile; the arguments without an underscore are the key of the cache."""
    from ..profile_analysis.analysis import measure_efficiency
    from ..profile_analysis.timeline import read_timeline
    from ..profiles.detect import open_profile

    with tempfile.TemporaryDirectory(prefix="paleo-lite-") as folder:
        path = Path(folder) / file_name(name)
        path.write_bytes(_content)

        def try_analysis(call: Callable[[], Any]) -> Any:
            result = try_call(call)
            return Failure(result.reason.replace(f"{folder}/", "")) if isinstance(result, Failure) else result

        return ProfileAnswer(
            # One job: the page does not start processes.
            try_analysis(lambda: measure_efficiency([path], _device, precision=precision, jobs=1)),
            try_analysis(lambda: _report_kernels(open_profile(path), _device, precision)),
            try_analysis(lambda: read_timeline(open_profile(path))),
        )

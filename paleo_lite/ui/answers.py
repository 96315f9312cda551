"""What the page asks: the same calls as the commands make, remembered, since the same question has the same answer."""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, cast

import msgspec
import streamlit as st

from ..api.prediction import predict as run_prediction
from ..api.scaling import scale as run_scale
from ..distributed.table import ScaleTable
from ..errors import PaleoError
from ..hardware import Device, LinkRegistry, find_device, list_devices, read_links
from ..timing import Prediction
from .view import View

_T = TypeVar("_T")
_Call = TypeVar("_Call", bound=Callable[..., Any])


def _remember(call: _Call) -> _Call:
    """Remember the latest answers; they are frozen, so that all sessions may share one."""
    return cast(_Call, st.cache_resource(call, show_spinner=False, max_entries=200))


class Failed(msgspec.Struct, frozen=True):
    """A question without an answer, and the sentence why."""

    why: str


def attempt(call: Callable[[], _T]) -> _T | Failed:
    """An answer, or what to say instead."""
    try:
        return call()
    except PaleoError as error:
        return Failed(str(error))


@_remember
def devices() -> dict[str, Device]:
    """All shipped devices by id."""
    return {device.id: device for device in list_devices()}


@_remember
def links() -> LinkRegistry:
    """All shipped links."""
    return read_links()


def predict(view: View, gpu: str, batch_size: int | None = None) -> Prediction:
    """The prediction for one of the devices, at the view's batch size or another.

    Raises
    ------
    PaleoError
    """
    return _predict(view.network, gpu, view.precision, batch_size or view.batch, view.phase, **_model(view))


@_remember
def _predict(network: str, gpu: str, precision: str, batch_size: int, phase: str, **model: Any) -> Prediction:
    return run_prediction(
        network, gpu=gpu, precision=precision, batch_size=batch_size, phase=phase, memory=True, **model
    )  # fmt: skip


def _model(view: View) -> dict[str, Any]:
    calibrated = view.uses_calibration
    return {
        "time_model": None if calibrated else view.model or None,
        "ppp": view.ppp if view.model == "ppp" else None,
        "calibration": view.calibration if calibrated else None,
    }


def scale(view: View, gpu: str) -> ScaleTable:
    """Training on several of one of the devices.

    Raises
    ------
    PaleoError
    """
    asked = {
        "network": view.network, "gpu": gpu, "precision": view.precision, "batch_size": view.batch,
        "workers": view.workers, "link": view.link, "scaling": view.scaling, "strategy": view.strategy,
        "collective": view.collective or None, "images": view.images or None,
        "epochs": view.epochs if view.images else None, "price": (view.images and view.price) or None, **_model(view),
    }  # fmt: skip
    return _scale(tuple(asked.items()))


@_remember
def _scale(asked: tuple[tuple[str, Any], ...]) -> ScaleTable:
    """Remembered by all that was asked."""
    from ..distributed.job import Settings

    question = dict(asked)
    settings = Settings(collective=question.pop("collective"))
    return run_scale(question.pop("network"), settings=settings, **question)


class ProfileAnswer(msgspec.Struct, frozen=True):
    """What a profile says; each part is there or a sentence why not."""

    efficiency: Any
    kernels: Any
    timeline: Any


def read_profile(name: str, content: bytes, gpu: str, precision: str) -> ProfileAnswer:
    """A profile that somebody dropped in, through the readers that the commands use."""
    return _read_profile(name, hashlib.sha256(content).hexdigest(), gpu, precision, content)


@_remember
def _read_profile(name: str, digest: str, gpu: str, precision: str, _content: bytes) -> ProfileAnswer:
    """Remembered by the content's digest; the underscore keeps the content itself out of the key."""
    from ..efficiency.analysis import measure_efficiency
    from ..efficiency.kernels import report_kernels
    from ..efficiency.timeline import read_timeline
    from ..profiles.detect import open_profile

    device = find_device(gpu)
    with tempfile.TemporaryDirectory(prefix="paleo-lite-") as folder:
        path = Path(folder) / _file_name(name)
        path.write_bytes(_content)

        def tried(call: Callable[[], Any]) -> Any:
            answer = attempt(call)
            return Failed(answer.why.replace(f"{folder}/", "")) if isinstance(answer, Failed) else answer

        return ProfileAnswer(
            # In this process: a page forks none.
            tried(lambda: measure_efficiency([path], device, precision=precision, jobs=1)),
            tried(lambda: report_kernels(open_profile(path), device, precision)),
            tried(lambda: read_timeline(open_profile(path))),
        )


def _file_name(name: str) -> str:
    """The last part of a name that a browser gave, which tells the run's configuration; short, and none is hidden."""
    last = name.replace("\\", "/").rpartition("/")[2].replace("\0", "").lstrip(".")
    return last[-100:] or "profile"

"""Questions that the page asks the functions of the package, with cached results."""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar, cast

import msgspec
import streamlit as st

import paleo_lite

from ..errors import BadValue
from ..machines import Device
from ..timing import Prediction
from ..timing.capacity import compare_memory
from ..timing.memory_ranges import MemoryRanges, vary_memory
from .failures import Failure, try_call
from .uploads import file_name, own_files
from .view import View, check_amount

CACHED_ANSWERS, CACHED_PROFILES = 600, 4
"""Cached results of all sessions; the result of a profile can be several megabytes."""

_Call = TypeVar("_Call", bound=Callable[..., Any])


def _cached(entries: int) -> Callable[[_Call], _Call]:
    """Cache the latest results; all sessions share them, as they are immutable."""
    return cast(Callable[[_Call], _Call], st.cache_resource(show_spinner=False, max_entries=entries))


def ask(view: View) -> Any:
    """Return the answer of the function of the package that answers questions of this kind, or raise its PaleoError."""
    check_amount(view)
    uploaded, digests = _uploaded_arguments(view)
    return _answer(view.asked, _key_of(view), digests, {**view.arguments(), **uploaded})


def _key_of(view: View) -> dict[str, list[str]]:
    """Return what an answer depends on, as text."""
    return msgspec.structs.replace(view, shown="").to_query()


def try_each(view: View) -> Mapping[str, Any]:
    """Return the answer for each of the devices, or the reason why there is none."""
    return {gpu: try_call(lambda gpu=gpu: ask(view.of_device(gpu))) for gpu in view.gpu}  # type: ignore[misc]


@_cached(CACHED_ANSWERS)
def _answer(kind: str, query: dict[str, list[str]], digests: tuple[str, ...], _arguments: dict[str, Any]) -> Any:
    """Call the function of a kind; the arguments without an underscore are the key of the cache."""
    return getattr(paleo_lite, kind)(**_arguments)


def _uploaded_arguments(view: View) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return the uploaded objects that a question names, and the digests of their files."""
    uploaded = own_files()
    objects: dict[str, Any] = {}
    digests: list[str] = []
    for name, text in (("network", view.network), ("calibration", view.options.get("calibration", ""))):
        if text in getattr(uploaded, name):
            objects[name], digest = getattr(uploaded, name)[text]
            digests.append(digest)
    if any(gpu in uploaded.gpu for gpu in view.gpu):
        gpus = [uploaded.gpu[gpu][0] if gpu in uploaded.gpu else gpu for gpu in view.gpu]
        objects["gpu"] = gpus[0] if len(gpus) == 1 else gpus
        digests += [uploaded.gpu[gpu][1] for gpu in view.gpu if gpu in uploaded.gpu]
    return objects, tuple(digests)


def memory_ranges(view: View, prediction: Prediction) -> MemoryRanges:
    """Return the memory of an answer over the batch size and over the tokens.

    Raise BadValue if the memory is that of a plan of blocks, which is made for one batch size and length.
    """
    return _memory_ranges(_key_of(view), _uploaded_arguments(view)[1], prediction)


@_cached(CACHED_ANSWERS)
def _memory_ranges(query: dict[str, list[str]], digests: tuple[str, ...], _prediction: Prediction) -> MemoryRanges:
    """Compute the memory; the arguments without an underscore are the key of the cache."""
    workload, machine, model = _prediction.workload, _prediction.machine, _prediction.model
    assert _prediction.memory is not None
    if compare_memory(workload, machine, model).memory != _prediction.memory.memory:
        raise BadValue("no chart of the memory: it is that of a plan for this batch size and length")
    micro_batches = workload.options.accumulation
    return vary_memory(
        workload, machine, model, [micro_batches * 2**power for power in range(7)], [2**power for power in range(8, 17)]
    )


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
    from ..profile_analysis.contradictions import device_warnings, find_contradictions, gather_evidence
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

"""Files that users upload, and the networks, devices and calibrations that they may choose: shipped and uploaded ones.

Uploaded networks, devices and calibrations are kept for the session only.
"""

from __future__ import annotations

import hashlib
import re
import tempfile
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import streamlit as st

from ..architectures import Network, find_network, network_names
from ..architectures.catalog import read_network_file
from ..architectures.listing import network_rows
from ..architectures.pipelines.records import pipelines
from ..calibration.evidence_file import EvidenceCalibration
from ..calibration.store import read_calibration, shipped_calibrations
from ..errors import BadFile, PaleoError
from ..machines import Device, list_devices

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


def own_device_files(gpus: Sequence[str]) -> list[str]:
    """Return the hardware files that a command needs for devices that were uploaded."""
    files = own_files().files
    return [files[gpu] for gpu in gpus if gpu in files]


def store_own_files(files: Sequence[tuple[str, bytes]]) -> None:
    """Set the uploaded files of the session; they are read only if they changed."""
    digests = [(name, hashlib.sha256(content).hexdigest()) for name, content in files]
    if st.session_state.get(_DIGESTS_KEY, []) != digests:
        st.session_state[_OWN_FILES_KEY] = read_own_files(files)
        st.session_state[_DIGESTS_KEY] = digests


def read_own_files(files: Sequence[tuple[str, bytes]]) -> OwnFiles:
    """Read files, given by name and content, as networks, devices or calibrations."""
    uploaded, errors = OwnFiles(network={}, gpu={}, calibration={}, files={}), []
    if len(files) > FILES_AT_MOST:
        errors.append(f"only the first {FILES_AT_MOST} of {len(files)} files are read: remove some")
    for name, content in files[:FILES_AT_MOST]:
        with tempfile.TemporaryDirectory(prefix="paleo-lite-") as folder:
            path = Path(folder) / file_name(name)
            path.write_bytes(content)
            try:
                _read_file(uploaded, path, hashlib.sha256(content).hexdigest()[:16])
            except PaleoError as error:
                reason = str(error).replace(f"{folder}/", "")
                errors.append(reason if path.name in reason else f"{path.name}: {reason}")
    return msgspec.structs.replace(uploaded, errors=tuple(errors))


def _read_file(uploaded: OwnFiles, path: Path, digest: str) -> None:
    if path.suffix != ".toml":
        if path.suffix[1:] not in SUFFIXES:
            raise BadFile(f"{path}: the file name must end in {', '.join(SUFFIXES)}")
        uploaded.network[path.name] = read_network_file(path), digest
    elif _CALIBRATION.search(path.read_bytes()):
        uploaded.calibration[path.name] = read_calibration(path), digest
    else:
        shipped = {device.id for device in list_devices()}
        [device] = [device for device in list_devices([path]) if device.id not in shipped]
        uploaded.gpu[device.id] = device, digest
        uploaded.files[device.id] = path.name


def file_name(name: str) -> str:
    """Return the last part of an uploaded file's name, at most 100 characters and without leading dots."""
    last = name.replace("\\", "/").rpartition("/")[2].replace("\0", "").lstrip(".")
    return last[-100:] or "file"


def devices() -> dict[str, Device]:
    """Return the shipped and uploaded devices by id."""
    uploaded = {name: device for name, (device, _) in own_files().gpu.items()}
    return {device.id: device for device in list_devices()} | uploaded


def find_any_network(name: str) -> Network:
    """Return a shipped or an uploaded network."""
    uploaded, _ = own_files().network.get(name, (None, ""))
    return uploaded or find_network(name)


def reads_sequences(name: str) -> bool:
    """Return whether a network reads a sequence of tokens; a pipeline and a removed file do not."""
    if name not in offered_networks("any"):
        return False
    network = find_any_network(name)
    return network.lengths is not None and network.tokens is not None


@cache
def language_models() -> list[str]:
    """Return the names of the shipped networks that write text."""
    return [row["name"] for row in network_rows(network_names()) if row["group"] == "language models"]


NETWORKS: dict[str, Callable[[], list[str]]] = {
    "any": network_names,
    "language": language_models,
    "pipelines": lambda: list(pipelines()),
    "": list,
}
"""The lists of shipped networks that questions offer."""


def offered_networks(offered: str) -> list[str]:
    """Return the networks that a question offers, uploaded ones first."""
    uploaded = own_files().network
    names = {
        "any": list(uploaded),
        "language": [name for name, (network, _) in uploaded.items() if network.is_language_model],
    }
    return [*names.get(offered, []), *NETWORKS[offered]()]


def available_calibrations(gpus: Sequence[str], precision: str) -> list[str]:
    """Return the calibrations of some devices in a precision, or in all of them, uploaded ones first."""
    uploaded = [
        name
        for name, (calibration, _) in own_files().calibration.items()
        if isinstance(calibration, EvidenceCalibration)  # which also informs what was not measured
        or (calibration.device in gpus and precision in ("", calibration.precision))
    ]
    shipped = [name for name in shipped_calibrations() if name.rpartition("-")[0] in gpus]
    return uploaded + [name for name in shipped if precision in ("", name.rpartition("-")[2])]

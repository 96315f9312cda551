"""Files of one's own that are dropped into the page: networks, devices, calibrations; kept for the session alone."""

from __future__ import annotations

import hashlib
import re
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import streamlit as st

from ..calibration.store import read_calibration
from ..errors import BadFile, PaleoError
from ..hardware import Device, list_devices
from ..networks import Network
from ..networks.catalog import read_network_file

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

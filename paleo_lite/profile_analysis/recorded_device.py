"""The device that a profile was taken on, from the properties recorded by the profiler.

Sources: ``deviceProperties`` of PyTorch's traces (2021: ``computeProperties``), ``TARGET_INFO_GPU`` of Nsight
Systems, the agents of rocprofv3's database and JSON, and the names in the tables of nvprof and Nsight Compute.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from ..errors import BadValue, PaleoError
from ..machines import Device, PeakRate
from ..machines.registry import find_device, list_devices
from ..profiles.detect import Profile, is_gzip, open_decompressed, read_head
from ..profiles.sqlite_file import MAGIC, open_readonly, tables_of
from ..text import make_printable, normalize_name

_PROPERTIES = re.compile(rb'"(?:device|compute)Properties"\s*:\s*(\[.*?\])', re.DOTALL)
_TAIL_BYTES = 2**17
_CHUNK_BYTES = 2**20
_GPU_IN_TABLE = re.compile(
    rb"(?<![\w.])((?:NVIDIA |AMD )?(?:Tesla|GeForce|Quadro|TITAN|NVIDIA|Instinct|Radeon) [A-Z0-9][\w\- ]{1,40}?)"
    rb'(?= \(\d+\)|[",\r\n])'
)
_AGENT_NAME = re.compile(rb'"product_name"\s*:\s*"((?:AMD )?(?:Instinct|Radeon)[^"\\]{1,80})"')
_AGENT_TABLE = "rocpd_info_agent"
_MAX_ROWS = 64
_MEMORY_TOLERANCE = 0.2  # drivers report less than the capacity, and gibibytes are sold as gigabytes
_FORM_FACTORS = ("sxm", "pcie", "nvl")


class RecordedGpu(msgspec.Struct, frozen=True):
    """A GPU recorded in a profile."""

    name: str  # name recorded by the profiler
    memory_bytes: int | None = None  # recorded memory capacity


class _Properties(msgspec.Struct):
    name: str = ""
    memory_bytes: Any = msgspec.field(name="totalGlobalMem", default=None)  # of a tool that may write 8.5e+10


def recorded_gpus(profile: Profile) -> tuple[RecordedGpu, ...]:
    """Return the distinct GPUs recorded in a profile, in file order."""
    head = read_head(profile.path)
    if head.startswith(MAGIC):
        gpus = _gpus_in_database(profile.path)
    elif profile.format == "chrome-trace":
        gpus = _gpus_in_trace(profile.path, head)
    else:
        matches = _AGENT_NAME.findall(head) or _GPU_IN_TABLE.findall(head)
        gpus = [RecordedGpu(make_printable(name.decode(errors="replace"))) for name in matches]
    return tuple(dict.fromkeys(gpus))


def _gpus_in_trace(path: Path, head: bytes) -> list[RecordedGpu]:
    """Return the GPUs in the properties of a PyTorch trace, which are written before or after the events."""
    match = _PROPERTIES.search(head)
    if match is None:
        match = _PROPERTIES.search(_read_tail(path))
    if match is None:
        return []
    try:
        properties = msgspec.json.decode(match[1], type=list[_Properties])
    except msgspec.DecodeError:
        return []
    return [_recorded(item.name, item.memory_bytes) for item in properties if item.name]


def _recorded(name: Any, memory_bytes: Any) -> RecordedGpu:
    """Return a recorded GPU, without its memory where that is no number of bytes."""
    is_known = isinstance(memory_bytes, (int, float)) and memory_bytes >= 1
    return RecordedGpu(make_printable(str(name)), round(memory_bytes) if is_known else None)


def _read_tail(path: Path) -> bytes:
    """Return the last bytes of a file, decompressed if it is gzip."""
    with open_decompressed(path) as file:
        if not is_gzip(path):
            file.seek(max(path.stat().st_size - _TAIL_BYTES, 0))
            return file.read()
        tail = b""
        try:
            while chunk := file.read(_CHUNK_BYTES):
                tail = (tail + chunk)[-_TAIL_BYTES:]
        except (EOFError, OSError):
            return b""  # a truncated file is reported when its events are read
        return tail


def _gpus_in_database(path: Path) -> list[RecordedGpu]:
    """Return the GPUs in the tables of Nsight Systems or of rocprofv3."""
    with open_readonly(path) as connection:
        tables = tables_of(connection)
        nsys_columns = tables.get("TARGET_INFO_GPU", [])
        rows: list[tuple[Any, ...]] = []
        if "name" in nsys_columns:
            memory = next((name for name in ("totalMemory", "memorySize") if name in nsys_columns), "NULL")
            query = f"SELECT DISTINCT name, {memory} FROM TARGET_INFO_GPU LIMIT {_MAX_ROWS}"
            rows += connection.execute(query).fetchall()
        for table, columns in tables.items():
            if table.startswith(_AGENT_TABLE) and {"type", "product_name"} <= {*columns}:
                query = f"SELECT DISTINCT product_name, NULL FROM \"{table}\" WHERE type = 'GPU' LIMIT {_MAX_ROWS}"
                rows += connection.execute(query).fetchall()
    return [_recorded(name, memory_bytes) for name, memory_bytes in rows if name]


def candidate_devices(gpu: RecordedGpu, files: Iterable[str | Path] = ()) -> list[Device]:
    """Return the devices of the registry that a recorded GPU can be.

    A name can stand for several devices (``Tesla V100``, ``A100``). The candidates are narrowed down by the model, the
    form factor in the name and the recorded memory. A program sees the dies of a board as separate devices, so boards
    are replaced by their dies.
    """
    devices = list_devices([Path(file) for file in files])
    model = model_word(gpu.name)
    candidates = [device for device in devices if model in _model_words(device)]
    dies = [device for device in candidates if device.scope not in ("board", "package")]
    candidates = dies or candidates
    exact = _find_exact(gpu.name, files)
    if exact in candidates and _fits_memory(exact, gpu.memory_bytes):
        return [exact]
    for form_factor in _FORM_FACTORS:
        if form_factor in gpu.name.lower():
            matching = [device for device in candidates if form_factor in device.id]
            candidates = matching or candidates
    if gpu.memory_bytes is not None:
        matching = [device for device in candidates if _fits_memory(device, gpu.memory_bytes)]
        candidates = matching or candidates
    return candidates


def identify_device(profile: Profile, files: Iterable[str | Path] = ()) -> Device | None:
    """Return the device that a profile was taken on; None if it is not recorded or not unique.

    Candidates with equal peaks at their default clock and equal bandwidth (A100 SXM4 and PCIe of one capacity) are
    equivalent here: the first one is returned.
    """
    gpus = recorded_gpus(profile)
    if not gpus:
        return None
    candidates, *other_candidates = (candidate_devices(gpu, files) for gpu in gpus)
    if any(other != candidates for other in other_candidates):
        return None
    rates = {_rates(device) for device in candidates}
    return candidates[0] if len(rates) == 1 else None


class MissingDevice(msgspec.Struct, frozen=True):
    """A profile whose device is not in the registry, not recorded or not unique, so that it has no known peaks."""

    path: Path  # the profile
    names: tuple[str, ...] = ()  # recorded names of its GPUs
    candidates: tuple[str, ...] = ()  # devices of the registry that have the recorded name

    @property
    def name(self) -> str:
        """The recorded names; ``an unknown device`` without one."""
        return ", ".join(self.names) or "an unknown device"

    @property
    def reason(self) -> str:
        """Why there is no device, as a clause about the profile."""
        if not self.names:
            return "does not record its device"
        if not self.candidates:
            return f"was taken on {self.name}, which is not in the registry"
        return f"was taken on {self.name}, which can be {', '.join(self.candidates)}"

    @property
    def request(self) -> str:
        """A sentence that ends with the option to use."""
        option = "choose one with `--gpu DEVICE`" if self.candidates else "use `--gpu DEVICE`"
        return f"{self.path} {self.reason}: {option}"

    @property
    def note(self) -> str:
        """A note about what cannot be answered without peaks."""
        return f"{self.path.name} {self.reason}: shares of peak and bounds need `--gpu DEVICE`"


def require_peak(device: Device | MissingDevice, peak: PeakRate | None) -> tuple[Device, PeakRate]:
    """Return the device and the peak of an analysis; raise an error that asks for `--gpu` if it has none."""
    if isinstance(device, Device) and peak is not None:
        return device, peak
    raise BadValue(device.request if isinstance(device, MissingDevice) else "the analysis has no peak: use `--gpu`")


def describe_missing_device(profile: Profile, files: Iterable[str | Path] = ()) -> MissingDevice:
    """Return why `identify_device` gives no device."""
    gpus = recorded_gpus(profile)
    names = dict.fromkeys(gpu.name for gpu in gpus)
    candidates = dict.fromkeys(device.id for gpu in gpus for device in candidate_devices(gpu, files))
    return MissingDevice(profile.path, tuple(names), tuple(candidates))


def model_word(name: str) -> str:
    """Return the first word of a GPU's name that has a digit, which variants of one model share."""
    words: Sequence[str] = re.findall(r"[a-z]*\d[a-z0-9]*", name.lower())
    return words[0] if words else normalize_name(name)


def _model_words(device: Device) -> set[str]:
    return {model_word(name) for name in (device.name, *device.aliases)}


def _find_exact(name: str, files: Iterable[str | Path]) -> Device | None:
    try:
        return find_device(name, files)
    except PaleoError:
        return None


def _fits_memory(device: Device | None, memory_bytes: int | None) -> bool:
    """Return whether a device has the recorded memory; True if none is recorded."""
    if device is None or memory_bytes is None:
        return True
    return abs(memory_bytes / device.memory_bytes - 1) <= _MEMORY_TOLERANCE


def describe_ambiguous_name(name: str, device: Device) -> str:
    """Return a note if the recorded name of a GPU stands for several devices, of which `device` is one; else empty."""
    candidates = candidate_devices(RecordedGpu(name, None))
    if len(candidates) < 2 or device not in candidates:
        return ""
    return f"the recorded name {name} does not determine the device: the peaks are those of {device.name}"


def _rates(device: Device) -> tuple[object, ...]:
    """Return the bandwidth of a device and its peaks at the clock that shares of peak refer to."""
    clocks = (device.clocks.default, "tensor")
    peaks = sorted((peak.precision, peak.unit, peak.per_s) for peak in device.peaks if peak.clock in clocks)
    return device.bandwidth_bytes_per_s, *peaks

"""What a profile itself tells of device, network and precision, and what of it speaks against what is said of it.

GPUs are named by Chrome traces (``deviceProperties``), Nsight Systems (``TARGET_INFO_GPU``) and the tables of nvprof
and Nsight Compute; precision and generation stand in the names of kernels that libraries compile for them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import msgspec
import pyarrow as pa
import pyarrow.compute

from ..errors import BadProfile
from ..machines import Device
from ..machines.registry import key
from ..profiles.detect import Profile, read_head
from ..profiles.sqlite_file import MAGIC, opened, tables_of
from ..text import printable

_PROPERTIES = re.compile(rb'"deviceProperties"\s*:\s*\[(.*?)\]', re.DOTALL)
_RANK = re.compile(rb'"distributedInfo"\s*:\s*\{.{0,8000}?"rank"\s*:\s*(\d{1,9})\b', re.DOTALL)
_NAMED_RANK = re.compile(r"(?<![a-z])(?:rank|worker)[-_]?(\d{1,9})")
_NAMED = re.compile(rb'"name"\s*:\s*"([^"\\]{1,80})"')
_IN_TABLE = re.compile(
    rb'(?<![\w.])((?:NVIDIA |AMD )?(?:Tesla|GeForce|Quadro|TITAN|NVIDIA|Instinct|Radeon) [A-Z0-9][\w\- ]{1,40}?)'
    rb'(?= \(\d+\)|[",\r\n])'
)  # fmt: skip

_NAMES_AT_MOST = 10_000  # the longest of so many distinct kernels tell enough

_PRECISIONS = (
    ("fp64", re.compile(r"(?<![a-z])dgemm|_d\d{3,}gemm|<double|_f64f64_|d884", re.I)),
    ("half", re.compile(r"(?<![a-z])hgemm|hmma|fp16|_h\d{3,}|[hs]884|s16816|::half|__half|bf16|bfloat", re.I)),
    ("tf32", re.compile(r"tf32|s1688", re.I)),  # after those of half precision, which name it beside s1688
    ("fp32", re.compile(r"sgemm|scudnn|ffma|_f32f32_f32f32_|<float", re.I)),
)  # fmt: skip
"""By the names of cuBLAS, cuDNN and CUTLASS kernels (dgemm, hgemm, sgemm; s884 and d884 are instruction shapes)."""

FAMILY = {"fp64": "fp64", "fp32": "fp32", "tf32": "tf32", "fp16": "half", "bf16": "half"}
"""Precisions by what kernels' names tell apart."""

_GENERATIONS = (
    (3.0, re.compile(r"(?<![a-z0-9])sm3[0-7](?!\d)")),
    (5.0, re.compile(r"(?<![a-z])maxwell_")),
    (7.0, re.compile(r"(?<![a-z])volta_|(?<![a-z0-9])sm70_")),
    (7.5, re.compile(r"(?<![a-z])turing_|(?<![a-z0-9])sm75_")),
    (8.0, re.compile(r"(?<![a-z])ampere_|(?<![a-z0-9])sm8\d_")),
    (9.0, re.compile(r"(?<![a-z])hopper_|(?<![a-z0-9])sm90_")),
)
"""The least compute capability of a kernel, by the generation in its name."""
_NAMING = ("sm", "maxwell_", "volta_", "turing_", "ampere_", "hopper_")

KEPLER_ENDS = 5.0
"""Libraries have kernels of Kepler (sm_3x) for Kepler alone; those of later generations run on successors, too."""

_MATRIX = re.compile(r"gemm|cudnn|convolve|grad|mma", re.I)
_MOSTLY = 0.9


class Evidence(msgspec.Struct, frozen=True):
    """What a profile tells.

    Attributes
    ----------
    gpus : tuple of str
        Names that the profiler wrote down, as it wrote them.
    configuration : dict
        What the file's name tells.
    precision : str or None
        The family (`FAMILY`) that nine tenths of the time of products whose names tell it ran in.
    capability : tuple of (float, str) or None
        The highest least capability, and the kernel that tells it.
    kepler : str
        A kernel of Kepler; empty if there is none.
    """

    gpus: tuple[str, ...]
    configuration: Mapping[str, object]
    precision: str | None
    capability: tuple[float, str] | None
    kepler: str = ""


def evidence_of(profile: Profile, seconds: Mapping[str, float] | None = None) -> Evidence:
    """What a profile tells.

    Parameters
    ----------
    seconds : mapping of str to float, optional
        The time of each of its kernels; without it they are read.
    """
    seconds = _read_seconds(profile) if seconds is None else seconds
    if len(seconds) > _NAMES_AT_MOST:
        seconds = dict(sorted(seconds.items(), key=lambda item: -item[1])[:_NAMES_AT_MOST])
    named = [name for name in seconds if any(word in name for word in _NAMING)]
    told = [(least, name) for name in named for least, pattern in _GENERATIONS if pattern.search(name)]
    kepler = next((name for least, name in told if least < KEPLER_ENDS), "")
    return Evidence(named_gpus(profile), profile.configuration, precision_of(seconds), max(told, default=None), kepler)


def _read_seconds(profile: Profile) -> dict[str, float]:
    seconds: dict[str, float] = {}
    for batch in profile.batches(("category", "kernel", "duration_ns")):
        kernels = pa.Table.from_batches([batch]).filter(pa.compute.field("category").cast(pa.string()) == "kernel")
        sums = kernels.group_by("kernel").aggregate([("duration_ns", "sum")])
        for name, duration_ns in zip(sums.column("kernel").to_pylist(), sums.column("duration_ns_sum").to_pylist()):
            if name:
                seconds[name] = seconds.get(name, 0.0) + (duration_ns or 0.0)
    return seconds


def named_gpus(profile: Profile) -> tuple[str, ...]:
    """The GPUs that the profiler wrote down, each once."""
    head = read_head(profile.path)
    if head.startswith(MAGIC):
        with opened(profile.path) as connection:
            known = "name" in tables_of(connection).get("TARGET_INFO_GPU", ())
            rows = connection.execute("SELECT DISTINCT name FROM TARGET_INFO_GPU LIMIT 64").fetchall() if known else []
        names = [str(name) for (name,) in rows if name]
    else:
        properties = _PROPERTIES.search(head)
        told = _IN_TABLE.findall(head) if properties is None else _NAMED.findall(properties[1])
        names = [name.decode(errors="replace") for name in told]
    return tuple(dict.fromkeys(map(printable, names)))


def rank_of(profile: Profile) -> int | None:
    """Which rank of a job a profile is of, by what a trace says of it, or by its file's name; None where neither does.

    ``rank-3.pt.trace.json``, ``worker3_step_12...``.
    """
    told = _RANK.search(read_head(profile.path)) or _NAMED_RANK.search(profile.path.name.lower())
    return None if told is None else int(told[1])


def precision_of(seconds: Mapping[str, float]) -> str | None:
    """What most products ran in, by the names of their kernels; None where the names do not tell or differ."""
    by_precision: dict[str, float] = {}
    for name, taken in seconds.items():
        if _MATRIX.search(name):
            told = next((precision for precision, pattern in _PRECISIONS if pattern.search(name)), None)
            if told is not None:
                by_precision[told] = by_precision.get(told, 0.0) + taken
    if not by_precision:
        return None
    precision = max(by_precision, key=lambda name: by_precision[name])
    return precision if by_precision[precision] >= _MOSTLY * sum(by_precision.values()) > 0 else None


def contradictions(
    evidence: Evidence, device: Device | None = None, network: str | None = None, precision: str | None = None
) -> list[str]:
    """Each piece of evidence against the claim, as the end of a sentence that begins with the profile.

    Parameters
    ----------
    network, precision : str, optional
        What is claimed; what is left out is not questioned.
    """
    against = []
    told = evidence.configuration
    if network is not None and told.get("network", network) != network:
        against.append(f"its name tells of {told['network']}, not of {network}")
    if precision is not None:
        named = told.get("compute_precision", precision)
        if named != precision:
            against.append(f"its name tells of {named}, not of {precision}")
        elif evidence.precision is not None and evidence.precision != FAMILY.get(precision, evidence.precision):
            family = {"half": "half precision"}.get(evidence.precision, evidence.precision)
            against.append(f"its kernels multiply in {family}, by their names, not in {precision}")
    if device is not None:
        keys = [key(name) for name in (device.id, device.name, *device.aliases)]
        numbered = re.fullmatch(r"\d+\.\d+", device.capability) is not None  # only NVIDIA's are numbers
        own = float(device.capability) if numbered else 0.0
        if evidence.gpus and not any(_model(name) in known for name in evidence.gpus for known in keys):
            against.append(f"it was taken on {', '.join(evidence.gpus)}, not on {device.name}")
        elif numbered and evidence.capability is not None and evidence.capability[0] > own:
            least, kernel = evidence.capability
            against.append(f"its kernel {kernel[:60]} needs compute capability {least:g}, {device.name} has {own:g}")
        elif numbered and evidence.kepler and own >= KEPLER_ENDS:
            against.append(
                f"its kernel {evidence.kepler[:60]} is one of Kepler's, {device.name} is {device.architecture}"
            )
    return against


def question(
    profile: Profile, device: Device | None = None, network: str | None = None, precision: str | None = None
) -> None:
    """Refuse a profile that tells of something else than is claimed.

    Raises
    ------
    BadProfile
        If something in it speaks against the claim, or it cannot be read.
    """
    against = contradictions(evidence_of(profile), device, network, precision)
    if against:
        raise BadProfile(f"{profile.path}: {'; '.join(against)}")


def doubts(evidence: Evidence, device: Device) -> list[str]:
    """What an analysis against the peaks of a device should say first: that the profile is of another."""
    return [f"{text}: shares of peak are of the wrong peak" for text in contradictions(evidence, device)]


def _model(name: str) -> str:
    """The first word of a GPU's name that has a digit: what variants of one model share."""
    words = re.findall(r"[a-z]*\d[a-z0-9]*", name.lower())
    return words[0] if words else key(name)

"""Evidence in a profile about its device, network and precision, and checks of claims against that evidence.

`recorded_device` reads the GPUs that the profiler recorded. Precision and GPU generation are part of the names of
kernels that libraries compile for them.
"""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Mapping

import msgspec
import numpy as np

from ..errors import BadProfile
from ..machines import Device
from ..profiles.detect import Profile, read_head
from ..profiles.names import multiplies_matrices
from ..profiles.table import float_column, values_of
from ..text import normalize_name
from .recorded_device import model_word, recorded_gpus

_RANK = re.compile(rb'"distributedInfo"\s*:\s*\{.{0,8000}?"rank"\s*:\s*(\d{1,9})\b', re.DOTALL)
_RANK_IN_FILE_NAME = re.compile(r"(?<![a-z])(?:rank|worker)[-_]?(\d{1,9})")

_MAX_KERNEL_NAMES = 10_000  # the kernels with the longest times are sufficient evidence

_PRECISIONS = tuple(
    (precision, re.compile(pattern, re.IGNORECASE))
    for precision, pattern in (
        ("fp64", r"(?<![a-z])dgemm|_d\d{3,}gemm|<double|_f64f64_|d884|^cijk_[a-z]+_[a-z]+_d"),
        ("fp8", r"fp8|float_?8|e4m3|e5m2|^nvjet_(?:sm\d+_)?qq|^cijk_[a-z]+_[a-z]+_[fb]8"),
        ("bf16", r"bf16|bfloat|^nvjet_(?:sm\d+_)?t|^cijk_[a-z]+_[a-z]+_b"),
        (
            "fp16",
            r"(?<![a-z])hgemm|hmma|fp16|_h\d{3,}|[hs]884|s16816|::half|__half"
            r"|^nvjet_(?:sm\d+_)?h|^cijk_[a-z]+_[a-z]+_h",
        ),
        ("tf32", r"tf32|s1688"),  # after half precision, because those kernels can also contain s1688
        ("fp32", r"sgemm|scudnn|ffma|_f32f32_f32f32_|<float|^cijk_[a-z]+_[a-z]+_s"),
    )
)
"""Precisions of the operands by the names of kernels: of cuBLAS, cuDNN and CUTLASS (dgemm, hgemm, sgemm; s884 and d884
are instruction shapes), of cuBLAS since CUDA 12 (nvjet_tst: bf16, nvjet_hsh: fp16, nvjet_qqtst: fp8), and of Tensile
(Cijk_Ailk_Bljk_BBS: the letters of its `DataType.py`, that of the operands first)."""

PRECISION_FAMILY = {"fp64": "fp64", "fp32": "fp32", "tf32": "tf32", "fp16": "half", "bf16": "half"}
"""Family of each precision; names of kernels seldom distinguish both of 16 bits."""

_PRECISIONS_OF_FAMILY = {
    "half": ("bf16", "fp16"), "fp8": ("fp8",), **{name: (name,) for name in ("fp64", "fp32", "tf32")}
}  # fmt: skip
"""Precisions to ask for, by the family in the names of kernels."""

_GENERATIONS = (
    (3.0, re.compile(r"(?<![a-z0-9])sm3[0-7](?!\d)")),
    (5.0, re.compile(r"(?<![a-z])maxwell_")),
    (7.0, re.compile(r"(?<![a-z])volta_|(?<![a-z0-9])sm70_")),
    (7.5, re.compile(r"(?<![a-z])turing_|(?<![a-z0-9])sm75_")),
    (8.0, re.compile(r"(?<![a-z])ampere_|(?<![a-z0-9])sm8\d_")),
    (9.0, re.compile(r"(?<![a-z])hopper_|(?<![a-z0-9])sm90_")),
)
"""Minimum compute capability of a kernel, by the GPU generation in its name."""
_GENERATION_HINTS = ("sm", "maxwell_", "volta_", "turing_", "ampere_", "hopper_")

_LIBRARIES = (
    ("AMD", re.compile(r"^Cijk_|\.kd\b|miopen|rocblas|hipblas", re.IGNORECASE)),
    ("NVIDIA", re.compile(r"^nvjet_|(?<![a-z0-9])(?:volta|turing|ampere|hopper)_|(?<![a-z0-9])sm\d\d_")),
)
"""Makers of devices, by the names of the kernels of their libraries."""

FIRST_CAPABILITY_AFTER_KEPLER = 5.0
"""Libraries use Kepler kernels (sm_3x) on Kepler only; kernels of later generations also run on successors."""

_DOMINANT_SHARE = 0.9


class OriginEvidence(msgspec.Struct, frozen=True):
    """Evidence in a profile about its origin."""

    gpus: tuple[str, ...]  # GPU names recorded by the profiler, unchanged
    configuration: Mapping[str, object]  # configuration read from the file's name
    # Precision family (`PRECISION_FAMILY`) of at least nine tenths of the time in matrix kernels with a precision
    # in their names.
    precision: str | None
    # The highest minimum compute capability, and the kernel that requires it.
    minimum_capability: tuple[float, str] | None
    kepler_kernel: str = ""  # a kernel compiled for Kepler; empty if there is none
    on_processor: str = ""  # what computed all kernels on the processor of the host; empty if a device did
    # Maker of the devices that its profiler or the library of a kernel is for, and what tells it.
    maker: tuple[str, str] | None = None
    capability: float | None = None  # compute capability that the profiler recorded


def gather_evidence(profile: Profile, seconds: Mapping[str, float] | None = None) -> OriginEvidence:
    """Gather the evidence in a profile; the time of each kernel is read from it unless `seconds` has it."""
    seconds = _read_kernel_seconds(profile) if seconds is None else seconds
    if len(seconds) > _MAX_KERNEL_NAMES:
        seconds = dict(sorted(seconds.items(), key=lambda item: -item[1])[:_MAX_KERNEL_NAMES])
    capabilities = []
    for name in seconds:
        if any(hint in name for hint in _GENERATION_HINTS):
            for capability, pattern in _GENERATIONS:
                if pattern.search(name):
                    capabilities.append((capability, name))
    kepler_kernels = [name for capability, name in capabilities if capability < FIRST_CAPABILITY_AFTER_KEPLER]
    return OriginEvidence(
        gpus=recorded_gpu_names(profile),
        configuration=profile.configuration,
        precision=dominant_precision(seconds),
        minimum_capability=max(capabilities, default=None),
        kepler_kernel=kepler_kernels[0] if kepler_kernels else "",
        on_processor=profile.on_processor,
        maker=_find_maker(profile, seconds),
        capability=profile.capability,
    )


def _find_maker(profile: Profile, seconds: Mapping[str, float]) -> tuple[str, str] | None:
    """Return the maker of the devices that a profiler, or the library of a kernel, is for, and what tells it."""
    if profile.maker:
        return profile.maker, f"it was made by {profile.maker}'s profiler (format {profile.format})"
    for name in seconds:
        for maker, pattern in _LIBRARIES:
            if pattern.search(name):
                return maker, f"its kernel {name[:60]} is of {maker}'s libraries"
    return None


def _read_kernel_seconds(profile: Profile) -> dict[str, float]:
    seconds: dict[str, float] = {}
    for batch in profile.batches(("category", "kernel", "duration_ns")):
        category, categories = values_of(batch, "category")
        kernel, kernels = values_of(batch, "kernel")
        is_kernel = np.array([name == "kernel" for name in categories])[category]
        duration_ns = float_column(batch, "duration_ns", 0.0)
        sums = np.bincount(kernel[is_kernel], duration_ns[is_kernel], len(kernels))
        occurs = np.bincount(kernel[is_kernel], minlength=len(kernels)) > 0
        for name, kernel_ns in zip(itertools.compress(kernels, occurs), sums[occurs].tolist()):
            if name:
                seconds[name] = seconds.get(name, 0.0) + kernel_ns
    return seconds


def recorded_gpu_names(profile: Profile) -> tuple[str, ...]:
    """Return the distinct GPU names recorded by the profiler."""
    return tuple(dict.fromkeys(gpu.name for gpu in recorded_gpus(profile)))


def find_rank(profile: Profile) -> int | None:
    """Return the rank of a distributed job, from the trace or from a file name such as ``rank-3.pt.trace.json``.

    None if neither records one. TensorBoard's ``worker3_step_12...`` is a file name of rank 3.
    """
    match = _RANK.search(read_head(profile.path)) or _RANK_IN_FILE_NAME.search(profile.path.name.lower())
    return None if match is None else int(match[1])


def dominant_precision(seconds: Mapping[str, float]) -> str | None:
    """Return the precision family of most matrix kernels by time; None if their names record none or differ."""
    precision = precision_in_names(seconds)
    return None if precision is None else PRECISION_FAMILY.get(precision, precision)


def precision_in_names(seconds: Mapping[str, float]) -> str | None:
    """Return the precision of the operands of most matrix kernels by time; None if their names record none or differ.

    Of both precisions of 16 bits, it is that of more time, and fp16 if no name tells them apart.
    """
    seconds_in: dict[str, float] = {}
    for name, kernel_seconds in seconds.items():
        precision = _precision_in_name(name)
        if precision is not None:
            seconds_in[precision] = seconds_in.get(precision, 0.0) + kernel_seconds
    return main_precision(seconds_in)


def operand_precision(recorded: str | None, in_names: str | None) -> str | None:
    """Return the precision of products from that of the recorded operands and that in the names of the kernels.

    Operands in fp32 are multiplied in tf32 by kernels that say so.
    """
    return in_names if recorded is None or (recorded == "fp32" and in_names == "tf32") else recorded


def main_precision(seconds_in: Mapping[str, float]) -> str | None:
    """Return the precision of most of the time by precision; None if its family has less than nine tenths of it."""
    if not seconds_in:
        return None
    main = max(seconds_in, key=lambda precision: seconds_in[precision])
    family = PRECISION_FAMILY.get(main, main)
    in_family = [value for name, value in seconds_in.items() if PRECISION_FAMILY.get(name, name) == family]
    return main if sum(in_family) >= _DOMINANT_SHARE * sum(seconds_in.values()) > 0 else None


@functools.lru_cache(2**12)
def _precision_in_name(name: str) -> str | None:
    """Return the precision that the name of a matrix kernel records; None without one, and of other kernels."""
    if not multiplies_matrices(name):
        return None
    return next((precision for precision, pattern in _PRECISIONS if pattern.search(name)), None)


def find_contradictions(
    evidence: OriginEvidence, device: Device | None, network: str | None = None, precision: str | None = None
) -> list[str]:
    """Return the contradictions between evidence and claims, as phrases that follow the name of the profile.

    A claim that is None is not checked.
    """
    contradictions = []
    configuration = evidence.configuration
    if network is not None and configuration.get("network", network) != network:
        contradictions.append(f"its file name gives the network {configuration['network']}, not {network}")
    if precision is not None:
        named_precision = configuration.get("compute_precision", precision)
        if named_precision != precision:
            contradictions.append(f"its file name gives the precision {named_precision}, not {precision}")
        elif evidence.precision is not None and evidence.precision != PRECISION_FAMILY.get(
            precision, evidence.precision
        ):
            family = "half precision" if evidence.precision == "half" else evidence.precision
            fitting = " or ".join(f"`--precision {name}`" for name in _PRECISIONS_OF_FAMILY[evidence.precision])
            contradictions.append(
                f"its kernels multiply in {family} according to their names, not in {precision} (give {fitting})"
            )
    if device is not None:
        contradiction = _contradicts_device(evidence, device)
        if contradiction is not None:
            contradictions.append(contradiction)
    return contradictions


def _contradicts_device(evidence: OriginEvidence, device: Device) -> str | None:
    """Return the first contradiction between evidence and a device; None if there is none."""
    if evidence.on_processor and device.scope != "cpu":
        return f"{evidence.on_processor} computed on the processor, not on {device.name}"
    device_keys = [normalize_name(name) for name in (device.id, device.name, *device.aliases)]
    if evidence.gpus and not any(model_word(gpu) in device_key for gpu in evidence.gpus for device_key in device_keys):
        return f"it was taken on {', '.join(evidence.gpus)}, not on {device.name}"
    if evidence.maker is not None and evidence.maker[0] != device.vendor:
        _, sign = evidence.maker
        return f"{sign}, and {device.name} is a device of {device.vendor}"
    if re.fullmatch(r"\d+\.\d+", device.capability) is None:  # only NVIDIA's capabilities are numbers
        return None
    capability = float(device.capability)
    if evidence.capability not in (None, capability):
        return f"it was taken on a device of compute capability {evidence.capability}, {device.name} has {capability}"
    if evidence.minimum_capability is not None and evidence.minimum_capability[0] > capability:
        minimum, kernel = evidence.minimum_capability
        return f"its kernel {kernel[:60]} needs compute capability {minimum:g}, {device.name} has {capability:g}"
    if evidence.kepler_kernel and capability >= FIRST_CAPABILITY_AFTER_KEPLER:
        return (
            f"its kernel {evidence.kepler_kernel[:60]} was compiled for Kepler, {device.name} is {device.architecture}"
        )
    return None


def check_evidence(
    profile: Profile, device: Device | None = None, network: str | None = None, precision: str | None = None
) -> None:
    """Raise BadProfile if a profile contradicts the claimed device, network or precision, or cannot be read."""
    contradictions = find_contradictions(gather_evidence(profile), device, network, precision)
    if contradictions:
        raise BadProfile(f"{profile.path}: {'; '.join(contradictions)}")


def device_warnings(evidence: OriginEvidence, device: Device) -> list[str]:
    """Return why a profile cannot be of a device, as phrases that follow the name of the profile."""
    return [f"{text}: no share of peak is given" for text in find_contradictions(evidence, device)]

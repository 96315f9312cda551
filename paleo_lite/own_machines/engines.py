"""Programs that run a language model on one's own machine: their formats, and their backends by vendor."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from ..errors import BadValue
from ..gguf_types import CACHE_TYPES, EXL2_MIXTURES, MIXTURES, MLX_MIXTURES, Mixture
from ..machines import Device
from . import LLAMA_CPP, LOCAL

PROCESSOR = "processor"
"""Vendor of a device that is a processor."""


class LocalEngine(msgspec.Struct, frozen=True):
    """A program that runs a language model on one's own machine."""

    # Name, as in ``--engine``, and description in one line.
    name: str
    description: str
    # Backends by vendor of the device, the usual one first; of `PROCESSOR` those of processors, and of the empty text
    # those of all other vendors.
    backends: Mapping[str, tuple[str, ...]]
    mixtures: Mapping[str, Mixture]  # formats of weights
    default_weights: str  # usual one of them
    caches: tuple[str, ...]  # types of keys and values, the usual one first
    advised: tuple[str, ...]  # formats that people publish, from the most bits to the fewest
    places: bool = False  # whether blocks, experts and the cache can be in the memory of the host
    caution: str = ""  # what its forecasts rest on, where that is little

    def runs_on(self, device: Device) -> bool:
        """Return whether the program has a backend for a device."""
        return bool(self._backends_of(device))

    def _backends_of(self, device: Device) -> tuple[str, ...]:
        vendor = PROCESSOR if device.scope == "cpu" else device.vendor
        return self.backends.get(vendor, () if vendor == PROCESSOR else self.backends.get("", ()))

    def backend_of(self, device: Device, backend: str | None = None) -> str:
        """Return the backend for a device: the requested one, or the usual one.

        Raises
        ------
        BadValue
            If there is none, or not this one.
        """
        possible = self._backends_of(device)
        if not possible:
            vendors = ", ".join(vendor for vendor in self.backends if vendor not in ("", PROCESSOR))
            raise BadValue(f"`--engine {self.name}` is for devices of {vendors}, not for {device.name}")
        if backend is not None and backend not in possible:
            raise BadValue(f"`--backend` of {device.name} must be {' or '.join(possible)} (got {backend!r})")
        return backend or possible[0]


_LLAMA_CPP = LocalEngine(
    LLAMA_CPP,
    "llama.cpp on a GGUF file, for one request at a time",
    {"NVIDIA": ("cuda",), "Apple": ("metal",), "AMD": ("vulkan", "rocm"), PROCESSOR: ("cpu",), "": ("vulkan",)},
    MIXTURES,
    "q4_k_m",
    CACHE_TYPES,
    ("f16", "q8_0", "q6_k", "q5_k_m", "q4_k_m", "iq4_xs", "q3_k_m", "iq3_xxs", "q2_k", "iq2_xxs"),
    places=True,
)
_MLX = LocalEngine(
    "mlx",
    "MLX on a Mac, for one request at a time",
    {"Apple": ("mlx",)},
    {"f16": MIXTURES["f16"], **MLX_MIXTURES},
    "mlx-4bit",
    ("f16",),
    ("f16", "mlx-8bit", "mlx-6bit", "mlx-5bit", "mlx-4bit", "mlx-3bit"),
)
_EXLLAMA = LocalEngine(
    "exllama",
    "ExLlamaV2 on a GeForce card, for one request at a time",
    {"NVIDIA": ("exllama",)},
    EXL2_MIXTURES,
    "exl2-4.0bpw",
    ("f16", "q8_0", "q4_0"),
    tuple(reversed(EXL2_MIXTURES)),
    caution="ExLlamaV2: answers rest on speeds of two cards in 2023 and 2024, prompts on those of one",
)

LOCAL_ENGINES = dict(zip(LOCAL, (_LLAMA_CPP, _MLX, _EXLLAMA), strict=True))
"""Programs by name."""

EXECUTIONS = {engine.name: engine.description for engine in LOCAL_ENGINES.values()}
"""Executions of this room."""

BACKENDS = ("cuda", "metal", "rocm", "vulkan", "cpu", "mlx", "exllama")
"""Backends with constants: five of llama.cpp; MLX and ExLlamaV2 have kernels of their own."""

"""ExLlamaV2, on GeForce cards."""

from __future__ import annotations

from ...gguf_types import EXL2_MIXTURES
from .record import Engine, LocalEngine, Versions

EXLLAMA = Engine(
    name="exllama",
    versions=Versions(),
    kernels=None,
    launcher=None,
    local=LocalEngine(
        "exllama",
        "ExLlamaV2 on a GeForce card, for one request at a time",
        {"NVIDIA": ("exllama",)},
        EXL2_MIXTURES,
        "exl2-4.0bpw",
        ("f16", "q8_0", "q4_0"),
        tuple(reversed(EXL2_MIXTURES)),
        caution="ExLlamaV2: answers rest on speeds of two cards in 2023 and 2024, prompts on those of one",
    ),
    sources=("https://github.com/turboderp-org/exllamav2 (formats)",),
)

RECORDS = (EXLLAMA,)

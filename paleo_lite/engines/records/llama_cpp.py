"""llama.cpp: `llama-cli` on one's own machine, and `llama-server`."""

from __future__ import annotations

from ...gguf_types import CACHE_TYPES, MIXTURES
from .record import PROCESSOR, LocalEngine, Server, Versions

LLAMA_CPP = Server(
    name="llama.cpp",
    versions=Versions(first="b7079"),
    kernels=None,
    launcher=None,
    local=LocalEngine(
        "llama.cpp",
        "llama.cpp on a GGUF file, for one request at a time",
        {
            "NVIDIA": ("cuda", "vulkan"),
            "Apple": ("metal",),
            "AMD": ("vulkan", "rocm"),
            PROCESSOR: ("cpu",),
            "": ("vulkan",),
        },
        MIXTURES,
        "q4_k_m",
        CACHE_TYPES,
        ("f16", "q8_0", "q6_k", "q5_k_m", "q4_k_m", "iq4_xs", "q3_k_m", "iq3_xxs", "q2_k", "iq2_xxs"),
        keeps_mxfp4=True,
        aliases={"mxfp4": "mxfp4_moe"},
        places=True,
    ),
    max_batched_tokens=2048,
    max_sequences=4,
    limits_per_rank=False,
    block_tokens=1,
    memory_fraction=1.0,  # of the memory that llama.cpp may use
    is_fraction_of_free=False,
    chunked_prefill=2048,
    mixes_phases=True,
    reserved_output=1.0,
    # No publication states it: a sample of a vocabulary and an answer over HTTP.
    overhead_s=0.5e-3,
    overhead_range_s=(0.1e-3, 2e-3),
    request_overhead_s=5e-3,
    sources=(
        "https://github.com/ggml-org/llama.cpp/tree/master/tools/server (--parallel, --batch-size, --kv-unified)",
        "https://github.com/ggml-org/llama.cpp/issues/17300 (4 slots)",
    ),
)

RECORDS = (LLAMA_CPP,)

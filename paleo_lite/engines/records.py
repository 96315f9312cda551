"""Engines: what each fuses beyond the kernels of `paleo_lite.engines.blocks`, as data."""

from __future__ import annotations

from .blocks import ROTARY, Fusion

FUSIONS: dict[str, Fusion] = {
    "vllm": Fusion(
        {ROTARY: 2},  # rotary_embedding, then reshape_and_cache_flash
        ("https://github.com/vllm-project/vllm/tree/main/vllm/v1/attention/backends",),
    ),
    "sglang": Fusion(
        {ROTARY: 2},  # rotary_embedding, then store_kvcache; only gpt-oss and Qwen3's mixtures write it in the first
        ("https://github.com/sgl-project/sglang/tree/main/python/sglang/srt/layers",),
    ),
    "tensorrt-llm": Fusion(
        {ROTARY: 0},  # inside the attention operator
        ("https://github.com/NVIDIA/TensorRT-LLM/tree/main/cpp/tensorrt_llm/kernels",),
    ),
}
"""What each engine fuses."""

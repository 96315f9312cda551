"""Decoders without experts since 2025."""

from __future__ import annotations

from ..family import NEXT_TOKEN, QWEN_WINDOW, Family
from ..keys import Flag, Integer

FAMILIES: dict[str, Family] = {
    "mimo": Family(
        name="MiMo", longest=32768, attention={"bias": Flag("attention_bias", True)},
        window=Integer("sliding_window", None), windowed=QWEN_WINDOW, next_token=NEXT_TOKEN,
    ),
}  # fmt: skip

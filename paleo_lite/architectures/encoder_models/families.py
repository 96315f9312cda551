"""All model types of encoders and encoder-decoders."""

from __future__ import annotations

from .family import EncoderFamily
from .records import images, rotary_text, text, two_stacks

FAMILIES: dict[str, EncoderFamily] = {
    **text.FAMILIES, **rotary_text.FAMILIES, **images.FAMILIES, **two_stacks.FAMILIES,
}  # fmt: skip
"""Families by ``model_type``."""

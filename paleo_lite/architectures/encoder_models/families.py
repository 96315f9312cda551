"""All model types of encoders and encoder-decoders."""

from __future__ import annotations

from .family import EncoderFamily
from .records import images, text, two_stacks

FAMILIES: dict[str, EncoderFamily] = {**text.FAMILIES, **images.FAMILIES, **two_stacks.FAMILIES}
"""Families by ``model_type``."""

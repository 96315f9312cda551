"""All model types of decoders, and the model that a config describes with the record of its type."""

from __future__ import annotations

from ..blocks.rules import describe_blocks
from ..config import Config
from ..keys import read_fields, refuse_unread
from .decoder import Decoder
from .family import STANDARD_DECODER, Family
from .records import dense, established, gemma, gpt, hub_code, hybrids, mixtures, qwen

FAMILIES: dict[str, Family] = {
    **established.FAMILIES, **dense.FAMILIES, **gpt.FAMILIES, **mixtures.FAMILIES, **hybrids.FAMILIES,
    **qwen.FAMILIES, **gemma.FAMILIES, **hub_code.FAMILIES,
}  # fmt: skip
"""Families by ``model_type``."""


def describe_decoder(family: Family, config: Config) -> Decoder:
    """Return the record of the model that a config describes.

    Raises
    ------
    BadDescriptor
        If a key is missing or malformed, or has a value that is not read.
    """
    refuse_unread(family.name, family.unread, config)
    for first, second in family.same:
        if config.fields.get(first) not in (None, config.fields.get(second)):
            raise config.fail(
                f"$.{first} is {config.fields[first]!r}; {family.name} is read only if it equals $.{second}"
            )
    blocks = describe_blocks(family, config)
    return Decoder(blocks=blocks, **read_fields({**STANDARD_DECODER, **family.decoder}, config))

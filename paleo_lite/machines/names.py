"""Names as people type them, compared without regard to case, separators and manufacturer."""

from __future__ import annotations

import re

_MAKER_BEFORE_NAME = re.compile(r"^(?:nvidia|amd|apple|intel|tesla|geforce|quadro|instinct|radeon)+(?=.)")


def normalize_name(name: str) -> str:
    """Return a name in lower case without separators and manufacturer."""
    joined = re.sub(r"[^a-z0-9]", "", name.lower())
    return _MAKER_BEFORE_NAME.sub("", joined)

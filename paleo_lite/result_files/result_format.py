"""`ResultFormat`: how one format of result files is recognised and read."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from .findings import Findings


class ResultFormat(NamedTuple):
    """One format; the last lines of the module of its reader list it in `FORMATS`."""

    name: str  # such as ``vllm-serve``
    tool: str  # what wrote the file, as the output names it
    description: str  # the files, for the message that lists all formats
    read: Callable[[Path, Findings], None]  # fills the findings
    keys: tuple[str, ...] = ()  # JSON keys, all of which the first 64 KiB of a file have
    sign: re.Pattern[str] | None = None  # of text: found in the first 64 KiB, or in a line with a marker
    markers: tuple[str, ...] = ()  # literal texts, one of which is in each line with the sign
    magic: bytes = b""  # first bytes of a binary file

    def recognises(self, head: bytes, text: str) -> bool:
        """Return whether the first bytes of a file, and the same as text, have this format."""
        if self.magic:
            return head.startswith(self.magic)
        if self.keys:
            return all(f'"{key}"' in text for key in self.keys)
        return self.sign is not None and self.sign.search(text) is not None

"""Nested values as the text of a YAML file."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

PLAIN = re.compile(r"-{0,2}[A-Za-z/](?:[A-Za-z0-9_./:-]*[A-Za-z0-9])?")
"""Text that YAML reads as the same text without quotes."""

_WORDS = ("true", "false", "yes", "no", "on", "off", "null", "y", "n")


def to_yaml(value: Any, indent: int = 0) -> str:
    """Return nested mappings, lists and scalars as YAML in block style."""
    space = " " * indent
    if isinstance(value, Mapping) and value:
        return "".join(f"{space}{_scalar(key)}:{_nested(item, indent + 2)}" for key, item in value.items())
    if isinstance(value, list) and value:
        return "".join(f"{space}- {to_yaml(item, indent + 2).lstrip()}" for item in value)
    return f"{space}{_scalar(value)}\n"


def _nested(value: Any, indent: int) -> str:
    """Return what follows a key."""
    if isinstance(value, (Mapping, list)) and value:
        return f"\n{to_yaml(value, indent)}"
    if isinstance(value, str) and "\n" in value:
        lines = "".join(f"{' ' * indent}{line}\n" for line in value.splitlines())
        return f" |\n{lines}"
    return f" {_scalar(value)}\n"


def _scalar(value: Any) -> str:
    """Return a scalar, or an empty collection; text that YAML would read as something else has quotes."""
    if isinstance(value, str) and PLAIN.fullmatch(value) and value.lower() not in _WORDS:
        return value
    return json.dumps(value)

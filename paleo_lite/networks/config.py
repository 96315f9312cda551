"""A Hugging Face ``config.json`` as architectures read it."""

from __future__ import annotations

from typing import Any

from ..errors import BadDescriptor
from .tape import ACTIVATIONS


class Config:
    """A config as the architectures read it: every key checked, every message naming file and key."""

    def __init__(self, fields: dict[str, Any], where: str) -> None:
        self.fields, self.where = fields, where

    def fail(self, problem: str) -> BadDescriptor:
        """The error of a config that cannot be read."""
        return BadDescriptor(f"{self.where}: {problem}")

    def whole(self, key: str, default: int | None = None) -> int:
        """A whole number of 1 or more."""
        value = self.fields.get(key)
        if value is None:
            if default is None:
                raise self.fail(f"$.{key} is missing: a config of {self.fields['model_type']} needs it")
            return default
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= 2**31:
            raise self.fail(f"$.{key} must be a whole number of 1 or more, not {value!r}")
        return value

    def maybe(self, key: str) -> int | None:
        """A whole number of 1 or more, or None where the config has none."""
        return None if self.fields.get(key) is None else self.whole(key)

    def flag(self, key: str, default: bool) -> bool:
        """True or false."""
        value = self.fields.get(key, default)
        if not isinstance(value, bool):
            raise self.fail(f"$.{key} must be true or false, not {value!r}")
        return value

    def share(self, key: str, default: float) -> float:
        """A number from 0 to 1."""
        value = self.fields.get(key, default)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= 1:
            raise self.fail(f"$.{key} must be a number from 0 to 1, not {value!r}")
        return float(value)

    def function(self, key: str, default: str) -> str:
        """An activation function."""
        value = self.fields.get(key, default)
        if not isinstance(value, str) or value not in ACTIVATIONS:
            raise self.fail(f"$.{key} is {value!r}, known are {', '.join(ACTIVATIONS)}")
        return str(value)

    def divided(self, key: str, whole: int, of: str) -> int:
        """A number of heads that divides a size: the size of each."""
        heads = self.whole(key)
        if whole % heads:
            raise self.fail(f"$.{key} is {heads}, which does not divide $.{of}, {whole}")
        return whole // heads

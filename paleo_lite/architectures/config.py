"""Checked access to the sizes and options of a ``config.json``."""

from __future__ import annotations

from typing import Any

from ..errors import BadDescriptor, MissingKey
from ..units import is_integer
from .tape import ACTIVATIONS

MAX_LAYERS = 10_000
"""Most layers that a config may name: each is described."""


class Config:
    """Checked access to the fields of a ``config.json``; every error names the file and the key."""

    def __init__(
        self,
        fields: dict[str, Any],  # the decoded JSON object
        where: str,  # path of the file, for error messages
    ) -> None:
        self.fields = fields
        self.where = where
        # Notes on unknown values, in the order in which they were read.
        self.notes: dict[str, None] = {}

    def with_fields(self, fields: dict[str, Any]) -> Config:
        """Return a config of other fields, such as nested ones, with the same notes."""
        other = Config(fields, self.where)
        other.notes = self.notes
        return other

    def fail(self, problem: str) -> BadDescriptor:
        """Return the error for a config that cannot be read."""
        return BadDescriptor(f"{self.where}: {problem}")

    def positive_integer(self, key: str, default: int | None = None) -> int:
        """Return an integer >= 1; raise if it is missing and has no default."""
        value = self.fields.get(key)
        if value is None:
            if default is None:
                needs = f"a config of {self.fields['model_type']} needs it"
                raise MissingKey(f"{self.where}: $.{key} is missing: {needs}")
            return default
        if not is_integer(value) or not 1 <= value <= 2**31:
            raise self.fail(f"$.{key} must be an integer >= 1 (got {value!r})")
        if value > MAX_LAYERS and (key == "depth" or ("layer" in key and "per_layer" not in key)):
            raise self.fail(f"$.{key} is {value}; no more than {MAX_LAYERS:,} layers are read")
        return value

    def optional_integer(self, key: str) -> int | None:
        """Return an integer >= 1, or None where the key is missing or null."""
        if self.fields.get(key) is None:
            return None
        return self.positive_integer(key)

    def boolean(self, key: str, default: bool) -> bool:
        """Return true or false."""
        value = self.fields.get(key, default)
        if not isinstance(value, bool):
            raise self.fail(f"$.{key} must be true or false (got {value!r})")
        return value

    def fraction(self, key: str, default: float) -> float:
        """Return a number from 0 to 1."""
        value = self.fields.get(key, default)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= 1:
            raise self.fail(f"$.{key} must be a number from 0 to 1 (got {value!r})")
        return float(value)

    def number(self, key: str, default: float) -> float:
        """Return a number above 0, at most 1000, such as the factor of a width."""
        value = self.fields.get(key)
        value = default if value is None else value
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value <= 1000:
            raise self.fail(f"$.{key} must be a number above 0, at most 1000 (got {value!r})")
        return float(value)

    def activation_name(self, key: str, default: str) -> str:
        """Return the name of an activation function of `ACTIVATIONS`: of an unknown one SiLU, with a note."""
        value = self.fields.get(key, default)
        if not isinstance(value, str) or not value:
            raise self.fail(f"$.{key} must be the name of an activation function, such as silu (got {value!r})")
        return self.known_activation(key, value)

    def known_activation(self, key: str, function: str) -> str:
        """Return an activation function, or SiLU with a note in place of one that is not in `ACTIVATIONS`."""
        if function in ACTIVATIONS:
            return function
        self.notes[f"the activation function {function!r} ($.{key}) is unknown: it costs as SiLU"] = None
        return "silu"

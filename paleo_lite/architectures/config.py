"""Checked access to a ``config.json``, and what it says of a pass: its class, attention in one kernel, its tokens."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..counting import GENERATION_PHASES
from ..errors import BadDescriptor, BadValue, MissingKey, SequenceTooLong
from ..units import check_integer, is_integer
from .locate import cached_name
from .network import SequenceLengths, SequenceOptions
from .tape import ACTIVATIONS

_LARGEST = 2**31  # of any size
MAX_LAYERS = 10_000
"""Most layers that a config may name: each is described."""

DEFAULT_TOKENS = 2048
"""Tokens of a sequence if nothing is given: no more than this, and no more than the model knows positions."""


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
        if not is_integer(value) or value < 1:
            raise self.fail(f"$.{key} must be an integer >= 1 (got {value!r})")
        if value > _LARGEST:
            raise self.fail(f"$.{key} must be at most 2^31 (got {value!r})")
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


def name_of(path: str) -> str:
    """Return the name of a network by the path of its config: its folder, repository or file."""
    file = Path(path)
    repository = cached_name(file)
    if repository is not None:
        return repository
    return file.parent.name if file.name == "config.json" and file.parent.name else file.stem


def is_with_head(config: Config, classes: tuple[str, ...]) -> bool:
    """Return whether the class that the config names has a head; raise if it is not among those that are read."""
    named = config.fields.get("architectures") or [classes[0]]
    if not isinstance(named, list) or str(named[0]).lower() not in map(str.lower, classes):
        shown = named[0] if isinstance(named, list) and named else named
        raise config.fail(f"$.architectures is {shown!r}; {' or '.join(classes)} is read")
    is_headless = named[0].endswith("Model") and not named[0].endswith("LMHeadModel")
    return not is_headless or named[0] == classes[0]


def is_fused(config: Config, options: SequenceOptions) -> bool:
    """Return whether attention is one kernel: as the options say, else as the config does."""
    if options.fused_attention is not None:
        return options.fused_attention
    implementation = config.fields.get("_attn_implementation", config.fields.get("attn_implementation", "sdpa"))
    return bool(implementation != "eager")


def describe_assumption(options: SequenceOptions, lengths: SequenceLengths) -> str:
    """Return the note on the number of tokens that is assumed where none is given."""
    if options.phase == "decode":
        return f"assumes {lengths.keys - 1} tokens in the cache; --context sets another number"
    return f"assumes a sequence of {lengths.keys} tokens; --sequence-length sets another length"


def text_lengths(
    config: Config,
    options: SequenceOptions,
    keys_of_positions: str,  # keys that may give the number of positions, separated by spaces
    longest: int | None,  # positions without such a key
    *,
    generates: bool,  # whether the model writes text
    is_extensible: bool = False,  # whether more tokens than positions are possible
) -> SequenceLengths:
    """Return the tokens of a pass, checked against the limits of the model."""
    model_type = config.fields["model_type"]
    is_decode = options.phase == "decode"
    uses_cache = options.phase in GENERATION_PHASES
    if uses_cache and not generates:
        raise BadValue(f"{config.where}: --phase {options.phase} needs a model that writes text; {model_type} does not")
    if options.context is not None and not is_decode:
        raise BadValue(f"--context, the number of cached tokens, is for --phase decode, not for {options.phase}")
    if options.length is not None and is_decode:
        raise BadValue(
            "--phase decode computes one token of each sequence: give --context instead of --sequence-length"
        )
    for name, value in (("--sequence-length", options.length), ("--context", options.context)):
        if value is not None:
            check_integer(name, value, 1)
    present_keys = (key for key in keys_of_positions.split() if config.fields.get(key) is not None)
    key_of_positions = next(present_keys, keys_of_positions)
    known_positions = config.optional_integer(key_of_positions) or longest
    new_tokens = 1 if is_decode else 0
    default_keys = min(DEFAULT_TOKENS, known_positions or DEFAULT_TOKENS)
    tokens = options.length or options.context or default_keys - new_tokens
    keys = tokens + new_tokens
    if known_positions is not None and keys > known_positions and not is_extensible:
        requested = f"a context of {tokens} and one more token" if is_decode else f"a sequence of {tokens} tokens"
        raise SequenceTooLong(
            f"{name_of(config.where)} knows {known_positions} positions ($.{key_of_positions}); {requested} is too long"
        )
    if keys % options.context_parallel:
        raise BadValue(f"--context-parallel {options.context_parallel} does not divide a sequence of {keys} tokens")
    queries = 1 if is_decode else keys // options.context_parallel
    return SequenceLengths(queries, keys, uses_cache, known_positions)

"""What a config and the options of a question say of a pass: its class, attention in one kernel, and its tokens."""

from __future__ import annotations

from pathlib import Path

from ..counting import GENERATION_PHASES
from ..errors import BadValue, SequenceTooLong
from ..units import check_integer
from .config import Config
from .locate import cached_name
from .network import SequenceLengths, SequenceOptions

DEFAULT_TOKENS = 2048
"""Tokens of a sequence if nothing is given: no more than this, and no more than the model knows positions."""


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
    positions: str,  # keys of the number of positions
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
    keys_of_positions = positions.split()
    positions = next((key for key in keys_of_positions if config.fields.get(key) is not None), positions)
    known_positions = config.optional_integer(positions) or longest
    new_tokens = 1 if is_decode else 0
    tokens = options.length or options.context or min(DEFAULT_TOKENS, known_positions or DEFAULT_TOKENS) - new_tokens
    keys = tokens + new_tokens
    if known_positions is not None and keys > known_positions and not is_extensible:
        requested = f"a context of {tokens} and one more token" if is_decode else f"a sequence of {tokens} tokens"
        raise SequenceTooLong(
            f"{name_of(config.where)} knows {known_positions} positions ($.{positions}); {requested} is too long"
        )
    if keys % options.context_parallel:
        raise BadValue(f"--context-parallel {options.context_parallel} does not divide a sequence of {keys} tokens")
    queries = 1 if is_decode else keys // options.context_parallel
    return SequenceLengths(queries, keys, uses_cache, known_positions)

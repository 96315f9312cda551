"""Networks from a Hugging Face ``config.json``: the layers that tracing the model would give, without torch.

A config names its ``model_type``, which a record of `families` describes. The number of tokens of a pass is not part of
a config but of `SequenceOptions`.
"""

from __future__ import annotations

from difflib import get_close_matches
from functools import lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from ..counting import GENERATION_PHASES
from ..errors import BadDescriptor, FactoryFailed, MissingKey, TraceFailed
from ..files import file_exists, typed
from ..units import format_si
from .config import Config
from .config_parts import decode_fields, named_parts, text_part, thinker_part
from .descriptor import read_bounded
from .families.family import FAMILIES, Family
from .families.guess import NOT_GUESSED, guess_family
from .families.network import read_family
from .network import Network, Publication, SequenceOptions
from .safetensors_file import Stamp, read_tensors, stamp_checkpoint
from .towers import add_towers

if TYPE_CHECKING:
    from .stored_weights import StoredWeights

TRACED = "transformers "
"""Beginning of the source of networks that were traced."""

_SIDECAR = "hf_quant_config.json"
"""File of modelopt beside a config."""

_QUANTIZED = ("quantization_config", "compression_config", "text_config", "thinker_config")
"""Keys under which a config says how its checkpoint is quantized."""


def read_config(
    data: bytes,  # content of the file
    # Path of the file, for messages; the network is named after the file, or after its folder if the file is called
    # ``config.json``.
    path: str,
    image_size: int | None = None,  # image size of a vision transformer, in place of the config's
    options: SequenceOptions | None = None,  # tokens, phase and parallelism
) -> Network:
    """Return the network of a Hugging Face config.

    Raise BadDescriptor if the model type is unknown, a key is missing or malformed, or two keys contradict each other,
    and BadValue if more tokens are requested than the model knows positions, or a phase that it does not have.
    """
    options = options or SequenceOptions()
    fields = decode_fields(data, path)
    stored_weights = _read_checkpoint(fields, path)
    stamps = stamp_checkpoint(Path(path).parent) if Path(path).name == "config.json" else ()
    if stamps:
        stored_weights = _measure_files(data, path, stored_weights, stamps)
    fields = named_parts(thinker_part(fields))
    whole_fields = fields
    fields, part_note, filled = text_part(fields, path)
    config, model_config = Config(fields, path), Config(whole_fields, path)
    rebuild = partial(_rebuild, data, path, image_size, stored_weights)
    family = FAMILIES.get(str(fields.get("model_type")))
    is_read = family is None or (is_known(fields) and not _writes_text(fields, family, options))
    traced = None if is_read else _trace_class(model_config, image_size, options)
    if traced is not None:
        network = traced
    elif family is not None:
        own_size = None if family.is_decoder and part_note else image_size  # a tower before the decoder reads images
        network = _read_record(config, family, own_size, options)
    else:
        network = _read_unknown(config, model_config, image_size, options)
    if network.source.startswith(TRACED):
        return network._replace(stored_weights=stored_weights, rebuild=rebuild if network.rebuild else None)
    if part_note:
        network, part_note = add_towers(network, whole_fields, path, image_size, options, part_note)
    notes = (*filter(None, (part_note, filled)), *network.notes)
    return network._replace(
        notes=notes,
        rebuild=rebuild,
        publication=_publication(model_config),
        stored_weights=stored_weights,
    )


@lru_cache(32)
def _rebuild(
    data: bytes, path: str, image_size: int | None, stored_weights: StoredWeights | None, options: SequenceOptions
) -> Network:
    """Return the network of a config again, with other options."""
    return read_config(data, path, image_size, options)._replace(stored_weights=stored_weights)


def _read_checkpoint(fields: dict[str, Any], path: str) -> StoredWeights | None:
    """Return how the checkpoint stores its weights, by the config and by the file beside it."""
    sidecar = Path(path)
    sidecar = sidecar.with_name(sidecar.name.replace("config.json", _SIDECAR)) if sidecar.name else sidecar
    beside = None
    if fields.get("quantization_config") is None and sidecar.name.endswith(_SIDECAR) and file_exists(sidecar):
        beside = decode_fields(read_bounded(sidecar), str(sidecar))
    if beside is None and not any(key in fields for key in _QUANTIZED):
        return None
    from .checkpoint import read_stored_weights

    return read_stored_weights(fields, beside, path)


@lru_cache(8)
def _measure_files(
    data: bytes, path: str, stored: StoredWeights | None, stamps: tuple[Stamp, ...]
) -> StoredWeights | None:
    """Return the formats of a checkpoint with the bytes of the files beside the config; of known types only."""
    from .checkpoint_sizes import measure_checkpoint

    fields = text_part(named_parts(thinker_part(decode_fields(data, path))), path).fields
    family = FAMILIES.decoder(fields.get("model_type"))
    if family is None:
        return stored
    network = read_family(Config(fields, path), family, None, SequenceOptions(1))
    return measure_checkpoint(path, stored, read_tensors(stamps), network.layers, network.blocks)


def _read_record(config: Config, family: Family, image_size: int | None, options: SequenceOptions) -> Network:
    """Return the network of a record; a guess if a decoder's config lacks a key of it but has the usual ones."""
    try:
        return read_family(config, family, image_size, options)
    except MissingKey as missing:
        if not family.is_decoder:
            raise
        try:
            network = _read_guess(config, options)
        except BadDescriptor:
            raise missing from None
        return network._replace(notes=(str(missing), *network.notes[1:]))


def _read_unknown(
    # Fields of the part that writes text, and of the whole model.
    config: Config,
    model_config: Config,
    image_size: int | None,  # height and width of the images
    options: SequenceOptions,  # tokens, phase and parallelism
) -> Network:
    """Return the network of a type without a record: traced if ``transformers`` knows the type, else a guess.

    A traced network is that of one device, and of all blocks; parts of it are guessed.
    """
    from .trace_process import trace_config

    if not _can_trace(model_config, options):
        return _read_guess(config, options)
    data = msgspec.json.encode(model_config.fields)
    try:
        return trace_config(data, model_config.where, image_size, options)
    except (FactoryFailed, TraceFailed) as failure:
        try:
            network = _read_guess(config, options)
        except BadDescriptor:
            if options.phase not in GENERATION_PHASES:
                raise failure from None
            return trace_config(data, model_config.where, image_size, options, has_cache=False)
        return network._replace(notes=(*network.notes, f"transformers does not trace the model: {failure}"))


def _can_trace(config: Config, options: SequenceOptions) -> bool:
    """Return whether the installed ``transformers`` knows a type, and the whole network is requested on one device."""
    from .trace_process import traceable_types

    degrees = (options.tensor_parallel, options.context_parallel, options.expert_parallel)
    return config.fields.get("model_type") in traceable_types() and degrees == (1, 1, 1) and options.blocks is None


def _writes_text(fields: dict[str, Any], family: Family, options: SequenceOptions) -> bool:
    """Return whether prefill or decode is requested of an encoder's class that writes text and has no record."""
    is_asked = not family.generates and options.phase in GENERATION_PHASES
    return is_asked and str((fields.get("architectures") or [""])[0]).endswith(("ForCausalLM", "LMHeadModel"))


def _trace_class(config: Config, image_size: int | None, options: SequenceOptions) -> Network | None:
    """Return the traced network of a class that the record of its type does not read; None where it is not traced."""
    from .trace_process import trace_config

    if not _can_trace(config, options):
        return None
    try:
        return trace_config(msgspec.json.encode(config.fields), config.where, image_size, options)
    except (BadDescriptor, FactoryFailed, TraceFailed):  # the record then says which classes are read
        return None


def _read_guess(config: Config, options: SequenceOptions) -> Network:
    """Return a decoder of an unknown model type, with the traits that its keys name; raise if they are missing.

    Its name, with which answers begin, says that it is a guess and how many parameters it has.
    """
    family = guess_family(config) if config.fields.get("model_type") else None
    if family is None:
        raise unknown_model_type(config)
    classes = config.fields.get("architectures") or [""]
    mapped = config.fields.get("auto_map")
    writes_text = isinstance(mapped, dict) and "AutoModelForCausalLM" in mapped  # as ChatGLMModel does
    is_headless = isinstance(classes, list) and str(classes[0]).endswith("Model") and not writes_text
    decoder_config = config.with_fields({**config.fields, "architectures": [family.classes[1 if is_headless else 0]]})
    undivided = read_family(decoder_config, family, None, SequenceOptions(1))
    network = read_family(decoder_config, family, None, options)
    note = (
        f"the model type {config.fields['model_type']} is unknown: its layers are guessed from the keys of the config; "
        "compare the number of parameters with the published one"
    )
    name = f"{network.name}, a guess with {format_si(undivided.parameters, digits=3)} parameters,"
    return network._replace(name=name, notes=(note, *network.notes))


def _publication(config: Config) -> Publication | None:
    """Return the figures that a shipped config records of its publisher; other configs have none."""
    published = config.fields.get("published")
    if published is None:
        return None
    try:
        return msgspec.convert(published, typed(Publication))
    except msgspec.ValidationError as error:
        raise config.fail(f"$.published: {error}") from None


def is_known(fields: dict[str, Any]) -> bool:
    """Return whether `read_config` reads the model type and the class that a config names."""
    fields = text_part(named_parts(thinker_part(fields)), "").fields
    family = FAMILIES.get(str(fields.get("model_type")))
    if family is None:
        return False
    named = fields.get("architectures")
    return not named or (isinstance(named, list) and str(named[0]).lower() in map(str.lower, family.classes))


def unknown_model_type(config: Config) -> BadDescriptor:
    """Return the error for a model type that is not read, with the nearest ones and another way."""
    model_type = config.fields.get("model_type")
    near = get_close_matches(str(model_type), FAMILIES, n=3, cutoff=0.5)
    nearest = f"the nearest known types are {', '.join(near)}" if near else f"known types are {', '.join(FAMILIES)}"
    reason = NOT_GUESSED.get(str(model_type))
    if reason:
        nearest = f"the usual keys do not tell its parts ({reason})"
    return config.fail(
        f"$.model_type is {model_type!r}, which is not read; {nearest}. An installed transformers that knows "
        "the type traces the model"
    )

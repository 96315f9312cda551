"""Networks from a Hugging Face ``config.json``: the layers that tracing the model would give, without torch.

A config names its ``model_type``. Language models that write text are described by the records of `language_models`,
encoders and encoder-decoders by those of `encoder_models`. The number of tokens of a pass is not part of a config but
of `SequenceOptions`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from difflib import get_close_matches
from functools import lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from ..counting import GENERATION_PHASES, INPUT, Layer
from ..errors import BadDescriptor, BadValue, FactoryFailed, MissingKey, PaleoError, TraceFailed
from ..files import file_exists
from ..units import format_si
from .blocks.traits import Attention, Block, CompressedAttention, Experts, LatentAttention
from .config import Config
from .descriptor import read_bounded
from .language_models.decoder import Decoder, add_decoder, count_next_token_parameters
from .language_models.families import FAMILIES, describe_decoder
from .language_models.family import Family
from .language_models.guess import NOT_GUESSED, guess_family
from .language_models.nested_defaults import fill_nested
from .language_models.records.audio import audio_parameters
from .language_models.records.vision import NAMED_ONLY, convolution_parameters, describe_tower
from .language_models.vision import resident_weights, tower_layers
from .locate import cached_name
from .network import LANGUAGE_MODELS, Lengths, Network, Publication, SequenceOptions
from .safetensors_file import Stamp, read_tensors, stamp_checkpoint
from .tape import Tape

if TYPE_CHECKING:
    from .checkpoint import StoredWeights
    from .encoder_models.family import EncoderFamily
    from .encoder_models.traits import EncoderModel

DEFAULT_TOKENS = 2048
"""Tokens of a sequence if nothing is given: no more than this, and no more than the model knows positions."""

TEXT_PARTS = {
    "gemma3": "gemma3_text", "gemma4": "gemma4_text", "llama4": "llama4_text", "gemma3n": "gemma3n_text",
    "gemma4_unified": "gemma4_unified_text",
    "llava": "llama", "paligemma": "gemma",
    "qwen2_vl": "qwen2", "qwen2_5_vl": "qwen2", "qwen2_vl_text": "qwen2", "qwen2_5_vl_text": "qwen2",
    "qwen3_vl": "qwen3_vl_text", "qwen3_vl_moe": "qwen3_vl_moe_text", "qwen3_5": "qwen3_5_text",
    "qwen3_5_moe": "qwen3_5_moe_text", "qwen3_omni_moe_thinker": "qwen3_omni_moe_text", "qwen2_5_omni_text": "qwen2",
    "qwen2_5_omni_thinker": "qwen2", "glm4v": "glm4", "glm4v_text": "glm4", "glm4v_moe": "glm4_moe",
    "glm4v_moe_text": "glm4_moe", "ernie4_5_moe_vl": "ernie4_5_vl_moe_text", "ernie4_5_vl_moe": "ernie4_5_vl_moe_text",
    "step3_vl": "step3_text", "phi3_v": "phi3", "phi4mm": "phi3",
    "molmo": "molmo_text",
}  # fmt: skip
"""Model types of vision-language models and of their text parts, where the nested config may not name its type."""

VISION_PARTS = {
    "gemma3": "siglip_vision_model", "llava": "clip_vision_model", "paligemma": "siglip_vision_model",
    "qwen2_vl": "qwen2_vl", "qwen2_5_vl": "qwen2_5_vl", "kimi_k25": "kimi_k25_vision",
    "llama4": "llama4_vision_model", "gemma4": "gemma4_vision",
}  # fmt: skip
"""Model types of vision-language models and of their vision encoders, likewise."""


_PROJECTOR_KEYS = (
    "spatial_merge_size", "multimodal_projector_bias", "downsample_ratio", "scale_factor", "downsample_factor",
    "alignment_intermediate_size", "projector_use_layernorm", "projector_hidden_size", "projector_bias",
)  # fmt: skip
"""Keys of a vision-language model that tell how its vision encoder is joined to the text part."""

_ADAPTED = ("qkv_proj", "o_proj", "gate_up_proj", "down_proj")
"""Projections that have adapters for images and sound."""

_PARTS = ("text_config", "llm_config", "language_config")
"""Keys of the nested config of the part that writes text."""

TRACED = "transformers "
"""Begin of the source of networks that were traced."""

_SIDECAR = "hf_quant_config.json"
"""File of modelopt beside a config."""

_QUANTIZED = ("quantization_config", "compression_config", "text_config", "thinker_config")
"""Keys under which a config says how its checkpoint is quantized."""

_INFINITY = re.compile(rb"(?<=[:,\[\s])(?:Infinity|NaN)(?=\s*[,\]}])")


def encoder_families() -> dict[str, EncoderFamily]:
    """Return the families of encoders, which are imported only where no language model is read."""
    from .encoder_models.families import FAMILIES as ENCODER_FAMILIES

    return ENCODER_FAMILIES


def read_config(
    data: bytes, path: str, image_size: int | None = None, options: SequenceOptions | None = None
) -> Network:
    """Return the network of a Hugging Face config.

    Parameters
    ----------
    data : bytes
        Content of the file.
    path : str
        Path of the file, for messages; the network is named after the file, or after its folder if the file is called
        ``config.json``.
    image_size : int, optional
        Image size of a vision transformer, in place of the config's.
    options : SequenceOptions, optional
        Tokens, phase and parallelism.

    Raises
    ------
    BadDescriptor
        If the model type is unknown, a key is missing or malformed, or two keys contradict each other.
    BadValue
        If more tokens are requested than the model knows positions, or a phase that it does not have.
    """
    options = options or SequenceOptions()
    fields = decode_fields(data, path)
    stored_weights = _read_checkpoint(fields, path)
    stamps = stamp_checkpoint(Path(path).parent) if Path(path).name == "config.json" else ()
    if stamps:
        stored_weights = _measure_files(data, path, stored_weights, stamps)
    fields = _named_parts(_thinker_part(fields))
    whole_fields = fields
    fields, part_note, filled = _text_part(fields, path)
    config, whole = Config(fields, path), Config(whole_fields, path)
    rebuild = partial(_rebuild, data, path, image_size, stored_weights)
    model_type = fields.get("model_type")
    has_record = model_type in FAMILIES or model_type in encoder_families()
    is_read = not has_record or (is_known(fields) and not _writes_text(fields, options))
    traced = None if is_read else _trace_class(whole, image_size, options)
    if traced is not None:
        network = traced
    elif model_type in FAMILIES:
        if image_size is not None and not part_note:
            raise BadValue(f"{path}: a {model_type} reads no images: leave --image-size out")
        network = _read_record(config, FAMILIES[str(model_type)], options)
    elif model_type in encoder_families():
        network = _read_model_type(config, encoder_families()[str(model_type)], image_size, options)
    else:
        network = _read_unknown(config, whole, image_size, options)
    if network.source.startswith(TRACED):
        return network._replace(stored_weights=stored_weights, rebuild=rebuild if network.rebuild else None)
    if part_note:
        network, part_note = _add_towers(network, whole_fields, path, image_size, options, part_note)
    notes = (*filter(None, (part_note, filled)), *network.notes)
    return network._replace(
        notes=notes,
        rebuild=rebuild,
        publication=_publication(whole),
        stored_weights=stored_weights,
    )


@lru_cache(32)
def _rebuild(
    data: bytes, path: str, image_size: int | None, stored_weights: StoredWeights | None, options: SequenceOptions
) -> Network:
    """Return the network of a config that was read before with other options."""
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

    fields = _text_part(_named_parts(_thinker_part(decode_fields(data, path))), path).fields
    if fields.get("model_type") not in FAMILIES:
        return stored
    whole = _read_decoder(Config(fields, path), FAMILIES[str(fields["model_type"])], SequenceOptions(1))
    return measure_checkpoint(path, stored, read_tensors(stamps), whole.layers, whole.blocks)


def _read_record(config: Config, family: Family, options: SequenceOptions) -> Network:
    """Return the decoder of a record, or a guess where the config lacks a key of the record and has the usual ones."""
    try:
        return _read_decoder(config, family, options)
    except MissingKey as missing:
        try:
            network = _read_guess(config, options)
        except BadDescriptor:
            raise missing from None
        return network._replace(notes=(str(missing), *network.notes[1:]))


def _read_unknown(config: Config, whole: Config, image_size: int | None, options: SequenceOptions) -> Network:
    """Return the network of a type without a record: traced if ``transformers`` knows the type, else a guess.

    A traced network is that of one device, and of all blocks; parts of it are guessed.

    Parameters
    ----------
    config, whole : Config
        Fields of the part that writes text, and of the whole model.
    image_size : int or None
        Height and width of the images.
    options : SequenceOptions
        Tokens, phase and parallelism.
    """
    from .trace_process import trace_config

    if not _can_trace(whole, options):
        return _read_guess(config, options)
    data = msgspec.json.encode(whole.fields)
    try:
        return trace_config(data, whole.where, image_size, options)
    except (FactoryFailed, TraceFailed) as failure:
        try:
            network = _read_guess(config, options)
        except BadDescriptor:
            if options.phase not in GENERATION_PHASES:
                raise failure from None
            return trace_config(data, whole.where, image_size, options, has_cache=False)
        return network._replace(notes=(*network.notes, f"transformers does not trace the model: {failure}"))


def _can_trace(config: Config, options: SequenceOptions) -> bool:
    """Return whether the installed ``transformers`` knows a type, and all of it on one device is asked for."""
    from .trace_process import traceable_types

    degrees = (options.tensor_parallel, options.context_parallel, options.expert_parallel)
    return config.fields.get("model_type") in traceable_types() and degrees == (1, 1, 1) and options.blocks is None


def _writes_text(fields: dict[str, Any], options: SequenceOptions) -> bool:
    """Return whether a phase of writing is asked for of an encoder's class that writes text, which has no record."""
    family = encoder_families().get(str(fields.get("model_type")))
    is_asked = family is not None and not family.generates and options.phase in GENERATION_PHASES
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
    writes_text = "AutoModelForCausalLM" in (config.fields.get("auto_map") or ())  # as ChatGLMModel does
    is_headless = isinstance(classes, list) and str(classes[0]).endswith("Model") and not writes_text
    own = Config({**config.fields, "architectures": [family.classes[1 if is_headless else 0]]}, config.where)
    whole = _read_decoder(own, family, SequenceOptions(1))
    network = _read_decoder(own, family, options)
    note = (
        f"the model type {config.fields['model_type']} is unknown: its layers are guessed from the keys of the config; "
        "compare the number of parameters with the published one"
    )
    name = f"{network.name}, a guess with {format_si(whole.parameters, digits=3)} parameters,"
    return network._replace(name=name, notes=(note, *network.notes))


def _publication(config: Config) -> Publication | None:
    """Return the figures that a shipped config records of its publisher; other configs have none."""
    published = config.fields.get("published")
    if published is None:
        return None
    try:
        return msgspec.convert(published, Publication)
    except msgspec.ValidationError as error:
        raise config.fail(f"$.published: {error}") from None


def is_known(fields: dict[str, Any]) -> bool:
    """Return whether `read_config` reads the model type and the class that a config names."""
    fields = _text_part(_named_parts(_thinker_part(fields)), "").fields
    model_type = fields.get("model_type")
    if model_type in FAMILIES:
        classes: tuple[str, ...] = FAMILIES[str(model_type)].classes
    elif model_type in encoder_families():
        classes = encoder_families()[str(model_type)].classes
    else:
        return False
    named = fields.get("architectures")
    return not named or (isinstance(named, list) and str(named[0]).lower() in map(str.lower, classes))


def unknown_model_type(config: Config) -> BadDescriptor:
    """Return the error for a model type that is not read, with the nearest ones and another way."""
    model_type = config.fields.get("model_type")
    known = [*FAMILIES, *encoder_families()]
    near = get_close_matches(str(model_type), known, n=3, cutoff=0.5)
    nearest = f"the nearest known types are {', '.join(near)}" if near else f"known types are {', '.join(known)}"
    reason = NOT_GUESSED.get(str(model_type))
    if reason:
        nearest = f"the usual keys do not tell its parts ({reason})"
    return config.fail(
        f"$.model_type is {model_type!r}, which is not read; {nearest}. An installed transformers that knows "
        "the type traces the model"
    )


def decode_fields(data: bytes, path: str) -> dict[str, Any]:
    """Return the fields of a config; Python writes ``Infinity``, which is no JSON, into some of them.

    Raises
    ------
    BadDescriptor
        If the file is not a JSON object.
    """
    try:
        fields = msgspec.json.decode(_INFINITY.sub(b"1e308", data))
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BadDescriptor(f"{path}: {error}") from None
    except RecursionError:
        raise BadDescriptor(f"{path}: the objects of a config are nested too deeply") from None
    if not isinstance(fields, dict):
        raise BadDescriptor(f"{path}: a config must be a JSON object")
    for name in ("model_type", *_PARTS, "vision_config", "thinker_config"):
        part = fields if name == "model_type" else fields.get(name)
        model_type = part.get("model_type", "") if isinstance(part, dict) else ""
        if not isinstance(model_type, (str, type(None))):
            where = "$.model_type" if part is fields else f"$.{name}.model_type"
            raise BadDescriptor(f"{path}: {where} must be text (got {model_type!r})")
    return fields


def _thinker_part(fields: dict[str, Any]) -> dict[str, Any]:
    """Return the part of a model for every kind of input that reads and writes text (Qwen-Omni), or all fields."""
    thinker = fields.get("thinker_config")
    if not isinstance(thinker, dict):
        return fields
    return {"model_type": fields.get("model_type"), **thinker}


def _named_parts(fields: dict[str, Any]) -> dict[str, Any]:
    """Return the fields with the configs of the parts that a config only names; other fields as they are."""
    model_type = str(fields.get("model_type"))
    if model_type not in NAMED_ONLY or "vision_config" in fields:
        return fields
    found = {**fields, "vision_config": NAMED_ONLY[model_type]}
    audio = fields.get("audio_processor")
    if isinstance(audio, dict) and isinstance(audio.get("config"), dict):
        found["audio_config"] = {**audio["config"], "model_type": f"{model_type}_audio"}
    return found


class _TextPart(NamedTuple):
    """The config of the part that writes text; notes on the other parts, and on sizes that it leaves out."""

    fields: dict[str, Any]
    note: str = ""
    filled: str = ""


def _text_part(fields: dict[str, Any], path: str) -> _TextPart:
    """Return the config of the text part of a vision-language model; any other config as it is."""
    model_type = str(fields.get("model_type"))
    if model_type in FAMILIES or model_type in encoder_families():
        return _TextPart(fields)
    nested = _nested_text(fields)
    if nested is not None:
        text = dict(nested)
    elif isinstance(fields.get("vision_config"), dict):
        text = {key: value for key, value in fields.items() if key not in ("model_type", "vision_config")}
    else:
        return _TextPart(fields)
    named = text.get("model_type", model_type)
    text["model_type"] = TEXT_PARTS.get(str(named), named)
    text, filled = fill_nested(text) if nested is not None else (text, "")
    if text["model_type"] not in FAMILIES and guess_family(Config(text, path)) is None:
        return _TextPart(fields)
    text.pop("architectures", None)
    if "tie_word_embeddings" in fields:  # transformers ties by the outer config
        text["tie_word_embeddings"] = fields["tie_word_embeddings"]
    for key in ("_attn_implementation", "attn_implementation"):
        if key in fields:
            text.setdefault(key, fields[key])
    return _TextPart(text, f"the text part of a {model_type}; its vision encoder is not included", filled)


def _nested_text(fields: dict[str, Any]) -> dict[str, Any] | None:
    """Return the nested config of the part that writes text; None if there is none."""
    return next((fields[key] for key in _PARTS if isinstance(fields.get(key), dict)), None)


def _add_towers(
    network: Network, fields: dict[str, Any], path: str, image_size: int | None, options: SequenceOptions, note: str
) -> tuple[Network, str]:
    """Put the vision encoder of a vision-language model before its text part, and the weights of one for sound.

    Returns
    -------
    Network, str
        The network, and a note on its parts. A decode step has the weights alone, and blocks alone have neither.
    """
    model_type = str(fields.get("model_type"))
    if options.blocks is not None:
        return network, f"the text part of a {model_type}: the vision tower runs with the prompt"
    text_size = _text_part(fields, path).fields.get("hidden_size")
    adapters = _adapter_parameters(network, fields)
    if isinstance(fields.get("vision_config"), dict):
        network, note = _add_vision(network, fields, path, image_size, options, text_size, note)
    if adapters:
        network = _add_weights(network, adapters, "adapters")
        note = f"{note}; its adapters for images and sound are held in memory, and not computed"
    audio = fields.get("audio_config")
    if not isinstance(audio, dict):
        return network, note
    parameters = audio_parameters({**audio, "text_hidden_size": text_size}, path)
    encoder = None if parameters else _trace_part(audio, path, None)
    parameters = encoder.parameters if encoder is not None else parameters
    if parameters is None:
        return network, f"{note}; its audio encoder is not included"
    return _add_weights(network, parameters, "audio"), f"{note}; of its audio encoder the weights alone"


def _adapter_parameters(network: Network, fields: dict[str, Any]) -> int:
    """Return the parameters of the low-rank adapters for images and sound beside the projections (Phi-4-multimodal)."""
    adapters = [fields[key] for key in ("vision_lora", "speech_lora") if isinstance(fields.get(key), dict)]
    ranks: int = sum(adapter["r"] for adapter in adapters if isinstance(adapter.get("r"), int))
    projections = (layer for layer in network.layers if layer.name.rpartition(".")[2] in _ADAPTED)
    return ranks * sum(sum(layer.weights[0]) for layer in projections)


def _add_vision(
    network: Network,
    fields: dict[str, Any],
    path: str,
    image_size: int | None,
    options: SequenceOptions,
    text_size: int | None,
    note: str,
) -> tuple[Network, str]:
    """Put the vision encoder before the text part: by its record, by `transformers`, or not at all."""
    vision, model_type = fields["vision_config"], str(fields.get("model_type"))
    vision_type = str(vision.get("model_type") or VISION_PARTS.get(model_type))
    whole = {key: fields[key] for key in _PROJECTOR_KEYS if key in fields}
    text_inner = (_nested_text(fields) or fields).get("intermediate_size")
    more = {"text_hidden_size": text_size, "text_inner_size": text_inner, "model_type": vision_type}
    if image_size is not None:
        more["image_size"] = image_size
    tower = describe_tower(Config({**whole, **vision, **more}, path), model_type)
    is_decode = options.phase == "decode"
    if tower is not None:
        layers, shape = tower_layers(tower, network.name, options.fused_attention is not False)
        tower_network = Network("", (shape,), layers, sum(layer.parameters for layer in layers))
        image = f"one image of {tower.side} x {tower.side} patches, which becomes {tower.tokens} tokens of the sequence"
        note = "its vision tower runs with the prompt" if is_decode else image
        joined = "a {}: {}" if is_decode else "a {} with its vision tower: {}"
        return _add_encoder(network, tower_network, (shape,), "", is_decode), joined.format(model_type, note)
    parameters = convolution_parameters(Config({**vision, "text_hidden_size": text_size}, path))
    if parameters is not None:
        note = f"a {model_type}; of its vision encoder, a convolutional network, the weights alone"
        return _add_weights(network, parameters, "visual"), note
    if vision_type in encoder_families():
        config = Config({**vision, "model_type": vision_type}, path)
        encoder: Network | None = _read_model_type(
            config, encoder_families()[vision_type], image_size, SequenceOptions()
        )
    else:
        vision_type = f"{model_type}_vision" if vision_type == model_type else vision_type
        encoder = _trace_part({**vision, "model_type": vision_type}, path, image_size)
    if encoder is None:
        return network, note
    note = f"the text part of a {model_type} and its vision encoder"
    note += ", which runs with the prompt" if is_decode else ", one image per sequence"
    note += "; the projection between them is not included"
    return _add_encoder(network, encoder, encoder.inputs, "vision", is_decode), note


def _trace_part(fields: dict[str, Any], path: str, image_size: int | None) -> Network | None:
    """Return an encoder that the installed ``transformers`` traces on its own; None where it does not."""
    from .trace_process import trace_config, traceable_types

    model_type = fields.get("model_type")
    if model_type not in traceable_types() or model_type in FAMILIES:
        return None
    try:
        return trace_config(msgspec.json.encode({**fields, "architectures": None}), path, image_size)
    except PaleoError:  # the answer then says that the part is not included
        return None


def _add_weights(network: Network, parameters: int, part: str) -> Network:
    """Put the weights of a part before a network: they are held in memory, and not computed."""
    added = _put_before(network, [resident_weights(parameters, part)])
    return added._replace(tower_parameters=network.tower_parameters + parameters)


def _add_encoder(
    network: Network, encoder: Network, inputs: tuple[tuple[int, ...], ...], prefix: str, only_weights: bool
) -> Network:
    """Put the layers of an encoder before a network, or only its weights."""
    parameters = encoder.parameters
    if only_weights:
        layers: Sequence[Layer] = [resident_weights(parameters, prefix or "visual")]
    else:
        unused = parameters - sum(layer.parameters for layer in encoder.layers)
        layers = [layer._replace(name=f"{prefix}.{layer.name}" if prefix else layer.name) for layer in encoder.layers]
        layers = [*layers, *([resident_weights(unused, prefix)] if unused else [])]
        network = network._replace(inputs=(*inputs, *network.inputs))
    return _put_before(network, layers)._replace(tower_parameters=network.tower_parameters + parameters)


def _put_before(network: Network, layers: Sequence[Layer]) -> Network:
    """Return a network with further layers at its beginning."""
    offset = len(layers)
    own_layers = []
    for layer in network.layers:
        parents = tuple(parent + offset if parent >= 0 else parent for parent in layer.parents)
        own_layers.append(layer._replace(parents=parents))
    parameters = sum(layer.parameters for layer in layers)
    return network._replace(layers=(*layers, *own_layers), parameters=parameters + network.parameters)


def _is_with_head(config: Config, classes: tuple[str, ...]) -> bool:
    """Return whether the class that the config names has a head; raise if it is not among those that are read."""
    named = config.fields.get("architectures") or [classes[0]]
    if not isinstance(named, list) or str(named[0]).lower() not in map(str.lower, classes):
        shown = named[0] if isinstance(named, list) and named else named
        raise config.fail(f"$.architectures is {shown!r}; {' or '.join(classes)} is read")
    is_headless = named[0].endswith("Model") and not named[0].endswith("LMHeadModel")
    return not is_headless or named[0] == classes[0]


def name_of(path: str) -> str:
    """Return the name of a network by the path of its config: its folder, repository or file."""
    file = Path(path)
    repository = cached_name(file)
    if repository is not None:
        return repository
    return file.parent.name if file.name == "config.json" and file.parent.name else file.stem


def _is_fused(config: Config, options: SequenceOptions) -> bool:
    """Return whether attention is one kernel: as the options say, else as the config does."""
    if options.fused_attention is not None:
        return options.fused_attention
    implementation = config.fields.get("_attn_implementation", config.fields.get("attn_implementation", "sdpa"))
    return bool(implementation != "eager")


# Decoders


def _read_decoder(config: Config, family: Family, options: SequenceOptions) -> Network:
    has_head = _is_with_head(config, family.classes)
    lengths = text_lengths(config, options, family.positions, family.longest, generates=True)
    decoder = describe_decoder(family, config)
    notes = []
    if not (options.length or options.context):
        notes.append(_assumption(options, lengths))
    left_out = 0
    if config.fields.get(family.next_token):
        next_token = config.positive_integer(family.next_token)
        size = ""
        if family.has_plain_next_token:
            left_out = next_token * count_next_token_parameters(decoder, config.where)
            size = f", {format_si(left_out)} parameters"
        part = f"multi-token prediction layers ({next_token}{size})"
        notes.append(f"{part} are left out: they draft further tokens, and the model runs without them")
    has_experts = any(isinstance(block.feed_forward, Experts) for block in decoder.blocks)
    if has_experts and options.tensor_parallel > 1 and options.phase not in GENERATION_PHASES:
        if not options.sequence_parallel:
            notes.append("--tensor of a mixture of experts implies sequence parallelism: experts are not divided")
        options = options._replace(sequence_parallel=True)
    _check_parallelism(config, decoder, lengths, options, _is_fused(config, options))
    blocks = len(decoder.blocks)
    block_types = _block_types(decoder)
    if isinstance(options.blocks, int):
        decoder = msgspec.structs.replace(decoder, blocks=decoder.blocks[: options.blocks])
    elif options.blocks is not None:
        chosen = tuple(decoder.blocks[index] for index in options.blocks)
        decoder = msgspec.structs.replace(decoder, blocks=chosen)
    tape = Tape(config.where, lengths, _is_fused(config, options), options)
    add_decoder(tape, decoder, has_head)
    source = f"Hugging Face config, {config.fields['model_type']}"
    network = tape.network(name_of(config.where), ((1, lengths.queries),), source, tuple(notes))
    return network._replace(
        lengths=lengths,
        blocks=blocks,
        block_types=block_types,
        group=LANGUAGE_MODELS,
        embedding_is_active=family.embedding_is_active,
        left_out_parameters=left_out,
    )


def _block_types(decoder: Decoder) -> tuple[int, ...]:
    """Return the index of the first equal block for each block; nothing if all blocks are equal."""
    first_of_type: dict[Block, int] = {}
    types = tuple(first_of_type.setdefault(block, index) for index, block in enumerate(decoder.blocks))
    return types if len(first_of_type) > 1 else ()


def _check_parallelism(
    config: Config, decoder: Decoder, lengths: Lengths, options: SequenceOptions, is_fused: bool
) -> None:
    """Raise BadValue if heads, tokens or experts cannot be divided among the devices."""
    name = name_of(config.where)
    tensor = options.tensor_parallel
    for block in decoder.blocks:
        for mixer in block.mixers:
            if not isinstance(mixer, (Attention, LatentAttention, CompressedAttention)):
                continue
            if mixer.heads % tensor:
                raise BadValue(f"--tensor {tensor} does not divide the {mixer.heads} attention heads of {name}")
            kv_heads = mixer.kv_heads if isinstance(mixer, Attention) else mixer.heads  # latent keys are replicated
            if kv_heads % tensor and tensor % kv_heads:
                raise BadValue(
                    f"--tensor {tensor} neither divides the {kv_heads} key and value heads of {name} nor is a multiple"
                )
    if options.sequence_parallel and lengths.queries % tensor:
        raise BadValue(f"--tensor {tensor} does not divide a sequence of {lengths.queries} tokens")
    if options.context_parallel > 1 and not is_fused:
        raise BadValue("--context-parallel requires attention in one kernel, not attn_implementation eager")
    counts = {block.feed_forward.count for block in decoder.blocks if isinstance(block.feed_forward, Experts)}
    degree = options.expert_parallel
    if degree > 1 and not counts:
        raise BadValue(f"--expert-parallel requires a mixture of experts, which {name} is not")
    for count in counts:
        if count % degree:
            raise BadValue(f"--expert-parallel {degree} does not divide the {count} experts of {name}")
    divided = options.expert_tensor_parallel
    sizes = {block.feed_forward.inner_size for block in decoder.blocks if isinstance(block.feed_forward, Experts)}
    if divided > 1 and not sizes:
        raise BadValue(f"--expert-tensor-parallel requires a mixture of experts, which {name} is not")
    for size in sizes:
        if size % divided:
            raise BadValue(f"--expert-tensor-parallel {divided} does not divide the inner size {size} of the experts")


def _assumption(options: SequenceOptions, lengths: Lengths) -> str:
    if options.phase == "decode":
        return f"assumes {lengths.keys - 1} tokens in the cache; --context sets another number"
    return f"assumes a sequence of {lengths.keys} tokens; --sequence-length sets another length"


def text_lengths(
    config: Config, options: SequenceOptions, positions: str, longest: int | None, generates: bool
) -> Lengths:
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
        if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
            raise BadValue(f"{name} must be an integer >= 1 (got {value!r})")
    keys_of_positions = positions.split()
    positions = next((key for key in keys_of_positions if config.fields.get(key) is not None), positions)
    known = config.optional_integer(positions) or longest
    new_tokens = 1 if is_decode else 0
    tokens = options.length or options.context or min(DEFAULT_TOKENS, known or DEFAULT_TOKENS) - new_tokens
    keys = tokens + new_tokens
    if known is not None and keys > known:
        requested = f"a context of {tokens} and one more token" if is_decode else f"a sequence of {tokens} tokens"
        raise BadValue(f"{name_of(config.where)} knows {known} positions ($.{positions}); {requested} is too long")
    if keys % options.context_parallel:
        raise BadValue(f"--context-parallel {options.context_parallel} does not divide a sequence of {keys} tokens")
    queries = 1 if is_decode else keys // options.context_parallel
    return Lengths(queries, keys, uses_cache, known)


# Encoders and encoder-decoders


def _read_model_type(
    config: Config, family: EncoderFamily, image_size: int | None, options: SequenceOptions
) -> Network:
    from .encoder_models.family import describe_encoder
    from .encoder_models.stack import add_encoder_model, add_encoder_pair
    from .encoder_models.traits import EncoderPair

    class_name = _class_of(config, family)
    name = config.fields["model_type"]
    if image_size is not None:
        _set_image_size(config, family, image_size)
    if options.tensor_parallel > 1:
        raise BadValue(f"--tensor is for language models that write text, such as llama; {name} is not one")
    if options.expert_parallel > 1:
        raise BadValue(f"--expert-parallel requires a mixture of experts, which {name} is not")
    reads_images = family.reads == "images"
    if reads_images and options.needs_sequences:
        raise BadValue(f"{config.where}: {name} reads images, which have no --sequence-length, prefill or decode")
    lengths = Lengths(1, 1) if reads_images else _encoder_lengths(config, family, options)
    model = describe_encoder(family, config, class_name)
    blocks = 0 if isinstance(model, EncoderPair) else len(model.blocks.blocks)
    tape = Tape(config.where, lengths, _is_fused(config, options), options)
    if isinstance(model, EncoderPair):
        add_encoder_pair(tape, model)
    else:
        if options.blocks is not None:
            model = _with_blocks(model, options.blocks if isinstance(options.blocks, int) else len(options.blocks))
        add_encoder_model(tape, model, family.root_of(class_name))
    notes = _encoder_notes(family, options, lengths)
    source = f"Hugging Face config, {name}"
    network = tape.network(name_of(config.where), _inputs(tape, family, lengths), source, notes)
    return network._replace(lengths=lengths, blocks=blocks, group=_GROUPS[family.reads])


_GROUPS = {
    "text": "text encoders", "images": "image networks", "audio": "speech models", "text and images": "text encoders",
}  # fmt: skip


def _encoder_notes(family: EncoderFamily, options: SequenceOptions, lengths: Lengths) -> tuple[str, ...]:
    """Return notes on the tokens that are assumed, and on the parts that run in a phase."""
    notes = []
    is_audio_prefill = family.reads == "audio" and options.phase == "prefill"
    if family.reads != "images" and not (options.length or options.context or is_audio_prefill):
        notes.append(_assumption(options, lengths))
    if options.phase == "prefill":
        tokens = lengths.queries if is_audio_prefill else 1
        source = "spectrogram" if is_audio_prefill else "prompt"
        begins = "its first token" if tokens == 1 else f"its first {tokens} tokens"
        notes.append(f"the encoder reads the whole {source}, and the decoder {begins}")
    if options.phase == "decode":
        notes.append("the decoder alone: the encoder runs with the prompt, and its weights are not included")
    return tuple(notes)


def _with_blocks(model: EncoderModel, count: int) -> EncoderModel:
    """Return the model with the first blocks of its encoder only."""
    blocks = msgspec.structs.replace(model.blocks, blocks=model.blocks.blocks[:count])
    return msgspec.structs.replace(model, blocks=blocks)


def _set_image_size(config: Config, family: EncoderFamily, image_size: int) -> None:
    """Replace the image size of a config."""
    from .encoder_models.family import nested_fields

    if family.reads == "images":
        config.fields["image_size"] = image_size
    elif family.reads == "text and images":
        config.fields["vision_config"] = {**nested_fields(config, "vision_config"), "image_size": image_size}
    else:
        name = config.fields["model_type"]
        raise BadValue(f"{config.where}: a {name} reads no images: leave --image-size out")


def _encoder_lengths(config: Config, family: EncoderFamily, options: SequenceOptions) -> Lengths:
    """Return the tokens of a pass."""
    from .encoder_models.family import nested_fields

    name = config.fields["model_type"]
    if family.reads == "text and images":
        config = Config({**nested_fields(config, "text_config"), "model_type": name}, config.where)
    if family.reads == "audio" and options.phase == "prefill" and options.length is None:
        options = options._replace(length=1)  # the decoder begins with one token
    return text_lengths(config, options, family.positions, family.longest, generates=family.generates)


def _class_of(config: Config, family: EncoderFamily) -> str:
    """Return the class that the config names, or the first that is read."""
    _is_with_head(config, family.classes)
    named = config.fields.get("architectures") or [family.classes[0]]
    return next(name for name in family.classes if name.lower() == str(named[0]).lower())


def _inputs(tape: Tape, family: EncoderFamily, lengths: Lengths) -> tuple[tuple[int, ...], ...]:
    """Return the shapes of the inputs."""
    if family.reads == "text":
        return ((1, lengths.queries),) * family.inputs
    shapes = [layer.inputs[0] for layer in tape.layers if layer.parents == (INPUT,) and len(layer.inputs[0]) > 2]
    if family.inputs == 1:
        return tuple(shapes[:1])
    return (*shapes[:1], (1, lengths.queries))

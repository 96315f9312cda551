"""The network of the config of an encoder, or of an encoder with a decoder, of a record of `encoder_models`."""

from __future__ import annotations

import msgspec

from ..counting import INPUT
from ..errors import BadValue
from .config import Config
from .config_options import describe_assumption, is_fused, is_with_head, name_of, text_lengths
from .encoder_models.family import EncoderFamily, describe_encoder, nested_fields
from .encoder_models.stack import add_encoder_model, add_encoder_pair
from .encoder_models.traits import EncoderModel, EncoderPair
from .network import Network, SequenceLengths, SequenceOptions
from .tape import Tape

_GROUPS = {
    "text": "text encoders", "images": "image networks", "audio": "speech models", "text and images": "text encoders",
}  # fmt: skip


def read_encoder(config: Config, family: EncoderFamily, image_size: int | None, options: SequenceOptions) -> Network:
    """Return the network of an encoder, or of an encoder with a decoder.

    Parameters
    ----------
    config : Config
        The config.
    family : EncoderFamily
        Record of its model type.
    image_size : int or None
        Height and width of the images, in place of the config's.
    options : SequenceOptions
        Tokens and phase.

    Raises
    ------
    BadDescriptor
        If the class is not read, or a key is missing or malformed.
    BadValue
        If the network has no such phase, tokens or parallelism.
    """
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
    lengths = SequenceLengths(1, 1) if reads_images else _encoder_lengths(config, family, options)
    model = describe_encoder(family, config, class_name)
    blocks = 0 if isinstance(model, EncoderPair) else len(model.blocks.blocks)
    tape = Tape(config.where, lengths, is_fused(config, options), options)
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


def _encoder_notes(family: EncoderFamily, options: SequenceOptions, lengths: SequenceLengths) -> tuple[str, ...]:
    """Return notes on the tokens that are assumed, and on the parts that run in a phase."""
    notes = []
    is_audio_prefill = family.reads == "audio" and options.phase == "prefill"
    if family.reads != "images" and not (options.length or options.context or is_audio_prefill):
        notes.append(describe_assumption(options, lengths))
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

    if family.reads == "images":
        config.fields["image_size"] = image_size
    elif family.reads == "text and images":
        config.fields["vision_config"] = {**nested_fields(config, "vision_config"), "image_size": image_size}
    else:
        name = config.fields["model_type"]
        raise BadValue(f"{config.where}: a {name} reads no images: leave --image-size out")


def _encoder_lengths(config: Config, family: EncoderFamily, options: SequenceOptions) -> SequenceLengths:
    """Return the tokens of a pass."""

    name = config.fields["model_type"]
    if family.reads == "text and images":
        config = Config({**nested_fields(config, "text_config"), "model_type": name}, config.where)
    if family.reads == "audio" and options.phase == "prefill" and options.length is None:
        options = options._replace(length=1)  # the decoder begins with one token
    return text_lengths(config, options, family.positions, family.longest, generates=family.generates)


def _class_of(config: Config, family: EncoderFamily) -> str:
    """Return the class that the config names, or the first that is read."""
    is_with_head(config, family.classes)
    named = config.fields.get("architectures") or [family.classes[0]]
    return next(name for name in family.classes if name.lower() == str(named[0]).lower())


def _inputs(tape: Tape, family: EncoderFamily, lengths: SequenceLengths) -> tuple[tuple[int, ...], ...]:
    """Return the shapes of the inputs."""
    if family.reads == "text":
        return ((1, lengths.queries),) * family.inputs
    shapes = [layer.inputs[0] for layer in tape.layers if layer.parents == (INPUT,) and len(layer.inputs[0]) > 2]
    if family.inputs == 1:
        return tuple(shapes[:1])
    return (*shapes[:1], (1, lengths.queries))

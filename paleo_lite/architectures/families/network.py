"""The network of a config whose model type has a record: one way for decoders, encoders, and encoders with decoders."""

from __future__ import annotations

import msgspec

from ...counting import GENERATION_PHASES, INPUT
from ...errors import BadDegree, BadValue
from ...units import format_si
from ..blocks.block_records import Attention, Block, CompressedAttention, Experts, LatentAttention
from ..config import Config, describe_assumption, is_fused, is_with_head, name_of, text_lengths
from ..network import (
    DECODER_ALONE,
    LANGUAGE_MODELS,
    SPEECH_MODELS,
    TEXT_ENCODERS,
    Network,
    SequenceLengths,
    SequenceOptions,
)
from ..tape import Tape
from .decoder import Decoder, add_decoder, count_next_token_parameters
from .encoder_records import EncoderModel, EncoderPair
from .family import Family, nested_fields

_GROUPS = {
    "text": TEXT_ENCODERS, "images": "image networks", "audio": SPEECH_MODELS, "text and images": TEXT_ENCODERS,
}  # fmt: skip


def read_family(
    config: Config,
    family: Family,  # record of its model type
    image_size: int | None,  # height and width of the images, in place of the config's
    options: SequenceOptions,  # tokens, phase, parallelism and blocks
) -> Network:
    """Return the network of a config whose model type has a record.

    Raise BadDescriptor if the class is not read, or a key is missing or malformed, and BadValue if the network has no
    such phase, tokens or parallelism, or cannot be divided among the devices.
    """
    has_head = is_with_head(config, family.classes)
    if image_size is not None:
        _set_image_size(config, family, image_size)
    if not family.is_decoder:
        _refuse_options(config, family, options)
    model = family.describe(config, _class_of(config, family))
    # Training adapts positions that are computed to longer sequences; a table of them has no further rows.
    is_extensible = options.phase == "training" and isinstance(model, Decoder) and not model.learned_positions
    lengths = _lengths(config, family, options, is_extensible)
    tape = Tape(config.where, lengths, is_fused(config, options), options)
    if isinstance(model, Decoder):
        network = _read_decoder(tape, config, family, model, has_head)
    else:
        network = _read_encoder(tape, config, family, model)
    return network._replace(lengths=lengths, notes=(*network.notes, *config.notes))


NEXT_TOKEN_LAYERS = "multi-token prediction layers"
"""Layers that decoders do not count, which begin the note that says so."""


def _read_decoder(tape: Tape, config: Config, family: Family, decoder: Decoder, has_head: bool) -> Network:
    """Return the network of a decoder."""
    options, lengths = tape.options, tape.lengths
    notes = []
    if not (options.length or options.context):
        notes.append(describe_assumption(options, lengths))
    if lengths.longest is not None and lengths.keys > lengths.longest:
        notes.append(
            f"{lengths.keys:,} tokens are more than the {lengths.longest:,} positions of the config, to which training "
            "adapts them"
        )
    left_out = 0
    if config.fields.get(family.next_token):
        next_token = config.positive_integer(family.next_token)
        size = ""
        if family.has_plain_next_token:
            left_out = next_token * count_next_token_parameters(decoder, config.where)
            size = f", {format_si(left_out)} parameters"
        part = f"{NEXT_TOKEN_LAYERS} ({next_token}{size})"
        notes.append(f"{part} are left out: they draft further tokens, and the model runs without them")
    has_experts = any(isinstance(block.feed_forward, Experts) for block in decoder.blocks)
    if has_experts and options.tensor_parallel > 1 and options.phase not in GENERATION_PHASES:
        if not options.sequence_parallel:
            notes.append("--tensor of a mixture of experts implies sequence parallelism: experts are not divided")
        options = options._replace(sequence_parallel=True)
        tape = Tape(config.where, lengths, tape.fused, options)
    _check_parallelism(config, decoder, lengths, options, tape.fused)
    blocks = len(decoder.blocks)
    block_types = _block_types(decoder)
    if options.blocks is not None:
        reading = sum(block.per_layer_input is not None for block in decoder.blocks)
        decoder = msgspec.structs.replace(decoder, per_layer_blocks=reading)
    if isinstance(options.blocks, int):
        decoder = msgspec.structs.replace(decoder, blocks=decoder.blocks[: options.blocks])
    elif options.blocks is not None:
        chosen = tuple(decoder.blocks[index] for index in options.blocks)
        decoder = msgspec.structs.replace(decoder, blocks=chosen)
    add_decoder(tape, decoder, has_head)
    source = f"Hugging Face config, {config.fields['model_type']}"
    network = tape.network(name_of(config.where), ((1, lengths.queries),), source, tuple(notes))
    return network._replace(
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
    config: Config, decoder: Decoder, lengths: SequenceLengths, options: SequenceOptions, is_fused: bool
) -> None:
    """Raise BadValue if heads, tokens or experts cannot be divided among the devices."""
    name = name_of(config.where)
    tensor = options.tensor_parallel
    for block in decoder.blocks:
        for mixer in block.mixers:
            if not isinstance(mixer, (Attention, LatentAttention, CompressedAttention)):
                continue
            if mixer.heads % tensor:
                raise BadDegree("--tensor", tensor, f"does not divide the {mixer.heads} attention heads of {name}")
            kv_heads = mixer.kv_heads if isinstance(mixer, Attention) else mixer.heads  # latent keys are replicated
            if kv_heads % tensor and tensor % kv_heads:
                reason = f"neither divides the {kv_heads} key and value heads of {name} nor is a multiple"
                raise BadDegree("--tensor", tensor, reason)
    if options.sequence_parallel and lengths.queries % tensor:
        raise BadDegree("--tensor", tensor, f"does not divide a sequence of {lengths.queries} tokens")
    if options.context_parallel > 1 and not is_fused:
        raise BadValue("--context-parallel requires attention in one kernel, not attn_implementation eager")
    counts = {block.feed_forward.count for block in decoder.blocks if isinstance(block.feed_forward, Experts)}
    degree = options.expert_parallel
    if degree > 1 and not counts:
        raise BadDegree("--expert-parallel", None, f"needs a mixture of experts; {name} is not one")
    for count in counts:
        if count % degree:
            raise BadDegree("--expert-parallel", degree, f"does not divide the {count} experts of {name}")
    divided = options.expert_tensor_parallel
    sizes = {block.feed_forward.inner_size for block in decoder.blocks if isinstance(block.feed_forward, Experts)}
    if divided > 1 and not sizes:
        raise BadValue(f"--experts tensor requires a mixture of experts; {name} is not one")
    for size in sizes:
        if size % divided:
            raise BadValue(f"--experts tensor {divided} does not divide the inner size {size} of the experts")


def _read_encoder(tape: Tape, config: Config, family: Family, model: EncoderModel | EncoderPair) -> Network:
    """Return the network of an encoder, or of an encoder with a decoder."""
    from .encoder import add_encoder_model, add_encoder_pair  # not needed for a decoder

    options, lengths = tape.options, tape.lengths
    if isinstance(model, EncoderPair):
        blocks = 0
        add_encoder_pair(tape, model)
    else:
        blocks = len(model.blocks.blocks)
        if options.blocks is not None:
            model = _with_blocks(model, options.blocks if isinstance(options.blocks, int) else len(options.blocks))
        is_bare = _class_of(config, family) == f"{family.name}Model"
        add_encoder_model(tape, model, "" if is_bare or not family.root else f"{family.root}.")
    source = f"Hugging Face config, {config.fields['model_type']}"
    notes = _encoder_notes(family, options, lengths)
    network = tape.network(name_of(config.where), _inputs(tape, family, lengths), source, notes)
    return network._replace(blocks=blocks, group=_GROUPS[family.reads])


def _refuse_options(config: Config, family: Family, options: SequenceOptions) -> None:
    """Raise BadValue for options of decoders, and for those of sequences if a network reads images."""
    name = config.fields["model_type"]
    if options.tensor_parallel > 1:
        raise BadValue(f"--tensor is for language models that write text, such as llama; {name} is not one")
    if options.expert_parallel > 1:
        raise BadDegree("--expert-parallel", None, f"needs a mixture of experts; {name} is not one")
    if family.reads == "images" and options.needs_sequences:
        raise BadValue(f"{config.where}: {name} reads images, which have no --sequence-length, prefill or decode")


def _lengths(config: Config, family: Family, options: SequenceOptions, is_extensible: bool = False) -> SequenceLengths:
    """Return the tokens of a pass, which may be more than the positions of the config if these are extensible."""
    if family.reads == "images":
        return SequenceLengths(1, 1)
    if family.reads == "text and images":
        name = config.fields["model_type"]
        config = config.with_fields({**nested_fields(config, "text_config"), "model_type": name})
    if family.reads == "audio" and options.phase == "prefill" and options.length is None:
        options = options._replace(length=1)  # the decoder begins with one token
    return text_lengths(
        config,
        options,
        family.positions,
        family.longest,
        generates=family.generates,
        is_extensible=is_extensible,
    )


def _encoder_notes(family: Family, options: SequenceOptions, lengths: SequenceLengths) -> tuple[str, ...]:
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
        notes.append(DECODER_ALONE)
    return tuple(notes)


def _with_blocks(model: EncoderModel, count: int) -> EncoderModel:
    """Return the model with the first blocks of its encoder only."""
    blocks = msgspec.structs.replace(model.blocks, blocks=model.blocks.blocks[:count])
    return msgspec.structs.replace(model, blocks=blocks)


def _set_image_size(config: Config, family: Family, image_size: int) -> None:
    """Replace the image size of a config."""
    if family.reads == "images":
        config.fields["image_size"] = image_size
    elif family.reads == "text and images":
        config.fields["vision_config"] = {**nested_fields(config, "vision_config"), "image_size": image_size}
    else:
        name = config.fields["model_type"]
        raise BadValue(f"{config.where}: a {name} reads no images: leave --image-size out")


def _class_of(config: Config, family: Family) -> str:
    """Return the class that the config names, or the first that is read."""
    named = config.fields.get("architectures") or [family.classes[0]]
    return next(name for name in family.classes if name.lower() == str(named[0]).lower())


def _inputs(tape: Tape, family: Family, lengths: SequenceLengths) -> tuple[tuple[int, ...], ...]:
    """Return the shapes of the inputs."""
    if family.reads == "text":
        return ((1, lengths.queries),) * family.inputs
    shapes = [layer.inputs[0] for layer in tape.layers if layer.parents == (INPUT,) and len(layer.inputs[0]) > 2]
    if family.inputs == 1:
        return tuple(shapes[:1])
    return (*shapes[:1], (1, lengths.queries))

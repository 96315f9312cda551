"""The network of the config of a decoder, whose type a record of `language_models` describes."""

from __future__ import annotations

import msgspec

from ..counting import GENERATION_PHASES
from ..errors import BadValue
from ..units import format_si
from .blocks.traits import Attention, Block, CompressedAttention, Experts, LatentAttention
from .config import Config
from .config_options import describe_assumption, is_fused, is_with_head, name_of, text_lengths
from .language_models.decoder import Decoder, add_decoder, count_next_token_parameters
from .language_models.families import describe_decoder
from .language_models.family import Family
from .network import LANGUAGE_MODELS, Network, SequenceLengths, SequenceOptions
from .tape import Tape


def read_decoder(config: Config, family: Family, options: SequenceOptions) -> Network:
    """Return the network of a decoder.

    Parameters
    ----------
    config : Config
        The config.
    family : Family
        Record of its model type.
    options : SequenceOptions
        Tokens, phase, parallelism and blocks.

    Raises
    ------
    BadDescriptor
        If the class is not read, or a key is missing or malformed.
    BadValue
        If heads, tokens or experts cannot be divided among the devices, or there are too many tokens.
    """
    has_head = is_with_head(config, family.classes)
    lengths = text_lengths(config, options, family.positions, family.longest, generates=True)
    decoder = describe_decoder(family, config)
    notes = []
    if not (options.length or options.context):
        notes.append(describe_assumption(options, lengths))
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
    _check_parallelism(config, decoder, lengths, options, is_fused(config, options))
    blocks = len(decoder.blocks)
    block_types = _block_types(decoder)
    if isinstance(options.blocks, int):
        decoder = msgspec.structs.replace(decoder, blocks=decoder.blocks[: options.blocks])
    elif options.blocks is not None:
        chosen = tuple(decoder.blocks[index] for index in options.blocks)
        decoder = msgspec.structs.replace(decoder, blocks=chosen)
    tape = Tape(config.where, lengths, is_fused(config, options), options)
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
        raise BadValue(f"--experts tensor requires a mixture of experts, which {name} is not")
    for size in sizes:
        if size % divided:
            raise BadValue(f"--experts tensor {divided} does not divide the inner size {size} of the experts")

"""A language model that writes text: its record, and its layers around the blocks."""

from __future__ import annotations

import msgspec

from ...counting import CONSTANT
from ..blocks.alternating import add_alternating_streams, add_mean_of_streams
from ..blocks.attention import Positions
from ..blocks.block import add_blocks
from ..blocks.block_records import Attention, Block, CompressedAttention, LatentAttention, NormKind
from ..blocks.hyper_connection import add_final_collapse, add_streams
from ..blocks.norms import add_norm
from ..builder import Blob
from ..network import SequenceLengths
from ..tape import Tape


class Decoder(msgspec.Struct, frozen=True, kw_only=True):
    """A language model that writes text token by token."""

    vocabulary: int
    hidden_size: int
    blocks: tuple[Block, ...]
    root: str = "model"  # name of the module around the blocks in the class with a head
    block_list: str = "layers"  # name of the list of blocks
    # Names of modules; an empty `final_norm`: there is none
    embedding: str = "embed_tokens"
    final_norm: str = "norm"
    head: str = "lm_head"
    norm: NormKind = "rms"  # of the final norm
    has_embedding_scale: bool = False
    embedding_norm: str = ""  # name of a layer norm after the embedding; empty without one
    has_logit_scale: bool = False
    has_logit_softcap: bool = False
    learned_positions: int = 0  # rows of the table of learned positions; 0 without one
    position_embedding: str = "wpe"
    per_layer_vocabulary: int = 0  # rows of the table of per-layer embeddings; 0: there is none
    per_layer_blocks: int = 0  # blocks of the whole network that read it, where only some blocks are built
    is_tied: bool = False  # whether the head's weight is that of the embedding
    head_bias: bool = False
    dropout: float | None = None  # dropout probability of the embedding; None: the model has no such module


def add_decoder(
    tape: Tape,
    decoder: Decoder,
    has_head: bool,  # whether logits are computed, as the class ``...ForCausalLM`` of ``transformers`` does
) -> None:
    """Add the layers of a decoder to a tape."""
    root = decoder.root if has_head else ""
    x, positions = _add_embedding(tape, decoder, root)
    connection = decoder.blocks[0].hyper_connection if decoder.blocks else None
    if connection is not None:
        x = add_streams(tape, root, x, connection.streams)
    alternating = decoder.blocks[0].alternating if decoder.blocks else None
    if decoder.per_layer_vocabulary and any(block.per_layer_input is not None for block in decoder.blocks):
        positions = msgspec.structs.replace(positions, per_layer=_add_per_layer_inputs(tape, decoder, root, x))
    if alternating is not None:
        x = add_alternating_streams(tape, root, alternating, x)
    x = add_blocks(tape, _join(root, decoder.block_list), [(block, positions) for block in decoder.blocks], x)
    if alternating is not None:
        x = add_mean_of_streams(tape, root, alternating, x)
    if connection is not None:
        x = add_final_collapse(tape, _join(root, "hc_head"), x)
    if decoder.final_norm:
        x = add_norm(tape, _join(root, decoder.final_norm), decoder.norm, x)
    if has_head:
        _add_logits(tape, decoder, x)


def count_next_token_parameters(decoder: Decoder, where: str) -> int:
    """Return the parameters of a multi-token prediction layer (DeepSeek-V3, 2024, section 2.2).

    It is one more block, norms of both inputs and of the output, and a projection of both inputs; embedding and head
    are those of the model.
    """
    counts = []
    for blocks in (decoder.blocks[-1:], ()):
        tape = Tape(where, SequenceLengths(1, 1))
        add_decoder(tape, msgspec.structs.replace(decoder, blocks=blocks), has_head=False)
        counts.append(sum(layer.parameters for layer in tape.layers))
    return counts[0] - counts[1] + 2 * decoder.hidden_size**2 + 3 * decoder.hidden_size


def _join(root: str, name: str) -> str:
    """Return the name of a module inside another; the outermost has none."""
    return f"{root}.{name}" if root and name else root or name


def _add_embedding(tape: Tape, decoder: Decoder, root: str) -> tuple[Blob, Positions]:
    """Add the embedding and everything about positions that the blocks share."""
    hidden_size = decoder.hidden_size
    name = _join(root, decoder.embedding)
    tokens = Blob((1, tape.lengths.queries))
    x = tape.embedding(name, tokens, tape.shard_size(decoder.vocabulary), hidden_size)
    x = tape.row_parallel_output(name, x)
    if decoder.has_embedding_scale:
        x = tape.op(f"{name}.mul", "mul", x, Blob((), CONSTANT))
    if decoder.embedding_norm:
        x = add_norm(tape, _join(root, decoder.embedding_norm), "layer", x)
    attentions = _attentions(decoder)
    position_ids = tape.position_ids(root)
    if decoder.learned_positions:
        own_positions = position_ids._replace(shape=(1, tape.tokens))
        position_name = _join(root, decoder.position_embedding)
        placed = tape.embedding(position_name, own_positions, decoder.learned_positions, hidden_size)
        x = tape.op(_join(root, "add"), "add", x, placed)
    masks: dict[int | None, Blob | None] = {}
    for attention in attentions:
        window = None if isinstance(attention, LatentAttention) else attention.window
        is_unfused = isinstance(attention, Attention) and attention.is_always_unfused
        if window not in masks:
            masks[window] = tape.attention_mask(root, position_ids, window, False if is_unfused else None)
    alibi = None
    if any(isinstance(attention, Attention) and attention.has_alibi for attention in attentions):
        heads = max(attention.heads for attention in attentions)
        alibi = _add_alibi(tape, root, tape.shard_size(heads))
    if decoder.dropout is not None:
        x = tape.dropout(_join(root, "drop"), x, decoder.dropout)
    tables = {}
    rotated = [mixer for mixer in attentions if not isinstance(mixer, LatentAttention) or mixer.is_rotated]
    for size in dict.fromkeys(attention.rotary_size for attention in rotated):
        if size:
            tables[size] = tape.rotary_tables(_join(root, "rotary_emb"), position_ids, size)
    return x, Positions(tables=tables, masks=masks, alibi=alibi, embedding=x)


def _attentions(decoder: Decoder) -> list[Attention | LatentAttention | CompressedAttention]:
    """Return the attention layers of all blocks."""
    mixers = [mixer for block in decoder.blocks for mixer in block.mixers]
    mixers += [block.shared.attention for block in decoder.blocks if block.shared is not None]
    return [mixer for mixer in mixers if isinstance(mixer, (Attention, LatentAttention, CompressedAttention))]


def _add_alibi(tape: Tape, root: str, heads: int) -> Blob:
    """Add the bias of ALiBi: a slope per head times the position of each key (Press et al. 2022)."""
    keys = tape.lengths.keys
    slopes = tape.op(_join(root, "pow"), "pow", out=(heads, 1, 1), origin="function")
    indices = tape.op(_join(root, "arange"), "fill", out=(keys,), origin="function", function="arange")
    return tape.op(_join(root, "mul"), "mul", slopes, indices, out=(heads, 1, keys))


def _add_per_layer_inputs(tape: Tape, decoder: Decoder, root: str, x: Blob) -> Blob:
    """Add the per-layer embeddings of all blocks: a table, and a projection of the embedding (Gemma 3n)."""
    inputs = [block.per_layer_input for block in decoder.blocks if block.per_layer_input is not None]
    size, tokens = inputs[0].size if inputs else 0, x.shape[1]
    blocks = decoder.per_layer_blocks or len(inputs)
    width = blocks * size
    name = _join(root, "embed_tokens_per_layer")
    read = tape.embedding(name, Blob((1, tokens)), decoder.per_layer_vocabulary, width)
    read = tape.op(f"{name}.mul", "mul", read, Blob((), CONSTANT))
    projected = tape.linear(_join(root, "per_layer_model_projection"), x, width, bias=False)
    projected = tape.op(_join(root, "mul"), "mul", projected)
    projected = tape.view(root, projected, (1, tokens, blocks, size), "reshape")
    projected = add_norm(tape, _join(root, "per_layer_projection_norm"), "rms", projected)
    summed = tape.op(_join(root, "add"), "add", projected, read, out=projected.shape)
    return tape.op(_join(root, "mul"), "mul", summed)


def _add_logits(tape: Tape, decoder: Decoder, x: Blob) -> None:
    """Add the head; where text is generated only the last token's logits are computed."""
    x = tape.column_parallel_input(decoder.head, x)
    tokens = 1 if tape.lengths.uses_cache else x.shape[1]
    x = tape.op("getitem", "slice", x, out=(1, tokens, x.shape[2]), function="getitem")
    vocabulary = tape.shard_size(decoder.vocabulary)
    new_parameters = None
    if decoder.is_tied:
        new_parameters = vocabulary if decoder.head_bias else 0
    with tape.role("head", decoder.head):
        logits = tape.linear(decoder.head, x, vocabulary, decoder.head_bias, new_parameters=new_parameters)
    if decoder.has_logit_scale:
        logits = tape.op("mul", "mul", logits)
    if decoder.has_logit_softcap:
        logits = tape.op("div", "div", logits)
        logits = tape.op("tanh", "tanh", logits, origin="function")
        tape.op("mul", "mul", logits)

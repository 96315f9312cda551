"""The layers of a language model that writes text, from the record that describes it."""

from __future__ import annotations

import msgspec

from ...counting import CONSTANT
from ..builder import Blob
from ..network import Lengths
from ..tape import Tape
from .attention import Positions, add_attention, add_latent_attention
from .feed_forward import add_experts, add_feed_forward
from .norms import add_norm
from .state_space import add_delta_net, add_mamba, add_mamba2
from .traits import Attention, Block, Decoder, DeltaNet, Experts, LatentAttention, Mamba, Mamba2, Mixer


def add_decoder(tape: Tape, decoder: Decoder, has_head: bool) -> None:
    """Add the layers of a decoder to a tape.

    Parameters
    ----------
    has_head : bool
        Whether logits are computed, as the class ``...ForCausalLM`` of ``transformers`` does.
    """
    root = decoder.root if has_head else ""
    x, positions = _add_embedding(tape, decoder, root)
    for index, block in enumerate(decoder.blocks):
        x = _add_block(tape, _join(root, f"{decoder.block_list}.{index}"), block, x, positions)
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
        tape = Tape(where, Lengths(1, 1))
        add_decoder(tape, msgspec.structs.replace(decoder, blocks=blocks), has_head=False)
        counts.append(sum(layer.parameters for layer in tape.layers))
    return counts[0] - counts[1] + 2 * decoder.hidden_size**2 + 3 * decoder.hidden_size


def _join(root: str, name: str) -> str:
    """Return the name of a module inside another; the outermost has none."""
    return f"{root}.{name}" if root else name


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
        window = attention.window if isinstance(attention, Attention) else None
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
    for size in dict.fromkeys(attention.rotary_size for attention in attentions):
        if size:
            tables[size] = tape.rotary_tables(_join(root, "rotary_emb"), position_ids, size)
    return x, Positions(tables, masks, alibi)


def _attentions(decoder: Decoder) -> list[Attention | LatentAttention]:
    """Return the attention layers of all blocks."""
    mixers = [mixer for block in decoder.blocks for mixer in block.mixers]
    return [mixer for mixer in mixers if isinstance(mixer, (Attention, LatentAttention))]


def _add_alibi(tape: Tape, root: str, heads: int) -> Blob:
    """Add the bias of ALiBi: a slope per head times the position of each key (Press et al. 2022)."""
    keys = tape.lengths.keys
    slopes = tape.op(_join(root, "pow"), "pow", out=(heads, 1, 1), origin="function")
    indices = tape.op(_join(root, "arange"), "fill", out=(keys,), origin="function", function="arange")
    return tape.op(_join(root, "mul"), "mul", slopes, indices, out=(heads, 1, keys))


def _add_block(tape: Tape, name: str, block: Block, x: Blob, positions: Positions) -> Blob:
    """Add one block."""
    norms = block.norms
    if not block.mixers:
        return _add_fed(tape, name, block, x)
    residual = x
    if norms.before_mixer:
        x = add_norm(tape, f"{name}.{norms.before_mixer}", block.norm, x)
    normal = x
    mixed = [_add_mixer(tape, name, mixer, normal, positions) for mixer in block.mixers]
    output = mixed[0]
    for other in mixed[1:]:
        output = tape.op(f"{name}.add", "add", output, other)
    output = _finish_part(tape, name, block, output, norms.after_mixer)
    if block.feed_forward is None:
        return tape.op(f"{name}.add", "add", residual, output)
    if block.is_parallel:
        if norms.before_feed_forward:
            normal = add_norm(tape, f"{name}.{norms.before_feed_forward}", block.norm, residual)
        fed = _add_part(tape, name, block, normal)
        fed = _finish_part(tape, name, block, fed, norms.after_feed_forward)
        both = tape.op(f"{name}.add", "add", output, fed)
        return tape.op(f"{name}.add", "add", residual, both)
    return _add_fed(tape, name, block, tape.op(f"{name}.add", "add", residual, output))


def _add_fed(tape: Tape, name: str, block: Block, x: Blob) -> Blob:
    """Add the feed-forward part of a block, with its norms, to its input."""
    norms = block.norms
    residual = x
    if norms.before_feed_forward:
        x = add_norm(tape, f"{name}.{norms.before_feed_forward}", block.norm, x)
    fed = _add_part(tape, name, block, x)
    fed = _finish_part(tape, name, block, fed, norms.after_feed_forward)
    return tape.op(f"{name}.add", "add", residual, fed)


def _finish_part(tape: Tape, name: str, block: Block, output: Blob, norm: str) -> Blob:
    """Add the layers between a mixer or a feed-forward part and its residual addition."""
    if norm:
        output = add_norm(tape, f"{name}.{norm}", block.norm, output)
    if block.dropout is not None:
        output = tape.dropout(f"{name}.dropout", output, block.dropout)
    if block.has_residual_scale:
        output = tape.op(f"{name}.mul", "mul", output)
    return output


def _add_mixer(tape: Tape, block: str, mixer: Mixer, x: Blob, positions: Positions) -> Blob:
    name = f"{block}.{mixer.module}"
    if isinstance(mixer, Attention):
        return add_attention(tape, name, mixer, x, positions)
    if isinstance(mixer, LatentAttention):
        return add_latent_attention(tape, name, mixer, x, positions)
    if isinstance(mixer, Mamba):
        return add_mamba(tape, name, mixer, x)
    if isinstance(mixer, Mamba2):
        return add_mamba2(tape, name, mixer, x)
    assert isinstance(mixer, DeltaNet)
    return add_delta_net(tape, name, mixer, x)


def _add_part(tape: Tape, block_name: str, block: Block, x: Blob) -> Blob:
    part = block.feed_forward
    assert part is not None
    name = f"{block_name}.{part.module}" if part.module else block_name
    if isinstance(part, Experts):
        return add_experts(tape, name, part, x)
    return add_feed_forward(tape, name, part, x)


def _add_logits(tape: Tape, decoder: Decoder, x: Blob) -> None:
    """Add the head; where text is generated only the last token's logits are computed."""
    x = tape.column_parallel_input(decoder.head, x)
    tokens = 1 if tape.lengths.uses_cache else x.shape[1]
    x = tape.op("getitem", "slice", x, out=(1, tokens, x.shape[2]), function="getitem")
    vocabulary = tape.shard_size(decoder.vocabulary)
    own = None
    if decoder.is_tied:
        own = vocabulary if decoder.head_bias else 0
    logits = tape.linear(decoder.head, x, vocabulary, decoder.head_bias, new_parameters=own)
    if decoder.has_logit_scale:
        logits = tape.op("mul", "mul", logits)
    if decoder.has_logit_softcap:
        logits = tape.op("div", "div", logits)
        logits = tape.op("tanh", "tanh", logits, origin="function")
        tape.op("mul", "mul", logits)

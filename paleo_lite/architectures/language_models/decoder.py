"""The layers of a language model that writes text, from the record that describes it."""

from __future__ import annotations

import msgspec

from ...counting import CONSTANT
from ..builder import Blob
from ..network import Lengths
from ..tape import Tape
from .alternating import (
    add_alternating_streams,
    add_correction,
    add_gated_embedding,
    add_laurel,
    add_mean_of_streams,
    add_prediction,
)  # fmt: skip
from .attention import Positions, add_attention, add_latent_attention
from .compressed_attention import (
    add_collapse,
    add_compressed_attention,
    add_expansion,
    add_final_collapse,
    add_streams,
)  # fmt: skip
from .feed_forward import add_channel_mix, add_experts, add_feed_forward
from .norms import add_norm
from .recurrence import add_linear_recurrence, add_time_mix
from .shared_transformer import add_shared_transformer
from .state_space import (
    add_delta_net,
    add_kimi_delta,
    add_mamba,
    add_mamba2,
    add_matrix_memory,
    add_short_convolution,
)  # fmt: skip
from .traits import (
    Alternating,
    Attention,
    Block,
    ChannelMix,
    CompressedAttention,
    Decoder,
    DeltaNet,
    Experts,
    HyperConnection,
    KimiDelta,
    LatentAttention,
    LinearRecurrence,
    Mamba,
    Mamba2,
    MatrixMemory,
    Mixer,
    ShortConvolution,
    TimeMix,
)  # fmt: skip


def add_decoder(tape: Tape, decoder: Decoder, has_head: bool) -> None:
    """Add the layers of a decoder to a tape.

    Parameters
    ----------
    has_head : bool
        Whether logits are computed, as the class ``...ForCausalLM`` of ``transformers`` does.
    """
    root = decoder.root if has_head else ""
    x, positions = _add_embedding(tape, decoder, root)
    connection = decoder.blocks[0].hyper_connection if decoder.blocks else None
    if connection is not None:
        x = add_streams(tape, root, x, connection.streams)
    alternating = decoder.blocks[0].alternating if decoder.blocks else None
    has_inputs = decoder.per_layer_vocabulary and any(block.per_layer_input is not None for block in decoder.blocks)
    per_layer = _add_per_layer_inputs(tape, decoder, root, x) if has_inputs else None
    if alternating is not None:
        x = add_alternating_streams(tape, root, alternating, x)
    for index, block in enumerate(decoder.blocks):
        name = _join(root, f"{decoder.block_list}.{index}")
        if block.alternating is not None:
            x = _add_alternating_block(tape, name, block, block.alternating, x, positions, per_layer)
            continue
        x = _add_block(tape, name, block, x, positions)
        if block.per_layer_input is not None and per_layer is not None:
            x = _add_per_layer_input(tape, name, block, x, per_layer)
        if block.has_output_scale:
            x = tape.op(f"{name}.mul", "mul", x, Blob((1,), CONSTANT))
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
        tape = Tape(where, Lengths(1, 1))
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
    return x, Positions(tables, masks, alibi, {}, x)


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


def _add_block(tape: Tape, name: str, block: Block, x: Blob, positions: Positions) -> Blob:
    """Add one block."""
    norms = block.norms
    if block.hyper_connection is not None:
        return _add_hyper_block(tape, name, block, block.hyper_connection, x, positions)
    if not block.mixers:
        return _add_fed(tape, name, block, x)
    residual = x
    if block.shared is not None:
        x = add_shared_transformer(tape, name, block.shared, block.norm, x, positions)
        name = f"{name}.{block.shared.rest}"
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


def _add_hyper_block(
    tape: Tape, name: str, block: Block, connection: HyperConnection, x: Blob, positions: Positions
) -> Blob:
    """Add a block with hyper-connections: each part reads a sum of the streams, and its output goes into all."""
    norms = block.norms
    module = f"{name}.{connection.before_mixer}"
    collapsed, after, matrix = add_collapse(tape, module, connection, x)
    normal = add_norm(tape, f"{name}.{norms.before_mixer}", block.norm, collapsed)
    output = _add_mixer(tape, name, block.mixers[0], normal, positions)
    x = add_expansion(tape, module, output, after, matrix, x)
    module = f"{name}.{connection.before_feed_forward}"
    collapsed, after, matrix = add_collapse(tape, module, connection, x)
    normal = add_norm(tape, f"{name}.{norms.before_feed_forward}", block.norm, collapsed)
    output = _add_part(tape, name, block, normal)
    return add_expansion(tape, module, output, after, matrix, x)


def _add_alternating_block(
    tape: Tape, name: str, block: Block, alternating: Alternating, x: Blob, positions: Positions,
    per_layer: Blob | None,
) -> Blob:  # fmt: skip
    """Add a block of Gemma 3n: predict all streams, compute one, correct the others, and add the embedding."""
    norms, module = block.norms, f"{name}.{alternating.module}"
    predicted, active = add_prediction(tape, module, alternating, x)
    normal = add_norm(tape, f"{name}.{norms.before_mixer}", block.norm, active)
    residual = add_laurel(tape, f"{name}.{alternating.laurel}", alternating, normal)
    output = _add_mixer(tape, name, block.mixers[0], normal, positions)
    output = _finish_part(tape, name, block, output, norms.after_mixer)
    output = tape.op(f"{name}.add", "add", active, output)
    output = tape.op(f"{name}.add", "add", output, residual)
    output = tape.op(f"{name}.div", "div", output)
    output = _add_fed(tape, name, block, output)
    corrected = add_correction(tape, module, alternating, predicted, output, active)
    part = block.per_layer_input
    if part is None or per_layer is None:
        return corrected
    return add_gated_embedding(tape, name, part, corrected, per_layer, alternating.module)


def _add_fed(tape: Tape, name: str, block: Block, x: Blob) -> Blob:
    """Add the feed-forward part of a block, with its norms, to its input."""
    norms = block.norms
    residual = x
    if norms.before_feed_forward:
        x = add_norm(tape, f"{name}.{norms.before_feed_forward}", block.norm, x)
    fed = _add_part(tape, name, block, x)
    if block.side_experts is not None:
        fed = _add_side_experts(tape, name, block, residual, x, fed)
    fed = _finish_part(tape, name, block, fed, norms.after_feed_forward)
    return tape.op(f"{name}.add", "add", residual, fed)


def _add_side_experts(tape: Tape, name: str, block: Block, x: Blob, normal: Blob, fed: Blob) -> Blob:
    """Add the experts beside the feed-forward part, which makes `fed` of `normal`; return the sum of both."""
    side = block.side_experts
    assert side is not None
    if side.other_norm_after:
        fed = add_norm(tape, f"{name}.{side.other_norm_after}", block.norm, fed)
    read = add_norm(tape, f"{name}.{side.norm_before}", block.norm, x) if side.norm_before else normal
    routed_by = x if side.norm_before else None
    routed = add_experts(tape, _join(name, side.experts.module), side.experts, read, routed_by)
    if side.norm_after:
        routed = add_norm(tape, f"{name}.{side.norm_after}", block.norm, routed)
    return tape.op(f"{name}.add", "add", fed, routed)


def _add_per_layer_inputs(tape: Tape, decoder: Decoder, root: str, x: Blob) -> Blob:
    """Add the per-layer embeddings of all blocks: a table, and a projection of the embedding (Gemma 3n)."""
    inputs = [block.per_layer_input for block in decoder.blocks if block.per_layer_input is not None]
    size, tokens = inputs[0].size if inputs else 0, x.shape[1]
    width = len(inputs) * size
    name = _join(root, "embed_tokens_per_layer")
    read = tape.embedding(name, Blob((1, tokens)), decoder.per_layer_vocabulary, width)
    read = tape.op(f"{name}.mul", "mul", read, Blob((), CONSTANT))
    projected = tape.linear(_join(root, "per_layer_model_projection"), x, width, bias=False)
    projected = tape.op(_join(root, "mul"), "mul", projected)
    projected = tape.view(root, projected, (1, tokens, len(inputs), size), "reshape")
    projected = add_norm(tape, _join(root, "per_layer_projection_norm"), "rms", projected)
    both = tape.op(_join(root, "add"), "add", projected, read, out=projected.shape)
    return tape.op(_join(root, "mul"), "mul", both)


def _add_per_layer_input(tape: Tape, name: str, block: Block, x: Blob, per_layer: Blob) -> Blob:
    """Add the gate that puts the embedding of a block into the residual stream."""
    part = block.per_layer_input
    assert part is not None
    own = tape.view(name, per_layer, (1, x.shape[1], part.size), "getitem", "slice")
    gate = tape.linear(f"{name}.per_layer_input_gate", x, part.size, bias=False)
    gate = tape.activation(f"{name}.act_fn", gate, part.activation)
    gated = tape.op(f"{name}.mul", "mul", gate, own)
    output = tape.linear(f"{name}.per_layer_projection", gated, x.shape[-1], bias=False)
    output = add_norm(tape, f"{name}.post_per_layer_input_norm", block.norm, output)
    return tape.op(f"{name}.add", "add", x, output)


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
    if isinstance(mixer, CompressedAttention):
        return add_compressed_attention(tape, name, mixer, x, positions)
    if isinstance(mixer, Mamba):
        return add_mamba(tape, name, mixer, x)
    if isinstance(mixer, Mamba2):
        return add_mamba2(tape, name, mixer, x)
    if isinstance(mixer, KimiDelta):
        return add_kimi_delta(tape, name, mixer, x)
    if isinstance(mixer, LinearRecurrence):
        return add_linear_recurrence(tape, name, mixer, x)
    if isinstance(mixer, MatrixMemory):
        return add_matrix_memory(tape, name, mixer, x)
    if isinstance(mixer, TimeMix):
        return add_time_mix(tape, name, mixer, x)
    if isinstance(mixer, ShortConvolution):
        return add_short_convolution(tape, name, mixer, x)
    assert isinstance(mixer, DeltaNet)
    return add_delta_net(tape, name, mixer, x)


def _add_part(tape: Tape, block_name: str, block: Block, x: Blob) -> Blob:
    part = block.feed_forward
    assert part is not None
    name = f"{block_name}.{part.module}" if part.module else block_name
    if isinstance(part, Experts):
        return add_experts(tape, name, part, x)
    if isinstance(part, ChannelMix):
        return add_channel_mix(tape, name, part, x)
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

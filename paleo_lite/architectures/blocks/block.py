"""The layers of a block, and of a list of blocks.

A block has mixers, attention to an encoder, and a feed-forward part, with norms and additions. In a list, most blocks
equal the block before: such a block is copied instead of built anew.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from ...counting import CONSTANT, Layer
from ...counting.layer import Place
from ..builder import Blob
from ..tape import Tape
from .alternating import add_correction, add_gated_embedding, add_laurel, add_prediction
from .attention import Positions, add_attention, add_cross_attention
from .block_records import (
    Alternating,
    Attention,
    Block,
    ChannelMix,
    CompressedAttention,
    Experts,
    FeedForward,
    HyperConnection,
    LatentAttention,
    Mixer,
    NormKind,
    PerLayerInput,
    SharedTransformer,
    SideExperts,
)
from .compressed_attention import add_compressed_attention
from .feed_forward import add_channel_mix, add_experts, add_feed_forward, add_projection
from .hyper_connection import add_collapse, add_expansion
from .latent_attention import add_latent_attention
from .mixer_records import (
    DeltaNet,
    GatedMemory,
    KimiDelta,
    LightningAttention,
    LinearRecurrence,
    Mamba,
    Mamba2,
    MatrixMemory,
    Projection,
    ShortConvolution,
    TimeMix,
)
from .norms import add_norm
from .recurrence import add_linear_recurrence, add_time_mix
from .state_space import (
    add_delta_net,
    add_gated_memory,
    add_kimi_delta,
    add_lightning_attention,
    add_mamba,
    add_mamba2,
    add_matrix_memory,
    add_short_convolution,
)  # fmt: skip

_ATTENTION: dict[type, Callable[..., Blob]] = {
    Attention: add_attention, LatentAttention: add_latent_attention, CompressedAttention: add_compressed_attention,
}  # fmt: skip
"""Mixers that read positions, masks and caches which all blocks share."""

_RECURRENT: dict[type, Callable[..., Blob]] = {
    Mamba: add_mamba, Mamba2: add_mamba2, DeltaNet: add_delta_net, KimiDelta: add_kimi_delta,
    LinearRecurrence: add_linear_recurrence, MatrixMemory: add_matrix_memory, TimeMix: add_time_mix,
    ShortConvolution: add_short_convolution, LightningAttention: add_lightning_attention, GatedMemory: add_gated_memory,
    Projection: add_projection,
}  # fmt: skip
"""Mixers with a state of their own, or with none."""

_PARTS: dict[type, Callable[..., Blob]] = {
    FeedForward: add_feed_forward, ChannelMix: add_channel_mix, Experts: add_experts, Projection: add_projection,
}  # fmt: skip


def add_block(
    tape: Tape,
    name: str,
    number: int,  # in the list of blocks
    block: Block,
    x: Blob,  # input, ``(1, tokens, hidden_size)``; with several residual streams ``(1, tokens, streams, hidden_size)``
    positions: Positions,  # tensors that all blocks share
) -> Blob:
    """Add one block."""
    with tape.block(name, number):
        return _add_block(tape, name, block, x, positions)


def _add_block(tape: Tape, name: str, block: Block, x: Blob, positions: Positions) -> Blob:
    if block.alternating is not None:
        return _add_alternating_block(tape, name, block, block.alternating, x, positions)
    if block.hyper_connection is not None:
        x = _add_hyper_block(tape, name, block, block.hyper_connection, x, positions)
    elif block.is_parallel:
        x = _add_parallel_block(tape, name, block, x, positions)
    else:
        x = _add_usual_block(tape, name, block, x, positions)
    if block.per_layer_input is not None and positions.per_layer is not None:
        x = _add_per_layer_input(tape, name, block, block.per_layer_input, x, positions.per_layer)
    if block.has_output_scale:
        x = tape.op(f"{name}.mul", "mul", x, Blob((1,), CONSTANT))
    return x


def _add_usual_block(tape: Tape, name: str, block: Block, x: Blob, positions: Positions) -> Blob:
    """Add the parts of a block one after another."""
    norms, sums = block.norms, block.sums
    if block.mixers:
        residual = x
        if block.shared is not None:
            x = add_shared_transformer(tape, name, block.shared, block.norm, x, positions)
            name = f"{name}.{block.shared.rest}"
        output = _add_mixers(tape, name, block, _add_named_norm(tape, name, norms.before_mixer, block, x), positions)
        x = tape.op(f"{name}.{sums.mixer}", "add", residual, output)
        x = _add_named_norm(tape, name, norms.after_mixer_sum, block, x)
    if block.cross_attention is not None:
        normal = _add_named_norm(tape, name, norms.before_cross_attention, block, x)
        module = f"{name}.{block.cross_attention.module}"
        with tape.role("attention", module):
            output = add_cross_attention(tape, module, block.cross_attention, normal, positions)
        output = _finish_part(tape, name, block, output, "", sums.cross_attention_dropout)
        x = tape.op(f"{name}.{sums.cross_attention}", "add", x, output)
        x = _add_named_norm(tape, name, norms.after_cross_attention_sum, block, x)
    return x if block.feed_forward is None else _add_residual_part(tape, name, block, x)


def _add_parallel_block(tape: Tape, name: str, block: Block, x: Blob, positions: Positions) -> Blob:
    """Add a block in which mixer and feed-forward part read the same input; without a second norm they share one."""
    norms = block.norms
    normal = _add_named_norm(tape, name, norms.before_mixer, block, x)
    output = _add_mixers(tape, name, block, normal, positions)
    if norms.before_feed_forward:
        normal = _add_named_norm(tape, name, norms.before_feed_forward, block, x)
    fed = _add_part(tape, name, block, normal)
    fed = _finish_part(tape, name, block, fed, norms.after_feed_forward, block.sums.feed_forward_dropout)
    sum_of_parts = tape.op(f"{name}.add", "add", output, fed)
    return tape.op(f"{name}.add", "add", x, sum_of_parts)


def _add_hyper_block(
    tape: Tape, name: str, block: Block, connection: HyperConnection, x: Blob, positions: Positions
) -> Blob:
    """Add a block with hyper-connections: each part reads a sum of the streams, and its output goes into all."""
    module = f"{name}.{connection.before_mixer}"
    collapsed, after, matrix = add_collapse(tape, module, connection, x)
    normal = _add_named_norm(tape, name, block.norms.before_mixer, block, collapsed)
    output = _add_mixer(tape, name, block.mixers[0], normal, positions)
    x = add_expansion(tape, module, output, after, matrix, x)
    module = f"{name}.{connection.before_feed_forward}"
    collapsed, after, matrix = add_collapse(tape, module, connection, x)
    normal = _add_named_norm(tape, name, block.norms.before_feed_forward, block, collapsed)
    output = _add_part(tape, name, block, normal)
    return add_expansion(tape, module, output, after, matrix, x)


def _add_alternating_block(
    tape: Tape, name: str, block: Block, alternating: Alternating, x: Blob, positions: Positions
) -> Blob:
    """Add a block of Gemma 3n: predict all streams, compute one, correct the others, and add the embedding."""
    module = f"{name}.{alternating.module}"
    predicted, active = add_prediction(tape, module, alternating, x)
    normal = _add_named_norm(tape, name, block.norms.before_mixer, block, active)
    residual = add_laurel(tape, f"{name}.{alternating.laurel}", alternating, normal)
    output = _add_mixers(tape, name, block, normal, positions)
    output = tape.op(f"{name}.add", "add", active, output)
    output = tape.op(f"{name}.add", "add", output, residual)
    output = tape.op(f"{name}.div", "div", output)
    output = _add_residual_part(tape, name, block, output)
    corrected = add_correction(tape, module, alternating, predicted, output, active)
    part = block.per_layer_input
    if part is None or positions.per_layer is None:
        return corrected
    return add_gated_embedding(tape, name, part, corrected, positions.per_layer, alternating.module)


def _add_named_norm(tape: Tape, name: str, norm: str, block: Block, x: Blob) -> Blob:
    """Add a norm of a block, if the block has one of this name."""
    return add_norm(tape, f"{name}.{norm}", block.norm, x) if norm else x


def _add_mixers(tape: Tape, name: str, block: Block, x: Blob, positions: Positions) -> Blob:
    """Add the mixers of a block, and the sum of their outputs."""
    mixed = [_add_mixer(tape, name, mixer, x, positions) for mixer in block.mixers]
    output = mixed[0]
    for other in mixed[1:]:
        output = tape.op(f"{name}.add", "add", output, other)
    return _finish_part(tape, name, block, output, block.norms.after_mixer, block.sums.mixer_dropout)


def _add_mixer(tape: Tape, block_name: str, mixer: Mixer, x: Blob, positions: Positions) -> Blob:
    name = f"{block_name}.{mixer.module}"
    if type(mixer) in _ATTENTION:
        with tape.role("attention", name):
            return _ATTENTION[type(mixer)](tape, name, mixer, x, positions)
    with tape.role("recurrence", name):
        return _RECURRENT[type(mixer)](tape, name, mixer, x)


def _add_residual_part(tape: Tape, name: str, block: Block, x: Blob) -> Blob:
    """Add the feed-forward part of a block, with its norms, to its input."""
    norms, sums = block.norms, block.sums
    normal = _add_named_norm(tape, name, norms.before_feed_forward, block, x)
    fed = _add_part(tape, name, block, normal)
    if block.side_experts is not None:
        fed = _add_side_experts(tape, name, block, block.side_experts, x, normal, fed)
    fed = _finish_part(tape, name, block, fed, norms.after_feed_forward, sums.feed_forward_dropout)
    x = tape.op(f"{name}.{sums.feed_forward}", "add", x, fed)
    return _add_named_norm(tape, name, norms.after_feed_forward_sum, block, x)


def _add_part(tape: Tape, block_name: str, block: Block, x: Blob) -> Blob:
    """Add a feed-forward part."""
    part = block.feed_forward
    assert part is not None
    name = f"{block_name}.{part.module}" if part.module else block_name
    with tape.role("mixture" if isinstance(part, Experts) else "feed-forward", name):
        return _PARTS[type(part)](tape, name, part, x)


def _finish_part(tape: Tape, name: str, block: Block, output: Blob, norm: str, dropout: str) -> Blob:
    """Add the layers between a part of a block and its residual addition."""
    output = _add_named_norm(tape, name, norm, block, output)
    if block.dropout is not None:
        output = tape.dropout(f"{name}.{dropout}", output, block.dropout, block.dropout_origin)
    if block.has_residual_scale:
        output = tape.op(f"{name}.mul", "mul", output)
    return output


def _add_side_experts(tape: Tape, name: str, block: Block, side: SideExperts, x: Blob, normal: Blob, fed: Blob) -> Blob:
    """Add the experts beside the feed-forward part, which makes `fed` of `normal`; return the sum of both."""
    fed = _add_named_norm(tape, name, side.other_norm_after, block, fed)
    read = _add_named_norm(tape, name, side.norm_before, block, x) if side.norm_before else normal
    routed_by = x if side.norm_before else None
    module = f"{name}.{side.experts.module}" if side.experts.module else name
    with tape.role("mixture", module):
        routed = add_experts(tape, module, side.experts, read, routed_by)
    routed = _add_named_norm(tape, name, side.norm_after, block, routed)
    return tape.op(f"{name}.add", "add", fed, routed)


def _add_per_layer_input(tape: Tape, name: str, block: Block, part: PerLayerInput, x: Blob, per_layer: Blob) -> Blob:
    """Add the gate that puts the embedding of a block into the residual stream."""
    block_embedding = tape.view(name, per_layer, (1, x.shape[1], part.size), "getitem", "slice")
    gate = tape.linear(f"{name}.per_layer_input_gate", x, part.size, bias=False)
    gate = tape.activation(f"{name}.act_fn", gate, part.activation)
    gated = tape.op(f"{name}.mul", "mul", gate, block_embedding)
    output = tape.linear(f"{name}.per_layer_projection", gated, x.shape[-1], bias=False)
    output = add_norm(tape, f"{name}.post_per_layer_input_norm", block.norm, output)
    return tape.op(f"{name}.add", "add", x, output)


_ADAPTERS = "_adapter_list."
"""Part of the names of adapters, which no two blocks share."""


def add_shared_transformer(
    tape: Tape,
    name: str,  # name of the block
    shared: SharedTransformer,
    norm: NormKind,
    x: Blob,  # input of the block, ``(1, tokens, hidden_size)``
    positions: Positions,
) -> Blob:
    """Add a shared transformer to the input of a block's mixer, and return that input, of the same shape."""
    module = f"{name}.{shared.module}"
    first = len(tape.layers)
    assert positions.embedding is not None
    shape = (*x.shape[:-1], 2 * x.shape[-1])
    joint_input = tape.op(f"{module}.concat", "concat", x, positions.embedding, out=shape, origin="function")
    joint_input = add_norm(tape, f"{module}.{shared.norms.before_mixer}", norm, joint_input)
    name_of_attention = f"{module}.{shared.attention.module}"
    with tape.role("attention", name_of_attention):
        output = add_attention(tape, name_of_attention, shared.attention, joint_input, positions)
    output = add_norm(tape, f"{module}.{shared.norms.before_feed_forward}", norm, output)
    name_of_part = f"{module}.{shared.feed_forward.module}"
    with tape.role("feed-forward", name_of_part):
        output = add_feed_forward(tape, name_of_part, shared.feed_forward, output)
    if shared.is_repeated:
        _share_parameters(tape, first)
    output = tape.linear(f"{name}.{shared.projection}", output, x.shape[-1], bias=False)
    return tape.op(f"{name}.add", "add", x, output)


def _share_parameters(tape: Tape, first: int) -> None:
    """Count the parameters of the layers from an index on with the block that had them first."""
    for index in range(first, len(tape.layers)):
        layer = tape.layers[index]
        if layer.parameters and _ADAPTERS not in layer.name:
            tape.layers[index] = layer._replace(parameters=0)


class _BuiltBlock(NamedTuple):
    """The layers of a block, from which those of an equal block follow."""

    block: Block
    positions: Positions
    name: str
    first: int  # index of its first layer
    entered: Blob  # the input of the block
    left: Blob  # its output
    layers: tuple[Layer, ...]
    stored: dict[int | None, tuple[Blob, Blob]]  # the keys and values that it stored for later blocks


def add_blocks(
    tape: Tape,
    stack: str,  # name of the list of blocks
    blocks: Iterable[tuple[Block, Positions]],  # and the tensors that each shares with others
    x: Blob,  # input of the first block: see `add_block`
) -> Blob:
    """Add blocks one after another, and return the output of the last."""
    start = len(tape.layers)
    template: _BuiltBlock | None = None
    for number, (block, positions) in enumerate(blocks):
        name = f"{stack}.{number}"
        if template is not None and (template.block, template.positions) == (block, positions):
            x = _copy_block(tape, template, name, number, x)
            continue
        first, entered = len(tape.layers), x
        x = add_block(tape, name, number, block, entered, positions)
        stored = {window: states for window, states in positions.stored.items() if states[0].parent >= first}
        built = _BuiltBlock(block, positions, name, first, entered, x, tuple(tape.layers[first:]), stored)
        template = built if _can_be_copied(built, start) else None
    return x


def _can_be_copied(built: _BuiltBlock, start: int) -> bool:
    """Return whether a block reads only its own layers, its input, and layers before the stack.

    In the first block of a stack the input cannot be told from what all blocks read.
    """
    entered = built.entered.parent
    return entered >= start and all(
        layer.name.startswith(f"{built.name}.")
        and all(parent >= built.first or parent == entered or parent < start for parent in layer.parents)
        for layer in built.layers
    )


def _copy_block(tape: Tape, template: _BuiltBlock, name: str, number: int, x: Blob) -> Blob:
    """Add the layers of a template under another name, which read another input, and return the output."""
    shift = len(tape.layers) - template.first
    old_end = len(template.name)
    places: dict[Place, Place] = {}  # from those of the template to those of the copy, which layers of a module share

    def rename(old: str) -> str:
        return name + old[old_end:] if old.startswith(template.name) else old

    def move(parent: int) -> int:
        if parent >= template.first:
            return parent + shift
        return x.parent if parent == template.entered.parent else parent

    copies = []
    for layer in template.layers:
        old = layer.place
        place = places.get(old)
        if place is None:
            place = Place(old.role, rename(old.owner), name, number, rename(old.part), rename(old.module), old.matrix)
            places[old] = place
        copies.append(
            Layer(  # in a third of the time of `_replace`
                rename(layer.name),
                layer.kind,
                layer.inputs,
                layer.outputs,
                layer.weights,
                tuple([move(parent) for parent in layer.parents]),
                layer.parameters,
                layer.attributes,
                layer.origin,
                place,
            )
        )
    tape.extend(copies)
    for window, (key, value) in template.stored.items():
        moved = key._replace(parent=move(key.parent)), value._replace(parent=move(value.parent))
        template.positions.stored[window] = moved
    return template.left._replace(parent=move(template.left.parent))

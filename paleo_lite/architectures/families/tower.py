"""Vision towers of vision-language models: patches, blocks of attention to all patches, and mergers into tokens.

A tower reads one square image. Its patches pass through the blocks; then neighbouring patches become one token of the
text model, concatenated by a merger (Qwen2-VL, 2024) or averaged (Gemma 3).
"""

from __future__ import annotations

from math import prod
from typing import Literal

import msgspec

from ...counting import INPUT, Layer
from ..blocks.attention import Positions
from ..blocks.block import add_blocks
from ..blocks.block_records import Attention, Block, FeedForward, NormKind, Norms, Projections
from ..blocks.norms import add_norm
from ..builder import Blob
from ..network import SequenceLengths
from ..tape import Tape


class VisionTower(msgspec.Struct, frozen=True, kw_only=True):
    """A vision tower with its mergers."""

    side: int  # patches along a side of the image
    patch_values: int  # values of a patch: channels times pixels, times frames where a patch spans more than one
    hidden_size: int
    depth: int
    heads: int
    head_size: int
    inner_size: int
    text_size: int  # hidden size of the text model
    activation: str = "gelu_pytorch_tanh"
    is_gated: bool = False
    # Biases of the projections in the blocks, and of that of the patches.
    bias: bool = True
    patch_bias: bool = True
    has_packed_projection: bool = True  # whether one projection makes queries, keys and values
    norm: NormKind = "layer"
    has_sandwich_norms: bool = False  # whether the output of attention and feed-forward part is normalised, too (Gemma)
    # Whether queries and keys, and without a weight values, are normalised over each head (Gemma 4).
    has_head_norms: bool = False
    positions: int = 0  # rows of the table of learned positions; 0: there is none
    # Rows that are read for a patch: 4 where the table is interpolated linearly, 16 cubically.
    positions_per_patch: int = 4
    has_rotary: bool = True
    has_class_token: bool = False
    has_first_norm: bool = False
    has_final_norm: bool = False
    pooled: int = 1  # patches that are averaged to one; 1: none
    merged: int = 4  # patches that are concatenated to one token
    # What the merger normalises: nothing, the patches, or the concatenated patches.
    merger_norm: Literal["", "patches", "tokens"] = "patches"
    merger_norm_kind: NormKind = "layer"
    merger_norm_has_weight: bool = True
    window_side: int = 0  # patches along a side of the windows within which blocks attend; 0: to all patches
    full_blocks: tuple[int, ...] = ()  # the blocks that attend to all patches nevertheless (Qwen2.5-VL)
    merger_sizes: tuple[int, ...] = (0,)  # widths of the hidden layers of the merger; 0 stands for the width of a token
    merger_bias: bool = True
    merger_projects: bool = True  # whether the merger ends with a linear layer to the width of the text model
    # Inner size of a gated part behind these layers, which has that width, and whether it has biases; 0: there is none
    merger_inner_size: int = 0
    merger_inner_bias: bool = False
    # Further mergers after blocks in the middle, whose outputs the text model adds in its first blocks
    # (DeepStack in Qwen3-VL, Meng et al. 2024).
    deep_mergers: int = 0

    @property
    def patches(self) -> int:
        """Patches of an image."""
        return self.side**2

    @property
    def tokens(self) -> int:
        """Tokens of the text model that an image becomes."""
        return self.patches // self.pooled // self.merged


def tower_layers(
    tower: VisionTower,
    where: str,  # path of the config, for messages
    fused: bool,  # whether attention is one kernel
) -> tuple[tuple[Layer, ...], tuple[int, ...]]:
    """Return the layers of a vision tower for one image, and the shape of its input."""
    sequence = tower.patches + tower.has_class_token
    tape = Tape(where, SequenceLengths(sequence, sequence), fused)
    shape = (1, tower.patches, tower.patch_values)
    x = tape.linear("visual.patch_embed.proj", Blob(shape, INPUT), tower.hidden_size, tower.patch_bias)
    if tower.has_class_token:
        shape_with_token = (1, sequence, tower.hidden_size)
        token = ((tower.hidden_size,),)
        x = tape.op("visual.concat", "concat", x, out=shape_with_token, weights=token, origin="function")
    if tower.positions:
        x = _add_positions(tape, tower, x)
    if tower.has_first_norm:
        x = add_norm(tape, "visual.norm", tower.norm, x)
    tables = {}
    if tower.has_rotary:
        size = tower.head_size
        tables[size] = tape.rotary_tables("visual.rotary_pos_emb", tape.position_ids("visual"), size)
    positions = Positions(tables=tables)
    blocks = []
    for index in range(tower.depth):
        windows = 1
        if tower.window_side and index not in tower.full_blocks:
            windows = (-(-tower.side // tower.window_side)) ** 2
        blocks.append((_describe_block(tower, windows), positions))
    x = add_blocks(tape, "visual.blocks", blocks, x)
    if tower.has_final_norm:
        x = add_norm(tape, "visual.final_norm", tower.norm, x)
    x = tape.view("visual", x, (1, tower.patches, tower.hidden_size))
    if tower.pooled > 1:
        x = _add_pooling(tape, tower, x)
    for index in range(tower.deep_mergers):
        name = f"visual.deepstack_merger_list.{index}"
        with tape.block(name, index):
            _add_merger(tape, tower, name, x, "tokens")
    _add_merger(tape, tower, "visual.merger", x, tower.merger_norm)
    return tuple(tape.layers), shape


def resident_weights(parameters: int, part: str) -> Layer:
    """Return a layer that computes nothing and holds parameters in memory: the tower in a decode step."""
    return Layer(f"{part}.weights", "view", ((),), ((),), parents=(INPUT,), parameters=parameters, origin="method")


def _add_positions(tape: Tape, tower: VisionTower, x: Blob) -> Blob:
    """Add the learned positions, interpolated from the rows of a table to the grid of the image."""
    rows = Blob((x.shape[1], tower.positions_per_patch))
    read = tape.embedding("visual.pos_embed", rows, tower.positions, tower.hidden_size)
    if tower.positions_per_patch > 1:
        read = tape.op("visual.mul", "mul", read)
        read = tape.op("visual.sum", "reduce", read, out=x.shape, origin="method", function="sum")
    return tape.op("visual.add", "add", x, read, out=x.shape)


def _describe_block(tower: VisionTower, windows: int) -> Block:
    """Return a block: attention of all patches of a window to each other, and a feed-forward part."""
    attention = Attention(
        heads=tower.heads,
        kv_heads=tower.heads,
        head_size=tower.head_size,
        module="attn",
        projections=Projections(output="proj", packed="qkv" if tower.has_packed_projection else ""),
        packed_layout="unbind",
        bias=tower.bias,
        output_bias=tower.bias,
        query_key_norm="per_head" if tower.has_head_norms else "",
        has_value_norm=tower.has_head_norms,
        rotary_size=tower.head_size if tower.has_rotary else 0,
        is_causal=False,
        windows=windows,
    )
    feed_forward = FeedForward(
        inner_size=tower.inner_size,
        activation=tower.activation,
        is_gated=tower.is_gated,
        bias=tower.bias,
        gate="linear_fc1",
        up="up_proj" if tower.is_gated else "linear_fc1",
        down="linear_fc2",
    )
    norms = Norms("norm1", "", "norm2")
    if tower.has_sandwich_norms:
        norms = Norms("norm1", "post_norm1", "norm2", "post_norm2")
    return Block(mixers=(attention,), feed_forward=feed_forward, norm=tower.norm, norms=norms)


def _add_pooling(tape: Tape, tower: VisionTower, x: Blob) -> Blob:
    """Add the mean over squares of patches, which is scaled by a constant."""
    shape = (1, tower.patches // tower.pooled, tower.hidden_size)
    x = tape.op("visual.mean", "reduce", x, out=shape, function="mean")
    return tape.op("visual.mul", "mul", x)


def _add_merger(tape: Tape, tower: VisionTower, name: str, x: Blob, normalised: str) -> None:
    """Add a merger: neighbouring patches as one vector, and linear layers to the width of the text model."""
    width = tower.merged * tower.hidden_size
    shape = (1, prod(x.shape) // width, width)
    if normalised == "patches":
        x = add_norm(tape, f"{name}.norm", tower.merger_norm_kind, x, has_weight=tower.merger_norm_has_weight)
    if tower.merged > 1:
        x = tape.view(name, x, shape)
    if normalised == "tokens":
        x = add_norm(tape, f"{name}.norm", tower.merger_norm_kind, x)
    for index, size in enumerate(tower.merger_sizes):
        x = tape.linear(f"{name}.linear_fc{index + 1}", x, size or width, tower.merger_bias)
        x = tape.activation(f"{name}.act_fn", x, "gelu")
    if tower.merger_projects:
        x = tape.linear(f"{name}.linear_fc{len(tower.merger_sizes) + 1}", x, tower.text_size, tower.merger_bias)
    if tower.merger_inner_size:
        size, bias = tower.merger_inner_size, tower.merger_inner_bias
        gate = tape.activation(f"{name}.act", tape.linear(f"{name}.gate_proj", x, size, bias), "silu")
        inner = tape.op(f"{name}.mul", "mul", gate, tape.linear(f"{name}.up_proj", x, size, bias))
        tape.linear(f"{name}.down_proj", inner, tower.text_size, bias)

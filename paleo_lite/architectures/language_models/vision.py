"""Vision towers of vision-language models: patches, blocks of attention to all patches, and mergers into tokens.

A tower reads one square image. Its patches pass through the blocks; then neighbouring patches become one token of the
text model, concatenated by a merger (Qwen2-VL, 2024) or averaged (Gemma 3).
"""

from __future__ import annotations

from math import prod
from typing import Literal

import msgspec

from ...counting import INPUT, Layer
from ..builder import Blob
from ..network import Lengths
from ..tape import Tape
from .norms import add_norm
from .traits import NormKind


class VisionTower(msgspec.Struct, frozen=True, kw_only=True):
    """A vision tower with its mergers.

    Attributes
    ----------
    side : int
        Patches along a side of the image.
    patch_values : int
        Values of a patch: channels times pixels, times frames where a patch spans more than one.
    hidden_size, depth, heads, head_size, inner_size : int
    text_size : int
        Hidden size of the text model.
    activation : str
    is_gated : bool
    bias, patch_bias : bool
        Biases of the projections in the blocks, and of that of the patches.
    has_packed_projection : bool
        Whether one projection makes queries, keys and values.
    norm : NormKind
    has_sandwich_norms : bool
        Whether the output of attention and feed-forward part is normalised, too (Gemma).
    has_head_norms : bool
        Whether queries and keys, and without a weight values, are normalised over each head (Gemma 4).
    positions : int
        Rows of the table of learned positions; 0: there is none.
    positions_per_patch : int
        Rows that are read for a patch: 4 where the table is interpolated linearly, 16 cubically.
    has_rotary : bool
    has_class_token, has_first_norm, has_final_norm : bool
    pooled : int
        Patches that are averaged to one; 1: none.
    merged : int
        Patches that are concatenated to one token.
    merger_norm : {"", "patches", "tokens"}
        What the merger normalises: nothing, the patches, or the concatenated patches.
    merger_norm_kind : NormKind
    merger_norm_has_weight : bool
    window_side : int
        Patches along a side of the windows within which blocks attend; 0: to all patches.
    full_blocks : tuple of int
        The blocks that attend to all patches nevertheless (Qwen2.5-VL).
    merger_sizes : tuple of int
        Widths of the hidden layers of the merger; 0 stands for the width of a token.
    merger_bias : bool
    deep_mergers : int
        Further mergers after blocks in the middle, of which the text model adds the outputs in its first blocks
        (DeepStack in Qwen3-VL, Meng et al. 2024).
    """

    side: int
    patch_values: int
    hidden_size: int
    depth: int
    heads: int
    head_size: int
    inner_size: int
    text_size: int
    activation: str = "gelu_pytorch_tanh"
    is_gated: bool = False
    bias: bool = True
    patch_bias: bool = True
    has_packed_projection: bool = True
    norm: NormKind = "layer"
    has_sandwich_norms: bool = False
    has_head_norms: bool = False
    positions: int = 0
    positions_per_patch: int = 4
    has_rotary: bool = True
    has_class_token: bool = False
    has_first_norm: bool = False
    has_final_norm: bool = False
    pooled: int = 1
    merged: int = 4
    merger_norm: Literal["", "patches", "tokens"] = "patches"
    merger_norm_kind: NormKind = "layer"
    merger_norm_has_weight: bool = True
    window_side: int = 0
    full_blocks: tuple[int, ...] = ()
    merger_sizes: tuple[int, ...] = (0,)
    merger_bias: bool = True
    deep_mergers: int = 0

    @property
    def patches(self) -> int:
        """Patches of an image."""
        return self.side**2

    @property
    def tokens(self) -> int:
        """Tokens of the text model that an image becomes."""
        return self.patches // self.pooled // self.merged


def tower_layers(tower: VisionTower, where: str, fused: bool) -> tuple[tuple[Layer, ...], tuple[int, ...]]:
    """Return the layers of a vision tower for one image, and the shape of its input.

    Parameters
    ----------
    where : str
        Path of the config, for messages.
    fused : bool
        Whether attention is one kernel.
    """
    sequence = tower.patches + tower.has_class_token
    tape = Tape(where, Lengths(sequence, sequence), fused)
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
    tables = None
    if tower.has_rotary:
        tables = tape.rotary_tables("visual.rotary_pos_emb", tape.position_ids("visual"), tower.head_size)
    for index in range(tower.depth):
        windows = (
            1 if not tower.window_side or index in tower.full_blocks else (-(-tower.side // tower.window_side)) ** 2
        )
        x = _add_block(tape, tower, f"visual.blocks.{index}", x, tables, windows)
    if tower.has_final_norm:
        x = add_norm(tape, "visual.final_norm", tower.norm, x)
    x = tape.view("visual", x, (1, tower.patches, tower.hidden_size))
    if tower.pooled > 1:
        x = _add_pooling(tape, tower, x)
    for index in range(tower.deep_mergers):
        _add_merger(tape, tower, f"visual.deepstack_merger_list.{index}", x, "tokens")
    _add_merger(tape, tower, "visual.merger", x, tower.merger_norm)
    return tuple(tape.layers), shape


def resident_weights(parameters: int) -> Layer:
    """Return a layer that computes nothing and holds parameters in memory: the tower in a decode step."""
    return Layer("visual.weights", "view", ((),), ((),), parents=(INPUT,), parameters=parameters, origin="method")


def _add_positions(tape: Tape, tower: VisionTower, x: Blob) -> Blob:
    """Add the learned positions, interpolated from the rows of a table to the grid of the image."""
    rows = Blob((x.shape[1], tower.positions_per_patch))
    read = tape.embedding("visual.pos_embed", rows, tower.positions, tower.hidden_size)
    if tower.positions_per_patch > 1:
        read = tape.op("visual.mul", "mul", read)
        read = tape.op("visual.sum", "reduce", read, out=x.shape, origin="method", function="sum")
    return tape.op("visual.add", "add", x, read, out=x.shape)


def _add_block(
    tape: Tape, tower: VisionTower, name: str, x: Blob, tables: tuple[Blob, Blob] | None, windows: int
) -> Blob:
    """Add a block: attention of all patches of a window to each other, and a feed-forward part."""
    normal = add_norm(tape, f"{name}.norm1", tower.norm, x)
    output = _add_attention(tape, tower, f"{name}.attn", normal, tables, windows)
    if tower.has_sandwich_norms:
        output = add_norm(tape, f"{name}.post_norm1", tower.norm, output)
    x = tape.op(f"{name}.add", "add", x, output)
    output = _add_feed_forward(tape, tower, f"{name}.mlp", add_norm(tape, f"{name}.norm2", tower.norm, x))
    if tower.has_sandwich_norms:
        output = add_norm(tape, f"{name}.post_norm2", tower.norm, output)
    return tape.op(f"{name}.add", "add", x, output)


def _add_attention(
    tape: Tape, tower: VisionTower, name: str, x: Blob, tables: tuple[Blob, Blob] | None, windows: int
) -> Blob:
    width = tower.heads * tower.head_size
    if tower.has_packed_projection:
        packed = tape.linear(f"{name}.qkv", x, 3 * width, tower.bias)
        states = tape.split_tensor(f"{name}.unbind", packed, "unbind", ((*x.shape[:-1], width),) * 3)
    else:
        states = [tape.linear(f"{name}.{part}_proj", x, width, tower.bias) for part in "qkv"]
    query, key, value = (tape.split_heads(name, state, tower.heads) for state in states)
    if tower.has_head_norms:
        query, key = add_norm(tape, f"{name}.q_norm", "rms", query), add_norm(tape, f"{name}.k_norm", "rms", key)
        value = add_norm(tape, f"{name}.v_norm", "rms", value, has_weight=False)
    if tables is not None:
        query, key = tape.apply_rotary_embedding(name, [query, key], tables)
    if windows > 1:  # the last windows of an image may be smaller
        shape = (1, tower.heads * windows, -(-x.shape[1] // windows), tower.head_size)
        query, key, value = (tape.view(name, blob, shape, "split") for blob in (query, key, value))
    output = tape.attention(name, query, key, value, causal=False, writes_cache=False)
    output = tape.view(name, output, (*x.shape[:-1], width))
    return tape.linear(f"{name}.proj", output, tower.hidden_size, tower.bias)


def _add_feed_forward(tape: Tape, tower: VisionTower, name: str, x: Blob) -> Blob:
    inner = tape.linear(f"{name}.linear_fc1", x, tower.inner_size, tower.bias)
    inner = tape.activation(f"{name}.act_fn", inner, tower.activation)
    if tower.is_gated:
        up = tape.linear(f"{name}.up_proj", x, tower.inner_size, tower.bias)
        inner = tape.op(f"{name}.mul", "mul", inner, up)
    return tape.linear(f"{name}.linear_fc2", inner, tower.hidden_size, tower.bias)


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
    tape.linear(f"{name}.linear_fc{len(tower.merger_sizes) + 1}", x, tower.text_size, tower.merger_bias)

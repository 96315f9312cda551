"""The layers of an encoder, an encoder-decoder or a pair of encoders, from the record that describes it."""

from __future__ import annotations

from ...counting import CONSTANT
from ..builder import Blob
from ..language_models.norms import add_norm
from ..network import Lengths
from ..tape import Tape
from .attention import (
    SelfAttentionInputs,
    add_bias,
    add_cross_attention,
    add_cross_bias,
    add_self_attention,
    mask_bias,
)
from .disentangled import SharedPositions, add_disentangled_attention, add_shared_positions
from .embeddings import add_embedding
from .heads import add_head
from .traits import AudioEmbedding, Blocks, EncoderModel, EncoderPair


def add_encoder_model(tape: Tape, model: EncoderModel, root: str = "", head_root: str = "") -> Blob:
    """Add the layers of an encoder or an encoder-decoder; return its output.

    In the prefill phase the encoder reads the whole input, and the decoder its first token. In the decode phase the
    decoder reads one token; the encoder's output is in the cache.

    Parameters
    ----------
    model : EncoderModel
    root, head_root : str
        Names of the modules around the model and around its head, with a dot, or empty.
    """
    lengths = tape.lengths
    hidden_size = model.blocks.hidden_size
    is_decode = lengths.uses_cache and lengths.queries == 1 < lengths.keys
    is_audio = isinstance(model.embedding, AudioEmbedding)
    if model.decoder_blocks is not None and is_decode:
        encoder_tokens = model.embedding.positions if isinstance(model.embedding, AudioEmbedding) else lengths.keys - 1
        encoded = Blob((1, encoder_tokens, hidden_size), CONSTANT)
    else:
        x = add_embedding(tape, root, model.embedding, lengths.queries)
        encoded = _add_blocks(tape, root, model.blocks, x)
    if model.decoder_blocks is None:
        return add_head(tape, head_root, model.head, encoded)
    assert model.decoder_embedding is not None
    if lengths.uses_cache and not is_decode and not is_audio:
        tape.lengths = Lengths(1, 1, uses_cache=True)
    is_shared = model.has_shared_embedding and not is_decode
    x = add_embedding(tape, root, model.decoder_embedding, tape.lengths.queries, is_shared)
    x = _add_blocks(tape, root, model.decoder_blocks, x, encoded)
    return add_head(tape, head_root, model.head, x)


def add_encoder_pair(tape: Tape, pair: EncoderPair) -> None:
    """Add an image encoder, a text encoder, and the cosine similarity of their outputs."""
    image = add_encoder_model(tape, pair.image, "vision_model.", "vision_model.")
    if pair.projection_size:
        image = tape.linear("visual_projection", image, pair.projection_size, bias=False)
    text = add_encoder_model(tape, pair.text, "text_model.", "text_model.")
    if pair.projection_size:
        text = tape.linear("text_projection", text, pair.projection_size, bias=False)
    directions = []
    for blob in (image, text):
        norm = _add_vector_norm(tape, blob, is_written_out=not pair.has_bias)
        directions.append(tape.op("div", "div", blob, norm))
    size = text.shape[-1]
    column = tape.view("", directions[0], (size, 1), "t")
    similarity = tape.op("matmul", "matmul", directions[1], column, out=(1, 1), origin="function", inner=size)
    scale_shape = (1,) if pair.has_bias else ()
    scale = tape.op("logit_scale", "exp", out=scale_shape, weights=(scale_shape,), origin="method")
    similarity = tape.op("mul", "mul", similarity, scale)
    if pair.has_bias:
        similarity = tape.op("logit_bias", "add", similarity, weights=((1,),))
    tape.view("", similarity, (1, 1), "t")


def _add_vector_norm(tape: Tape, blob: Blob, is_written_out: bool) -> Blob:
    """Add the Euclidean norm of a vector."""
    if not is_written_out:
        return tape.op("norm", "reduce", blob, out=(1, 1), origin="function", per_element=2, function="norm")
    squares = tape.op("pow", "pow", blob, origin="function")
    total = tape.op("sum", "reduce", squares, out=(1, 1), origin="function", function="sum")
    return tape.op("pow", "pow", total, origin="function")


def _add_blocks(tape: Tape, root: str, blocks: Blocks, x: Blob, memory: Blob | None = None) -> Blob:
    """Add a stack of blocks; with `memory`, the output of an encoder, every block also attends to it."""
    shared, positions = _add_shared_inputs(tape, root, blocks, x)
    keys = tape.lengths.keys if blocks.is_causal else x.shape[1]
    bias = None
    cross_bias = None
    names = blocks.names
    for index in range(blocks.count):
        name = f"{root}{blocks.name}.{index}"
        normal = x
        if blocks.is_pre_norm and (blocks.has_first_norm or index > 0):
            normal = add_norm(tape, f"{name}.{names.attention_norm}", blocks.norm, x)
        module = f"{name}.{names.attention}"
        if index == 0:
            bias = add_bias(tape, module, blocks, x.shape[1], keys)
        own = shared[index]
        if bias is not None:
            own = own._replace(mask=mask_bias(tape, module, blocks, bias, own.mask))
        if positions is not None:
            mixed = add_disentangled_attention(tape, module, blocks, normal, positions)
        else:
            mixed = add_self_attention(tape, module, blocks, normal, own)
        mixed = tape.linear(f"{name}.{names.output}", mixed, blocks.hidden_size, blocks.has_bias)
        dropout = blocks.attention_output_dropout
        x = _add_residual(
            tape, blocks, x, mixed, dropout, f"{name}.{names.attention_dropout}", f"{name}.{names.attention_sum}",
            f"{name}.{names.attention_norm}",
        )  # fmt: skip
        if memory is not None:
            if index == 0:
                cross_module = f"{name}.{names.cross_attention}"
                cross_bias = add_cross_bias(tape, cross_module, blocks, x.shape[1], memory.shape[1])
            x = _add_cross_part(tape, name, blocks, x, memory, cross_bias)
        x = _add_feed_forward_part(tape, name, blocks, x)
    if blocks.final_norm:
        x = add_norm(tape, f"{root}{blocks.final_norm}", blocks.norm, x)
    if blocks.final_dropout:
        x = tape.dropout(f"{root}{blocks.final_dropout}", x, blocks.dropout or 0.0)
    return x


def _add_shared_inputs(
    tape: Tape, root: str, blocks: Blocks, x: Blob
) -> tuple[list[SelfAttentionInputs], SharedPositions | None]:
    """Add tensors that all blocks read; return those of each block, and those of disentangled attention."""
    tokens = x.shape[1]
    if blocks.disentangled is not None:
        positions = add_shared_positions(tape, root, blocks.disentangled, tokens, blocks.hidden_size)
        return [SelfAttentionInputs()] * blocks.count, positions
    windows = blocks.windows or (None,) * blocks.count
    ids = None
    if blocks.rotary_size:
        ids = tape.op(f"{root}arange", "fill", out=(tokens,), origin="function", function="arange")
        ids = tape.view(root.rstrip("."), ids, (1, tokens), "unsqueeze")
    mask = None
    if blocks.is_causal:
        places = None
        if blocks.checks_packing and not tape.lengths.uses_cache:
            places = Blob((1, tokens), CONSTANT)
        mask = tape.attention_mask(f"{root}{blocks.mask_module}".rstrip("."), places)
        return [SelfAttentionInputs(mask)] * blocks.count, None
    if any(window is not None and window < tokens for window in windows):
        mask = _add_window_mask(tape, root, tokens)
    tables = {}
    if ids is not None:
        for is_windowed in dict.fromkeys(window is not None for window in windows):
            tables[is_windowed] = tape.rotary_tables(f"{root}rotary_emb", ids, blocks.rotary_size)
    shared = []
    for window in windows:
        is_masked = window is not None and window < tokens
        own_tables = tables.get(window is not None)
        shared.append(SelfAttentionInputs(mask if is_masked else None, own_tables))
    return shared, None


def _add_window_mask(tape: Tape, root: str, tokens: int) -> Blob:
    """Add the mask of tokens within a distance to either side, shared by all blocks."""
    module = root.rstrip(".")
    square = (1, 1, tokens, tokens)
    indices = [
        tape.op(f"{root}arange", "fill", out=(1,), origin="function", function="arange", scales=True),
        tape.op(f"{root}arange", "fill", out=(1,), origin="function", function="arange"),
    ]
    for _ in range(2):
        index = tape.op(f"{root}arange", "fill", out=(tokens,), origin="function", function="arange")
        indices.append(tape.op(f"{root}add", "add", index))
    shapes = ((1, 1, 1, 1), (1, 1, 1, 1), (1, 1, tokens, 1), (1, 1, 1, tokens))
    views = [tape.view(module, index, shape, "getitem", "slice") for index, shape in zip(indices, shapes)]
    rows, columns = views[2], views[3]
    ones = tape.op(f"{root}new_ones", "fill", rows, out=(), origin="method", function="new_ones")
    distances = tape.op(f"{root}sub", "sub", rows, columns, out=square)
    distances = tape.op(f"{root}abs", "abs", distances, origin="method")
    near = tape.op(f"{root}le", "compare", distances, origin="method", no_gradient=True, function="le")
    near = tape.op(f"{root}logical_and", "logical", ones, near, out=square, no_gradient=True, function="logical_and")
    valid = tape.op(f"{root}ge", "compare", rows, origin="method", no_gradient=True, function="ge")
    near = tape.op(f"{root}logical_and", "logical", near, valid, no_gradient=True, function="logical_and")
    mask = tape.view(module, near, square, "expand", scales=True)
    if tape.fused:
        return mask
    zero = tape.op(f"{root}zeros", "fill", out=(), origin="function", function="zeros")
    return tape.op(f"{root}where", "where", mask, zero, origin="function")


def _add_residual(
    tape: Tape, blocks: Blocks, x: Blob, part: Blob, dropout: float | None, dropout_name: str, sum_name: str,
    norm_name: str,
) -> Blob:  # fmt: skip
    """Add the dropout of a part, its addition to the input, and a norm if norms come last."""
    if dropout is not None:
        part = tape.dropout(dropout_name, part, dropout, blocks.dropout_origin)
    x = tape.op(sum_name, "add", part, x)
    if blocks.is_pre_norm:
        return x
    return add_norm(tape, norm_name, blocks.norm, x)


def _add_cross_part(tape: Tape, name: str, blocks: Blocks, x: Blob, memory: Blob, bias: Blob | None) -> Blob:
    """Add attention to an encoder, with its norm and residual addition."""
    names = blocks.names
    norm = f"{name}.{names.cross_norm}"
    normal = add_norm(tape, norm, blocks.norm, x) if blocks.is_pre_norm else x
    mixed = add_cross_attention(tape, f"{name}.{names.cross_attention}", blocks, normal, memory, bias)
    mixed = tape.linear(f"{name}.{names.cross_output}", mixed, blocks.hidden_size, blocks.has_bias)
    dropout = blocks.attention_output_dropout
    return _add_residual(
        tape, blocks, x, mixed, dropout, f"{name}.{names.cross_dropout}", f"{name}.{names.cross_sum}", norm
    )


def _add_feed_forward_part(tape: Tape, name: str, blocks: Blocks, x: Blob) -> Blob:
    """Add the feed-forward layer, with its norm and residual addition."""
    names = blocks.names
    norm = f"{name}.{names.norm}"
    normal = add_norm(tape, norm, blocks.norm, x) if blocks.is_pre_norm else x
    fed = _add_feed_forward(tape, name, blocks, normal)
    return _add_residual(tape, blocks, x, fed, blocks.dropout, f"{name}.{names.dropout}", f"{name}.{names.sum}", norm)


def _add_feed_forward(tape: Tape, name: str, blocks: Blocks, x: Blob) -> Blob:
    names = blocks.names
    size, has_bias = blocks.intermediate_size, blocks.has_feed_forward_bias
    module = f"{name}.{names.feed_forward}"
    activation = f"{name}.{names.activation}"
    if blocks.gating == "packed":
        packed = tape.linear(f"{name}.{names.up}", x, 2 * size, has_bias)
        shape = (1, x.shape[1], size)
        inner, gate = tape.split_tensor(f"{module}.chunk", packed, "chunk", (shape, shape), "method")
        inner = tape.activation(activation, inner, blocks.activation)
        inner = tape.op(f"{module}.mul", "mul", inner, gate)
    elif blocks.gating == "separate":
        inner = tape.linear(f"{name}.{names.gate}", x, size, has_bias)
        inner = tape.activation(activation, inner, blocks.activation)
        up = tape.linear(f"{name}.{names.up}", x, size, has_bias)
        inner = tape.op(f"{module}.mul", "mul", inner, up)
    else:
        inner = tape.linear(f"{name}.{names.up}", x, size, has_bias)
        inner = tape.activation(activation, inner, blocks.activation)
    if blocks.inner_dropout is not None:
        inner = tape.dropout(f"{name}.{names.inner_dropout}", inner, blocks.inner_dropout, blocks.dropout_origin)
    return tape.linear(f"{name}.{names.down}", inner, blocks.hidden_size, has_bias)

"""The layers of an encoder, an encoder-decoder or a pair of encoders, from the record that describes it."""

from __future__ import annotations

import msgspec

from ...counting import CONSTANT
from ..blocks.attention import Positions
from ..blocks.block import add_blocks
from ..blocks.block_records import Attention, Block
from ..blocks.disentangled import add_relative_positions
from ..blocks.norms import add_norm
from ..builder import Blob
from ..network import SequenceLengths
from ..tape import Tape
from .embeddings import add_embedding
from .encoder_records import AudioEmbedding, EncoderModel, EncoderPair, Stack
from .heads import add_head


def add_encoder_model(
    tape: Tape,
    model: EncoderModel,
    # Names of the modules around the model and around its head, with a dot, or empty.
    root: str,
    head_root: str = "",
) -> Blob:
    """Add the layers of an encoder or an encoder-decoder; return its output.

    In the prefill phase the encoder reads the whole input, and the decoder its first token. In the decode phase the
    decoder reads one token; the encoder's output is in the cache.
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
        tape.lengths = SequenceLengths(1, 1, uses_cache=True)
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


def _add_blocks(tape: Tape, root: str, stack: Stack, x: Blob, memory: Blob | None = None) -> Blob:
    """Add a stack of blocks; with `memory`, the output of an encoder, every block also attends to it."""
    norm, dropout = stack.blocks[0].norm, stack.blocks[0].dropout
    shared = _add_shared_inputs(tape, root, stack, x)
    positions = {
        has_window: msgspec.structs.replace(of_blocks, memory=memory) for has_window, of_blocks in shared.items()
    }
    blocks = [(block, positions[_attention(block).window is not None]) for block in stack.blocks]
    x = add_blocks(tape, f"{root}{stack.name}", blocks, x)
    if stack.final_norm:
        x = add_norm(tape, f"{root}{stack.final_norm}", norm, x)
    if stack.final_dropout:
        x = tape.dropout(f"{root}{stack.final_dropout}", x, dropout or 0.0)
    return x


def _attention(block: Block) -> Attention:
    mixer = block.mixers[0]
    assert isinstance(mixer, Attention)
    return mixer


def _add_shared_inputs(tape: Tape, root: str, stack: Stack, x: Blob) -> dict[bool, Positions]:
    """Add tensors that all blocks read; return those of blocks without and with a window."""
    tokens = x.shape[1]
    attention = _attention(stack.blocks[0])
    if attention.disentangled is not None:
        relative = add_relative_positions(tape, root, attention.disentangled, tokens, stack.hidden_size)
        return {False: Positions(relative=relative)}
    windows = [_attention(block).window for block in stack.blocks]
    ids = None
    if attention.rotary_size:
        ids = tape.op(f"{root}arange", "fill", out=(tokens,), origin="function", function="arange")
        kind = ("getitem", "slice") if stack.has_indexed_positions else ("unsqueeze", "view")
        ids = tape.view(root.rstrip("."), ids, (1, tokens), *kind)
    masks: dict[int | None, Blob | None] = {}
    if attention.is_causal:
        places = Blob((1, tokens), CONSTANT) if stack.checks_packing and not tape.lengths.uses_cache else None
        masks[None] = tape.attention_mask(f"{root}{stack.mask_module}".rstrip("."), places)
    short = [window for window in windows if window is not None and window < tokens]
    if short:
        masks[short[0]] = _add_window_mask(tape, root, tokens)
    shared = Positions(masks=masks)
    by_window = {}
    for is_windowed in dict.fromkeys(window is not None for window in windows):
        by_window[is_windowed] = shared
        if ids is not None:
            size = attention.rotary_size
            tables = {size: tape.rotary_tables(f"{root}rotary_emb", ids, size)}
            by_window[is_windowed] = msgspec.structs.replace(shared, tables=tables)
    return by_window


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

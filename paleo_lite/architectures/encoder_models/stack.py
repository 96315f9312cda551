"""The layers of an encoder or encoder-decoder, from the record that describes it."""

from __future__ import annotations

from ...counting import CONSTANT
from ..builder import Blob
from ..language_models.norms import add_norm
from ..network import Lengths
from ..tape import Tape
from .traits import AudioEmbedding, Blocks, EncoderModel, Head, ImageEmbedding, TextEmbedding


def add_encoder_model(tape: Tape, model: EncoderModel) -> None:
    """Add all layers; in the decode phase those of the decoder only, because the encoder's output is cached."""
    hidden_size = model.blocks.hidden_size
    is_decode = tape.lengths.uses_cache and tape.lengths.queries == 1
    if model.decoder_blocks is None or not is_decode:
        encoded = _add_embedding(tape, "encoder.embeddings", model.embedding, hidden_size)
        encoded = _add_blocks(tape, "encoder", model.blocks, encoded)
    else:
        is_audio = isinstance(model.embedding, AudioEmbedding)
        encoder_tokens = model.embedding.positions if is_audio else tape.lengths.keys - 1  # type: ignore[union-attr]
        encoded = Blob((1, encoder_tokens, hidden_size), CONSTANT)
    if model.decoder_blocks is None:
        _add_head(tape, model.head, encoded)
        return
    assert model.decoder_embedding is not None
    if tape.lengths.uses_cache and not is_decode:
        tape.lengths = Lengths(1, 1, uses_cache=True)  # the decoder begins with its first token
    tokens = 1 if tape.lengths.uses_cache else tape.lengths.queries
    is_shared = isinstance(model.embedding, TextEmbedding) and not is_decode
    x = _add_words(tape, "decoder.embeddings", model.decoder_embedding, hidden_size, tokens, is_shared)
    x = _add_blocks(tape, "decoder", model.decoder_blocks, x, encoded)
    _add_head(tape, model.head, x)


# Embeddings


def _add_embedding(
    tape: Tape, name: str, embedding: TextEmbedding | ImageEmbedding | AudioEmbedding, hidden_size: int
) -> Blob:
    if isinstance(embedding, ImageEmbedding):
        return _add_patches(tape, name, embedding, hidden_size)
    if isinstance(embedding, AudioEmbedding):
        return _add_frames(tape, name, embedding, hidden_size)
    return _add_words(tape, name, embedding, hidden_size, tape.lengths.queries, is_shared=False)


def _add_words(tape: Tape, name: str, embedding: TextEmbedding, hidden_size: int, tokens: int, is_shared: bool) -> Blob:
    """Add the embedding of tokens; a shared table was counted with an earlier layer."""
    size = embedding.size
    x = tape.embedding(
        f"{name}.word_embeddings",
        Blob((1, tokens)),
        embedding.vocabulary,
        size,
        new_parameters=0 if is_shared else None,
    )
    if embedding.is_scaled:
        x = tape.op(f"{name}.mul", "mul", x)
    if embedding.token_types:
        zeros = Blob((1, embedding.positions), CONSTANT)
        types = tape.op(f"{name}.gather", "gather", zeros, out=(1, tokens), origin="function")
        types = tape.embedding(f"{name}.token_type_embeddings", types, embedding.token_types, size)
        x = tape.op(f"{name}.add", "add", x, types)
    if embedding.position_kind != "none":
        places = _add_places(tape, name, embedding, tokens)
        positions = tape.embedding(f"{name}.position_embeddings", places, embedding.positions, size)
        x = tape.op(f"{name}.add", "add", x, positions)
    if embedding.has_norm:
        x = _add_norm(tape, f"{name}.LayerNorm", x, embedding.has_norm_bias)
    if embedding.dropout is not None:
        x = tape.dropout(f"{name}.dropout", x, embedding.dropout)
    if size != hidden_size:
        x = tape.linear("encoder.embeddings_project", x, hidden_size)
    return x


def _add_places(tape: Tape, name: str, embedding: TextEmbedding, tokens: int) -> Blob:
    """Add the index of each token's position."""
    if embedding.position_kind == "learned":
        return tape.view(name, Blob((1, embedding.positions), CONSTANT), (1, tokens), "getitem", "slice")
    mask = tape.op(f"{name}.ne", "compare", Blob((1, tokens)), no_gradient=True, function="ne")
    mask = tape.view(name, mask, mask.shape, "to_copy", "copy")
    places = tape.op(f"{name}.cumsum", "scan", mask, origin="function", function="cumsum")
    places = tape.view(name, places, places.shape, "type_as", "copy")
    places = tape.op(f"{name}.add", "add", places)
    places = tape.op(f"{name}.mul", "mul", places, mask)
    places = tape.view(name, places, places.shape, "to_copy", "copy")
    return tape.op(f"{name}.add", "add", places)


def _add_patches(tape: Tape, name: str, embedding: ImageEmbedding, hidden_size: int) -> Blob:
    patch = (embedding.patch_size, embedding.patch_size)
    image = Blob((1, embedding.channels, embedding.image_size, embedding.image_size))
    x = tape.convolution(f"{name}.patch_embedding", image, hidden_size, patch, patch, bias=embedding.has_bias)
    tokens = x.shape[2] * x.shape[3]
    x = tape.view(name, x, (1, hidden_size, tokens), "flatten")
    x = tape.view(name, x, (1, tokens, hidden_size), "transpose")
    if embedding.has_class_token:
        tokens += 1
        token = ((1, 1, hidden_size),)
        x = tape.op(
            f"{name}.class_embedding", "concat", x, out=(1, tokens, hidden_size), weights=token, origin="function"
        )
    if embedding.adds_position_parameter:
        x = tape.op(f"{name}.position_embeddings", "add", x, weights=((1, tokens, hidden_size),))
    else:
        places = Blob((1, tokens), CONSTANT)
        positions = tape.embedding(f"{name}.position_embedding", places, tokens, hidden_size)
        x = tape.op(f"{name}.add", "add", x, positions)
    if embedding.has_norm:
        x = tape.layer_norm(f"{name}.pre_layrnorm", x)
    if embedding.dropout is not None:
        x = tape.dropout(f"{name}.dropout", x, embedding.dropout)
    return x


def _add_frames(tape: Tape, name: str, embedding: AudioEmbedding, hidden_size: int) -> Blob:
    """Add two convolutions of width 3 over the frames of a spectrogram, the second of stride 2, and positions."""
    frames = 2 * embedding.positions
    x = Blob((1, embedding.bins, frames))
    for number, (stride, tokens) in enumerate(((1, frames), (2, embedding.positions)), 1):
        weights = ((hidden_size, x.shape[1], 3), (hidden_size,))
        x = tape.op(
            f"{name}.conv{number}",
            "conv1d",
            x,
            out=(1, hidden_size, tokens),
            weights=weights,
            origin="module:Conv1d",
            stride=[stride],
            padding=[1],
        )
        x = tape.op(f"{name}.gelu", "gelu", x, origin="function")
    x = tape.view(name, x, (1, embedding.positions, hidden_size), "permute")
    places = tape.op(f"{name}.arange", "fill", out=(embedding.positions,), origin="function", function="arange")
    positions = tape.embedding(f"{name}.embed_positions", places, embedding.positions, hidden_size, frozen=True)
    x = tape.op(f"{name}.add", "add", x, positions)
    return tape.dropout(f"{name}.dropout", x, 0.0)


# Blocks


def _add_blocks(tape: Tape, name: str, blocks: Blocks, x: Blob, memory: Blob | None = None) -> Blob:
    """Add a stack of blocks; with `memory`, the output of an encoder, every block also attends to it."""
    tables = None
    if blocks.rotary_size:
        for _ in sorted({window is None for window in blocks.windows}):  # one table for each kind of attention
            tables = tape.rotary_tables(f"{name}.rotary_emb", tape.position_ids(name), blocks.rotary_size)
    mask = None
    tokens = x.shape[1]
    if any(window is not None and window < tokens for window in blocks.windows):
        mask = _add_window_mask(tape, name, tokens)
    for index in range(blocks.count):
        window = blocks.windows[index] if blocks.windows else None
        is_windowed = window is not None and window < tokens
        block_mask = mask if is_windowed else None
        has_norm = blocks.has_first_norm or index > 0
        x = _add_block(tape, f"{name}.layers.{index}", blocks, x, memory, block_mask, tables, has_norm)
    if blocks.has_final_norm:
        x = _add_norm(tape, f"{name}.final_norm", x, blocks.has_norm_bias)
    return x


def _add_window_mask(tape: Tape, name: str, tokens: int) -> Blob:
    """Add the mask of tokens within a distance, shared by all blocks."""
    square = (1, 1, tokens, tokens)
    rows = tape.op(f"{name}.arange", "fill", out=(tokens,), origin="function", function="arange")
    columns = tape.op(f"{name}.arange", "fill", out=(tokens,), origin="function", function="arange")
    rows = tape.view(name, rows, (1, 1, tokens, 1), "getitem", "slice")
    columns = tape.view(name, columns, (1, 1, 1, tokens), "getitem", "slice")
    distance = tape.op(f"{name}.sub", "sub", rows, columns, out=square)
    distance = tape.op(f"{name}.abs", "abs", distance)
    near = tape.op(f"{name}.le", "compare", distance, no_gradient=True, function="le")
    return tape.op(f"{name}.logical_and", "logical", near, no_gradient=True, function="logical_and")


def _add_block(
    tape: Tape,
    name: str,
    blocks: Blocks,
    x: Blob,
    memory: Blob | None,
    mask: Blob | None,
    tables: tuple[Blob, Blob] | None,
    has_first_norm: bool,
) -> Blob:
    """Add attention, attention to an encoder if there is one, and the feed-forward layer."""
    has_bias = blocks.has_norm_bias
    normal = x
    if blocks.is_pre_norm and has_first_norm:
        normal = _add_norm(tape, f"{name}.attention_norm", x, has_bias)
    mixed = _add_attention(tape, f"{name}.attention", blocks, normal, normal, mask, tables, blocks.is_causal)
    x = _add_residual(tape, name, blocks, x, mixed, "attention_norm")
    if memory is not None:
        normal = _add_norm(tape, f"{name}.cross_norm", x, has_bias) if blocks.is_pre_norm else x
        mixed = _add_cross_attention(tape, f"{name}.cross_attention", blocks, normal, memory)
        x = _add_residual(tape, name, blocks, x, mixed, "cross_norm")
    normal = _add_norm(tape, f"{name}.mlp_norm", x, has_bias) if blocks.is_pre_norm else x
    fed = _add_feed_forward(tape, f"{name}.mlp", blocks, normal)
    return _add_residual(tape, name, blocks, x, fed, "mlp_norm")


def _add_residual(tape: Tape, name: str, blocks: Blocks, x: Blob, part: Blob, norm: str) -> Blob:
    if blocks.dropout is not None:
        part = tape.dropout(f"{name}.dropout", part, blocks.dropout)
    x = tape.op(f"{name}.add", "add", part, x)
    return x if blocks.is_pre_norm else _add_norm(tape, f"{name}.{norm}", x, blocks.has_norm_bias)


def _add_attention(
    tape: Tape,
    name: str,
    blocks: Blocks,
    x: Blob,
    source: Blob,
    mask: Blob | None,
    tables: tuple[Blob, Blob] | None,
    causal: bool,
) -> Blob:
    """Add attention of `x` to `source`, which are the same in self-attention."""
    hidden_size = x.shape[-1]
    if blocks.is_packed:
        states = _add_packed_projection(tape, name, blocks, x)
    else:
        query = tape.linear(f"{name}.q_proj", x, hidden_size, blocks.has_bias)
        if blocks.scales_queries:
            query = tape.op(f"{name}.mul", "mul", query)
        key = tape.linear(f"{name}.k_proj", source, hidden_size, blocks.has_bias and blocks.has_key_bias)
        value = tape.linear(f"{name}.v_proj", source, hidden_size, blocks.has_bias)
        states = [tape.split_heads(name, blob, blocks.heads) for blob in (query, key, value)]
        if blocks.scales_queries:
            states = [tape.view(name, blob, blob.shape, "contiguous", "copy") for blob in states]
    query, key, value = states
    if tables is not None:
        query, key = tape.apply_rotary_embedding(name, (query, key), tables)
    mixed = tape.attention(
        name,
        query,
        key,
        value,
        mask=mask,
        causal=causal,
        dropout=blocks.attention_dropout,
        writes_cache=causal,
    )
    return tape.linear(f"{name}.out_proj", mixed, hidden_size, blocks.has_bias)


def _add_packed_projection(tape: Tape, name: str, blocks: Blocks, x: Blob) -> list[Blob]:
    """Add one linear layer for queries, keys and values."""
    _, tokens, hidden_size = x.shape
    size = hidden_size // blocks.heads
    packed = tape.linear(f"{name}.Wqkv", x, 3 * hidden_size, blocks.has_bias)
    packed = tape.view(name, packed, (1, tokens, 3, blocks.heads, size))
    parts = tape.split_tensor(f"{name}.unbind", packed, "unbind", ((1, tokens, blocks.heads, size),) * 3, "method")
    return [tape.view(name, part, (1, blocks.heads, tokens, size), "transpose") for part in parts]


def _add_cross_attention(tape: Tape, name: str, blocks: Blocks, x: Blob, memory: Blob) -> Blob:
    """Add attention to the output of an encoder; in the decode phase its keys and values are read from the cache."""
    if memory.parent != CONSTANT:
        mixed = _add_attention(tape, name, blocks, x, memory, None, None, causal=False)
        if tape.lengths.uses_cache:
            _add_memory_cache(tape, name, blocks, memory)
        return mixed
    hidden_size = x.shape[-1]
    query = tape.linear(f"{name}.q_proj", x, hidden_size, blocks.has_bias)
    query = tape.split_heads(name, query, blocks.heads)
    key, value = _add_memory_cache(tape, name, blocks, memory)
    mixed = tape.attention(name, query, key, value, causal=False, writes_cache=False)
    return tape.linear(f"{name}.out_proj", mixed, hidden_size, blocks.has_bias)


def _add_memory_cache(tape: Tape, name: str, blocks: Blocks, memory: Blob) -> tuple[Blob, Blob]:
    """Add the cached keys and values of the encoder's output, which are written once and then only read."""
    shape = (1, blocks.heads, memory.shape[1], memory.shape[2] // blocks.heads)
    cached = tape.op(f"{name}.cache", "cache", out=shape, origin="method")
    tape.layers[-1] = tape.layers[-1]._replace(outputs=(shape, shape))
    return cached, Blob(shape, cached.parent)


def _add_feed_forward(tape: Tape, name: str, blocks: Blocks, x: Blob) -> Blob:
    hidden_size, size = x.shape[-1], blocks.intermediate_size
    if not blocks.is_gated:
        inner = tape.linear(f"{name}.fc1", x, size, blocks.has_bias)
        inner = tape.activation(f"{name}.activation_fn", inner, blocks.activation)
    else:
        packed = tape.linear(f"{name}.Wi", x, 2 * size, blocks.has_bias)
        shape = (1, x.shape[1], size)
        inner, gate = tape.split_tensor(f"{name}.chunk", packed, "chunk", (shape, shape), "method")
        inner = tape.activation(f"{name}.act", inner, blocks.activation)
        inner = tape.op(f"{name}.mul", "mul", inner, gate)
    return tape.linear(f"{name}.fc2", inner, hidden_size, blocks.has_bias)


def _add_norm(tape: Tape, name: str, x: Blob, has_bias: bool = True) -> Blob:
    return add_norm(tape, name, "layer" if has_bias else "layer_no_bias", x)


# Heads


def _add_head(tape: Tape, head: Head, x: Blob) -> None:
    """Add the layers after the blocks."""
    hidden_size = x.shape[-1]
    if head.kind == "none":
        return
    if head.kind in ("masked_lm", "lm"):
        _add_logits(tape, head, x)
        return
    if head.kind == "attention_pooling":
        _add_attention_pooling(tape, head, x)
        return
    first = tape.op("getitem", "slice", x, out=(1, hidden_size), function="getitem")
    if head.kind == "pooler":
        first = tape.linear("pooler.dense", first, hidden_size)
        tape.op("pooler.activation", "tanh", first, origin="module:Tanh")
    elif head.kind == "first_token":
        tape.layer_norm("post_layernorm", first)
    else:
        tape.linear("classifier", first, head.outputs)


def _add_logits(tape: Tape, head: Head, x: Blob) -> None:
    """Add the layers that compute the logits of the vocabulary."""
    size = head.size or x.shape[-1]
    if head.kind == "masked_lm":
        x = tape.linear("head.dense", x, size, head.has_dense_bias)
        x = tape.activation("head.activation", x, head.activation)
        x = _add_norm(tape, "head.LayerNorm", x, head.has_norm_bias)
    own = None
    if head.is_tied:
        own = head.outputs if head.has_bias else 0
    logits = tape.linear("head.decoder", x, head.outputs, head.has_bias, new_parameters=own)
    if head.adds_constant_bias:
        tape.op("add", "add", logits, Blob((1, head.outputs), CONSTANT))


def _add_attention_pooling(tape: Tape, head: Head, x: Blob) -> None:
    """Add SigLIP's pooling: one learned query attends to all patches, then a feed-forward layer."""
    _, tokens, hidden_size = x.shape
    heads = head.heads
    size = hidden_size // heads
    probe_shape = (1, 1, hidden_size)
    probe = tape.op("head.probe", "copy", out=probe_shape, weights=(probe_shape,), origin="method", function="repeat")
    query = tape.linear("head.attention.q_proj", probe, hidden_size)
    packed = tape.linear("head.attention.kv_proj", x, 2 * hidden_size)
    packed = tape.view("head.attention", packed, (2, 1, tokens, hidden_size), "contiguous", "copy")
    key, value = tape.split_tensor(
        "head.attention.split", packed, "split", ((1, heads, tokens, size), (1, heads, tokens, size))
    )
    query = tape.view("head.attention", query, (1, heads, 1, size))
    query = tape.op("head.attention.mul", "mul", query)
    keys = tape.view("head.attention", key, (1, heads, size, tokens), "transpose")
    scores = tape.op("head.attention.bmm", "matmul", query, keys, out=(1, heads, 1, tokens), inner=size)
    weights = tape.softmax("head.attention", scores)
    mixed = tape.op("head.attention.bmm", "matmul", weights, value, out=(1, heads, 1, size), inner=tokens)
    mixed = tape.view("head.attention", mixed, probe_shape)
    pooled = tape.linear("head.attention.out_proj", mixed, hidden_size)
    normal = tape.layer_norm("head.layernorm", pooled)
    inner = tape.linear("head.mlp.fc1", normal, head.size)
    inner = tape.activation("head.mlp.activation_fn", inner, head.activation)
    fed = tape.linear("head.mlp.fc2", inner, hidden_size)
    tape.op("head.add", "add", pooled, fed)

"""Embeddings of encoders: of tokens, of the patches of an image, and of the frames of a spectrogram."""

from __future__ import annotations

from ...counting import CONSTANT
from ..blocks.norms import add_norm
from ..builder import Blob, Window
from ..tape import Tape
from .encoder_records import AudioEmbedding, Embedding, ImageEmbedding, TextEmbedding


def add_embedding(
    tape: Tape,
    root: str,  # name of the module around the encoder, with a dot, or empty
    embedding: Embedding,
    tokens: int,  # tokens of a text; images and spectrograms have as many as their embedding gives
    is_shared: bool = False,  # whether the table of tokens was counted with an earlier layer
) -> Blob:
    """Add an embedding; return ``(1, tokens, hidden_size)``."""
    if isinstance(embedding, ImageEmbedding):
        return _add_patches(tape, root, embedding)
    if isinstance(embedding, AudioEmbedding):
        return _add_frames(tape, root, embedding)
    return _add_words(tape, root, embedding, tokens, is_shared)


def _add_words(tape: Tape, root: str, embedding: TextEmbedding, tokens: int, is_shared: bool) -> Blob:
    module = f"{root}{embedding.module}"
    size = embedding.size
    ids = Blob((1, tokens))
    if embedding.is_reshaped:
        ids = tape.view(root.rstrip("."), ids, ids.shape)
    if embedding.has_mask:  # transformers looks for padding in the first and the last token
        tape.op(f"{root}getitem", "gather", ids, out=(1, 2), function="getitem")
    places = None
    has_waves = embedding.position_kind.startswith("waves")
    if embedding.position_kind != "counted" and not has_waves:
        places = _add_places(tape, root, embedding, tokens)
    mask = None
    types = None
    if embedding.has_mask:
        mask = tape.op(f"{root}ones", "fill", out=(1, tokens), origin="function", function="ones", scales=True)
        types = tape.op(f"{root}zeros", "fill", out=(1, tokens), origin="function", function="zeros", scales=True)
    elif embedding.token_types:
        types = _add_type_ids(tape, module, embedding, tokens, places)
    shared = 0 if is_shared else None
    x = tape.embedding(
        f"{root}{embedding.words_name}", ids, embedding.vocabulary, size, new_parameters=shared, origin=embedding.origin
    )
    if embedding.is_scaled:
        x = tape.op(f"{root}{embedding.scale_name}.mul", "mul", x)
    if embedding.position_kind == "counted":
        places = _add_counted_places(tape, root, embedding, x)
    if embedding.token_types:
        assert types is not None
        rows = tape.embedding(f"{root}{embedding.types_name}", types, embedding.token_types, size)
        x = tape.op(f"{module}.add", "add", x, rows)
    if has_waves:
        x = tape.op(f"{module}.add", "add", x, _add_waves(tape, root, embedding, tokens))
    elif places is not None:
        x = tape.op(f"{module}.add", "add", x, _add_positions(tape, root, embedding, places))
    elif embedding.has_mask:
        tape.op(f"{module}.zeros_like", "fill", x, origin="function", function="zeros_like")
    if embedding.norm_name:
        x = add_norm(tape, f"{root}{embedding.norm_name}", embedding.norm, x)
    if mask is not None:
        mask = tape.view(module, mask, (1, tokens, 1), "unsqueeze")
        x = tape.op(f"{module}.mul", "mul", x, mask)
    if embedding.dropout is not None:
        x = tape.dropout(f"{root}{embedding.dropout_name}", x, embedding.dropout, embedding.dropout_origin)
    if embedding.projected_size:
        x = tape.linear(f"{root}{embedding.projection_name}", x, embedding.projected_size)
    return x


def _add_places(tape: Tape, root: str, embedding: TextEmbedding, tokens: int) -> Blob | None:
    """Add the index of each token's position; return None where positions are not embedded."""
    kind = embedding.position_kind
    module = f"{root}{embedding.module}"
    if kind == "buffer" or embedding.has_mask:
        places = tape.view(module, Blob((1, embedding.positions), CONSTANT), (1, tokens), "getitem", "slice")
        return places if kind == "buffer" else None
    if kind == "none":
        return None
    if kind == "padded":
        return _add_padded_places(tape, module, tokens)
    places = tape.op(f"{module}.arange", "fill", out=(tokens,), origin="function", function="arange")
    places = tape.op(f"{module}.add", "add", places)
    if kind == "rows":
        places = tape.view(module, places, (1, tokens), "unsqueeze")
        return tape.view(module, places, places.shape, "repeat", "copy", scales=True)
    _add_padding_check(tape, module, tokens)
    name = f"{root}{embedding.positions_name}"
    places = tape.view(name, places, (1, tokens), "unsqueeze")
    return tape.op(f"{name}.add", "add", places)


def _add_padding_check(tape: Tape, module: str, tokens: int) -> None:
    """Add the mask of ones that a decoder makes for all keys, and the question whether any is padding."""
    keys = tape.lengths.keys if tape.lengths.uses_cache else tokens
    mask = tape.op(f"{module}.ones", "fill", out=(1, keys), origin="function", function="ones", scales=True)
    mask = tape.view(module, mask, mask.shape, "to", "copy")
    total = tape.op(f"{module}.sum", "reduce", mask, out=(), origin="method", function="sum", scales=False)
    tape.op(f"{module}.eq", "compare", total, no_gradient=True, function="eq")


def _add_waves(tape: Tape, root: str, embedding: TextEmbedding, tokens: int) -> Blob:
    """Add the rows of a buffer of sines and cosines, by positions counted over the tokens that are no padding."""
    if embedding.position_kind == "waves_continued":
        _add_padding_check(tape, f"{root}{embedding.module}", tokens)
    name = f"{root}{embedding.positions_name}"
    places = tape.view(name, _add_padded_places(tape, name, tokens), (tokens,))
    table = Blob((embedding.positions, embedding.size), CONSTANT)
    shape = (tokens, embedding.size)
    rows = tape.op(f"{name}.index_select", "gather", table, places, out=shape, origin="method", function="index_select")
    rows = tape.view(name, rows, (1, *shape))
    return tape.op(f"{name}.detach", "view", rows, origin="method", no_gradient=True, function="detach")


def _add_counted_places(tape: Tape, root: str, embedding: TextEmbedding, x: Blob) -> Blob:
    """Add the positions of BART's encoder, counted after its tokens were embedded."""
    tokens = x.shape[1]
    # A slice that is made for its shape, without a gradient.
    tape.view(f"{root}{embedding.module}", Blob(x.shape, CONSTANT), (1, tokens), "getitem", "slice")
    name = f"{root}{embedding.positions_name}"
    places = tape.op(f"{name}.arange", "fill", out=(tokens,), origin="function", function="arange")
    places = tape.view(name, places, (1, tokens), "expand", scales=True)
    return tape.op(f"{name}.add", "add", places)


def _add_padded_places(tape: Tape, module: str, tokens: int) -> Blob:
    """Add the positions of RoBERTa, counted over the tokens that are no padding."""
    mask = tape.op(f"{module}.ne", "compare", Blob((1, tokens)), origin="method", no_gradient=True, function="ne")
    mask = tape.view(module, mask, mask.shape, "to_copy", "copy")
    places = tape.op(f"{module}.cumsum", "scan", mask, origin="function", function="cumsum")
    places = tape.view(module, places, places.shape, "type_as", "copy")
    places = tape.op(f"{module}.add", "add", places)
    places = tape.op(f"{module}.mul", "mul", places, mask)
    places = tape.view(module, places, places.shape, "to_copy", "copy")
    return tape.op(f"{module}.add", "add", places)


def _add_type_ids(tape: Tape, module: str, embedding: TextEmbedding, tokens: int, places: Blob | None) -> Blob:
    """Add the type of each token, gathered from a buffer of zeros by its position."""
    if places is None:
        shape = (1, tape.lengths.queries)
        return tape.op(f"{module}.zeros", "fill", out=shape, origin="function", function="zeros", scales=True)
    shape = (1, embedding.positions)
    is_padded = embedding.position_kind == "padded"
    zeros = Blob(shape, CONSTANT)
    if is_padded:
        zeros = tape.view(module, zeros, shape, "expand", scales=True)
    else:
        zeros = tape.view(module, zeros, shape, "expand")
    types = tape.op(f"{module}.gather", "gather", zeros, places, out=(1, tokens), origin="function")
    if is_padded:
        return tape.view(module, types, (1, tokens), "expand")
    return tape.view(module, types, (1, tokens), "expand", scales=True)


def _add_positions(tape: Tape, root: str, embedding: TextEmbedding, places: Blob) -> Blob:
    """Add the rows of the table of positions."""
    name = f"{root}{embedding.positions_name}"
    if embedding.position_kind == "rows":
        shape = (*places.shape, embedding.size)
        table = (embedding.positions, embedding.size)
        return tape.op(name, "gather", out=shape, weights=(table,), function="getitem", scales=True)
    return tape.embedding(name, places, embedding.positions, embedding.size, origin=embedding.origin)


def _add_patches(tape: Tape, root: str, embedding: ImageEmbedding) -> Blob:
    hidden_size = embedding.hidden_size
    patch = (embedding.patch_size, embedding.patch_size)
    image = Blob((1, embedding.channels, embedding.image_size, embedding.image_size))
    projection = f"{root}{embedding.projection}"
    x = tape.convolution(projection, image, hidden_size, Window(patch, patch), bias=embedding.has_bias)
    tokens = x.shape[2] * x.shape[3]
    patches = f"{root}{embedding.patches}"
    x = tape.view(patches, x, (1, hidden_size, tokens), "flatten")
    x = tape.view(patches, x, (1, tokens, hidden_size), "transpose")
    if embedding.class_token:
        tokens += 1
        name = f"{root}{embedding.class_token}"
        token = (1, 1, hidden_size)
        x = tape.op(name, "concat", x, out=(1, tokens, hidden_size), weights=(token,), origin="function")
    positions = f"{root}{embedding.positions_name}"
    if embedding.adds_position_parameter:
        x = tape.op(positions, "add", x, weights=((1, tokens, hidden_size),))
    else:
        rows = tape.embedding(positions, Blob((1, tokens), CONSTANT), tokens, hidden_size)
        x = tape.op(f"{root}embeddings.add", "add", x, rows)
    if embedding.norm_name:
        x = tape.layer_norm(f"{root}{embedding.norm_name}", x)
    if embedding.dropout is not None:
        x = tape.dropout(f"{root}embeddings.dropout", x, embedding.dropout)
    return x


def _add_frames(tape: Tape, root: str, embedding: AudioEmbedding) -> Blob:
    """Add two convolutions of width 3 over the frames of a spectrogram, the second of stride 2, and positions."""
    module = f"{root}{embedding.module}"
    hidden_size, positions = embedding.hidden_size, embedding.positions
    frames = 2 * positions
    x = Blob((1, embedding.bins, frames))
    for number, stride, tokens in ((1, 1, frames), (2, 2, positions)):
        weights = ((hidden_size, x.shape[1], 3), (hidden_size,))
        x = tape.op(
            f"{module}.conv{number}", "conv1d", x, out=(1, hidden_size, tokens), weights=weights,
            origin="module:Conv1d", stride=[stride], padding=[1],
        )  # fmt: skip
        x = tape.op(f"{module}.gelu", "gelu", x, origin="function")
    x = tape.view(module, x, (1, positions, hidden_size), "permute")
    places = tape.op(f"{module}.arange", "fill", out=(positions,), origin="function", function="arange")
    rows = tape.embedding(f"{module}.embed_positions", places, positions, hidden_size, frozen=True)
    x = tape.op(f"{module}.add", "add", x, rows)
    return tape.dropout(f"{module}.dropout", x, embedding.dropout, "function")

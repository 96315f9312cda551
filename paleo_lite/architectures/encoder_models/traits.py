"""Traits of encoders: the choices by which they differ, as records."""

from __future__ import annotations

from typing import Literal

import msgspec

PositionKind = Literal["none", "learned", "padded"]
"""How positions are embedded: not at all, by a table, or by a table with places counted behind padding (RoBERTa)."""

HeadKind = Literal["none", "pooler", "masked_lm", "lm", "classifier", "attention_pooling", "first_token"]
"""Layers after the blocks: none; a linear layer and tanh on the first token; a linear layer, activation and norm before
the vocabulary; the vocabulary alone; classes of the first token; SigLIP's pooling by attention; a norm of the first
token."""


class Blocks(msgspec.Struct, frozen=True, kw_only=True):
    """A stack of equal transformer blocks, except for the windows of their attention.

    Attributes
    ----------
    count, heads, intermediate_size : int
    activation : str
        A key of `paleo_lite.architectures.tape.ACTIVATIONS`.
    hidden_size : int
    is_pre_norm : bool
        Whether the norms are before attention and feed-forward layer; otherwise they follow the residual additions.
    has_first_norm : bool
        Whether the first block has a norm before attention (ModernBERT's has none).
    has_final_norm : bool
        Whether a norm follows the last block.
    has_norm_bias : bool
    is_packed : bool
        Whether one linear layer computes queries, keys and values.
    is_gated : bool
        Whether the feed-forward layer multiplies by an activated gate of the same width (GeGLU).
    has_bias, has_key_bias : bool
        Biases of all linear layers, and of the keys.
    scales_queries : bool
        Whether queries are multiplied by a constant, and all heads copied (Whisper).
    is_causal : bool
        Whether a token attends only to itself and earlier ones.
    rotary_size : int
        Elements of a head that rotary embeddings turn; 0 for none.
    windows : tuple of int or None
        For each block the tokens to either side that attention reaches; None for all. Empty: all for every block.
    dropout : float or None
        Dropout probability after each part; None: there is no dropout.
    attention_dropout : float
        Dropout probability of attention weights.
    """

    count: int
    heads: int
    intermediate_size: int
    activation: str
    hidden_size: int
    is_pre_norm: bool = False
    has_first_norm: bool = True
    has_final_norm: bool = False
    has_norm_bias: bool = True
    is_packed: bool = False
    is_gated: bool = False
    has_bias: bool = True
    has_key_bias: bool = True
    scales_queries: bool = False
    is_causal: bool = False
    rotary_size: int = 0
    windows: tuple[int | None, ...] = ()
    dropout: float | None = 0.1
    attention_dropout: float = 0.0


class TextEmbedding(msgspec.Struct, frozen=True, kw_only=True):
    """Embedding of tokens.

    Attributes
    ----------
    vocabulary : int
    size : int
        Width of the table; a linear layer follows if the blocks are wider or narrower (ELECTRA).
    positions : int
        Rows of the table of positions.
    position_kind : PositionKind
    token_types : int
        Rows of the table of token types; 0 for none.
    has_norm, has_norm_bias, is_scaled : bool
        Whether a norm follows, with a bias, and whether embeddings are multiplied by a constant.
    dropout : float or None
        None: there is no dropout.
    """

    vocabulary: int
    size: int
    positions: int = 0
    position_kind: PositionKind = "none"
    token_types: int = 0
    has_norm: bool = True
    has_norm_bias: bool = True
    is_scaled: bool = False
    dropout: float | None = 0.1


class ImageEmbedding(msgspec.Struct, frozen=True, kw_only=True):
    """Embedding of the patches of an image.

    Attributes
    ----------
    image_size, patch_size, channels : int
    has_bias : bool
        Whether the convolution has a bias.
    has_class_token : bool
        Whether a learned token is put before the patches.
    adds_position_parameter : bool
        Whether positions are one parameter that is added, rather than a table that is read (ViT).
    has_norm : bool
        Whether a norm follows (CLIP).
    dropout : float or None
        None: there is no dropout.
    """

    image_size: int
    patch_size: int
    channels: int = 3
    has_bias: bool = True
    has_class_token: bool = True
    adds_position_parameter: bool = False
    has_norm: bool = False
    dropout: float | None = None


class AudioEmbedding(msgspec.Struct, frozen=True, kw_only=True):
    """Embedding of a spectrogram by two convolutions, the second of stride 2 (Whisper).

    Attributes
    ----------
    bins : int
        Mel-frequency bins.
    positions : int
        Tokens of the encoder, half of the frames.
    """

    bins: int
    positions: int


class Head(msgspec.Struct, frozen=True, kw_only=True):
    """What follows the blocks.

    Attributes
    ----------
    kind : HeadKind
    outputs : int
        Rows of the vocabulary, or classes.
    activation : str
        Activation between the two linear layers of a head for masked words.
    size : int
        Width between them; 0: that of the blocks.
    heads : int
        Attention heads of a pooling by attention.
    is_tied : bool
        Whether the last layer's weight is that of the embedding.
    has_bias : bool
        Whether the last layer has a bias.
    has_dense_bias, has_norm_bias : bool
        Biases of the layers before it.
    adds_constant_bias : bool
        Whether a buffer that is not trained is added to the logits (BART).
    """

    kind: HeadKind = "none"
    outputs: int = 0
    activation: str = "gelu"
    size: int = 0
    heads: int = 0
    is_tied: bool = True
    has_bias: bool = True
    has_dense_bias: bool = True
    has_norm_bias: bool = True
    adds_constant_bias: bool = False


class EncoderModel(msgspec.Struct, frozen=True, kw_only=True):
    """An encoder, or an encoder with a decoder.

    Attributes
    ----------
    embedding : TextEmbedding, ImageEmbedding or AudioEmbedding
    blocks : Blocks
    head : Head
    decoder_embedding : TextEmbedding or None
        None: there is no decoder.
    decoder_blocks : Blocks or None
    """

    embedding: TextEmbedding | ImageEmbedding | AudioEmbedding
    blocks: Blocks
    head: Head = Head()
    decoder_embedding: TextEmbedding | None = None
    decoder_blocks: Blocks | None = None

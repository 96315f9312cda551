"""Records that describe an encoder or an encoder-decoder: embeddings, stacks of blocks, and the layers after them.

The record of a model type (`models/families`) fills them from a config, and `encoder`, `embeddings` and `heads` add
the layers they describe.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from ..blocks.block_records import Block, NormKind

PositionKind = Literal["none", "buffer", "padded", "counted", "continued", "rows", "waves", "waves_continued"]
"""How the position of a token becomes an index of the position table: there is no table; the indices are a stored
buffer; they are counted without padding (RoBERTa); they are counted in every pass (BART's encoder), from the tokens in
the cache on (BART's decoder); rows of the table are read without an embedding module (Whisper); or the table is a
buffer of sines and cosines (M2M-100), which the decoder reads after it looked for padding in the cache."""


class TextEmbedding(msgspec.Struct, frozen=True, kw_only=True):
    """Embedding of tokens."""

    # Rows and columns of the table.
    vocabulary: int
    size: int
    positions: int = 0  # rows of the table of positions
    position_kind: PositionKind = "none"
    token_types: int = 0  # rows of the table of token types; 0 for none
    has_mask: bool = False  # whether embeddings are multiplied by the padding mask (DeBERTa)
    is_reshaped: bool = False  # whether the tokens are reshaped first (CLIP)
    origin: str = "module:Embedding"  # how the embeddings are called, see `paleo_lite.architectures.tape.Tape.op`
    is_scaled: bool = False  # whether embeddings are multiplied by a constant
    projected_size: int = 0  # width of the linear layer at the end; 0: there is none
    norm: NormKind = "layer"
    dropout: float | None = None  # none: there is no dropout
    dropout_origin: str = "module:Dropout"
    module: str = "embeddings"  # name of the embedding module
    # Names of its parts; an empty `norm_name`: there is no norm.
    words_name: str = "embeddings.word_embeddings"
    types_name: str = "embeddings.token_type_embeddings"
    positions_name: str = "embeddings.position_embeddings"
    scale_name: str = "embeddings"
    norm_name: str = "embeddings.LayerNorm"
    dropout_name: str = "embeddings.dropout"
    projection_name: str = "embeddings_project"


class ImageEmbedding(msgspec.Struct, frozen=True, kw_only=True):
    """Embedding of the patches of an image."""

    hidden_size: int
    image_size: int
    patch_size: int
    channels: int = 3
    has_bias: bool = True  # whether the convolution has a bias
    class_token: str = ""  # name of the learned token before the patches; empty where there is none
    # Whether positions are one parameter that is added, rather than a table that is read (ViT).
    adds_position_parameter: bool = False
    dropout: float | None = None  # none: there is no dropout
    projection: str = "embeddings.patch_embedding"  # name of the convolution
    # Names of the module of the patches, of the positions, and of the norm; an empty `norm_name`: there is no norm.
    patches: str = "embeddings"
    positions_name: str = "embeddings.position_embedding"
    norm_name: str = ""


class AudioEmbedding(msgspec.Struct, frozen=True, kw_only=True):
    """Embedding of a spectrogram by two convolutions, the second of stride 2 (Whisper)."""

    # Channels, and mel-frequency bins.
    hidden_size: int
    bins: int
    positions: int  # tokens of the encoder, half of the frames
    dropout: float = 0.0
    module: str = "encoder"


Embedding = TextEmbedding | ImageEmbedding | AudioEmbedding


class FirstToken(msgspec.Struct, frozen=True, kw_only=True):
    """The first token of each sequence."""

    module: str = ""  # name of the module that takes it


class MeanOfTokens(msgspec.Struct, frozen=True, kw_only=True):
    """The mean of the tokens that are no padding (ModernBERT)."""


class KeptTokens(msgspec.Struct, frozen=True, kw_only=True):
    """The tokens of which logits are computed: all, without a cache."""


class MarkedToken(msgspec.Struct, frozen=True, kw_only=True):
    """The token with the largest index of the vocabulary, which marks the end of a text (CLIP)."""


class Dense(msgspec.Struct, frozen=True, kw_only=True):
    """A linear layer."""

    name: str
    outputs: int = 0  # width; 0: that of the input
    has_bias: bool = True
    is_tied: bool = False  # whether its weight is that of the embedding


class Activate(msgspec.Struct, frozen=True, kw_only=True):
    """An activation function."""

    name: str
    function: str  # a key of `paleo_lite.architectures.tape.ACTIVATIONS`
    is_module: bool = False  # whether it is a class of ``torch.nn``


class Normalise(msgspec.Struct, frozen=True, kw_only=True):
    """A norm."""

    name: str
    kind: NormKind = "layer"


class Drop(msgspec.Struct, frozen=True, kw_only=True):
    """Dropout with a probability."""

    name: str
    probability: float


class Scale(msgspec.Struct, frozen=True, kw_only=True):
    """A multiplication by a constant, if it applies."""

    applies: bool = True


class AddConstant(msgspec.Struct, frozen=True, kw_only=True):
    """The addition of a buffer that is not trained (BART)."""


class SplitAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """Separate logits of the first and the last token of an answer."""


class Squeeze(msgspec.Struct, frozen=True, kw_only=True):
    """The removal of a last dimension of 1."""

    name: str


class PoolByAttention(msgspec.Struct, frozen=True, kw_only=True):
    """Pooling by one learned query that attends to all tokens, and a feed-forward layer (SigLIP)."""

    heads: int
    intermediate_size: int
    activation: str
    applies: bool = True  # whether the model has it


Step = (
    FirstToken | MeanOfTokens | KeptTokens | MarkedToken | Dense | Activate | Normalise | Drop | Scale | AddConstant
    | SplitAnswer | Squeeze | PoolByAttention
)  # fmt: skip
"""One of the layers after the blocks."""


class Stack(msgspec.Struct, frozen=True, kw_only=True):
    """Blocks one after another, which share masks and positions."""

    name: str  # of the list of blocks
    hidden_size: int
    blocks: tuple[Block, ...]
    # Names of the norm and the dropout after the last block; empty where there is none.
    final_norm: str = ""
    final_dropout: str = ""
    mask_module: str = ""  # name of the module that makes the causal mask
    has_indexed_positions: bool = False  # whether the positions that are rotated get their batch dimension by an index
    checks_packing: bool = False  # whether the mask looks for several sequences in one row (Whisper)


class EncoderModel(msgspec.Struct, frozen=True, kw_only=True):
    """An encoder, or an encoder with a decoder."""

    embedding: Embedding
    blocks: Stack
    decoder_embedding: TextEmbedding | None = None  # none: there is no decoder
    decoder_blocks: Stack | None = None
    has_shared_embedding: bool = False  # whether the decoder reads the encoder's table of tokens
    head: tuple[Step, ...] = ()  # the layers after the blocks, in order


class EncoderPair(msgspec.Struct, frozen=True, kw_only=True):
    """A text encoder and an image encoder, and the similarity of their outputs (CLIP, SigLIP)."""

    text: EncoderModel
    image: EncoderModel
    projection_size: int = 0  # width of the linear layers after both; 0: there are none
    has_bias: bool = False  # whether a learned constant is added to the similarity

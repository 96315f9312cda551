"""Records that describe an encoder or an encoder-decoder: embeddings, blocks, and the layers after the blocks.

A model type (`families`) fills them from a config, and `stack` adds the layers they describe. A field that names
modules holds the names that ``transformers`` gives them, so that layers can be selected by the names people know.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from ..language_models.traits import NormKind

PositionKind = Literal["none", "buffer", "padded", "counted", "continued", "rows"]
"""How the position of a token becomes an index of the position table: there is no table; the indices are a stored
buffer; they are counted without padding (RoBERTa); they are counted in every pass (BART's encoder), from the tokens in
the cache on (BART's decoder); or rows of the table are read without an embedding module (Whisper)."""


class BlockNames(msgspec.Struct, frozen=True, kw_only=True):
    """Names of the modules of a block, relative to the block.

    Attributes
    ----------
    attention : str
        The attention module.
    query, key, value : str
        Its projections.
    packed : str
        The projection that makes all three at once; empty where each has its own.
    output : str
        The projection after attention.
    attention_dropout, attention_sum, attention_norm : str
        Dropout, residual addition and norm of attention.
    cross_attention, cross_output, cross_dropout, cross_sum, cross_norm : str
        The same of attention to the output of an encoder.
    feed_forward : str
        The feed-forward module.
    gate, up, down, activation, inner_dropout : str
        Its projections, activation, and dropout before the last projection.
    dropout, sum, norm : str
        Dropout, residual addition and norm of the feed-forward layer.
    """

    attention: str = "self_attn"
    query: str = "q_proj"
    key: str = "k_proj"
    value: str = "v_proj"
    packed: str = ""
    output: str = "self_attn.out_proj"
    attention_dropout: str = "dropout"
    attention_sum: str = "add"
    attention_norm: str = "self_attn_layer_norm"
    cross_attention: str = "encoder_attn"
    cross_output: str = "encoder_attn.out_proj"
    cross_dropout: str = "dropout"
    cross_sum: str = "add"
    cross_norm: str = "encoder_attn_layer_norm"
    feed_forward: str = "mlp"
    gate: str = ""
    up: str = "fc1"
    down: str = "fc2"
    activation: str = "activation_fn"
    inner_dropout: str = "dropout"
    dropout: str = "dropout"
    sum: str = "add"
    norm: str = "final_layer_norm"


class RelativeBias(msgspec.Struct, frozen=True, kw_only=True):
    """A learned bias of the scores for each distance of two tokens, shared by all blocks (T5).

    Attributes
    ----------
    buckets : int
        Classes of distances.
    """

    buckets: int


class Disentangled(msgspec.Struct, frozen=True, kw_only=True):
    """Disentangled attention: terms of the scores between contents and relative positions (DeBERTa, He et al. 2021).

    Attributes
    ----------
    span : int
        Number of distances to either side that are distinguished; the table of relative positions has twice as many
        rows.
    has_log_buckets : bool
        Whether far distances share a row, in classes that grow logarithmically.
    shares_projections : bool
        Whether positions are projected by the query and key projections of the contents.
    terms : tuple of str
        ``"c2p"``, from content to position, and ``"p2c"``, from position to content.
    has_norm : bool
        Whether the table passes a layer norm.
    table, norm : str
        Names of the modules.
    """

    span: int
    has_log_buckets: bool = True
    shares_projections: bool = True
    terms: tuple[str, ...] = ("c2p", "p2c")
    has_norm: bool = True
    table: str = "encoder.rel_embeddings"
    norm: str = "encoder.LayerNorm"


class Blocks(msgspec.Struct, frozen=True, kw_only=True):
    """A stack of equal transformer blocks, except for the windows of their attention.

    Attributes
    ----------
    name : str
        Name of the list of blocks.
    names : BlockNames
    count, hidden_size, heads, head_size, intermediate_size : int
    activation : str
        A key of `paleo_lite.architectures.tape.ACTIVATIONS`.
    norm : NormKind
    is_pre_norm : bool
        Whether the norms are before attention and feed-forward layer; otherwise they follow the residual additions.
    has_first_norm : bool
        Whether the first block has a norm before attention (ModernBERT's has none).
    final_norm, final_dropout : str
        Names of the norm and the dropout after the last block; empty where there is none.
    gating : {"none", "packed", "separate"}
        Whether the feed-forward layer multiplies by a second projection of the input, and whether one linear layer
        makes both.
    has_bias, has_query_bias, has_key_bias, has_feed_forward_bias : bool
        Biases of the output projection; of queries, keys and values; of the keys; of the feed-forward layer.
    scales_queries : bool
        Whether queries are multiplied by a constant, and all heads copied (Whisper).
    is_causal : bool
        Whether a token attends only to itself and earlier ones.
    mask_module : str
        Name of the module that makes the causal mask.
    checks_packing : bool
        Whether the mask looks for several sequences in one row (Whisper).
    relative_bias : RelativeBias or None
    disentangled : Disentangled or None
    rotary_size : int
        Elements of a head that rotary embeddings turn; 0 for none.
    windows : tuple of int or None
        For each block the tokens to either side that attention reaches; None for all. Empty: all for every block.
    attention_dropout : float
        Dropout probability of attention weights.
    attention_output_dropout, inner_dropout, dropout : float or None
        Dropout probability after attention, before the last projection of the feed-forward layer, and after it; None:
        there is no such module.
    dropout_origin : str
        How the dropout after attention and feed-forward layer is called, see `paleo_lite.architectures.tape.Tape.op`.
    """

    name: str
    names: BlockNames = BlockNames()
    count: int
    hidden_size: int
    heads: int
    head_size: int
    intermediate_size: int
    activation: str
    norm: NormKind = "layer"
    is_pre_norm: bool = False
    has_first_norm: bool = True
    final_norm: str = ""
    final_dropout: str = ""
    gating: Literal["none", "packed", "separate"] = "none"
    has_bias: bool = True
    has_query_bias: bool = True
    has_key_bias: bool = True
    has_feed_forward_bias: bool = True
    scales_queries: bool = False
    is_causal: bool = False
    mask_module: str = ""
    checks_packing: bool = False
    relative_bias: RelativeBias | None = None
    disentangled: Disentangled | None = None
    rotary_size: int = 0
    windows: tuple[int | None, ...] = ()
    attention_dropout: float = 0.0
    attention_output_dropout: float | None = None
    inner_dropout: float | None = None
    dropout: float | None = None
    dropout_origin: str = "module:Dropout"


class TextEmbedding(msgspec.Struct, frozen=True, kw_only=True):
    """Embedding of tokens.

    Attributes
    ----------
    vocabulary, size : int
        Rows and columns of the table.
    positions : int
        Rows of the table of positions.
    position_kind : PositionKind
    token_types : int
        Rows of the table of token types; 0 for none.
    has_mask : bool
        Whether embeddings are multiplied by the padding mask (DeBERTa).
    is_reshaped : bool
        Whether the tokens are reshaped first (CLIP).
    origin : str
        How the embeddings are called, see `paleo_lite.architectures.tape.Tape.op`.
    is_scaled : bool
        Whether embeddings are multiplied by a constant.
    projected_size : int
        Width of the linear layer at the end; 0: there is none.
    norm : NormKind
    dropout : float or None
        None: there is no dropout.
    dropout_origin : str
    module : str
        Name of the embedding module.
    words_name, types_name, positions_name, scale_name, norm_name, dropout_name, projection_name : str
        Names of its parts; an empty `norm_name`: there is no norm.
    """

    vocabulary: int
    size: int
    positions: int = 0
    position_kind: PositionKind = "none"
    token_types: int = 0
    has_mask: bool = False
    is_reshaped: bool = False
    origin: str = "module:Embedding"
    is_scaled: bool = False
    projected_size: int = 0
    norm: NormKind = "layer"
    dropout: float | None = None
    dropout_origin: str = "module:Dropout"
    module: str = "embeddings"
    words_name: str = "embeddings.word_embeddings"
    types_name: str = "embeddings.token_type_embeddings"
    positions_name: str = "embeddings.position_embeddings"
    scale_name: str = "embeddings"
    norm_name: str = "embeddings.LayerNorm"
    dropout_name: str = "embeddings.dropout"
    projection_name: str = "embeddings_project"


class ImageEmbedding(msgspec.Struct, frozen=True, kw_only=True):
    """Embedding of the patches of an image.

    Attributes
    ----------
    hidden_size, image_size, patch_size, channels : int
    has_bias : bool
        Whether the convolution has a bias.
    class_token : str
        Name of the learned token before the patches; empty where there is none.
    adds_position_parameter : bool
        Whether positions are one parameter that is added, rather than a table that is read (ViT).
    dropout : float or None
        None: there is no dropout.
    projection : str
        Name of the convolution.
    patches, positions_name, norm_name : str
        Names of the module of the patches, of the positions, and of the norm; an empty `norm_name`: there is no norm.
    """

    hidden_size: int
    image_size: int
    patch_size: int
    channels: int = 3
    has_bias: bool = True
    class_token: str = ""
    adds_position_parameter: bool = False
    dropout: float | None = None
    projection: str = "embeddings.patch_embedding"
    patches: str = "embeddings"
    positions_name: str = "embeddings.position_embedding"
    norm_name: str = ""


class AudioEmbedding(msgspec.Struct, frozen=True, kw_only=True):
    """Embedding of a spectrogram by two convolutions, the second of stride 2 (Whisper).

    Attributes
    ----------
    hidden_size, bins : int
        Channels, and mel-frequency bins.
    positions : int
        Tokens of the encoder, half of the frames.
    dropout : float
    module : str
    """

    hidden_size: int
    bins: int
    positions: int
    dropout: float = 0.0
    module: str = "encoder"


Embedding = TextEmbedding | ImageEmbedding | AudioEmbedding


class FirstToken(msgspec.Struct, frozen=True, kw_only=True):
    """The first token of each sequence.

    Attributes
    ----------
    module : str
        Name of the module that takes it.
    """

    module: str = ""


class MeanOfTokens(msgspec.Struct, frozen=True, kw_only=True):
    """The mean of the tokens that are no padding (ModernBERT)."""


class KeptTokens(msgspec.Struct, frozen=True, kw_only=True):
    """The tokens of which logits are computed: all, without a cache."""


class MarkedToken(msgspec.Struct, frozen=True, kw_only=True):
    """The token with the largest index of the vocabulary, which marks the end of a text (CLIP)."""


class Dense(msgspec.Struct, frozen=True, kw_only=True):
    """A linear layer.

    Attributes
    ----------
    name : str
    outputs : int
        Width; 0: that of the input.
    has_bias : bool
    is_tied : bool
        Whether its weight is that of the embedding.
    """

    name: str
    outputs: int = 0
    has_bias: bool = True
    is_tied: bool = False


class Activate(msgspec.Struct, frozen=True, kw_only=True):
    """An activation function.

    Attributes
    ----------
    name : str
    function : str
        A key of `paleo_lite.architectures.tape.ACTIVATIONS`.
    is_module : bool
        Whether it is a class of ``torch.nn``.
    """

    name: str
    function: str
    is_module: bool = False


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
    """Separation of the logits of an answer's first and last token."""


class Squeeze(msgspec.Struct, frozen=True, kw_only=True):
    """The removal of a last dimension of 1."""

    name: str


class PoolByAttention(msgspec.Struct, frozen=True, kw_only=True):
    """Pooling by one learned query that attends to all tokens, and a feed-forward layer (SigLIP).

    Attributes
    ----------
    heads, intermediate_size : int
    activation : str
    applies : bool
        Whether the model has it.
    """

    heads: int
    intermediate_size: int
    activation: str
    applies: bool = True


Step = (
    FirstToken | MeanOfTokens | KeptTokens | MarkedToken | Dense | Activate | Normalise | Drop | Scale | AddConstant
    | SplitAnswer | Squeeze | PoolByAttention
)  # fmt: skip
"""One of the layers after the blocks."""


class EncoderModel(msgspec.Struct, frozen=True, kw_only=True):
    """An encoder, or an encoder with a decoder.

    Attributes
    ----------
    embedding : Embedding
    blocks : Blocks
    decoder_embedding : TextEmbedding or None
        None: there is no decoder.
    decoder_blocks : Blocks or None
    has_shared_embedding : bool
        Whether the decoder reads the encoder's table of tokens.
    head : tuple of Step
        The layers after the blocks, in order.
    """

    embedding: Embedding
    blocks: Blocks
    decoder_embedding: TextEmbedding | None = None
    decoder_blocks: Blocks | None = None
    has_shared_embedding: bool = False
    head: tuple[Step, ...] = ()


class EncoderPair(msgspec.Struct, frozen=True, kw_only=True):
    """A text encoder and an image encoder, and the similarity of their outputs (CLIP, SigLIP).

    Attributes
    ----------
    text, image : EncoderModel
    projection_size : int
        Width of the linear layers after both; 0: there are none.
    has_bias : bool
        Whether a learned constant is added to the similarity.
    """

    text: EncoderModel
    image: EncoderModel
    projection_size: int = 0
    has_bias: bool = False

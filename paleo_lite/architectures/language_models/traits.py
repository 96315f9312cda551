"""Records that describe a decoder: attention, feed-forward part, mixers without attention, blocks, and the model.

A model family (`families`) fills them from a config, and `decoder` adds the layers they describe. A field that names
modules holds the names that ``transformers`` gives them, so that layers can be selected by the names people know.
"""

from __future__ import annotations

from typing import Literal

import msgspec

NormKind = Literal[
    "rms",  # root mean square, times a weight (Zhang and Sennrich 2019)
    "rms_one_plus",  # the same, times one plus the weight (Gemma)
    "layer",  # layer norm with weight and bias (Ba et al. 2016)
    "layer_no_bias",  # with a weight only
    "layer_plain",  # with neither (OLMo)
    "layer_written_out",  # with a weight only, as separate operations (Cohere)
    "layer_one_plus",  # with one plus the weight, and a bias (Nemotron)
]


class Projections(msgspec.Struct, frozen=True):
    """Names of the modules that make queries, keys and values, and of the one after attention.

    Attributes
    ----------
    query, key, value : str
    output : str
    packed : str
        The module that makes all three at once; empty where each has its own.
    """

    query: str = "q_proj"
    key: str = "k_proj"
    value: str = "v_proj"
    output: str = "o_proj"
    packed: str = ""


class HeadExperts(msgspec.Struct, frozen=True, kw_only=True):
    """Experts of attention, each with a query and an output projection (Zhang et al. 2022, mixture of attention heads).

    A token passes some of them, and all share the keys and values of the token (JetMoE, Shen et al. 2024, section 2.2).

    Attributes
    ----------
    count, active : int
        Experts, and how many of them each token passes.
    module, router, input, output : str
        Names of the module in attention, and of its parts.
    """

    count: int
    active: int
    module: str = "experts"
    router: str = "router.layer"
    input: str = "input_linear"
    output: str = "output_linear"


class Attention(msgspec.Struct, frozen=True, kw_only=True):
    """Multi-head, grouped-query or multi-query attention.

    Attributes
    ----------
    heads, kv_heads : int
        Query heads, and key and value heads; `kv_heads` divides `heads` (Ainslie et al. 2023).
    head_size : int
    value_size : int or None
        Size of a value per head; None: that of the keys.
    has_value_scale : bool
        Whether values are multiplied by a constant (MiMo-V2).
    module : str
        Name of the attention module in its block.
    projections : Projections
    packed_layout : {"split", "chunk", "heads", "groups"}
        How the packed projection is split: by width, chunked in three, three parts per head, or one group
        of queries with its key and value after another.
    transposed_weights : bool
        Whether projections are GPT-2's ``Conv1D``.
    bias, output_bias : bool
        Biases of the query, key and value projections, and of the output projection.
    query_key_norm : {"", "per_head", "full_width", "after_rotary", "per_head_after_rotary"}
        Norm of queries and keys: none, over each head, over all heads together, or over each head after the rotation,
        without a weight or with one.
    output_norm : str
        Name of the norm before the output projection; empty: there is none (BitNet has one).
    norm : NormKind
        Kind of that norm.
    has_value_norm : bool
        Whether values are normalised over each head, too, without a weight (Gemma 4).
    shares_key_and_value : bool
        Whether the projection of the keys, before their norm, also makes the values (Gemma 4).
    reuses_cache : bool
        Whether keys and values are those of the last layer before with the same window that made its own (Gemma 3n).
    rotary_size : int
        Elements of a head that are rotated (Su et al. 2021); 0 without rotary positions.
    rotary_style : {"half", "interleaved", "complex"}
        Which elements form a pair: one of each half, or neighbours; ``complex`` multiplies complex numbers.
    has_alibi : bool
        Whether positions are a bias of the scores, linear in the distance (Press et al. 2022).
    window : int or None
        Tokens back that a query attends to; None: all.
    chunk : int or None
        Length of the chunks within which tokens attend to each other (Llama 4); None: one chunk.
    has_sinks : bool
        Whether each head has a learned sink among its scores (gpt-oss).
    has_softcap : bool
        Whether scores are limited by a scaled hyperbolic tangent (Gemma 2).
    is_always_unfused : bool
        Whether ``transformers`` computes scores, softmax and their product with the values in separate kernels whatever
        implementation of attention is chosen. Inference engines fuse them all the same.
    has_output_gate : bool
        Whether the query projection also makes a gate of the output (Qwen3-Next).
    gate_projection : str
        Name of a projection of its own that makes this gate (AFMoE); empty: there is none.
    experts : HeadExperts or None
        Experts in place of the query and the output projection (JetMoE); `heads` are those that a token passes.
    adapter_rank : int or None
        Rank of the adapters beside the query, key and value projections (Zamba2); None: there are none.
    output_size : int or None
        Width of the output; None: that of the input.
    dropout : float
        Dropout probability of the attention weights, in training.
    """

    heads: int
    kv_heads: int
    head_size: int
    value_size: int | None = None
    has_value_scale: bool = False
    module: str = "self_attn"
    projections: Projections = Projections()
    packed_layout: Literal["split", "chunk", "heads", "groups"] = "split"
    transposed_weights: bool = False
    bias: bool = False
    output_bias: bool = False
    query_key_norm: Literal["", "per_head", "full_width", "after_rotary", "per_head_after_rotary"] = ""
    output_norm: str = ""
    norm: NormKind = "rms"
    has_value_norm: bool = False
    shares_key_and_value: bool = False
    reuses_cache: bool = False
    rotary_size: int = 0
    rotary_style: Literal["half", "interleaved", "complex"] = "half"
    has_alibi: bool = False
    window: int | None = None
    chunk: int | None = None
    has_sinks: bool = False
    has_softcap: bool = False
    is_always_unfused: bool = False
    has_output_gate: bool = False
    gate_projection: str = ""
    experts: HeadExperts | None = None
    adapter_rank: int | None = None
    output_size: int | None = None
    dropout: float = 0.0


class Indexer(msgspec.Struct, frozen=True, kw_only=True):
    """A small attention that selects the tokens to which latent attention attends (DeepSeek-V3.2, 2025, section 2.1).

    The score of token s for token t is ``sum_h w[t, h] relu(q[t, h] . k[s])``, with one key per token. Keys are cached.

    Attributes
    ----------
    heads, head_size : int
    module : str
    """

    heads: int
    head_size: int
    module: str = "indexer"


class LatentAttention(msgspec.Struct, frozen=True, kw_only=True):
    """Multi-head latent attention: keys and values come from one low-rank vector per token (DeepSeek-V2, 2024).

    The cache keeps that vector and the rotated part of the key, ``kv_rank + rotary_size`` numbers per token.

    Attributes
    ----------
    heads : int
    query_rank : int or None
        Rank of the query projection; None: queries are projected at once.
    kv_rank : int
        Size of the latent vector.
    plain_size, rotary_size, value_size : int
        Sizes per head: the part of queries and keys without positions, the rotated part, and the values.
    module : str
    bias : bool
        Biases of the two down-projections.
    rotary_style : {"half", "interleaved", "complex"}
    is_rotated : bool
        Whether that part is rotated at all (Kimi Linear has no positions).
    norm : NormKind
    selected : int or None
        Tokens to which a query attends, at most; None: all.
    indexer : Indexer or None
        Selects these tokens; None: the selection of the layer before is used, or there is none.
    dropout : float
    """

    heads: int
    query_rank: int | None
    kv_rank: int
    plain_size: int
    rotary_size: int
    value_size: int
    module: str = "self_attn"
    bias: bool = False
    rotary_style: Literal["half", "interleaved", "complex"] = "half"
    is_rotated: bool = True
    norm: NormKind = "rms"
    selected: int | None = None
    indexer: Indexer | None = None
    dropout: float = 0.0


class Compression(msgspec.Struct, frozen=True, kw_only=True):
    """Keys of which each stands for several tokens (DeepSeek-V4, 2026, section 2.3).

    Attributes
    ----------
    rate : int
        Tokens per key.
    overlaps : bool
        Whether a key also reads the tokens of the key before, through features of their own.
    indexer : Indexer or None
        Selects the keys for each query, from keys of its own compressed at the same rate; None: all are read.
    selected : int or None
        How many it selects.
    """

    rate: int
    overlaps: bool = False
    indexer: Indexer | None = None
    selected: int | None = None


class CompressedAttention(msgspec.Struct, frozen=True, kw_only=True):
    """Attention of many query heads to one head of keys that are values, too: a window and compressed tokens.

    Attributes
    ----------
    heads, head_size, rotary_size : int
    query_rank : int
    output_groups, output_rank : int
        Groups of heads, each of which is projected to `output_rank` numbers before the output projection.
    window : int
        Last tokens that are read as they are.
    compression : Compression or None
        None: the window is all that is read.
    module : str
    """

    heads: int
    head_size: int
    rotary_size: int
    query_rank: int
    output_groups: int
    output_rank: int
    window: int
    compression: Compression | None = None
    module: str = "self_attn"


class FeedForward(msgspec.Struct, frozen=True, kw_only=True):
    """A feed-forward part: up, activation, down; gated where a second projection is multiplied in (Shazeer 2020).

    Attributes
    ----------
    inner_size : int
    activation : str
        One of `paleo_lite.architectures.tape.ACTIVATIONS`.
    is_gated : bool
    bias : bool
    module : str
        Name of the module in its block; empty where the projections belong to the block itself.
    gate, up, down : str
        Names of the projections.
    packed : str
        Name of the projection that makes gate and up at once; empty where each has its own.
    activation_module : str
    transposed_weights : bool
    is_limited : bool
        Whether gate and up projection are limited before the activation (DeepSeek-V4).
    has_sparse_activation : bool
        Whether inner values below a quantile of a normal distribution are set to zero first (Gemma 3n).
    inner_norm : str
        Name of the norm before the down projection; empty: there is none (BitNet has one).
    adapter_rank : int or None
        Rank of the adapter beside the packed projection (Zamba2); None: there is none.
    dropout : float or None
        Dropout probability after the part; None: the model has no such module.
    """

    inner_size: int
    activation: str = "silu"
    is_gated: bool = True
    bias: bool = False
    module: str = "mlp"
    gate: str = "gate_proj"
    up: str = "up_proj"
    down: str = "down_proj"
    packed: str = ""
    activation_module: str = "act_fn"
    transposed_weights: bool = False
    is_limited: bool = False
    has_sparse_activation: bool = False
    inner_norm: str = ""
    adapter_rank: int | None = None
    dropout: float | None = None


class ChannelMix(msgspec.Struct, frozen=True, kw_only=True):
    """The feed-forward part of RWKV-4: a squared ReLU, gated by a projection of the input and of the token before.

    Attributes
    ----------
    inner_size : int
    module : str
    """

    inner_size: int
    module: str = "feed_forward"


class Experts(msgspec.Struct, frozen=True, kw_only=True):
    """A mixture of experts: a router chooses some of many gated feed-forward parts for each token.

    Attributes
    ----------
    count, active : int
        Experts, and how many of them each token passes.
    idle : int
        Further experts that return their input, among which the router chooses, too (LongCat): tokens pass fewer.
    inner_size : int
        Of one expert.
    activation : str
    is_gated : bool
        Whether a second projection is multiplied in (Shazeer 2020).
    latent_size : int or None
        Width to which a token is projected before the experts and from which their sum is projected back (LatentMoE of
        Nemotron 3); None: experts read the hidden state.
    module : str
    router : str
        Name of the router in the module.
    experts : str
        Name of the experts in the module.
    scoring : {"softmax", "sigmoid", "sqrtsoftplus", "softmax_of_chosen", "sigmoid_of_chosen"}
        How router logits become weights, and whether before or after the choice.
    is_normalised : bool
        Whether the weights of the chosen experts are divided by their sum.
    router_bias, score_correction : bool
        Whether the router has a bias, and whether a learned correction is added to the scores for the choice only
        (DeepSeek-V3).
    correction_is_parameter : bool
        Whether the correction counts as a parameter (ERNIE 4.5).
    bias : bool
        Whether experts have biases.
    has_output_bias : bool
        Whether a bias is added to the sum of the experts (JetMoE).
    is_clamped : bool
        Whether gate and up are limited, and the activation is that of gpt-oss.
    is_limited : bool
        Whether gate and up are limited before the activation (DeepSeek-V4).
    is_hashed : bool
        Whether a table gives the experts of each token of the vocabulary, instead of the router (DeepSeek-V4).
    groups : int
        Groups of experts of which some are chosen first; 1: no groups.
    shared : FeedForward or None
        Experts that every token passes, as one feed-forward part.
    has_scaled_router : bool
        Whether the router reads the normalised hidden state times a learned vector, and the weights of the chosen
        experts are multiplied by learned factors (Gemma 4).
    has_shared_gate : bool
        Whether the output of the shared experts is multiplied by a sigmoid of its own (Qwen2-MoE).
    """

    count: int
    active: int
    inner_size: int
    idle: int = 0
    activation: str = "silu"
    is_gated: bool = True
    latent_size: int | None = None
    module: str = "mlp"
    router: str = "gate"
    experts: str = "experts"
    scoring: Literal["softmax", "sigmoid", "sqrtsoftplus", "softmax_of_chosen", "sigmoid_of_chosen"] = "softmax"
    is_normalised: bool = True
    router_bias: bool = False
    score_correction: bool = False
    correction_is_parameter: bool = False
    bias: bool = False
    has_output_bias: bool = False
    is_clamped: bool = False
    is_limited: bool = False
    is_hashed: bool = False
    groups: int = 1
    shared: FeedForward | None = None
    has_scaled_router: bool = False
    has_shared_gate: bool = False


class Mamba(msgspec.Struct, frozen=True, kw_only=True):
    """A selective state-space mixer of the first kind (Gu and Dao 2023).

    Attributes
    ----------
    inner_size : int
        Channels.
    state_size : int
        State per channel.
    convolution : int
        Taps of the causal depthwise convolution.
    step_rank : int
        Rank of the projection that makes the step sizes.
    bias, convolution_bias : bool
    has_norms, norms_have_weights : bool
        Whether step, input and output projections are normalised (Jamba), and whether with weights.
    module : str
    """

    inner_size: int
    state_size: int
    convolution: int
    step_rank: int
    bias: bool = False
    convolution_bias: bool = True
    has_norms: bool = False
    norms_have_weights: bool = True
    module: str = "mixer"


class Mamba2(msgspec.Struct, frozen=True, kw_only=True):
    """A state-space mixer of the second kind, computed in chunks by matrix products (Dao and Gu 2024).

    Attributes
    ----------
    heads, head_size : int
        ``heads * head_size`` channels.
    groups : int
        Groups of heads that share input and output projections of the state.
    state_size : int
    convolution : int
    chunk : int
        Tokens of a chunk.
    bias, convolution_bias : bool
    has_norm : bool
        Whether the gated output is normalised.
    module : str
    """

    heads: int
    head_size: int
    groups: int
    state_size: int
    convolution: int
    chunk: int = 256
    bias: bool = False
    convolution_bias: bool = True
    has_norm: bool = True
    module: str = "mixer"


class DeltaNet(msgspec.Struct, frozen=True, kw_only=True):
    """Gated delta-rule linear attention (Yang et al. 2024), as in Qwen3-Next and Qwen3.5.

    Attributes
    ----------
    key_heads, value_heads : int
    key_size, value_size : int
        Per head.
    convolution : int
    chunk : int
    has_packed_projections : bool
        Whether one projection makes queries, keys, values and gates and another one both factors of the rule
        (Qwen3-Next); otherwise gates and factors have projections of their own (Qwen3.5).
    module : str
    """

    key_heads: int
    value_heads: int
    key_size: int
    value_size: int
    convolution: int
    chunk: int = 64
    has_packed_projections: bool = True
    module: str = "linear_attn"


class KimiDelta(msgspec.Struct, frozen=True, kw_only=True):
    """Kimi delta attention: the gated delta rule with a decay for each channel (Kimi Linear, 2025, section 3).

    Attributes
    ----------
    heads, head_size : int
    convolution : int
    chunk : int
    module : str
    """

    heads: int
    head_size: int
    convolution: int
    chunk: int = 64
    module: str = "self_attn"


class ShortConvolution(msgspec.Struct, frozen=True, kw_only=True):
    """A gated causal convolution of a few tokens (LFM2, 2025).

    Attributes
    ----------
    convolution : int
        Taps.
    bias : bool
    module : str
    """

    convolution: int
    bias: bool = False
    module: str = "conv"


class LinearRecurrence(msgspec.Struct, frozen=True, kw_only=True):
    """A gated linear recurrence with a branch beside it (RG-LRU of Griffin, De et al. 2024, section 2.4).

    Attributes
    ----------
    width : int
        Channels.
    heads : int
        Diagonal blocks of the matrices of the gates.
    convolution : int
    activation : str
        Of the branch beside the recurrence.
    module : str
    """

    width: int
    heads: int
    convolution: int
    activation: str
    module: str = "temporal_block"


class TimeMix(msgspec.Struct, frozen=True, kw_only=True):
    """The attention-free mixer of RWKV-4 (Peng et al. 2023, section 3): exponentially decaying weights of all tokens.

    Attributes
    ----------
    width : int
        Channels.
    module : str
    """

    width: int
    module: str = "attention"


class MatrixMemory(msgspec.Struct, frozen=True, kw_only=True):
    """An LSTM whose state is a matrix, with exponential gates (mLSTM of xLSTM, Beck et al. 2024, section 2.3).

    The state of a head is ``key_size x value_size``, with a normaliser of `key_size`. In chunks it is computed by the
    products of a state-space dual with one group per head (Beck et al. 2025, tiled flash linear attention, section 3).

    Attributes
    ----------
    heads : int
    key_size, value_size : int
        Per head.
    chunk : int
    has_packed_projections : bool
        Whether queries, keys, values and output gates come from one projection, and the other gates from another.
    module : str
    """

    heads: int
    key_size: int
    value_size: int
    chunk: int = 64
    has_packed_projections: bool = False
    module: str = "mlstm_layer"


Mixer = (
    Attention | LatentAttention | CompressedAttention | Mamba | Mamba2 | DeltaNet | KimiDelta | ShortConvolution
    | LinearRecurrence | TimeMix | MatrixMemory
)  # fmt: skip
"""The kinds of layers that mix the tokens of a sequence."""


class Norms(msgspec.Struct, frozen=True):
    """Names of the norms of a block; an empty name: there is no such norm."""

    before_mixer: str = "input_layernorm"
    after_mixer: str = ""
    before_feed_forward: str = "post_attention_layernorm"
    after_feed_forward: str = ""


class PerLayerInput(msgspec.Struct, frozen=True, kw_only=True):
    """A small embedding of every token for every block, gated into the block (per-layer embeddings of Gemma 3n).

    Attributes
    ----------
    size : int
        Of the embedding in one block.
    activation : str
    """

    size: int
    activation: str


class SideExperts(msgspec.Struct, frozen=True, kw_only=True):
    """A mixture of experts beside the feed-forward part of a block, to which its output is added (Gemma 4, LongCat).

    Attributes
    ----------
    experts : Experts
    norm_before, norm_after, other_norm_after : str
        Names of the norms before and after the experts, and of that after the feed-forward part. Without a norm before
        them the experts read what the feed-forward part reads.
    """

    experts: Experts
    norm_before: str = "pre_feedforward_layernorm_2"
    norm_after: str = "post_feedforward_layernorm_2"
    other_norm_after: str = "post_feedforward_layernorm_1"


class SharedTransformer(msgspec.Struct, frozen=True, kw_only=True):
    """Attention and a feed-forward part before the mixer of a block, with weights that other blocks share.

    It reads the hidden state beside the embedding of the token, and a projection of the block puts its output into the
    input of the mixer (Zamba2, Glorioso et al. 2024, section 2). Adapters are the block's own.

    Attributes
    ----------
    attention : Attention
    feed_forward : FeedForward
    is_repeated : bool
        Whether the weights are those of a block before.
    norms : Norms
    module, projection, rest : str
        Names of the transformer, of the projection, and of the module around mixer and norm.
    """

    attention: Attention
    feed_forward: FeedForward
    is_repeated: bool = False
    norms: Norms = Norms(before_feed_forward="pre_ff_layernorm")
    module: str = "shared_transformer"
    projection: str = "linear"
    rest: str = "mamba_decoder"


class HyperConnection(msgspec.Struct, frozen=True, kw_only=True):
    """Several residual streams, of which every part of a block reads a sum, and which it mixes (Xie et al. 2026).

    Attributes
    ----------
    streams : int
    before_mixer, before_feed_forward : str
        Names of the modules.
    """

    streams: int
    before_mixer: str = "attn_hc"
    before_feed_forward: str = "ffn_hc"


class Alternating(msgspec.Struct, frozen=True, kw_only=True):
    """Several residual streams of which a block computes one and corrects the others (AltUp, Baykal et al. 2023).

    Attributes
    ----------
    streams : int
    laurel_rank : int
        Rank of the residual beside attention (LAuReL, Menghani et al. 2024).
    module, laurel : str
    """

    streams: int
    laurel_rank: int
    module: str = "altup"
    laurel: str = "laurel"


class Block(msgspec.Struct, frozen=True, kw_only=True):
    """A block: mixers, then a feed-forward part, each added to its input.

    Attributes
    ----------
    mixers : tuple of Mixer
        More than one run side by side on the same input, and their outputs are added (Falcon-H1). Without any the block
        is a feed-forward part alone (Nemotron-H).
    feed_forward : FeedForward, ChannelMix, Experts or None
    norm : NormKind
    norms : Norms
    is_parallel : bool
        Whether mixer and feed-forward part read the same input, and both are added to it (Wang and Komatsuzaki 2021).
        Without a second norm they also share the first.
    has_residual_scale : bool
        Whether the output of each part is multiplied by a constant before it is added (Granite, MiniCPM).
    side_experts : SideExperts or None
        Experts that read the input of the feed-forward part's norm; None: there are none.
    per_layer_input : PerLayerInput or None
    hyper_connection : HyperConnection or None
        None: the residual stream is one, and outputs are added to it.
    alternating : Alternating or None
        Streams with alternating updates (Gemma 3n); None: there is one.
    shared : SharedTransformer or None
        A transformer before the mixer (Zamba2); None: there is none.
    has_output_scale : bool
        Whether the output of the block is multiplied by a constant (Gemma 4).
    dropout : float or None
        Dropout probability after mixer and feed-forward part; None: the model has no such modules.
    """

    mixers: tuple[Mixer, ...]
    feed_forward: FeedForward | ChannelMix | Experts | None = None
    side_experts: SideExperts | None = None
    per_layer_input: PerLayerInput | None = None
    hyper_connection: HyperConnection | None = None
    alternating: Alternating | None = None
    shared: SharedTransformer | None = None
    has_output_scale: bool = False
    norm: NormKind = "rms"
    norms: Norms = Norms()
    is_parallel: bool = False
    has_residual_scale: bool = False
    dropout: float | None = None


class Decoder(msgspec.Struct, frozen=True, kw_only=True):
    """A language model that writes text token by token.

    Attributes
    ----------
    vocabulary, hidden_size : int
    blocks : tuple of Block
    root : str
        Name of the module around the blocks in the class with a head.
    block_list : str
        Name of the list of blocks.
    embedding, final_norm, head : str
        Names of modules; an empty `final_norm`: there is none.
    norm : NormKind
        Of the final norm.
    has_embedding_scale, has_logit_scale, has_logit_softcap : bool
    embedding_norm : str
        Name of a layer norm after the embedding; empty without one.
    learned_positions : int
        Rows of the table of learned positions; 0 without one.
    position_embedding : str
    per_layer_vocabulary : int
        Rows of the table of per-layer embeddings; 0: there is none.
    is_tied : bool
        Whether the head's weight is that of the embedding.
    head_bias : bool
    dropout : float or None
        Dropout probability of the embedding; None: the model has no such module.
    """

    vocabulary: int
    hidden_size: int
    blocks: tuple[Block, ...]
    root: str = "model"
    block_list: str = "layers"
    embedding: str = "embed_tokens"
    final_norm: str = "norm"
    head: str = "lm_head"
    norm: NormKind = "rms"
    has_embedding_scale: bool = False
    embedding_norm: str = ""
    has_logit_scale: bool = False
    has_logit_softcap: bool = False
    learned_positions: int = 0
    position_embedding: str = "wpe"
    per_layer_vocabulary: int = 0
    is_tied: bool = False
    head_bias: bool = False
    dropout: float | None = None

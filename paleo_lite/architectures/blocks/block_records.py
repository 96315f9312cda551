"""Records that describe a block of any transformer: attention, feed-forward parts, norms and additions.

`rules` fills them from a config, and `block` adds the layers they describe. A field that names modules holds the names
that ``transformers`` gives them, so that layers can be selected by the names people know.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from .mixer_records import (
    DeltaNet,
    GatedMemory,
    KimiDelta,
    LightningAttention,
    LinearRecurrence,
    Mamba,
    Mamba2,
    MatrixMemory,
    Projection,
    ShortConvolution,
    TimeMix,
)

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
    """Names of the modules that make queries, keys and values, and of the one after attention."""

    query: str = "q_proj"
    key: str = "k_proj"
    value: str = "v_proj"
    output: str = "o_proj"
    packed: str = ""  # the module that makes all three at once; empty where each has its own


class HeadExperts(msgspec.Struct, frozen=True, kw_only=True):
    """Experts of attention, each with a query and an output projection (Zhang et al. 2022, mixture of attention heads).

    A token passes some of them, and all share the keys and values of the token (JetMoE, Shen et al. 2024, section 2.2).
    """

    # Experts, and how many of them each token passes
    count: int
    active: int
    # Names of the module in attention, and of its parts
    module: str = "experts"
    router: str = "router.layer"
    input: str = "input_linear"
    output: str = "output_linear"


class RelativeBias(msgspec.Struct, frozen=True, kw_only=True):
    """A learned bias of the scores for each distance of two tokens, shared by all blocks (T5)."""

    buckets: int  # classes of distances


class Disentangled(msgspec.Struct, frozen=True, kw_only=True):
    """Disentangled attention: terms of the scores between contents and relative positions (DeBERTa, He et al. 2021)."""

    span: int  # distances to either side that are distinguished; the table has twice as many rows
    has_log_buckets: bool = True  # whether far distances share a row, in classes that grow logarithmically
    shares_projections: bool = True  # whether the projections of the contents also project positions
    terms: tuple[str, ...] = ("c2p", "p2c")  # from content to position, and from position to content
    has_norm: bool = True  # whether the table passes a layer norm
    dropout: float = 0.0  # of the table
    table: str = "encoder.rel_embeddings"
    norm: str = "encoder.LayerNorm"


class Attention(msgspec.Struct, frozen=True, kw_only=True):
    """Multi-head, grouped-query or multi-query attention."""

    # Query heads, and key and value heads; `kv_heads` divides `heads` (Ainslie et al. 2023)
    heads: int
    kv_heads: int
    head_size: int
    value_size: int | None = None  # size of a value per head; None: that of the keys
    has_value_scale: bool = False  # whether values are multiplied by a constant (MiMo-V2)
    module: str = "self_attn"  # name of the attention module in its block
    projections: Projections = Projections()
    outer_projection: str = ""  # name of the output projection in the block, where it is not in the attention module
    # How the packed projection is split: by width, by one of two calls; three parts per head; one group of queries
    # with its key and value after another; or three parts per token, of all heads each
    packed_layout: Literal["split", "chunk", "unbind", "heads", "groups", "parts"] = "split"
    transposed_weights: bool = False  # whether projections are GPT-2's ``Conv1D``
    # Width of a projection of the queries before that of the heads, with a norm (Step 3); None: there is none
    query_rank: int | None = None
    # Biases of the query, key and value projections, and of the output projection
    bias: bool = False
    output_bias: bool = False
    has_key_bias: bool = True  # whether the key projection has the bias of the others (Whisper's has none)
    scales_queries: bool = False  # whether queries are multiplied by a constant, and all heads copied (Whisper)
    # Norm of queries and keys: none, over each head, over all heads together, or over each head after the
    # rotation, without a weight or with one
    query_key_norm: Literal["", "per_head", "full_width", "after_rotary", "per_head_after_rotary"] = ""
    output_norm: str = ""  # name of the norm before the output projection; empty: there is none (BitNet has one)
    norm: NormKind = "rms"  # kind of that norm
    has_value_norm: bool = False  # whether values are normalised over each head, too, without a weight (Gemma 4)
    # Whether the projection of the keys, before their norm, also makes the values (Gemma 4)
    shares_key_and_value: bool = False
    # Whether keys and values are those of the last layer before with the same window that made its own (Gemma 3n)
    reuses_cache: bool = False
    rotary_size: int = 0  # elements of a head that are rotated (Su et al. 2021); 0 without rotary positions
    # Which elements form a pair: one of each half, or neighbours; ``complex`` multiplies complex numbers
    rotary_style: Literal["half", "interleaved", "complex"] = "half"
    has_alibi: bool = False  # whether positions are a bias of the scores, linear in the distance (Press et al. 2022)
    relative_bias: RelativeBias | None = None
    disentangled: Disentangled | None = None
    is_causal: bool = True  # whether a token attends only to itself and earlier ones
    window: int | None = None  # tokens back that a query attends to, to either side where not causal; None: all
    windows: int = 1  # parts of the sequence whose tokens attend to each other only (Qwen2.5-VL)
    chunk: int | None = None  # length of the chunks within which tokens attend to each other (Llama 4); None: one chunk
    has_sinks: bool = False  # whether each head has a learned sink among its scores (gpt-oss)
    has_softcap: bool = False  # whether scores are limited by a scaled hyperbolic tangent (Gemma 2)
    # Whether ``transformers`` computes scores, softmax and their product with the values in separate kernels
    # whatever implementation of attention is chosen. Inference engines fuse them all the same
    is_always_unfused: bool = False
    # Whether separate kernels compute the softmax in fp32, and convert its result back, as most decoders do in
    # ``transformers``: ``softmax(scores, dim=-1, dtype=torch.float32).to(query.dtype)``
    has_wide_softmax: bool = True
    has_output_gate: bool = False  # whether the query projection also makes a gate of the output (Qwen3-Next)
    gate_projection: str = ""  # name of a projection of its own that makes this gate (AFMoE); empty: there is none
    gate_is_per_head: bool = False  # whether that gate is one number for each head (Step 3.5)
    # Whether the output of each pair of heads is the difference of both, each with the values of both (Ye et al. 2024)
    is_differential: bool = False
    # Experts in place of the query and the output projection (JetMoE); `heads` are those that a token passes
    experts: HeadExperts | None = None
    # Rank of the adapters beside the query, key and value projections (Zamba2); None: there are none
    adapter_rank: int | None = None
    # Selects blocks of tokens for each query, and how many blocks a query attends to (MiniMax-M3); None: all tokens
    indexer: Indexer | None = None
    selected_blocks: int = 0
    output_size: int | None = None  # width of the output; None: that of the input
    dropout: float = 0.0  # dropout probability of the attention weights, in training
    output_dropout: float | None = None  # of the output, in the attention module (ModernBERT); None: there is none


class Indexer(msgspec.Struct, frozen=True, kw_only=True):
    """A small attention that selects the tokens to which another one attends (DeepSeek-V3.2, 2025, section 2.1).

    The score of token s for token t is ``sum_h w[t, h] relu(q[t, h] . k[s])``, with one key per token. Keys are cached.
    """

    heads: int
    head_size: int
    module: str = "indexer"
    block_size: int = 1  # tokens that are selected together, by the largest of their scores (MiniMax-M3)


class LatentAttention(msgspec.Struct, frozen=True, kw_only=True):
    """Multi-head latent attention: keys and values come from one low-rank vector per token (DeepSeek-V2, 2024).

    The cache keeps that vector and the rotated part of the key, ``kv_rank + rotary_size`` numbers per token.
    """

    heads: int
    query_rank: int | None  # rank of the query projection; None: queries are projected at once
    kv_rank: int  # size of the latent vector
    # Sizes per head: the part of queries and keys without positions, the rotated part, and the values
    plain_size: int
    rotary_size: int
    value_size: int
    module: str = "self_attn"
    bias: bool = False  # biases of the two down-projections
    rotary_style: Literal["half", "interleaved", "complex"] = "half"
    is_rotated: bool = True  # whether that part is rotated at all (Kimi Linear has no positions)
    norm: NormKind = "rms"
    selected: int | None = None  # tokens to which a query attends, at most; None: all
    # Selects these tokens; None: the selection of the layer before is used, or there is none
    indexer: Indexer | None = None
    gate_projection: str = ""  # name of the projection that makes a gate of the output (Kimi K3); empty: there is none
    dropout: float = 0.0


class Compression(msgspec.Struct, frozen=True, kw_only=True):
    """Keys of which each stands for several tokens (DeepSeek-V4, 2026, section 2.3)."""

    rate: int  # tokens per key
    overlaps: bool = False  # whether a key also reads the tokens of the key before, through features of their own
    # Selects the keys for each query, from keys of its own compressed at the same rate; None: all are read
    indexer: Indexer | None = None
    selected: int | None = None  # how many it selects


class CompressedAttention(msgspec.Struct, frozen=True, kw_only=True):
    """Attention of many query heads to one head of keys that are values, too: a window and compressed tokens."""

    heads: int
    head_size: int
    rotary_size: int
    query_rank: int
    # Groups of heads, each of which is projected to `output_rank` numbers before the output projection
    output_groups: int
    output_rank: int
    window: int  # last tokens that are read as they are
    compression: Compression | None = None  # None: the window is all that is read
    module: str = "self_attn"


class FeedForward(msgspec.Struct, frozen=True, kw_only=True):
    """A feed-forward part: up, activation, down; gated where a second projection is multiplied in (Shazeer 2020)."""

    inner_size: int
    activation: str = "silu"  # one of `paleo_lite.architectures.tape.ACTIVATIONS`
    is_gated: bool = True
    bias: bool = False
    output_bias: bool | None = None  # bias of the down projection; None: as of the others
    module: str = "mlp"  # name of the module in its block; empty where the projections belong to the block itself
    # Names of the projections
    gate: str = "gate_proj"
    up: str = "up_proj"
    down: str = "down_proj"
    packed: str = ""  # name of the projection that makes gate and up at once; empty where each has its own
    activation_module: str = "act_fn"
    transposed_weights: bool = False
    is_limited: bool = False  # whether gate and up projection are limited before the activation (DeepSeek-V4)
    # Whether inner values below a quantile of a normal distribution are set to zero first (Gemma 3n)
    has_sparse_activation: bool = False
    inner_norm: str = ""  # name of the norm before the down projection; empty: there is none (BitNet has one)
    adapter_rank: int | None = None  # rank of the adapter beside the packed projection (Zamba2); None: there is none
    inner_dropout: float | None = None  # dropout probability before the down projection; None: there is no such module
    inner_dropout_module: str = "dropout"
    dropout: float | None = None  # dropout probability after the part; None: the model has no such module
    dropout_origin: str = "module:Dropout"  # how dropout is called: see `paleo_lite.architectures.tape.Tape.op`


class ChannelMix(msgspec.Struct, frozen=True, kw_only=True):
    """The feed-forward part of RWKV-4: a squared ReLU, gated by a projection of the input and of the token before."""

    inner_size: int
    module: str = "feed_forward"


class Experts(msgspec.Struct, frozen=True, kw_only=True):
    """A mixture of experts: a router chooses some of many gated feed-forward parts for each token."""

    # Experts, and how many of them each token passes
    count: int
    active: int
    inner_size: int  # of one expert
    # Further experts that return their input, among which the router chooses, too (LongCat): tokens pass fewer
    idle: int = 0
    activation: str = "silu"
    is_gated: bool = True  # whether a second projection is multiplied in (Shazeer 2020)
    # Width to which a token is projected before the experts and from which their sum is projected back (LatentMoE
    # of Nemotron 3); None: experts read the hidden state
    latent_size: int | None = None
    has_latent_norm: bool = False  # whether the sum of the experts is normalised at that width (Kimi K3)
    module: str = "mlp"
    router: str = "gate"  # name of the router in the module
    experts: str = "experts"  # name of the experts in the module
    # How router logits become weights, and whether before or after the choice
    scoring: Literal["softmax", "sigmoid", "sqrtsoftplus", "softmax_of_chosen", "sigmoid_of_chosen"] = "softmax"
    is_normalised: bool = True  # whether the weights of the chosen experts are divided by their sum
    # Whether the router has a bias, and whether a learned correction is added to the scores for the choice only
    # (DeepSeek-V3)
    router_bias: bool = False
    score_correction: bool = False
    correction_is_parameter: bool = False  # whether the correction counts as a parameter (ERNIE 4.5)
    bias: bool = False  # whether experts have biases
    has_output_bias: bool = False  # whether a bias is added to the sum of the experts (JetMoE)
    is_clamped: bool = False  # whether gate and up are limited, and the activation is that of gpt-oss
    is_limited: bool = False  # whether gate and up are limited before the activation (DeepSeek-V4)
    # Whether a table gives the experts of each token of the vocabulary, instead of the router (DeepSeek-V4)
    is_hashed: bool = False
    groups: int = 1  # groups of experts of which some are chosen first; 1: no groups
    shared: FeedForward | None = None  # experts that every token passes, as one feed-forward part
    # Experts of another kind of token, such as images, with a router of their own (ERNIE 4.5 VL): tokens of text pass
    # none of them
    other_count: int = 0
    other_inner_size: int = 0
    # Whether the router reads the normalised hidden state times a learned vector, and the weights of the chosen
    # experts are multiplied by learned factors (Gemma 4)
    has_scaled_router: bool = False
    # Whether the output of the shared experts is multiplied by a sigmoid of its own (Qwen2-MoE)
    has_shared_gate: bool = False


Mixer = (
    Attention | LatentAttention | CompressedAttention | Mamba | Mamba2 | DeltaNet | KimiDelta | ShortConvolution
    | LinearRecurrence | TimeMix | MatrixMemory | LightningAttention | GatedMemory | Projection
)  # fmt: skip
"""The kinds of layers that mix the tokens of a sequence."""


class Norms(msgspec.Struct, frozen=True):
    """Names of the norms of a block; an empty name: there is no such norm."""

    before_mixer: str = "input_layernorm"
    after_mixer: str = ""
    before_feed_forward: str = "post_attention_layernorm"
    after_feed_forward: str = ""
    before_cross_attention: str = ""
    # Norms of the input plus the output of a part (post-norm blocks, Vaswani et al. 2017)
    after_mixer_sum: str = ""
    after_cross_attention_sum: str = ""
    after_feed_forward_sum: str = ""


class Sums(msgspec.Struct, frozen=True, kw_only=True):
    """Names of the additions of a block's parts to its input, and of the dropouts before them."""

    mixer: str = "add"
    mixer_dropout: str = "dropout"
    cross_attention: str = "add"
    cross_attention_dropout: str = "dropout"
    feed_forward: str = "add"
    feed_forward_dropout: str = "dropout"


class PerLayerInput(msgspec.Struct, frozen=True, kw_only=True):
    """A small embedding of every token for every block, gated into the block (per-layer embeddings of Gemma 3n)."""

    size: int  # of the embedding in one block
    activation: str


class SideExperts(msgspec.Struct, frozen=True, kw_only=True):
    """A mixture of experts beside the feed-forward part of a block, to which its output is added (Gemma 4, LongCat)."""

    experts: Experts
    # Names of the norms before and after the experts, and of that after the feed-forward part. Without a norm
    # before them the experts read what the feed-forward part reads
    norm_before: str = "pre_feedforward_layernorm_2"
    norm_after: str = "post_feedforward_layernorm_2"
    other_norm_after: str = "post_feedforward_layernorm_1"


class SharedTransformer(msgspec.Struct, frozen=True, kw_only=True):
    """Attention and a feed-forward part before the mixer of a block, with weights that other blocks share.

    It reads the hidden state beside the embedding of the token, and a projection of the block puts its output into the
    input of the mixer (Zamba2, Glorioso et al. 2024, section 2). Adapters are the block's own.
    """

    attention: Attention
    feed_forward: FeedForward
    is_repeated: bool = False  # whether the weights are those of a block before
    norms: Norms = Norms(before_feed_forward="pre_ff_layernorm")
    # Names of the transformer, of the projection, and of the module around mixer and norm
    module: str = "shared_transformer"
    projection: str = "linear"
    rest: str = "mamba_decoder"


class HyperConnection(msgspec.Struct, frozen=True, kw_only=True):
    """Several residual streams, of which every part of a block reads a sum, and which it mixes (Xie et al. 2026)."""

    streams: int
    # Names of the modules
    before_mixer: str = "attn_hc"
    before_feed_forward: str = "ffn_hc"


class Alternating(msgspec.Struct, frozen=True, kw_only=True):
    """Several residual streams of which a block computes one and corrects the others (AltUp, Baykal et al. 2023)."""

    streams: int
    laurel_rank: int  # rank of the residual beside attention (LAuReL, Menghani et al. 2024)
    module: str = "altup"
    laurel: str = "laurel"


class Block(msgspec.Struct, frozen=True, kw_only=True):
    """A block: mixers, attention to an encoder, and a feed-forward part, each added to its input."""

    # More than one run side by side on the same input, and their outputs are added (Falcon-H1). Without any the
    # block is a feed-forward part alone (Nemotron-H)
    mixers: tuple[Mixer, ...]
    cross_attention: Attention | None = None  # to the output of an encoder; None: there is none
    feed_forward: FeedForward | ChannelMix | Experts | Projection | None = None
    # Experts that read the input of the feed-forward part's norm; None: there are none
    side_experts: SideExperts | None = None
    per_layer_input: PerLayerInput | None = None
    hyper_connection: HyperConnection | None = None  # None: the residual stream is one, and outputs are added to it
    alternating: Alternating | None = None  # streams with alternating updates (Gemma 3n); None: there is one
    shared: SharedTransformer | None = None  # a transformer before the mixer (Zamba2); None: there is none
    has_output_scale: bool = False  # whether the output of the block is multiplied by a constant (Gemma 4)
    norm: NormKind = "rms"
    norms: Norms = Norms()
    sums: Sums = Sums()
    # Whether mixer and feed-forward part read the same input, and both are added to it (Wang and Komatsuzaki
    # 2021). Without a second norm they also share the first
    is_parallel: bool = False
    # Whether the output of each part is multiplied by a constant before it is added (Granite, MiniCPM)
    has_residual_scale: bool = False
    dropout: float | None = None  # dropout probability after every part; None: the model has no such modules
    # How dropout after the parts, and in the feed-forward part, is called: see `tape.Tape.op`
    dropout_origin: str = "module:Dropout"

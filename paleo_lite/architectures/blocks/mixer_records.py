"""Records of layers that mix tokens without attention: state spaces, linear recurrences, short convolutions."""

from __future__ import annotations

import msgspec


class Mamba(msgspec.Struct, frozen=True, kw_only=True):
    """A selective state-space mixer of the first kind (Gu and Dao 2023)."""

    inner_size: int  # channels
    state_size: int  # state per channel
    convolution: int  # taps of the causal depthwise convolution
    step_rank: int  # rank of the projection that makes the step sizes
    bias: bool = False
    convolution_bias: bool = True
    # Whether step, input and output projections are normalised (Jamba), and whether with weights
    has_norms: bool = False
    norms_have_weights: bool = True
    module: str = "mixer"


class Mamba2(msgspec.Struct, frozen=True, kw_only=True):
    """A state-space mixer of the second kind, computed in chunks by matrix products (Dao and Gu 2024)."""

    # ``heads * head_size`` channels
    heads: int
    head_size: int
    groups: int  # groups of heads that share input and output projections of the state
    state_size: int
    convolution: int
    chunk: int = 256  # tokens of a chunk
    bias: bool = False
    convolution_bias: bool = True
    has_norm: bool = True  # whether the gated output is normalised
    module: str = "mixer"


class DeltaNet(msgspec.Struct, frozen=True, kw_only=True):
    """Gated delta-rule linear attention (Yang et al. 2024), as in Qwen3-Next and Qwen3.5."""

    key_heads: int
    value_heads: int
    # Per head
    key_size: int
    value_size: int
    convolution: int
    chunk: int = 64
    # Whether one projection makes queries, keys, values and gates and another one both factors of the rule
    # (Qwen3-Next); otherwise gates and factors have projections of their own (Qwen3.5)
    has_packed_projections: bool = True
    module: str = "linear_attn"


class KimiDelta(msgspec.Struct, frozen=True, kw_only=True):
    """Kimi delta attention: the gated delta rule with a decay for each channel (Kimi Linear, 2025, section 3)."""

    heads: int
    head_size: int
    convolution: int
    chunk: int = 64
    has_full_gate: bool = False  # whether one projection makes the output gate, rather than two of low rank (Kimi K3)
    module: str = "self_attn"


class ShortConvolution(msgspec.Struct, frozen=True, kw_only=True):
    """A gated causal convolution of a few tokens (LFM2, 2025)."""

    convolution: int  # taps
    bias: bool = False
    module: str = "conv"


class LinearRecurrence(msgspec.Struct, frozen=True, kw_only=True):
    """A gated linear recurrence with a branch beside it (RG-LRU of Griffin, De et al. 2024, section 2.4)."""

    width: int  # channels
    heads: int  # diagonal blocks of the matrices of the gates
    convolution: int
    activation: str  # of the branch beside the recurrence
    module: str = "temporal_block"


class TimeMix(msgspec.Struct, frozen=True, kw_only=True):
    """The attention-free mixer of RWKV-4 (Peng et al. 2023, section 3), whose weights of tokens decay exponentially."""

    width: int  # channels
    module: str = "attention"


class LightningAttention(msgspec.Struct, frozen=True, kw_only=True):
    """Linear attention with a fixed decay per head, computed in chunks (MiniMax-01, Li et al. 2025, section 2.2).

    The state of a head is ``head_size x head_size``. In chunks it is computed by the products of a state-space dual
    with as many groups as heads.
    """

    heads: int
    head_size: int
    chunk: int = 256
    activation: str = ""  # of queries, keys and values; empty: there is none (Ring-linear)
    has_head_norms: bool = False  # whether queries and keys are normalised over each head
    # Names of the module and of its parts
    module: str = "self_attn"
    projection: str = "qkv_proj"
    gate: str = "output_gate"
    norm: str = "norm"
    output: str = "out_proj"


class GatedMemory(msgspec.Struct, frozen=True, kw_only=True):
    """A gate of what the last state-space mixer before has read from its state (SambaY, Ren et al. 2025, section 2)."""

    width: int  # channels of that mixer
    module: str


class Projection(msgspec.Struct, frozen=True, kw_only=True):
    """One matrix in place of attention or of a feed-forward part (Puzzle, Bercovich et al. 2024, section 2.1)."""

    module: str
    bias: bool = False


class MatrixMemory(msgspec.Struct, frozen=True, kw_only=True):
    """An LSTM whose state is a matrix, with exponential gates (mLSTM of xLSTM, Beck et al. 2024, section 2.3).

    The state of a head is ``key_size x value_size``, with a normaliser of `key_size`. In chunks it is computed by the
    products of a state-space dual with one group per head (Beck et al. 2025, tiled flash linear attention, section 3).
    """

    heads: int
    # Per head
    key_size: int
    value_size: int
    chunk: int = 64
    # Whether queries, keys, values and output gates come from one projection, and the other gates from another
    has_packed_projections: bool = False
    module: str = "mlstm_layer"

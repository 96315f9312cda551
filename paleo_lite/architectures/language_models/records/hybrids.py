"""Decoders in which most layers have a state of fixed size instead of attention."""

from __future__ import annotations

from ..family import DEEPSEEK_EXPERTS, NEXT_TOKEN, Family
from ..keys import Activation, CountOf, Flag, Integer, Lettered, Listed
from ..traits import Norms

_SQUARED = Activation(("mlp_hidden_act",), "relu2")
_LISTS = ("hybrid_override_pattern", "layers_block_type", "layer_types")


def _nemotron_layers(letters: str, names: str) -> Lettered:
    """Return the rule of Nemotron-H's layers with some letters in the pattern, or some names in the list of layers."""
    listed = Listed(names, "layers_block_type", otherwise=Listed(names, "layer_types"))
    return Lettered(letters, "hybrid_override_pattern", listed)


FAMILIES: dict[str, Family] = {
    "nemotron_h": Family(
        name="NemotronH", layer_count=CountOf("num_hidden_layers", _LISTS), longest=4096,
        decoder={"embedding": "embeddings", "final_norm": "norm_f"},
        block={"norms": Norms("norm", before_feed_forward="norm")},
        mixes=_nemotron_layers("M*", "linear_attention full_attention mamba attention"),
        attends=_nemotron_layers("*", "full_attention attention"),
        feeds=_nemotron_layers("-E", "mlp moe"), sparse=_nemotron_layers("E", "moe"),
        attention={"module": "mixer", "rotary_size": 0},
        feed_forward={"module": "mixer", "is_gated": False, "bias": Flag("mlp_bias"), "activation": _SQUARED},
        mamba2={
            "heads": Integer("mamba_num_heads", 128), "head_size": Integer("mamba_head_dim", 64),
            "groups": Integer("mamba_n_groups n_groups", 8), "state_size": Integer("ssm_state_size", 128),
            "convolution": Integer("mamba_d_conv conv_kernel", 4),
            "chunk": Integer("mamba_chunk_size chunk_size", 128),
            "bias": Flag("use_bias"), "convolution_bias": Flag("use_conv_bias", True),
        },
        experts={**DEEPSEEK_EXPERTS, "module": "mixer", "is_gated": False, "activation": _SQUARED,
                 "latent_size": Integer("moe_latent_size", None)},
        shared={"module": "shared_experts", "inner_size": Integer("moe_shared_expert_intermediate_size")},
        next_token=NEXT_TOKEN, has_plain_next_token=False,
    ),
}  # fmt: skip

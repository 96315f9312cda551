"""Layers, counts and parameters of every family of language models equal the traced ``transformers`` module.

Tests: architectures/blocks/alternating.py, architectures/blocks/attention.py, architectures/blocks/block_records.py,
architectures/blocks/compressed_attention.py, architectures/blocks/dot_product.py, architectures/blocks/feed_forward.py,
architectures/blocks/hyper_connection.py, architectures/blocks/latent_attention.py,
architectures/blocks/mixer_records.py, architectures/blocks/norms.py, architectures/blocks/recurrence.py,
architectures/blocks/rules.py, architectures/blocks/state_space.py, architectures/families/decoder.py,
architectures/keys.py, architectures/layer_rules.py.
"""

from __future__ import annotations

import json
from collections import Counter
from functools import cache
from math import prod
from pathlib import Path
from typing import NamedTuple

import pytest

from paleo_lite.architectures.blocks.block_records import Experts
from paleo_lite.architectures.catalog import find_network
from paleo_lite.architectures.config import Config
from paleo_lite.architectures.families.family import FAMILIES
from paleo_lite.architectures.hugging_face import cache_argument
from paleo_lite.architectures.model_config import read_config
from paleo_lite.architectures.network import SequenceOptions
from paleo_lite.counting import count
from paleo_lite.errors import BadDescriptor, BadValue, SequenceTooLong
from paleo_lite.timing.workload import cached_for_layers

TOKENS, CONTEXT = 16, 32

SMALL = {
    "vocab_size": 1000, "hidden_size": 64, "intermediate_size": 176, "num_hidden_layers": 2, "num_attention_heads": 8,
    "num_key_value_heads": 2, "pad_token_id": 0,
}  # fmt: skip
LATENT = {
    "num_key_value_heads": 8, "kv_lora_rank": 16, "q_lora_rank": 24, "qk_nope_head_dim": 8, "qk_rope_head_dim": 4,
    "v_head_dim": 8,
}  # fmt: skip
FEW_EXPERTS = {"num_experts_per_tok": 2, "moe_intermediate_size": 32}
DEEPSEEK = {**LATENT, **FEW_EXPERTS, "n_routed_experts": 16, "first_k_dense_replace": 1}
INDEXER = {"index_n_heads": 4, "index_head_dim": 16, "index_topk": 64}
GPT = {"vocab_size": 1000, "n_embd": 64, "n_layer": 2, "n_head": 8}


def type_of(case):
    """The model type of a case: a second word tells apart cases of one type."""
    return case.partition(" ")[0]


STEP = {
    **FEW_EXPERTS, "n_routed_experts": 8, "num_local_experts": 8, "share_expert_dim": 48, "head_dim": 8,
    "num_hidden_layers": 3, "layer_types": ["full_attention", "sliding_attention", "full_attention"],
    "num_sliding_attention_heads": 16, "sliding_window": 8, "partial_rotary_factors": [0.5, 1.0, 0.5],
    "rope_theta": [5e6, 1e4, 5e6],
}  # fmt: skip


class Case(NamedTuple):
    """A family as a small model.

    Attributes
    ----------
    changes : dict
        Keys that differ from `SMALL`.
    attention : {"sdpa", "eager"}
        Implementation of attention; the families that know only one have it.
    bytes_within : float
        Relative difference allowed between the bytes. The trace of a mixture of experts is one in bf16, with casts of
        norms and routers to fp32, which configs leave to the precision of the question.
    is_complete : bool
        Whether the changes are the whole config.
    has_head : bool
        Whether the class with a head is compared; the text part of a vision-language model has none of its own.
    """

    changes: dict
    attention: str = "sdpa"
    bytes_within: float = 0.01
    is_complete: bool = False
    has_head: bool = True

    @property
    def config(self):
        return self.changes if self.is_complete else {**SMALL, **self.changes}

    def class_of(self, model_type):
        with_head, without_head, *_ = FAMILIES[type_of(model_type)].classes
        return with_head if self.has_head else without_head


CASES = {
    "llama": Case({"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True}),
    "mistral": Case({"sliding_window": 8}),
    "ministral": Case({"head_dim": 8}),
    "mixtral": Case({"num_local_experts": 8}, bytes_within=0.05),
    "qwen2": Case({}),
    "qwen2_moe": Case({**FEW_EXPERTS, "num_experts": 8, "shared_expert_intermediate_size": 48}, bytes_within=0.08),
    "qwen3": Case({"head_dim": 16}),
    "qwen3_moe": Case({**FEW_EXPERTS, "num_experts": 8, "head_dim": 8, "norm_topk_prob": True}, bytes_within=0.1),
    "qwen3_vl_text": Case({"head_dim": 16}, has_head=False),
    "qwen3_vl_moe_text": Case({**FEW_EXPERTS, "num_experts": 8, "head_dim": 8, "norm_topk_prob": True},
                              bytes_within=0.15, has_head=False),
    "qwen3_omni_moe_text": Case({**FEW_EXPERTS, "num_experts": 8, "head_dim": 8, "norm_topk_prob": True},
                                bytes_within=0.15, has_head=False),
    "gemma": Case({"head_dim": 16}),
    "gemma2": Case({"head_dim": 16}, "eager"),
    "gemma3_text": Case({"head_dim": 16}),
    "gemma3n_text": Case({
        "num_hidden_layers": 4, "layer_types": ["sliding_attention", "full_attention"] * 2, "head_dim": 8,
        "hidden_size_per_layer_input": 16, "vocab_size_per_layer_input": 900, "num_kv_shared_layers": 2,
        "laurel_rank": 8, "activation_sparsity_pattern": [0.95, 0.0, 0.0, 0.0],
    }, bytes_within=0.1),
    "gemma4_text": Case({
        **FEW_EXPERTS, "num_hidden_layers": 3, "layer_types": ["sliding_attention"] * 2 + ["full_attention"],
        "head_dim": 8, "global_head_dim": 16, "num_global_key_value_heads": 1, "attention_k_eq_v": True,
        "enable_moe_block": True, "num_experts": 8, "top_k_experts": 2, "hidden_size_per_layer_input": 0,
    }, bytes_within=0.15),
    "gemma4_unified_text": Case({
        "num_hidden_layers": 3, "layer_types": ["sliding_attention"] * 2 + ["full_attention"], "head_dim": 8,
        "global_head_dim": 16, "attention_k_eq_v": True, "num_global_key_value_heads": 1,
    }, bytes_within=0.1),
    "gemma4_text small": Case({
        "num_hidden_layers": 6, "layer_types": ["sliding_attention", "full_attention"] * 3, "head_dim": 8,
        "global_head_dim": 16, "hidden_size_per_layer_input": 16, "vocab_size_per_layer_input": 900,
        "num_kv_shared_layers": 2, "use_double_wide_mlp": True,
    }, bytes_within=0.1),
    "phi": Case({}),
    "phi3": Case({}, bytes_within=0.03),
    "phimoe": Case({"num_local_experts": 8}, bytes_within=0.05),
    "deepseek_v2": Case(DEEPSEEK, bytes_within=0.1),
    "deepseek_v3": Case({**DEEPSEEK, "n_group": 4, "topk_group": 2}, bytes_within=0.1),
    "minicpm3": Case(LATENT, bytes_within=0.1),
    "deepseek_v32": Case({**DEEPSEEK, **INDEXER, "n_group": 4, "topk_group": 2}, bytes_within=0.15),
    "glm_moe_dsa": Case({**DEEPSEEK, **INDEXER, "num_hidden_layers": 3, "indexer_types": ["full", "full", "shared"]},
                        bytes_within=0.15),
    "deepseek_v4": Case({
        "head_dim": 16, "q_lora_rank": 24, "o_groups": 4, "o_lora_rank": 8,
        "layer_types": ["sliding_attention"] + ["compressed_sparse_attention", "heavily_compressed_attention"] * 2,
        "compress_rates": {"compressed_sparse_attention": 4, "heavily_compressed_attention": 8},
        "mlp_layer_types": ["hash_moe"] + ["moe"] * 4, "num_hidden_layers": 5, "partial_rotary_factor": 0.25,
        "qk_rope_head_dim": 4, "index_n_heads": 4, "index_head_dim": 8, "index_topk": 8, "n_routed_experts": 8,
        "hc_sinkhorn_iters": 2, "sliding_window": 64, "num_key_value_heads": 1, "intermediate_size": 32, **FEW_EXPERTS,
    }, "eager", bytes_within=0.2),
    "glm4_moe_lite": Case(DEEPSEEK, bytes_within=0.1),
    "minimax_m2": Case({"num_local_experts": 8, "head_dim": 16, "rotary_dim": 8}, bytes_within=0.1),
    "mimo_v2_flash": Case({
        **FEW_EXPERTS, "n_routed_experts": 16, "head_dim": 12, "v_head_dim": 8, "num_hidden_layers": 3,
        "layer_types": ["full_attention", "sliding_attention", "full_attention"],
    }, "eager", bytes_within=0.1),
    "ernie4_5_moe": Case({
        **FEW_EXPERTS, "moe_num_experts": 8, "moe_k": 2, "use_bias": True, "num_hidden_layers": 3, "head_dim": 8,
    }, bytes_within=0.15),
    "hunyuan_v1_moe": Case({"num_experts": 8, "moe_topk": 2, "head_dim": 8}, bytes_within=0.1),
    "dots1": Case({**FEW_EXPERTS, "n_routed_experts": 8, "n_shared_experts": 1, "first_k_dense_replace": 1,
                   "norm_topk_prob": True}, bytes_within=0.15),
    "exaone_moe": Case({**FEW_EXPERTS, "num_experts": 8, "sliding_window": 8, "sliding_window_pattern": 2},
                       bytes_within=0.15),
    "mistral4": Case({**DEEPSEEK, "head_dim": 4, "num_local_experts": 16, "rope_parameters": {
        "rope_type": "default", "rope_theta": 1e6, "llama_4_scaling_beta": 0.1,
        "original_max_position_embeddings": 4096,
    }}, bytes_within=0.15),
    "step3p5": Case({**STEP, "mlp_layer_types": ["dense"] * 3}, bytes_within=0.2, has_head=False),
    "afmoe": Case({**FEW_EXPERTS, "num_experts": 8, "head_dim": 8, "sliding_window": 8, "mup_enabled": True,
                   "layer_types": ["sliding_attention", "full_attention"]}, bytes_within=0.15),
    "granitemoeshared": Case({"num_local_experts": 8, "num_experts_per_tok": 2, "shared_intermediate_size": 48},
                             bytes_within=0.1),
    "flex_olmo": Case({"num_experts": 8, "num_experts_per_tok": 2}, bytes_within=0.1),
    "gpt_oss": Case({"num_local_experts": 8, "head_dim": 8}, "eager", bytes_within=0.05),
    "glm4": Case({"head_dim": 8}),
    "glm4_moe": Case({**FEW_EXPERTS, "n_routed_experts": 16, "head_dim": 8, "use_qk_norm": True}, bytes_within=0.1),
    "solar_open": Case({**FEW_EXPERTS, "n_routed_experts": 16, "head_dim": 8}, bytes_within=0.1),
    "olmo": Case({}),
    "olmo2": Case({}),
    "olmoe": Case({"num_experts": 8, "num_experts_per_tok": 2}, bytes_within=0.05),
    "granite": Case({}),
    "granitemoe": Case({"num_local_experts": 8, "num_experts_per_tok": 2}, bytes_within=0.05),
    "stablelm": Case({}),
    "stablelm parallel": Case({"use_parallel_residual": True, "qk_layernorm": True}, bytes_within=0.03),
    "starcoder2": Case({}),
    "cohere": Case({}),
    "cohere2": Case({"head_dim": 8}),
    "nemotron": Case({"head_dim": 8}),
    "exaone4": Case({}),
    "smollm3": Case({}),
    "olmo3": Case({"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 8}),
    "seed_oss": Case({"head_dim": 8}),
    "ernie4_5": Case({"head_dim": 16, "use_bias": True}),
    "hunyuan_v1_dense": Case({"head_dim": 8}),
    "ministral3": Case({"head_dim": 8, "rope_parameters": {
        "rope_type": "default", "rope_theta": 1e6, "llama_4_scaling_beta": 0.1,
        "original_max_position_embeddings": 4096,
    }}, bytes_within=0.03),
    "apertus": Case({}, bytes_within=0.05),
    "arcee": Case({"attention_bias": True}),
    "bitnet": Case({}),
    "helium": Case({"head_dim": 8}),
    "glm": Case({"head_dim": 8}),
    "cwm": Case({"head_dim": 8, "layer_types": ["sliding_attention", "full_attention"], "sliding_window": 8}),
    "gpt_bigcode": Case(GPT, is_complete=True),
    "gpt_bigcode of many heads": Case({**GPT, "multi_query": False}, is_complete=True),
    "codegen": Case({**GPT, "rotary_dim": 4}, bytes_within=0.05, is_complete=True),
    "opt": Case({"ffn_dim": 176, "word_embed_proj_dim": 64}, bytes_within=0.02),
    "gpt2": Case(GPT, is_complete=True),
    "gpt_neo": Case({"num_layers": 2, "num_heads": 8, "attention_types": [[["global", "local"], 1]],
                     "attention_layers": ["global", "local"]}, "eager"),
    "gptj": Case({**GPT, "rotary_dim": 4}, "eager", bytes_within=0.08, is_complete=True),
    "gpt_neox": Case({}),
    "falcon": Case({}),
    "falcon new": Case({"new_decoder_architecture": True, "num_kv_heads": 2, "num_ln_in_parallel_attn": 1},
                       bytes_within=0.12),
    "bloom": Case({"vocab_size": 1000, "hidden_size": 64, "n_layer": 2, "n_head": 8}, "eager", 0.05, True),
    "mpt": Case({"vocab_size": 1000, "d_model": 64, "n_heads": 8, "n_layers": 2}, "eager", 0.1, True),
}  # fmt: skip
MAMBA_2 = {"mamba_n_heads": 8, "mamba_d_head": 16, "mamba_d_state": 16, "mamba_chunk_size": 16}
DELTA_NET = {
    "linear_num_key_heads": 4, "linear_num_value_heads": 8, "linear_key_head_dim": 8, "linear_value_head_dim": 8,
}  # fmt: skip
WITHOUT_ATTENTION = {
    "mamba": Case({"state_size": 8, "time_step_rank": 4}, "eager"),
    "mamba2": Case({"num_heads": 8, "head_dim": 16, "state_size": 16, "n_groups": 2, "chunk_size": 8}, "eager"),
    "jamba": Case({"attn_layer_period": 2, "attn_layer_offset": 1, "num_experts": 4}),
    "falcon_h1": Case({**MAMBA_2, "mamba_d_ssm": 128}),
    "granitemoehybrid": Case({**MAMBA_2, "num_local_experts": 4, "num_experts_per_tok": 2,
                              "shared_intermediate_size": 48}),
    "bamba": Case({**MAMBA_2, "attn_layer_indices": [1]}),
    "falcon_mamba": Case({"state_size": 8, "time_step_rank": 4}, "eager"),
    "lfm2": Case({"num_hidden_layers": 3, "layer_types": ["conv", "full_attention", "conv"]}),
    "lfm2_moe": Case({**FEW_EXPERTS, "num_hidden_layers": 3, "layer_types": ["conv", "full_attention", "conv"],
                      "num_experts": 8}),
    "kimi_linear": Case({
        **LATENT, **FEW_EXPERTS, "q_lora_rank": None, "num_hidden_layers": 5, "num_local_experts": 16,
        "linear_num_heads": 4, "linear_head_dim": 8,
    }),
    "recurrent_gemma": Case({"num_hidden_layers": 3, "lru_width": 64, "attention_window_size": 64}),
    "rwkv": Case({"attention_hidden_size": 64}, "eager"),
    "zamba": Case({
        "num_hidden_layers": 5, "layers_block_type": ["mamba", "hybrid", "mamba", "hybrid", "hybrid"],
        "attention_hidden_size": 128, "attention_head_dim": 16, "num_key_value_heads": 8, "mamba_d_state": 8,
        "mamba_dt_rank": 4,
    }),
    "minimax": Case({
        "num_hidden_layers": 3, "layer_types": ["linear_attention", "full_attention", "linear_attention"],
        "num_local_experts": 8, "head_dim": 8, "rotary_dim": 4, "block_size": 16,
    }),
    "zamba2": Case({
        "num_hidden_layers": 5, "layers_block_type": ["mamba", "hybrid", "mamba", "hybrid", "hybrid"],
        "n_mamba_heads": 8, "mamba_d_state": 16, "mamba_ngroups": 2, "chunk_size": 8, "num_mem_blocks": 2,
        "adapter_rank": 4, "use_shared_attention_adapter": True, "use_mem_rope": True, "num_key_value_heads": 8,
    }),
    "xlstm": Case({"num_heads": 4, "chunk_size": 8}, "eager"),
    "nemotron_h": Case({
        **FEW_EXPERTS, "hybrid_override_pattern": "M*E-", "num_hidden_layers": 4, "head_dim": 8, "mamba_num_heads": 8,
        "mamba_head_dim": 16, "n_groups": 2, "ssm_state_size": 16, "chunk_size": 8, "n_routed_experts": 8,
        "n_group": 2, "topk_group": 1, "moe_shared_expert_intermediate_size": 48, "moe_latent_size": 24,
    }),
    "qwen3_next": Case({
        **FEW_EXPERTS, "num_hidden_layers": 4, "num_experts": 8, "shared_expert_intermediate_size": 32, "head_dim": 8,
        **DELTA_NET,
    }),
    "qwen3_5_text": Case({"num_hidden_layers": 4, "head_dim": 8, **DELTA_NET}),
    "qwen3_5_moe_text": Case({
        **FEW_EXPERTS, "num_hidden_layers": 4, "num_experts": 8, "shared_expert_intermediate_size": 32, "head_dim": 8,
        **DELTA_NET,
    }),
}  # fmt: skip
"""Families with state-space mixers or linear attention: ``transformers`` runs a reference implementation of many small
operations where the authors' kernels are not installed, and these are counted as kernels."""
FLOPS_OF_REFERENCE = {
    "mamba": 0.01, "jamba": 0.01, "mamba2": 0.05, "falcon_h1": 0.05, "nemotron_h": 0.05, "falcon_mamba": 0.01,
    "recurrent_gemma": 0.02, "rwkv": 0.02,
    "lfm2": 0.01, "lfm2_moe": 0.01, "zamba": 0.05, "zamba2": 0.05, "xlstm": 0.05,
    "minimax": 0.05,
    # Their references pad 16 tokens to chunks of 256 or 64, of which a fused kernel computes only the 16.
    "granitemoehybrid": None, "bamba": None, "kimi_linear": None, "qwen3_next": None, "qwen3_5_text": None,
    "qwen3_5_moe_text": None,
}  # fmt: skip

OTHER_WAY = {
    "llama4_text", "kimi_k2", "mimo", "internlm3", "dbrx", "longcat_flash", "jetmoe", "minimax_m1", "minimax_text_01",
    "bailing_moe_linear", "nemotron-nas", "Dream", "hunyuan", "arctic", "step3_text", "molmo_text",
    "ernie4_5_vl_moe_text", "minimax_m3_vl_text", "minicpm", "bailing_moe", "bailing_moe_v2",
    "openelm", "phi4flash", "deepseek_ocr_text",
    *WITHOUT_ATTENTION,
}  # fmt: skip
"""Families compared in tests of their own, or with the published parameters in ``published_configs.json``."""


def has_experts(model_type):
    config = Config({**case_of(model_type).config, "model_type": type_of(model_type)}, "c.json")
    blocks = FAMILIES[type_of(model_type)].describe(config, "").blocks
    return any(isinstance(block.feed_forward, Experts) or block.side_experts for block in blocks)


def case_of(model_type):
    return {**CASES, **WITHOUT_ATTENTION}[model_type]


@cache
def module_of(model_type):
    """The module on the meta device, and torch."""
    from paleo_lite.architectures.torch_import import import_torchvision

    torch = import_torchvision("a test").torch
    transformers = pytest.importorskip("transformers", exc_type=ImportError)
    found = case_of(model_type)
    config = transformers.AutoConfig.for_model(
        type_of(model_type), attn_implementation=found.attention, **json.loads(json.dumps(found.config))
    )
    make = getattr(transformers, found.class_of(model_type))
    precision = torch.bfloat16 if has_experts(model_type) else torch.float32
    with torch.device("meta"):
        module = make._from_config(config, dtype=precision)
    return module, torch, transformers


@cache
def traced(model_type, phase="inference"):
    """The trace of a family in a phase."""
    from paleo_lite.architectures.trace import trace

    found = case_of(model_type)
    module, torch, transformers = module_of(model_type)
    words = torch.zeros(1, 1 if phase == "decode" else TOKENS, dtype=torch.long, device="meta")
    if phase == "inference":
        return trace(module, words, use_cache=False)
    cache = {cache_argument(module): transformers.DynamicCache(config=module.config)}
    if phase == "decode":
        with torch.device("meta"):
            module(torch.zeros(1, CONTEXT, dtype=torch.long), **cache, use_cache=True)
    if found.has_head:
        cache["logits_to_keep"] = 1
    return trace(module, words, **cache, use_cache=True)


def network(model_type, phase="inference", **changes):
    case = case_of(model_type)
    named = {"model_type": type_of(model_type), "_attn_implementation": case.attention}
    config = {**case.config, **named, **changes}
    config["architectures"] = [case.class_of(model_type)]
    options = {
        "inference": SequenceOptions(TOKENS),
        "prefill": SequenceOptions(TOKENS, phase="prefill"),
        "decode": SequenceOptions(None, CONTEXT, "decode"),
    }[phase]
    return read_config(json.dumps(config).encode(), "some/model/config.json", None, options)


def total(found, column, phase="inference"):
    return int(cached_for_layers(count, found.layers).column(column, phase).sum())


def matrix_sizes(found):
    """Sizes of all matrices: experts may come before or after the shared ones, and weights may be transposed."""
    kinds = ("linear", "matmul", "grouped_matmul", "embedding")
    weights = [layer.weights[0] for layer in found.layers if layer.kind in kinds and layer.weights]
    return sorted(sorted(weight) for weight in weights if min(weight) > 1)


def traced_figures(model_type, phase, found):
    """Return what is compared of a network, by name; only the inference phase has all of it."""
    macs, flops = total(found, "macs", phase), total(found, "flops", phase)
    if phase != "inference":
        return {"macs": macs, "flops": flops, "bytes": without_cache_writes(found)}
    sizes = Counter("x".join(map(str, size)) for size in matrix_sizes(found))
    figures = {"parameters": found.parameters, "matrices": dict(sorted(sizes.items())), "macs": macs, "flops": flops}
    if model_type in WITHOUT_ATTENTION:
        return figures
    training = {f"training {column}": total(found, column, "training") for column in ("macs", "flops")}
    return {**figures, **training, "bytes": total(found, "bytes")}


STORED = Path(__file__).with_name("traced_families.json")
"""Figures of the traced modules; ``python tests/architectures/test_language_models.py`` writes them anew."""


@cache
def stored_figures():
    return json.loads(STORED.read_text(encoding="utf-8"))


def write_stored():
    """Trace every family in every phase that is compared, which takes a minute."""
    every = {}
    for model_type, phase in COMPARED:
        every[f"{model_type}, {phase}"] = traced_figures(model_type, phase, traced(model_type, phase))
    STORED.write_text(json.dumps(every, indent=1) + "\n", encoding="utf-8")


@pytest.mark.spread(40)
@pytest.mark.parametrize("model_type", CASES)
def test_a_family_equals_the_traced_module(model_type):
    theirs = stored_figures()[f"{model_type}, inference"]
    ours = traced_figures(model_type, "inference", network(model_type))
    for name in ("parameters", "matrices", "macs", "training macs"):
        assert ours[name] == theirs[name]
    for name in ("flops", "training flops"):
        assert ours[name] == pytest.approx(theirs[name], rel=0.01)
    assert ours["bytes"] == pytest.approx(theirs["bytes"], rel=CASES[model_type].bytes_within)


@pytest.mark.parametrize("model_type", WITHOUT_ATTENTION)
def test_a_family_without_attention_has_the_modules_parameters_and_operations(model_type):
    theirs = stored_figures()[f"{model_type}, inference"]
    ours = traced_figures(model_type, "inference", network(model_type))
    assert ours["parameters"] == theirs["parameters"]
    if model_type != "zamba":  # two of its matrices are one for each head
        assert {size: theirs["matrices"].get(size) for size in ours["matrices"]} == ours["matrices"]
    relative = FLOPS_OF_REFERENCE[model_type]
    if relative is not None:
        assert ours["flops"] == pytest.approx(theirs["flops"], rel=relative)


def test_selective_scan_matches_the_count_of_its_authors():
    """``selective_scan_flop_jit`` of state-spaces/mamba: 9 B L D N, and B L D each for the skip and the gate."""
    found = network("mamba")
    scans = [layer._replace(parents=(-1,) * 5) for layer in found.layers if layer.kind == "selective_scan"]
    channels, states = 176, 8
    assert [layer.inputs[0] for layer in scans] == [(1, channels, TOKENS)] * 2
    assert int(count(scans).column("flops", "inference").sum()) == 2 * TOKENS * channels * (9 * states + 2)


def test_the_state_of_a_mamba_does_not_grow_with_the_context():
    config = json.dumps({**WITHOUT_ATTENTION["mamba"].config, "model_type": "mamba"}).encode()
    near, far = (read_config(config, "c.json", None, SequenceOptions(None, n, "decode")) for n in (32, 4096))
    states = [layer.outputs for layer in near.layers if layer.kind == "cache"]
    assert states == [((1, 176, 8), (1, 176, 4))] * 2
    assert [layer.outputs for layer in far.layers if layer.kind == "cache"] == states
    assert total(near, "flops") == total(far, "flops")


@pytest.mark.slow
def test_llama_4_multiplies_by_the_active_experts():
    """``transformers`` multiplies every token by every expert; engines, and the published count, by one."""
    from paleo_lite.architectures.trace import trace

    torch, transformers = module_of("llama")[1:]
    fields = {**SMALL, "num_local_experts": 4, "intermediate_size_mlp": 100, "interleave_moe_layer_step": 2,
              "head_dim": 8}  # fmt: skip
    config = transformers.AutoConfig.for_model("llama4_text", **fields)
    with torch.device("meta"):
        module = transformers.Llama4ForCausalLM._from_config(config, dtype=torch.bfloat16)
    theirs = trace(module, torch.zeros(1, TOKENS, dtype=torch.long, device="meta"), use_cache=False)
    data = json.dumps({**fields, "model_type": "llama4_text"}).encode()
    ours = read_config(data, "c.json", None, SequenceOptions(TOKENS))
    assert ours.parameters == theirs.parameters and matrix_sizes(ours) == matrix_sizes(theirs)
    every_expert = TOKENS * 4 * 3 * 64 * 176
    assert total(theirs, "macs") - total(ours, "macs") == every_expert * 3 // 4


@pytest.mark.slow
@pytest.mark.parametrize("phase", ["inference", "prefill", "decode"])
def test_experts_of_attention_equal_a_run_on_the_cpu(phase):
    """JetMoE splits rows by the experts that tokens choose, which no trace knows: it is run, and torch counts."""
    from paleo_lite.architectures.torch_import import import_torchvision

    torch = import_torchvision("a test").torch
    transformers = pytest.importorskip("transformers", exc_type=ImportError)
    from torch.utils.flop_counter import FlopCounterMode

    fields = {"vocab_size": 1000, "hidden_size": 64, "intermediate_size": 48, "num_hidden_layers": 2,
              "num_key_value_heads": 4, "kv_channels": 8, "num_local_experts": 8, "num_experts_per_tok": 2}  # fmt: skip
    config = transformers.AutoConfig.for_model("jetmoe", attn_implementation="eager", **fields)
    module = transformers.JetMoeForCausalLM(config).eval()
    cache = None if phase == "inference" else transformers.DynamicCache(config=module.config)
    named = {} if cache is None else {cache_argument(module): cache, "logits_to_keep": 1}
    with torch.no_grad():
        if phase == "decode":
            module(torch.arange(CONTEXT)[None], **named, use_cache=True)
        with FlopCounterMode(display=False) as counter:
            words = torch.arange(1 if phase == "decode" else TOKENS)[None]
            module(words, **named, use_cache=cache is not None)
    data = json.dumps({**fields, "model_type": "jetmoe", "attn_implementation": "eager"}).encode()
    tokens, context = (None, CONTEXT) if phase == "decode" else (TOKENS, None)
    ours = read_config(data, "c.json", None, SequenceOptions(tokens, context, phase))
    assert ours.parameters == sum(parameter.numel() for parameter in module.parameters())
    assert 2 * total(ours, "macs") == counter.get_total_flops()


@pytest.mark.slow
def test_experts_that_no_trace_knows_have_the_parameters_of_the_module():
    """Step 3.5 picks the experts that were chosen by the values of the router."""
    from paleo_lite.architectures.torch_import import import_torchvision

    torch = import_torchvision("a test").torch
    transformers = pytest.importorskip("transformers", exc_type=ImportError)
    fields = {**SMALL, **STEP, "mlp_layer_types": ["dense", "sparse", "sparse"]}
    config = transformers.AutoConfig.for_model("step3p5", **json.loads(json.dumps(fields)))
    with torch.device("meta"):
        module = transformers.Step3p7TextModel._from_config(config)
    named = {**fields, "model_type": "step3p5", "architectures": ["Step3p7TextModel"]}
    ours = read_config(json.dumps(named).encode(), "c.json", None, SequenceOptions(TOKENS))
    assert ours.parameters == sum(parameter.numel() for parameter in module.parameters())
    assert ours.parameters - ours.active_parameters == 2 * (8 - 2) * 3 * 64 * 32 + 1000 * 64


@pytest.mark.slow
def test_attention_to_blocks_that_an_indexer_selects_has_the_parameters_of_the_module():
    """MiniMax-M3 selects blocks by their positions, which a trace of fake tensors does not have."""
    from paleo_lite.architectures.torch_import import import_torchvision

    torch = import_torchvision("a test").torch
    transformers = pytest.importorskip("transformers", exc_type=ImportError)
    layers = {"mlp_layer_types": ["dense", "sparse"], "layer_types": ["full_attention", "minimax_m3_sparse"]}
    fields = {**SMALL, **layers, "num_hidden_layers": 2, "dense_intermediate_size": 96, "shared_intermediate_size": 48,
              "head_dim": 16, "rotary_dim": 8, "num_local_experts": 8, "num_experts_per_tok": 2, "index_n_heads": 2,
              "index_head_dim": 16, "index_topk_blocks": 2, "index_block_size": 4}  # fmt: skip
    config = transformers.AutoConfig.for_model("minimax_m3_vl_text", **fields)
    with torch.device("meta"):
        module = transformers.MiniMaxM3VLTextModel._from_config(config)
    named = {**fields, "model_type": "minimax_m3_vl_text", "architectures": ["MiniMaxM3VLTextModel"]}
    data = json.dumps(named).encode()
    ours = read_config(data, "c.json", None, SequenceOptions(TOKENS))
    assert ours.parameters == sum(parameter.numel() for parameter in module.parameters())
    step = read_config(data, "c.json", None, SequenceOptions(context=100, phase="decode"))
    assert [layer.inputs[1][2] for layer in step.layers if layer.kind == "attention"] == [101, 2 * 4]


@pytest.mark.slow
def test_experts_for_images_have_the_parameters_of_the_module():
    """ERNIE 4.5 VL computes its positions from the kinds of tokens, which a trace of the text part does not have."""
    from paleo_lite.architectures.torch_import import import_torchvision

    torch = import_torchvision("a test").torch
    transformers = pytest.importorskip("transformers", exc_type=ImportError)
    fields = {**SMALL, "hidden_size": 256, "moe_intermediate_size": [32, 16], "moe_num_experts": 8, "moe_k": 2,
              "num_hidden_layers": 3, "mlp_layer_types": ["dense", "sparse", "sparse"], "num_attention_heads": 2,
              "num_key_value_heads": 1}  # fmt: skip
    config = transformers.AutoConfig.for_model("ernie4_5_vl_moe_text", **fields)
    with torch.device("meta"):
        module = transformers.Ernie4_5_VLMoeTextModel._from_config(config)
    named = {**fields, "model_type": "ernie4_5_vl_moe_text", "architectures": ["Ernie4_5_VLMoeTextModel"]}
    ours = read_config(json.dumps(named).encode(), "c.json", None, SequenceOptions(TOKENS))
    assert ours.parameters == sum(parameter.numel() for parameter in module.parameters())
    images = 2 * 8 * 256 * 3 * 16  # of the experts in two layers
    text = read_config(
        json.dumps({**named, "moe_intermediate_size": [32, 1]}).encode(), "c.json", None, SequenceOptions(TOKENS)
    )
    assert ours.parameters - text.parameters == images - images // 16
    assert ours.active_parameters == text.active_parameters
    assert total(ours, "macs") == total(text, "macs")


SAMBA_Y = {
    "model_type": "phi4flash", "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 8,
    "num_attention_heads": 8, "num_key_value_heads": 4, "vocab_size": 1000, "mb_per_layer": 2, "mamba_d_state": 8,
    "mamba_dt_rank": 4, "sliding_window": [None, 8, None, 8, None, None, None, None], "tie_word_embeddings": True,
}  # fmt: skip


def test_the_second_half_of_samba_y_has_no_state_of_its_own():
    """Ren et al. 2025, section 2: Mamba, windows and one full attention; then gated memories and cross-attention."""
    read = [
        read_config(json.dumps(SAMBA_Y).encode(), "c.json", None, options)
        for options in (SequenceOptions(TOKENS), SequenceOptions(None, CONTEXT, "decode"))
    ]
    width = 128
    mamba = 64 * 2 * width + width * (4 + 1) + width * (4 + 16) + 4 * width + width * (1 + 8 + 1) + width * 64
    queries, keys_and_values = 64 * 64 + 64, 2 * (64 * 32 + 32)
    other = 64 * 64 + 64 + 4 * 8 + 2 * 8  # output projection, four vectors and the norm of the difference
    part = 3 * 64 * 96 + 2 * 128  # and two norms of the block
    attention, cross, memory = queries + keys_and_values + other, queries + other, 2 * 64 * width
    total_of_all = 1000 * 64 + 3 * mamba + 3 * attention + memory + cross + 8 * part + 128
    assert [found.parameters for found in read] == [total_of_all] * 2
    assert cache_shapes(read[1]) == [
        ((1, width, 8), (1, width, 4)), ((1, 4, 8, 8),) * 2, ((1, width, 8), (1, width, 4)), ((1, 4, 8, 8),) * 2,
        ((1, width, 8), (1, width, 4)), ((1, 4, CONTEXT + 1, 8),) * 2,
    ]  # fmt: skip


def test_differential_attention_multiplies_by_the_values_of_both_heads_of_a_pair():
    """Ye et al. 2024, section 2.1: scores of 8 elements, and products with 16 values, for 8 heads and 16 tokens."""
    found = read_config(
        json.dumps({**SAMBA_Y, "sliding_window": None}).encode(), "c.json", None, SequenceOptions(TOKENS)
    )
    attention = [layer._replace(parents=(-1,) * 3) for layer in found.layers if layer.kind == "attention"]
    pairs = 8 * TOKENS * TOKENS
    assert len(attention) == 4
    assert int(count(attention).column("macs", "inference").sum()) == 4 * pairs * (8 + 16)


def test_the_memory_of_an_mlstm_does_not_grow_with_the_context():
    """Beck et al. 2024, section 2.3: a matrix of key times value and a vector per head; xLSTM 7B has 8 heads."""
    config = json.dumps({"model_type": "xlstm", "num_hidden_layers": 2, "hidden_size": 4096, "vocab_size": 50304})
    near, far = (read_config(config.encode(), "c.json", None, SequenceOptions(None, n, "decode")) for n in (32, 4096))
    assert cache_shapes(near) == cache_shapes(far) == [((1, 8, 256, 512), (1, 2048, 1))] * 2
    assert total(near, "flops") == total(far, "flops")


def without_cache_writes(found):
    """Return the bytes without those of cache writes: ``transformers`` concatenates, while engines write in place."""
    column = count(found.layers).column("bytes", "inference")
    column = column if column.ndim == 1 else column.sum(axis=0)
    appended = [
        layer.kind == "cache" or (layer.kind == "concat" and len(layer.inputs) == 2
                                  and len(layer.outputs[0]) == 4 and layer.outputs[0][2] == CONTEXT + 1)
        for layer in found.layers
    ]  # fmt: skip
    return sum(value for value, is_append in zip(column.tolist(), appended) if not is_append)


ENGINES_ONLY = {
    "deepseek_v2": "the latent vectors are cached, not keys and values",
    "deepseek_v3": "the latent vectors are cached, not keys and values",
    "minicpm3": "the latent vectors are cached, not keys and values",
    **dict.fromkeys(
        ("deepseek_v32", "glm_moe_dsa", "glm4_moe_lite", "mistral4"), "transformers expands the cached latent vectors"
    ),
    "gpt_neo": "transformers masks with a table as long as the cache", "gptj": "unfused attention",
    "bloom": "unfused attention", "mpt": "unfused attention", "gpt_oss": "unfused attention",
    "gemma2": "unfused attention",
    "gemma3n_text": "transformers cannot be traced with a cache",
    "gemma4_text small": "layers that reuse a cache run for the last token of a prompt only",
}  # fmt: skip
"""Families whose decode phase is that of inference engines, not of ``transformers``, and the difference."""


CACHED = [name for name in CASES if name not in ENGINES_ONLY]


@pytest.mark.spread(64)
@pytest.mark.parametrize("phase", ["prefill", "decode"])
@pytest.mark.parametrize("model_type", CACHED)
def test_a_family_equals_the_traced_module_with_a_cache(model_type, phase):
    ours, theirs = network(model_type, phase), stored_figures()[f"{model_type}, {phase}"]
    assert total(ours, "macs") == theirs["macs"]
    assert total(ours, "flops") == pytest.approx(theirs["flops"], rel=0.01)
    # The module of the new Falcon copies the keys of a prompt for every query head of their group.
    is_copied = (model_type, phase) == ("falcon new", "prefill")
    within = 0.15 if is_copied else max(CASES[model_type].bytes_within, 0.12)
    assert without_cache_writes(ours) == pytest.approx(theirs["bytes"], rel=within)


COMPARED = [
    *((name, "inference") for name in (*CASES, *WITHOUT_ATTENTION)),
    *((name, phase) for name in CACHED for phase in ("prefill", "decode")),
]
TRACED_ANEW = {
    ("llama", "inference"), ("llama", "prefill"), ("llama", "decode"), ("mixtral", "inference"), ("mixtral", "decode"),
    ("gemma3_text", "decode"), ("gemma3n_text", "inference"), ("deepseek_v32", "inference"),
    ("deepseek_v4", "prefill"), ("gpt_neo", "inference"), ("bloom", "inference"), ("falcon new", "inference"),
    ("gpt_oss", "inference"), ("mamba2", "inference"), ("jamba", "inference"), ("qwen3_next", "inference"),
}  # fmt: skip
"""Of each kind of attention, of experts and of recurrence one; `make thorough` traces all that are stored."""


@pytest.mark.spread(5)
@pytest.mark.slow
@pytest.mark.parametrize(
    ("model_type", "phase"),
    [pytest.param(*one, marks=() if one in TRACED_ANEW else pytest.mark.thorough) for one in COMPARED],
)
def test_stored_figures_are_those_of_the_traced_module(model_type, phase):
    found = traced_figures(model_type, phase, traced(model_type, phase))
    assert found == stored_figures()[f"{model_type}, {phase}"]


def test_no_figures_are_stored_that_are_not_compared():
    assert list(stored_figures()) == [f"{model_type}, {phase}" for model_type, phase in COMPARED]


@pytest.mark.parametrize("model_type", [name for name, family in FAMILIES.items() if family.is_decoder])
def test_every_family_is_compared(model_type):
    assert model_type in CASES or model_type in OTHER_WAY, f"add {model_type} to CASES"


# The cache and parallelism -------------------------------------------------------------------------------------------


def cache_shapes(found):
    return [layer.outputs for layer in found.layers if layer.kind == "cache"]


def test_latent_attention_caches_one_vector_per_token():
    """DeepSeek-V2, section 2.1.4: kv_lora_rank + qk_rope_head_dim numbers per token and layer."""
    shapes = cache_shapes(network("deepseek_v3", "decode"))
    assert shapes == [((1, 1, CONTEXT + 1, 16), (1, 1, CONTEXT + 1, 4))] * 2
    assert cache_shapes(network("deepseek_v3", "prefill")) == [((1, 1, TOKENS, 16), (1, 1, TOKENS, 4))] * 2


def test_sparse_attention_reads_the_selected_tokens_only():
    """DeepSeek-V3.2, section 2.1: indexer heads times cached keys, then k latent vectors of kv_rank + rotary size."""
    found = network("deepseek_v32", "decode", index_topk=8)
    assert cache_shapes(found)[:2] == [((1, 1, CONTEXT + 1, 16),), ((1, 1, CONTEXT + 1, 16), (1, 1, CONTEXT + 1, 4))]
    scores = [layer._replace(parents=(-1, -1)) for layer in found.layers if layer.name.endswith("indexer.matmul")]
    heads, size = INDEXER["index_n_heads"], INDEXER["index_head_dim"]
    assert int(count(scores).column("macs", "inference").sum()) == 2 * (CONTEXT + 1) * heads * (size + 1)
    attention = [layer for layer in found.layers if layer.kind == "attention"]
    assert [layer.inputs[1] for layer in attention] == [(1, 1, 8, 20)] * 2


def test_the_prompt_of_sparse_attention_has_a_selection_for_each_query():
    prompt = network("deepseek_v32", "prefill", index_topk=8)
    attention = [layer for layer in prompt.layers if layer.kind == "attention"]
    assert [(layer.inputs[1], layer.attributes["window"]) for layer in attention] == [((1, 1, TOKENS, 20), 8)] * 2
    short = network("deepseek_v32", "prefill", index_topk=TOKENS)
    assert not any("window" in layer.attributes for layer in short.layers)
    assert prompt.parameters == short.parameters


def test_llama_4_attends_within_chunks_in_three_of_four_layers():
    """A chunk is not a window: a token sees none of the chunk before (Llama4TextConfig, `attention_chunk_size`)."""
    fields = {**SMALL, "model_type": "llama4_text", "num_local_experts": 4, "intermediate_size_mlp": 100, "head_dim": 8}

    def chunks_of(size):
        config = {**fields, "num_hidden_layers": 4, "attention_chunk_size": size}
        found = read_config(json.dumps(config).encode(), "c.json", None, SequenceOptions(TOKENS, phase="prefill"))
        attention = [layer.attributes for layer in found.layers if layer.kind == "attention"]
        assert not any("window" in attributes for attributes in attention)
        return [attributes.get("attention_chunk") for attributes in attention]

    assert chunks_of(TOKENS - 2) == [TOKENS - 2] * 3 + [None]
    assert chunks_of(TOKENS) == [None] * 4


def test_layers_without_an_indexer_take_the_selection_of_the_layer_before():
    found = network("glm_moe_dsa", "decode", indexer_types=None, index_topk_freq=2, num_hidden_layers=5)
    named = {layer.name.split(".")[2] for layer in found.layers if ".indexer." in layer.name}
    assert named == {"0", "1", "3"}  # as GlmMoeDsaConfig of transformers derives them
    listed = network("glm_moe_dsa", "decode", indexer_types=None, index_topk_pattern="FSF")
    assert {layer.name.split(".")[2] for layer in listed.layers if ".indexer." in layer.name} == {"0", "2"}


def test_compressed_attention_caches_a_window_and_a_key_for_every_few_tokens():
    """DeepSeek-V4, section 2.3: the window, a key per 4 or 8 tokens, and at the rate of 4 those of the indexer."""
    found = network("deepseek_v4", "decode", sliding_window=6)
    window, four, index, eight = (1, 1, 6, 16), (1, 1, 8, 16), (1, 1, 8, 8), (1, 1, 4, 16)
    of_pair = [(window,), (four,), (index,), (window,), (eight,)]
    assert cache_shapes(found) == [(window,), *of_pair, *of_pair]
    fused = network("deepseek_v4", "decode", sliding_window=6, index_topk=5, _attn_implementation="sdpa")
    attention = [layer for layer in fused.layers if layer.kind == "attention"]
    assert [layer.inputs[1][2] for layer in attention] == [6, 6 + 5, 6 + 4, 6 + 5, 6 + 4]


def test_windows_follow_the_pattern_of_layers():
    """Gemma 3: five layers with a window for each without one."""
    found = network("gemma3_text", "decode", num_hidden_layers=6, sliding_window=8, sliding_window_pattern=6)
    assert [shapes[0][2] for shapes in cache_shapes(found)] == [8] * 5 + [CONTEXT + 1]


def sharded(model_type, **options):
    config = {**CASES[model_type].config, "model_type": model_type}
    return read_config(json.dumps(config).encode(), "c.json", None, SequenceOptions(TOKENS, **options))


@pytest.mark.parametrize("model_type", ["llama", "deepseek_v3", "phi3", "gemma2", "falcon", "gpt_oss", "qwen3_moe"])
def test_tensor_parallel_devices_share_all_matrices(model_type):
    whole, half = network(model_type), sharded(model_type, tensor_parallel=2, phase="prefill")
    matrices = [layer for layer in whole.layers if layer.kind in ("linear", "grouped_matmul", "embedding")]
    halves = [layer for layer in half.layers if layer.kind in ("linear", "grouped_matmul", "embedding")]
    replicated = {"q_a_proj", "kv_a_proj_with_mqa", "router", "gate"}
    for one, two in zip(matrices, halves):
        sizes = [prod(one.weights[0]), prod(two.weights[0])]
        is_replicated = one.name.rpartition(".")[2] in replicated and one.kind == "linear"
        is_multi_query = model_type == "falcon" and "query_key_value" in one.name
        if not is_replicated and not is_multi_query:
            assert sizes[0] == 2 * sizes[1], one.name


def test_key_and_value_heads_fewer_than_devices_are_replicated():
    four = sharded("llama", tensor_parallel=4)
    keys = [layer for layer in four.layers if layer.name.endswith("k_proj")]
    assert [layer.weights[0] for layer in keys] == [(8, 64)] * 2  # one of two heads of eight


def test_a_mixture_with_tensor_parallelism_implies_sequence_parallelism():
    found = sharded("mixtral", tensor_parallel=2, phase="training")
    assert any("implies sequence parallelism" in note for note in found.notes)
    assert {layer.attributes["function"] for layer in found.layers if layer.kind == "exchange"} == {"gather", "scatter"}


def test_indivisible_heads_are_an_error():
    with pytest.raises(BadValue, match=r"`--tensor 3` does not divide the 8 attention heads"):
        sharded("llama", tensor_parallel=3)


def test_an_unknown_model_type_names_the_nearest_and_another_way():
    with pytest.raises(BadDescriptor, match=r"nearest known types are qwen3.*installed transformers"):
        read_config(b'{"model_type": "qwen4"}', "some/config.json")


def test_a_vision_language_model_is_read_as_its_text_part():
    config = {"model_type": "gemma3", "text_config": {**CASES["gemma3_text"].config, "model_type": "gemma3_text"}}
    found = read_config(json.dumps(config).encode(), "c.json", None, SequenceOptions(TOKENS))
    assert found.parameters == network("gemma3_text").parameters
    assert "the text part of a gemma3" in found.notes[0]


if __name__ == "__main__":
    write_stored()


def test_training_extends_positions_that_are_computed_and_no_table_of_them() -> None:
    """MLPerf Training tunes Llama 2 70B, of 4,096 positions, with sequences of 8,192 tokens (llama2_70b_lora)."""
    training = SequenceOptions(8192, phase="training")
    network = find_network("llama-2-70b", options=training)
    assert network.lengths.keys == 8192
    (note,) = [note for note in network.notes if "positions of the config" in note]
    assert note.startswith("8,192 tokens are more than the 4,096 positions of the config")
    with pytest.raises(SequenceTooLong, match="gpt2 knows 1024 positions"):
        find_network("gpt2", options=training)
    with pytest.raises(SequenceTooLong, match="llama-2-70b knows 4096 positions"):
        find_network("llama-2-70b", options=training._replace(phase="prefill"))

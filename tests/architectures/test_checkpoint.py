"""Weights of quantized checkpoints take the bytes that engines print when they load them.

Tests: architectures/checkpoint.py, architectures/stored_weights.py.
"""

from __future__ import annotations

import json

import pytest

from paleo_lite.architectures import find_network
from paleo_lite.architectures.model_config import read_config
from paleo_lite.errors import BadDescriptor
from paleo_lite.timing.memory import model_bytes
from paleo_lite.timing.workload import Workload

GIB = 2**30
SIZES_70B = {
    "model_type": "llama", "vocab_size": 128256, "hidden_size": 8192, "intermediate_size": 28672,
    "num_hidden_layers": 80, "num_attention_heads": 64, "num_key_value_heads": 8,
}  # fmt: skip
SIZES_405B = {
    **SIZES_70B, "hidden_size": 16384, "intermediate_size": 53248, "num_hidden_layers": 126,
    "num_attention_heads": 128,
}  # fmt: skip
ATTENTION = [f"model.layers.{block}.self_attn.{name}_proj" for block in range(126) for name in "qkvo"]
OUTER = [f"model.layers.{block}.mlp.{name}_proj" for block in (0, 125) for name in ("gate", "up", "down")]
FBGEMM = {"quant_method": "fbgemm_fp8", "modules_to_not_convert": ["lm_head", *ATTENTION, *OUTER]}
INT8 = {"num_bits": 8, "type": "int", "strategy": "channel", "symmetric": True}
W8A8 = {
    "quant_method": "compressed-tensors", "ignore": ["lm_head"],
    "config_groups": {"group_0": {"targets": ["Linear"], "weights": INT8, "input_activations": INT8}},
}  # fmt: skip
FP8 = {**INT8, "type": "float"}
FP8_DYNAMIC = {
    **W8A8, "config_groups": {"group_0": {"targets": ["Linear"], "weights": FP8, "input_activations": FP8}},
}  # fmt: skip
SIZES_LLAMA_2 = {"model_type": "llama", "vocab_size": 32000, "hidden_size": 5120, "intermediate_size": 13824,
                 "num_hidden_layers": 40, "num_attention_heads": 40}  # fmt: skip
SIZES_LLAMA_2_70B = {**SIZES_70B, "vocab_size": 32000}
SIZES_MISTRAL_SMALL = {
    "model_type": "mistral3", "architectures": ["Mistral3ForConditionalGeneration"], "spatial_merge_size": 2,
    "multimodal_projector_bias": False,
    "text_config": {
        "model_type": "mistral", "head_dim": 128, "hidden_size": 5120, "intermediate_size": 32768,
        "num_attention_heads": 32, "num_hidden_layers": 40, "num_key_value_heads": 8, "vocab_size": 131072,
        "max_position_embeddings": 131072,
    },
    "vision_config": {
        "model_type": "pixtral", "head_dim": 64, "hidden_size": 1024, "image_size": 1540, "intermediate_size": 4096,
        "num_attention_heads": 16, "num_channels": 3, "num_hidden_layers": 24, "patch_size": 14,
    },
}  # fmt: skip
WITHOUT_VISION = {**W8A8, "ignore": ["re:.*lm_head", "re:vision_tower.*", "re:multi_modal_projector.*"]}
SIZES_R1 = {
    "model_type": "deepseek_v3", "vocab_size": 129280, "hidden_size": 7168, "intermediate_size": 18432,
    "moe_intermediate_size": 2048, "num_hidden_layers": 61, "num_attention_heads": 128, "num_key_value_heads": 128,
    "n_routed_experts": 256, "n_shared_experts": 1, "num_experts_per_tok": 8, "first_k_dense_replace": 3,
    "n_group": 8, "topk_group": 4, "kv_lora_rank": 512, "q_lora_rank": 1536, "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64, "v_head_dim": 128, "num_nextn_predict_layers": 1, "norm_topk_prob": True,
    "max_position_embeddings": 163840,
}  # fmt: skip
FP8_BLOCKS = {"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [128, 128], "activation_scheme": "dynamic"}
AWQ = {"quant_method": "awq", "bits": 4, "zero_point": True, "version": "gemm", "modules_to_not_convert": None}
GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 32, "desc_act": True, "sym": True}
BLOCK = 8192 * 8192 * 2 + 8192 * 1024 * 2 + 3 * 8192 * 28672
PLAIN = 2 * (2 * 128256 * 8192 + (2 * 80 + 1) * 8192)


def read(quantization, sizes=SIZES_70B):
    fields = {**sizes, "quantization_config": quantization}
    return read_config(json.dumps(fields).encode(), "some/config.json")


def stored_bytes(network, weights=None):
    return model_bytes(Workload(network, "bf16", weights=weights))[0]


@pytest.mark.parametrize(
    ("sizes", "quantization", "devices", "published_gib"),
    [
        (SIZES_405B, FBGEMM, 8, 57.7520),  # https://github.com/vllm-project/vllm/issues/6746
        (SIZES_70B, W8A8, 1, 67.7229),  # https://github.com/vllm-project/vllm/pull/12569
        # RedHatAI's Llama 3.3 70B, by config_explorer/empirical-vllm-memory-results.md of llm-d/llm-d-benchmark
        (SIZES_70B, FP8_DYNAMIC, 1, 67.72),
        (SIZES_70B, FP8_DYNAMIC, 2, 33.88),
        # RedHatAI's Mistral Small 3.1, https://github.com/llm-d-incubation/llm-d-planner/pull/205
        (SIZES_MISTRAL_SMALL, WITHOUT_VISION, 1, 24.07),
        (SIZES_R1, FP8_BLOCKS, 8, 79.41),  # https://github.com/HabanaAI/vllm-fork/issues/809
        # The card of the repository has groups of 64: https://github.com/vllm-project/vllm/pull/14447
        (SIZES_R1, {**AWQ, "group_size": 64}, 16, 21.21),
        # 8.00 and about 36.5 GB of files, of the cards of TheBloke's repositories
        (SIZES_LLAMA_2, GPTQ, 1, 8.00e9 / GIB),
        (SIZES_LLAMA_2_70B, {**AWQ, "group_size": 128}, 1, 36.5e9 / GIB),
    ],
)
def test_loaded_weights_are_those_of_published_logs(sizes, quantization, devices, published_gib):
    assert stored_bytes(read(quantization, sizes)) / devices / GIB == pytest.approx(published_gib, rel=0.02)


@pytest.mark.parametrize(
    ("quantization", "bits"),
    [
        ({"quant_method": "fp8", "weight_block_size": [128, 128]}, 8 + 32 / 128**2),
        ({"quant_method": "gptq", "bits": 4, "group_size": 128}, 4 + 20 / 128),
        ({"quant_method": "gptq", "bits": 3, "group_size": 32}, 3 + 19 / 32),
        ({"quant_method": "awq", "bits": 4, "group_size": 64, "zero_point": True}, 4 + 20 / 64),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4", "group_size": 16}, 4.5),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_use_double_quant": True}, 4.127),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, 4.5),
        ({"quant_method": "torchao", "quant_type": {"default": {"_type": "Float8WeightOnlyConfig", "_data": {}}}}, 8),
        ({"quant_method": "quark", "global_quant_config": {"weight": {"dtype": "fp8_e4m3"}}}, 8),
    ],
)
def test_methods_count_scales_and_zero_points(quantization, bits):
    assert stored_bytes(read(quantization)) == pytest.approx(80 * BLOCK * bits / 8 + PLAIN, rel=1e-4)


@pytest.mark.parametrize(
    ("kept", "numbers"),
    [
        (["model.layers.3.mlp.down_proj"], 8192 * 28672),
        (["model.layers.3.mlp*"], 3 * 8192 * 28672),
        (["model.language_model.layers.3.mlp*"], 3 * 8192 * 28672),
        (["mtp.layers.3.mlp*", "vision_tower.encoder.layers.0*"], 0),
        ([r"re:.*layers\.\d\.self_attn.*"], 10 * (8192 * 8192 * 2 + 8192 * 1024 * 2)),
        (["re:.*k_proj"], 80 * 8192 * 1024),
    ],
)
def test_modules_that_are_not_converted_have_16_bits(kept, numbers):
    quantization = {"quant_method": "fp8", "modules_to_not_convert": kept}
    assert stored_bytes(read(quantization)) == 80 * BLOCK + PLAIN + numbers


def test_the_question_overrides_the_checkpoint():
    network = read(W8A8)
    assert stored_bytes(network, "bf16") == 2 * network.parameters
    assert Workload(network, "bf16", weights="nvfp4").stored_format.name == "nvfp4"


def test_the_file_beside_a_config_says_how_it_is_quantized(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(SIZES_70B))
    plain = stored_bytes(find_network(str(tmp_path)))
    quantization = {"quant_algo": "FP8", "kv_cache_quant_algo": "FP8", "exclude_modules": ["lm_head"]}
    (tmp_path / "hf_quant_config.json").write_text(json.dumps({"quantization": quantization}))
    network = find_network(str(tmp_path))
    assert (plain, stored_bytes(network)) == (2 * network.parameters, 80 * BLOCK + PLAIN)


@pytest.mark.parametrize(
    ("quantization", "message"),
    [
        ([], r"quantization_config must be an object"),
        ({"quant_method": "magic"}, r"the quantization method 'magic' is not read; fp8,.*--weights"),
        ({"quant_method": "gptq", "bits": "four"}, r"bits must be an integer \(got 'four'\)"),
        ({"quant_method": "modelopt", "quant_algo": "FP3"}, r"quant_algo is 'FP3', which is not read"),
        ({"quant_method": "fp8", "modules_to_not_convert": ["re:("]}, r"is not a regular expression of modules' names"),
        ({"quant_method": "fp8", "weight_block_size": 128}, r"weight_block_size must be two sizes"),
    ],
)
def test_malformed_fields_are_one_sentence(quantization, message):
    with pytest.raises(BadDescriptor, match=message):
        read(quantization)

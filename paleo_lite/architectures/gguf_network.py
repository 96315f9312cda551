"""Networks of ``.gguf`` files: the header names the architecture and its sizes, which are read as a config."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from ..errors import BadDescriptor
from .gguf_file import GgufHeader, StoredTensor, read_gguf_header
from .network import Network, SequenceOptions

MODEL_TYPES = {
    "llama": "llama", "qwen2": "qwen2", "qwen2moe": "qwen2_moe", "qwen3": "qwen3", "qwen3moe": "qwen3_moe",
    "gemma": "gemma", "gemma2": "gemma2", "gemma3": "gemma3_text", "phi3": "phi3", "olmo2": "olmo2",
    "starcoder2": "starcoder2", "command-r": "cohere", "gpt-oss": "gpt_oss", "deepseek2": "deepseek_v3",
    "granite": "granite", "stablelm": "stablelm", "seed_oss": "seed_oss", "ernie4_5": "ernie4_5",
    "smollm3": "smollm3", "internlm2": "internlm2", "glm4": "glm4", "mistral3": "ministral3",
}  # fmt: skip
"""Model types by the architecture of a GGUF file; llama with experts is mixtral."""

_KEYS = {
    "embedding_length": ("hidden_size",),
    "block_count": ("num_hidden_layers",),
    "feed_forward_length": ("intermediate_size",),
    "attention.head_count": ("num_attention_heads",),
    "attention.head_count_kv": ("num_key_value_heads",),
    "attention.key_length": ("head_dim",),
    "attention.sliding_window": ("sliding_window",),
    "context_length": ("max_position_embeddings",),
    "expert_count": ("num_experts", "num_local_experts", "n_routed_experts"),
    "expert_used_count": ("num_experts_per_tok",),
    "expert_feed_forward_length": ("moe_intermediate_size",),
    "expert_shared_count": ("n_shared_experts",),
    "expert_shared_feed_forward_length": ("shared_expert_intermediate_size",),
    "leading_dense_block_count": ("first_k_dense_replace",),
    "attention.q_lora_rank": ("q_lora_rank",),
    "attention.kv_lora_rank": ("kv_lora_rank",),
    "rope.dimension_count": ("qk_rope_head_dim",),
    "vocab_size": ("vocab_size",),
}
"""Keys of a config by those of the header, which follow the name of the architecture."""


def read_gguf(path: Path, image_size: int | None = None, options: SequenceOptions | None = None) -> Network:
    """Return the network of a GGUF file.

    Raise BadFile if the file is damaged, and BadDescriptor if its architecture is not read.
    """
    header = read_gguf_header(path)
    config = msgspec.json.encode(config_fields(header, path))
    return _read_network(config, header.tensors, path, image_size, options)


def _read_network(
    config: bytes,
    tensors: tuple[StoredTensor, ...],
    path: Path,
    image_size: int | None,
    options: SequenceOptions | None,
) -> Network:
    """Return the network of a config with the tensors of its file, also when it is built again."""
    from .model_config import read_config

    network = read_config(config, str(path), image_size, options)
    rebuild = partial(_read_network, config, tensors, path, image_size) if network.rebuild else None
    return network._replace(stored_tensors=tensors, rebuild=rebuild)


def config_fields(header: GgufHeader, path: Path) -> dict[str, Any]:
    """Return the fields of a config that say the same as a header."""
    fields = header.fields
    architecture = fields.get("general.architecture")
    model_type = MODEL_TYPES.get(str(architecture))
    if model_type is None:
        known_architectures = ", ".join(MODEL_TYPES)
        raise BadDescriptor(
            f"{path}: general.architecture is {architecture!r}, which is not read; {known_architectures} are. "
            "Give the config.json of the model instead"
        )
    config: dict[str, Any] = {}
    for key, names in _KEYS.items():
        value = fields.get(f"{architecture}.{key}")
        if value is not None:
            config |= dict.fromkeys(names, _only_value(value, f"{architecture}.{key}", path))
    tokens = fields.get("tokenizer.ggml.tokens.length", fields.get("tokenizer.ggml.tokens"))
    if "vocab_size" not in config and tokens is not None:
        config["vocab_size"] = tokens if isinstance(tokens, int) else len(tokens)
    if architecture == "llama" and config.get("num_local_experts"):
        model_type = "mixtral"
    if model_type == "deepseek_v3":
        value_size = fields.get(f"{architecture}.attention.value_length_mla")
        key_size = fields.get(f"{architecture}.attention.key_length_mla")
        if value_size is None or key_size is None:
            raise BadDescriptor(f"{path}: the file lacks the sizes of latent attention; give the model's config.json")
        config |= {"v_head_dim": value_size, "qk_nope_head_dim": key_size - config.get("qk_rope_head_dim", 64)}
        config.pop("num_key_value_heads", None)
        config.pop("head_dim", None)
    tied = bool(header.tensors) and "output.weight" not in header.types
    return {**config, "model_type": model_type, "tie_word_embeddings": tied}


def _only_value(value: Any, key: str, path: Path) -> Any:
    """Return a number, also of a list that has it for every block."""
    if not isinstance(value, list):
        return value
    if len(set(value)) != 1:
        raise BadDescriptor(f"{path}: {key} differs between blocks, which is not read; give the model's config.json")
    return value[0]

"""Sizes that a nested text config leaves out, as publishers write only what differs from the defaults of its type.

They are those of the config classes of ``transformers`` 5.24. A config of its own has all keys, so that a missing one
is a mistake there.
"""

from __future__ import annotations

from typing import Any

_WIDTH_4096 = {"num_hidden_layers": 32, "num_attention_heads": 32, "hidden_size": 4096}
_LLAMA = {**_WIDTH_4096, "intermediate_size": 11008, "vocab_size": 32000}
_MISTRAL = {**_LLAMA, "intermediate_size": 14336, "num_key_value_heads": 8}
_QWEN = {**_WIDTH_4096, "intermediate_size": 22016, "vocab_size": 151936}

NESTED_DEFAULTS: dict[str, dict[str, Any]] = {
    "llama": _LLAMA, "mistral": {**_MISTRAL, "sliding_window": 4096}, "mixtral": {**_MISTRAL, "num_local_experts": 8},
    "qwen2": _QWEN, "qwen3": {**_QWEN, "head_dim": 128}, "qwen3_vl_text": {**_QWEN, "head_dim": 128},
    "ministral3": {**_MISTRAL, "num_hidden_layers": 34, "vocab_size": 131072, "head_dim": 128},
    "gemma": {
        "num_hidden_layers": 28, "num_attention_heads": 16, "hidden_size": 3072, "intermediate_size": 24576,
        "vocab_size": 256000,
    },
    "gemma2": {
        "num_hidden_layers": 26, "num_attention_heads": 8, "num_key_value_heads": 4, "hidden_size": 2304,
        "intermediate_size": 9216, "vocab_size": 256000,
    },
    "gemma3_text": {"num_hidden_layers": 26, "hidden_size": 2304, "intermediate_size": 9216},
    "phi3": {**_LLAMA, "hidden_size": 3072, "intermediate_size": 8192, "vocab_size": 32064},
    "opt": {
        "num_hidden_layers": 12, "num_attention_heads": 12, "hidden_size": 768, "ffn_dim": 3072, "vocab_size": 50272,
    },
    "cohere2": {
        "num_hidden_layers": 40, "num_attention_heads": 64, "hidden_size": 8192, "intermediate_size": 22528,
        "vocab_size": 256000,
    },
}  # fmt: skip
"""Defaults by model type."""


def fill_nested(fields: dict[str, Any]) -> tuple[dict[str, Any], str]:
    """Return a nested text config with the sizes that it leaves out, and a note that names them; empty for none."""
    missing = {
        name: value
        for name, value in NESTED_DEFAULTS.get(str(fields.get("model_type")), {}).items()
        if name not in fields
    }
    listed = ", ".join(f"{name} {value}" for name, value in missing.items())
    note = f"what the text config leaves out has the defaults of transformers: {listed}" if missing else ""
    return {**missing, **fields}, note

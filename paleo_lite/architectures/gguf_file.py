"""Networks of ``.gguf`` files: the header names the architecture and its sizes, which are read as a config.

The format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md. Only the header is read, and of long lists, such
as the tokens of a vocabulary, only the length.
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from ..errors import BadDescriptor
from .network import Network, SequenceOptions

_MAX_ENTRIES = 2**20
_MAX_TEXT_BYTES = 2**24
_MAX_LISTED = 4096

_NUMBERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
"""Codes of numbers in the header, and those of `struct`."""

_TEXT, _LIST = 8, 9

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


class Header(msgspec.Struct, frozen=True):
    """Header of a GGUF file.

    Attributes
    ----------
    fields : dict
        Values by key; of long lists only the length.
    tensors : dict
        Shapes and types of tensors, by name.
    """

    fields: dict[str, Any]
    tensors: dict[str, tuple[tuple[int, ...], int]]


def read_gguf(path: Path, image_size: int | None = None, options: SequenceOptions | None = None) -> Network:
    """Return the network of a GGUF file.

    Raises
    ------
    BadDescriptor
        If the file is damaged, or its architecture is not read.
    """
    from .model_config import read_config

    fields = config_fields(read_header(path), path)
    return read_config(msgspec.json.encode(fields), str(path), image_size, options)


def config_fields(header: Header, path: Path) -> dict[str, Any]:
    """Return the fields of a config that say the same as a header."""
    fields = header.fields
    architecture = fields.get("general.architecture")
    model_type = MODEL_TYPES.get(str(architecture))
    if model_type is None:
        known = ", ".join(MODEL_TYPES)
        raise BadDescriptor(
            f"{path}: general.architecture is {architecture!r}, which is not read; {known} are. "
            "Give the config.json of the model instead"
        )
    config: dict[str, Any] = {}
    for key, names in _KEYS.items():
        value = fields.get(f"{architecture}.{key}")
        if value is not None:
            config |= dict.fromkeys(names, _only_value(value, f"{architecture}.{key}", path))
    tokens = fields.get("tokenizer.ggml.tokens")
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
    tied = bool(header.tensors) and "output.weight" not in header.tensors
    return {**config, "model_type": model_type, "tie_word_embeddings": tied}


def _only_value(value: Any, key: str, path: Path) -> Any:
    """Return a number, also of a list that has it for every block."""
    if not isinstance(value, list):
        return value
    if len(set(value)) != 1:
        raise BadDescriptor(f"{path}: {key} differs between blocks, which is not read; give the model's config.json")
    return value[0]


def read_header(path: Path) -> Header:
    """Return the header of a GGUF file.

    Raises
    ------
    BadDescriptor
        If the file cannot be read, or is none of version 2 or 3.
    """
    try:
        with path.open("rb") as file:
            return _read_header(file, path)
    except OSError as error:
        raise BadDescriptor(f"{path}: cannot be read ({error.strerror})") from None
    except (struct.error, UnicodeDecodeError):
        raise BadDescriptor(f"{path}: the header of the GGUF file is damaged or ends early") from None


def _read_header(file: BinaryIO, path: Path) -> Header:
    if file.read(4) != b"GGUF":
        raise BadDescriptor(f"{path}: not a GGUF file: it does not begin with GGUF")
    (version,) = _unpack(file, "I")
    if version not in (2, 3):
        raise BadDescriptor(f"{path}: a GGUF file of version {version}; 2 and 3 are read")
    tensors, entries = _unpack(file, "QQ")
    if max(tensors, entries) > _MAX_ENTRIES:
        raise BadDescriptor(f"{path}: {max(tensors, entries)} entries in the header, too many for a model")
    fields = {}
    for _ in range(entries):
        key = _read_text(file)
        (code,) = _unpack(file, "I")
        fields[key] = _read_value(file, code, path)
    shapes = {}
    for _ in range(tensors):
        name = _read_text(file)
        (dimensions,) = _unpack(file, "I")
        if dimensions > 8:
            raise BadDescriptor(f"{path}: tensor {name!r} has {dimensions} dimensions, too many")
        shape = _unpack(file, f"{dimensions}Q")
        tensor_type, _ = _unpack(file, "IQ")
        shapes[name] = (shape, tensor_type)
    return Header(fields, shapes)


def _unpack(file: BinaryIO, layout: str) -> tuple[Any, ...]:
    layout = f"<{layout}"
    return struct.unpack(layout, file.read(struct.calcsize(layout)))


def _read_text(file: BinaryIO) -> str:
    (length,) = _unpack(file, "Q")
    if length > _MAX_TEXT_BYTES:
        raise struct.error
    data = file.read(length)
    if len(data) < length:
        raise struct.error
    return data.decode(errors="replace")


def _read_value(file: BinaryIO, code: int, path: Path) -> Any:
    """Return a value of the header; of a long list its length."""
    if code in _NUMBERS:
        return _unpack(file, _NUMBERS[code])[0]
    if code == _TEXT:
        return _read_text(file)
    if code != _LIST:
        raise BadDescriptor(f"{path}: the header has a value of the unknown type {code}")
    item, length = _unpack(file, "IQ")
    if length > 2**24:
        raise BadDescriptor(f"{path}: the header has a list of {length} values, too many")
    is_listed = length <= _MAX_LISTED
    if item in _NUMBERS and not is_listed:
        file.seek(length * struct.calcsize(_NUMBERS[item]), 1)
        return length
    if item == _LIST:
        raise BadDescriptor(f"{path}: the header has a list of lists, which is not read")
    values = []
    for _ in range(length):
        value = _read_value(file, item, path)
        if is_listed:
            values.append(value)
    return values if is_listed else length

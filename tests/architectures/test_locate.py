"""Networks are found by folder, weights, GGUF file and name on the Hub; nothing is downloaded.

Tests: architectures/locate.py, architectures/gguf_network.py.
"""

from __future__ import annotations

import json
import struct
from pathlib import Path

import pytest

import paleo_lite as pl
from paleo_lite.architectures import find_network, is_network_file
from paleo_lite.architectures.locate import find_release
from paleo_lite.errors import BadDescriptor, BadFile

LLAMA_3_1_8B = {
    "model_type": "llama", "vocab_size": 128256, "hidden_size": 4096, "intermediate_size": 14336,
    "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8,
}  # fmt: skip
PUBLISHED = 8_030_261_248  # https://huggingface.co/meta-llama/Llama-3.1-8B


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(LLAMA_3_1_8B))
    return tmp_path


@pytest.mark.parametrize("name", ["", "config.json", "model.safetensors", "model.safetensors.index.json"])
def test_a_folder_its_config_and_its_weights_are_one_network(folder, name):
    if name.startswith("model"):
        empty = b'{"weight_map": {}}' if name.endswith(".json") else b"\2\0\0\0\0\0\0\0{}"
        (folder / name).write_bytes(empty)
    assert find_network(str(folder / name)).parameters == PUBLISHED


def test_weights_without_a_config_or_a_folder_without_a_model_are_one_sentence(tmp_path):
    (tmp_path / "model.safetensors").write_bytes(b"")
    with pytest.raises(BadDescriptor, match=r"model\.safetensors: the weights need the config\.json of the model"):
        find_network(str(tmp_path / "model.safetensors"))
    with pytest.raises(BadDescriptor, match=r"No such file or directory"):
        find_network(str(tmp_path / "other.safetensors"))
    with pytest.raises(BadDescriptor, match=r"neither a config\.json nor a \.gguf file"):
        find_network(str(tmp_path))


@pytest.mark.parametrize("name", ["Qwen/Qwen3-8B", "qwen/qwen3-8b"])
def test_a_name_of_the_hub_is_the_network_that_was_shipped_from_it(name):
    assert find_network(name).name == "qwen3-8b"
    assert not is_network_file(name)


def test_a_config_that_is_added_to_the_shipped_ones_is_found(tmp_path, monkeypatch):
    monkeypatch.setattr("paleo_lite.architectures.locate.shipped_folder", lambda _: tmp_path)
    card = {**LLAMA_3_1_8B, "published": {"card": "https://huggingface.co/someone/First"}}
    (tmp_path / "first.json").write_text(json.dumps(card))
    assert find_release("someone/first") == tmp_path / "first.json"
    assert find_release("someone/second") is None
    (tmp_path / "second.json").write_text(json.dumps(card).replace("First", "Second"))
    assert find_release("someone/second") == tmp_path / "second.json"


def test_the_shipped_configs_are_opened_once_for_many_names(monkeypatch):
    find_release("Qwen/Qwen3-8B")
    monkeypatch.setattr(Path, "open", lambda path, *_: pytest.fail(f"{path} is opened again"))
    assert find_release("meta-llama/Llama-3.1-8B").stem == "llama-3.1-8b"


@pytest.mark.parametrize("variable", ["HF_HOME", "HF_HUB_CACHE"])
def test_a_name_of_the_hub_is_read_from_the_local_cache(tmp_path, monkeypatch, variable):
    monkeypatch.delenv("HF_HUB_CACHE", raising=False)
    monkeypatch.setenv(variable, str(tmp_path))
    hub = tmp_path / "hub" if variable == "HF_HOME" else tmp_path
    for revision, layers in (("0123abc", 32), ("4567def", 16)):
        snapshot = hub / "models--someone--My-Llama" / "snapshots" / revision
        snapshot.mkdir(parents=True)
        (snapshot / "config.json").write_text(json.dumps({**LLAMA_3_1_8B, "num_hidden_layers": layers}))
    (hub / "models--someone--My-Llama" / "refs").mkdir()
    (hub / "models--someone--My-Llama" / "refs" / "main").write_text("0123abc")
    found = find_network("someone/My-Llama")
    assert (found.name, found.parameters) == ("My-Llama", PUBLISHED)
    assert "My-Llama" in str(pl.predict("someone/My-Llama", gpu="h100-sxm", precision="bf16"))
    with pytest.raises(BadDescriptor, match=r"hf download someone/Other config\.json"):
        find_network("someone/Other")
    (hub / "models--someone--My-Llama" / "refs" / "main").write_text("../../..")
    with pytest.raises(BadDescriptor, match=r"nothing is downloaded"):
        find_network("someone/My-Llama")


def gguf(fields, tensors=("output.weight",), version=3):
    """Write a header by the published layout: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md."""

    def text(value):
        return struct.pack("<Q", len(value)) + value.encode()

    data = b"GGUF" + struct.pack("<IQQ", version, len(tensors), len(fields))
    for key, value in fields.items():
        data += text(key)
        if isinstance(value, str):
            data += struct.pack("<I", 8) + text(value)
        elif isinstance(value, list):
            data += struct.pack("<IIQ", 9, 8, len(value)) + b"".join(text(item) for item in value)
        else:
            data += struct.pack("<II", 4, value)
    for name in tensors:
        data += text(name) + struct.pack("<IQQIQ", 2, 4096, 128256, 0, 0)
    return data


LLAMA_GGUF = {
    "general.architecture": "llama", "llama.embedding_length": 4096, "llama.block_count": 32,
    "llama.feed_forward_length": 14336, "llama.attention.head_count": 32, "llama.attention.head_count_kv": 8,
    "llama.context_length": 131072, "tokenizer.ggml.tokens": ["token"] * 128256,
}  # fmt: skip


@pytest.mark.thorough
def test_a_gguf_header_is_the_network_of_its_config(tmp_path):
    path = tmp_path / "llama.gguf"
    path.write_bytes(gguf(LLAMA_GGUF))
    assert find_network(str(path)).parameters == PUBLISHED
    assert find_network(str(tmp_path)).name == "llama"
    path.write_bytes(gguf(LLAMA_GGUF, tensors=("token_embd.weight",)))  # the head shares the table
    assert find_network(str(path)).parameters == PUBLISHED - 128256 * 4096


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"PK\3\4", "it does not start with 'GGUF'"),
        (gguf(LLAMA_GGUF)[:100], "damaged or incomplete"),
        (gguf(LLAMA_GGUF, version=7), "version 7 of GGUF is not supported"),
        (gguf({"general.architecture": "wavtokenizer"}), "general.architecture is 'wavtokenizer', which is not read"),
        (gguf({"general.architecture": "llama"}), "num_hidden_layers is missing"),
    ],
)
def test_a_damaged_gguf_file_is_one_sentence(tmp_path, data, message):
    path = tmp_path / "bad.gguf"
    path.write_bytes(data)
    with pytest.raises((BadDescriptor, BadFile), match=message):
        find_network(str(path))

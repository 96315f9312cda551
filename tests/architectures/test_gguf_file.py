"""Headers of GGUF files, written by the ``gguf`` package; damaged and hostile files get one sentence."""

from __future__ import annotations

import struct
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from paleo_lite.architectures.gguf_file import read_gguf_header
from paleo_lite.architectures.gguf_network import config_fields
from paleo_lite.errors import BadFile

gguf = pytest.importorskip("gguf")
KINDS = gguf.GGMLQuantizationType
TENSORS = {
    "token_embd.weight": ((100, 64), KINDS.Q8_0),
    "blk.0.attn_q.weight": ((64, 64), KINDS.Q4_0),
    "blk.0.attn_norm.weight": ((64,), KINDS.F32),
    "output.weight": ((100, 64), KINDS.F16),
}


def write_file(path: Path, names: list[str], *, words: int = 100, **fields: int) -> None:
    """Write a tiny model."""
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(1)
    writer.add_embedding_length(64)
    writer.add_feed_forward_length(128)
    writer.add_head_count(4)
    writer.add_head_count_kv(2)
    writer.add_context_length(2048)
    writer.add_token_list([f"word{index}" for index in range(words)])
    for key, value in fields.items():
        writer.add_uint32(key.replace("__", "."), value)
    for name in names:
        shape, kind = TENSORS[name]
        data = gguf.quants.quantize(np.ones(shape, np.float32), kind)
        writer.add_tensor(name, data, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "model.gguf"
    write_file(path, list(TENSORS))
    return path


def test_tensors_are_those_of_the_package(model: Path) -> None:
    header, reader = read_gguf_header(model), gguf.GGUFReader(model)
    assert header.types == {tensor.name: tensor.tensor_type.name.lower() for tensor in reader.tensors}
    assert sum(tensor.bytes for tensor in header.tensors) == sum(int(tensor.n_bytes) for tensor in reader.tensors)
    assert [list(tensor.shape) for tensor in header.tensors] == [tensor.shape.tolist() for tensor in reader.tensors]


def test_config(model: Path) -> None:
    found = config_fields(read_gguf_header(model), model)
    expected = {
        "model_type": "llama", "num_hidden_layers": 1, "hidden_size": 64, "intermediate_size": 128,
        "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 2048, "vocab_size": 100,
        "tie_word_embeddings": False,
    }  # fmt: skip
    assert {name: found.get(name) for name in expected} == expected


def test_vocabularies_are_skipped(tmp_path: Path) -> None:
    path = tmp_path / "words.gguf"
    write_file(path, ["token_embd.weight"], words=5000)
    header = read_gguf_header(path)
    assert header.fields["tokenizer.ggml.tokens.length"] == 5000
    assert "tokenizer.ggml.tokens" not in header.fields
    assert config_fields(header, path)["tie_word_embeddings"]


def test_split_files(tmp_path: Path) -> None:
    names = list(TENSORS)
    parts = [tmp_path / f"model-0000{number}-of-00002.gguf" for number in (1, 2)]
    write_file(parts[0], names[:2], split__tensors__count=4)
    write_file(parts[1], names[2:])
    assert [tensor.name for tensor in read_gguf_header(parts[1]).tensors] == names
    write_file(parts[0], names[:1], split__tensors__count=4)
    with pytest.raises(BadFile, match="its 2 parts have 3 tensors, but should have 4"):
        read_gguf_header(parts[0])
    parts[1].unlink()
    with pytest.raises(BadFile, match=r"the part model-00002-of-00002\.gguf of"):
        read_gguf_header(parts[0])


def test_every_truncation_gets_a_sentence(model: Path) -> None:
    content = model.read_bytes()
    header_bytes = gguf.GGUFReader(model).data_offset - 32  # less its padding
    for size in range(0, header_bytes, 37):
        model.write_bytes(content[:size])
        with pytest.raises(BadFile):
            read_gguf_header(model)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"PK\x03\x04", "not a GGUF file"),
        (b"GGUF" + struct.pack("<I", 9), "version 9 of GGUF is not supported"),
        (b"GGUF" + struct.pack("<IQQ", 3, 2**60, 1), "no real file has as many"),
        (b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 2**62), "a text of 4611686018427387904 bytes"),
        (b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 1) + b"a" + struct.pack("<IIQ", 9, 8, 2**50), "an array of"),
        (b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 1) + b"a" + struct.pack("<IIQ", 9, 9, 1), "unsupported type 9"),
        (b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 1) + b"a" + struct.pack("<I", 77), "unknown type 77"),
        (b"GGUF" + struct.pack("<IQQQ", 3, 1, 0, 1) + b"a" + struct.pack("<I", 99), "99 dimensions"),
        (b"GGUF" + struct.pack("<IQQQ", 3, 1, 0, 1) + b"a" + struct.pack("<IQIQ", 1, 31, 2, 0), "impossible shape"),
        (b"GGUF" + struct.pack("<IQQQ", 3, 1, 0, 1) + b"a" + struct.pack("<IQIQ", 1, 32, 500, 0), "unknown type 500"),
    ],
)
def test_hostile_files(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "bad.gguf"
    path.write_bytes(content)
    tracemalloc.start()
    with pytest.raises(BadFile, match=message):
        read_gguf_header(path)
    _, most_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most_bytes < 4e6


@pytest.mark.parametrize(("elements", "is_refused"), [(2**24, False), (2**24 + 1, True)])
def test_an_array_has_at_most_two_to_the_24_elements(tmp_path: Path, elements: int, is_refused: bool) -> None:
    path = tmp_path / "long.gguf"
    path.write_bytes(b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 1) + b"a" + struct.pack("<IIQ", 9, 8, elements))
    with pytest.raises(BadFile) as refused:  # the shorter one ends before its first element
        read_gguf_header(path)
    assert ("no real file has one" in str(refused.value)) == is_refused


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(BadFile, match="No such file"):
        read_gguf_header(tmp_path / "absent.gguf")

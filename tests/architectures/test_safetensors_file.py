"""Bytes of checkpoints by the headers of their files, which the library of the format writes; hostile headers.

Tests: architectures/safetensors_file.py, architectures/checkpoint_sizes.py.
"""

from __future__ import annotations

import json

import numpy as np
import pytest

from paleo_lite.architectures import find_network
from paleo_lite.architectures.checkpoint_sizes import part_of_tensor
from paleo_lite.architectures.safetensors_file import FileTensor, read_header, read_tensors, stamp_checkpoint
from paleo_lite.errors import BadDescriptor
from paleo_lite.timing.memory import model_bytes
from paleo_lite.timing.workload import Workload

HIDDEN, INNER, WORDS, HEADS, BLOCKS = 64, 160, 300, 8, 2
CONFIG = {
    "model_type": "llama", "vocab_size": WORDS, "hidden_size": HIDDEN, "intermediate_size": INNER,
    "num_hidden_layers": BLOCKS, "num_attention_heads": HEADS, "num_key_value_heads": 2,
}  # fmt: skip
W8A8 = {
    "quant_method": "compressed-tensors", "ignore": ["lm_head"],
    "config_groups": {"group_0": {"targets": ["Linear"], "weights": {"num_bits": 8, "type": "int", "symmetric": True}}},
}  # fmt: skip
GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 32}
MATRICES = {
    "self_attn.q_proj": (HIDDEN, HIDDEN), "self_attn.k_proj": (16, HIDDEN), "self_attn.v_proj": (16, HIDDEN),
    "self_attn.o_proj": (HIDDEN, HIDDEN), "mlp.gate_proj": (INNER, HIDDEN), "mlp.up_proj": (INNER, HIDDEN),
    "mlp.down_proj": (HIDDEN, INNER),
}  # fmt: skip


def int8(name, rows, columns):
    return {
        f"{name}.weight": np.zeros((rows, columns), np.int8),
        f"{name}.weight_scale": np.zeros((rows, 1), np.float32),
    }


def int4(name, rows, columns):
    """GPTQ with an order of the rows: words of eight numbers, and scales and zero points per 32 inputs."""
    return {
        f"{name}.qweight": np.zeros((columns // 8, rows), np.int32), f"{name}.g_idx": np.zeros(columns, np.int32),
        f"{name}.qzeros": np.zeros((columns // 32, rows // 8), np.int32),
        f"{name}.scales": np.zeros((columns // 32, rows), np.float16),
    }  # fmt: skip


def tensors_of(quantized, further_blocks=0):
    found = {
        "model.embed_tokens.weight": np.zeros((WORDS, HIDDEN), np.float16),
        "lm_head.weight": np.zeros((WORDS, HIDDEN), np.float16), "model.norm.weight": np.zeros(HIDDEN, np.float16),
    }  # fmt: skip
    for block in range(BLOCKS + further_blocks):
        for norm in ("input_layernorm", "post_attention_layernorm"):
            found[f"model.layers.{block}.{norm}.weight"] = np.zeros(HIDDEN, np.float16)
        for name, shape in MATRICES.items():
            found |= quantized(f"model.layers.{block}.{name}", *shape)
    return found


@pytest.fixture
def write(tmp_path):
    library = pytest.importorskip("safetensors.numpy")

    def written(tensors, quantization=None, shards=1):
        fields = CONFIG if quantization is None else {**CONFIG, "quantization_config": quantization}
        (tmp_path / "config.json").write_text(json.dumps(fields))
        if shards == 1:
            library.save_file(tensors, tmp_path / "model.safetensors")
            return str(tmp_path)
        places = {}
        for shard in range(shards):
            name = f"model-{shard + 1:05d}-of-{shards:05d}.safetensors"
            part = dict(list(tensors.items())[shard::shards])
            library.save_file(part, tmp_path / name)
            places |= dict.fromkeys(part, name)
        (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": places}))
        return str(tmp_path)

    return written


def loaded(folder):
    return model_bytes(Workload(find_network(folder), "fp16"))[0]


@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize(("quantized", "config"), [(int8, W8A8), (int4, GPTQ), (int8, None)])
def test_the_memory_of_a_checkpoint_is_that_of_its_tensors(write, quantized, config, shards):
    tensors = tensors_of(quantized)
    assert loaded(write(tensors, config, shards)) == pytest.approx(sum(own.nbytes for own in tensors.values()), abs=2)


def test_layers_that_predict_further_tokens_are_left_out(write):
    tensors = tensors_of(int8)
    assert loaded(write(tensors_of(int8, 1), W8A8)) == pytest.approx(sum(own.nbytes for own in tensors.values()), abs=2)


def test_wide_numbers_in_files_are_converted_to_16_bits(write):
    tensors = {name: own.astype(np.float32) for name, own in tensors_of(lambda *_: {}).items()}
    tensors |= {f"model.layers.{block}.{name}.weight": np.zeros(shape, np.float32)
                for block in range(BLOCKS) for name, shape in MATRICES.items()}  # fmt: skip
    assert loaded(write(tensors)) == sum(own.nbytes for own in tensors.values()) // 2


def test_a_missing_shard_leaves_the_formats_of_the_config(write, tmp_path):
    by_files = loaded(write(tensors_of(int4), GPTQ, shards=2))
    (tmp_path / "model-00002-of-00002.safetensors").unlink()
    assert loaded(str(tmp_path)) < by_files  # without the order of the rows


def test_a_changed_file_is_read_again(write):
    before = loaded(write(tensors_of(int8), W8A8))
    assert loaded(write(tensors_of(int4), GPTQ)) < before


def test_files_of_another_checkpoint_are_an_error(write):
    with pytest.raises(BadDescriptor, match=r"of dense weights, but its formats would be .* not of one checkpoint"):
        find_network(write(tensors_of(int8), {**GPTQ, "bits": 2}))


@pytest.mark.parametrize(
    ("name", "shape", "part"),
    [
        ("model.layers.3.mlp.experts.17.down_proj.weight_scale_inv", (2, 2), "experts"),
        ("model.layers.3.mlp.shared_experts.down_proj.weight", (2, 2), "dense"),
        ("model.layers.3.mlp.gate.weight", (2, 2), "router"),
        ("model.layers.3.mlp.gate.e_score_correction_bias", (2,), None),
        ("model.layers.60.mlp.experts.0.up_proj.weight", (2, 2), None),
        ("model.visual.blocks.3.attn.qkv.weight", (2, 2), None),
        ("model.language_model.layers.3.self_attn.o_proj.weight", (2, 2), "dense"),
        ("model.language_model.embed_tokens.weight", (2, 2), "embedding"),
        ("block.layers.3.mlp.mlp1_weight", (2, 2), "dense"),
        ("model.layers.3.mlp.experts.gate_up_proj_blocks", (2, 2), "experts"),
    ],
)
def test_tensors_belong_to_parts_by_their_names(name, shape, part):
    assert part_of_tensor(FileTensor(name, "BF16", shape), blocks=60) == part


# Hostile headers -----------------------------------------------------------------------------------------------------


def header(entries, length=None, data=b""):
    text = entries if isinstance(entries, bytes) else json.dumps(entries).encode()
    return (len(text) if length is None else length).to_bytes(8, "little") + text + data


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"", "header of 0 bytes does not fit a file of 0"),
        (header({}, length=2**63), "does not fit a file of 10"),
        (header(b"{]"), "the header is malformed"),
        (header(b"[" * 100_000), "the header is malformed"),
        (header({"a": {"dtype": "F16", "shape": [2], "data_offsets": [0, 4]}}), "lies at 0 to 4 of 0"),
        (header({"a": {"dtype": "F16", "shape": [2], "data_offsets": [4, 0]}}, data=b"1234"), "lies at 4 to 0 of 4"),
        (header({"a": {"dtype": "F16", "shape": [3], "data_offsets": [0, 4]}}, data=b"1234"), "has 6 bytes by its"),
        (header({"a": {"dtype": "F3", "shape": [2], "data_offsets": [0, 4]}}, data=b"1234"), "has the type 'F3'"),
        (header({"a": {"dtype": "F16", "shape": [-2], "data_offsets": [0, 4]}}), "the header is malformed"),
        (header({"a": {"dtype": "F16", "shape": [2**52] * 16, "data_offsets": [0, 4]}}), "bytes by its shape"),
        (header({"a": 3}), "the header is malformed"),
    ],
)  # fmt: skip
def test_a_bad_header_is_one_sentence(tmp_path, content, sentence):
    path = tmp_path / "model.safetensors"
    path.write_bytes(content)
    with pytest.raises(BadDescriptor) as raised:
        read_header(path, len(content))
    assert sentence in str(raised.value) and "\n" not in str(raised.value)


@pytest.mark.parametrize("name", ["../model.safetensors", "/etc/passwd", "a/b.safetensors", "weights.bin", ""])
def test_an_index_names_files_of_its_folder_only(tmp_path, name):
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": name}}))
    with pytest.raises(BadDescriptor, match=r"is not a name of a \.safetensors file in the index"):
        stamp_checkpoint(tmp_path)


def test_a_folder_without_weights_has_no_tensors(tmp_path):
    assert read_tensors(stamp_checkpoint(tmp_path)) == ()

"""GGUF files written by the ``gguf`` package under llama.cpp: the types of their tensors give the bytes.

Tests: own_machines/contents.py.
"""

from __future__ import annotations

import json
import random
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

import paleo_lite as pl
from paleo_lite.api.local import predict_local
from paleo_lite.architectures import find_network
from paleo_lite.architectures.gguf_file import StoredTensor
from paleo_lite.architectures.stored_weights import StoredWeights
from paleo_lite.cli import main
from paleo_lite.errors import BadFile, PaleoError
from paleo_lite.own_machines.contents import pieces_of_tensors, read_contents
from paleo_lite.own_machines.question import LocalQuestion

gguf = pytest.importorskip("gguf")
KINDS = gguf.GGMLQuantizationType

EMBEDDING, HEADS, KEY_HEADS, INNER, WORDS, BLOCKS, EXPERTS, USED = 256, 4, 2, 512, 1000, 2, 4, 2
BLOCK = {
    "attn_norm": ((EMBEDDING,), KINDS.F32),
    "attn_q": ((EMBEDDING, EMBEDDING), KINDS.Q4_0),
    "attn_k": ((EMBEDDING // 2, EMBEDDING), KINDS.Q4_0),
    "attn_v": ((EMBEDDING // 2, EMBEDDING), KINDS.Q8_0),
    "attn_output": ((EMBEDDING, EMBEDDING), KINDS.Q5_1),
    "ffn_norm": ((EMBEDDING,), KINDS.F32),
}
DENSE = {
    "ffn_gate": ((INNER, EMBEDDING), KINDS.Q4_1),
    "ffn_up": ((INNER, EMBEDDING), KINDS.Q4_1),
    "ffn_down": ((EMBEDDING, INNER), KINDS.F16),
}
MIXTURE = {
    "ffn_gate_inp": ((EXPERTS, EMBEDDING), KINDS.F32),
    "ffn_gate_exps": ((EXPERTS, INNER, EMBEDDING), KINDS.Q4_0),
    "ffn_up_exps": ((EXPERTS, INNER, EMBEDDING), KINDS.Q4_0),
    "ffn_down_exps": ((EXPERTS, EMBEDDING, INNER), KINDS.Q8_0),
}


def write_model(path: Path, *, experts: bool = False, head: bool = True, blocks: int = BLOCKS) -> Path:
    """Write a small llama with random weights."""
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(BLOCKS)
    writer.add_embedding_length(EMBEDDING)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KEY_HEADS)
    writer.add_context_length(8192)
    if experts:
        writer.add_expert_count(EXPERTS)
        writer.add_expert_used_count(USED)
    writer.add_token_list([f"word{index}" for index in range(WORDS)])
    tensors = {"token_embd": ((WORDS, EMBEDDING), KINDS.Q8_0), "output_norm": ((EMBEDDING,), KINDS.F32)}
    if head:
        tensors["output"] = ((WORDS, EMBEDDING), KINDS.Q5_0)
    for block in range(blocks):
        tensors |= {
            f"blk.{block}.{name}": value for name, value in {**BLOCK, **(MIXTURE if experts else DENSE)}.items()
        }
    generator = np.random.default_rng(0)
    for name, (shape, kind) in tensors.items():
        data = gguf.quants.quantize(generator.normal(size=shape).astype(np.float32), kind)
        writer.add_tensor(f"{name}.weight", data, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def tensors_of(path: Path) -> dict[str, int]:
    """Return the bytes of all tensors, as the package reads them."""
    return {tensor.name: int(tensor.n_bytes) for tensor in gguf.GGUFReader(path).tensors}


def test_bytes_are_those_of_the_file(tmp_path: Path) -> None:
    path = write_model(tmp_path / "tiny.gguf")
    sizes = tensors_of(path)
    contents = read_contents(find_network(str(path)))
    assert contents.stored_bytes == sum(sizes.values())
    read_bytes = sum(piece.read_bytes for piece in contents.pieces)
    assert read_bytes == sum(sizes.values()) - sizes["token_embd.weight"]
    assert contents.cache_bytes(100) == 100 * 2 * BLOCKS * KEY_HEADS * (EMBEDDING // HEADS) * 2
    assert contents.vocabulary == WORDS and not contents.notes


def test_experts_of_a_file(tmp_path: Path) -> None:
    """A token reads two experts of four."""
    path = write_model(tmp_path / "mixture.gguf", experts=True)
    sizes = tensors_of(path)
    contents = read_contents(find_network(str(path)))
    experts = sum(size for name, size in sizes.items() if "_exps" in name)
    others = sum(sizes.values()) - experts - sizes["token_embd.weight"]
    assert sum(piece.read_bytes for piece in contents.pieces) == pytest.approx(others + experts * USED / EXPERTS)
    placed = predict_local(str(path), "rtx3060", LocalQuestion(cpu_experts=True))
    assert placed.host_bytes == experts + sizes["token_embd.weight"]


def test_a_head_that_shares_the_table(tmp_path: Path) -> None:
    path = write_model(tmp_path / "tied.gguf", head=False)
    sizes = tensors_of(path)
    found = predict_local(str(path), "rtx3060")
    assert found.weight_bytes == sum(sizes.values())
    assert found.host_bytes == sizes["token_embd.weight"]


def test_a_file_as_another_mixture(tmp_path: Path) -> None:
    path = write_model(tmp_path / "tiny.gguf")
    own, other = predict_local(str(path), "rtx3060"), predict_local(str(path), "rtx3060", LocalQuestion(weights="q8_0"))
    assert own.weights == "mostly f16" and other.weights == "q8_0"
    assert own.weight_bytes < other.weight_bytes * 1.2


def test_missing_blocks_get_a_note(tmp_path: Path) -> None:
    path = write_model(tmp_path / "half.gguf", blocks=1)
    found = predict_local(str(path), "rtx3060")
    assert found.notes[0].startswith("the tensors of the file have ")


def test_command(tmp_path: Path) -> None:
    path = write_model(tmp_path / "tiny.gguf")
    words = ["local", str(path), "--gpu", "rtx3060", "--engine", "llama.cpp", "--format", "json"]
    answer = json.loads(CliRunner().invoke(main, words).stdout)
    assert answer["weight_bytes"] == sum(tensors_of(path).values()) - tensors_of(path)["token_embd.weight"]


def test_an_incomplete_download(tmp_path: Path) -> None:
    """A part of the data is missing; the header alone is enough."""
    path = write_model(tmp_path / "tiny.gguf")
    content, start = path.read_bytes(), gguf.GGUFReader(path).data_offset
    path.write_bytes(content[: len(content) // 2])
    with pytest.raises(BadFile, match=f"the file ends after {len(content) // 2:,} of "):
        predict_local(str(path), "rtx3060")
    path.write_bytes(content[:start])
    assert predict_local(str(path), "rtx3060").weight_bytes > 0


@pytest.mark.thorough
def test_damaged_bytes_are_an_answer_or_a_sentence(tmp_path: Path) -> None:
    """Any other exception than the project's fails; sizes in the file are numbers that no memory could hold."""
    content = write_model(tmp_path / "mixture.gguf", experts=True).read_bytes()
    generator, path, sentences = random.Random(0), tmp_path / "damaged.gguf", 0
    for _ in range(120):
        damaged = bytearray(content)
        at = generator.randrange(600)  # the header before the words of the vocabulary
        damaged[at : at + 8] = generator.choice([0, 255, 2**31, 2**40, 2**63]).to_bytes(8, "little")
        path.write_bytes(damaged)
        try:
            predict_local(str(path), "rtx3060")
        except PaleoError as error:
            assert "\n" not in str(error)
            sentences += 1
    assert sentences > 60


def test_a_file_without_blocks(tmp_path: Path) -> None:
    path = tmp_path / "words.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    for add, value in (
        (writer.add_block_count, 2), (writer.add_embedding_length, 64), (writer.add_feed_forward_length, 128),
        (writer.add_head_count, 4), (writer.add_vocab_size, 100), (writer.add_context_length, 2048),
    ):  # fmt: skip
        add(value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(BadFile, match=r"the file has 0 tensors, and needs token_embd\.weight"):
        predict_local(str(path), "rtx3060")
    table = StoredTensor("token_embd.weight", (64, 100), "F32")
    with pytest.raises(BadFile, match=r"the file has 1 tensors, and needs token_embd\.weight and those of the blocks"):
        pieces_of_tensors("words.gguf", [table], 1.0)


@pytest.mark.parametrize(
    ("network", "weights", "published_gib"),
    # Files of unsloth/gpt-oss-20b-GGUF and unsloth/gpt-oss-120b-GGUF: every format keeps the experts of the checkpoint.
    [("gpt-oss-120b", "q8_k_xl", 60.0), ("gpt-oss-20b", "q4_k_xl", 11.5), ("gpt-oss-20b", "f16", 12.85)],
)
def test_experts_of_the_checkpoint_stay_in_mxfp4(network: str, weights: str, published_gib: float) -> None:
    stored_bytes = read_contents(find_network(network), weights).stored_bytes
    assert stored_bytes / 2**30 == pytest.approx(published_gib, rel=0.03)


def test_files_of_gpt_oss() -> None:
    """ggml-org's files of gpt-oss have the published experts; other networks have llama.cpp's usual mixture."""
    published = pl.local("gpt-oss-20b", gpu="rtx4090")
    assert published.weights == "mxfp4_moe"
    assert pl.local("gpt-oss-20b", gpu="rtx4090", weights="mxfp4").time_s == published.time_s
    assert pl.local("qwen3-8b", gpu="rtx4090").weights == "q4_k_m"
    in_16_bits = find_network("gpt-oss-20b")._replace(stored_weights=StoredWeights("mxfp4", None))  # as unsloth's BF16
    assert read_contents(in_16_bits, None).weights == "q4_k_m"

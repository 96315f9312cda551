"""GGUF's tensor types and llama.cpp's mixtures: sizes as published, and types as llama.cpp chooses them."""

from __future__ import annotations

import pytest

from paleo_lite.architectures import find_network
from paleo_lite.architectures.network import SequenceOptions
from paleo_lite.engines.records import LOCAL_ENGINES
from paleo_lite.formats import FORMATS
from paleo_lite.gguf_types import DIFFERING_TOKENS, GGUF_TYPES, MIXTURES, Proportions, tensor_type
from paleo_lite.own_machines.contents import read_contents
from paleo_lite.timing.quantization import parameter_bytes

LLAMA_8B_GIB = {
    "iq1_s": 1.87, "iq1_m": 2.01, "iq2_xxs": 2.23, "iq2_xs": 2.42, "iq2_s": 2.56, "iq2_m": 2.74, "iq3_xxs": 3.04,
    "iq3_xs": 3.27, "iq3_s": 3.42, "iq3_m": 3.52, "iq4_xs": 4.17, "iq4_nl": 4.38, "q2_k_s": 2.78, "q2_k": 2.95,
    "q3_k_s": 3.41, "q3_k_m": 3.74, "q3_k_l": 4.02, "q4_0": 4.34, "q4_1": 4.78, "q4_k_s": 4.36, "q4_k_m": 4.58,
    "q5_0": 5.21, "q5_1": 5.65, "q5_k_s": 5.21, "q5_k_m": 5.33, "q6_k": 6.14, "q8_0": 7.95, "f16": 14.96,
}  # fmt: skip
"""Sizes of Llama 3.1 8B, llama.cpp's tools/quantize/README.md; legacy types from the help of ``llama-quantize``."""


def gib_of(network: str, formats: list[str]) -> dict[str, float]:
    layers = find_network(network, None, SequenceOptions(None, 1024, "decode")).layers
    return {name: parameter_bytes(layers, "fp16", FORMATS[name], True) / 2**30 for name in formats}


def test_sizes_of_an_8b_network() -> None:
    assert gib_of("llama-3.1-8b", list(LLAMA_8B_GIB)) == pytest.approx(LLAMA_8B_GIB, rel=0.01)
    assert set(MIXTURES) - set(LLAMA_8B_GIB) == {"mxfp4_moe", "q4_k_xl", "q5_k_xl", "q8_k_xl"}


def test_sizes_of_mixtures_of_unsloth() -> None:
    """Files of Unsloth, whose types differ from network to network (kyuz0/amd-strix-halo-toolboxes: size in GiB)."""
    for network, weights, size_gib in (
        ("qwen3.5-35b-a3b", "q4_k_xl", 21.27), ("qwen3.5-35b-a3b", "q8_k_xl", 35.80),
        ("qwen3.5-122b-a10b", "q5_k_xl", 85.60), ("nemotron-3-super-120b-a12b", "q4_k_xl", 78.02),
    ):  # fmt: skip
        assert gib_of(network, [weights]) == pytest.approx({weights: size_gib}, rel=0.035)


@pytest.mark.spread(8)
@pytest.mark.parametrize(
    ("network", "name", "gib"),
    [
        ("llama-3-70b", "q4_k_m", 39.59),  # XiongjieDai/GPU-Benchmarks-on-LLM-Inference
        ("gpt-oss-20b", "mxfp4_moe", 11.27),  # rows of 2880 numbers, a mixture
        # ggml-org/llama.cpp, benches/dgx-spark.md
        ("gpt-oss-120b", "mxfp4_moe", 59.02), ("qwen3-30b-a3b", "q8_0", 30.25),
        # R9700 Benchmark Results (AMD Radeon GFX1201): files of lmstudio-community
        ("gemma-4-31b", "q4_k_m", 17.39), ("gemma-4-26b-a4b", "q4_k_m", 15.63), ("qwen3.5-27b", "q4_k_m", 15.40),
        ("gemma-4-31b", "q8_0", 30.38),  # ggml-org/llama.cpp, issue 24589
        # llama.cpp, tools/llama-bench/README.md, and pull request 2059
        ("qwen2.5-7b", "q4_k_m", 4.36), ("llama-2-13b", "q4_0", 6.86), ("llama-2-13b", "q6_k", 9.95),
        # tables of llama-bench that people published: 18.48 and 4.68 GiB, 1.87 GiB, 762.81 and 885.97 MiB
        ("qwen2.5-32b", "q4_k_m", 18.48), ("qwen3-8b", "q4_k_m", 4.68), ("llama-3.2-3b", "q4_k_m", 1.87),
        ("llama-3.2-1b", "q4_k_m", 0.7449), ("qwen2.5-1.5b", "q4_0", 0.8652),
        # huggingface.co/Mozilla/Mistral-7B-Instruct-v0.3-llamafile
        ("mistral-7b", "f16", 13.50), ("mistral-7b", "q6_k", 5.54),
        # ik_llama.cpp, wiki, July 2024
        ("llama-2-7b", "f16", 12.55), ("llama-2-7b", "q8_0", 6.67), ("llama-2-7b", "q4_0", 3.56),
        ("llama-2-7b", "q4_1", 3.95), ("llama-2-7b", "q5_0", 4.34), ("llama-2-7b", "q5_1", 4.72),
    ],
)  # fmt: skip
def test_sizes_of_other_networks(network: str, name: str, gib: float) -> None:
    assert read_contents(find_network(network), name).stored_bytes / 2**30 == pytest.approx(gib, rel=0.003)


def test_bits_of_mixtures() -> None:
    """`bits` is that of the 8B network: its size by its 8.03e9 parameters."""
    bits = {name: gib * 2**30 * 8 / 8.0303e9 for name, gib in LLAMA_8B_GIB.items()}
    assert {name: MIXTURES[name].bits for name in bits} == pytest.approx(bits, rel=0.01)


def test_sizes_of_types_are_those_of_the_package() -> None:
    constants = pytest.importorskip("gguf.constants")
    theirs = {kind.name.lower(): size for kind, size in constants.GGML_QUANT_SIZES.items()}
    assert {name: (kind.block_numbers, kind.block_bytes) for name, kind in GGUF_TYPES.items()} == {
        name: theirs[name] for name in GGUF_TYPES
    }


def test_types_by_block() -> None:
    """llama.cpp's ``use_more_bits`` by hand: of 32 blocks the first 4, then every third, and the last 4."""
    network = Proportions(32, 4)
    down = [tensor_type(MIXTURES["q4_k_m"], "ffn_down", block, 14336, network) for block in range(32)]
    assert [block for block, kind in enumerate(down) if kind == "q6_k"] == [
        0, 1, 2, 3, 6, 9, 12, 15, 18, 21, 24, 27, 28, 29, 30, 31,
    ]  # fmt: skip
    assert set(down) == {"q4_k", "q6_k"}


@pytest.mark.parametrize(("row", "expected"), [(4096, "q4_k"), (2880, "q5_0"), (100, "f16")])
def test_rows_that_are_no_multiple_of_a_block(row: int, expected: str) -> None:
    assert tensor_type(MIXTURES["q4_k_m"], "ffn_up", 0, row, Proportions(32)) == expected


def test_eight_experts_keep_their_attention() -> None:
    network = Proportions(32, 4, experts=8)
    assert tensor_type(MIXTURES["q4_k_m"], "attn_v", 0, 4096, network) == "q8_0"
    assert tensor_type(MIXTURES["q4_k_m"], "attn_output", 0, 4096, network) == "q5_k"
    assert tensor_type(MIXTURES["q4_k_m"], "experts_down", 5, 14336, network) == "q4_k"


LLAMA_3_8B_LOSSES = {
    "q8_0": 0.0026, "q6_k": 0.0217, "q5_k_m": 0.0569, "q5_k_s": 0.1049, "q4_k_m": 0.1754, "q4_k_s": 0.2689,
    "q3_k_l": 0.5562, "q3_k_m": 0.6569, "q3_k_s": 1.6321, "q2_k": 3.5199,
}  # fmt: skip
"""Perplexity that Llama 3 8B loses, as ``llama-quantize --help`` states (``quantize.cpp``)."""

LLAMA_2_70B_LOSSES = {
    "q6_k": 0.0016, "q5_k_m": 0.0040, "q5_k_s": 0.0050, "q4_k_m": 0.0120, "q4_k_s": 0.0157, "q3_k_l": 0.0380,
    "q3_k_m": 0.0472, "q3_k_s": 0.0789, "q2_k": 0.0882,
}  # fmt: skip
"""Relative loss of perplexity of Llama 2 70B (llama.cpp, examples/perplexity/README.md, scorechart)."""


@pytest.mark.parametrize("losses", [LLAMA_3_8B_LOSSES, LLAMA_2_70B_LOSSES, DIFFERING_TOKENS])
def test_formats_with_more_bits_lose_less(losses: dict[str, float]) -> None:
    """Advice ranks formats by their bits: three publications of three networks agree on those that it compares."""
    advised = [name for name in LOCAL_ENGINES["llama.cpp"].advised if name in losses]
    assert len(advised) >= 5
    assert sorted(advised, key=lambda name: losses[name]) == advised
    assert sorted(advised, key=lambda name: -MIXTURES[name].bits) == advised

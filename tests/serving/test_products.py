"""The precision of products with quantized weights is that of the engine, however the question is put.

Tests: serving/products.py.
"""

from __future__ import annotations

from typing import Any

import pytest

import paleo_lite as pl
from paleo_lite.errors import BadValue, UnknownPrecision
from paleo_lite.machines import find_device
from paleo_lite.serving.products import choose_precision

SHORT: dict[str, Any] = {"rate": 1, "num_requests": 20, "output_tokens": 32}


@pytest.mark.parametrize(
    ("device", "weights", "precision"),
    [
        ("h100-sxm", "fp8", "fp8"), ("l40s", "fp8", "fp8"), ("b200", "fp8-block", "fp8"), ("mi300x", "fp8", "fp8"),
        ("a100-sxm-80gb", "fp8", "bf16"),  # Marlin's kernels convert the weights
        ("b200", "nvfp4", "fp4"), ("h100-sxm", "int4", "bf16"), ("b200", "mxfp4", "bf16"), ("h100-sxm", None, "bf16"),
    ],
)  # fmt: skip
def test_products_are_in_8_bits_where_the_device_has_units_for_them(
    device: str, weights: str | None, precision: str
) -> None:
    assert choose_precision(weights, find_device(device)) == precision


@pytest.mark.parametrize(
    ("device", "precision"), [("h100-sxm", "bf16"), ("v100-sxm2", "fp16"), ("k80", "fp32"), ("core-i9-14900k", "fp32")]
)
def test_a_server_computes_as_a_single_pass_in_the_first_precision_of_its_device(device: str, precision: str) -> None:
    """vLLM's `--dtype auto` takes the first of bf16, fp16 and fp32 that the device supports; the cache has it, too."""
    served = pl.serve("llama-3.2-1b", gpu=device, concurrency=1)
    decoded = pl.predict("llama-3.2-1b", gpu=device, phase="decode")
    assert (served.precision, served.weights, served.kv_cache, decoded.precision) == (precision,) * 4


def test_a_name_in_ollamas_library_is_computed_as_its_network() -> None:
    """Its colon is not that of a function of one's own, of whose network nothing is known before it is called."""
    by_colon, by_name = (pl.predict(name, gpu="h100-sxm", phase="decode") for name in ("llama3.1:8b", "llama-3.1-8b"))
    assert (by_colon.precision, by_colon.time_s) == (by_name.precision, by_name.time_s)


def test_two_words_for_one_launch_command_have_one_answer() -> None:
    stored = pl.serve("llama-3-8b", gpu="h100-sxm", weights="fp8", **SHORT)
    computed = pl.serve("llama-3-8b", gpu="h100-sxm", precision="fp8", **SHORT)
    assert stored.to_dict() == computed.to_dict()
    assert stored.precision == "fp8" and "--quantization fp8" in str(stored.launch_command)


def test_the_command_says_what_converts_weights_that_the_device_could_multiply() -> None:
    question = {"precision": "bf16", "weights": "fp8", **SHORT}
    in_16_bits = pl.serve("llama-3-8b", gpu="h100-sxm", **question)
    assert str(in_16_bits.launch_command).startswith("VLLM_TEST_FORCE_FP8_MARLIN=1 vllm serve ")
    other = pl.serve("llama-3-8b", gpu="h100-sxm", engine="sglang", **question)
    assert str(other.launch_command).startswith("SGLANG_FORCE_FP8_MARLIN=1 python -m sglang")
    old = pl.serve("llama-3-8b", gpu="a100-sxm-80gb", **question)
    assert str(old.launch_command).startswith("vllm serve ")  # as by default on this device
    assert in_16_bits.latencies != pl.serve("llama-3-8b", gpu="h100-sxm", weights="fp8", **SHORT).latencies


@pytest.mark.parametrize(("device", "engine"), [("h100-sxm", "tensorrt-llm"), ("mi300x", "vllm")])
def test_no_command_where_an_engine_cannot_convert_weights(device: str, engine: str) -> None:
    result = pl.serve("llama-3-8b", gpu=device, engine=engine, precision="bf16", weights="fp8", **SHORT)
    assert result.launch_command is None
    assert f"no launch command: {engine} computes products with weights in fp8 in fp8 on " in " ".join(result.notes)


def test_4_bit_floating_point_is_not_multiplied_in_16_bits() -> None:
    with pytest.raises(BadValue, match=r"in fp4 on B200 .*: leave `--precision bf16` out"):
        pl.serve("llama-3-8b", gpu="b200", precision="bf16", weights="nvfp4", **SHORT)


@pytest.mark.parametrize("device", ["t4", "a100-sxm-80gb", "l40s", "h100-sxm"])
def test_4_bit_floating_point_is_converted_where_the_device_has_no_units_for_it(device: str) -> None:
    """By Marlin's kernels of vLLM and SGLang; 4 bits, and 8 of the scale of 16 numbers, are read instead of 16."""
    narrow, wide = (pl.predict("llama-3.1-8b", gpu=device, phase="decode", weights=name) for name in ("nvfp4", None))
    matrices_bytes = (8.03e9 - 128256 * 4096) * 2  # all but the embedding, of which a token reads a row (model card)
    assert wide.bytes - narrow.bytes == pytest.approx(matrices_bytes * (1 - 4.5 / 16), rel=0.08)
    assert narrow.precision == wide.precision and wide.time_s / 3.6 < narrow.time_s < wide.time_s


def test_8_bits_with_the_scales_of_mxfp8_run_in_the_kernels_of_fp8() -> None:
    """Blackwell multiplies both with one instruction; a checkpoint's config already had these kernels."""
    scaled, plain = (pl.predict("qwen3-30b-a3b", gpu="b200", phase="decode", weights=name) for name in ("mxfp8", "fp8"))
    assert (scaled.precision, scaled.time_s) == (plain.precision, pytest.approx(plain.time_s, rel=0.05))


def test_only_engines_that_convert_4_bit_floating_point_are_launched_with_it() -> None:
    question = {"gpu": "h100-sxm", "weights": "nvfp4", **SHORT}
    commands = {
        engine: pl.serve("llama-3.1-8b", engine=engine, **question) for engine in ("vllm", "sglang", "tensorrt-llm")
    }
    assert [name for name, answer in commands.items() if answer.launch_command is None] == ["tensorrt-llm"]
    assert (
        "no launch command: tensorrt-llm multiplies weights in nvfp4 in fp4, for which H100 SXM5 80GB has no units, so "
        "that the forecast is of kernels that it does not have: vllm and sglang convert these weights to 16 bits"
    ) in commands["tensorrt-llm"].notes
    with pytest.raises(UnknownPrecision, match="Instinct MI300X has no fp4 peak"):
        pl.serve("llama-3.1-8b", gpu="mi300x", weights="nvfp4", **SHORT)


@pytest.mark.thorough
def test_advice_searches_what_its_command_runs() -> None:
    advised = pl.serve("llama-3-8b", gpu="h100-sxm", tensor=1, advise="cost", output_tokens=32, num_requests=20)
    assert advised.advice is not None
    assert {(one.weights, one.precision) for one in advised.advice.candidates} == {("bf16", "bf16"), ("fp8", "fp8")}
    assert (advised.weights, advised.precision) == ("fp8", "fp8")
    assert "--quantization fp8" in str(advised.launch_command) and "MARLIN" not in str(advised.launch_command)

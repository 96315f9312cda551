"""Storage formats: bytes per number by their definitions, and the formats of a precision."""

from __future__ import annotations

import pytest

from paleo_lite.errors import BadValue
from paleo_lite.formats import (
    ALL_PARTS,
    FORMATS,
    Format,
    bytes_per_number,
    format_of_weights,
    split_format,
    wide_bytes,
)
from paleo_lite.units import PRECISION_BYTES


@pytest.mark.parametrize(
    ("name", "numbers", "group_bytes"),
    [
        ("fp64", 1, 8), ("fp32", 1, 4), ("tf32", 1, 4), ("fp16", 1, 2), ("bf16", 1, 2), ("fp8", 1, 1), ("int8", 1, 1),
        # OCP MX specification 1.0: 32 numbers and a scale of 8 bits
        ("mxfp8", 32, 32 + 1), ("mxfp4", 32, 16 + 1),
        # NVIDIA 2025: 16 numbers of 4 bits and a scale in E4M3; checkpoints called FP4 are in it
        ("nvfp4", 16, 8 + 1), ("fp4", 16, 8 + 1),
        # DeepSeek-V3: blocks of 128 x 128 with a scale in fp32
        ("fp8-block", 128 * 128, 128 * 128 + 4),
        # group_size 128: 16-bit scales, and 4-bit zero points in qzeros
        ("int4", 128, 64 + 2), ("gptq", 128, 64 + 2 + 0.5), ("awq", 128, 64 + 2 + 0.5),
        # Dettmers et al. 2023, section 3: 256 blocks of 64 numbers have 8-bit scales, and one scale in fp32
        ("nf4", 256 * 64, 256 * 32 + 256 + 4),
    ],
)  # fmt: skip
def test_bytes_of_a_group(name: str, numbers: int, group_bytes: float) -> None:
    assert numbers * bytes_per_number(name) == group_bytes


def test_every_format_has_a_group() -> None:
    """The test above has each of them; `test_gguf_types` has those of GGUF."""
    assert [name for name, stored in FORMATS.items() if stored.mixture is None] == [
        "fp64", "fp32", "tf32", "fp16", "bf16", "fp8", "fp8-block", "mxfp8", "int8", "fp4", "nvfp4", "mxfp4", "int4",
        "gptq", "awq", "nf4",
    ]  # fmt: skip


def test_scales_of_double_quantization() -> None:
    """Dettmers et al. 2023, section 3: 0.127 bits per parameter instead of 0.5."""
    assert FORMATS["nf4"].bits_per_number - 4 == pytest.approx(0.127, abs=5e-4)


def test_a_format_of_scales_and_minima() -> None:
    """GGUF's Q4_K: 144 bytes per 256 numbers, with 6-bit scales and minima per 32 numbers, and two fp16 per 256."""
    packed = Format("q4_k", 4, None, "", "", group=32, scale_bits=6 + 16 / 8, zero_point_bits=6 + 16 / 8)
    assert 256 * packed.bytes_per_number == 144


def test_precisions_are_formats() -> None:
    """Numbers are stored in them between two operations, except in fp4, whose activations have 16 bits."""
    for name, size in PRECISION_BYTES.items():
        assert FORMATS[name].precision == name
        assert size == (2 if name == "fp4" else FORMATS[name].bits / 8)
    assert all(stored.precision in (None, *PRECISION_BYTES) for stored in FORMATS.values())


def test_weights_of_quantized_precisions_have_their_format() -> None:
    formats = {name: format_of_weights(None, name) for name in PRECISION_BYTES}
    assert {name for name, stored in formats.items() if stored is not None} == {"fp8", "int8", "fp4"}
    assert format_of_weights("gptq", "bf16") is FORMATS["gptq"]
    assert FORMATS["bf16"].parts == ALL_PARTS and FORMATS["mxfp4"].parts == ("experts",)
    with pytest.raises(BadValue, match="no precision is called 'fp23'"):
        format_of_weights(None, "fp23")


def test_parameters_that_are_not_quantized_have_at_least_16_bits() -> None:
    assert [wide_bytes(name) for name in ("fp32", "bf16", "fp8", "int8", "fp4")] == [4, 2, 2, 2, 2]


def test_inputs_in_mxfp8_are_multiplied_by_narrower_weights() -> None:
    """gpt-oss on Blackwell: inputs in MXFP8, experts in MXFP4 (flashinfer's ``trtllm_mxfp4_mxfp8`` in vLLM)."""
    assert split_format("mxfp8", "mxfp4") == ("fp8", "mxfp4")
    assert split_format("mxfp8", None) == ("fp8", "mxfp8")
    with pytest.raises(BadValue, match="leave `--weights bf16` out"):
        split_format("mxfp8", "bf16")

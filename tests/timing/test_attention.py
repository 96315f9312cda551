"""Implementations of attention: published rates, and what they change in a prediction."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

import paleo_lite as pl
from measured import DATA
from paleo_lite.counting import Layer
from paleo_lite.errors import BadValue, UnknownName
from paleo_lite.machines import find_device
from paleo_lite.timing.attention import (
    ATTENTIONS,
    find_shares,
    is_fused_attention,
    kernel_shares,
    layer_slowdowns,
    resolve_attention,
)

H100, A100, B200 = (find_device(name) for name in ("h100-sxm", "a100-sxm-80gb", "b200"))


@pytest.mark.parametrize(
    ("name", "forward", "backward"), [("flash2", 335, 322), ("cudnn", 539, 516), ("flash3", 616, 561)]
)
def test_rates_on_hopper_are_those_of_the_paper(name: str, forward: float, backward: float) -> None:
    """Shah et al. 2024, figures 5 and 6: TFLOP/s of causal attention with heads of 128 and 16,384 tokens on an H100."""
    shares = find_shares(name, H100)
    assert shares is not None
    peak = H100.find_peak("bf16").per_s / 1e12
    assert shares.forward * peak == pytest.approx(forward, rel=0.02)
    assert shares.backward * peak == pytest.approx(backward, rel=0.02)


def test_flash_attention_2_is_slower_backward_by_as_much_as_its_paper_says() -> None:
    """Dao 2023, abstract: up to 73% of the peak forward and 63% backward on an A100."""
    for name in ("a100-sxm-80gb", "rtx3090", "rtx4090"):
        shares = find_shares("flash2", find_device(name))
        assert shares.backward / shares.forward == pytest.approx(63 / 73, rel=0.01)


@pytest.mark.parametrize("name", ATTENTIONS)
def test_no_implementation_exceeds_the_peak(name: str) -> None:
    peak = 2 if name == "cudnn-mxfp8" else 1  # products of 8-bit numbers, over the peak in bf16
    for shares in ATTENTIONS[name].shares.values():
        assert 0.2 < shares.backward < shares.forward < peak


@pytest.mark.needs_data
@pytest.mark.parametrize(
    ("gpu", "kernel", "name", "device", "head"),
    [
        ("A100 SXM4 80GB", "vllm_flash_attn", "flash2", A100, 128),
        ("H100 SXM5 80GB", "vllm_flash_attn_fa3", "flash3", H100, 128),
        ("H100 SXM5 80GB", "vllm_flash_attn_fa3", "flash3", H100, 64),
    ],
)
def test_forward_rates_are_those_that_were_measured(gpu, kernel, name, device, head) -> None:
    table = pd.read_csv(DATA / "modern" / "attention_modern.csv.gz")
    rows = table[(table.gpu == gpu) & (table.kernel == kernel) & (table.phase == "context") & (table.q_len == 16384)]
    rows = rows[(rows.window == 0) & (rows.head_dim == head) & (rows.kv_dtype == "bfloat16")]
    flops = 2 * rows.batch * rows.heads * rows.q_len * rows.kv_len * rows.head_dim  # causal: half of 4
    share = np.median(flops / (rows.time_ms / 1e3)) / device.find_peak("bf16").per_s
    shares, queries = find_shares(name, device), (1, 16, 16384, head)
    layer = Layer("", "attention", (queries, queries, queries), (queries,))
    assert shares.forward / layer_slowdowns(shares, layer)[0] == pytest.approx(share, rel=0.1)


@pytest.mark.needs_data
def test_rates_on_blackwell_are_those_that_were_measured() -> None:
    table = pd.read_csv(DATA / "modern" / "attention_training_cudnn.csv")
    rows = table[(table.gpu == "NVIDIA GB200") & (table.dtype == "bfloat16") & (table["mask"] == "top_left")]
    rows = rows[(rows.head_dim_qk == 128) & (rows.q_len >= 4096)]
    peak = find_device("gb200").find_peak("bf16").per_s / 1e12
    shares = find_shares("cudnn", find_device("gb200"))
    for name in ("forward", "backward"):
        median = float(rows[rows["pass"] == name].tflops.median())
        assert getattr(shares, name) == pytest.approx(median / peak, rel=0.1), name


@pytest.mark.needs_data
@pytest.mark.parametrize(("dtype", "name"), [("bfloat16", "cudnn"), ("mxfp8", "cudnn-mxfp8")])
def test_windows_of_narrow_heads_take_as_long_as_was_measured(dtype: str, name: str) -> None:
    """gpt-oss: windows of 128 keys, 64 heads of 64 channels, 4,096 and 8,192 tokens."""
    table = pd.read_csv(DATA / "modern" / "attention_training_cudnn.csv")
    rows = table[(table.gpu == "NVIDIA GB200") & (table.dtype == dtype) & (table.window == 128)]
    device = find_device("gb200")
    shares, peak = find_shares(name, device), device.find_peak("bf16").per_s
    for tokens in (4096, 8192):
        queries, keys = (1, 64, tokens, 64), (1, 8, tokens, 64)
        layer = Layer("", "attention", (queries, keys, keys), (queries,), (), (), 0, {"window": 128}, "")
        flops = 4 * 64 * tokens * 128 * 64
        forward, backward = layer_slowdowns(shares, layer)
        expected = {
            "forward": flops / (shares.forward * peak) * forward,
            "backward": 2 * flops / (shares.counted_backward * peak) * backward,
        }
        for direction, seconds in expected.items():
            measured = rows[(rows["pass"] == direction) & (rows.q_len == tokens)]
            per_sequence_s = float((measured.time_ms / measured.batch).median()) / 1e3
            assert seconds == pytest.approx(per_sequence_s, rel=0.35), (direction, tokens)


def test_defaults_follow_the_device() -> None:
    assert [resolve_attention(name, H100) for name in (None, "sdpa", "flash3")] == ["flash2", "flash2", "flash3"]
    assert resolve_attention("sdpa", B200) == "cudnn"
    assert [is_fused_attention(name) for name in (None, "eager", "sdpa")] == [None, False, True]
    assert kernel_shares(None, find_device("mi300x")) is None


def test_what_a_device_does_not_support() -> None:
    with pytest.raises(BadValue, match=r"`--attention flash3` has kernels for compute capability 9\.x; A100 .* 8\.0"):
        resolve_attention("flash3", A100)
    with pytest.raises(UnknownName, match="flash4"):
        resolve_attention("flash4", H100)
    assert all(attention.shares for attention in ATTENTIONS.values())


def test_a_faster_kernel_shortens_attention_alone() -> None:
    options = {"gpu": "h100-sxm", "precision": "bf16", "phase": "training", "sequence_length": 8192}
    flash2, flash3, eager = (
        pl.predict("llama-3.2-1b", attention=name, **options) for name in ("flash2", "flash3", "eager")
    )
    seconds = [prediction.by_kind()["attention"]["time_s"] for prediction in (flash2, flash3)]
    assert 1.5 < seconds[0] / seconds[1] < 2  # rates of 335 and 322 against 616 and 561 TFLOP/s
    assert flash2.by_kind()["linear"]["time_s"] == pytest.approx(flash3.by_kind()["linear"]["time_s"], rel=1e-2)
    # Without a fused kernel the scores go through memory, and are kept for the backward pass.
    assert "attention" not in eager.by_kind() and eager.time_s > 1.5 * flash2.time_s
    assert eager.memory.memory.activations_bytes > 2 * flash2.memory.memory.activations_bytes

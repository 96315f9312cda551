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
    KernelShares,
    find_shares,
    is_fused_attention,
    kernel_shares,
    layer_slowdowns,
    resolve_attention,
)

H100, A100, B200, L40S = (find_device(name) for name in ("h100-sxm", "a100-sxm-80gb", "b200", "l40s"))


def shares_at(shares: KernelShares, keys: float) -> tuple[float, float]:
    """Return the shares of the peak, forward and backward, with so many keys of a query in the mean."""
    started = 1 + shares.start_keys / keys
    return shares.forward / started, shares.backward / started


@pytest.mark.parametrize(
    ("name", "forward", "backward"), [("flash2", 335, 322), ("cudnn", 539, 516), ("flash3", 616, 561)]
)
def test_rates_on_hopper_are_those_of_the_paper(name: str, forward: float, backward: float) -> None:
    """Shah et al. 2024, figures 5 and 6: TFLOP/s of causal attention with heads of 128 and 16,384 tokens on an H100."""
    shares = find_shares(name, H100)
    assert shares is not None
    peak = H100.find_peak("bf16").per_s / 1e12
    found_forward, found_backward = shares_at(shares, 16384 / 2)
    assert found_forward * peak == pytest.approx(forward, rel=0.02)
    assert found_backward * peak == pytest.approx(backward, rel=0.02)


def test_flash_attention_2_is_slower_backward_by_as_much_as_its_paper_says() -> None:
    """Dao 2023, abstract: up to 73% of the peak forward and 63% backward on an A100."""
    for name in ("a100-sxm-80gb", "rtx3090", "rtx4090"):
        shares = find_shares("flash2", find_device(name))
        assert shares.backward / shares.forward == pytest.approx(63 / 73, rel=0.01)


def test_the_first_flash_attention_is_as_slow_as_its_successor_says() -> None:
    """Dao 2023, introduction: 30 to 50% of the peak forward and 25 to 35% backward on an A100."""
    shares, newer = find_shares("flash1", A100), find_shares("flash2", A100)
    assert 0.30 <= shares.forward <= 0.50
    assert 0.25 <= shares.backward <= 0.35
    for name in ("h100-sxm", "rtx3090"):
        found, found_newer = find_shares("flash1", find_device(name)), find_shares("flash2", find_device(name))
        assert found.forward / found_newer.forward == pytest.approx(shares.forward / newer.forward, rel=0.01)
        assert found.backward / found_newer.backward == pytest.approx(shares.backward / newer.backward, rel=0.01)


@pytest.mark.parametrize("name", ATTENTIONS)
def test_no_implementation_exceeds_the_peak(name: str) -> None:
    peak = 2 if name == "cudnn-mxfp8" else 1  # products of 8-bit numbers, over the peak in bf16
    for shares in ATTENTIONS[name].shares.values():
        assert 0.19 < shares.backward < shares.forward < peak


@pytest.mark.needs_data
@pytest.mark.parametrize("tokens", [2048, 4096, 16384])
@pytest.mark.parametrize(
    ("gpu", "kernel", "name", "device", "head"),
    [
        ("A100 SXM4 80GB", "vllm_flash_attn", "flash2", A100, 128),
        ("L40S", "vllm_flash_attn_fa2", "flash2", L40S, 128),
        ("H100 SXM5 80GB", "vllm_flash_attn_fa3", "flash3", H100, 128),
        ("H100 SXM5 80GB", "vllm_flash_attn_fa3", "flash3", H100, 64),
    ],
)
def test_forward_rates_are_those_that_were_measured(gpu, kernel, name, device, head, tokens) -> None:
    """Of launches that fill the device: at least eight blocks of 128 queries for each multiprocessor."""
    table = pd.read_csv(DATA / "modern" / "attention_modern.csv.gz")
    rows = table[(table.gpu == gpu) & (table.kernel == kernel) & (table.phase == "context") & (table.q_len == tokens)]
    rows = rows[(rows.window == 0) & (rows.head_dim == head) & (rows.kv_dtype == "bfloat16")]
    blocks = rows.batch * rows.heads * rows.q_len / 128
    rows = rows[blocks >= 8 * float(device.cores.multiprocessors.value)]
    flops = 2 * rows.batch * rows.heads * rows.q_len * rows.kv_len * rows.head_dim  # causal: half of 4
    share = np.median(flops / (rows.time_ms / 1e3)) / device.find_peak("bf16").per_s
    shares, queries = find_shares(name, device), (1, 16, tokens, head)
    layer = Layer("", "attention", (queries, queries, queries), (queries,))
    forward, _ = shares_at(shares, tokens / 2)
    assert forward / layer_slowdowns(shares, layer)[0] == pytest.approx(share, rel=0.25)


@pytest.mark.needs_data
@pytest.mark.parametrize("gpu", ["gb200", "gb300"])
@pytest.mark.parametrize(("dtype", "name"), [("bfloat16", "cudnn"), ("mxfp8", "cudnn-mxfp8")])
def test_rates_on_blackwell_are_those_that_were_measured(gpu: str, dtype: str, name: str) -> None:
    """Causal attention of 2,048 to 32,768 tokens; the faster of two backward kernels is not deterministic."""
    table = pd.read_csv(DATA / "modern" / "attention_training_cudnn.csv")
    rows = table[(table.gpu == f"NVIDIA {gpu.upper()}") & (table.dtype == dtype) & (table["mask"] == "top_left")]
    rows = rows[rows.head_dim_qk == 128]
    device = find_device(gpu)
    peak = device.find_peak("bf16").per_s / 1e12
    for tokens, of_length in rows.groupby("q_len"):
        expected = shares_at(find_shares(name, device), tokens / 2)
        for direction, share in zip(("forward", "backward"), expected):
            measured = float(of_length[of_length["pass"] == direction].tflops.max())
            assert share * peak == pytest.approx(measured, rel=0.27), (direction, tokens)


@pytest.mark.needs_data
@pytest.mark.parametrize(("dtype", "name"), [("bfloat16", "cudnn"), ("mxfp8", "cudnn-mxfp8")])
def test_windows_of_narrow_heads_take_as_long_as_was_measured(dtype: str, name: str) -> None:
    """Windows of 128 keys, 128 heads of 64 channels, 4,096 and 8,192 tokens (`gpt_oss` of the benchmark)."""
    table = pd.read_csv(DATA / "modern" / "attention_training_cudnn.csv")
    rows = table[(table.gpu == "NVIDIA GB200") & (table.dtype == dtype) & (table.window == 128)]
    assert set(rows.heads) == {128}
    device = find_device("gb200")
    shares, peak = find_shares(name, device), device.find_peak("bf16").per_s
    for tokens in (4096, 8192):
        queries = (1, 128, tokens, 64)
        layer = Layer("", "attention", (queries, queries, queries), (queries,), (), (), 0, {"window": 128}, "")
        flops = 4 * 128 * tokens * 128 * 64
        in_forward, in_backward = shares_at(shares, 128)
        forward, backward = layer_slowdowns(shares, layer)
        expected = {
            "forward": flops / (in_forward * peak) * forward,
            "backward": 2.5 * flops / (in_backward * peak) * backward,
        }
        for direction, seconds in expected.items():
            measured = rows[(rows["pass"] == direction) & (rows.q_len == tokens)]
            per_sequence_s = float((measured.time_ms / measured.batch).min()) / 1e3
            assert seconds == pytest.approx(per_sequence_s, rel=0.35), (direction, tokens)


def test_defaults_follow_the_device() -> None:
    assert [resolve_attention(name, H100) for name in (None, "sdpa", "flash3")] == ["flash2", "flash2", "flash3"]
    assert resolve_attention("sdpa", B200) == "cudnn"
    assert [is_fused_attention(name) for name in (None, "eager", "sdpa")] == [None, False, True]
    assert kernel_shares(None, find_device("mi300x")) is None


def test_implementations_that_a_device_lacks_are_refused() -> None:
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

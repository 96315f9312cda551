"""Steps of inference engines: annotations as vLLM and SGLang write them, and a real trace of SGLang.

Tests: profile_analysis/serving_steps.py.
"""

from __future__ import annotations

import pytest

pytest.importorskip("pyarrow")

from measured import DATA
from paleo_lite import efficiency
from paleo_lite.profile_analysis.serving_steps import EngineStepRecorder, ServingStep, parse_annotation
from paleo_lite.profiles.table import batch_of

SGLANG = DATA / "profiles" / "tracelens_models" / "inference__sglang_decode__sglang_Qwen3-8B_decode.json.gz"


@pytest.mark.parametrize(
    ("name", "step"),
    [
        ("execute_context_1(512)_generation_31(31)", ServingStep("mixed", 32, 512, 31)),
        ("execute_context_2(4096)_generation_0(0)", ServingStep("prefill", 2, 4096, 0)),
        ("execute_context_0(0)_generation_64(64)", ServingStep("decode", 64, 0, 64)),
        (
            "execute_32_context_0(sq0sk0sqsq0sqsk0)_generation_32(sq32sk32785sqsq32sqsk32785)",
            ServingStep("decode", 32, 0, 32, 32785),
        ),
        # vLLM's `annotate_profile` before it counted tokens: new and cached requests.
        ("execute_new_2_cached_0", ServingStep("prefill", 2, None, 0)),
        ("execute_new_0_cached_31", ServingStep("decode", 31, 0, 31)),
        ("execute_new_1_cached_31", ServingStep("mixed", 32, None, 31)),
        ("execute_new_0_cached_0", None),  # nothing was scheduled
        ("step[DECODE bs=32]", ServingStep("decode", 32, 0, 32)),
        ("step[EXTEND bs=2 toks=4096]", ServingStep("prefill", 2, 4096, 0)),
        ("step[EXTEND bs=2 toks=12 c_sqsq=80 c_sqsk=120 c_sk=20]", ServingStep("prefill", 2, 12, 0, 20)),
        ("step[MIXED bs=2 c=1 g=1 c_sq=5 c_sk=8 g_sq=1 g_sk=12]", ServingStep("mixed", 2, 5, 1, 20)),
        ("step[TARGET_VERIFY bs=23]", ServingStep("decode", 23, 0, None)),  # how many tokens are accepted is unknown
        ("execute_model", None),
        ("ProfilerStep#3", None),
    ],
)
def test_annotations(name, step):
    assert parse_annotation(name) == step


@pytest.mark.needs_data
def test_a_decode_step_of_qwen3_8b():
    """One decode step of 32 requests with 32,785 tokens in the cache lasts 465,716.634 us in the trace.

    Qwen3-8B has 36 layers with 8 key-value heads of 128 elements of 2 bytes: 147,456 bytes per token.
    """
    (row,) = efficiency(SGLANG, jobs=1).rows
    (summary,) = row["engine_steps"]
    assert (summary["phase"], summary["steps"], summary["requests"], summary["tokens"]) == ("decode", 1, 32.0, 32)
    assert summary["time_s"] == pytest.approx(0.465716634)
    assert summary["tokens_per_s"] == pytest.approx(32 / 0.465716634)
    assert summary["cached_tokens"] == 32785
    assert summary["cache_bytes"] == 32785 * 2 * 36 * 8 * 128 * 2


def test_phases_are_summed_and_the_device_has_priority():
    """The host annotates steps of 1 ms, the device of 2 and 4 ms."""
    names = ["execute_context_1(100)_generation_0(0)", "execute_context_0(0)_generation_8(8)"] * 2
    batch = batch_of(
        {
            "category": ["marker"] * 4,
            "kernel": names,
            "start_ns": [0, 5_000_000, 100_000, 6_000_000],
            "duration_ns": [1e6, 1e6, 2e6, 4e6],
            "thread": [1, 1, None, None],
        },
        4,
    )
    recorder = EngineStepRecorder()
    recorder.add(batch)
    prefill, decode = recorder.summarise()
    assert (prefill.phase, prefill.tokens, prefill.time_s) == ("prefill", 100, pytest.approx(0.002))
    assert (decode.phase, decode.tokens_per_s) == ("decode", pytest.approx(2000.0))
    assert prefill.cached_tokens is None and prefill.cache_bytes is None


def test_prompts_of_unknown_length_have_no_rate():
    names = ["execute_new_2_cached_0", "execute_new_0_cached_2", "execute_new_0_cached_2"]
    columns = {
        "category": ["marker"] * 3,
        "kernel": names,
        "start_ns": [0, 5_000_000, 7_000_000],
        "duration_ns": [4e6, 1e6, 1e6],
        "thread": [1, 1, 1],
    }
    recorder = EngineStepRecorder()
    recorder.add(batch_of(columns, 3))
    prefill, decode = recorder.summarise()
    assert (prefill.phase, prefill.requests, prefill.tokens, prefill.tokens_per_s) == ("prefill", 2.0, None, None)
    assert (decode.phase, decode.steps, decode.tokens_per_s) == ("decode", 2, pytest.approx(2000.0))


def test_without_annotations_there_are_no_steps():
    assert EngineStepRecorder().summarise() == []


def test_the_cache_has_the_bytes_that_the_kernels_of_all_layers_store():
    """Two steps of a model with three layers, whose kernels store keys of 64 bytes and values of 32 bytes per token."""
    names = ["step[DECODE bs=2 g_sq=2 g_sk=10]", "step[DECODE bs=2 g_sq=2 g_sk=12]"]
    names += ["void sglang::store_kvcache<64l, 32l, long>(...)"] * 6
    columns = {
        "category": ["marker"] * 2 + ["kernel"] * 6,
        "kernel": names,
        "start_ns": list(range(8)),
        "duration_ns": [1e6] * 8,
        "thread": [1] * 2 + [None] * 6,
    }
    recorder = EngineStepRecorder()
    recorder.add(batch_of(columns, 8))
    (summary,) = recorder.summarise()
    assert (summary.cached_tokens, summary.cache_bytes) == (22, 22 * 3 * (64 + 32))


def test_steps_that_verify_drafts_have_a_time_and_no_tokens():
    recorder = EngineStepRecorder()
    columns = {"category": ["marker"] * 2, "kernel": ["step[TARGET_VERIFY bs=2]"] * 2}
    columns |= {"start_ns": [0, 2_000_000], "duration_ns": [1e6] * 2, "thread": [-1] * 2}
    recorder.add(batch_of(columns, 2))
    (summary,) = recorder.summarise()
    assert (summary.phase, summary.steps, summary.requests, summary.tokens) == ("decode", 2, 2.0, None)
    assert (summary.time_s, summary.tokens_per_s) == (2e-3, None)

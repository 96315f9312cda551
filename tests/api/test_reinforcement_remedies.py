"""What does not fit in a step of reinforcement learning says what does, and that does.

Tests: api/reinforcement_remedies.py.
"""

from __future__ import annotations

import re
from typing import Any

import pytest

import paleo_lite as pl
from paleo_lite.errors import BadValue, DoesNotFit, PaleoError

STEP: dict[str, Any] = {
    "gpu": "h100-sxm", "prompts": 64, "samples_per_prompt": 16, "prompt_tokens": 105, "response_tokens": 2000,
    "max_tokens": 8192,
}  # fmt: skip
LONG: dict[str, Any] = {"gpu": "h100-sxm", "response_tokens": 8000, "max_tokens": 32768}


def sentences_about(asked: dict[str, Any]) -> str:
    """Return the notes of a step that does not fit, or the sentence that refuses it."""
    try:
        answer = pl.rl(**asked)
    except PaleoError as error:
        return str(error)
    assert max(answer.trainer_bytes, answer.rollout_bytes) > answer.usable_bytes
    return "\n".join(answer.notes)


def remedy_of(sentences: str) -> tuple[dict[str, Any], list[float], list[float]]:
    """Return the options of a remedy, its sizes in GB, and the times of its update and its step in seconds."""
    options, figures = re.search(r"the step fits with `([^`]+)`: ([^;]*)", sentences).groups()  # type: ignore[union-attr]
    typed = re.findall(r"--(\S+) (\S+)", options)
    values = {name.replace("-", "_"): int(value) if value.isdigit() else value for name, value in typed}
    sizes = [float(size) for size in re.findall(r"([\d.]+) GB in", figures)]
    return values, sizes, [float(time) for time in re.findall(r"([\d.]+) s (?:for|in)", figures)]


@pytest.mark.parametrize(
    "asked",
    [
        {"network": "gpt-oss-20b", "workers": 64},
        {"network": "llama-3.1-70b", "workers": 64, "rollout_tensor": 4},
        {"network": "qwen3-32b", "workers": 8, "framework": "nemo-rl", "rollout_tensor": 4},
        {"network": "llama-3.1-70b", "workers": 32, "framework": "verl", "rollout_tensor": 8},
        {"network": "llama-3.1-70b", "workers": 16, "framework": "verl", "rollout_tensor": 4},
        {"network": "qwen3-30b-a3b", "workers": 16, "framework": "verl"},
        {"network": "llama-3.1-70b", "workers": 64, "framework": "generic"},
        {"network": "qwen3-32b", "workers": 64, "framework": "trl"},
        {"network": "qwen3-8b", "workers": 8, "framework": "verl", "engine_settings": "memory-fraction=0.95"},
    ],
)
def test_the_whole_step_fits_with_the_remedy_that_is_named(asked: dict[str, Any]) -> None:
    """The trainer, and the engine beside what stays of the trainer; figures are those of the question so changed."""
    options, sizes_gb, times_s = remedy_of(sentences_about({**STEP, **asked}))
    fitting = pl.rl(**{**STEP, **asked, **options})
    assert max(fitting.trainer_bytes, fitting.rollout_bytes) <= fitting.usable_bytes
    assert sizes_gb == pytest.approx([fitting.trainer_bytes / 1e9, fitting.rollout_bytes / 1e9], rel=0.005)
    assert times_s == pytest.approx([fitting.phases["update"], fitting.time_s], rel=0.005)
    assert not any("fit" in note for note in fitting.notes)


def test_a_fraction_of_the_memory_is_no_remedy_where_the_trainer_needs_it() -> None:
    """16.4 GB of bf16 weights, once for the trainer and once for the engine, exceed the 24 GB of an RTX 4090."""
    asked = {"network": "qwen3-8b", "workers": 1, "framework": "trl", "lora": 16, **STEP, "gpu": "rtx4090"}
    with pytest.raises(DoesNotFit, match=r"; no division of 1 x GeForce RTX 4090 holds [^ ]*: give more `--workers`$"):
        pl.rl(**asked)


def test_adapters_are_a_remedy_where_they_fit() -> None:
    """Weights, gradients and the state of AdamW of 70.6 billion parameters take 1.1 TB, of 0.67 TB of eight H100."""
    asked = {"network": "llama-3.1-70b", "workers": 8, "rollout_tensor": 4, **STEP}
    sentences = sentences_about(asked)
    assert (
        "no division of 8 x H100 SXM5 80GB holds llama-3.1-70b: give more `--workers`, or train adapters" in sentences
    )
    options, _, _ = remedy_of(sentences)
    fitting = pl.rl(**{**asked, **options})
    assert options["lora"] == 16 and max(fitting.trainer_bytes, fitting.rollout_bytes) <= fitting.usable_bytes


def test_advice_without_a_division_names_what_else_fits() -> None:
    asked = {"network": "llama-3.1-70b", "workers": 16, "framework": "verl", **STEP}
    with pytest.raises(BadValue, match=r"^no division of 16 x H100 SXM5 80GB holds llama-3.1-70b") as refused:
        pl.rl(**asked, advise=True)
    options, _, _ = remedy_of(str(refused.value))
    fitting = pl.rl(**{**asked, **options})
    assert max(fitting.trainer_bytes, fitting.rollout_bytes) <= fitting.usable_bytes
    with pytest.raises(
        BadValue, match=r"^no division of 16 x H100 SXM5 80GB holds llama-3.1-70b: give more `--workers`$"
    ):
        pl.rl(**asked, advise=True, steps_off=1)


@pytest.mark.parametrize(("network", "framework", "tensor"), [("llama-3.1-70b", "generic", 2), ("qwen3-32b", "trl", 4)])
def test_rollouts_that_do_not_fit_name_the_smallest_engine_that_does(network: str, framework: str, tensor: int) -> None:
    """141 GB of weights need two H100; those of 65.5 GB need four, of which TRL leaves an engine 30%."""
    asked = {"network": network, "workers": 64, "framework": framework, **STEP}
    for smaller in (1, tensor // 2):
        with pytest.raises(DoesNotFit, match=rf"; the step fits with `[^:]*--rollout-tensor {tensor}\b"):
            pl.rl(**asked, rollout_tensor=smaller)
    assert pl.rl(**asked, rollout_tensor=tensor).rollouts.engines == 64 // tensor


@pytest.mark.parametrize(
    ("network", "workers", "framework"),
    [
        ("qwen3-8b", 16, "openrlhf"),
        ("qwen3-32b", 32, "openrlhf"),
        ("qwen3-32b", 32, "trl"),
        ("qwen3-32b", 32, "prime-rl"),
        ("qwen3-32b", 64, "prime-rl"),
        ("qwen3-32b", 24, "trl"),
    ],
)
def test_long_samples_are_divided_before_no_division_is_said_to_hold_them(
    network: str, workers: int, framework: str
) -> None:
    """A sample may have 32,768 tokens, though the mean has 8,256: the trainer has to hold the longest."""
    asked = {"network": network, "workers": workers, "framework": framework, **LONG}
    sentences = sentences_about(asked)
    assert "no division" not in sentences
    options, _, _ = remedy_of(sentences)
    assert options["context_parallel"] > 1
    fitting = pl.rl(**{**asked, **options})
    assert max(fitting.trainer_bytes, fitting.rollout_bytes) <= fitting.usable_bytes
    advised = pl.rl(**asked, advise=True)
    assert advised.time_s <= fitting.time_s * 1.001


def test_engines_of_a_remedy_are_in_one_node() -> None:
    """An H100 has 80 GB and a node eight: 470 GB of weights fit into a node."""
    asked = {"network": "qwen3-235b-a22b", "workers": 32, "framework": "nemo-rl", "gpu": "h100-sxm"}
    with pytest.raises(DoesNotFit) as refused:
        pl.rl(**asked)
    options, _, _ = remedy_of(str(refused.value))
    assert options["rollout_tensor"] == 8
    fitting = pl.rl(**{**asked, **options})
    assert max(fitting.trainer_bytes, fitting.rollout_bytes) <= fitting.usable_bytes

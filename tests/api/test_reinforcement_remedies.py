"""What does not fit in a step of reinforcement learning says what does, and that does.

Tests: api/reinforcement_remedies.py.
"""

from __future__ import annotations

import re
from typing import Any

import pytest

import paleo_lite as pl
from paleo_lite.errors import DoesNotFit

STEP: dict[str, Any] = {
    "gpu": "h100-sxm", "prompts": 64, "samples_per_prompt": 16, "prompt_tokens": 105, "response_tokens": 2000,
    "max_tokens": 8192,
}  # fmt: skip


@pytest.mark.parametrize(
    "asked",
    [
        {"network": "gpt-oss-20b", "workers": 64},
        {"network": "llama-3.1-70b", "workers": 64, "rollout_tensor": 4},
        {"network": "qwen3-32b", "workers": 8, "framework": "nemo-rl", "rollout_tensor": 4},
    ],
)
def test_a_trainer_that_does_not_fit_names_a_division_that_does(asked: dict[str, Any]) -> None:
    too_large = pl.rl(**STEP, **asked)
    (remedy,) = [note for note in too_large.notes if note.startswith("the trainer fits with")]
    options = {name.replace("-", "_"): int(degree) for name, degree in re.findall(r"`--([a-z-]+) (\d+)`", remedy)}
    stated_gb = float(re.search(r": ([\d.]+) GB of", remedy)[1])  # type: ignore[index]
    fitting = pl.rl(**STEP, **asked, **options)
    assert options and fitting.trainer_bytes <= fitting.usable_bytes < too_large.trainer_bytes
    assert fitting.trainer_bytes == pytest.approx(stated_gb * 1e9, rel=0.02)
    assert not any("does not fit" in note or "trainer fits" in note for note in fitting.notes)


def test_a_trainer_that_fits_nowhere_says_so() -> None:
    notes = pl.rl(network="llama-3.1-70b", workers=8, rollout_tensor=4, **STEP).notes
    assert (
        "no division of 8 x H100 SXM5 80GB holds the trainer: give more `--workers`, or train adapters with `--lora`"
        in (notes)
    )


@pytest.mark.parametrize(("network", "framework", "tensor"), [("llama-3.1-70b", "generic", 2), ("qwen3-32b", "trl", 4)])
def test_rollouts_that_do_not_fit_name_the_smallest_engine_that_does(network: str, framework: str, tensor: int) -> None:
    """141 GB of weights need two H100; those of 65.5 GB need four, of which TRL leaves an engine 30%."""
    asked = {"network": network, "workers": 64, "framework": framework, **STEP}
    for smaller in (1, tensor // 2):
        with pytest.raises(DoesNotFit, match=rf"; `--rollout-tensor {tensor}` is the smallest that fits$"):
            pl.rl(**asked, rollout_tensor=smaller)
    assert pl.rl(**asked, rollout_tensor=tensor).rollouts.engines == 64 // tensor

"""Passes of the trainer where the host gathers every matrix of adapters.

The relations are those of the host in published steps of verl with LoRA: as long for any number of tokens.
"""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

import paleo_lite as pl
from paleo_lite.api.reinforcement import predict_trainer
from paleo_lite.reinforcement.constants import rl_constants

LORA = {
    "network": "qwen2.5-0.5b", "gpu": "h100-sxm", "workers": 2, "framework": "verl", "prompts": 64,
    "samples_per_prompt": 5, "response_tokens": 300, "max_tokens": 1024, "micro_batch": 32, "lora": 32,
}  # fmt: skip


def passes(unit_s: float = 1e-3, **changes: Any) -> Any:
    constants = msgspec.structs.replace(rl_constants(), unit_s=unit_s)
    return predict_trainer(pl.Rl(**{**LORA, **changes}), constants)


def test_hosts_gather_fourteen_matrices_of_every_block() -> None:
    """24 blocks of 7 products with two matrices each, in 320 / 2 / 32 = 5 micro-batches."""
    trainer = passes()
    assert trainer.adapter_units == 24 * 14 and trainer.waits_for_host
    assert trainer.forward_s == pytest.approx(24 * 14 * 5 * 1e-3)
    assert passes(2e-3).update_s - trainer.update_s == pytest.approx(4 * trainer.forward_s)  # with full recomputation


def test_the_time_of_a_host_does_not_depend_on_the_tokens() -> None:
    assert passes().forward_s == passes(response_tokens=200).forward_s
    assert passes(micro_batch=16).forward_s == pytest.approx(2 * passes().forward_s)


def test_the_reference_and_whole_weights_do_not_wait_for_adapters() -> None:
    with_reference = passes(reference="yes")
    assert with_reference.frozen_forward_s < 0.5 * with_reference.forward_s
    assert passes(lora=None).adapter_units == 0 and not passes(lora=None).waits_for_host
    assert passes(framework="trl").adapter_units == 0


def test_a_quick_host_changes_nothing() -> None:
    assert passes(1e-9).forward_s == passes(2e-9).forward_s and not passes(1e-9).waits_for_host

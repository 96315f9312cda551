"""Several LoRA adapters: their memory and traffic, the slots of a batch, and copies from the host.

Tests: serving/adapters.py.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import paleo_lite as pl
from paleo_lite.errors import BadValue, DoesNotFit
from paleo_lite.questions.serve_deployment import make_deployment
from paleo_lite.serving.adapters import AdapterSlots, with_adapters
from paleo_lite.serving.lengths import Lengths
from paleo_lite.serving.prepared import prepare
from paleo_lite.serving.requests import Traffic, generate_traffic

NETWORK = "llama-3.1-8b"


def deployment_of(adapters: str, **options: Any) -> Any:
    return make_deployment(pl.Serve(NETWORK, gpu="h100-sxm", engine_settings=adapters, **options))


def test_an_adapter_has_the_numbers_that_peft_counts() -> None:
    """41,943,040 parameters of rank 16 on all linear layers of Llama 3.1 8B (`print_trainable_parameters` of PEFT)."""
    cost = deployment_of("adapters=4,adapter-slots=2,adapter-rank=16").adapter_cost
    assert cost.slot_bytes == 2 * 41_943_040
    assert deployment_of("adapters=4,adapter-rank=32").adapter_cost.slot_bytes == 4 * 41_943_040
    # Of two devices each has one of both matrices and half of the other.
    divided = deployment_of("adapters=4,adapter-rank=16", tensor=2).adapter_cost
    assert divided.slot_bytes == 0.75 * 2 * 41_943_040


def test_slots_take_memory_of_the_cache() -> None:
    traffic = generate_traffic(Lengths(500), Lengths(100), count=20, rate_per_s=5.0)
    rooms = [
        prepare(deployment_of(f"adapters=64,adapter-slots={slots}"), with_some(traffic, 64)).room for slots in (1, 33)
    ]  # fmt: skip
    assert rooms[0].cache_bytes - rooms[1].cache_bytes == pytest.approx(32 * 2 * 41_943_040)
    assert rooms[0].memory_bytes == pytest.approx(rooms[1].memory_bytes)
    assert rooms[0].tokens - rooms[1].tokens == pytest.approx(32 * 2 * 41_943_040 / 131_072, rel=0.01)  # of a token
    with pytest.raises(DoesNotFit, match="needs fewer adapter-slots"):
        prepare(deployment_of("adapters=1000,adapter-slots=1000,adapter-rank=128"), with_some(traffic, 1000))


def with_some(traffic: Traffic, count: int) -> Traffic:
    deployment = deployment_of(f"adapters={count}")
    return with_adapters(traffic, deployment.adapters, 0)


@pytest.mark.parametrize("slots", [1, 3])
def test_a_batch_has_no_more_adapters_than_slots(slots: int) -> None:
    traffic = with_some(generate_traffic(Lengths(300), Lengths(60), count=400, rate_per_s=30.0), 8)
    outcome = prepare(deployment_of(f"adapters=8,adapter-slots={slots}"), traffic).run(traffic)[0]
    assert traffic.adapters is not None
    most = 0
    for time_s in outcome.admitted_s + 1e-9:
        running = (outcome.admitted_s <= time_s) & (outcome.finish_s > time_s)
        most = max(most, len(set(traffic.adapters[running].tolist())))
    assert most == slots
    assert outcome.adapter_loads >= 8


def test_with_a_slot_for_each_adapter_nobody_waits_for_one() -> None:
    plain = generate_traffic(Lengths(300), Lengths(60), count=400, rate_per_s=10.0)
    traffic = with_some(plain, 8)
    outcome = prepare(deployment_of("adapters=8,adapter-slots=8"), traffic).run(traffic)[0]
    assert outcome.adapter_loads == 8  # each is copied once
    without = prepare(make_deployment(pl.Serve(NETWORK, gpu="h100-sxm")), plain).run(plain)[0]
    waits = [float((one.admitted_s - one.arrival_s).mean()) for one in (outcome, without)]
    assert waits[0] < 1.3 * waits[1]


def test_the_least_recently_used_adapter_that_does_not_run_goes() -> None:
    traffic = Traffic(np.zeros(4), np.ones(4, dtype=int), np.ones(4, dtype=int), adapters=np.array([0, 1, 2, 0]))
    slots = AdapterSlots(traffic, 2, 0.5)
    assert slots.admit(0) == 0.5 and slots.admit(1) == 0.5 and not slots.has_place(2) and slots.has_place(3)
    slots.leave(1)
    assert slots.has_place(2) and slots.admit(2) == 0.5  # in the slot of 1, since a request of 0 still runs
    assert slots.admit(3) == 0.0 and slots.loads == 3


def test_throughput_falls_as_published() -> None:
    """By 11.4% of Qwen2.5 7B with prompts of 2,048 tokens and answers of 256 (vLLM 0.25, pull request 48887)."""
    asked: dict[str, Any] = {
        "gpu": "h100-sxm", "input_tokens": 2048, "output_tokens": 256, "rate": "inf", "num_requests": 100
    }  # fmt: skip
    plain, adapted = (
        pl.serve("qwen2.5-7b", engine_settings=one, **asked).figures["output_tokens_per_s"].value
        for one in (None, "adapters=1,adapter-rank=8")
    )
    assert 1 - adapted / plain == pytest.approx(0.114, abs=0.04)


@pytest.mark.thorough
def test_fewer_slots_carry_less() -> None:
    name = "saturation_requests_per_s"
    asked: dict[str, Any] = {"gpu": "h100-sxm", "rate": 5, "num_requests": 200}
    rates = [
        pl.serve(NETWORK, engine_settings=f"adapters=16,adapter-slots={one}", **asked).figures[name].value
        for one in (1, 4, 16)
    ]
    assert rates == sorted(rates) and rates[-1] < pl.serve(NETWORK, **asked).figures[name].value


@pytest.mark.parametrize(("slots", "waits"), [(1, True), (16, False)])
def test_a_note_says_where_requests_wait_for_slots(slots: int, waits: bool) -> None:
    """Of 16 adapters in one slot, 15 in 16 of the waiting requests cannot join; with a slot for each all can."""
    answer = pl.serve(
        NETWORK, gpu="h100-sxm", engine_settings=f"adapters=16,adapter-slots={slots}", concurrency=32, num_requests=160
    )
    share = answer.figures["adapter_wait"].value
    assert share is not None
    assert share > 0.8 if waits else share == 0.0
    assert any("wait for a slot of an adapter" in note and "83.9 MB" in note for note in answer.notes) is waits


@pytest.mark.parametrize(
    ("engine", "words"),
    [
        ("vllm", "--enable-lora --max-loras 4 --max-lora-rank 32 --max-cpu-loras 40"),  # docs.vllm.ai, cli/serve
        # docs.sglang.io, advanced features, LoRA serving
        ("sglang", "--enable-lora --max-loras-per-batch 4 --max-lora-rank 32 --max-loaded-loras 40"),
    ],
)
def test_commands_state_adapters(engine: str, words: str) -> None:
    result = pl.serve(
        NETWORK,
        gpu="h100-sxm",
        rate=1,
        num_requests=20,
        engine=engine,
        engine_settings="adapters=40,adapter-slots=4,adapter-rank=32",
    )
    assert words in str(result.launch_command)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"engine_settings": "adapter-rank=8"}, "needs adapters=N"),
        ({"engine_settings": "adapters=2,adapter-slots=3"}, "no more adapter-slots than adapters=2"),
        ({"engine_settings": "adapters=2", "pipeline": 2}, "not modelled with `--pipeline`"),
        ({"engine_settings": "adapters=2", "advise": "cost"}, "`--advise` ranks replicas alone"),
    ],
)
def test_what_does_not_go_together_gets_a_sentence(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(BadValue, match=sentence):
        pl.serve(NETWORK, gpu="h100-sxm", rate=1, num_requests=20, **options)


def test_adapters_are_as_popular_unless_told_otherwise() -> None:
    traffic = generate_traffic(Lengths(500), Lengths(100), count=20_000, rate_per_s=5.0)
    asked = with_adapters(traffic, deployment_of("adapters=4").adapters, 0).adapters
    assert np.bincount(asked, minlength=4) / 20_000 == pytest.approx(0.25, abs=0.02)
    by_rank = with_adapters(traffic, deployment_of("adapters=4,adapter-skew=1").adapters, 0).adapters
    expected = 1 / np.arange(1, 5) / (1 / np.arange(1, 5)).sum()  # Zipf's law
    assert np.bincount(by_rank, minlength=4) / 20_000 == pytest.approx(expected, abs=0.02)


def test_the_kernels_of_a_step_are_with_those_of_adapters() -> None:
    """Eight launches in each of 32 blocks (vLLM's `lora_shrink` and `lora_expand` of four fused projections)."""
    asked: dict[str, Any] = {"gpu": "h100-sxm", "concurrency": 8, "num_requests": 40}
    plain = pl.serve(NETWORK, **asked)
    adapted = pl.serve(NETWORK, engine_settings="adapters=4,adapter-slots=4", **asked)
    names = {kernel.name: kernel for kernel in adapted.kernels}
    assert names.keys() - {kernel.name for kernel in plain.kernels} == {"adapters (LoRA)"}
    own = names["adapters (LoRA)"]
    cost = deployment_of("adapters=4,adapter-slots=4").adapter_cost
    assert own.launches == 8 * 32
    assert own.time_s == cost.time_s(round(adapted.figures["mean_sequences"].value), 4)
    assert sum(kernel.share for kernel in adapted.kernels) == pytest.approx(1)

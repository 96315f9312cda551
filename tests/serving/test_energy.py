"""The power and the energy of deployments: the activity of `predict`, waiting, intervals, and measured servers.

Tests: serving/energy.py.
"""

from __future__ import annotations

import pytest

import paleo_lite as pl
from paleo_lite.api.question import Question, resolve_question
from paleo_lite.distributed.links import device_link
from paleo_lite.engines.division import Division
from paleo_lite.machines import find_device
from paleo_lite.serving.deployment import timer_of
from paleo_lite.serving.placement import ModelOnDevice, tensor_group, with_kernels
from paleo_lite.timing.energy import power_of

LOOP = {"input_tokens": 64, "output_tokens": 128}


def placed(network: str, gpu: str, devices: int = 1, precision: str = "bf16") -> ModelOnDevice:
    workload, machine, model = resolve_question(Question(network, gpu, precision=precision, phase="decode"))
    group = tensor_group(machine.device, Division(devices), None if devices == 1 else device_link(machine.device))
    return ModelOnDevice(workload, machine, model, group, precision)


@pytest.mark.parametrize("gpu", ["v100-sxm2", "mi210"])
def test_a_step_timed_by_layers_draws_what_predict_says(gpu: str) -> None:
    """Of the same batch and context, with keys and values in the same format."""
    predicted = pl.predict("llama-3.2-1b", gpu=gpu, precision="fp16", phase="decode", batch_size=4, context=512)
    activity = timer_of(placed("llama-3.2-1b", gpu, precision="fp16")).decode_activity(4, 512)
    assert activity == pytest.approx(predicted.activity)
    power = power_of(find_device(gpu))
    assert power is not None
    assert float(power.watts(activity.shares_of(predicted.time_s))) == pytest.approx(predicted.power_w)


def test_a_prompt_computes_and_a_decoding_sequence_reads() -> None:
    one = timer_of(with_kernels(placed("llama-3.1-8b", "h100-sxm"), "vllm"))
    prompt, decoding = one.prompt_activity(2048), one.decode_activity(1, 2048)
    assert prompt.arithmetic_s > 2 * prompt.memory_s and decoding.memory_s > 3 * decoding.arithmetic_s
    flops_s = 2 * 8.03e9 * 2048 / find_device("h100-sxm").find_peak("bf16").per_s
    assert prompt.peak_s == pytest.approx(flops_s, rel=0.15)  # without the embedding, with attention


def test_tensor_parallel_devices_share_the_work_and_exchange() -> None:
    one, two = (with_kernels(placed("llama-3.1-8b", "h100-sxm", devices), "vllm") for devices in (1, 2))
    alone, pair = (timer_of(on_device).decode_activity(32, 1000) for on_device in (one, two))
    assert alone.links_s == 0 < pair.links_s
    assert pair.peak_s == pytest.approx(alone.peak_s / 2, rel=0.1)


def test_figures_of_energy_agree_and_waiting_costs_idle_power() -> None:
    # Fewer than two requests per user have no warm-up, and the same lengths.
    busy = pl.serve("llama-3.1-8b", gpu="h100-sxm", concurrency=33, num_requests=64, **LOOP)
    rare = pl.serve("llama-3.1-8b", gpu="h100-sxm", rate=0.5, num_requests=64, seed=3, **LOOP)
    power = power_of(find_device("h100-sxm"))
    assert power is not None
    for serving in (busy, rare):
        figures = serving.figures
        watts, tokens_j = figures["watts_per_gpu"], figures["joules_per_million_output_tokens"]
        assert power.idle_w < watts.low < watts.value < watts.high <= 700
        assert tokens_j.low < tokens_j.value < tokens_j.high
        assert figures["joules_per_request"].value == pytest.approx(tokens_j.value * 128e-6)
        utilisation, per_s = figures["utilisation"].value, figures["requests_per_s"].value
        mean_w = utilisation * watts.value + (1 - utilisation) * power.idle_w
        assert figures["joules_per_request"].value * per_s == pytest.approx(mean_w)
    assert rare.figures["joules_per_request"].value > 3 * busy.figures["joules_per_request"].value


def test_no_end_of_an_interval_is_above_the_limit() -> None:
    prompts = pl.serve("llama-3.1-8b", gpu="h100-sxm", concurrency=32, num_requests=64, output_tokens=32)
    watts = prompts.figures["watts_per_gpu"]
    assert watts.low < watts.value < watts.high <= 700


@pytest.mark.spread(1)
@pytest.mark.parametrize(
    ("network", "gpu", "tensor", "sequences", "output_tokens", "measured_w"),
    [
        ("llama-3.1-70b", "b200", 2, 32, 346, 867.5),
        ("qwen3-8b", "h100-sxm", 1, 64, 645, 514.4),
        ("gemma-3-27b", "h100-sxm", 2, 32, 710, 467.6),
    ],
)
def test_measured_servers_draw_what_is_said(network, gpu, tensor, sequences, output_tokens, measured_w) -> None:
    """Rows of ML.ENERGY Benchmark v3, in chat."""
    lengths = {"input_tokens": 300, "output_tokens": output_tokens, "num_requests": 3 * sequences}
    serving = pl.serve(network, gpu=gpu, tensor=tensor, concurrency=sequences, **lengths)
    watts = serving.figures["watts_per_gpu"]
    assert watts.low < measured_w < watts.high
    assert watts.value == pytest.approx(measured_w, rel=0.15)

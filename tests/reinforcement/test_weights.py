"""The way of new weights, and of state that makes room.

Tests: reinforcement/weights.py, api/reinforcement_state.py.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import pytest

import paleo_lite as pl
from paleo_lite.api.reinforcement import predict_transfer
from paleo_lite.architectures import find_network
from paleo_lite.distributed.platforms import usual_computer
from paleo_lite.machines import find_device
from paleo_lite.reinforcement.constants import rl_constants
from paleo_lite.reinforcement.frameworks import BROADCAST, GATHERED, PAIRED, RESHARDED, TRANSFERS
from paleo_lite.reinforcement.weights import TransferRoute, count_tensors, gather_blocks, swap_s, transfer_weights
from paleo_lite.timing.fine_tuning import FineTuning, adapt_layers, adapter_products
from paleo_lite.timing.offload import host_bandwidth_bytes_per_s


def moved(network: str, path: str, devices: int = 32, precision: str = "bf16", **changes: Any) -> float:
    computer = usual_computer("h100-sxm")
    assert computer is not None
    topology = computer.topology(devices)
    network_moved = find_network(network)
    senders, constants = devices // 2, rl_constants()
    route = TransferRoute(path, senders, rollout_tensor=4)
    found = transfer_weights(network_moved, precision, topology, route, constants, **changes)
    return found.time_s


def test_experts_are_tensors_of_their_own() -> None:
    assert count_tensors(find_network("qwen3-30b-a3b").layers) > 48 * 128
    assert count_tensors(find_network("qwen3-8b").layers) < 1000


@pytest.mark.parametrize("path", TRANSFERS)
def test_more_weights_take_longer(path: str) -> None:
    assert moved("qwen3-32b", path) > 2 * moved("qwen3-8b", path)


def test_parts_that_go_straight_to_their_places_cost_less_per_expert() -> None:
    costs = {path: moved("qwen3-30b-a3b", path) - moved("qwen3-32b", path) for path in (GATHERED, RESHARDED)}
    assert 0 < costs[RESHARDED] < costs[GATHERED]


def test_a_paired_device_gets_its_part_of_the_experts_and_all_other_weights() -> None:
    """69.95 GiB for each of 32 devices of DeepSeek-V3 (NeMo-RL, docs/guides/checkpoint-engine-refit.md)."""
    computer = usual_computer("h100-sxm")
    assert computer is not None
    route = TransferRoute(PAIRED, 256, rollout_tensor=32)
    found = transfer_weights(find_network("deepseek-v3"), "bf16", computer.topology(288), route, rl_constants())
    assert found.bytes == pytest.approx(69.95 * 2**30, rel=0.01)


def test_stacked_experts_are_one_tensor_where_parts_are_sent() -> None:
    """GLM-5.2 has 75 blocks of 256 experts, whose three matrices prime-rl has as three tensors; its NCCL sends each."""
    computer = usual_computer("h200-sxm")
    assert computer is not None
    found = {}
    for path, stacks in ((RESHARDED, True), (RESHARDED, False), (BROADCAST, True)):
        route = TransferRoute(path, 64, rollout_tensor=16, stacks_experts=stacks)
        topology = computer.topology(96)
        found[path, stacks] = transfer_weights(find_network("glm-5.2"), "bf16", topology, route, rl_constants()).tensors
    assert found[RESHARDED, True] < 75 * 256 < found[RESHARDED, False] == found[BROADCAST, True]


def test_inside_a_node_weights_do_not_wait_for_the_network() -> None:
    assert moved("qwen3-32b", GATHERED, 8) < moved("qwen3-32b", GATHERED, 16)


def test_adapters_travel_alone() -> None:
    """Two matrices of rank 16 beside each of the seven products of the 64 blocks of Qwen3-32B."""
    adapters = adapter_products(adapt_layers(find_network("qwen3-32b").layers, FineTuning(lora_rank=16)))
    assert len(adapters) == 64 * 7 * 2
    assert moved("qwen3-32b", GATHERED, adapters=adapters) < 0.3 * moved("qwen3-32b", GATHERED)


def test_experts_are_converted_one_by_one() -> None:
    assert moved("qwen3-30b-a3b", GATHERED, 8, "fp8") > moved("qwen3-30b-a3b", GATHERED, 8)


def test_state_goes_over_the_link_to_the_host() -> None:
    h100, gb200 = find_device("h100-sxm"), find_device("gb200")
    assert swap_s(h100, 0, rl_constants()) == 0
    assert swap_s(h100, 20e9, rl_constants()) == pytest.approx(2 * swap_s(h100, 10e9, rl_constants()))
    assert swap_s(gb200, 10e9, rl_constants()) < swap_s(h100, 10e9, rl_constants())


def test_a_host_shares_its_rate_of_copies_among_its_devices() -> None:
    """Four devices copy twice as fast as eight, up to the whole link; NVLink-C2C has no such limit."""
    h100, gb200, constants = find_device("h100-sxm"), find_device("gb200"), rl_constants()
    eight, four, one = (swap_s(h100, 1e9, constants, devices) for devices in (8, 4, 1))
    assert eight == pytest.approx(2 * four) and swap_s(h100, 1e9, constants, 72) == eight
    assert one >= 2 * 1e9 / host_bandwidth_bytes_per_s(h100)
    assert swap_s(gb200, 1e9, constants, 1) == swap_s(gb200, 1e9, constants, 8)


def test_adapters_that_are_units_are_gathered_with_their_blocks() -> None:
    """By hand: 14 matrices of each of 24 blocks at two forward passes, all weights in fp32, and those of the engine."""
    network = find_network("qwen2.5-0.5b")
    adapters = adapter_products(adapt_layers(network.layers, FineTuning(lora_rank=32)))
    constants = msgspec.structs.replace(rl_constants(), handover_s=0.5, unit_s=1e-3, gathered_blocks_bytes_per_s=10e9)
    found = gather_blocks(network, adapters, constants, wake_s=0.25)
    assert found.time_s == pytest.approx(0.5 + 0.25 + 2e-3 * 24 * 14 + 4 * network.parameters / 10e9)
    assert found.tensors == 24 * 14 and not found.wakes_engine
    assert found.gathered_bytes == 4 * network.parameters


def test_weights_in_fp32_are_gathered_twice_before_they_are_handed_over() -> None:
    """By hand, inside a node of H100: 4 bytes of every weight twice, over NVLink and into memory that is reserved."""
    network, computer = find_network("qwen2.5-7b"), usual_computer("h100-sxm")
    assert computer is not None
    no_overheads = {"handover_s": 0.0, "tensor_s": 0.0, "port_share": 1.0}
    constants = msgspec.structs.replace(rl_constants(), gathered_master_bytes_per_s=50e9, **no_overheads)
    route = TransferRoute(GATHERED, senders=8, rollout_tensor=2, master_gathers=2)
    found = transfer_weights(network, "bf16", computer.topology(8), route, constants)
    gathered_bytes = 2 * 4 * network.parameters
    assert found.gathered_bytes == gathered_bytes and found.bytes == 2 * network.parameters
    assert found.time_s == pytest.approx(gathered_bytes / 450e9 + gathered_bytes / 50e9)


def test_only_fsdp_of_verl_gathers_weights_in_fp32() -> None:
    """Megatron-LM of verl has weights in 16 bits; FSDP keeps them in fp32, and gathers them twice."""
    question = pl.Rl("qwen2.5-7b", gpu="a100-sxm-80gb", workers=8, framework="verl", rollout_tensor=2)
    parameters = find_network("qwen2.5-7b").parameters
    assert predict_transfer(question).gathered_bytes == 2 * 4 * parameters
    assert predict_transfer(replace(question, tensor=2)).gathered_bytes == 0


@pytest.mark.parametrize(("precision", "number_bytes"), [("bf16", 2), ("fp8", 1)])
def test_engines_get_weights_in_their_precision_whatever_was_gathered(precision: str, number_bytes: int) -> None:
    """Of 8.19e9 weights of Qwen3-8B, 16.4 GB in bf16 and 8.2 GB in fp8, after 4 bytes of each twice."""
    answer = pl.rl("qwen3-8b", gpu="h100-sxm", workers=8, framework="verl", rollout_precision=precision)
    parameters = find_network("qwen3-8b").parameters
    assert (answer.gathered_bytes, answer.transferred_bytes) == (8 * parameters, number_bytes * parameters)
    sent = dict(answer.document().facts)["weights"]
    assert sent.startswith("65.5 GB gathered in fp32, ")
    assert f"{'16.4' if precision == 'bf16' else '8.19'} GB in 399 tensors to the engines" in sent


def test_a_single_device_gathers_nothing() -> None:
    question = pl.Rl("qwen2.5-0.5b", gpu="h100-sxm", workers=1, framework="verl")
    assert predict_transfer(question).gathered_bytes == 0


def test_an_engine_takes_its_weights_back_before_it_gets_adapters() -> None:
    """Half of the weights of 7B in bf16 per device of two, over PCIe 5 at the share of pinned memory."""
    question = pl.Rl("qwen2.5-7b", gpu="h100-sxm", workers=8, framework="verl", rollout_tensor=2, lora=32)
    slower = predict_transfer(question).time_s - predict_transfer(replace(question, rollout_tensor=8)).time_s
    kept_bytes = 2 * find_network("qwen2.5-7b").parameters
    assert slower == pytest.approx(kept_bytes * (1 / 2 - 1 / 8) / host_bandwidth_bytes_per_s(find_device("h100-sxm")))


def test_offloaded_parameters_come_for_the_transfer_and_leave_again() -> None:
    """By hand: FSDP has 4 bytes of each parameter on one of 8 devices, Megatron-LM 2 on every fourth."""
    question = pl.Rl("qwen2.5-7b", gpu="a100-sxm-80gb", workers=8, framework="verl", rollout_tensor=2)
    moved_bytes = 2 * 4 * find_network("qwen2.5-7b").parameters / 8
    rate = host_bandwidth_bytes_per_s(find_device("a100-sxm-80gb"))
    for degrees in ({}, {"tensor": 2, "pipeline": 2}):
        stays = predict_transfer(replace(question, **degrees)).time_s
        moved = predict_transfer(replace(question, offload="parameters", **degrees)).time_s
        assert moved - stays == pytest.approx(moved_bytes / rate)


def test_other_frameworks_move_state_once_a_step() -> None:
    """The optimizer's state of openrlhf leaves for the rollouts; with all on the devices nothing of it moves."""
    asked = {"gpu": "h100-sxm", "workers": 8, "prompts": 8, "framework": "openrlhf", "algorithm": "rloo"}
    usual, stays = pl.rl("qwen3-0.6b", **asked), pl.rl("qwen3-0.6b", offload="none", **asked)
    assert usual.phases["state"] > stays.phases["state"] and usual.phases["update"] == stays.phases["update"]
    assert stays.rollout_bytes > usual.rollout_bytes

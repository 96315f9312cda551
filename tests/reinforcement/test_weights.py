"""The way of new weights, and of state that makes room."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from paleo_lite.architectures import find_network
from paleo_lite.distributed.platforms import usual_computer
from paleo_lite.machines import find_device
from paleo_lite.reinforcement.constants import rl_constants
from paleo_lite.reinforcement.frameworks import BROADCAST, GATHERED, RESHARDED
from paleo_lite.reinforcement.weights import count_tensors, gather_blocks, swap_s, transfer_weights
from paleo_lite.timing.fine_tuning import FineTuning, adapt_layers, adapter_products
from paleo_lite.timing.offload import host_bandwidth_bytes_per_s


def moved(network: str, path: str, devices: int = 32, precision: str = "bf16", **changes: Any) -> float:
    computer = usual_computer("h100-sxm")
    assert computer is not None
    topology = computer.topology(devices)
    network_moved = find_network(network)
    senders, constants = devices // 2, rl_constants()
    found = transfer_weights(network_moved, precision, topology, path, 4, constants, senders=senders, **changes)
    return found.time_s


def test_experts_are_tensors_of_their_own() -> None:
    assert count_tensors(find_network("qwen3-30b-a3b").layers) > 48 * 128
    assert count_tensors(find_network("qwen3-8b").layers) < 1000


@pytest.mark.parametrize("path", [GATHERED, BROADCAST, RESHARDED])
def test_more_weights_take_longer(path: str) -> None:
    assert moved("qwen3-32b", path) > 2 * moved("qwen3-8b", path)


def test_parts_that_go_straight_to_their_places_cost_less_per_expert() -> None:
    costs = {path: moved("qwen3-30b-a3b", path) - moved("qwen3-32b", path) for path in (GATHERED, RESHARDED)}
    assert 0 < costs[RESHARDED] < costs[GATHERED]


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
    """By hand: 14 matrices of each of 24 blocks at two forward passes, and all weights in fp32."""
    network = find_network("qwen2.5-0.5b")
    adapters = adapter_products(adapt_layers(network.layers, FineTuning(lora_rank=32)))
    constants = msgspec.structs.replace(rl_constants(), handover_s=0.5, unit_s=1e-3, gathered_blocks_bytes_per_s=10e9)
    found = gather_blocks(network, adapters, constants)
    assert found.time_s == pytest.approx(0.5 + 2e-3 * 24 * 14 + 4 * network.parameters / 10e9)
    assert found.tensors == 24 * 14 and not found.wakes_engine

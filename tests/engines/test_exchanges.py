"""Copies of tokens in the modes of DeepEP's kernels: by drawing experts, and with the times that DeepEP states."""

from __future__ import annotations

import numpy as np
import pytest

from paleo_lite.engines.constants import engine_constants
from paleo_lite.engines.exchanges import EXCHANGE_MODES, Mode
from paleo_lite.engines.formulas import expert_exchange_s
from paleo_lite.machines import find_device

TOKENS, ACTIVE, PER_NODE, NODES = 20_000, 8, 8, 4


def drawn_copies(mode: Mode) -> tuple[float, float]:
    """Draw the devices of the experts of tokens, whose own device is drawn, too, and count the messages by hand."""
    generator = np.random.default_rng(1)
    own = generator.integers(NODES * PER_NODE, size=TOKENS)
    inside = between = 0
    for device, chosen in zip(own, generator.integers(NODES * PER_NODE, size=(TOKENS, ACTIVE))):
        if mode == "low-latency":
            is_own_node = chosen // PER_NODE == device // PER_NODE
            inside += int((is_own_node & (chosen != device)).sum())
            between += int((~is_own_node).sum())
            continue
        reached = set(chosen.tolist())
        between += len({one // PER_NODE for one in reached} - {device // PER_NODE})
        inside += sum(one % PER_NODE != device % PER_NODE for one in reached)
    return inside / TOKENS, between / TOKENS


@pytest.mark.parametrize("mode", EXCHANGE_MODES)
def test_copies_are_those_of_drawn_experts(mode: Mode) -> None:
    sent = EXCHANGE_MODES[mode].copies(ACTIVE, NODES * PER_NODE, NODES)
    assert tuple(sent) == pytest.approx(drawn_copies(mode), rel=0.02)


def test_within_a_node_nothing_crosses_the_network() -> None:
    for mode in EXCHANGE_MODES.values():
        sent = mode.copies(8, 8, 1)
        assert sent.between == 0 and sent.inside > 4


@pytest.mark.parametrize(
    ("devices", "dispatch_us", "combine_us"), [(16, 118, 195), (32, 155, 273), (64, 173, 314), (128, 192, 369)]
)
def test_low_latency_kernels_take_as_long_as_deepep_states(devices: int, dispatch_us: float, combine_us: float) -> None:
    """DeepEP, docs/legacy.md: 128 tokens of 7,168 numbers, 8 experts, fp8 there and bf16 back, H800 with 400 Gbit/s."""
    nodes = devices / 8
    sent = EXCHANGE_MODES["low-latency"].copies(8, devices, nodes)
    for form, width, stated_us in (("dispatch", 1, dispatch_us), ("combine", 2, combine_us)):
        known = engine_constants().of("expert exchange", find_device("h100-sxm"), "sglang", f"low-latency {form}")
        bytes_of_copy = 128 * 7168 * width
        seconds = expert_exchange_s(
            known.theta, sent_bytes=sent.inside * bytes_of_copy, node_bytes=sent.between * bytes_of_copy, nodes=nodes,
            link_bytes_per_s=200e9, node_link_bytes_per_s=50e9,
        )  # fmt: skip
        assert float(seconds) == pytest.approx(stated_us * 1e-6, rel=0.2)

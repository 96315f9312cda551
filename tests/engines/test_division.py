"""How many devices a replica has, and how its division is named."""

from __future__ import annotations

import pytest

from paleo_lite.engines.division import Division


@pytest.mark.parametrize(
    ("division", "devices", "name"),
    [
        (Division(), 1, "tensor 1"),
        (Division(8), 8, "tensor 8"),
        (Division(4, 2, expert_parallel=4), 8, "tensor 4, expert-parallel 4, pipeline 2"),
        (Division(8, attention_data_parallel=8), 8, "tensor 8, attention-data-parallel 8"),
    ],
)
def test_experts_and_attention_are_divided_among_the_devices_of_a_stage(division, devices, name):
    assert (division.devices, division.describe()) == (devices, name)

"""How the devices of a replica share a network: degrees of parallelism, and the links within a stage."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from ..errors import BadValue
from .routing import UNIFORM


class Division(NamedTuple):
    """Degrees of parallelism of a replica, 1 where nothing is divided."""

    tensor: int = 1  # devices of a stage, which divide all matrices among themselves
    pipeline: int = 1  # stages
    expert_parallel: int = 1  # groups of the devices of a stage that divide the experts
    attention_data_parallel: int = 1  # groups that compute attention for sequences of their own

    @property
    def devices(self) -> int:
        """Devices of a replica."""
        return self.tensor * self.pipeline

    @property
    def attention_tensor(self) -> int:
        """Devices that divide the matrices of attention."""
        return self.tensor // self.attention_data_parallel

    @property
    def expert_tensor(self) -> int:
        """Devices that divide the matrices of every expert."""
        return self.tensor // self.expert_parallel

    def check(self) -> None:
        """Raise BadValue if the devices of a stage cannot divide experts or attention so."""
        devices = f"the {self.tensor} devices of `--tensor`"
        if self.tensor % self.attention_data_parallel:
            raise BadValue(f"`--attention-data-parallel` must divide {devices} (got {self.attention_data_parallel})")
        if self.tensor % self.expert_parallel:
            raise BadValue(f"`--expert-parallel` must divide {devices} (got {self.expert_parallel})")
        if self.attention_data_parallel > 1 and self.pipeline > 1:
            raise BadValue("`--attention-data-parallel` is not modelled with `--pipeline`: leave one of them out")

    def describe(self) -> str:
        """Return the degrees as text, such as ``tensor 8, expert-parallel 8``; further degrees of 1 are left out."""
        further = {
            "expert-parallel": self.expert_parallel,
            "attention-data-parallel": self.attention_data_parallel,
            "pipeline": self.pipeline,
        }
        return ", ".join([f"tensor {self.tensor}", *(f"{name} {n}" for name, n in further.items() if n > 1)])


class LinkedDevices(msgspec.Struct, frozen=True):
    """The devices of a stage of a replica: how they divide the network, and the links between them."""

    division: Division = Division()
    link_bytes_per_s: float = 0.0  # bandwidth of a device's links in one direction; 0 for a single device
    sums_in_switch: bool = False  # whether the switch between the devices adds the messages of an all-reduce
    nodes: int = 1  # nodes that the devices are on
    node_link_bytes_per_s: float = 0.0  # bandwidth of a device between nodes in one direction; 0 on a single node
    # Exponent of the popularity of experts, 0 for the uniform distribution (`paleo_lite.engines.routing`).
    alpha: float = UNIFORM


ONE_DEVICE = LinkedDevices()
"""A single device."""

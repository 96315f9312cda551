"""`Division`: how the devices of a replica share a network."""

from __future__ import annotations

from typing import NamedTuple


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

    def describe(self) -> str:
        """Return the degrees as text, such as ``tensor 8, expert-parallel 8``; further degrees of 1 are left out."""
        further = {
            "expert-parallel": self.expert_parallel,
            "attention-data-parallel": self.attention_data_parallel,
            "pipeline": self.pipeline,
        }
        return ", ".join([f"tensor {self.tensor}", *(f"{name} {n}" for name, n in further.items() if n > 1)])

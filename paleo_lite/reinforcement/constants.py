"""Constants of steps of reinforcement learning, fitted to published steps (`calibrations/reinforcement.toml`).

They are times of hosts and shares of links that neither serving nor pre-training shows, the same for all networks,
devices and frameworks; the kernels of rollouts are those of `serve`, and the passes of the trainer those of `train`.
"""

from __future__ import annotations

from functools import cache

import msgspec

from ..files import read_shipped

FILE = "reinforcement.toml"


class RlConstants(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What phases take beyond the kernels of serving and training."""

    # Rollouts. Time of the host per iteration, which shares the computer with the trainer's processes, and per token:
    # log-probabilities and samples go back one by one as objects. Time of the same work on a host with NVLink-C2C over
    # that on others.
    iteration_s: float
    token_s: float
    coherent_host: float
    # Time of the kernels of engines on Blackwell over that of the releases that served: frameworks pin older ones.
    blackwell_kernels: float
    across_nodes_s: float  # time of an exchange of few tokens between nodes, beyond that inside one
    launch_s: float  # time in which the host launches a kernel of an engine without graphs
    # Trainer. Time of its passes over those of pre-training, to which the constants of stacks were fitted: of the tuned
    # stack, and of others, where kernels of attention and of products are not slower.
    slowdown: float
    other_slowdown: float
    # Share of the rate of links that FSDP reaches where it gathers every block into memory that it reserves and frees.
    sharded_share: float
    unit_s: float  # time in which the host gathers, launches and frees an adapter that FSDP shards apart
    # Weights. Time in which a tensor is gathered, named, handed over and loaded, beside its bytes; of which it is
    # converted to a narrower format; shares of the rate of a port that every device reaches, of all ports of a node
    # that a broadcast from one device reaches, and of a port that reaches parts of many senders.
    tensor_s: float
    resharded_tensor_s: float  # the same of parts that go straight to their places
    converted_s: float
    handover_s: float  # time in which a transfer starts and ends
    # Rates of weights in fp32 that FSDP gathers into memory which it reserves and frees: of all weights beside the time
    # of the link, and of blocks for the adapters in them, with the link. They were fitted as one.
    gathered_master_bytes_per_s: float
    gathered_blocks_bytes_per_s: float
    port_share: float
    broadcast_share: float
    resharding_share: float
    # Time in which an engine that shares its devices gives up its memory, takes it back, and starts again.
    wake_s: float
    # Share of a link to the host that copies of memory that is not pinned reach where the eight devices of a node copy:
    # the host limits them together.
    unpinned_share: float
    # Host of the trainer, per step and per sample: data, rewards by rules, advantages, padding, messages.
    step_s: float
    sample_s: float
    # Standard deviations of the logarithms of phases, with networks held out.
    generation_deviation: float
    update_deviation: float
    transfer_deviation: float  # with sources held out
    other_deviation: float  # of state that goes to the host, and of the host itself
    # Additional deviation of rollouts, and of the trainer, under a framework to which no constant was fitted.
    framework_deviation: float
    sources: tuple[str, ...]


@cache
def rl_constants() -> RlConstants:
    """Return the shipped constants."""
    return read_shipped(FILE, RlConstants)

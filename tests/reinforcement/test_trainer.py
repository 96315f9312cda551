"""Times of the trainer: the slowest rank by hand, the forward pass of a micro-batch, and hosts that gather adapters.

The relations of the last are those of published steps of verl with LoRA: as long for any number of tokens.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import pytest

import paleo_lite as pl
from paleo_lite.api.reinforcement import predict_trainer
from paleo_lite.architectures import find_network
from paleo_lite.architectures.network import SequenceOptions
from paleo_lite.distributed.job import Job, Step
from paleo_lite.distributed.links import LinkRate, Topology
from paleo_lite.distributed.parallel_config import ParallelConfig
from paleo_lite.distributed.pipeline_schedule import StageTimes
from paleo_lite.distributed.platforms import parse_topology
from paleo_lite.distributed.settings import Settings
from paleo_lite.distributed.stage_communication import activation_communication_s, exchange_of, exposed_gather_s
from paleo_lite.distributed.stage_memory import ReplicaGroup
from paleo_lite.distributed.step_plan import plan_step
from paleo_lite.machines import Machine, find_device
from paleo_lite.reinforcement.constants import rl_constants
from paleo_lite.reinforcement.trainer import Batching, micro_batch_forward_s, relative_work, slowest_rank, split_step
from paleo_lite.reinforcement.weights import swap_s
from paleo_lite.timing import RooflineModel
from paleo_lite.timing.offload import host_bandwidth_bytes_per_s
from paleo_lite.timing.training_options import TrainingOptions
from paleo_lite.timing.workload import Workload

LENGTHS = (4, 1, 3, 2)  # tokens of four samples, 2.5 on average


def plan_of(attention_s: float = 0.0, **config: Any) -> Any:
    """Return a plan whose passes take 4 s on three blocks, of which attention takes its seconds in each pass."""
    block = SimpleNamespace(attention_s=attention_s / 3, attention_backward_s=attention_s / 3)
    longest = SimpleNamespace(block=block, blocks=3, passes_s=4.0)
    return SimpleNamespace(longest=longest, config=ParallelConfig(**config))


def slowest(plan: Any, ranks: int, micro_batches: int, **batching: Any) -> float:
    asked = {"per_micro_batch": 1, "updates": 1, "is_balanced": False, "tokens": LENGTHS, **batching}
    asked["tokens"] = np.array(asked["tokens"], dtype=float)
    return slowest_rank(plan, ranks, micro_batches, Batching(**asked))


def test_ranks_get_samples_in_turn_or_back_and_forth() -> None:
    """The ranks compute 4 + 3 and 1 + 2 tokens, or balanced 4 + 1 and 3 + 2, instead of 2 x 2.5."""
    assert slowest(plan_of(), 2, 2) == pytest.approx(7 / 5)
    assert slowest(plan_of(), 2, 2, is_balanced=True) == pytest.approx(1)


def test_ranks_that_divide_experts_wait_in_every_micro_batch() -> None:
    """Balanced micro-batches of 4 and 3, and then of 1 and 2: the ranks together take 4 + 2."""
    assert slowest(plan_of(expert=2), 2, 2, is_balanced=True) == pytest.approx(6 / 5)
    assert slowest(plan_of(expert=2, expert_tensor=2), 2, 2, is_balanced=True) == pytest.approx(6 / 5)
    assert slowest(plan_of(expert=2, tensor=2), 2, 2, is_balanced=True) == pytest.approx(1)  # inside a rank


@pytest.mark.parametrize(("virtual_stages", "expected"), [(1, 13 / 10), (2, 11 / 8.75)])
def test_a_pipeline_waits_for_its_longest_micro_batch(virtual_stages: int, expected: float) -> None:
    """Two micro-batches on three stages wait for 2 of the longest: 5 + 2 x 4 of 4 x 2.5.

    With two virtual stages they are done after 3 + 1/2 turns (`waiting_slots`): 5 + 1.5 x 4 of 3.5 x 2.5.
    """
    plan = plan_of(pipeline=3, virtual_stages=virtual_stages)
    assert slowest(plan, 2, 2, is_balanced=True) == pytest.approx(expected)


def test_updates_are_averaged_and_missing_samples_are_empty() -> None:
    assert slowest(plan_of(), 2, 1, updates=2) == pytest.approx((4 + 3) / 2 / 2.5)
    assert slowest(plan_of(), 2, 2, tokens=(3, 1, 2)) == pytest.approx((3 + 2) / (2 * 2))
    assert slowest(plan_of(), 1, 2, per_micro_batch=2) == pytest.approx(1)  # (4 + 1) / 2 and (3 + 2) / 2
    assert slowest(plan_of(), 2, 1, per_micro_batch=2) == pytest.approx((4 + 3) / 2 / 2.5)


def test_attention_grows_with_the_square_of_the_length() -> None:
    """Half of the passes' 4 s is attention, in both passes together."""
    ratio = np.array(LENGTHS) / 2.5
    assert relative_work(plan_of(1.0), np.array(LENGTHS, dtype=float)) == pytest.approx(ratio / 2 + ratio**2 / 2)


@pytest.mark.parametrize("tensor", [1, 2])
def test_half_of_the_exchange_of_activations_belongs_to_the_forward_pass(tensor: int) -> None:
    """Shoeybi et al. 2019: as many all-reduces in the forward pass as in the backward pass.

    On the longest of two stages a micro-batch passes its blocks and the layers outside, slowed by stragglers.
    """
    network = find_network("gpt2", options=SequenceOptions(1024, phase="training"))
    workload = Workload(network, "bf16", 1, "training", training=TrainingOptions("adamw"))
    job = Job(workload, Machine(find_device("a100-sxm-80gb")), RooflineModel())
    topology = parse_topology("4x a100-sxm-80gb @ nvlink3-x12")
    config = ParallelConfig(tensor, 2, recompute="full")
    settings = Settings(parallel=config, slowdown=0.25)
    plan = plan_step(job, topology, 8, settings)
    longest = max(plan.stages, key=lambda stage: stage.passes_s)
    assert longest.blocks == 6
    expected_s = 1.25 * (6 * longest.block.forward_s + longest.outer.forward_s)
    without = ParallelConfig(tensor, 2, recompute="none")  # a forward pass recomputes nothing
    exchange = exchange_of(job, without, settings, plan.costs.experts_per_token)
    exposed_s = [
        activation_communication_s(cost, topology, without, 1.25, exchange)[1]
        for cost in (longest.block, longest.outer)
    ]
    assert (exposed_s[0] > 0) == (tensor > 1)
    expected_s += (6 * exposed_s[0] + exposed_s[1]) / 2
    assert micro_batch_forward_s(job, topology, settings, plan) == pytest.approx(expected_s)


@pytest.mark.parametrize(("compute_s", "expected_s"), [(1.0, 0.8 * 0.35), (0.05, 0.35 - 0.05)])
def test_a_forward_pass_waits_for_the_parameters_of_other_ranks(compute_s: float, expected_s: float) -> None:
    """An all-gather of 40 GB among 8 devices receives 7/8 of them: 0.35 s over 100 GB/s.

    Computation hides no more than its own time, and not the 0.8 in which kernels take multiprocessors from it.
    """
    topology = Topology(None, 8, LinkRate("wire", 100e9), 1, None)
    groups = [ReplicaGroup(1.0, 8, 1)]
    config = ParallelConfig(sharding="full-shard")
    settings = Settings(parallel=config)
    for changes, hidden_share in (({}, 1), ({"overlap_efficiency": 0.5}, 0.5), ({"overlap": False}, 0)):
        changed = msgspec.structs.replace(settings, **changes)
        waited_s = exposed_gather_s(topology, groups, 40e9, compute_s, changed, exposed_sharding=0.8)
        assert waited_s == pytest.approx(0.35 - hidden_share * (0.35 - expected_s))


@pytest.mark.parametrize(
    ("waits_for_shards", "gradients_s", "expected"),
    [
        (False, None, (2.5, 0.0, 12.5)),
        (False, 1.0, (3.5, 0.0, 11.5)),
        (True, None, (2.5, 3.0, 9.5)),
        (True, 1.0, (3.5, 2.0, 9.5)),
    ],
)
def test_no_part_of_a_step_is_counted_twice(
    waits_for_shards: bool, gradients_s: float | None, expected: tuple[float, float, float]
) -> None:
    """By hand: passes of 10 s with an overhead of 0.5, 3 s of links, 1 of them for gradients, and an update of 2."""
    stages = None if gradients_s is None else StageTimes((1.0,), (2.0,), (0.0,), (), 1, gradients_s=gradients_s)
    step = Step(compute_s=10.0, communication_s=4.0, exposed_s=3.0, update_s=2.0, pipeline=stages)
    assert split_step(step, 0.5, waits_for_shards=waits_for_shards) == pytest.approx(expected)
    assert sum(expected) == step.time_s


FULL_SHARD: dict[str, Any] = {
    "network": "qwen2.5-7b", "gpu": "h100-sxm", "workers": 8, "prompts": 64, "samples_per_prompt": 4,
    "prompt_tokens": 100, "response_tokens": 200, "max_tokens": 1124, "micro_batch": 4,
}  # fmt: skip


def test_passes_of_fsdp_wait_for_links_beside_their_kernels() -> None:
    """In proportion to the time of the wires: a gather in a forward pass; two, and a sum of gradients, in both."""
    question = pl.Rl(**FULL_SHARD, framework="verl")
    whole, half, quarter = (
        predict_trainer(question, msgspec.structs.replace(rl_constants(), sharded_share=share))
        for share in (1, 1 / 2, 1 / 4)
    )
    for name in ("forward_s", "update_s"):
        at_whole, at_half, at_quarter = (getattr(times, name) for times in (whole, half, quarter))
        assert at_quarter - at_half == pytest.approx(2 * (at_half - at_whole), rel=0.01) and at_half > at_whole
    assert (half.update_s - whole.update_s) / (half.forward_s - whole.forward_s) > 2


@pytest.mark.parametrize(("sharding", "gathers"), [("full-shard", 4), ("zero-3", 3)])
def test_gradients_of_fsdp_are_exchanged_in_fp32(sharding: str, gathers: int) -> None:
    """Two gathers of 16 bits and the gradients: as many bytes as one gather, or two in fp32.

    Of micro-batches of few tokens, whose computation hides hardly any of it.
    """
    short = {"response_tokens": 1, "max_tokens": 110, "micro_batch": 1}
    question = pl.Rl(**{**FULL_SHARD, **short}, framework="verl", sharding=sharding)
    half, whole = (
        predict_trainer(question, msgspec.structs.replace(rl_constants(), sharded_share=share)) for share in (1 / 2, 1)
    )
    exchanged = (half.update_s - whole.update_s) / (half.forward_s - whole.forward_s)
    assert exchanged == pytest.approx(gathers, rel=0.05)


def test_attention_and_products_are_as_fast_under_any_stack() -> None:
    """Twice the slowdown doubles all other kernels, on one device alone.

    They move memory: by FLOPs and bytes 7 to 19% of a forward pass of Qwen2.5-7B at the rates of the data sheet, and
    less beside the attention of 30,000 tokens.
    """
    asked = {**FULL_SHARD, "framework": "verl", "workers": 1, "prompts": 1, "samples_per_prompt": 1, "micro_batch": 1}
    added_s = {}
    for tokens in (1000, 30_000):
        question = pl.Rl(**{**asked, "response_tokens": tokens, "max_tokens": tokens + 100, "clipped_share": 1.0})
        once, twice, thrice = (
            predict_trainer(question, msgspec.structs.replace(rl_constants(), other_slowdown=slowdown))
            for slowdown in (1.0, 2.0, 3.0)
        )
        assert thrice.forward_s - twice.forward_s == pytest.approx(twice.forward_s - once.forward_s)
        added_s[tokens] = (twice.forward_s - once.forward_s) / once.forward_s
    assert 0.07 < added_s[1000] < 0.4 and added_s[30_000] < 0.7 * added_s[1000]


@pytest.mark.parametrize("changes", [{"framework": "nemo-rl"}, {"framework": "verl", "workers": 1}])
def test_without_shards_of_others_nothing_is_waited_for(changes: dict[str, Any]) -> None:
    """Megatron-LM keeps whole parameters, and a single device has all of them."""
    question = pl.Rl(**{**FULL_SHARD, **changes})
    slower = msgspec.structs.replace(rl_constants(), sharded_share=rl_constants().sharded_share / 4)
    assert predict_trainer(question, slower) == predict_trainer(question)


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


def test_moments_come_to_the_devices_for_each_update() -> None:
    """8 of the 12 bytes of AdamW's state per parameter, of which each of two devices has a half, there and back."""
    whole = {"lora": None, "updates_per_step": 2}
    moved, resident = passes(framework="prime-rl", **whole), passes(framework="verl", **whole)
    parameters = find_network("qwen2.5-0.5b").parameters
    assert moved.optimizer_bytes == pytest.approx(12 * parameters / 2, rel=0.01)
    copied_s = swap_s(find_device("h100-sxm"), 8 * parameters / 2, rl_constants(), 2)
    assert moved.update_s == pytest.approx(resident.update_s + 2 * copied_s, rel=0.01)
    assert moved.memory_bytes < resident.memory_bytes and moved.forward_s == resident.forward_s


def test_a_critic_has_state_beside_that_of_the_policy() -> None:
    """16 bits of each parameter and 12 bytes of AdamW with master weights, over two devices; none that is offloaded."""
    parameters = find_network("qwen2.5-0.5b").parameters
    added = {}
    for offload in (None, "optimizer", "parameters+optimizer"):
        alone, beside = (passes(lora=None, algorithm=algorithm, offload=offload) for algorithm in ("grpo", "ppo"))
        added[offload] = beside.memory_bytes - alone.memory_bytes
    assert added[None] == pytest.approx((2 + 12) * parameters / 2, rel=0.01)
    assert added["optimizer"] == pytest.approx(2 * parameters / 2, rel=0.01)
    assert added["parameters+optimizer"] == 0


def test_moments_of_a_critic_rest_as_those_of_the_policy_do() -> None:
    """4 of the 12 bytes of AdamW's state stay, the master weights, where prime-rl moves the moments for each update."""
    parameters = find_network("qwen2.5-0.5b").parameters
    alone, beside = (passes(lora=None, framework="prime-rl", algorithm=algorithm) for algorithm in ("grpo", "ppo"))
    assert beside.memory_bytes - alone.memory_bytes == pytest.approx((2 + 4) * parameters / 2, rel=0.01)


def test_verl_brings_offloaded_state_to_the_devices_for_each_phase() -> None:
    """By hand: 4 bytes of each parameter of FSDP in fp32 and 8 of its moments, of which each of two devices has a half.

    offload_fsdp_model_to_cpu and load_fsdp_model_to_gpu of verl copy to and from pinned memory, once a phase.
    """
    whole = {"lora": None, "updates_per_step": 2}
    moved, resident = passes(offload="optimizer+parameters", **whole), passes(**whole)
    parameters = find_network("qwen2.5-0.5b").parameters
    rate = host_bandwidth_bytes_per_s(find_device("h100-sxm"))
    assert moved.forward_s - resident.forward_s == pytest.approx(2 * 4 * parameters / 2 / rate)
    assert moved.update_s - resident.update_s == pytest.approx(2 * (4 + 8) * parameters / 2 / rate, rel=1e-3)
    assert passes(offload="optimizer", **whole).forward_s == resident.forward_s
    assert passes(offload="none", **whole) == resident

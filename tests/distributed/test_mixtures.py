"""Mixtures of experts in training: parameters, FLOPs, bytes and launches by hand from the published configs.

Tests: timing/expert_kernels.py, distributed/device_cost.py.
"""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest

import paleo_lite as pl
from paleo_lite.architectures import find_network
from paleo_lite.architectures.network import SequenceOptions
from paleo_lite.counting.kinds import is_grouped_product
from paleo_lite.distributed.blocks import BlockShape, _count_blocks, block_costs
from paleo_lite.distributed.collectives import subgroup_topology, topology_all_reduce_s
from paleo_lite.distributed.device_cost import StackKernels
from paleo_lite.distributed.expert_exchange import DISPATCHERS, expert_exchange_s
from paleo_lite.distributed.job import Job
from paleo_lite.distributed.parallel_3d import train_3d_parallel
from paleo_lite.distributed.parallel_config import ParallelConfig
from paleo_lite.distributed.platforms import find_computer, parse_topology
from paleo_lite.distributed.saved_activations import saved_activations
from paleo_lite.distributed.settings import Settings
from paleo_lite.distributed.stage_communication import stage_transfer_s
from paleo_lite.distributed.step_plan import plan_step
from paleo_lite.errors import BadValue
from paleo_lite.machines import Machine, find_device
from paleo_lite.timing import RooflineModel
from paleo_lite.timing.blocks import stack_constants
from paleo_lite.timing.expert_kernels import available_expert_kernels, check_expert_kernels
from paleo_lite.timing.training_options import TRAINING_RECIPES, TrainingOptions
from paleo_lite.timing.workload import Workload

LENGTH = 4096


def job_of(name: str, precision: str = "mxfp8", device: str = "gb200", optimizer: str = "adam") -> Job:
    tensors, options = TrainingOptions(optimizer, mixed_precision=True).split_precision(precision)
    network = find_network(name, options=SequenceOptions(LENGTH, phase="training"))
    workload = Workload(network, tensors, phase="training", training=options)
    return Job(workload, Machine(find_device(device)), RooflineModel())


def forecast_job_of(name: str, **asked: str) -> Job:
    from paleo_lite.calibration.choose import choose_model

    job = job_of(name, **asked)
    return Job(job.workload, job.machine, choose_model(job.machine.device, "bf16", products="fp8"))


def racks(workers: int) -> Any:
    computer = find_computer("gb200-nvl72")
    assert computer is not None
    return computer.topology(workers).with_workers(workers)


# DeepSeek-V3: hidden size 7,168, 128 heads of 128 + 64 channels, compressed to 1,536 and 512, experts of 2,048.
HIDDEN, EXPERT = 7168, 3 * 7168 * 2048
ATTENTION = (
    HIDDEN * 1536 + 1536 * 128 * 192 + HIDDEN * 576 + 512 * 128 * 256 + 128 * 128 * HIDDEN + 2 * HIDDEN + 1536 + 512
)
DENSE_BLOCK = ATTENTION + 3 * HIDDEN * 18432
EMBEDDING = 129280 * HIDDEN


def sparse_block(own_experts: int) -> int:
    return ATTENTION + 256 * HIDDEN + EXPERT + own_experts * EXPERT


@pytest.mark.parametrize(("expert", "expert_tensor"), [(8, 1), (16, 1), (8, 2)])
def test_parameters_of_each_stage_of_deepseek_v3(expert: int, expert_tensor: int) -> None:
    """61 blocks in 16 stages: 3, 14 times 4, and 2; the first three are dense, embedding and head are at the ends."""
    config = ParallelConfig(pipeline=16, expert=expert, expert_tensor=expert_tensor, recompute="none")
    plan = plan_step(job_of("deepseek-v3"), racks(256), 4096, Settings(parallel=config))
    sparse = sparse_block(256 // expert) - (256 // expert) * EXPERT * (expert_tensor - 1) // expert_tensor
    expected = [EMBEDDING + 3 * DENSE_BLOCK, *[4 * sparse] * 14, 2 * sparse + EMBEDDING + HIDDEN]
    assert [stage.model_state_bytes[0] for stage in plan.stages] == pytest.approx([2 * n for n in expected], rel=1e-6)


def test_flops_of_experts() -> None:
    """Qwen3 30B: 8 experts of 3 x 2,048 x 768 per token, 2 FLOPs each, and two gradients of each product."""
    by_hand = LENGTH * 8 * 3 * 2048 * 768 * 2

    def flops_of(**changes: Any) -> dict[str, int]:
        options = SequenceOptions(LENGTH, phase="training", blocks=(0,))._replace(**changes)
        network = find_network("qwen3-30b-a3b", options=options)
        workload = Workload(network, "bf16", 1, "training", "megatron")
        is_expert = np.array([is_grouped_product(layer) for layer in workload.layers])
        return {
            name: int(workload.work.column("flops", name)[..., is_expert].sum())
            for name in ("forward", "backward_data", "backward_weight")
        }

    assert flops_of() == dict.fromkeys(("forward", "backward_data", "backward_weight"), by_hand)
    # Fewer experts have as many rows from other devices; matrices in halves have the rows of two devices.
    assert flops_of(expert_parallel=8)["forward"] == by_hand
    assert flops_of(expert_tensor_parallel=2)["forward"] == by_hand
    assert flops_of(expert_load=1.25)["forward"] == by_hand * 5 / 4


@pytest.mark.parametrize(
    ("imbalance", "capacity", "load"),
    [(1.0, None, 1), (1.5, None, 1.5), (1.5, 1.25, 1.25), (1.0, 0.5, 0.5), (1.0, 2, 1)],
)
def test_rows_that_are_exchanged(imbalance: float, capacity: float | None, load: float) -> None:
    """A row of 7,168 numbers in bf16 for each of 8 experts of a token, there and back; beyond the capacity none."""
    config = ParallelConfig(expert=64, expert_imbalance=imbalance, expert_capacity=capacity)
    block = block_costs(job_of("deepseek-v3"), config).blocks_by_type
    sparse = max(block.values(), key=lambda cost: cost.routings)
    assert sparse.routings == 2
    assert sparse.routed_bytes == pytest.approx(2 * LENGTH * 8 * load * HIDDEN * 2)


def test_devices_that_divide_experts_gather_their_rows() -> None:
    """Two devices: each has the rows of both, gathers them and scatters the results."""
    costs = block_costs(job_of("qwen3-30b-a3b"), ParallelConfig(expert=4, expert_tensor=2))
    assert costs.block.expert_gathered_bytes == pytest.approx(2 * 2 * LENGTH * 8 * 2048 * 2)
    assert block_costs(job_of("qwen3-30b-a3b"), ParallelConfig(expert=4)).block.expert_gathered_bytes == 0


def test_exchange_of_devices_that_divide_experts_shares_the_links() -> None:
    """32 experts' devices two apart, in four nodes of 16: both of a pair send over the links of the node."""
    topology = parse_topology("16x @ 900 GB/s, 4 nodes @ 400 GB/s")
    time_s = expert_exchange_s(topology, 32, 1e9, 8, DISPATCHERS["alltoall"], expert_tensor=2)
    assert time_s == pytest.approx(16 * 1e9 * 3 / 4 / 400e9, rel=1e-3)


@pytest.mark.parametrize(
    ("precision", "kernels", "waits"), [("bf16", 1, False), ("mxfp8", 4, True), ("nvfp4", 4, True)]
)
def test_every_expert_launches_kernels_of_its_own(precision: str, kernels: int, waits: bool) -> None:
    """16 experts of a device, two products, forward and both gradients; half as many with twice the devices.

    Narrow products of a micro-batch of one sequence take less time than the host needs to launch them.
    """
    job = forecast_job_of("qwen3-30b-a3b", precision=precision)
    few, many = (
        block_costs(job, ParallelConfig(expert=devices, expert_kernels="separate")).block for devices in (16, 8)
    )
    constants = stack_constants()
    launched_s = 8 * 2 * kernels * (constants.expert_host_s if waits else constants.expert_launch_s)
    assert many.forward_s - few.forward_s == pytest.approx(launched_s, rel=0.2)  # and the bytes of 8 more matrices
    assert kernels == (TRAINING_RECIPES[precision].expert_kernels if precision in TRAINING_RECIPES else 1)


def test_frozen_experts_launch_no_kernels_for_gradients_of_weights() -> None:
    """The backward pass multiplies a frozen matrix once, for the data, and one that is trained twice.

    Half as many experts per device save as many kernels in the backward pass as in the forward pass, or twice as many.
    """
    job = forecast_job_of("qwen3-30b-a3b")
    adapters = TrainingOptions("adamw", mixed_precision=True, lora_rank=16)
    frozen = Job(job.workload.with_changes(training=adapters), job.machine, job.model)
    for trained, products in ((job, 2), (frozen, 1)):
        few, many = (
            block_costs(trained, ParallelConfig(expert=devices, expert_kernels="separate")).block for devices in (16, 8)
        )
        saved_s = many.forward_s - few.forward_s
        assert many.backward_s - few.backward_s == pytest.approx(products * saved_s, rel=0.2)


def test_without_a_choice_of_kernels_the_mean_is_taken() -> None:
    job = forecast_job_of("qwen3-30b-a3b")
    separate, fused, either = (
        block_costs(job, ParallelConfig(expert=8, expert_kernels=name)) for name in ("separate", "fused", "")
    )
    assert fused.block.forward_s < separate.block.forward_s
    mean_s = (separate.block.forward_s + fused.block.forward_s) / 2
    assert either.block.forward_s == pytest.approx(mean_s)
    assert either.block.parameter_bytes == pytest.approx(fused.block.parameter_bytes)
    assert either.relative_interval is not None and separate.relative_interval is not None
    assert either.relative_interval[1] > separate.relative_interval[1]


@pytest.mark.parametrize(
    ("name", "recipe", "device", "expected"),
    [
        ("qwen3-30b-a3b", "mxfp8", "gb200", ("separate", "fused")),
        ("qwen3-30b-a3b", "nvfp4", "gb200", ("separate",)),
        ("qwen3-30b-a3b", None, "gb200", ("separate",)),
        ("nemotron-3-nano-30b-a3b", "mxfp8", "gb200", ("separate",)),  # a squared ReLU has no gate
        ("qwen3-30b-a3b", "fp8", "h100-sxm", ("separate",)),
        ("llama-3-8b", "mxfp8", "gb200", ()),
    ],
)
def test_kernels_that_are_possible(name: str, recipe: str | None, device: str, expected: tuple[str, ...]) -> None:
    layers = find_network(name, options=SequenceOptions(64, phase="training")).layers
    assert available_expert_kernels(layers, recipe, find_device(device)) == expected
    if "fused" not in expected:
        with pytest.raises(BadValue, match="--experts kernels=fused"):
            check_expert_kernels("fused", layers, recipe, find_device(device))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"expert_imbalance": 0.5}, "--experts imbalance"),
        ({"expert_imbalance": float("nan")}, "--experts imbalance"),
        ({"expert_capacity": 0.0}, "--experts capacity"),
        ({"expert_overlap": 1.5}, "--experts overlap"),
        ({"expert_tensor": 0}, "--experts tensor"),
        ({"recompute": "selective", "recompute_modules": ("moe", "moe_act")}, "leave out moe_act"),
    ],
)
def test_options_that_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(BadValue, match=message):
        ParallelConfig(**changes)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (ParallelConfig(expert=48), "devices of a stage"),
        (ParallelConfig(expert=64, expert_tensor=2), "--experts tensor"),
        (ParallelConfig(expert=4, expert_tensor=16), None),
    ],
)
def test_experts_divide_the_devices_of_a_stage(config: ParallelConfig, message: str | None) -> None:
    job, settings = job_of("qwen3-30b-a3b"), Settings(parallel=config)
    if message is None:
        assert train_3d_parallel(job, racks(64), 512, settings).time_s > 0
    else:
        with pytest.raises(BadValue, match=message):
            train_3d_parallel(job, racks(64), 512, settings)


def test_a_given_share_of_the_exchange_is_hidden() -> None:
    """Without other exposed communication, one device per group: all of it, or none."""
    job = forecast_job_of("qwen3-30b-a3b")

    def step(overlap: float) -> Any:
        config = ParallelConfig(expert=8, expert_overlap=overlap, recompute="none")
        return train_3d_parallel(job, racks(8), 512, Settings(parallel=config))

    hidden, shown = step(1.0), step(0.0)
    assert shown.communication_s == pytest.approx(hidden.communication_s)
    row_bytes = LENGTH * 8 * 2048 * 2
    # 64 micro-batches of a device, 48 blocks, there and back, in both passes
    exchanged_s = 64 * 48 * 4 * expert_exchange_s(racks(8), 8, row_bytes, 8, DISPATCHERS["hybridep"])
    assert shown.exposed_s - hidden.exposed_s == pytest.approx(exchanged_s)


def test_whole_matrices_are_gathered_for_muon() -> None:
    """Liu et al. 2025: one more all-gather of the matrices in 16 bits, where the optimizer state is sharded."""
    config = ParallelConfig(recompute="none")
    adam, muon = (
        train_3d_parallel(job_of("llama-3-8b", "bf16", optimizer=name), racks(8), 8, Settings(parallel=config))
        for name in ("adam", "muon")
    )
    block = 4096 * (4096 + 2 * 1024 + 4096 + 3 * 14336) + 2 * 4096
    gathered_s = float(topology_all_reduce_s(subgroup_topology(racks(8), 1, 8), 32 * block * 2)) / 2
    assert muon.communication_s - adam.communication_s == pytest.approx(gathered_s, rel=1e-6)
    replicated = ParallelConfig(recompute="none", sharding="ddp")
    both = [
        train_3d_parallel(job_of("llama-3-8b", "bf16", optimizer=name), racks(8), 8, Settings(parallel=replicated))
        for name in ("adam", "muon")
    ]
    assert both[0].communication_s == pytest.approx(both[1].communication_s)


def test_recomputing_a_mixture_sends_its_tokens_again() -> None:
    job = job_of("qwen3-30b-a3b")

    def step(**changes: Any) -> Any:
        return train_3d_parallel(job, racks(8), 512, Settings(parallel=ParallelConfig(expert=8, **changes)))

    plain = step(recompute="none")
    again = step(recompute="selective", recompute_modules=("moe",))
    ratio = (again.communication_s - plain.communication_s) / (64 * 48 * 2)
    row_bytes = LENGTH * 8 * 2048 * 2
    assert ratio == pytest.approx(expert_exchange_s(racks(8), 8, row_bytes, 8, DISPATCHERS["hybridep"]))
    assert again.memory_bytes < plain.memory_bytes


def test_nccl_brings_rows_into_order_and_hides_nothing() -> None:
    """Five reads or writes of the rows there and back, beside an exchange of every row that products wait for."""
    job = forecast_job_of("qwen3-30b-a3b")
    constants = stack_constants()

    def step(**changes: Any) -> Any:
        config = ParallelConfig(expert=8, dispatch="alltoall", recompute="none", **changes)
        return train_3d_parallel(job, racks(8), 512, Settings(parallel=config))

    row_bytes = LENGTH * 8 * 2048 * 2
    passes = 64 * 48 * 2  # micro-batches of a device, blocks, forward and backward
    ordered_s = passes * 5 * row_bytes / (8e12 * constants.kernels.constants["share_other"])
    exchanged_s = passes * 2 * expert_exchange_s(racks(8), 8, row_bytes, 8, DISPATCHERS["alltoall"])
    plain, overlapped = step(), step(expert_overlap=1.0)
    assert plain.exposed_s - overlapped.exposed_s == pytest.approx(exchanged_s)
    merged = train_3d_parallel(
        job, racks(8), 512, Settings(parallel=ParallelConfig(expert=8, recompute="none", expert_overlap=1.0))
    )
    assert overlapped.exposed_s - merged.exposed_s == pytest.approx(ordered_s)


@pytest.mark.parametrize(("dispatch", "buffers"), [("hybridep", 2 * 8), ("deepep", 8), ("alltoall", 8)])
def test_buffers_of_the_exchange(dispatch: str, buffers: int) -> None:
    """HybridEP: two with room for the tokens of all 8 devices; others: the rows of a device, 8 for each token."""
    job = job_of("qwen3-30b-a3b", "bf16")

    def step(expert: int, dispatch: str) -> Any:
        config = ParallelConfig(expert=expert, dispatch=dispatch, recompute="none", zero_stage=0)
        return train_3d_parallel(job, racks(8), 512, Settings(parallel=config)).memory_bytes

    tokens_bytes = LENGTH * 2048 * 2
    other = {"hybridep": 8, "deepep": 16, "alltoall": 16}[dispatch]  # in buffers of HybridEP or of the others
    difference = step(8, dispatch) - step(8, "hybridep" if dispatch != "hybridep" else "alltoall")
    assert difference == pytest.approx((buffers - other) * tokens_bytes)


def test_an_activation_of_experts_is_one_kernel() -> None:
    """gpt-oss multiplies clamped halves: two reads and one write of 4 x 2,880 numbers per token, and its bias."""
    shape = BlockShape(1, 1, False, 64, 1, 1.0, "megatron", "cudnn", 1, False, True)
    (one, _) = _count_blocks(job_of("gpt-oss-120b", "bf16"), 1, shape, StackKernels(None, "separate"))
    assert one.stack is not None
    work = one.workload.work
    launches = work.column("kernels", "forward").reshape(-1) * one.stack.kernels_of[0]
    inside = [
        index for index, layer in enumerate(one.workload.layers) if ".mlp.experts" in layer.name and launches[index]
    ]
    names = [one.workload.layers[index].name.split(".experts.")[1] for index in inside]
    names = names[names.index("gate_up_proj") :]  # behind the sorting of tokens
    assert names == ["gate_up_proj", "mul#3", "down_proj", "down_proj.add", "sum"]
    moved = work.column("bytes_read", "forward") + work.column("bytes_written", "forward")
    assert moved.reshape(-1)[inside[-4]] == pytest.approx(3 * LENGTH * 4 * 2880 * 2)
    assert one.stack.kernels_of[:, inside[-2]] == pytest.approx([20 / 4.5, 24 / 2.5])


def test_saved_tensors_of_gpt_oss() -> None:
    """Of an activation of experts only its input is saved: 4 experts of 2 x 2,880 numbers per token."""
    tensors, options = TrainingOptions("adam", mixed_precision=True).split_precision("bf16")
    network = find_network("gpt-oss-120b", options=SequenceOptions(LENGTH, phase="training", blocks=(1,)))
    workload = Workload(network, tensors, 1, "training", "megatron", training=options)
    total = saved_activations(workload, None).total_bytes / LENGTH
    hidden, queries, keys = 2880, 64 * 64, 8 * 64
    experts = 4 * (hidden + 2 * hidden + hidden)  # inputs of both products, and of the activation
    block = 2 * (hidden + hidden) + queries + 2 * keys + 2 * queries + experts  # norms, their results, attention
    head = 2 * hidden  # the last norm and its result
    assert total == pytest.approx(2 * (block + head), rel=0.02)


def test_the_stack_has_one_kernel_for_the_loss() -> None:
    job = forecast_job_of("qwen3-30b-a3b")
    options = job.workload.options
    costs = {
        fused: block_costs(
            Job(
                job.workload.with_changes(training=msgspec.structs.replace(options, fused_loss=fused)),
                job.machine,
                job.model,
            ),
            ParallelConfig(expert=8, expert_kernels="fused"),
        ).outer
        for fused in (None, True, False)
    }
    assert costs[None].forward_s == costs[True].forward_s < costs[False].forward_s
    assert costs[True].logits_bytes < costs[False].logits_bytes <= 8 * LENGTH * 151936


@pytest.mark.parametrize("overlap", [True, False])
def test_interleaved_stages_send_while_they_compute(overlap: bool) -> None:
    """Four stages of two parts, eight micro-batches: what the first and the last of them send is not hidden."""
    config = ParallelConfig(pipeline=4, virtual_stages=2, recompute="none")
    job, topology, settings = job_of("llama-3-8b", "bf16"), racks(4), Settings(parallel=config, overlap=overlap)
    plan, step = plan_step(job, topology, 8, settings), train_3d_parallel(job, topology, 8, settings)
    transfer_s = stage_transfer_s(topology, plan.config, plan.layout, LENGTH * 4096 * 2)
    assert step.communication_s == pytest.approx(2 * 2 * 8 * transfer_s)
    assert step.exposed_s == pytest.approx((2 * 3 if overlap else 2 * 2 * 8) * transfer_s)


def test_offloaded_activations_leave_the_device() -> None:
    job = job_of("qwen3-30b-a3b", "bf16")

    def step(share: float) -> Any:
        config = ParallelConfig(expert=8, recompute="none", offloaded_share=share)
        return train_3d_parallel(job, racks(8), 512, Settings(parallel=config))

    block = block_costs(job, ParallelConfig(expert=8, recompute="none")).block
    assert step(0).memory_bytes - step(0.25).memory_bytes == pytest.approx(48 * block.activation_bytes / 4)


def test_efficiencies_of_divided_experts_above_one_are_explained() -> None:
    """Eight devices multiply 16 of 128 experts each, by the tokens of eight sequences."""
    table = pl.train("qwen3-30b-a3b", gpu="h100-sxm", workers=8, lora=16, precision="bf16", expert_parallel=8)
    said = [note for note in table.notes if note.startswith("efficiencies above 100%")]
    assert table[0].efficiency > 1 and len(said) == 1
    assert "reads all experts for its own tokens" in said[0]

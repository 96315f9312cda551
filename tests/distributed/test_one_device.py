"""A training step on one device has one answer, whether the number of devices is stated or not.

Tests: distributed/one_device.py, distributed/step_plan.py.
"""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import paleo_lite as pl
from paleo_lite.api.question import Question, resolve_question
from paleo_lite.distributed.blocks import block_costs
from paleo_lite.distributed.job import Job
from paleo_lite.distributed.one_device import predict_alone
from paleo_lite.distributed.parallel_config import STACKS, ParallelConfig
from paleo_lite.distributed.settings import Settings
from paleo_lite.errors import BadValue
from paleo_lite.timing.training_options import TrainingOptions
from strategies import costly

NETWORKS = ("gpt2", "llama-3.2-1b", "qwen3-30b-a3b", "mamba-2.8b", "gpt-oss-20b", "gemma-3-1b")
MORE = (
    {},
    {"lora": 8},
    {"lora": 8, "weights": "int4"},
    {"mixed_precision": True},
    {"mixed_precision": True, "offload": "cpu"},
    {"mixed_precision": True, "micro_batch": 2, "accumulation": 3},
    {"training_settings": "loss=fused"},
    {"training_settings": "loss=8"},
    {"precision": "fp8"},
    {"time_model": "roofline"},
    {"ppp": 0.5},
    {"optimizer": "muon"},
)


@pytest.mark.thorough
@costly
@given(
    st.sampled_from(NETWORKS),
    st.sampled_from(("h100-sxm", "a100-sxm-80gb", "rtx4090", "mi300x")),
    st.sampled_from((None, *STACKS)),
    st.sampled_from((None, "none", "full")),
    st.sampled_from(MORE),
)
def test_one_device_is_one_worker(network: str, gpu: str, execution, recompute, more) -> None:
    """Whether the number of devices is stated does not change what is computed, saved or drawn."""
    if "precision" in more and not gpu.startswith("h100"):
        more = {}
    asked = {"network": network, "gpu": gpu, "sequence_length": 512, "execution": execution, "recompute": recompute}
    alone, row = pl.train(**asked, **more), pl.train(**asked, **more, workers=1)[0]
    for name in ("time_s", "bound_s", "memory_bytes", "throughput_per_s", "tokens_per_s", "power_w"):
        assert getattr(row, name) == pytest.approx(getattr(alone, name), rel=1e-9), name
    assert row.fits == alone.fits
    assert (row.interval is None) == (alone.interval is None)
    if alone.interval is not None:
        assert row.interval == pytest.approx(alone.interval, rel=1e-9)


@pytest.mark.spread(2)
@pytest.mark.parametrize("execution", STACKS)
@pytest.mark.parametrize("network", ["llama-3-8b", "qwen3-30b-a3b"])
def test_a_whole_network_is_its_blocks(network: str, execution: str) -> None:
    """The bound of the layers of all blocks is that of a block times their number, as devices that divide them have."""
    question = Question(
        network, "h100-sxm", precision="bf16", phase="training", sequence_length=4096, time_model="roofline",
        training=TrainingOptions("adamw", mixed_precision=True),
    )  # fmt: skip
    job = Job(*resolve_question(question))
    config = ParallelConfig(execution=execution, recompute="full", sharding="ddp")
    prediction = predict_alone(job, 1, Settings(parallel=config)).prediction
    costs, blocks = block_costs(job, config), job.workload.network.blocks
    block, outer = costs.block, costs.outer
    of_passes = {
        ("forward",): blocks * block.forward_s + outer.forward_s,
        ("backward_data", "backward_weight"): blocks * block.backward_s + outer.backward_s,
        ("update",): blocks * block.update_s + outer.update_s,
        ("recompute",): blocks * (block.forward_s - (0.0 if execution == "megatron" else block.unneeded_s)),
    }
    for passes, seconds in of_passes.items():
        # A compiled chain of pointwise layers crosses from the embedding into the first block.
        assert prediction.terms.seconds_of(*passes).sum() == pytest.approx(seconds, rel=1e-3), passes


@pytest.mark.parametrize(
    ("config", "checkpointing", "expected"),
    [
        ({}, "none", True),
        ({"recompute": "full"}, "none", True),
        ({"recompute": "full", "recompute_every": 2}, "none", False),
        ({"recompute": "selective"}, "none", False),
        ({"recompute": "full", "offloaded_share": 0.5}, "none", False),
        ({"offloaded_share": 0.5}, "none", False),
        ({"execution": "megatron"}, "none", False),
        ({"recompute": "none"}, "sqrt", True),
    ],
)
def test_the_layers_save_all_or_a_plan_says_what_is_saved(config, checkpointing, expected) -> None:
    """Layers save their tensors; selected parts, every second block, copies to the host and tuned stacks save less."""
    options = TrainingOptions("adamw", mixed_precision=True, checkpointing=checkpointing)
    question = Question(
        "gpt2", "h100-sxm", precision="bf16", phase="training", sequence_length=512, training=options
    )  # fmt: skip
    job = Job(*resolve_question(question))
    parallel = ParallelConfig(**{"execution": "eager", "recompute": "none", **config})
    assert predict_alone(job, 2, Settings(parallel=parallel)).is_saved_by_layers == expected


@pytest.mark.parametrize("every", [2, 4])
def test_a_part_of_the_blocks_is_computed_again(every: int) -> None:
    """One block in two or four: that part of the time in which all are."""
    question = Question(
        "gpt2", "h100-sxm", precision="bf16", phase="training", sequence_length=512, training=TrainingOptions("adamw")
    )  # fmt: skip
    job = Job(*resolve_question(question))
    asked = [{"recompute": "none"}, {"recompute": "full"}, {"recompute": "full", "recompute_every": every}]
    settings = [Settings(parallel=ParallelConfig(execution="eager", **recomputed)) for recomputed in asked]  # type: ignore[arg-type]
    none_s, all_s, part_s = (predict_alone(job, 2, each).prediction.terms.layers_s.sum() for each in settings)
    assert all_s > none_s and part_s - none_s == pytest.approx((all_s - none_s) / every)


@pytest.mark.thorough
def test_a_tuned_stack_saves_what_fits() -> None:
    """Without an order the stack computes again as much as the memory needs, and no more where all of it fits."""
    asked = {"network": "llama-3-8b", "gpu": "h200-sxm", "execution": "megatron", "lora": 16, "sequence_length": 8192}
    roomy, full = (pl.train(**asked, batch_size=size) for size in (1, 8))
    assert "recompute" not in roomy.terms.passes and "recompute" in full.terms.passes
    assert roomy.fits and full.fits
    forced = pl.train(**asked, batch_size=8, recompute="none")
    assert not forced.fits and forced.time_s < full.time_s


def test_the_largest_batch_of_a_tuned_stack() -> None:
    """The batch that `fit` finds fits, and one more sample does not."""
    asked = {"network": "llama-3.2-1b", "gpu": "h100-sxm", "execution": "megatron", "sequence_length": 4096}
    found = pl.train(**asked, batch_size="fit")
    assert found.fits and found.batch_size == found.memory.largest_batch
    assert not pl.train(**asked, batch_size=found.batch_size + 1).fits


@pytest.mark.thorough
def test_memory_by_part_of_a_tuned_stack() -> None:
    prediction = pl.train("llama-3-8b", gpu="h100-sxm", execution="megatron", lora=16, sequence_length=4096)
    memory = prediction.memory.memory
    parts = [amount for _, amount in memory.rows()]
    assert sum(parts) == memory.total_bytes and min(parts) >= 0
    assert memory.frozen_parameters_bytes == pytest.approx(2 * 8.03e9, rel=0.01)  # bf16
    states = msgspec.structs.asdict(memory)["optimizer_bytes"]
    trained = prediction.workload.trainable_parameters
    assert states == pytest.approx(2 * 2 * trained, rel=0.01)  # two moments of AdamW in bf16


# Experts of transformers before 5.0 ----------------------------------------------------------------------------------


MIXTURE = {"network": "olmoe-1b-7b", "gpu": "h100-sxm", "sequence_length": 1024}
EXPERTS, ACTIVE, BLOCKS, PRODUCTS = 64, 8, 16, 2
"""OLMoE (Muennighoff et al. 2024): 64 experts of which a token takes 8, in 16 blocks; two grouped products each."""


def products_of_experts(prediction):
    """Return FLOPs and launches of the forward pass of the products of experts."""
    workload = prediction.workload
    is_product = np.array([layer.kind == "grouped_matmul" for layer in workload.layers])
    return [int(workload.work.column(name, "forward", 1)[0][is_product].sum()) for name in ("flops", "kernels")]


@pytest.mark.spread(1)
@pytest.mark.parametrize(
    ("kernels", "tokens", "launches"),
    [
        ("grouped", 1, 1),
        ("loop", 1, EXPERTS),
        ("dense", EXPERTS // ACTIVE, 1),
        ("dense-loop", EXPERTS // ACTIVE, EXPERTS),
    ],
)
def test_experts_of_transformers(kernels: str, tokens: int, launches: int) -> None:
    """A loop launches every product of every expert; dense experts compute all tokens."""
    usual, asked = (pl.train(**MIXTURE, **more) for more in ({}, {"experts": f"kernels={kernels}"}))
    flops, usual_launches = products_of_experts(usual)
    assert usual_launches == BLOCKS * PRODUCTS
    assert products_of_experts(asked) == [tokens * flops, launches * usual_launches]
    row = pl.train(**MIXTURE, experts=f"kernels={kernels}", workers=1)[0]
    assert (row.time_s, row.memory_bytes) == pytest.approx((asked.time_s, asked.memory_bytes))


@pytest.mark.thorough
def test_a_published_step_with_dense_experts() -> None:
    """axolotl, examples/llama-4/README.md: QLoRA of Scout on one H100, 4,096 tokens at 546 tokens/s with 68.5 GB."""
    answer = pl.train(
        "llama-4-scout", gpu="h100-sxm", weights="int4", lora=32, recompute="full", sequence_length=4096,
        trainable="adapters=q_proj,k_proj,v_proj,o_proj", training_settings="loss=cut", experts="kernels=dense-loop",
    )  # fmt: skip
    assert answer.tokens_per_s == pytest.approx(546, rel=0.45)
    assert answer.memory_bytes == pytest.approx(68.5e9, rel=0.1)


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        ({"execution": "megatron", "experts": "kernels=loop"}, "not of Megatron-LM, which has separate, fused"),
        ({"execution": "eager", "experts": "kernels=fused"}, "not of PyTorch, which has grouped, loop"),
        ({"network": "gpt2", "experts": "kernels=loop"}, "this network has none"),
    ],
)
def test_experts_of_another_stack(more, sentence) -> None:
    with pytest.raises(BadValue, match=sentence):
        pl.train(**{**MIXTURE, "workers": 1, **more})

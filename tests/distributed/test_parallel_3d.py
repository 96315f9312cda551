"""3D parallelism: memory and times of Megatron-LM's tables, and exact identities.

Tests: distributed/parallel_3d.py, distributed/parallel_layout.py, distributed/parallel_config.py,
distributed/blocks.py, distributed/stage_memory.py, distributed/stage_communication.py.
"""

from __future__ import annotations

import json

import msgspec
import numpy as np
import pytest

import paleo_lite as pl
from asked import predict_any, scaling
from paleo_lite.architectures import find_network
from paleo_lite.architectures.model_config import read_config
from paleo_lite.architectures.network import SequenceOptions
from paleo_lite.distributed.blocks import StageCost, block_costs
from paleo_lite.distributed.collectives import point_to_point_time_s, subgroup_topology, topology_all_reduce_s
from paleo_lite.distributed.device_cost import NO_COST
from paleo_lite.distributed.job import Job
from paleo_lite.distributed.parallel_3d import train_3d_parallel
from paleo_lite.distributed.parallel_config import ParallelConfig
from paleo_lite.distributed.parallel_layout import Layout
from paleo_lite.distributed.pipeline_layout import place_stages
from paleo_lite.distributed.platforms import parse_topology
from paleo_lite.distributed.settings import STRAGGLERS, Settings
from paleo_lite.distributed.stage_communication import _ring_step_s, gradient_communication_s, stage_transfer_s
from paleo_lite.distributed.stage_memory import (
    ReplicaGroup,
    micro_batches_in_flight,
    replica_groups,
    saved_activation_bytes,
)
from paleo_lite.errors import BadValue, UnknownName
from paleo_lite.machines import Machine, find_device
from paleo_lite.timing import RooflineModel
from paleo_lite.timing.memory import peak_memory
from paleo_lite.timing.offload import HOST_UPDATE_BYTES_PER_S, LINK_SHARE
from paleo_lite.timing.training_options import TrainingOptions
from paleo_lite.timing.workload import Workload

ADAM = TrainingOptions("adam", mixed_precision=True)
NODE = "8x a100-sxm-80gb @ nvlink3-x12"


def config_of(hidden, heads, blocks):
    return {
        "model_type": "gpt2", "vocab_size": 51200, "n_embd": hidden, "n_layer": blocks, "n_head": heads,
        "n_positions": 2048, "activation_function": "gelu_pytorch_tanh", "attn_implementation": "eager",
    }  # fmt: skip


# Korthikanti et al. 2022 (arXiv 2205.05198): models of table 3; GiB of activations per device of figure 1, with tensor
# parallelism alone, and with sequence parallelism and selective recomputation; seconds of table 5, full and selective.
MODELS = {
    "22B": ((6144, 64, 48), ParallelConfig(8, 1, 1, micro_batch_size=4), 8, 4, (59.25, 9.5625), (1.42, 1.10)),
    "175B": ((12288, 96, 96), ParallelConfig(8, 8, 3), 64, 64, (66.84375, 12.3515625), (18.13, 13.75)),
    "530B": ((20480, 128, 105), ParallelConfig(8, 35, 3), 280, 280, (114.0234375, 23.076171875), (49.05, 37.83)),
    "1T": ((25600, 160, 128), ParallelConfig(8, 64), 512, 512, (131.25, 26.5625), (94.42, 71.49)),
}


@pytest.mark.parametrize("name", MODELS)
def test_activations_agree_with_korthikanti(name):
    sizes, split, _, _, published, _ = MODELS[name]
    data = json.dumps(config_of(*sizes)).encode()
    in_flight = 1 + (split.pipeline - 1) / (split.pipeline * split.virtual_stages) if split.virtual_stages > 1 else 1
    for gib, (sequence, fused) in zip(published, ((False, False), (True, True))):
        saved = []
        for blocks in (2, 3):
            tokens = SequenceOptions(
                2048, tensor_parallel=split.tensor, sequence_parallel=sequence, blocks=blocks, fused_attention=fused
            )
            made = read_config(data, "gpt.json", None, tokens)
            workload = Workload(made, "fp16", split.micro_batch_size, "training", training=ADAM)
            saved.append(peak_memory(workload).activations_bytes)
        found = (saved[1] - saved[0]) * sizes[-1] * in_flight / 2**30
        assert found == pytest.approx(gib, rel=0.002)


def scaled(network, workers, batch_size, split, **asked):
    settings = Settings(parallel=split)
    question = {"precision": "fp16", "scaling": "strong", "strategy": "3d", "training": ADAM, **asked}
    return scaling(network, workers=workers, batch_size=batch_size, settings=settings, **question)[0]


@pytest.mark.slow
def test_step_times_agree_with_korthikanti(tmp_path):
    """Four sizes on 8 to 512 A100, each with full and with selective recomputation; no fit used them."""
    errors, inside = [], 0
    for name, (sizes, split, workers, batch_size, _, seconds) in MODELS.items():
        path = tmp_path / f"{name}.json"
        path.write_text(json.dumps(config_of(*sizes)))
        for measured_s, recompute in zip(seconds, ("full", "selective")):
            asked = {"recompute": recompute, "sequence_parallel": recompute == "selective", "zero_stage": 0}
            made = ParallelConfig(
                split.tensor, split.pipeline, split.virtual_stages, micro_batch_size=split.micro_batch_size, **asked
            )
            row = scaled(str(path), workers, batch_size, made, platform="dgx-a100")
            errors.append(row.time_s / measured_s - 1)
            inside += row.interval[0] <= measured_s <= row.interval[1]
    assert inside >= 7  # of eight at 90%
    assert np.abs(errors).max() < 0.27
    assert np.abs(errors).mean() < 0.1


@pytest.mark.spread(2)
@pytest.mark.parametrize("network", ["gpt2", "gemma-3-1b", "gpt-oss-20b", "qwen3-30b-a3b", "mamba-2.8b"])
def test_block_costs_add_up_to_the_network(network):
    """By the roofline, without host overhead: the step of one device is the prediction for the whole network.

    Blocks differ in windows (Gemma 3, gpt-oss); mixtures of experts and state-space models have blocks of their own.
    """
    asked = {"gpu": "a100-sxm-80gb", "time_model": "roofline", "sequence_length": 1024}
    row = scaled(network, 1, 2, ParallelConfig(micro_batch_size=2), **asked)
    whole = predict_any(network, precision="fp16", batch_size=2, phase="training", training=ADAM,
                       execution="megatron", **asked)  # fmt: skip
    # Of two kinds of attention mask, which are made once outside blocks, one is left out.
    assert row.time_s == pytest.approx(whole.time_s, rel=1e-6)
    more = scaled(network, 1, 8, ParallelConfig(micro_batch_size=2), **asked)
    assert more.time_s - row.time_s == pytest.approx(3 * (whole.time_s - whole.passes_s["update"]), rel=1e-6)


@pytest.mark.parametrize("tensor", [1, 2, 8])
def test_tensor_parallelism_of_a_mixture_implies_sequence_parallelism(tensor):
    asked = {"platform": "dgx-a100", "sequence_length": 1024}
    splits = [ParallelConfig(tensor, sequence_parallel=given) for given in (False, tensor > 1)]
    implied, explicit = (scaled("mixtral-8x7b", 8, 8, split, **asked) for split in splits)
    assert implied.time_s == explicit.time_s
    assert any("implies sequence parallelism" in note for note in implied.notes) == (tensor > 1)
    assert not any("implies sequence parallelism" in note for note in explicit.notes)


def test_pipeline_bubble_agrees_with_the_formula():
    """Narayanan et al. 2021, section 2.2: the bubble takes the time of (p - 1) / v micro-batches."""
    asked = {"topology": NODE, "time_model": "roofline"}
    plain = scaled("gpt2", 4, 8, ParallelConfig(1, 4), **asked)
    interleaved = scaled("gpt2", 4, 8, ParallelConfig(1, 4, 3), **asked)
    bubble = "pipeline bubble"
    assert plain.overheads_s[bubble] == pytest.approx(plain.compute_s * 3 / 11)
    assert interleaved.overheads_s[bubble] == pytest.approx(plain.overheads_s[bubble] / 3)


def test_stragglers_lengthen_no_other_loss():
    """Computing 1.25 times as long is one loss; the bubble and recomputation are those without stragglers."""
    split = ParallelConfig(1, 4, recompute="full")
    asked = {"precision": "fp16", "scaling": "strong", "strategy": "3d", "training": ADAM, "topology": NODE}
    plain, slowed = (
        scaling(
            "gpt2", Settings(parallel=split, slowdown=share), workers=4, batch_size=8, time_model="roofline", **asked
        )[0]
        for share in (0.0, 0.25)
    )
    assert slowed.compute_s == pytest.approx(1.25 * plain.compute_s)
    assert slowed.overheads_s[STRAGGLERS] == pytest.approx(0.25 * plain.compute_s)
    others = {loss: seconds for loss, seconds in slowed.overheads_s.items() if seconds and loss != STRAGGLERS}
    assert others.keys() == {"pipeline bubble", "activation recomputation"}
    assert plain.overheads_s["pipeline bubble"] == pytest.approx(plain.compute_s * 3 / 11)  # of what is recomputed, too
    assert others == pytest.approx({loss: plain.overheads_s[loss] for loss in others})


def test_tensor_parallelism_costs_two_all_reduces_per_pass_and_block():
    """Shoeybi et al. 2019, figure 4; Korthikanti et al. 2022, section 4.2.2: sequence parallelism sends as many."""
    network = find_network("gpt2")
    for sequence in (False, True):
        one, two = (
            network.rebuild(SequenceOptions(512, tensor_parallel=4, sequence_parallel=sequence, blocks=blocks))
            for blocks in (1, 2)
        )
        kinds = [
            layer.attributes["function"] for layer in two.layers[len(one.layers) - 8 :] if layer.kind == "exchange"
        ]
        assert {"copy", "sum"} >= set(kinds) or {"gather", "scatter"} >= set(kinds)
        number = [sum(layer.kind == "exchange" for layer in made.layers) for made in (one, two)]
        assert number[1] - number[0] == 4


def test_full_recomputation_costs_a_forward_pass_and_saves_memory(tmp_path):
    path, asked = tmp_path / "gpt.json", {"topology": NODE, "time_model": "roofline"}
    path.write_text(json.dumps(config_of(2048, 16, 24)))
    none, full = (
        scaled(str(path), 8, 32, ParallelConfig(micro_batch_size=4, recompute=mode), **asked)
        for mode in ("none", "full")
    )
    assert 1.25 < full.compute_s / none.compute_s < 1.4
    assert full.hfu == pytest.approx(full.mfu * (1 + full.recomputed_fraction))
    assert 0.25 < full.recomputed_fraction < 0.4  # a forward pass, a third of forward and backward
    assert none.recomputed_fraction == 0
    assert full.memory_bytes < none.memory_bytes / 2


def test_zero_shards_the_model_state():
    """Rajbhandari et al. 2020, figure 1: 16 bytes per parameter in mixed precision, an eighth of them with stage 3.

    The gathered 16-bit parameters and gradients of two blocks, 12 h^2 + 13 h parameters each, and of the layers outside
    blocks come on top.
    """
    asked = {"topology": NODE, "time_model": "roofline"}
    none, all_ = (scaled("gpt3-1.3b", 8, 8, ParallelConfig(zero_stage=stage), **asked) for stage in (0, 3))
    parameters = find_network("gpt3-1.3b").parameters
    block = 12 * 2048**2 + 13 * 2048
    gathered_bytes = (2 + 2) * (2 * block + parameters - 24 * block)
    saved_bytes = 16 * parameters * 7 / 8 - gathered_bytes
    assert none.memory_bytes - all_.memory_bytes == pytest.approx(saved_bytes, rel=1e-6)


@pytest.mark.parametrize(("zero_stage", "share"), [(0, 1), (1, 1 / 8)])
def test_an_update_takes_the_time_of_its_bytes(zero_stage: int, share: float) -> None:
    """Adam reads a 16-bit gradient, a master weight and two moments, and writes these and a 16-bit weight: 28 bytes.

    An A100 moves 2,039 GB/s (data sheet).
    """
    asked = {"precision": "bf16", "topology": NODE, "time_model": "roofline"}
    row = scaled("gpt3-1.3b", 8, 8, ParallelConfig(zero_stage=zero_stage), **asked)
    seconds = 28 * find_network("gpt3-1.3b").parameters * share / 2.039e12
    assert row.update_s == pytest.approx(seconds, rel=1e-3)


@pytest.mark.thorough
def test_advice_compares_every_configuration():
    table = scaling("gpt3-1.3b", topology=f"{NODE}, 2 nodes @ 8x infiniband-hdr", workers=16, batch_size=64,
                     scaling="strong", precision="fp16", training=ADAM, advise="time")  # fmt: skip
    assert 1 < len(table.rows) <= 6
    assert [row.time_s for row in table.rows] == sorted(row.time_s for row in table.rows)
    assert all(row.fits and row.interval for row in table.rows)
    assert "configurations that fit" in table.why


def test_a_micro_batch_may_exceed_the_batch_of_a_single_worker():
    """A batch of 1 per worker is 8 per replica: micro-batches of 4 are possible, except on the single worker."""
    row = scaled("gpt3-1.3b", 8, 1, ParallelConfig(tensor=8, micro_batch_size=4), topology=NODE, scaling="weak")
    assert (row.batch_size, row.workers) == (8, 8)
    assert "2 micro-batches of 4" in row.notes[0]


@pytest.mark.parametrize(
    ("network", "workers", "batch_size", "split", "message"),
    [
        (
            "gpt2",
            8,
            8,
            {"tensor": 3},
            r"`--tensor 3` times `--pipeline 1` must divide the number of workers, such as 6 \(got 8\)",
        ),
        ("gpt2", 8, 8, {"tensor": 8}, "`--tensor 8` does not divide the 12 attention heads of gpt2"),
        ("gpt2", 8, 8, {"pipeline": 4, "layout": "Et*4|tt|t|tL"}, "`--schedule layout` has 8 blocks, but gpt2 has 12"),
        (
            "gpt2",
            8,
            8,
            {"pipeline": 4, "virtual_stages": 4},
            "4 stages with 4 virtual stages each are too many for the 12 blocks",
        ),
        (
            "gpt2",
            8,
            10,
            {"pipeline": 2},
            r"by 4, 4 replicas times `--micro-batch 1`: give `--global-batch-size 8` or 12",
        ),
        (
            "gpt2",
            8,
            12,
            {},
            r"by 8, 8 replicas times `--micro-batch 1`: give `--global-batch-size 8` or 16",
        ),
        ("resnet50", 8, 8, {"tensor": 2}, "need a language model from a config: resnet50 is"),
        (
            "bert-base",
            8,
            8,
            {"tensor": 2},
            "--tensor is for language models that write text, such as llama; bert is not one",
        ),
    ],
)
def test_impossible_configurations(network, workers, batch_size, split, message):
    with pytest.raises(BadValue, match=message):
        scaled(network, workers, batch_size, ParallelConfig(**split), topology=NODE)


@pytest.mark.parametrize(
    ("split", "message"),
    [
        ({"tensor": 0}, r"`--tensor` must be an integer >= 1 \(got 0\)"),
        ({"recompute": "some"}, r"`--recompute` must be one of none, selective, full, offload \(got 'some'\)"),
        ({"zero_stage": 4}, r"the ZeRO stage must be 0, 1, 2 or 3 \(got 4\)"),
        ({"offloaded_share": 1.0}, r"`--offload activations:FRACTION` must be >= 0 and < 1 \(got 1\)"),
        ({"virtual_stages": 2}, "`--schedule interleaved` needs pipeline stages: give `--pipeline`, too"),
    ],
)
def test_invalid_configurations(split, message):
    with pytest.raises(BadValue, match=message):
        ParallelConfig(**split)


def llama_of(length, heads=32, kv_heads=8):
    return {
        "model_type": "llama", "vocab_size": 32000, "hidden_size": 4096, "num_hidden_layers": 4, "head_dim": 128,
        "num_attention_heads": heads, "num_key_value_heads": kv_heads, "intermediate_size": 14336,
        "max_position_embeddings": length,
    }  # fmt: skip


def test_context_parallelism_divides_the_work_and_sends_keys_and_values(tmp_path):
    """Liu et al. 2023, section 3: each of n devices forwards keys and values n - 1 times, twice as many bytes backward.

    With four devices each has a quarter of the FLOPs and of the saved activations.
    """
    network = read_config(
        json.dumps(llama_of(32768)).encode(), "llama.json", None, SequenceOptions(32768, phase="training")
    )
    whole, part = (
        Workload(
            network.rebuild(SequenceOptions(32768, phase="training", context_parallel=context_parallel)),
            "bf16",
            1,
            "training",
            training=ADAM,
        )
        for context_parallel in (1, 4)
    )
    flops = [made.work.column("flops", "training", 1)[:3].sum() for made in (whole, part)]
    assert flops[1] == pytest.approx(flops[0] / 4, rel=1e-3)
    assert peak_memory(part).activations_bytes == pytest.approx(peak_memory(whole).activations_bytes / 4, rel=0.01)
    key_values = 2 * 8 * 128 * (32768 // 4) * 2
    slow = parse_topology("1x a100-sxm-80gb, 4 nodes @ 1 GB/s")
    job = Job(Workload(network, "bf16", 1, "training", training=ADAM), Machine(find_device("a100-sxm-80gb")),
              RooflineModel())  # fmt: skip
    step = train_3d_parallel(job, slow, 4, Settings(parallel=ParallelConfig(context=4, zero_stage=0), overlap=False))
    gradients = topology_all_reduce_s(slow, network.parameters * 2)
    sent = 4 * network.blocks * 3 * 3 * key_values / slow.between.bandwidth_bytes_per_s  # samples, blocks, hops, 1 + 2
    assert step.communication_s == pytest.approx(gradients + sent, rel=1e-6)
    assert step.exposed_s < step.communication_s  # attention hides a part


def test_tokens_are_sent_to_their_experts_and_back():
    """Lepikhin et al. 2021 (GShard), section 3.1: two all-to-alls of k rows per token forward, and two backward."""
    network = find_network("mixtral-8x7b", options=SequenceOptions(4096, phase="training"))
    assert sum(layer.parameters for layer in network.layers if layer.kind == "grouped_matmul") == pytest.approx(
        32 * 8 * 3 * 4096 * 14336
    )
    slow = parse_topology("1x h100-sxm, 8 nodes @ 1 GB/s")
    config = ParallelConfig(zero_stage=0, recompute="none", dispatch="alltoall")
    asked = Settings(parallel=config, overlap=False)
    job = Job(Workload(network, "bf16", 1, "training", training=ADAM), Machine(find_device("h100-sxm")),
              RooflineModel())  # fmt: skip
    shared = train_3d_parallel(
        job, slow, 8, msgspec.structs.replace(asked, parallel=msgspec.structs.replace(config, expert=8))
    )
    of_experts = 32 * 8 * 3 * 4096 * 14336
    rows = 4096 * 2 * 4096 * 2
    routed = 4 * 32 * rows * 7 / 8 / slow.between.bandwidth_bytes_per_s
    gradients = topology_all_reduce_s(slow, (network.parameters - of_experts) * 2)
    assert shared.communication_s == pytest.approx(gradients + routed, rel=1e-3)
    alone = train_3d_parallel(job, slow, 8, asked)
    saved = 16 * of_experts * 7 / 8  # 16 bytes per parameter with Adam, for seven of eight experts
    assert alone.memory_bytes - shared.memory_bytes == pytest.approx(saved, rel=1e-3)


def test_8_bit_matrix_products_are_faster_and_all_else_is_equal():
    """By the roofline on H100, the matrix products of blocks run at twice the rate (NVIDIA's data sheet)."""
    asked = {"topology": "8x h100-sxm @ nvlink4-x18", "time_model": "roofline", "sequence_length": 2048}
    bf16, fp8 = (scaled("gpt3-1.3b", 8, 8, ParallelConfig(micro_batch_size=1), **{**asked, "precision": precision})
                 for precision in ("bf16", "fp8"))  # fmt: skip
    # Inputs of products are saved in 8 bits: of queries, keys and values, of their output, and of both linear layers.
    assert bf16.memory_bytes - fp8.memory_bytes == 24 * 2048 * (1 + 1 + 1 + 4) * 2048
    assert fp8.exposed_s == pytest.approx(bf16.exposed_s, rel=0.3)
    products = 24 * 12 * 2048**2 * 2048 * 6 / 989.4e12
    # Kernels quantize these inputs, of which queries, keys and values share one, and the gradients of all results: 6
    # bytes per number at 3.35 TB/s.
    quantization = 24 * 2048 * (1 + 1 + 1 + 4 + 3 + 1 + 4 + 1) * 2048 * 6 / 3.35e12
    assert bf16.compute_s - fp8.compute_s == pytest.approx(products / 2 - quantization, rel=0.02)
    assert fp8.peak_per_s == pytest.approx(2 * bf16.peak_per_s, rel=1e-3)


@pytest.mark.parametrize(("name", "pipeline", "layout"), [("deepseek-v3", 16, ""), ("gpt2", 3, "Et*5|t*7|L")])
def test_parameters_of_stages_add_up_to_the_network(name: str, pipeline: int, layout: str) -> None:
    """DeepSeek-V3: three dense blocks are first, and the loss is not on the stage of the embedding."""
    network = find_network(name, options=SequenceOptions(1024, phase="training"))
    job = Job(Workload(network, "bf16", 1, "training", training=ADAM), Machine(find_device("h100-sxm")),
              RooflineModel())  # fmt: skip
    config = ParallelConfig(pipeline=pipeline, layout=layout)
    costs = block_costs(job, config)
    devices = place_stages(network.blocks, pipeline, config.virtual_stages, layout, name)
    stages = [costs.of_stage(network, device) for device in devices]
    total = sum(stage.model_state_bytes[0] for stage in stages) / 2  # of 16-bit numbers
    tied = 50257 * 768 + 1024 * 768 if name == "gpt2" else 0  # the tables of GPT-2 are on the last stage, too
    assert total == pytest.approx(network.parameters + tied, rel=1e-6)
    if name == "deepseek-v3":
        # A dense block: latent attention of 187,107,328 parameters, norms, and 3 x 7,168 x 18,432 in the feed-forward
        # layer (config.json of DeepSeek-V3; its technical report, section 4.2); the table is 129,280 x 7,168.
        dense = 187_107_328 + 2 * 7168 + 3 * 7168 * 18432
        assert stages[0].model_state_bytes[0] / 2 == pytest.approx(3 * dense + 129280 * 7168, rel=1e-4)


def test_embedding_and_head_may_count_as_blocks():
    """Divide Llama 3's 126 blocks into 16 stages: the first and last have one fewer (Dubey et al. 2024)."""
    network = find_network("gpt2")  # twelve blocks
    job = Job(Workload(network, "fp16", 1, "training", training=ADAM), Machine(find_device("a100-sxm-80gb")),
              RooflineModel())  # fmt: skip
    topology = parse_topology("7x a100-sxm-80gb @ nvlink3-x12")
    step = train_3d_parallel(job, topology, 7, Settings(parallel=ParallelConfig(pipeline=7)))
    assert step.memory_bytes is not None and step.overheads_s
    with pytest.raises(BadValue, match="15 stages are too many for the 12 blocks of gpt2"):
        many = parse_topology("15x a100-sxm-80gb @ nvlink3-x12")
        train_3d_parallel(job, many, 15, Settings(parallel=ParallelConfig(pipeline=15)))


@pytest.mark.spread(1)
@pytest.mark.parametrize(
    ("network", "split", "message"),
    [
        ("mixtral-8x7b", {"expert": 3}, r"`--expert-parallel` must divide the 8 devices of a stage \(got 3\)"),
        ("llama-3-8b", {"expert": 2}, "`--expert-parallel` needs a mixture of experts; llama-3-8b is not one"),
        (
            "llama-3-8b",
            {"context": 3},
            r"`--tensor 1` times `--pipeline 1` times `--context-parallel 3` must divide "
            r"the number of workers, such as 6 \(got 8\)",
        ),
    ],
)
def test_impossible_context_and_expert_parallelism(network, split, message):
    with pytest.raises(BadValue, match=message):
        scaled(network, 8, 8, ParallelConfig(**split), topology="8x h100-sxm @ nvlink4-x18", sequence_length=4096)


@pytest.mark.thorough
@pytest.mark.slow
def test_networks_too_large_for_a_worker_have_no_speed_up_over_one():
    """The headline has no speed-up, and further rows are relative to the first that fits."""
    asked = {
        "scaling": "strong", "strategy": "3d", "training": ADAM, "platform": "dgx-h100", "batch_size": 128,
        "precision": "bf16", "sequence_length": 2048, "settings": Settings(parallel=ParallelConfig(8, 4)),
    }  # fmt: skip
    one, two = (scaling("llama-3-70b", workers=workers, **asked) for workers in (64, [64, 128]))
    assert one[0].fits and one[0].baseline_workers == 64
    assert "speed-up" not in one.document().title and "speedup" not in [
        c.key for c in one.document().content[0].columns
    ]
    assert f"speed-up {two[1].speedup / 64:.4g} over 64 workers" in two.document().title
    assert "small batches" not in one[0].limited_by


def test_training_gpt3_takes_a_month_on_1024_a100():
    """Narayanan et al. 2021, section 5.1: 300 billion tokens of 175 B parameters take 34 days, batch 1,536."""
    split = ParallelConfig(8, 16, 2, recompute="full")
    table = scaling(
        "gpt3-175b", platform="dgx-a100", workers=1024, precision="bf16", scaling="strong", batch_size=1536,
        training=TrainingOptions("adam", mixed_precision=True), settings=Settings(parallel=split), images="300B tokens",
    )  # fmt: skip
    row = table[0]
    assert table.images == pytest.approx(300e9 / 2048)
    assert row.hours / 24 == pytest.approx(34, rel=0.12)
    assert 0.6 * 0.4 < row.kwh / (row.hours * 1024) < 0.4  # 400 W each, by the data sheet


TORCHTITAN = [
    # GiB per device of Llama 3.1 8B in bf16, batches of 2 sequences of 8,192 or one of 32,768 tokens, AdamW with fp32
    # states, gradients reduced in fp32 (benchmarks/llama3_h100_202412_torchtitan.md of pytorch/torchtitan 31a17bf).
    (8, 8192, 2, "selective", 82.4, "eager"),
    (8, 8192, 2, "selective", 77.0, "compiled"),
    (128, 8192, 2, "selective", 67.0, "eager"),
    (128, 8192, 2, "selective", 62.0, "compiled"),
    (8, 32768, 1, "full", 83.9, "compiled"),
]


@pytest.mark.spread(2)
@pytest.mark.parametrize(("workers", "length", "batch_size", "recompute", "gib", "execution"), TORCHTITAN)
def test_memory_of_fsdp_matches_torchtitan(workers, length, batch_size, recompute, gib, execution) -> None:
    config = ParallelConfig(
        sharding="full-shard", recompute=recompute, micro_batch_size=batch_size, execution=execution
    )
    topology = "8x h100-sxm @ nvlink4-x18" + (f", {workers // 8} nodes @ 3200 Gbit/s" if workers > 8 else "")
    (row,) = scaling(
        "llama-3.1-8b", topology=topology, workers=workers, batch_size=batch_size, precision="bf16",
        sequence_length=length, time_model="roofline", training=TrainingOptions("adamw", mixed_precision=True),
        settings=Settings(parallel=config, gradient_precision="fp32"),
    ).rows  # fmt: skip
    assert row.memory_bytes / 2**30 == pytest.approx(gib, rel=0.1)


def shared_out(sharding: str, micro_batches: int = 1, nodes: int = 1, **settings):
    """A step with a way of sharding, on a machine without overlap."""
    config = ParallelConfig(sharding=sharding)
    topology = NODE if nodes == 1 else f"{NODE}, {nodes} nodes @ 1x infiniband-hdr"
    (row,) = scaling(
        "gpt3-1.3b", topology=topology, workers=8 * nodes, batch_size=micro_batches, precision="bf16",
        time_model="roofline", training=ADAM, settings=Settings(parallel=config, **settings),
    ).rows  # fmt: skip
    return row


def test_communication_of_each_sharding() -> None:
    """In units of half an all-reduce of the 16-bit parameters: a gather, or a reduction of the gradients."""
    unit_s = shared_out("ddp").communication_s / 2
    expected = {"ddp": 2, "zero-1": 2, "zero-2": 2, "shard-grad-op": 2, "full-shard": 3, "zero-3": 3}
    for name, gathers_and_reductions in expected.items():
        assert shared_out(name).communication_s == pytest.approx(gathers_and_reductions * unit_s, rel=0.01), name
    # Of four micro-batches DDP and ZeRO 1 exchange the sum; the others gather and reduce for each of them.
    several = {"ddp": 2, "zero-1": 2, "zero-2": 4 + 1, "shard-grad-op": 4 * 2, "full-shard": 4 * 3}
    for name, gathers_and_reductions in several.items():
        row = shared_out(name, micro_batches=4)
        assert row.communication_s == pytest.approx(gathers_and_reductions * unit_s, rel=0.01), name


TWO_NODES = parse_topology("8x a100-sxm-80gb @ nvlink3-x12, 2 nodes @ 1x infiniband-hdr")


@pytest.mark.parametrize("exposed_sharding", [0.0, 0.25, 1.0])
@pytest.mark.parametrize("nodes", [1, 2])
def test_a_share_of_the_sharding_inside_a_node_is_not_hidden(nodes: int, exposed_sharding: float) -> None:
    """Full sharding gathers for both passes and reduces, for each micro-batch; a node alone has eight devices."""
    parameter_bytes, gradient_bytes, micro_batches = 4e9, 8e9, 3
    topology = TWO_NODES if nodes == 2 else parse_topology(NODE)
    communication_s, hidden_s = gradient_communication_s(
        topology, [ReplicaGroup(1.0, 8 * nodes, 1)], micro_batches, parameter_bytes, gradient_bytes, 1e9,
        Settings(overlap_efficiency=0.5, parallel=ParallelConfig(sharding="full-shard")), exposed_sharding,
    )  # fmt: skip
    inside = subgroup_topology(topology, 1, 8)
    all_s, inside_s = (
        micro_batches
        * (2 * topology_all_reduce_s(part, parameter_bytes) / 2 + topology_all_reduce_s(part, gradient_bytes) / 2)
        for part in (topology, inside)
    )
    assert communication_s == pytest.approx(all_s)
    assert hidden_s == pytest.approx(0.5 * (all_s - exposed_sharding * inside_s))
    assert (all_s > 1.5 * inside_s) == (nodes == 2)


def test_experts_are_exchanged_where_dense_layers_have_one_replica() -> None:
    """Tensor parallelism over eight devices with two groups of experts: only experts have replicas, four of them."""
    groups = [ReplicaGroup(0.25, 1, 8), ReplicaGroup(0.75, 4, 2)]
    settings = Settings(parallel=ParallelConfig(sharding="ddp"))
    communication_s, hidden_s = gradient_communication_s(parse_topology(NODE), groups, 1, 4e9, 4e9, 0.0, settings, 0.0)
    four_devices = subgroup_topology(parse_topology(NODE), 2, 4)
    assert communication_s == pytest.approx(topology_all_reduce_s(four_devices, 0.75 * 4e9))
    assert hidden_s == 0


def test_no_more_communication_is_hidden_than_there_is_computation() -> None:
    asked = ([ReplicaGroup(1.0, 16, 1)], 4, 4e9, 4e9)
    all_reduce_s = topology_all_reduce_s(TWO_NODES, 4e9)
    full = Settings(overlap_efficiency=1.0, parallel=ParallelConfig(sharding="full-shard"))
    sharded = gradient_communication_s(TWO_NODES, *asked, 0.01, full, 0.0)
    assert sharded == (pytest.approx(4 * 1.5 * all_reduce_s), 0.01)
    # Gradients that are exchanged once are hidden by the backward pass of the last micro-batch: 2/3 of 1/4.
    replicated = Settings(overlap_efficiency=1.0, parallel=ParallelConfig(sharding="ddp"))
    plain = gradient_communication_s(TWO_NODES, *asked, 0.01, replicated, 0.0)
    assert plain == (pytest.approx(all_reduce_s), pytest.approx(0.01 * 2 / 3 / 4))
    apart = Settings(overlap=False, parallel=ParallelConfig(sharding="ddp"))
    without = gradient_communication_s(TWO_NODES, *asked, 1e9, apart, 0.0)
    assert without == (pytest.approx(all_reduce_s), 0.0)


def test_gradients_in_fp32_take_twice_as_long() -> None:
    full, wide = shared_out("full-shard"), shared_out("full-shard", gradient_precision="fp32")
    assert wide.communication_s / full.communication_s == pytest.approx(4 / 3, rel=0.02)


def test_hybrid_sharding_stays_inside_the_node() -> None:
    """It gathers over NVLink and exchanges an eighth of the gradients between the nodes."""
    hybrid, full = shared_out("hybrid-shard", nodes=4), shared_out("full-shard", nodes=4)
    assert hybrid.communication_s < 0.75 * full.communication_s
    assert hybrid.memory_bytes > full.memory_bytes


@pytest.mark.parametrize(
    ("options", "micro_batches", "has_loss", "expected_bytes"),
    [  # by hand: blocks of 100 bytes and hidden states of 10; outside them 7 saved, 50 of logits, 5 of workspace
        ({}, 8, True, 12 * 100 + 7 + 50 + 5),
        ({}, 8, False, 12 * 100),
        ({"recompute": "full"}, 8, True, 12 * 10 + 7 + 100 + 5),
        ({"recompute": "full", "recompute_every": 2}, 8, True, 12 * (10 + 100) / 2 + 7 + 100 + 5),
        ({"recompute": "selective", "execution": "eager"}, 8, True, 12 * (10 + 30) + 7 + 100 + 5),
        ({"recompute": "selective", "execution": "megatron"}, 8, True, 12 * 100 + 7 + 50 + 5),
        # Of the inputs on the host, those of two blocks are on the device.
        ({"recompute": "offload"}, 8, True, 2 * 10 + 7 + 100 + 5),
        ({"pipeline": 4}, 8, False, 12 * 100),  # three blocks of four micro-batches
        ({"pipeline": 4}, 2, False, 6 * 100),  # of two
        # Korthikanti et al. 2022, section 4.2.3: interleaving keeps 1 + (p - 1) / (p m) times as much.
        ({"pipeline": 4, "virtual_stages": 3}, 8, False, 12 * 100 * (1 + 3 / 12)),
    ],
)
def test_saved_activations_by_hand(options: dict, micro_batches: int, has_loss: bool, expected_bytes: float) -> None:
    block = NO_COST._replace(activation_bytes=100.0, saved_bytes=30.0)
    head = NO_COST._replace(activation_bytes=7.0, logits_bytes=50.0, workspace_bytes=5.0)
    config = ParallelConfig(**options)
    stage = StageCost(12 // config.pipeline, block, head if has_loss else NO_COST)
    in_flight = micro_batches_in_flight(config, micro_batches, 0)
    assert saved_activation_bytes(stage, config, in_flight, 10.0) == pytest.approx(expected_bytes)


def test_the_last_stages_hold_fewer_micro_batches() -> None:
    """1F1B: as many as there are stages behind and itself (Narayanan et al. 2021, figure 4)."""
    config = ParallelConfig(pipeline=4)
    assert [micro_batches_in_flight(config, 8, position) for position in range(4)] == [4, 3, 2, 1]
    # Interleaved, two parts each: Megatron-LM's warm-up of 2 (p - 1 - i) + (v - 1) p parts, and one more.
    config = ParallelConfig(pipeline=4, virtual_stages=2)
    assert [2 * micro_batches_in_flight(config, 8, position) for position in range(4)] == [11, 9, 7, 5]


def test_every_second_block_computes_half_again() -> None:
    """Half of the recomputation of all blocks, and the activations of half of them."""
    rows = {}
    for name, config in {
        "none": ParallelConfig(),
        "every": ParallelConfig(recompute="full"),
        "second": ParallelConfig(recompute="full", recompute_every=2),
        "offload": ParallelConfig(recompute="offload"),
    }.items():
        (rows[name],) = scaling(
            "gpt3-1.3b", topology=NODE, workers=8, batch_size=1, precision="bf16", time_model="roofline", training=ADAM,
            settings=Settings(parallel=config),
        ).rows  # fmt: skip
    recomputed = {name: row.overheads_s.get("activation recomputation", 0.0) for name, row in rows.items()}
    assert recomputed["none"] == 0
    assert recomputed["second"] == pytest.approx(recomputed["every"] / 2)
    assert rows["every"].memory_bytes < rows["second"].memory_bytes < rows["none"].memory_bytes
    assert rows["offload"].memory_bytes < rows["every"].memory_bytes
    assert rows["offload"].time_s >= rows["every"].time_s


def test_checkpointing_in_pytorch_stops_before_the_last_product() -> None:
    """Of a block of GPT, 8 of 24 h^2 FLOPs per token: the last product, whose result nothing saves."""
    recomputed_s = {}
    product_s = 24 * 8 * 2048**2 * 2048 / 989.4e12  # 24 blocks, 2,048 tokens, at the peak of bf16
    for execution in ("megatron", "eager"):
        config = ParallelConfig(recompute="full", execution=execution, attention="flash2", zero_stage=0)
        (row,) = scaling(
            "gpt3-1.3b", topology="8x h100-sxm @ nvlink4-x18", workers=8, batch_size=1, precision="bf16",
            time_model="peak", training=ADAM, sequence_length=2048, settings=Settings(parallel=config),
        ).rows  # fmt: skip
        recomputed_s[execution] = row.overheads_s["activation recomputation"]
    assert recomputed_s["megatron"] - recomputed_s["eager"] == pytest.approx(product_s, rel=0.03)


def test_adapters_alone_are_exchanged() -> None:
    """Frozen parameters have no gradients, and ZeRO 1 gathers only what an update has changed."""
    asked = {"topology": NODE, "precision": "bf16", "time_model": "roofline"}
    tuned = scaling(
        "llama-3.2-1b", workers=8, batch_size=1, sequence_length=512, settings=Settings(parallel=ParallelConfig()),
        training=TrainingOptions("adam", mixed_precision=True, lora_rank=8, lora_modules=("q_proj",)), **asked,
    ).rows[0]  # fmt: skip
    adapters = 16 * 8 * (2048 + 2048)  # blocks, rank, width of input and of output
    exchanged_s = topology_all_reduce_s(parse_topology(NODE).with_workers(8), adapters * 2)
    assert tuned.communication_s == pytest.approx(float(exchanged_s), rel=1e-3)


@pytest.mark.spread(1)
@pytest.mark.parametrize("precision", ["bf16", "fp8"])
@pytest.mark.parametrize("modules", [None, "adapters=q_proj,k_proj,v_proj"])
def test_adapters_are_not_slower_than_training_all_parameters(precision: str, modules: str | None) -> None:
    """They save the weight gradients and the exchange, and add to the results of frozen products without a kernel."""
    asked = {"platform": "dgx-h100", "precision": precision, "execution": "megatron", "workers": 8, "micro_batch": 1}
    asked |= {"global_batch_size": 8, "sequence_length": 4096, "mixed_precision": True, "optimizer": "adamw"}
    adapted = pl.train("llama-2-7b", lora=32, trainable=modules, **asked).rows[0]
    assert adapted.time_s < pl.train("llama-2-7b", **asked).rows[0].time_s


@pytest.mark.spread(1)
@pytest.mark.parametrize(
    ("platform", "precision", "bytes_per_weight"),
    # On Hopper a product reads a copy along the rows, and that of the gradient a transposed one.
    [("dgx-h200", "fp8", 2), ("dgx-b200", "fp8", 1), ("gb300-nvl72", "nvfp4", 2 * 9 / 16)],
)
def test_frozen_weights_are_stored_as_their_products_read_them(platform, precision, bytes_per_weight) -> None:
    asked = {"platform": platform, "execution": "megatron", "lora": 16, "trainable": "adapters=q_proj", "workers": 8}
    asked |= {"global_batch_size": 8, "sequence_length": 512, "strategy": "distributed-optimizer"}
    wide, narrow = (
        pl.train("llama-3-70b", precision=name, mixed_precision=True, **asked).rows[0] for name in ("bf16", precision)
    )
    blocks, hidden, inner, keys = 80, 8192, 28672, 1024
    weights = blocks * (2 * hidden * hidden + 2 * hidden * keys + 3 * hidden * inner)
    assert wide.memory_bytes - narrow.memory_bytes == pytest.approx(
        (2 - bytes_per_weight) * weights, abs=0.01 * weights
    )


def test_stacks_fuse_more_and_more() -> None:
    seconds = [
        scaled("llama-3.2-1b", 8, 8, ParallelConfig(execution=execution), topology=NODE, precision="bf16").time_s
        for execution in ("eager", "megatron", "compiled")
    ]
    assert seconds[0] > 1.05 * seconds[1] > seconds[2]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sharding": "zero-9"}, "no sharding is called 'zero-9'"),
        ({"execution": "folded"}, "no execution of training in blocks is called 'folded'"),
        ({"recompute_every": 2}, "`--recompute NAME:N` is for `--recompute full`"),
    ],
)
def test_options_that_do_not_exist(options, message) -> None:
    with pytest.raises((BadValue, UnknownName), match=message):
        ParallelConfig(**options)


def test_stages_on_other_nodes_share_the_link_between_nodes() -> None:
    """A stage of 4 x 2 devices fills a node of eight, whose devices send at once; stages inside a node do not."""
    config = ParallelConfig(tensor=4, pipeline=2, sequence_parallel=True)
    layout = Layout(data=2, micro_batches=8)
    two_nodes = parse_topology(f"{NODE}, 2 nodes @ 25 GB/s")
    assert two_nodes.nodes == 2
    crossing_s = stage_transfer_s(two_nodes, config, layout, 1e6)
    assert crossing_s == pytest.approx(float(point_to_point_time_s(8e6, two_nodes.between)))
    one_node = parse_topology(NODE)
    inside_s = stage_transfer_s(one_node, config, layout._replace(data=1), 1e6)
    assert inside_s == pytest.approx(float(point_to_point_time_s(1e6, one_node.inside)))


def test_a_ring_inside_a_node_sends_over_the_link_of_the_node():
    node = parse_topology("8x @ nvlink3-x12, 2 nodes @ 1x infiniband-hdr")
    inside_s = float(point_to_point_time_s(1e8, node.inside))
    between_s = float(point_to_point_time_s(1e8, node.between))
    assert _ring_step_s(node, 1, 8, 1e8) == pytest.approx(inside_s)
    assert _ring_step_s(node, 1, 16, 1e8) == pytest.approx(max(inside_s, between_s))
    # Neighbours that are a node apart: the rings of all 8 devices share the link between the nodes.
    assert _ring_step_s(node, 8, 2, 1e8) == pytest.approx(float(point_to_point_time_s(8e8, node.between)))


@pytest.mark.thorough
def test_advice_on_a_batch_that_no_single_device_counts():
    """8,192 sequences of 4,096 tokens of a large mixture: a single device has more FLOPs than 64 bits hold."""
    table = scaling(
        "qwen3-235b-a22b",
        platform="gb300-nvl72",
        workers=[256],
        batch_size=8192,
        scaling="strong",
        precision="mxfp8",
        sequence_length=4096,
        advise="time",
        training=pl.TrainingOptions("adamw", mixed_precision=True),
        settings=Settings(parallel=ParallelConfig(pipeline=4, virtual_stages=4, expert=32)),
    )
    assert table.rows[0].time_s > 0
    assert any("tuned stack" in note for note in table.notes)


def test_degrees_say_what_each_number_is() -> None:
    config = ParallelConfig(tensor=2, pipeline=2, virtual_stages=4)
    assert config.describe_degrees(8) == "tensor 2, pipeline 2 x 4 virtual stages, data 8"


@pytest.mark.parametrize(("zero_stage", "gradient_bytes"), [(0, 2), (1, 2), (1, 4)])
def test_an_update_on_the_host_takes_the_time_of_its_bytes(zero_stage: int, gradient_bytes: int) -> None:
    """Ren et al. 2021 (ZeRO-Offload): gradients and 12 bytes of Adam's state per parameter go to the host.

    Its processors read the gradient and move 26 further bytes per parameter, for all devices of a node. Gradients leave
    over the link of each device during the backward pass, two thirds of the work, and 16-bit parameters come back after
    the update. Without ZeRO each of the eight devices has a state of its own.
    """
    training = msgspec.structs.replace(ADAM, offload="cpu", fp32_gradients=gradient_bytes == 4)
    settings = Settings(parallel=ParallelConfig(zero_stage=zero_stage))
    asked = {"precision": "bf16", "strategy": "3d", "scaling": "strong", "training": training, "time_model": "roofline"}
    result = scaling("gpt3-1.3b", settings, topology=NODE, workers=8, batch_size=8, **asked)
    updated = find_network("gpt3-1.3b").parameters * (1 if zero_stage else 8)  # by a node
    byte_s = updated / 8 / (LINK_SHARE * 31.5e9)  # PCIe 4.0 x16
    exposed_s = max(gradient_bytes * byte_s - result[0].compute_s * 2 / 3, 0.0)
    assert (exposed_s > 0) == (zero_stage == 0)
    expected_s = exposed_s + (gradient_bytes + 26) * updated / HOST_UPDATE_BYTES_PER_S + 2 * byte_s
    assert result[0].overheads_s["update on the host"] == pytest.approx(expected_s, rel=1e-3)
    assert not any(note.startswith("offload: ") for note in result.notes)  # of a single device
    (note,) = (note for note in result[0].notes if note.startswith("offload: "))
    number, unit = note.split()[1:3]
    assert (float(number), unit) == (pytest.approx((gradient_bytes + 12) * updated / 1e9, rel=1e-3), "GB")
    assert note.endswith("are in the memory of the host per node")


def test_megatron_interleaves_multiples_of_the_stages_and_advice_knows_it():
    """PyTorch's schedule has no such limit; there a single micro-batch takes as long as without virtual stages."""
    asked = {
        "network": "llama-3-70b", "gpu": "h100-sxm", "workers": 64, "tensor": 8, "pipeline": 8, "global_batch_size": 1,
    }  # fmt: skip
    with pytest.raises(BadValue, match=r"Megatron-LM interleaves micro-batches that are divisible by the 8 stages"):
        pl.train(**asked, schedule="interleaved=2")
    plain, interleaved = (
        pl.train(**asked, execution="eager", **given) for given in ({}, {"schedule": "interleaved=2"})
    )
    assert interleaved.time_s >= 0.99 * plain.time_s
    advised = pl.train("llama-3-70b", gpu="h100-sxm", workers=64, global_batch_size=24, advise="time")
    divisions = [row.parallel for row in advised.rows if row.parallel is not None and row.parallel.virtual_stages > 1]
    assert divisions
    for parallel in divisions:
        replicas = 64 // parallel.devices_per_replica
        assert 24 // (replicas * parallel.micro_batch_size) % parallel.pipeline == 0


def test_dense_networks_have_no_activations_of_experts_to_compute_again():
    """Megatron-LM's `recompute_modules` has moe_act for experts alone."""
    asked = {
        "gpu": "h100-sxm", "workers": 64, "mixed_precision": True, "sequence_length": 4096, "tensor": 2, "pipeline": 8,
        "micro_batch": 1, "schedule": "interleaved=4", "global_batch_size": 256,
    }  # fmt: skip
    notes = " ".join(pl.train("llama-3-70b", **asked).rows[-1].notes)
    assert "full recomputation of one block in 4" in notes and "moe_act" not in notes
    with pytest.raises(BadValue, match=r"is of experts, and llama-3-70b has none: `selective:mlp` computes its feed-"):
        pl.train("llama-3-70b", **asked, recompute="selective:moe_act", execution="megatron")
    pl.train("qwen3-30b-a3b", gpu="h100-sxm", workers=16, tensor=2, expert_parallel=8, global_batch_size=16,
             recompute="selective:moe_act", execution="megatron")  # fmt: skip


def test_experts_are_held_by_other_devices_than_the_rest_of_a_stage() -> None:
    """Of 16 devices of a stage, two of a tensor group hold a part of the rest 8 times; 4 hold all experts, 4 times."""
    config = ParallelConfig(tensor=2, context=2, expert=4)
    dense, experts = replica_groups(config, Layout(data=4, micro_batches=1), expert_share=0.75)
    assert dense == ReplicaGroup(0.25, replicas=8, stride=2)
    assert experts == ReplicaGroup(0.75, replicas=4, stride=4)
    assert replica_groups(config, Layout(data=4, micro_batches=1), 0.0) == [ReplicaGroup(1.0, 8, 2)]

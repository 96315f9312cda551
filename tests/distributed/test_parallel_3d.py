"""All ways of sharing work at once: memory and times of Megatron-LM's tables, and what adds up exactly."""

from __future__ import annotations

import json

import msgspec
import numpy as np
import pytest

import paleo_lite as pl
from paleo_lite.architectures import find_network
from paleo_lite.architectures.network import Tokens
from paleo_lite.architectures.transformers import read_config
from paleo_lite.distributed.collectives import exchange_time_s
from paleo_lite.distributed.job import Job, Settings, Split
from paleo_lite.distributed.parallel_3d import together
from paleo_lite.distributed.platforms import parse_topology
from paleo_lite.errors import BadValue
from paleo_lite.machines import Machine, find_device
from paleo_lite.timing import RooflineModel
from paleo_lite.timing.memory import memory_of
from paleo_lite.timing.workload import TrainingOptions, Workload

ADAM = TrainingOptions("adam", mixed_precision=True)
NODE = "8x a100-sxm-80gb @ nvlink3-x12"


def config_of(hidden, heads, blocks):
    return {
        "model_type": "gpt2", "vocab_size": 51200, "n_embd": hidden, "n_layer": blocks, "n_head": heads,
        "n_positions": 2048, "activation_function": "gelu_pytorch_tanh", "attn_implementation": "eager",
    }  # fmt: skip


# Korthikanti et al. 2022 (arXiv 2205.05198): table 3's models; figure 1's GiB of activations of a device, tensor
# parallel alone, and with sequence parallelism and selective recomputation; table 5's seconds, full and selective.
MODELS = {
    "22B": ((6144, 64, 48), Split(8, 1, 1, micro_batch=4), 8, 4, (59.25, 9.5625), (1.42, 1.10)),
    "175B": ((12288, 96, 96), Split(8, 8, 3), 64, 64, (66.84375, 12.3515625), (18.13, 13.75)),
    "530B": ((20480, 128, 105), Split(8, 35, 3), 280, 280, (114.0234375, 23.076171875), (49.05, 37.83)),
    "1T": ((25600, 160, 128), Split(8, 64), 512, 512, (131.25, 26.5625), (94.42, 71.49)),
}


@pytest.mark.parametrize("name", MODELS)
def test_activations_are_those_of_korthikanti(name):
    sizes, split, _, _, published, _ = MODELS[name]
    data = json.dumps(config_of(*sizes)).encode()
    in_flight = 1 + (split.pipeline - 1) / (split.pipeline * split.interleaved) if split.interleaved > 1 else 1
    for gib, (sequence, fused) in zip(published, ((False, False), (True, True))):
        saved = []
        for blocks in (2, 3):
            tokens = Tokens(2048, tensor=split.tensor, sequence=sequence, blocks=blocks, fused=fused)
            made = read_config(data, "gpt.json", None, tokens)
            workload = Workload(made, "fp16", split.micro_batch, "training", training=ADAM)
            saved.append(memory_of(workload).activations_bytes)
        found = (saved[1] - saved[0]) * sizes[-1] * in_flight / 2**30
        assert found == pytest.approx(gib, rel=0.002)


def scaled(network, workers, batch_size, split, **asked):
    settings = Settings(split=split)
    question = {"precision": "fp16", "scaling": "strong", "strategy": "together", "training": ADAM, **asked}
    return pl.scale(network, workers=workers, batch_size=batch_size, settings=settings, **question)[0]


@pytest.mark.slow
def test_steps_are_those_of_korthikanti(tmp_path):
    """Four sizes on 8 to 512 A100, each with full and with selective recomputation: nothing was fitted to them."""
    errors, inside = [], 0
    for name, (sizes, split, workers, batch_size, _, seconds) in MODELS.items():
        path = tmp_path / f"{name}.json"
        path.write_text(json.dumps(config_of(*sizes)))
        for measured_s, recompute in zip(seconds, ("full", "selective")):
            asked = {"recompute": recompute, "sequence": recompute == "selective", "zero_stage": 0}
            made = Split(split.tensor, split.pipeline, split.interleaved, micro_batch=split.micro_batch, **asked)
            row = scaled(str(path), workers, batch_size, made, platform="dgx-a100")
            errors.append(row.time_s / measured_s - 1)
            inside += row.interval[0] <= measured_s <= row.interval[1]
    assert inside >= 7  # of eight at 90%
    assert np.abs(errors).max() < 0.27
    assert np.abs(errors).mean() < 0.1


def test_blocks_add_up_to_the_network():
    """By the roofline, which knows no host: a step of one device is the forecast of the whole network."""
    row = scaled("gpt2", 1, 2, Split(micro_batch=2), gpu="a100-sxm-80gb", time_model="roofline")
    whole = pl.predict("gpt2", gpu="a100-sxm-80gb", precision="fp16", batch_size=2, phase="training", training=ADAM,
                       time_model="roofline", execution="megatron")  # fmt: skip
    assert row.time_s == pytest.approx(whole.time_s, rel=1e-9)
    more = scaled("gpt2", 1, 8, Split(micro_batch=2), gpu="a100-sxm-80gb", time_model="roofline")
    assert more.time_s - row.time_s == pytest.approx(3 * (whole.time_s - whole.passes_s["update"]), rel=1e-9)


def test_the_bubble_is_that_of_the_formula():
    """Narayanan et al. 2021, section 2.2: (p - 1) / v more micro-batches' time."""
    asked = {"topology": NODE, "time_model": "roofline"}
    plain = scaled("gpt2", 4, 8, Split(1, 4), **asked)
    turns = scaled("gpt2", 4, 8, Split(1, 4, 3), **asked)
    bubble = "the bubble of the pipeline"
    assert plain.losses[bubble] == pytest.approx(plain.compute_s * 3 / 11)
    assert turns.losses[bubble] == pytest.approx(plain.losses[bubble] / 3)


def test_a_shared_matrix_costs_two_all_reduces_a_pass_and_block():
    """Shoeybi et al. 2019, figure 4; Korthikanti et al. 2022, section 4.2.2: sharing the sequence sends as much."""
    network = find_network("gpt2")
    for sequence in (False, True):
        one, two = (network.remade(Tokens(512, tensor=4, sequence=sequence, blocks=blocks)) for blocks in (1, 2))
        kinds = [
            layer.attributes["function"] for layer in two.layers[len(one.layers) - 8 :] if layer.kind == "exchange"
        ]
        assert {"copy", "sum"} >= set(kinds) or {"gather", "scatter"} >= set(kinds)
        number = [sum(layer.kind == "exchange" for layer in made.layers) for made in (one, two)]
        assert number[1] - number[0] == 4


def test_full_recomputation_costs_a_forward_pass_and_spares_memory(tmp_path):
    path, asked = tmp_path / "gpt.json", {"topology": NODE, "time_model": "roofline"}
    path.write_text(json.dumps(config_of(2048, 16, 24)))
    none, full = (scaled(str(path), 8, 32, Split(micro_batch=4, recompute=way), **asked) for way in ("none", "full"))
    assert 1.25 < full.compute_s / none.compute_s < 1.4
    assert full.hfu == pytest.approx(full.mfu * (1 + full.recomputed))
    assert full.memory_bytes < none.memory_bytes / 2


def test_zero_shares_the_models_state_out():
    """Rajbhandari et al. 2020, figure 1: 16 bytes a parameter in mixed precision, of which stage 3 leaves an eighth."""
    asked = {"topology": NODE, "time_model": "roofline"}
    none, all_ = (scaled("gpt3-1.3b", 8, 8, Split(zero_stage=stage), **asked) for stage in (0, 3))
    parameters = find_network("gpt3-1.3b").parameters
    assert none.memory_bytes - all_.memory_bytes == pytest.approx(16 * parameters * 7 / 8, rel=1e-6)


def test_advice_tries_every_split():
    table = pl.scale("gpt3-1.3b", topology=f"{NODE}, 2 nodes @ 8x infiniband-hdr", workers=16, batch_size=64,
                     scaling="strong", precision="fp16", training=ADAM, advise=True)  # fmt: skip
    assert 1 < len(table.rows) <= 6
    assert [row.time_s for row in table.rows] == sorted(row.time_s for row in table.rows)
    assert all(row.fits and row.interval for row in table.rows)
    assert "splits that fit" in table.why


def test_a_replica_may_take_more_at_once_than_one_worker_has():
    """A batch of 1 a worker, 8 to a replica: micro-batches of 4 are possible, one worker is held against 1."""
    row = scaled("gpt3-1.3b", 8, 1, Split(tensor=8, micro_batch=4), topology=NODE, scaling="weak")
    assert (row.batch_size, row.workers) == (8, 8)
    assert "2 micro-batches of 4" in row.notes[0]


@pytest.mark.parametrize(
    ("network", "workers", "batch_size", "split", "message"),
    [
        ("gpt2", 8, 8, {"tensor": 3}, "--tensor 3 times --pipeline 1 does not divide 8 workers"),
        ("gpt2", 8, 8, {"tensor": 8}, "--tensor 8 does not divide the 12 heads of gpt2"),
        ("gpt2", 8, 8, {"pipeline": 8}, "8 stages do not divide the 12 blocks of gpt2"),
        ("gpt2", 8, 8, {"pipeline": 4, "interleaved": 2}, "4 stages, 2 pieces each do not divide the 12 blocks"),
        ("gpt2", 8, 10, {"pipeline": 2}, "4 replicas with micro-batches of 1 do not divide a batch of 10"),
        ("gpt2", 8, 12, {}, "8 replicas with micro-batches of 1 do not divide a batch of 12"),
        ("resnet50", 8, 8, {"tensor": 2}, "resnet50 has no equal blocks"),
        ("bert-base", 8, 8, {"tensor": 2}, "--tensor splits llama, .*, not bert"),
    ],
)
def test_what_cannot_be_split_is_refused(network, workers, batch_size, split, message):
    with pytest.raises(BadValue, match=message):
        scaled(network, workers, batch_size, Split(**split), topology=NODE)


@pytest.mark.parametrize(
    ("split", "message"),
    [
        ({"tensor": 0}, "--tensor must be a whole number of 1 or more, not 0"),
        ({"recompute": "some"}, "--recompute is none, selective or full, not 'some'"),
        ({"zero_stage": 4}, "stages 0 to 3, not 4"),
        ({"interleaved": 2}, "say --pipeline, too"),
    ],
)
def test_a_split_checks_itself(split, message):
    with pytest.raises(BadValue, match=message):
        Split(**split)


def llama_of(length, heads=32, kv_heads=8):
    return {
        "model_type": "llama", "vocab_size": 32000, "hidden_size": 4096, "num_hidden_layers": 4, "head_dim": 128,
        "num_attention_heads": heads, "num_key_value_heads": kv_heads, "intermediate_size": 14336,
        "max_position_embeddings": length,
    }  # fmt: skip


def test_a_ring_computes_the_same_and_sends_keys_and_values(tmp_path):
    """Liu et al. 2023, section 3: of n devices each sends its keys and values on n - 1 times, backward twice as much.

    A device of four has a quarter of all FLOPs, and of all that a block saves.
    """
    network = read_config(json.dumps(llama_of(32768)).encode(), "llama.json", None, Tokens(32768, phase="training"))
    whole, part = (Workload(network.remade(Tokens(32768, phase="training", ring=ring)), "bf16", 1, "training",
                            training=ADAM) for ring in (1, 4))  # fmt: skip
    flops = [made.work.column("flops", "training", 1)[:3].sum() for made in (whole, part)]
    assert flops[1] == pytest.approx(flops[0] / 4, rel=1e-3)
    assert memory_of(part).activations_bytes == pytest.approx(memory_of(whole).activations_bytes / 4, rel=0.01)
    key_values = 2 * 8 * 128 * (32768 // 4) * 2
    slow = parse_topology("1x a100-sxm-80gb, 4 nodes @ 1 GB/s")
    job = Job(Workload(network, "bf16", 1, "training", training=ADAM), Machine(find_device("a100-sxm-80gb")),
              RooflineModel())  # fmt: skip
    step = together(job, slow, 4, Settings(split=Split(context=4, zero_stage=0), overlap=False))
    gradients = exchange_time_s(slow, network.parameters * 2)
    sent = 4 * network.blocks * 3 * 3 * key_values / slow.between.bandwidth_bytes_per_s  # samples, blocks, hops, 1 + 2
    assert step.communication_s == pytest.approx(gradients + sent, rel=1e-6)
    assert step.exposed_s < step.communication_s  # attention hides a part


def test_experts_are_sent_their_tokens_and_back():
    """Lepikhin et al. 2021 (GShard), section 3.1: two all-to-alls of k rows a token forward, and two backward."""
    network = find_network("mixtral-8x7b", tokens=Tokens(4096, phase="training"))
    assert sum(layer.parameters for layer in network.layers if layer.kind == "grouped_matmul") == pytest.approx(
        32 * 8 * 3 * 4096 * 14336
    )
    slow = parse_topology("1x h100-sxm, 8 nodes @ 1 GB/s")
    asked = Settings(split=Split(zero_stage=0), overlap=False)
    job = Job(Workload(network, "bf16", 1, "training", training=ADAM), Machine(find_device("h100-sxm")),
              RooflineModel())  # fmt: skip
    shared = together(job, slow, 8, msgspec.structs.replace(asked, split=Split(zero_stage=0, experts=8)))
    of_experts = 32 * 8 * 3 * 4096 * 14336
    rows = 4096 * 2 * 4096 * 2
    routed = 4 * 32 * rows * 7 / 8 / slow.between.bandwidth_bytes_per_s
    gradients = exchange_time_s(slow, (network.parameters - of_experts) * 2)
    assert shared.communication_s == pytest.approx(gradients + routed, rel=1e-3)
    alone = together(job, slow, 8, asked)
    spared = 16 * of_experts * 7 / 8  # of Adam's 16 bytes a parameter, seven of eight experts
    assert alone.memory_bytes - shared.memory_bytes == pytest.approx(spared, rel=1e-3)


def test_products_in_8_bits_are_faster_and_all_else_is_as_before():
    """By the roofline on H100: twice the rate (NVIDIA's data sheet), of the blocks' products but not of attention."""
    asked = {"topology": "8x h100-sxm @ nvlink4-x18", "time_model": "roofline", "sequence_length": 2048}
    bf16, fp8 = (scaled("gpt3-1.3b", 8, 8, Split(micro_batch=1), **{**asked, "precision": precision})
                 for precision in ("bf16", "fp8"))  # fmt: skip
    assert fp8.memory_bytes == bf16.memory_bytes and fp8.exposed_s == pytest.approx(bf16.exposed_s, rel=0.3)
    products = 24 * 12 * 2048**2 * 2048 * 6 / 989.4e12
    assert bf16.compute_s - fp8.compute_s == pytest.approx(products / 2, rel=0.02)
    assert fp8.peak_per_s == pytest.approx(2 * bf16.peak_per_s, rel=1e-3)


def test_stages_may_have_the_ends_as_blocks():
    """Llama 3's 126 blocks pass through 16 stages: the first and the last have one less (Dubey et al. 2024)."""
    network = find_network("gpt2")  # twelve blocks
    job = Job(Workload(network, "fp16", 1, "training", training=ADAM), Machine(find_device("a100-sxm-80gb")),
              RooflineModel())  # fmt: skip
    topology = parse_topology("7x a100-sxm-80gb @ nvlink3-x12")
    step = together(job, topology, 7, Settings(split=Split(pipeline=7)))
    assert step.memory_bytes is not None and step.losses
    with pytest.raises(BadValue, match="5 stages do not divide the 12 blocks"):
        together(job, topology.with_workers(5), 5, Settings(split=Split(pipeline=5)))


@pytest.mark.parametrize(
    ("network", "split", "message"),
    [
        ("mixtral-8x7b", {"experts": 3}, "--expert-parallel 3 does not divide the 8 devices of a stage"),
        ("mixtral-8x7b", {"tensor": 2}, "shares the sequence, too: add --sequence-parallel"),
        ("llama-3-8b", {"experts": 2}, "--expert-parallel is of mixtures of experts, which llama-3-8b is not"),
        ("llama-3-8b", {"context": 3}, "--tensor 1 times --pipeline 1 times --context-parallel 3 does not divide 8"),
    ],
)
def test_a_context_or_experts_that_cannot_be_shared_are_refused(network, split, message):
    with pytest.raises(BadValue, match=message):
        scaled(network, 8, 8, Split(**split), topology="8x h100-sxm @ nvlink4-x18", sequence_length=4096)


@pytest.mark.slow
def test_where_no_worker_holds_the_network_no_speed_up_is_claimed():
    """The headline compares it with nothing, and further rows with the first that fits."""
    asked = {"scaling": "strong", "strategy": "together", "training": ADAM, "platform": "dgx-h100", "batch_size": 128,
             "precision": "bf16", "sequence_length": 2048, "settings": Settings(split=Split(8, 4))}  # fmt: skip
    one, two = (pl.scale("llama-3-70b", workers=workers, **asked) for workers in (64, [64, 128]))
    assert one[0].fits and one[0].over == 64
    assert "times" not in one.document().title and "speedup" not in [c.key for c in one.document().content[0].columns]
    assert f"{two[1].speedup / 64:.4g} times 64 workers" in two.document().title
    assert "small batches" not in one[0].limited_by


def test_gpt3_takes_a_month_on_1024_a100():
    """Narayanan et al. 2021, section 5.1: 300 billion tokens of 175 B parameters take 34 days, batch 1,536."""
    split = Split(8, 16, 2, recompute="full")
    table = pl.scale(
        "gpt3-175b", platform="dgx-a100", workers=1024, precision="bf16", scaling="strong", batch_size=1536,
        training=TrainingOptions("adam", mixed_precision=True), settings=Settings(split=split), images="300B tokens",
    )  # fmt: skip
    row = table[0]
    assert table.images == pytest.approx(300e9 / 2048)
    assert row.hours / 24 == pytest.approx(34, rel=0.12)
    assert row.kwh == pytest.approx(row.hours * 1024 * 0.4)  # 400 W each, by the data sheet

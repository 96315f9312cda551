"""All ways of sharing work at once: memory and times of Megatron-LM's tables, and what adds up exactly.

Tests: distributed/together.py.
"""

from __future__ import annotations

import json

import numpy as np
import pytest

import paleo_lite as pl
from paleo_lite.distributed.job import Settings, Split
from paleo_lite.errors import BadValue
from paleo_lite.networks import find_network
from paleo_lite.networks.network import Tokens
from paleo_lite.networks.transformers import read_config
from paleo_lite.timing.memory import memory_of
from paleo_lite.timing.options import TrainingOptions
from paleo_lite.timing.workload import Workload

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
    """Four sizes on 8 to 512 A100, each with full and with selective recomputation: a mean error of 4 %."""
    errors = []
    for name, (sizes, split, workers, batch_size, _, seconds) in MODELS.items():
        path = tmp_path / f"{name}.json"
        path.write_text(json.dumps(config_of(*sizes)))
        for measured_s, recompute in zip(seconds, ("full", "selective")):
            asked = {"recompute": recompute, "sequence": recompute == "selective", "zero_stage": 0}
            made = Split(split.tensor, split.pipeline, split.interleaved, micro_batch=split.micro_batch, **asked)
            row = scaled(str(path), workers, batch_size, made, platform="dgx-a100")
            errors.append(row.time_s / measured_s - 1)
            assert row.interval[0] <= measured_s <= row.interval[1], name
    assert np.abs(errors).max() < 0.12
    assert np.abs(errors).mean() < 0.05


def test_blocks_add_up_to_the_network():
    """By the roofline, which knows no host: a step of one device is the forecast of the whole network."""
    row = scaled("gpt2", 1, 2, Split(micro_batch=2), gpu="a100-sxm-80gb", time_model="roofline")
    whole = pl.predict("gpt2", gpu="a100-sxm-80gb", precision="fp16", batch_size=2, phase="training", training=ADAM,
                       time_model="roofline")  # fmt: skip
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

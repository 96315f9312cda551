"""Which layers tensor-parallel devices share, and the network of one of them.

Expected splits are those of Megatron-LM: of attention by heads, of a multilayer perceptron by features.
"""

from __future__ import annotations

from math import prod

import numpy as np
import pytest

import paleo_lite as pl
from paleo_lite.architectures import find_network
from paleo_lite.architectures.network import Network
from paleo_lite.architectures.pipelines.sampling import denoiser_network, find_pipeline
from paleo_lite.distributed.collectives import subgroup_topology, topology_all_reduce_s
from paleo_lite.distributed.job import Job, Step
from paleo_lite.distributed.links import Topology
from paleo_lite.distributed.model_parallel import train_in_tensor_groups
from paleo_lite.distributed.platforms import parse_topology
from paleo_lite.distributed.settings import Settings
from paleo_lite.distributed.tensor_split import find_tensor_split, shard_layers
from paleo_lite.errors import BadValue
from paleo_lite.machines import Machine, find_device
from paleo_lite.timing import RooflineModel
from paleo_lite.timing.training_options import TrainingOptions
from paleo_lite.timing.workload import Workload

HIDDEN, DOUBLE_BLOCKS, SINGLE_BLOCKS = 3072, 19, 38
"""Of FLUX.1: https://huggingface.co/black-forest-labs/FLUX.1-schnell/blob/main/transformer/config.json."""


def flux() -> Network:
    """Return the denoiser of FLUX.1-schnell for pictures of 256 x 256."""
    pipeline = find_pipeline("flux.1-schnell")
    assert pipeline is not None
    return denoiser_network(pipeline, 256, None)


def names(indices: tuple[int, ...], block: str) -> set[str]:
    """Return the names of layers in a block of FLUX.1."""
    layers = flux().layers
    found = {layers[index].name for index in indices}
    return {name.removeprefix(f"{block}.") for name in found if name.startswith(f"{block}.")}


def test_streams_of_pictures_and_texts_are_split_by_the_same_heads() -> None:
    split = find_tensor_split(flux().layers)
    columns = {f"attn.{name}" for name in ("to_q", "to_k", "to_v", "add_q_proj", "add_k_proj", "add_v_proj")}
    assert names(split.columns, "transformer_blocks.0") == columns | {"ff.net.0.proj", "ff_context.net.0.proj"}
    assert names(split.rows, "transformer_blocks.0") == {
        "attn.to_out.0", "attn.to_add_out", "ff.net.2", "ff_context.net.2"
    }  # fmt: skip


def test_attention_and_perceptron_of_a_single_block_end_in_one_product() -> None:
    split = find_tensor_split(flux().layers)
    columns = {"attn.to_q", "attn.to_k", "attn.to_v", "proj_mlp"}
    assert names(split.columns, "single_transformer_blocks.0") == columns
    assert names(split.rows, "single_transformer_blocks.0") == {"proj_out"}


def test_modulation_norms_and_sums_stay_whole() -> None:
    layers, split = flux().layers, find_tensor_split(flux().layers)
    kinds = {layers[index].kind for index in split.between}
    assert {"attention", "rms_norm", "gelu_tanh", "concat"} <= kinds and "layer_norm" not in kinds
    assert not any("norm1.linear" in layers[index].name for index in split.sharded)


@pytest.mark.parametrize("devices", [2, 4, 8])
def test_devices_divide_the_matrices_of_blocks(devices: int) -> None:
    """24 matrices of hidden x hidden in a block of two streams, 12 in one of one stream; biases of columns, too.

    The embedders of the time and of the pooled text, of 256 and 768 numbers, are perceptrons as well.
    """
    layers = flux().layers
    shared = shard_layers(layers, devices)
    matrices = HIDDEN**2 * (DOUBLE_BLOCKS * 24 + SINGLE_BLOCKS * 12 + 2) + HIDDEN * (256 + 768)
    biases = HIDDEN * (DOUBLE_BLOCKS * 14 + SINGLE_BLOCKS * 7 + 2)
    parameters = sum(layer.parameters for layer in layers)
    expected = parameters - (matrices + biases) * (1 - 1 / devices)
    assert sum(layer.parameters for layer in shared) == expected


def test_tensors_between_products_are_shares_of_their_heads() -> None:
    layers = flux().layers
    shared, split = shard_layers(layers, 4), find_tensor_split(layers)
    for index in split.between:
        for shape, whole in zip(shared[index].outputs, layers[index].outputs):
            assert prod(shape) == prod(whole) / 4, layers[index].name
    (attention,) = (layer for layer in shared if layer.name == "transformer_blocks.0.attn.attention")
    assert attention.inputs == ((1, 6, 512, 128),) * 3  # of 24 heads; 256 tokens of each stream


def test_devices_must_divide_features() -> None:
    with pytest.raises(BadValue, match=r"5 tensor-parallel devices do not divide the 3,072 channels or heads of "):
        shard_layers(flux().layers, 5)


ASKED = {
    "network": "flux.1-schnell", "gpu": "h100-sxm", "workers": 16, "image_size": 256, "batch_size": 16,
    "mixed_precision": True, "precision": "bf16", "strategy": "zero-1",
}  # fmt: skip


def test_groups_have_less_state_and_wait_for_each_other() -> None:
    """Two devices of a group have the samples of two, and exchange activations in every block."""
    (alone,), (group,) = (pl.train(**ASKED, tensor=tensor).rows for tensor in (1, 2))
    assert group.batch_size == alone.batch_size == 256
    assert group.exposed_s > alone.exposed_s
    assert any(
        "2 devices share the layers of a replica: each has 64% of the parameters" in note for note in group.notes
    )  # 7.58 of 11.9 G
    # Twice the samples for half of the products, and for all of what is replicated.
    assert 0.9 * alone.compute_s < group.compute_s < 1.5 * alone.compute_s


def test_micro_batches_of_a_group_are_those_of_its_devices() -> None:
    (whole,), (parts,) = (pl.train(**ASKED, tensor=2, **more).rows for more in ({}, {"micro_batch": 4}))
    assert parts.batch_size == whole.batch_size and parts.memory_bytes < whole.memory_bytes


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"tensor": 3}, "`--tensor 3` must divide the number of workers"),
        ({"tensor": 2, "strategy": "pipeline-1f1b"}, "goes with a strategy of data, zero-1, zero-2, zero-3"),
        ({"tensor": 2, "pipeline": 2}, "need a language model from a config"),
    ],
)
def test_impossible_groups_get_a_sentence(changes: dict[str, object], sentence: str) -> None:
    with pytest.raises(BadValue, match=sentence):
        pl.train(**{**ASKED, **changes})


@pytest.mark.parametrize(("checkpointing", "passes"), [("none", 2), ("block", 3)])
@pytest.mark.parametrize("accumulation", [1, 4])
def test_groups_exchange_what_rows_compute_and_columns_read(checkpointing: str, passes: int, accumulation: int) -> None:
    """Of 256 places of a picture and 256 tokens of text, in bf16, once per pass and micro-batch of four samples.

    A double block has two row-parallel products of each stream, which are apart, a single block one of both streams.
    Recomputation exchanges again what the forward pass does (Korthikanti et al. 2022, section 4.2.2). Embeddings of the
    time exchange 3,072 elements twice in a forward pass, and 256 once in a backward pass.
    """
    options = TrainingOptions("adamw", checkpointing=checkpointing, accumulation=accumulation)
    workload = Workload(flux(), precision="bf16", phase="training", training=options)
    job = Job(workload, Machine.single_device(find_device("h100-sxm")), RooflineModel())
    topology = parse_topology("8x h100-sxm @ nvlink4-x18")

    def run(job: Job, ranks: Topology, batch_size: int, settings: Settings) -> Step:
        assert (ranks.workers, batch_size) == (4, 16 * accumulation)
        return Step(compute_s=1.0)

    step = train_in_tensor_groups(run, job, topology, 16 * accumulation, Settings(tensor=2))
    blocks = [256 * HIDDEN] * 4 * DOUBLE_BLOCKS + [512 * HIDDEN] * SINGLE_BLOCKS
    elements = [*passes * blocks, *(passes - 1) * [HIDDEN, HIDDEN], 256]
    group = subgroup_topology(topology, 1, 2)
    exchanged_s = topology_all_reduce_s(group, np.array(elements, dtype=float) * 2 * 4).sum()
    assert step.exposed_s == step.communication_s == pytest.approx(accumulation * exchanged_s)


def test_queries_keys_and_values_of_one_product_are_each_split_by_heads() -> None:
    """ViT-B/16 has 12 blocks of 12 heads, with products of 768 x 2304, 768 x 768 and two of 768 x 3072."""
    layers = find_network("vit_b_16").layers
    four = shard_layers(layers, 4)
    whole, own = (sum(layer.parameters for layer in some) for some in (layers, four))
    matrices = 12 * (2304 + 768 + 2 * 3072) * 768
    assert whole - own == pytest.approx(matrices * 3 / 4, rel=0.001)
    attention = {layer.inputs[0] for layer in four if layer.kind == "attention"}
    assert attention == {(1, 3, 197, 64)}
    with pytest.raises(BadValue, match="8 tensor-parallel devices do not divide the 12 channels or heads"):
        shard_layers(layers, 8)


@pytest.mark.parametrize("network", ["bert-base", "vit_b_16"])
def test_devices_that_share_layers_launch_all_kernels(network: str) -> None:
    """One sample keeps no device busy: the host is what a step waits for, and devices that share it are no faster."""
    alone = pl.train(network, gpu="h100-sxm", batch_size=2)
    shared = pl.train(network, gpu="h100-sxm", workers=2, strategy="tensor", global_batch_size=2).rows[0]
    assert shared.time_s > 0.9 * alone.time_s and shared.efficiency < 0.6

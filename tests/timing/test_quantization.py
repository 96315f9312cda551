"""Quantized weights: published sizes of checkpoints, bytes that a step reads, and products that stay in 16 bits."""

from __future__ import annotations

import numpy as np
import pytest

import paleo_lite as pl
from paleo_lite.architectures import Network, find_network
from paleo_lite.architectures.network import SequenceOptions
from paleo_lite.calibration.choose import choose_model
from paleo_lite.counting import INPUT, Layer
from paleo_lite.counting.places import parts_of
from paleo_lite.errors import BadValue, UnknownPrecision
from paleo_lite.formats import FORMATS
from paleo_lite.machines import Machine, find_device
from paleo_lite.sweeps.run import run_sweep
from paleo_lite.sweeps.space import Space
from paleo_lite.timing.generating import cache_bytes_per_sequence
from paleo_lite.timing.memory import model_bytes
from paleo_lite.timing.models import RooflineModel
from paleo_lite.timing.quantization import is_stored
from paleo_lite.timing.training_options import TrainingOptions
from paleo_lite.timing.workload import Workload

GIB = 2**30


def decoding(name: str, precision: str = "bf16", weights: str | None = None, tensor: int = 1) -> Workload:
    options = SequenceOptions(context=15, phase="decode", tensor_parallel=tensor)
    return Workload(find_network(name, None, options), precision, 1, "decode", weights=weights)


def weights_gib(workload: Workload) -> float:
    return model_bytes(workload)[0] / GIB


@pytest.mark.parametrize(
    ("name", "precision", "weights", "published_gib"),
    [
        # OpenAI 2025, gpt-oss model card, table 1: checkpoint sizes; only the experts are in MXFP4
        ("gpt-oss-120b", "bf16", "mxfp4", 60.8),
        ("gpt-oss-20b", "bf16", "mxfp4", 12.8),
        # vLLM: "Model weights take 67.7 GiB" of Llama-3.1-70B quantized to w8a8
        ("llama-3.1-70b", "int8", None, 67.7),
        ("llama-3.1-70b", "bf16", "int8", 67.7),
    ],
)
def test_weights_take_as_much_memory_as_published(
    name: str, precision: str, weights: str | None, published_gib: float
) -> None:
    assert weights_gib(decoding(name, precision, weights)) == pytest.approx(published_gib, rel=0.03)


def test_a_checkpoint_that_keeps_more_in_16_bits() -> None:
    """Llama-3.1-405B-FP8 takes 57.8 GiB on each of eight devices (vLLM).

    Meta quantizes only the feed-forward parts, except in the first and the last layer (Llama 3, section 6.2).
    """
    attention = 2 * 16384 * 16384 + 2 * 16384 * 1024
    feed_forward = 3 * 16384 * 53248
    kept_gib = (126 * attention + 2 * feed_forward) / 8 / GIB  # a second byte of each
    assert weights_gib(decoding("llama-3.1-405b", "fp8", tensor=8)) + kept_gib == pytest.approx(57.8, rel=0.03)


@pytest.mark.parametrize(
    ("name", "last", "routers"),
    [("llama-3.1-8b", "lm_head", 0), ("gpt-oss-20b", "lm_head", 24), ("deepseek-v3", "lm_head", 58)],
)
def test_head_and_routers_are_found(name: str, last: str, routers: int) -> None:
    """DeepSeek-V3: 61 layers, of which the first three are dense."""
    layers = decoding(name).layers
    parts = parts_of(layers, reads_tokens=True)
    assert [layer.name for layer, part in zip(layers, parts) if part == "head"] == [last]
    assert parts.count("router") == routers and parts.count("embedding") == 1
    assert "head" not in parts_of(layers, reads_tokens=False)


def test_a_divided_head_is_found() -> None:
    """128,256 / 8 columns are fewer than the 16,384 rows of Llama 3.1 405B."""
    layers = decoding("llama-3.1-405b", tensor=8).layers
    assert parts_of(layers, reads_tokens=True).count("head") == 1


def test_a_block_has_no_head() -> None:
    layers = [layer for layer in decoding("llama-3.2-1b").layers if layer.name.startswith("model.layers.3.")]
    assert "head" not in parts_of(layers, reads_tokens=True)


def test_a_format_for_experts_stores_all_blocks_of_a_network_without_experts() -> None:
    layers = decoding("llama-3.2-1b").layers
    assert is_stored(layers, FORMATS["mxfp4"], True) == is_stored(layers, FORMATS["nvfp4"], True)
    assert sum(is_stored(layers, FORMATS["mxfp4"], True)) == 16 * 7
    assert not any(is_stored(layers, None, True))


def read_bytes(workload: Workload) -> dict[str, int]:
    """Bytes read of the layers that differ most in format, by name."""
    read = workload.work.column("bytes_read", "inference", 1)[0]
    names = ("model.embed_tokens", "model.layers.0.self_attn.q_proj", "model.norm", "lm_head")
    return {layer.name: int(count) for layer, count in zip(workload.network.layers, read) if layer.name in names}


@pytest.mark.parametrize(("precision", "stored_bytes", "number_bytes"), [("fp8", 1, 1), ("fp4", 0.5625, 2)])
def test_a_step_reads_weights_in_their_format(precision: str, stored_bytes: float, number_bytes: int) -> None:
    """Llama 3.2 1B of one token: hidden size 2,048, vocabulary 128,256; activations in the size of the precision."""
    options = SequenceOptions(context=15, phase="decode")
    network = find_network("llama-3.2-1b", None, options)
    read = read_bytes(Workload(network, precision, 1, "decode", "eager"))
    assert read["model.embed_tokens"] == 2 * 2048 + 8  # a row, and its index
    assert read["model.layers.0.self_attn.q_proj"] == 2048 * 2048 * stored_bytes + 2048 * number_bytes
    assert read["model.norm"] == 2 * 2048 + 2048 * number_bytes
    assert read["lm_head"] == 2 * 128256 * 2048 + 2048 * number_bytes


def test_biases_and_the_rows_of_a_table_keep_16_bits() -> None:
    """An embedding without tokens that grow with the batch, and a product with a bias."""
    layers = (
        Layer("positions", "embedding", ((1, 4),), ((1, 4, 8),), ((16, 8),), (-2,), 128),
        Layer("dense", "linear", ((1, 4, 8),), ((1, 4, 8),), ((8, 8), (8,)), (INPUT,), 72),
    )
    workload = Workload(Network("made", ((1, 4, 8),), layers, 200), "int8")
    read = workload.work.column("bytes_read", "inference", 2)[0]
    assert read.tolist() == [2 * 4 * 8 + 8 * 4, 8 * 8 + 2 * 8 + 2 * 4 * 8]
    assert model_bytes(workload)[0] == 2 * 128 + 64 + 2 * 8


def test_all_parameters_have_16_bits_unless_quantized() -> None:
    wide = decoding("llama-3.2-1b")
    assert model_bytes(wide)[0] == 2 * 1_235_814_400
    assert model_bytes(decoding("llama-3.2-1b", "fp8", "bf16"))[0] == model_bytes(wide)[0]
    assert decoding("llama-3.2-1b", "bf16", "nvfp4").work.wide is None


def test_products_of_16_bits_run_at_the_peak_of_16_bits() -> None:
    """B200: 9 PFLOP/s in fp4 and 2.25 in bf16. Head and attention are computed in bf16, as their operands are."""
    machine = Machine(find_device("b200"))
    options = SequenceOptions(length=4096, phase="prefill")
    workload = Workload(find_network("llama-3.2-1b", None, options), "fp4", 1, "prefill", "engine")
    terms = RooflineModel().evaluate(workload, machine)
    flops = workload.work.column("flops", "prefill", 1)[0]
    peaks = {layer.name: flops[i] / terms.compute_s[0, i] for i, layer in enumerate(workload.layers) if flops[i]}
    assert peaks["model.layers.0.mlp.up_proj"] == pytest.approx(9e15)
    assert peaks["lm_head"] == pytest.approx(2.25e15)
    attention = [name for name, layer in zip(workload.work.names, workload.layers) if layer.kind == "attention"]
    assert len(attention) == 16
    assert [peaks[name] for name in attention] == pytest.approx([2.25e15] * 16)


def test_products_of_activations_in_8_bits_run_at_the_peak_of_8_bits() -> None:
    workload = decoding("llama-3.2-1b", "fp8")
    assert workload.work.wide is not None
    wide = [layer.name for layer, is_wide in zip(workload.layers, workload.work.wide) if is_wide]
    assert wide == ["lm_head"]


def test_devices_without_bf16_compute_16_bits_in_fp16_or_fp32() -> None:
    for name, precision in (("b200", "bf16"), ("t4", "fp16"), ("p4", "fp32")):
        assert Machine(find_device(name)).wide_peak().peak.precision == precision


@pytest.mark.parametrize("precision", ["fp4", "fp8"])
def test_many_batch_sizes_match_a_single_prediction(tmp_path, precision: str) -> None:
    space = Space(
        networks=("llama-3.2-1b",), gpus=("b200",), precisions=(precision,), phases=("prefill", "decode", "inference"),
        sequence_lengths=(64,), batch_sizes=(1, 16),
    )  # fmt: skip
    swept = run_sweep(space.resolve_names(), tmp_path / "rows.csv", choose_model, jobs=1).to_frame()
    assert len(swept) >= 6
    for row in swept.itertuples():
        length = "context" if row.phase == "decode" else "sequence_length"
        one = pl.predict(
            "llama-3.2-1b", gpu="b200", precision=precision, phase=row.phase, batch_size=row.batch_size, memory=True,
            **{length: 64},
        )  # fmt: skip
        if row.phase == "inference":  # the bound of fused layers leaves out what they compute besides
            assert row.time_s == pytest.approx(one.time_s, rel=1e-12)
        assert row.memory_bytes == one.memory.memory.total_bytes


def test_phases_do_not_share_counts_of_quantized_weights() -> None:
    training = Workload(find_network("alexnet"), "fp8", phase="training")
    inference = training.with_changes(phase="inference")
    assert training.work.fixed.sum() != inference.work.fixed.sum()
    assert np.array_equal(inference.work.fixed, Workload(find_network("alexnet"), "fp8").work.fixed)


def test_the_cache_of_a_network_in_fp4_has_16_bits() -> None:
    """Llama 3.2 1B: 16 layers, 8 key and value heads of 64."""
    prediction = pl.predict("llama-3.2-1b", gpu="b200", precision="fp4", phase="decode", context=1023)
    assert cache_bytes_per_sequence(prediction.workload) == 1024 * 16 * 2 * 8 * 64 * 2


def test_a_server_with_a_cache_of_4_bits() -> None:
    """B200: 0.9 of 180 GB, without weights and activations, in 16 x 2 x 8 x 64 x 0.5625 bytes per token."""
    asked = {"rate": 1, "num_requests": 4, "seed": 1, "precision": "fp4"}
    wide, narrow = (pl.serve("llama-3.2-1b", gpu="b200", kv_cache=kv_cache, **asked) for kv_cache in (None, "nvfp4"))
    assert (wide.kv_cache, narrow.kv_cache) == ("bf16", "nvfp4")
    assert narrow.cache_tokens / wide.cache_tokens == pytest.approx(16 / 4.5, rel=1e-3)


@pytest.mark.parametrize("name", ["q4_k_m", "mlx-4bit"])
def test_a_cache_has_no_mixture_of_formats(name: str) -> None:
    """A mixture gives every matrix a format of its own; keys and values are no matrices of weights."""
    with pytest.raises(BadValue, match=r"`--kv-cache` must be one of .*fp8.*got '" + name):
        pl.serve("llama-3.2-1b", gpu="b200", kv_cache=name, rate=1)


def test_a_device_without_fp4_says_what_it_has() -> None:
    with pytest.raises(UnknownPrecision, match=r"H100 SXM5 80GB has no fp4 peak: it has .*fp8"):
        pl.predict("llama-3.2-1b", gpu="h100-sxm", precision="fp4", phase="decode")


def test_mixed_precision_in_fp4_multiplies_in_fp4_and_stores_16_bits() -> None:
    precision, options = TrainingOptions("adam", mixed_precision=True).split_precision("fp4")
    assert (precision, options.products) == ("bf16", "fp4")

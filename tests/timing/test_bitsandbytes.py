"""Products with weights in int8 as bitsandbytes computes them, and how long they take."""

from __future__ import annotations

from math import exp, log

import numpy as np
import pytest

import paleo_lite as pl
from asked import predict_any
from paleo_lite.architectures import Network, find_network
from paleo_lite.architectures.network import SequenceOptions
from paleo_lite.architectures.stored_weights import StoredWeights
from paleo_lite.counting import INPUT, Layer
from paleo_lite.formats import FORMATS
from paleo_lite.timing.bitsandbytes import INT8_PRODUCT, insert_int8_kernels, is_nf4
from paleo_lite.timing.training_options import TrainingOptions
from paleo_lite.timing.workload import Workload

ROWS, DEPTH, WIDTH = 5, 8, 12


def _linear(phase: str, precision: str = "bf16", training: TrainingOptions | None = None) -> Workload:
    first = Layer("first", "linear", ((ROWS, DEPTH),), ((ROWS, DEPTH),), ((DEPTH, DEPTH),), (-1,), DEPTH**2)
    chosen = Layer("chosen", "linear", ((ROWS, DEPTH),), ((ROWS, WIDTH),), ((WIDTH, DEPTH),), (0,), WIDTH * DEPTH)
    head = Layer("head", "linear", ((ROWS, WIDTH),), ((ROWS, 2),), ((2, WIDTH),), (1,), 2 * WIDTH)
    network = Network("linear", ((ROWS, DEPTH),), (first, chosen, head), DEPTH**2 + WIDTH * DEPTH + 2 * WIDTH)
    return Workload(
        network, precision, phase=phase, weights="int8", training=training, int8_kernels=True, execution="eager"
    )


def _column(workload: Workload, name: str, pass_name: str) -> dict[str, int]:
    values = workload.work.column(name, pass_name, 1)[0]
    return dict(zip(workload.work.names, map(int, values)))


@pytest.mark.parametrize(("precision", "cast", "casts"), [("fp16", 0, 0), ("bf16", 2, 1)])
def test_kernels_and_bytes_of_the_forward_pass(precision: str, cast: int, casts: int) -> None:
    """Operators of ``int8_vectorwise_quant`` and of ``int8_mixed_scaled_mm`` in bitsandbytes' source, by hand."""
    workload = _linear("training", precision, TrainingOptions(lora_rank=2))
    kernels = _column(workload, "kernels", "forward")
    read, written = _column(workload, "bytes_read", "forward"), _column(workload, "bytes_written", "forward")
    # To fp16; abs, >=, any, any(dim=0), argwhere, quantization, zeros in columns with outliers.
    assert kernels["chosen.quantize"] == 7 + casts
    assert read["chosen.quantize"] == ROWS * DEPTH * (2 + 2 + 1 + 1 + 2 + cast)
    assert written["chosen.quantize"] == ROWS * DEPTH * (2 + 1 + 1 + cast)
    # An int8 product with sums in int32.
    assert kernels["chosen"] == 1
    assert read["chosen"] == ROWS * DEPTH + WIDTH * DEPTH
    assert written["chosen"] == 4 * ROWS * WIDTH
    # Two gathers, two products with scales and a conversion of columns, scaling of the sums, their cast, and addmm.
    assert kernels["chosen.scale"] == 7 + casts
    assert read["chosen.scale"] == ROWS * WIDTH * (4 + 2 + cast)
    assert written["chosen.scale"] == ROWS * WIDTH * (2 + 2 + cast)
    assert kernels["chosen.dequantize"] == 0


def test_the_backward_pass_multiplies_by_converted_weights() -> None:
    """``CB.to(dtype, copy=True).mul_(scales)``, then a product in 16 bits; nothing around it has a gradient."""
    workload = _linear("training", "bf16", TrainingOptions(lora_rank=2))
    read, kernels = _column(workload, "bytes_read", "backward_data"), _column(workload, "kernels", "backward_data")
    assert read["chosen.dequantize"] == WIDTH * DEPTH * (1 + 2) and kernels["chosen.dequantize"] == 3
    assert _column(workload, "bytes_written", "backward_data")["chosen.dequantize"] == WIDTH * DEPTH * (2 + 2)
    assert read["chosen"] == 2 * (ROWS * WIDTH + WIDTH * DEPTH)
    assert kernels["chosen.quantize"] == kernels["chosen.scale"] == 0
    is_narrow = workload.narrow_products_in(("forward", "backward_data", "recompute"))
    index = workload.work.names.index("chosen")
    assert is_narrow[:, index].tolist() == [True, False, True]
    assert not is_narrow[:, workload.work.names.index("head")].any()


def test_devices_without_integer_products_convert_the_weights() -> None:
    """LLM.int8() needs Turing or later (bitsandbytes, installation guide)."""
    question = {"precision": "fp16", "lora": 8, "weights": "int8", "sequence_length": 64}
    t4, v100 = (pl.train("gpt2", gpu=gpu, **question).workload for gpu in ("t4", "v100-sxm2"))
    assert t4.multiplies_int8 and any(INT8_PRODUCT in layer.attributes for layer in t4.layers)
    assert not any(INT8_PRODUCT in layer.attributes for layer in v100.layers)
    assert any(name.endswith(".dequantize") for name in v100.work.names)


def test_adapters_read_what_the_product_quantizes() -> None:
    network = find_network("gpt2", options=SequenceOptions(16, phase="training"))
    workload = Workload(
        network, "bf16", phase="training", weights="int8", training=TrainingOptions(lora_rank=4), int8_kernels=True
    )
    layers = workload.layers
    quantized = next(index for index, layer in enumerate(layers) if layer.attributes.get(INT8_PRODUCT) == "quantize")
    source = layers[quantized].parents[0]
    adapter = next(layer for layer in layers[quantized:] if layer.attributes.get("adapter") == "product")
    assert adapter.parents[0] == source
    names = [layer.name for layer in layers]
    assert names.index(layers[quantized].name) < names.index(layers[quantized].name.replace("quantize", "scale"))


# Seconds per token of transformers 4.46 with 16-bit weights and with LLM.int8(), bitsandbytes 0.45, at 1, 8 and 32
# sequences: bitsandbytes, benchmarking/README.md, "INT8+Decomp".
PUBLISHED = [
    ("t4", "fp16", "qwen2.5-3b", (0.0390, 0.0422, 0.0601), (0.1672, 0.1812, 0.1912)),
    ("rtx4090", "bf16", "llama-3.1-8b", (0.0211, 0.0239, 0.0304), (0.0449, 0.0478, 0.0512)),
    ("h100-sxm", "bf16", "llama-3.1-8b", (0.0244, 0.0255, 0.0261), (0.0817, 0.0853, 0.0864)),
    ("h100-sxm", "bf16", "qwen2.5-32b", (0.0508, 0.0525, 0.0547), (0.1820, 0.1958, 0.2027)),
]


def test_decoding_is_as_much_slower_as_published() -> None:
    """The mean ratio to 16 bits is within 15% of the published one, though hosts of the machines differ by a factor."""
    logs = []
    for device, precision, network, plain_s, int8_s in PUBLISHED:
        for batch_size, plain, int8 in zip((1, 8, 32), plain_s, int8_s):
            options = {"gpu": device, "precision": precision, "phase": "decode", "execution": "eager", "context": 128}
            ours = [
                predict_any(network, batch_size=batch_size, weights=weights, **options).time_s
                for weights in (None, "int8")
            ]
            logs.append(log(ours[1] / ours[0]) - log(int8 / plain))
    assert exp(abs(np.mean(logs))) < 1.15
    assert exp(max(map(abs, logs))) < 2.2


# The same table, with weights in nf4 and quantized scales ("NF4+DQ"), in the order of `PUBLISHED`.
PUBLISHED_NF4 = (
    (0.0736, 0.1042, 0.1215), (0.0175, 0.0443, 0.0471), (0.0411, 0.0566, 0.0577), (0.0860, 0.1209, 0.1298)
)  # fmt: skip


def test_decoding_in_nf4_is_as_much_slower_as_published() -> None:
    """Of several sequences the weights are converted for every product, which takes twice the time of 16 bits.

    The mean ratios to 16 bits are within 20% of the published ones; without kernels for it they are 0.61 and 0.42.
    """
    logs: dict[bool, list[float]] = {True: [], False: []}
    for (device, precision, network, plain_s, _), nf4_s in zip(PUBLISHED, PUBLISHED_NF4):
        for batch_size, plain, nf4 in zip((1, 8, 32), plain_s, nf4_s):
            options = {"gpu": device, "precision": precision, "phase": "decode", "execution": "eager", "context": 128}
            ours = [
                predict_any(network, batch_size=batch_size, weights=weights, **options).time_s
                for weights in (None, "nf4")
            ]
            logs[batch_size == 1].append(log(ours[1] / ours[0]) - log(nf4 / plain))
    assert all(exp(abs(np.mean(errors))) < 1.25 for errors in logs.values())
    assert exp(max(map(abs, logs[False]))) < 1.45


@pytest.mark.parametrize(("rows", "batch_size", "is_converted"), [(1, 1, False), (1, 2, True), (ROWS, 1, True)])
def test_kernels_of_products_in_nf4_by_hand(rows: int, batch_size: int, is_converted: bool) -> None:
    """Half a byte and a quantized scale per 64 numbers are read, two bytes written, and read by the product.

    `gemv_4bit` reads the weights of a single row as they are stored; `dequantize_blockwise` of the scales and a sum
    with their mean come before either.
    """
    numbers, stored_bytes = 64 * 64, FORMATS["nf4"].bytes_per_number
    product = Layer("product", "linear", ((rows, 64),), ((rows, 64),), ((64, 64),), (-1,), numbers)
    network = Network("linear", ((rows, 64),), (product,), numbers)
    workload = Workload(network, "bf16", batch_size, weights="nf4", execution="eager")

    def column(name: str) -> dict[str, int]:
        return dict(zip(workload.work.names, map(int, workload.work.column(name, "inference", batch_size)[0])))

    read, written, kernels = (column(name) for name in ("bytes_read", "bytes_written", "kernels"))
    if is_converted:
        assert kernels == {"product.dequantize": 3, "product": 1}
        assert read["product.dequantize"] == pytest.approx(numbers * stored_bytes, abs=1)
        assert written["product.dequantize"] == 2 * numbers
        assert read["product"] == 2 * (batch_size * rows * 64 + numbers)
    else:
        assert kernels == {"product.scales": 2, "product": 1}
        assert (read["product.scales"], written["product.scales"]) == (numbers / 64, 4 * numbers / 64)
        assert read["product"] == pytest.approx(2 * 64 + numbers * stored_bytes, abs=1)
    other = workload.with_changes(batch_size=3)
    assert next(layer.name for layer in other.layers) == "product.dequantize"
    assert other.work.names == tuple(layer.name for layer in other.layers)


@pytest.mark.parametrize(("recompute", "blocks"), [("none", 32), ("full", 1)])
def test_products_in_int8_save_their_inputs(recompute: str, blocks: int) -> None:
    """``MatMul8bitLt`` keeps its input also where its weight is frozen and has no adapter, ``MatMul4Bit`` does not.

    Beside adapters of queries and values these are the inputs of gate and up projection (4,096 numbers a token in Llama
    2 7B) and of the down projection (11,008); attention saves the input of the output projection anyway.
    """
    asked = {
        "network": "llama-2-7b", "gpu": "a100-sxm-80gb", "lora": 16, "sequence_length": 1024, "recompute": recompute,
        "trainable": "adapters=q_proj,v_proj",
    }  # fmt: skip
    int8, nf4, plain = (
        pl.train(**asked, weights=weights).memory.memory.activations_bytes for weights in ("int8", "nf4", None)
    )
    assert nf4 == plain
    assert int8 - plain == blocks * 1024 * 2 * (4096 + 11008)


@pytest.mark.parametrize(
    ("method", "name", "expected"),
    [
        ("bitsandbytes", "nf4", True),
        ("bitsandbytes", "fp4", False),
        ("gptq", "nf4", False),
        ("bitsandbytes", None, False),
    ],
)
def test_kernels_for_nf4_are_for_weights_that_bitsandbytes_stored(
    method: str, name: str | None, expected: bool
) -> None:
    """``bnb_4bit_quant_type`` of a checkpoint is nf4 or fp4; without 4 bits nothing is stored in either."""
    assert is_nf4(StoredWeights(method, None if name is None else FORMATS[name])) == expected
    assert is_nf4(FORMATS["nf4"]) and not is_nf4(FORMATS["int8"])


@pytest.mark.parametrize("has_gradients", [False, True])
def test_a_product_in_int8_reads_its_quantized_input(has_gradients: bool) -> None:
    """Dettmers et al. 2022: quantize the input, multiply, and scale the result, which the next layer quantizes."""
    layers = [
        Layer(name, "linear", ((1, 4, 8),), ((1, 4, 8),), ((8, 8),), (parent,), 64)
        for name, parent in (("a", INPUT), ("b", 0))
    ]
    found = insert_int8_kernels(layers, [True, True], "bf16", has_gradients)
    read_by = {layer.name: [found[parent].name for parent in layer.parents[:1] if parent >= 0] for layer in found}
    chain = ["a.quantize", "a", "a.scale", "b.quantize", "b", "b.scale"]
    for before, layer in zip(["", *chain], chain):
        assert read_by[layer] == ([before] if before else [])

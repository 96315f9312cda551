"""Products with weights in int8 as bitsandbytes computes them, and how long they take."""

from __future__ import annotations

from math import exp, log

import numpy as np
import pytest

import paleo_lite as pl
from asked import predict_any
from paleo_lite.architectures import Network, find_network
from paleo_lite.architectures.network import SequenceOptions
from paleo_lite.counting import Layer
from paleo_lite.timing.bitsandbytes import INT8_PRODUCT
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

"""The constants of pipelines, against published batches and steps."""

from __future__ import annotations

from functools import partial

import msgspec
import numpy as np
import pytest

from asked import predict_any
from paleo_lite.architectures.pipelines.sampling import read_part
from paleo_lite.calibration.choose import choose_model
from paleo_lite.counting import count
from paleo_lite.errors import BadValue
from paleo_lite.timing.diffusion import diffusion_constants
from paleo_lite.timing.pipelines import predict_pipeline
from paleo_lite.timing.quantization import CONVERSION, QUANTIZATION

# Seconds of a batch: ML.ENERGY Benchmark v3 (H100, B200); model card of TheStageAI/Elastic-FLUX.1-dev (L40S); tutorial
# of diffusers on fast inference (A100).
BATCHES = [
    ("pixart-sigma", "b200", {"steps": 20, "batch_size": 8}, 6.2077),
    ("sd-3.5-medium", "h100-sxm", {"steps": 28, "batch_size": 4}, 12.4974),
    ("wan-2.1-1.3b", "h100-sxm", {"steps": 50, "frames": 81, "image_size": "832x480"}, 95.3574),
    ("flux.1-dev", "l40s", {"steps": 28}, 16.0),
    ("sdxl", "a100-sxm-80gb", {"steps": 30, "execution": "compiled"}, 2.538),
]


@pytest.mark.parametrize("name, gpu, asked, measured_s", BATCHES)
def test_published_batches_are_inside_the_intervals(name: str, gpu: str, asked: dict, measured_s: float) -> None:
    prediction = predict_any(name, gpu=gpu, precision="bf16", **asked)
    low_s, high_s = prediction.interval
    assert low_s < measured_s < high_s
    assert prediction.time_s == pytest.approx(measured_s, rel=0.2)


def denoiser_with(**changed: float) -> tuple:
    """Return the denoiser's prediction of FLUX.1-dev on an H100 with the shipped constants, and with changed ones."""
    prediction = predict_any("flux.1-dev", gpu="h100-sxm", precision="bf16", steps=1)
    constants = msgspec.structs.replace(diffusion_constants(), **changed)
    device = prediction.machine.device
    other = predict_pipeline(prediction.run, prediction.machine, partial(choose_model, device), constants)
    return tuple(
        next(part for part in parts if part.part.role == "denoiser").prediction
        for parts in (prediction.parts, other.parts)
    )


def test_attention_takes_the_cycles_of_products_and_softmax() -> None:
    """24 heads of 128 over 4,608 tokens in 57 blocks, 132 multiprocessors at 1.98 GHz, at an Ampere kernel's rates."""
    _, changed = denoiser_with(flops_per_cycle=1024.0, scores_per_cycle=4.0)
    is_attention = np.array([kind == "attention" for kind in changed.kinds])
    scores = 57 * 24 * 4608**2
    cycles = scores * 4 * 128 / 1024 + scores / 4
    device = changed.device
    expected_s = cycles / (float(device.cores.multiprocessors.value) * device.clock_hz("boost"))
    assert changed.terms.compute_s[0, is_attention].sum() == pytest.approx(expected_s, rel=0.02)


def test_a_faster_kernel_is_bounded_by_the_products_of_the_device() -> None:
    """Products of matrices reach 0.59 to 1.0 of the peak of an H100 (tables of products under engines, PyTorch)."""
    _, changed = denoiser_with(flops_per_cycle=1e6, scores_per_cycle=1e6)
    is_attention = np.array([kind == "attention" for kind in changed.kinds])
    flops = 57 * 4 * 24 * 4608**2 * 128
    at_peak_s = flops / changed.peak.per_s
    assert 0.95 < changed.terms.compute_s[0, is_attention].sum() / at_peak_s < 1 / 0.59


def attention_s(network: str, gpu: str, **asked: object) -> float:
    """Return the seconds of arithmetic of a step's attention."""
    prediction = predict_any(network, gpu=gpu, **asked).denoiser.prediction
    return prediction.terms.compute_s[0, np.array([kind == "attention" for kind in prediction.kinds])].sum()


def test_heads_are_padded_to_those_of_the_kernels() -> None:
    """FlashAttention 2 has kernels for multiples of 32: a head of PixArt's, of 72 elements, takes as long as one of 96.
    16 heads, 28 blocks, self-attention over 4,096 tokens and cross-attention to 300, two samples."""
    constants = diffusion_constants()
    scores = 2 * 28 * 16 * 4096 * (4096 + 300)
    cycles = scores * (4 * 96 / constants.flops_per_cycle + 1 / constants.scores_per_cycle)
    measured_s = attention_s("pixart-sigma", "h100-sxm", precision="bf16", steps=1)
    assert measured_s == pytest.approx(cycles / (132 * 1.98e9), rel=0.03)


@pytest.mark.parametrize("name, tflops", [("flash3", 616), ("cudnn", 539)])
def test_kernels_of_the_generation_reach_their_published_rates(name: str, tflops: float) -> None:
    """Heads of 128 over thousands of tokens on an H100 (Shah et al. 2024, FlashAttention-3, figure 5).

    The figure is of 8,192 keys in the mean, the network attends to 4,608.
    """
    seconds = attention_s("flux.1-dev", "h100-sxm", precision="bf16", steps=1, attention=name)
    assert seconds == pytest.approx(57 * 4 * 24 * 4608**2 * 128 / (tflops * 1e12), rel=0.07)


def test_attention_on_an_ampere_reaches_the_measured_shares() -> None:
    """FlashAttention 2 reaches 0.55 to 0.64 of the peak of an A100 with heads of 128 over thousands of tokens
    (modern/attention_modern.csv.gz: vLLM, SGLang)."""
    seconds = attention_s("flux.1-dev", "a100-sxm-80gb", precision="bf16", steps=1)
    assert 0.55 < 57 * 4 * 24 * 4608**2 * 128 / 312e12 / seconds < 0.64


def test_in_narrow_precisions_products_with_weights_alone_are_narrow() -> None:
    """Libraries such as torchao quantize linear layers and their inputs; attention and the rest stay in bf16."""
    narrow, wide = (
        predict_any("flux.1-dev", gpu="h100-sxm", precision=name, steps=1).denoiser.prediction
        for name in ("fp8", "bf16")
    )
    is_attention = np.array([kind == "attention" for kind in narrow.kinds])
    is_linear = np.array([kind == "linear" for kind in narrow.kinds])
    macs, of_attention = 37_192_326_709_248, 57 * 2 * 24 * 4608**2 * 128  # FlopCounterMode on the module of diffusers
    bound_s = narrow.bound_terms.compute_s[0]
    assert bound_s[is_attention].sum() == pytest.approx(2 * of_attention / 989.4e12, rel=0.02)  # and the softmax
    assert bound_s[is_linear].sum() == pytest.approx(2 * (macs - of_attention) / 1978.9e12, rel=0.01)
    attended = [found.terms.layers_s[0, np.array(found.kinds) == "attention"].sum() for found in (narrow, wide)]
    assert attended[0] == pytest.approx(attended[1], rel=0.01)
    is_quantizing = np.array([layer.origin == QUANTIZATION for layer in narrow.layers])
    shapes = [layer.inputs[0] for layer, chosen in zip(narrow.layers, is_quantizing) if chosen]
    assert narrow.bytes_by_pass[0, is_quantizing].sum() == sum(3 * np.prod(shape) for shape in shapes)


def test_weights_of_a_narrow_denoiser_are_narrow_in_linear_layers() -> None:
    network = read_part("sdxl-unet", (("h", 128), ("w", 128), ("f", 1), ("t", 77)))
    linear = sum(int(np.prod(layer.weights[0])) for layer in network.layers if layer.kind == "linear")
    prediction = predict_any("sdxl", gpu="h100-sxm", precision="fp8", steps=1)
    assert prediction.denoiser.parameters_bytes == linear + 2 * (network.parameters - linear)
    assert {part.prediction.precision for part in prediction.parts} == {"bf16"}


def test_only_eager_kernels_between_products_are_bounded_by_cycles() -> None:
    before, changed = denoiser_with(bytes_per_cycle=0.01)
    is_product = before.terms.compute_s[0] > before.terms.memory_s[0]
    ratios = (changed.terms.memory_s / np.maximum(before.terms.memory_s, 1e-30))[0]
    assert ratios[~is_product & (before.terms.memory_s[0] > 0)].max() > 100
    eager, compiled = (
        predict_any("flux.1-dev", gpu="b200", precision="bf16", execution=name).time_s for name in ("eager", "compiled")
    )
    assert compiled < 0.8 * eager


def test_a_bound_of_multiprocessors_holds_on_every_generation() -> None:
    """Attention of CogVideoX takes as long on a B200 as on an H100, whose tensor cores have less than half the peak:
    34.66 s and 43.02 s of ML.ENERGY's batches."""
    times = [predict_any("cogvideox-2b", gpu=gpu, precision="bf16").time_s for gpu in ("h100-sxm", "b200")]
    assert times[0] / times[1] == pytest.approx(43.02 / 34.66, rel=0.1)


def test_attention_of_other_implementations() -> None:
    """FlashAttention 2 runs on Blackwell without being written for it, as in the measured batches; cuDNN's is."""
    asked = {"gpu": "b200", "precision": "bf16", "steps": 2, "frames": 81}
    times = {name: predict_any("wan-2.1-1.3b", attention=name, **asked).time_s for name in (None, "flash2", "cudnn")}
    assert times["flash2"] == times[None] > 1.3 * times["cudnn"]
    with pytest.raises(BadValue, match="flash3` has kernels for compute capability"):
        predict_any("wan-2.1-1.3b", attention="flash3", **asked)


def test_layers_in_fp32_of_a_16_bit_network_move_four_bytes_per_element() -> None:
    """Diffusers' RMS norm converts to fp32, and squares there: 4 bytes read and 4 written per element."""
    network = read_part("sd-3.5-medium-transformer", (("h", 64), ("w", 64), ("f", 1), ("t", 333)))
    index = next(index for index, layer in enumerate(network.layers) if layer.kind == "pow")
    elements = int(np.prod(network.layers[index].inputs[0]))
    for precision in ("bf16", "fp32"):
        assert count(network.layers, precision).column("bytes", "inference")[0, index] == 8 * elements
    linear = next(index for index, layer in enumerate(network.layers) if layer.kind == "linear")
    narrow, wide = (count(network.layers, name).column("bytes", "inference")[0, linear] for name in ("bf16", "fp32"))
    assert wide == 2 * narrow


@pytest.mark.parametrize("weights, bits", [("nf4", 4 + (8 + 32 / 256) / 64), ("q8_0", 8.5)])
def test_weights_are_converted_before_each_product(weights: str, bits: float) -> None:
    """bitsandbytes' MatMul4Bit and ComfyUI's nodes for GGUF convert a matrix to 16 bits before its product."""
    asked = {"gpu": "h100-sxm", "precision": "bf16", "steps": 1}
    stored, wide, fused = (
        predict_any("flux.1-dev", **asked, **options).denoiser.prediction
        for options in ({"weights": weights}, {}, {"weights": weights, "execution": "tensorrt"})
    )
    is_conversion = np.array([layer.origin == CONVERSION for layer in stored.layers])
    numbers = sum(int(np.prod(layer.weights[0])) for layer in wide.layers if layer.kind == "linear")
    added = stored.bytes_by_pass[0, is_conversion].sum()
    assert added == pytest.approx(numbers * (bits / 8 + 2), rel=1e-3)
    assert stored.bytes_by_pass.sum() - added == wide.bytes_by_pass.sum()
    assert not any(layer.origin == CONVERSION for layer in fused.layers)
    assert stored.model.constants == wide.model.constants and stored.time_s > wide.time_s


def test_products_in_eight_bits_read_weights_in_eight_bits() -> None:
    with pytest.raises(BadValue, match="products in fp8 read weights in fp8: leave `--weights nf4` out"):
        predict_any("flux.1-dev", gpu="h100-sxm", precision="fp8", weights="nf4")
    for asked in ({"precision": "fp8"}, {"precision": "bf16", "weights": "nf4"}):
        with pytest.raises(BadValue, match="`--execution autocast` keeps weights in fp32, not in"):
            predict_any("flux.1-dev", gpu="h100-sxm", execution="autocast", **asked)


def interval_width(**asked: object) -> float:
    """Return the ratio of the ends of the interval of FLUX.1-dev on an H100."""
    low_s, high_s = predict_any("flux.1-dev", gpu="h100-sxm", steps=4, **asked).interval
    return high_s / low_s


def test_intervals_are_wider_for_what_was_not_measured() -> None:
    """The batches on H100 and B200 ran eagerly in bf16, with FlashAttention 2."""
    measured = interval_width(precision="bf16")
    assert measured < interval_width(precision="fp8") < interval_width(precision="fp32")
    for asked in ({"execution": "compiled"}, {"execution": "tensorrt"}, {"attention": "flash3"}):
        assert interval_width(precision="bf16", **asked) > 1.2 * measured

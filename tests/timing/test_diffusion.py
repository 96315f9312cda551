"""The constants of pipelines, against published batches and steps."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

import paleo_lite as pl
from paleo_lite.architectures.pipelines.sampling import read_part
from paleo_lite.counting import count
from paleo_lite.timing.diffusion import diffusion_constants
from paleo_lite.timing.pipelines import predict_pipeline

# Seconds of a batch: ML.ENERGY Benchmark v3 (H100, B200); model card of TheStageAI/Elastic-FLUX.1-dev (L40S); tutorial
# of diffusers on fast inference (A100).
BATCHES = [
    ("pixart-sigma", "b200", {"steps": 20, "images": 8}, 6.2077),
    ("sd-3.5-medium", "h100-sxm", {"steps": 28, "images": 4}, 12.4974),
    ("wan-2.1-1.3b", "h100-sxm", {"steps": 50, "frames": 81, "image_size": "832x480"}, 95.3574),
    ("flux.1-dev", "l40s", {"steps": 28}, 16.0),
    ("sdxl", "a100-sxm-80gb", {"steps": 30, "execution": "compiled"}, 2.538),
]


@pytest.mark.parametrize("name, gpu, asked, measured_s", BATCHES)
def test_published_batches_are_inside_the_intervals(name: str, gpu: str, asked: dict, measured_s: float) -> None:
    prediction = pl.predict(name, gpu=gpu, precision="bf16", **asked)
    low_s, high_s = prediction.interval
    assert low_s < measured_s < high_s
    assert prediction.time_s == pytest.approx(measured_s, rel=0.2)


def test_factors_scale_the_time_of_their_class() -> None:
    prediction = pl.predict("flux.1-dev", gpu="h100-sxm", precision="bf16", steps=1)
    constants = diffusion_constants()
    slower = msgspec.structs.replace(constants.generations["9"], attention=10.0)
    changed = predict_pipeline(
        prediction.pipeline,
        prediction.sampling,
        prediction.machine,
        prediction.model,
        precision="bf16",
        constants=msgspec.structs.replace(constants, generations={"9": slower}),
    )
    before, after = (
        next(part for part in parts if part.part.role == "denoiser").prediction
        for parts in (prediction.parts, changed.parts)
    )
    is_attention = np.array([kind == "attention" for kind in before.kinds])
    ratios = (after.terms.compute_s / np.maximum(before.terms.compute_s, 1e-30))[0]
    assert ratios[is_attention].min() == pytest.approx(10 / constants.generations["9"].attention)
    assert ratios[~is_attention & (before.terms.compute_s[0] > 0)].max() == pytest.approx(1)


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

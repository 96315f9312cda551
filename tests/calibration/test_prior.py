"""Features and priors of the calibrated model, and their documentation."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import pytest

import paleo_lite as pl
from paleo_lite.architectures import find_network
from paleo_lite.calibration.prior import BASE, Evidence, base_prior, prior_from_evidence, traits_of
from paleo_lite.machines import Machine, find_device
from paleo_lite.timing.calibrated import rates_of, step_times
from paleo_lite.timing.features import features_of, merge_identical_entries
from paleo_lite.timing.parameters import NAMES, PARAMETERS
from paleo_lite.timing.workload import Workload


@pytest.mark.parametrize("phase", ["inference", "training"])
def test_equal_entries_can_be_merged(phase: str) -> None:
    whole = features_of(Workload(find_network("resnet152"), batch_size=8, phase=phase))
    merged = merge_identical_entries(whole)
    assert len(merged.flops) < len(whole.flops) / 3
    rates, values = rates_of(Machine(find_device("v100-sxm2")), "fp32"), np.exp(base_prior(False).mean)
    times = [
        step_times(features, rates, values, np.zeros(len(features.flops), dtype=np.int64), 1)[0]
        for features in (whole, merged)
    ]
    assert times[1] == pytest.approx(times[0], rel=1e-12)


def test_one_step_says_nothing_about_the_host() -> None:
    """A slow large step may be that of a slow device."""
    device = find_device("a100-sxm-40gb")
    target = traits_of(device, "fp16", execution="compiled")
    other = {**msgspec.structs.asdict(traits_of(device, "fp16", software="mxnet", execution="compiled", source="one"))}
    index = NAMES.index("overhead_gradient_s")
    theta = base_prior(True, precision="fp16").mean.copy()
    theta[index] += 1.0
    fits = [
        Evidence(**other, points=points, theta=tuple(theta), deviation=tuple([0.1] * len(NAMES))) for points in (1, 4)
    ]
    alone, several = (prior_from_evidence(target, [fit]).mean[index] for fit in fits)
    assert alone == pytest.approx(theta[index] - 1.0)
    assert several > alone + 0.3


@pytest.mark.slow
def test_compiled_training_is_as_much_faster_as_published() -> None:
    """PyTorch 2.0 reports training with AMP on an A100 to be 51% faster on average over 163 networks."""
    asked = {"gpu": "a100-sxm-40gb", "precision": "fp16", "phase": "training", "batch_size": 64}
    ratios = []
    for name in ("resnet50", "densenet121", "mobilenet_v2", "vgg16", "efficientnet_b0", "swin_t", "vit_b_16"):
        autocast, compiled = (
            pl.predict(name, **asked, execution=execution).time_s for execution in ("autocast", "compiled")
        )
        ratios.append(autocast / compiled)
    assert 1.3 < np.exp(np.mean(np.log(ratios))) < 1.7


def test_gradients_are_handed_over_once_per_parameter_tensor() -> None:
    """ResNet-50 has 161 parameter tensors (torchvision: len(list(model.parameters())))."""
    asked = Workload(find_network("resnet50"))
    assert features_of(asked.with_changes(phase="training")).gradients.sum() == 161
    assert features_of(asked).gradients.sum() == 0


@pytest.mark.parametrize("tensor_cores", [False, True])
def test_fp64_has_no_winograd(tensor_cores: bool) -> None:
    """In fp64 convolutions of 3x3 start at the efficiency of other dense ones; nothing else differs."""
    single, double = (np.exp(base_prior(tensor_cores, precision=name).mean) for name in ("fp32", "fp64"))
    for name, before, after in zip(NAMES, single, double):
        column = 1 if tensor_cores else 0
        assert before == pytest.approx(BASE[name][column])
        expected = BASE["efficiency_conv_direct"][column] if name == "efficiency_conv_3x3" else before
        assert after == pytest.approx(expected)
    assert BASE["efficiency_conv_3x3"][0] > BASE["efficiency_conv_direct"][0]


def test_kepler_starts_at_the_lanes_that_its_schedulers_fill() -> None:
    """GK110 white paper: 192 lanes, four warp schedulers of 32 threads."""
    index = NAMES.index("efficiency_conv_1x1")
    assert np.exp(base_prior(False, True).mean - base_prior(False).mean)[index] == pytest.approx(4 * 32 / 192)


def test_the_documented_priors_are_the_code_s() -> None:
    text = (Path(__file__).resolve().parents[2] / "docs" / "model.md").read_text()
    for name, unit in PARAMETERS.items():
        vector, tensor, deviation = BASE[name]
        medians = f"{vector:g}" if vector == tensor else f"{vector:g} / {tensor:g}"
        assert f"| `{name}` | {unit} | {medians} | {deviation:g} |" in text

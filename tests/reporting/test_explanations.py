"""`--explain` names the peak it divides by; test_metamorphic.py checks its arithmetic."""

from __future__ import annotations

import pytest

import paleo_lite as pl
from paleo_lite.calibration.pool import why_not_pooled
from paleo_lite.machines import list_devices
from paleo_lite.reporting.explanations import explain_layer


@pytest.mark.parametrize(
    ("gpu", "precision", "named"),
    [
        ("gtx1080ti", "fp16", "fp32 vector"),
        ("a100-sxm-80gb", "fp64", "fp64 vector"),
        ("v100-sxm2", "fp16", "fp16 tensor"),
    ],
)
def test_explained_peak_is_the_one_used(gpu: str, precision: str, named: str) -> None:
    prediction = pl.predict("resnet18", gpu=gpu, precision=precision)
    peak = f"{prediction.peak.peak.precision} {prediction.peak.peak.unit}"
    assert peak == named and f"({named})" in dict(explain_layer(prediction, "conv1").facts)["inference: compute"]
    assert prediction.to_dict()["peak_flops"] == prediction.peak.per_s


@pytest.mark.thorough
@pytest.mark.slow
def test_no_forecast_beats_the_peak_of_slow_fp16_units() -> None:
    """A GTX 1080 Ti computes fp16 networks in fp32, which the bound takes into account."""
    for device in list_devices([]):
        if device.vendor == "NVIDIA" and not why_not_pooled(device) and "fp16" in device.precisions:
            bound = pl.predict("vit_b_16", gpu=device, precision="fp16", batch_size=64, time_model="peak")
            assert bound.time_s < pl.predict("vit_b_16", gpu=device, precision="fp16", batch_size=64).time_s

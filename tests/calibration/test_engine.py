"""Inference engines: the prior of their kernels and host, and its errors on published times of decoder layers.

Tests: calibration/choose.py.
"""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest

import paleo_lite
from measured import DATA
from paleo_lite.calibration.pool import ENGINE_HOST, ENGINE_KERNELS, engine_prior, pooled_model
from paleo_lite.calibration.prior import device_prior
from paleo_lite.errors import PaleoError
from paleo_lite.files import shipped_folder
from paleo_lite.machines import Machine, find_device, list_devices
from paleo_lite.timing.calibrated import CalibratedModel, rates_of
from paleo_lite.timing.parameters import NAMES


def test_two_opinions_are_weighed_by_how_sure_they_are():
    """Of two normal opinions the precisions add up, and the mean lies between (Gelman et al., eq. 2.10)."""
    prior = device_prior(find_device("h100-sxm"), "bf16")
    made, index = engine_prior(prior), NAMES.index("share_matrix")
    median, spread = ENGINE_KERNELS["share_matrix"]
    weight, own = 1 / spread**2, 1 / prior.deviation[index] ** 2
    assert made.mean[index] == pytest.approx((weight * np.log(median) + own * prior.mean[index]) / (weight + own))
    assert made.deviation[index] == pytest.approx((weight + own) ** -0.5)


def test_a_recorded_graph_launches_without_the_host():
    model = pooled_model(find_device("h100-sxm"), "bf16", "engine")
    for name, (median, _) in ENGINE_HOST.items():
        assert np.exp(model.theta[NAMES.index(name)]) == pytest.approx(median)


@pytest.mark.thorough
@pytest.mark.needs_data
def test_decoder_layers_of_others_are_forecast():
    """Nothing was fitted to these layers; with many tokens, matrix products determine their times."""
    from validation.layers.decoder_layers import MAX_DECODE_TOKENS, decoder_layers

    found = list(decoder_layers(DATA))
    groups = defaultdict(list)
    for layer in found:
        groups[layer.source, layer.device, layer.tokens <= MAX_DECODE_TOKENS].append(layer)
    for group, layers in groups.items():
        assert np.mean([abs(layer.predicted_s / layer.measured_s - 1) for layer in layers]) < 0.15, group
        assert np.mean([layer.low_s <= layer.measured_s <= layer.high_s for layer in layers]) >= 0.85, group
    assert np.mean([abs(one.predicted_s / one.measured_s - 1) for one in found]) < 0.08
    assert np.mean([abs(one.predicted_s / one.measured_s - 1) for one in found if one.tokens >= 1024]) < 0.07


def test_kernels_of_engines_match_single_operations() -> None:
    """Their products stay below the peak, which fits of whole steps exceed on gaming cards."""
    for device in ("rtx3090", "rtx4090", "rtx5090", "a100-sxm-80gb", "h100-sxm"):
        model = pooled_model(find_device(device), "bf16", "engine")
        assert isinstance(model, CalibratedModel)
        assert model.label.startswith("pooled from single operations")
        assert np.exp(model.theta[NAMES.index("efficiency_gemm")]) < 1


@pytest.mark.spread(1)
@pytest.mark.slow
@pytest.mark.parametrize("phase", ["prefill", "decode"])
def test_a_better_device_is_not_slower_in_an_engine(tmp_path: Path, phase: str) -> None:
    """Compare all pairs of shipped devices of which one has the better figure everywhere in its data sheet.

    The network is GPT-3 1.3B with 3 of its 24 blocks, timed layer by layer.
    """
    from validation.ordering import are_comparable, is_better

    config = (shipped_folder("models") / "gpt3-1.3b.json").read_text()
    network = tmp_path / "gpt3.json"
    network.write_text(config.replace('"n_layer": 24', '"n_layer": 3'))
    times = []
    for device in list_devices():
        try:
            prediction = paleo_lite.predict(
                str(network), gpu=device, precision="fp16", phase=phase, batch_size=4, execution="engine"
            )
        except PaleoError:
            continue
        if prediction.is_forecast:
            times.append((device, rates_of(Machine(device), "fp16"), prediction.time_s))
    pairs = 0
    for one, own_rates, own_s in times:
        for other, other_rates, other_s in times:
            if one.id != other.id and are_comparable(one, other) and is_better(own_rates, other_rates):
                pairs += 1
                assert own_s <= other_s * 1.001, f"{one.id} {own_s}, {other.id} {other_s}"
    assert pairs > 500

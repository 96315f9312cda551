"""The calibrated model's formula as docs/model.md has it, beside plain arithmetic on a few entries.

Tests: timing/calibrated.py, timing/parameters.py.
"""

from __future__ import annotations

import math

import numpy as np
import pytest

from paleo_lite.architectures import find_network
from paleo_lite.architectures.network import SequenceOptions
from paleo_lite.machines import Machine, find_device
from paleo_lite.timing.attention import kernel_shares
from paleo_lite.timing.calibrated import CalibratedModel, Rates, evaluate, step_times
from paleo_lite.timing.features import CLASSES, Features, features_of
from paleo_lite.timing.parameters import NAMES
from paleo_lite.timing.training_options import TrainingOptions
from paleo_lite.timing.workload import Workload

RATES = Rates(matrix_per_s=10e12, vector_per_s=4e12, bandwidth_bytes_per_s=500e9, multiprocessors=20.0)
# Each parameter another value, so that none can stand in for another.
VALUES = {name: 0.30 + 0.03 * place for place, name in enumerate(NAMES)} | {
    "floor_s": 3e-6, "overhead_s": 11e-6, "overhead_backward_s": 7e-6, "overhead_gradient_s": 5e-6, "step_s": 2e-3,
}  # fmt: skip
VALUES_IN_ORDER = np.array([VALUES[name] for name in NAMES])
FORWARD, DATA_GRADIENT, WEIGHT_GRADIENT, UPDATE = range(4)
# FLOPs, bytes, kernels, gradients, padding, tiles, class, part
ENTRIES = [
    (9e9, 2e6, 1, 0, 1.25, 30, "gemm", FORWARD),
    (9e9, 2e6, 1, 0, 1.25, 30, "gemm", DATA_GRADIENT),
    (9e9, 2e6, 1, 2, 1.25, 30, "gemm", WEIGHT_GRADIENT),
    (8e9, 3e6, 2, 0, 1.5, 50, "conv_3x3", FORWARD),
    (8e9, 3e6, 2, 1, 1.5, 50, "conv_3x3", WEIGHT_GRADIENT),
    (1e3, 90e6, 1, 0, 1, np.inf, "gemm", WEIGHT_GRADIENT),
    (1e3, 90e6, 1, 0, 1, np.inf, "gemm", UPDATE),
    (1e3, 90e6, 3, 0, 1, np.inf, "elementwise", DATA_GRADIENT),
    (1e2, 1e2, 3, 0, 1, np.inf, "copy", FORWARD),
]


def features(entries: list[tuple[object, ...]]) -> Features:
    columns = list(zip(*entries))
    numbers = [np.array(column, dtype=float) for column in columns[:6]]
    classes = np.array([CLASSES.index(name) for name in columns[6]])
    return Features(
        *numbers, classes, np.array(columns[7]), np.zeros((len(entries), 2), dtype=int), np.zeros(len(entries), bool),
        np.zeros(len(entries)), numbers[2], np.zeros(len(entries)),
    )  # fmt: skip


def device_s(entry: tuple[object, ...]) -> float:
    """docs/model.md: device = (compute^4 + memory^4 + floor^4)^(1/4)."""
    flops, moved, kernels, _, padding, tiles, name, part = entry
    multiplies = name in ("gemm", "conv_3x3") and part != UPDATE
    factor = {DATA_GRADIENT: VALUES["factor_data_gradient"], WEIGHT_GRADIENT: VALUES["factor_weight_gradient"]}
    if multiplies:
        half = VALUES["half_3x3" if name == "conv_3x3" else "half"]
        filled = 1 / (1 + half * 20 / tiles)
        gradient = factor.get(part, 1) if name == "conv_3x3" else 1  # a product's gradients are products like it
        compute = flops * padding / (10e12 * VALUES[f"efficiency_{name}"] * gradient * filled)
    else:
        compute = flops / 4e12
    memory = moved / (500e9 * VALUES["share_matrix" if multiplies else "share_other"])
    return (compute**4 + memory**4 + (3e-6 * kernels) ** 4) ** 0.25


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: f"{entry[6]}-{entry[7]}-{entry[5]}")
def test_an_entry_takes_what_the_formula_says(entry: tuple[object, ...]) -> None:
    assert evaluate(features([entry]), RATES, VALUES_IN_ORDER).device_s[0] == pytest.approx(device_s(entry), rel=1e-12)


def step_s(scale: float) -> float:
    """Host: 11 us for each of 6 forward and update kernels, 7 us for 9 backward ones, 5 us for 3 gradients."""
    kernels = {part: sum(entry[2] for entry in ENTRIES if entry[7] == part) for part in range(4)}
    forward, backward = kernels[FORWARD] + kernels[UPDATE], kernels[DATA_GRADIENT] + kernels[WEIGHT_GRADIENT]
    host = 11e-6 * forward + 7e-6 * backward + 5e-6 * 3
    device = sum(device_s((flops * scale, moved * scale, *rest)) for flops, moved, *rest in ENTRIES)
    return math.hypot(device, host) + 2e-3


@pytest.mark.parametrize("scale", [1e-4, 1.0], ids=["bounded by the host", "bounded by the device"])
def test_a_step_takes_what_the_formula_says(scale: float) -> None:
    scaled = features([(flops * scale, moved * scale, *rest) for flops, moved, *rest in ENTRIES])
    found = step_times(scaled, RATES, VALUES_IN_ORDER, np.zeros(len(ENTRIES), dtype=int), 1)
    assert found[0] == pytest.approx(step_s(scale), rel=1e-12)


def test_steps_of_more_batch_sizes_than_are_computed_at_once_do_so_too() -> None:
    """Kernels and gradients, which do not grow with the batch, have one column for all."""
    scales, one = np.linspace(1e-4, 1, 5001), features(ENTRIES)
    columns = {name: getattr(one, name)[:, None] for name in Features.__struct_fields__ if name != "position"}
    grown = {name: columns[name] * scales for name in ("flops", "bytes")}
    filled = {name: columns[name] * np.ones_like(scales) for name in ("padding", "tiles")}
    many = Features(**(columns | grown | filled), position=one.position)
    found = step_times(many, RATES, VALUES_IN_ORDER, np.zeros((len(ENTRIES), 1), dtype=int), 1)
    assert found.shape == (1, len(scales))
    for place in (0, 2500, 4000, 5000):
        assert found[0, place] == pytest.approx(step_s(scales[place]), rel=1e-12)


H100 = Machine(find_device("h100-sxm"))
GPT2 = find_network("gpt2", options=SequenceOptions(64, phase="training"))


def test_products_in_fp8_take_less_by_the_ratio_of_peaks_and_efficiencies() -> None:
    """NVIDIA's data sheet: 1,979 TFLOP/s in fp8 and 989 in bf16; of that products reach 0.8 times as much."""
    model = CalibratedModel("made", np.zeros(len(NAMES)), np.eye(len(NAMES)), 0.1, narrow_relative_efficiency=0.8)
    training = TrainingOptions("adam", mixed_precision=True, products="fp8")
    workload = Workload(GPT2, "bf16", phase="training", training=training)
    features = features_of(workload)
    ratios = features.padding / model._with_narrow_products(features, workload, H100).padding
    layers = features.position[:, 1]
    is_narrow = workload.uses_narrow_products[layers] & (features.pass_number < 3)  # not the update
    assert is_narrow.any() and not is_narrow.all()
    assert ratios[is_narrow] == pytest.approx(0.8 * 1979 / 989, rel=1e-3)
    assert ratios[~is_narrow] == pytest.approx(1.0)


@pytest.mark.parametrize("attention", [None, "flash2", "flash3"])
def test_attention_takes_less_by_the_rates_of_its_implementations(attention: str | None) -> None:
    """Relative to the implementation that frameworks choose, and in both directions."""
    model = CalibratedModel("made", np.zeros(len(NAMES)), np.eye(len(NAMES)), 0.1)
    workload = Workload(GPT2, "bf16", phase="training", attention=attention)
    features = features_of(workload)
    found = model.with_kernel_rates(features, workload, H100).padding / features.padding
    default, chosen = kernel_shares(None, H100.device), kernel_shares(attention, H100.device)
    is_attention = features.work_class == CLASSES.index("attention")
    is_forward, is_backward = features.pass_number == 0, (features.pass_number > 0) & (features.pass_number < 3)
    assert is_attention.any()
    keys = (64 + 1) / 2  # of 64 queries, the first of which attends to itself alone
    start = (1 + chosen.start_keys / keys) / (1 + default.start_keys / keys)
    assert found[is_attention & is_forward] == pytest.approx(default.forward / chosen.forward * start)
    assert found[is_attention & is_backward] == pytest.approx(default.backward / chosen.backward * start)
    assert found[~is_attention] == pytest.approx(1.0)

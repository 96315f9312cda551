"""The calibrated model's formula as docs/model.md has it, beside plain arithmetic on a few entries."""

from __future__ import annotations

import numpy as np
import pytest

from paleo_lite.timing.calibrated import NAMES, Rates, evaluate, step_times
from paleo_lite.timing.classes import CLASSES
from paleo_lite.timing.features import Features

RATES = Rates(matrix_per_s=10e12, vector_per_s=4e12, bandwidth_bytes_per_s=500e9, multiprocessors=20.0)
# Each parameter another value, so that none can stand in for another.
VALUES = {name: 0.30 + 0.03 * place for place, name in enumerate(NAMES)} | {
    "floor_s": 3e-6, "overhead_s": 11e-6, "overhead_backward_s": 7e-6, "overhead_gradient_s": 5e-6, "step_s": 2e-3,
}  # fmt: skip
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
    return Features(*numbers, classes, np.array(columns[7]), np.zeros((len(entries), 2), dtype=int))


def device_s(entry: tuple[object, ...]) -> float:
    """docs/model.md: device = (compute^4 + memory^4 + floor^4)^(1/4)."""
    flops, moved, kernels, _, padding, tiles, name, part = entry
    multiplies = name in ("gemm", "conv_3x3") and part != UPDATE
    factor = {DATA_GRADIENT: VALUES["factor_data_gradient"], WEIGHT_GRADIENT: VALUES["factor_weight_gradient"]}
    if multiplies:
        half = VALUES["half_3x3" if name == "conv_3x3" else "half"]
        filled = 1 / (1 + half * 20 / tiles)
        compute = flops * padding / (10e12 * VALUES[f"efficiency_{name}"] * factor.get(part, 1) * filled)
    else:
        compute = flops / 4e12
    memory = moved / (500e9 * VALUES["share_matrix" if multiplies else "share_other"])
    return (compute**4 + memory**4 + (3e-6 * kernels) ** 4) ** 0.25


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: f"{entry[6]}-{entry[7]}-{entry[5]}")
def test_an_entry_takes_what_the_formula_says(entry: tuple[object, ...]) -> None:
    values = np.array([VALUES[name] for name in NAMES])
    assert evaluate(features([entry]), RATES, values).device_s[0] == pytest.approx(device_s(entry), rel=1e-12)


def test_a_step_takes_what_the_formula_says() -> None:
    """Host: 11 us for each of 6 forward and update kernels, 7 us for 9 backward ones, 5 us for 3 gradients."""
    values = np.array([VALUES[name] for name in NAMES])
    run = np.zeros(len(ENTRIES), dtype=int)
    kernels = {part: sum(entry[2] for entry in ENTRIES if entry[7] == part) for part in range(4)}
    forward, backward = kernels[FORWARD] + kernels[UPDATE], kernels[DATA_GRADIENT] + kernels[WEIGHT_GRADIENT]
    host = 11e-6 * forward + 7e-6 * backward + 5e-6 * 3
    for scale in (1e-4, 1.0):  # bounded by the host, and by the device
        scaled = [(flops * scale, moved * scale, *rest) for flops, moved, *rest in ENTRIES]
        expected = (sum(map(device_s, scaled)) ** 4 + host**4) ** 0.25 + 2e-3
        assert step_times(features(scaled), RATES, values, run, 1)[0] == pytest.approx(expected, rel=1e-12)

"""Fit of the power model, which gives the sustained clock, to efficiencies of matrix products; its held-out error."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np
from scipy.optimize import least_squares

from paleo_lite.calibration.pool import read_pool
from paleo_lite.files import write_atomically
from paleo_lite.machines import Device, Machine, PeakRate, find_device
from paleo_lite.timing.calibrated import library_peak
from paleo_lite.timing.parameters import NAMES
from paleo_lite.timing.power import ERAS, POWER_FILE, PowerModel, matrix_fraction, node_nm_of, power_model

from .power_limits import ZEUS, fit_power_limits

KERNELS = "kernels"
"""Software of evidence from single operations."""

IDLE_SHARE = 0.15
"""Share of the power limit that is drawn without arithmetic; the data cannot separate it from the energy per FLOP."""

CONVOLUTION_ACTIVITY = 0.7
"""Power of convolutions relative to matrix products; 0.65 to 0.8 are as good for networks on held-out devices."""

SCATTER = 0.15
"""Deviation of the logarithm of a device's efficiency around the model."""

PRIORS = {"node_exponent": (1.0, 0.5), "clock_exponent": (0.7, 0.15)}
"""Means and deviations: energy is proportional to the feature size; the voltage is between constant and proportional
to the clock."""

GROUPS = {("vector", "fp32"): "vector", ("tensor", "fp16"): "tensor", ("tensor", "fp8"): "tensor fp8"}
"""Groups of evidence with an efficiency of their own when the clock is not limited."""


class LimitEfficiency(NamedTuple):
    """Efficiency of a device's matrix products relative to the peak at its boost clock."""

    device: Device
    rate: PeakRate
    group: str
    value: float
    source: str


def measured_efficiencies() -> list[LimitEfficiency]:
    """Return the efficiencies in the shipped pool, which are relative to the sustained clock, at the boost clock."""
    index = NAMES.index("efficiency_gemm")
    efficiencies = []
    for fit in read_pool().fits:
        deviation = fit.deviation[index]
        if fit.software != KERNELS or deviation is None or deviation > 0.25:
            continue
        device = find_device(fit.id)
        rate = library_peak(Machine(device), fit.precision)
        group = GROUPS.get((rate.peak.unit, fit.precision))
        if device.vendor != "NVIDIA" or group is None or node_nm_of(device) is None or device.power_w is None:
            continue
        value = float(np.exp(fit.theta[index])) * matrix_fraction(device, rate)
        efficiencies.append(LimitEfficiency(device, rate, group, value, fit.source))
    return efficiencies


def model_of(parameters: np.ndarray) -> PowerModel:
    """Return the model of a vector of fitted parameters."""
    vector, tensor, node_exponent, clock_exponent = (float(value) for value in parameters[:4])
    return PowerModel(
        energy_j_per_flop={"vector": float(np.exp(vector)) * 1e-12, "tensor": float(np.exp(tensor)) * 1e-12},
        node_exponent=node_exponent,
        clock_exponent=clock_exponent,
        efficiency={"vector": float(np.exp(parameters[4])), "tensor": float(np.exp(parameters[5]))},
        convolution_activity=CONVOLUTION_ACTIVITY,
        idle_share=IDLE_SHARE,
        base_share={"HBM": 0.0, "GDDR": 0.0},
        busy_share=1.0,
        low_voltage_slope=dict.fromkeys(ERAS, 1.0),
        waiting_floor=1.0,
        deviation=0.0,
        limit_deviation=0.0,
        devices=[],
        sources=[],
    )


def predict_log_efficiencies(parameters: np.ndarray, efficiencies: Sequence[LimitEfficiency]) -> np.ndarray:
    """Return the logarithms of the efficiencies that the model predicts."""
    model = model_of(parameters)
    groups = list(GROUPS.values())
    values = []
    for efficiency in efficiencies:
        fraction = matrix_fraction(efficiency.device, efficiency.rate, model=model)
        values.append(parameters[4 + groups.index(efficiency.group)] + np.log(fraction))
    return np.array(values)


def fit_power(efficiencies: Sequence[LimitEfficiency]) -> np.ndarray:
    """Return the parameters with the smallest robust error: energies, exponents, and an efficiency per group."""
    measured = np.log([efficiency.value for efficiency in efficiencies])

    def residuals(parameters: np.ndarray) -> np.ndarray:
        errors = (predict_log_efficiencies(parameters, efficiencies) - measured) / SCATTER
        means, deviations = (np.array(values) for values in zip(*PRIORS.values(), strict=True))
        priors = (parameters[2:4] - means) / deviations
        return np.concatenate([errors, priors])

    start = np.array([np.log(12.0), np.log(0.8), 1.0, 0.7, *([np.log(0.8)] * len(GROUPS))])
    return np.asarray(least_squares(residuals, start, loss="soft_l1").x)


def held_out_errors(efficiencies: Sequence[LimitEfficiency]) -> tuple[float, float]:
    """Return the mean absolute error with a device held out, with the power model and with one efficiency per group."""
    with_model, without = [], []
    for name in sorted({efficiency.device.id for efficiency in efficiencies}):
        rest = [efficiency for efficiency in efficiencies if efficiency.device.id != name]
        held_out = [efficiency for efficiency in efficiencies if efficiency.device.id == name]
        parameters = fit_power(rest)
        with_model += list(
            np.abs(
                predict_log_efficiencies(parameters, held_out) - np.log([efficiency.value for efficiency in held_out])
            )
        )
        for efficiency in held_out:
            peers = [np.log(other.value) for other in rest if other.group == efficiency.group]
            without.append(abs(float(np.mean(peers)) - np.log(efficiency.value)))
    return float(np.mean(with_model)), float(np.mean(without))


def ship_power(folder: Path) -> PowerModel:
    """Fit the model and write it to a folder of calibrations."""
    efficiencies = measured_efficiencies()
    parameters = fit_power(efficiencies)
    error, constant = held_out_errors(efficiencies)
    model = msgspec.structs.replace(
        fit_power_limits(model_of(parameters)),
        deviation=round(error, 3),
        devices=sorted({efficiency.device.id for efficiency in efficiencies}),
        sources=sorted({ZEUS, *(efficiency.source for efficiency in efficiencies)}),
        held_out=f"a device held out {error:.1%}, with one efficiency for all {constant:.1%}",
    )
    text = "# Fitted by paleo-lite to matrix products and measured power; every field is explained in docs/model.md.\n"
    content = msgspec.toml.encode(model)
    write_atomically(folder / POWER_FILE, text.encode() + content)
    power_model.cache_clear()
    return model

"""The prior: what is believed of a device's parameters before its own measurements are looked at.

Every fit starts from one, and a device without measurements keeps it. One way leads through this module, and each step
narrows the one before:

1. `device_prior`: the medians of `BASE` for the units that multiply, shifted on Kepler;
2. `population.expect`: what all measured devices say together (`pool` has them);
3. `narrow_by_probes`: single operations timed on the device itself.

A prior holds the logarithms of the parameters, in the order of `NAMES`: each normal, with a mean and a deviation.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from ..counting import Layer
from ..counting.kinds.products import MATRIX_CLASSES
from ..hardware import Device, Machine
from ..networks import Network
from ..timing.calibrated import NAMES, POWER, Rates, evaluate
from ..timing.features import CLASSES, features_of
from ..timing.fitted import works_in
from ..timing.workload import Workload
from .fit import Prior

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

# 1. What kind of device it is -----------------------------------------------------------------------------------------

BASE: dict[str, tuple[float, float, float]] = {
    "efficiency_conv_3x3": (1.45, 0.62, 0.25),
    "efficiency_conv_direct": (0.55, 0.45, 0.3),
    "efficiency_conv_1x1": (0.8, 0.65, 0.3),
    "efficiency_conv_grouped": (0.42, 0.15, 0.45),
    "efficiency_conv_depthwise": (0.17, 0.06, 0.4),
    "efficiency_gemm": (0.72, 0.7, 0.3),
    "efficiency_attention": (0.5, 0.45, 0.15),
    "factor_data_gradient": (1.05, 1.0, 0.25),
    "factor_weight_gradient": (0.66, 0.6, 0.2),
    "share_matrix": (0.55, 0.65, 0.25),
    "share_other": (0.7, 0.6, 0.2),
    "half": (0.5, 0.5, 0.5),
    "half_3x3": (0.7, 0.7, 0.6),
    "floor_s": (5e-6, 5e-6, 0.4),
    "overhead_s": (28e-6, 28e-6, 0.4),
    "overhead_backward_s": (8e-6, 8e-6, 0.4),
    "overhead_gradient_s": (120e-6, 120e-6, 0.5),
    "step_s": (1.5e-3, 1.5e-3, 0.8),
}
"""Median on vector units, median on tensor cores, and deviation of the logarithm, of every parameter.

About what devices have in common, and by what they differ. 3x3 convolution on vector units is above 1 because of
Winograd's algorithm (2.25 times fewer multiplications at about 0.6 of peak); grouped and depthwise convolution reach a
few to some tens of percent; launching from Python takes 10 to 60 us per operation, from the autograd engine, which is
C++, less than half of that; a kernel takes a few microseconds at least.
"""

KEPLER = "Kepler"

KEPLER_SHARE = 128 / 192
"""Of Kepler's 192 lanes per multiprocessor four schedulers fill 128 with one instruction each (GK110 white paper)."""

KEPLER_HALF = 20.0
"""How many times more tiles a 3x3 convolution needs on Kepler: cuDNN computes Winograd's 36 products there in as many
launches, each of a sixteenth of the positions. Two fits of a K80 say 19 and 26."""


def device_prior(device: Device, precision: str) -> Prior:
    """What is believed of a device in a precision when nothing but its data sheet is known."""
    return base_prior(on_tensor_cores(device, precision), device.architecture == KEPLER)


def on_tensor_cores(device: Device, precision: str) -> bool:
    """Whether multiply-accumulates in this precision run on tensor cores."""
    return works_in(Machine(device), precision).peak.unit == "tensor"


def base_prior(tensor_cores: bool, kepler: bool = False) -> Prior:
    """The prior of `BASE` for multiply-accumulates on tensor cores or on vector units, on Kepler's where said.

    fp64 takes that of fp32, although libraries have no Winograd's algorithm there: what is measured in fp64 tells it.
    """
    rows = [BASE[name] for name in NAMES]
    median = [row[1 if tensor_cores else 0] for row in rows]
    return Prior(np.log(median) + kepler_shift(kepler), np.array([row[2] for row in rows]))


def kepler_shift(kepler: bool) -> Floats:
    """What is different on Kepler, in logarithms of the parameters."""
    shift = np.log([KEPLER_SHARE if name.startswith("efficiency") else 1.0 for name in NAMES])
    shift[NAMES.index("half_3x3")] = np.log(KEPLER_HALF)
    return shift if kepler else np.zeros(len(NAMES))


# 2. What single operations on the device itself say -------------------------------------------------------------------

PROBE_DEVIATION = 0.3
"""Deviation of a parameter's logarithm that a probe leaves at least: networks hold other shapes, and cold caches."""


class TimedLayer(msgspec.Struct, frozen=True):
    """One operation run by itself, and the seconds that it took."""

    layer: Layer
    batch_size: int
    time_s: float


def narrow_by_probes(
    base: Prior, timed: Iterable[TimedLayer], rates: Rates, precision: str, launch_s: float, serial: bool
) -> Prior:
    """The prior of a device on which single operations were timed.

    Each probe inverts the model's own formula for one layer (`timing.calibrated`): with the time measured and the
    other terms at their prior, what is left is the compute term, and FLOPs over it is the efficiency of the probe's
    class. Of several probes of a class the median holds, and their spread is what it leaves open.

    Parameters
    ----------
    base : Prior
        What is kept where no probe measures a parameter.
    timed : iterable of TimedLayer
        Probes that need no time for anything else: not those of the launch itself.
    launch_s : float
        Seconds of the shortest operation.
    serial : bool
        Whether launching and computing take turns, as on a CPU: then the shortest operation is the floor of each.
        Elsewhere it is what the host needs to launch one.
    """
    mean, deviation = base.mean.copy(), base.deviation.copy()

    def believe(name: str, value: float, spread: float) -> None:
        index = NAMES.index(name)
        mean[index] = np.log(value)
        deviation[index] = min(max(spread, PROBE_DEVIATION), deviation[index])

    for name in ("floor_s", "overhead_s", "overhead_backward_s") if serial else ("overhead_s",):
        believe(name, launch_s, 0.5)
    shares: dict[str, list[float]] = defaultdict(list)
    for probe in timed:
        name, share = _share(probe, rates, precision, mean)
        if share is not None:
            shares[name].append(share)
    for name, values in shares.items():
        believe(name, float(np.median(values)), float(np.std(np.log(values))))
    return Prior(mean, deviation)


def _share(probe: TimedLayer, rates: Rates, precision: str, theta: Floats) -> tuple[str, float | None]:
    """The parameter that a probe measures and its value; None where the other terms leave nothing of the time."""
    network = Network("probe", (), (probe.layer,), 0)
    features = features_of(Workload(network, precision, probe.batch_size))
    values = np.exp(theta)
    work_class = CLASSES[int(features.work_class[0])]
    name = f"efficiency_{work_class}" if work_class in MATRIX_CLASSES else "share_other"
    values[NAMES.index(name)] = 1.0
    terms = evaluate(features, rates, values)
    own, other = (terms.compute_s, terms.memory_s) if work_class in MATRIX_CLASSES else (terms.memory_s, 0.0)
    left = probe.time_s**POWER - float(np.sum(other**POWER + terms.floor_s**POWER))
    # Less than a third of the time does not measure this term.
    if left < (probe.time_s / 3) ** POWER:
        return name, None
    return name, float(own[0]) / left ** (1 / POWER)

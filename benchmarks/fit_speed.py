"""Time to fit 1,000 measurements, compared with a single prediction of them."""

from __future__ import annotations

import numpy as np

from paleo_lite.architectures import find_network, network_names
from paleo_lite.calibration.fit import fit, runs_of
from paleo_lite.calibration.measurements import Measurement
from paleo_lite.calibration.prior import device_prior
from paleo_lite.machines import find_device

from .turns import Turns, take_turns

POINTS = 1000


def networks_without_sequences() -> list[str]:
    """Return the names of the shipped networks that read no sequences."""
    return [name for name in network_names() if find_network(name).lengths is None]


def measure(repeats: int) -> list[Turns]:
    """Return a table for times simulated by the model with 5% scatter."""
    device = find_device("v100-sxm2")
    rng = np.random.default_rng(0)
    prior = device_prior(device, "fp32")
    steps = [
        Measurement(device.id, network, batch, phase, "fp32", 1.0)
        for network in networks_without_sequences()
        for batch in (1, 2, 4, 8, 16, 32, 64)
        for phase in ("inference", "training")
    ]
    steps = sorted(steps[index] for index in rng.permutation(len(steps))[:POINTS])
    runs = runs_of(steps, device, "fp32")
    truth = prior.mean + 0.5 * prior.deviation * rng.standard_normal(len(prior.mean))
    times = runs.predict_s(truth) * np.exp(0.05 * rng.standard_normal(len(steps)))
    measured = type(runs)(runs.features, runs.run, runs.rates, times)
    contestants = {
        "the fit": lambda: fit(measured, prior),
        "one prediction of all": lambda: runs.predict_s(truth),
    }
    what = f"fitting {len(steps)} measurements, {len(runs.run)} layers and passes"
    return [Turns(what, take_turns(contestants, max(repeats // 2, 1)))]

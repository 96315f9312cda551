"""How long 1,000 measurements take to fit: wanted under 5 s on two cores."""

from __future__ import annotations

import sys
import time

import numpy as np

from paleo_lite.calibration.calibrate import order, runs_of
from paleo_lite.calibration.fit import fit
from paleo_lite.calibration.measurements import Measurement
from paleo_lite.calibration.prior import device_prior
from paleo_lite.hardware import find_device
from paleo_lite.networks import network_names

POINTS, LIMIT_S = 1000, 5.0


def main() -> None:
    """Simulate, fit, print."""
    device = find_device("v100-sxm2")
    rng = np.random.default_rng(0)
    prior = device_prior(device, "fp32")
    steps = [
        Measurement(device.id, network, batch, phase, "fp32", 1.0)
        for network in network_names()
        for batch in (1, 2, 4, 8, 16, 32, 64)
        for phase in ("inference", "training")
    ]
    steps = order([steps[index] for index in rng.permutation(len(steps))[:POINTS]])
    start = time.perf_counter()
    runs = runs_of(steps, device, "fp32")
    prepared = time.perf_counter()
    truth = prior.mean + 0.5 * prior.deviation * rng.standard_normal(len(prior.mean))
    times = runs.predict_s(truth) * np.exp(0.05 * rng.standard_normal(len(steps)))
    measured = type(runs)(runs.features, runs.run, runs.rates, times)
    begin = time.perf_counter()
    found = fit(measured, prior)
    taken = time.perf_counter() - begin
    print(f"{len(steps)} measurements, {len(runs.run)} layers and passes: fitted in {taken:.2f} s (wanted {LIMIT_S} s)")
    print(f"counting their layers first: {prepared - start:.2f} s; scatter found {found.scatter:.3f}, 0.05 put in")
    sys.exit(taken > LIMIT_S)


if __name__ == "__main__":
    main()

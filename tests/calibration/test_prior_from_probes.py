"""Prior after probes: the parameters of a simulated device must be recovered.

Tests: calibration/prior.py.
"""

from __future__ import annotations

import numpy as np
import pytest

from paleo_lite.architectures import Network
from paleo_lite.calibration.prior import PROBE_DEVIATION, base_prior, narrow_by_probes
from paleo_lite.measurement.clock import Timing
from paleo_lite.measurement.running import Probe, Probed, convolution, elementwise, gemm
from paleo_lite.timing.calibrated import Rates, evaluate
from paleo_lite.timing.features import features_of
from paleo_lite.timing.parameters import NAMES
from paleo_lite.timing.workload import Workload

RATES = Rates(1e12, 1e12, 50e9, 4.0)
BASE = base_prior(tensor_cores=False)
LAUNCH_S = 2e-6


def simulated(probe: Probe, **true: float) -> Probed:
    """What the probe takes on a device with these parameters, the others at their prior."""
    values = np.exp(BASE.mean)
    for name, value in {"floor_s": LAUNCH_S, **true}.items():
        values[NAMES.index(name)] = value
    features = features_of(Workload(Network("probe", (), (probe.layer,), 0), batch_size=probe.batch_size))
    taken_s = float(evaluate(features, RATES, values).device_s[0])
    return Probed(probe, Timing(taken_s, 0.0, 7, 1, True))


def value(prior: object, name: str) -> float:
    return float(np.exp(prior.mean[NAMES.index(name)]))  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("name", "probe", "true"),
    [
        ("efficiency_gemm", gemm(1024, 1024, 1024), 0.9),
        ("efficiency_conv_3x3", convolution(256, 256, 14, 3, 8), 2.1),
        ("efficiency_conv_depthwise", convolution(96, 96, 56, 3, 8, groups=96), 0.05),
        ("share_other", elementwise("stream", "relu", 2**24), 0.97),
    ],
)
def test_parameters_of_a_simulated_device_are_recovered(name: str, probe: Probe, true: float) -> None:
    prior = narrow_by_probes(BASE, [simulated(probe, **{name: true})], RATES, "fp32", LAUNCH_S, serial=True)
    assert value(prior, name) == pytest.approx(true, rel=1e-6)
    place = NAMES.index(name)
    assert prior.deviation[place] == min(PROBE_DEVIATION, BASE.deviation[place])


def test_parameters_without_probes_stay_at_the_prior() -> None:
    prior = narrow_by_probes(BASE, [simulated(gemm(1024, 1024, 1024))], RATES, "fp32", LAUNCH_S, serial=True)
    for name in ("efficiency_attention", "efficiency_conv_3x3", "step_s", "half"):
        place = NAMES.index(name)
        assert (prior.mean[place], prior.deviation[place]) == (BASE.mean[place], BASE.deviation[place])


def test_memory_bound_probe_does_not_change_compute_parameters() -> None:
    thin = gemm(4096, 1, 4096)  # a matrix times a vector
    prior = narrow_by_probes(BASE, [simulated(thin)], RATES, "fp32", LAUNCH_S, serial=True)
    assert value(prior, "efficiency_gemm") == pytest.approx(value(BASE, "efficiency_gemm"))


@pytest.mark.parametrize(
    ("serial", "told", "kept"), [(True, "floor_s", "share_matrix"), (False, "overhead_s", "floor_s")]
)
def test_launch(serial: bool, told: str, kept: str) -> None:
    prior = narrow_by_probes(BASE, [], RATES, "fp32", LAUNCH_S, serial)
    assert value(prior, told) == pytest.approx(LAUNCH_S)
    assert value(prior, kept) == pytest.approx(value(BASE, kept))


def test_probes_that_disagree_leave_it_open() -> None:
    probes = [convolution(64, 128, 56, 3, 8, stride=2), convolution(3, 64, 224, 7, 8, stride=2)]
    times = [simulated(p, efficiency_conv_direct=e) for p, e in zip(probes, (1.8, 0.5))]
    prior = narrow_by_probes(BASE, times, RATES, "fp32", LAUNCH_S, serial=True)
    place = NAMES.index("efficiency_conv_direct")
    assert 0.5 < value(prior, "efficiency_conv_direct") < 1.8
    assert PROBE_DEVIATION <= prior.deviation[place] <= BASE.deviation[place]

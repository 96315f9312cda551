"""Forecasts of whole servers: simulated times, and the power of a fit without the model.

Times are those of the shipped constants of kernels and hosts, so that only the power is held out here.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np

from paleo_lite.calibration.validate import sharpness
from paleo_lite.serving.deployment import Deployment
from paleo_lite.serving.energy import draw_power
from paleo_lite.serving.engines import find_engine
from paleo_lite.serving.placement import with_fitted_host
from paleo_lite.serving.requests import Lengths, generate_traffic
from paleo_lite.timing.energy import EnergyModel

from ..engines.servers import Server, place
from .evidence import Measured
from .fit import fit_energy
from .hold_out import Point

ROUNDS = 3
"""Requests of a simulation, as a multiple of the sequences that run at the same time."""

MOST_SEQUENCES = 1024
"""Larger servers are left out: they take long to simulate."""


class ServedPoint(Point, frozen=True, eq=False, kw_only=True):
    """A server with its forecast.

    Attributes
    ----------
    joules : float
        Forecast of the joules of all devices per output token.
    low_j, high_j : float
        Its interval by that of the power and of the time.
    """

    joules: float
    low_j: float
    high_j: float

    @property
    def measured_joules(self) -> float:
        """Measured joules of all devices per output token."""
        one = self.measured
        assert one.server is not None and one.server.tokens_per_s is not None
        return one.power_w * one.devices / one.server.tokens_per_s


def forecast_servers(measured: Sequence[Measured], scatter: float) -> list[ServedPoint]:
    """Return the forecasts of servers, each by a fit of the power without its model."""
    points = []
    for model in sorted({one.model for one in measured if one.server is not None}):
        fitted = fit_energy([one for one in measured if one.model != model], scatter)
        own = [one for one in measured if one.model == model and one.server is not None]
        points += [forecast_server(one, fitted) for one in own if _is_simulated(one)]
    return points


def _is_simulated(one: Measured) -> bool:
    server = one.server
    return server is not None and not server.is_host_bound and server.concurrency <= MOST_SEQUENCES


def forecast_server(measured: Measured, model: EnergyModel) -> ServedPoint:
    """Return the forecast of a server by a fit of the power."""
    server = measured.server
    assert server is not None
    deployment = _deploy(server)
    lengths = Lengths(round(server.input_tokens)), Lengths(round(server.output_tokens))
    traffic = generate_traffic(*lengths, count=ROUNDS * server.concurrency, concurrency=server.concurrency, seed=0)
    prepared = deployment.prepare(traffic)
    joules, drawn_at = {}, {}
    for level in ("low", "expected", "high"):
        outcomes = prepared.run(traffic, level)
        duration_s = max(float(outcome.finish_s.max()) for outcome in outcomes)
        drawn = draw_power(outcomes, deployment, int(traffic.input_tokens.sum()), duration_s, model)
        assert drawn is not None
        joules[level] = drawn.energy_j / float(traffic.output_tokens.sum())
        drawn_at[level] = drawn
    drawn = drawn_at["expected"]
    ends = []
    for level, end_w in (("low", drawn.low_w), ("high", drawn.high_w)):
        logs = np.log(joules[level] / joules["expected"]), np.log(end_w / drawn.watts)
        ends.append(float(joules["expected"] * np.exp(np.copysign(np.hypot(*logs), logs[1]))))
    return ServedPoint(
        measured=measured, power_w=drawn.watts, low_w=drawn.low_w, high_w=drawn.high_w,
        joules=joules["expected"], low_j=ends[0], high_j=ends[1],
    )  # fmt: skip


def _deploy(server: Server) -> Deployment:
    placed = place(server)
    assert placed.kernels is not None
    engine = find_engine(server.engine, placed.machine.device, max_sequences=server.concurrency)
    return Deployment(placed, with_fitted_host(engine, placed))


class ServedRow(msgspec.Struct, frozen=True):
    """Accuracy of the forecasts of servers on one device.

    Attributes
    ----------
    device : str
        Device, or ``all``.
    points : int
        Number of servers.
    watts, joules : float
        Median absolute relative errors of the power of a device and of the energy of an output token.
    watts_coverage_90, joules_coverage_90 : float
        Shares inside the 90% intervals.
    joules_sharpness_90 : float
        Median ratio between the ends of the interval of joules per token.
    """

    device: str
    points: int
    watts: float
    watts_coverage_90: float
    joules: float
    joules_coverage_90: float
    joules_sharpness_90: float


def served_rows(points: Sequence[ServedPoint]) -> list[ServedRow]:
    """Return the accuracy by device, and of all."""
    devices = sorted({point.measured.device.id for point in points})
    groups = {name: [point for point in points if point.measured.device.id == name] for name in devices}
    return [_row(name, own) for name, own in {**groups, "all": list(points)}.items()]


def _row(device: str, points: Sequence[ServedPoint]) -> ServedRow:
    joules = [abs(point.joules / point.measured_joules - 1) for point in points]
    return ServedRow(
        device=device,
        points=len(points),
        watts=float(np.median([abs(point.error) for point in points])),
        watts_coverage_90=float(np.mean([point.is_inside for point in points])),
        joules=float(np.median(joules)),
        joules_coverage_90=float(np.mean([point.low_j <= point.measured_joules <= point.high_j for point in points])),
        joules_sharpness_90=sharpness([point.low_j for point in points], [point.high_j for point in points]),
    )

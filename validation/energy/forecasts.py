"""Forecasts of whole servers and pipelines: their times are forecast, and their power by a fit without the model.

Times are those of the shipped constants, so that only the power is held out here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec
import numpy as np

from paleo_lite.calibration.accuracy import sharpness
from paleo_lite.engines.records import find_server
from paleo_lite.engines.records.record import GREEDY, NUCLEUS
from paleo_lite.serving.deployment import Deployment
from paleo_lite.serving.energy import drawn_by, served_activity
from paleo_lite.serving.iteration import with_fitted_host
from paleo_lite.serving.lengths import Lengths
from paleo_lite.serving.prepared import prepare
from paleo_lite.serving.requests import generate_traffic
from paleo_lite.timing.activity import Activity
from paleo_lite.timing.energy import EnergyModel

from ..engines.servers import PublishedServer, place
from .fit import Scatters, with_scatter
from .hold_out import PowerPoint, folds_of, held_out_power
from .measured import MeasuredPower

ROUNDS = 3
"""Requests of a simulation, as a multiple of the sequences that run at the same time."""

MOST_SEQUENCES = 1024
"""Larger servers are left out: they take long to simulate."""

LEVELS = ("low", "expected", "high")
"""Ends and middle of the interval of the time."""


class Run(NamedTuple):
    """What a device does for a given work, in a forecast time.

    Attributes
    ----------
    activity : Activity
        What it does while it is busy.
    busy_s, waiting_s : float
        Seconds in which it is busy, and in which it waits for requests.
    """

    activity: Activity
    busy_s: float
    waiting_s: float = 0.0


class TimedPower(msgspec.Struct, frozen=True, eq=False):
    """A measurement with its forecast times.

    Attributes
    ----------
    measured : MeasuredPower
        The measurement.
    runs : dict of str to Run
        The same work at some of `LEVELS`.
    units : float
        Output tokens or pictures of a run.
    measured_joules : float
        MeasuredPower joules of all devices per unit.
    """

    measured: MeasuredPower
    runs: dict[str, Run]
    units: float
    measured_joules: float

    @property
    def at_forecast_time(self) -> MeasuredPower:
        """The measurement with the activity and the time of the forecast."""
        run = self.runs["expected"]
        return msgspec.structs.replace(self.measured, activity=run.activity, time_s=run.busy_s)


def timed(measured: Sequence[MeasuredPower], levels: Sequence[str] = LEVELS) -> list[TimedPower]:
    """Return the servers and pipelines with their forecast times."""
    timed_powers = []
    for power in measured:
        if power.pipeline is not None:
            timed_powers.append(_timed_pipeline(power))
        elif power.server is not None and not power.server.is_host_bound and power.server.concurrency <= MOST_SEQUENCES:
            timed_powers.append(_timed_server(power, power.server, levels))
    return timed_powers


def _timed_pipeline(power: MeasuredPower) -> TimedPower:
    """Return a batch of pictures or videos with its forecast time."""
    predicted = power.pipeline
    assert predicted is not None and predicted.interval is not None
    low_s, high_s = predicted.interval
    times_s = dict(zip(LEVELS, (low_s, predicted.time_s, high_s), strict=True))
    images = predicted.sampling.images
    return TimedPower(
        measured=power,
        runs={level: Run(power.activity, time_s) for level, time_s in times_s.items()},
        units=images,
        measured_joules=power.power_w * power.devices * power.time_s / images,
    )


def _timed_server(power: MeasuredPower, server: PublishedServer, levels: Sequence[str]) -> TimedPower:
    """Return a server with its simulated times."""
    deployment = _deploy(server)
    lengths = Lengths(round(server.input_tokens)), Lengths(round(server.output_tokens))
    traffic = generate_traffic(*lengths, count=ROUNDS * server.concurrency, concurrency=server.concurrency, seed=0)
    prepared = prepare(deployment, traffic)
    runs = {}
    for level in levels:
        outcomes = prepared.run(traffic, level)
        busy_s = sum(outcome.busy_s for outcome in outcomes)
        duration_s = max(float(outcome.finish_s.max()) for outcome in outcomes)
        activity = served_activity(outcomes, deployment, int(traffic.input_tokens.sum()))
        runs[level] = Run(activity, busy_s, max(duration_s - busy_s, 0.0))
    assert server.tokens_per_s is not None
    return TimedPower(
        measured=power,
        runs=runs,
        units=float(traffic.output_tokens.sum()),
        measured_joules=power.power_w * power.devices / server.tokens_per_s,
    )


def _deploy(server: PublishedServer) -> Deployment:
    placed = place(server)
    assert placed.kernels is not None
    engine = find_server(server.record, placed.machine.device, max_sequences=server.concurrency)
    return Deployment(placed, with_fitted_host(engine, placed.kernels, NUCLEUS if server.has_nucleus else GREEDY))


class JoulesPoint(PowerPoint, frozen=True, eq=False, kw_only=True):
    """A server or a batch with the forecast of its power and of its energy.

    Attributes
    ----------
    measured_joules, joules : float
        MeasuredPower and forecast joules of all devices per output token or picture.
    low_j, high_j : float
        Interval of the forecast by those of the power and of the time.
    """

    measured_joules: float
    joules: float
    low_j: float
    high_j: float

    @property
    def joules_error(self) -> float:
        """Forecast over measured joules, less 1."""
        return self.joules / self.measured_joules - 1

    @property
    def joules_inside(self) -> bool:
        """Whether the interval contains the measured joules."""
        return self.low_j <= self.measured_joules <= self.high_j


def forecast_energy(measured: Sequence[MeasuredPower], scatters: Scatters) -> list[JoulesPoint]:
    """Return the forecasts of servers and pipelines, each by a fit of the power without its model."""
    forecast_times = {id(timed_power.measured): timed_power for timed_power in timed(measured)}
    judged = [timed_power.measured for timed_power in forecast_times.values()]
    return [
        forecast_joules(forecast_times[id(power)], with_scatter(fold.model, scatters))
        for fold in folds_of(measured, "model", judged)
        for power in fold.measured
    ]


def forecast_joules(timed_power: TimedPower, model: EnergyModel) -> JoulesPoint:
    """Return the forecast of a measurement by a fit of the power.

    The time and the power are uncertain for reasons of their own: their logarithms add up in quadrature.
    """
    power, devices = held_out_power(model, timed_power.measured), timed_power.measured.devices
    drawn = {level: drawn_by(power, *run, devices=devices) for level, run in timed_power.runs.items()}
    likely = drawn["expected"]
    ends = []
    for level, end_w in (("low", likely.low_w), ("high", likely.high_w)):
        of_time, of_power = np.log(drawn[level].energy_j / likely.energy_j), np.log(end_w / likely.watts)
        ends.append(float(likely.energy_j * np.exp(np.copysign(np.hypot(of_time, of_power), of_power))))
    return JoulesPoint(
        measured=timed_power.measured, power_w=likely.watts, low_w=likely.low_w, high_w=likely.high_w,
        measured_joules=timed_power.measured_joules, joules=likely.energy_j / timed_power.units,
        low_j=ends[0] / timed_power.units, high_j=ends[1] / timed_power.units,
    )  # fmt: skip


class JoulesRow(msgspec.Struct, frozen=True):
    """Accuracy of the forecasts of one kind of work.

    Attributes
    ----------
    device, kind : str
        Device, or number of devices, and kind of work; ``all`` for all.
    points : int
        Number of servers and batches.
    watts, joules : float
        Median absolute relative errors of the power of a device and of the energy of a token or picture.
    watts_coverage_90, joules_coverage_90 : float
        Shares inside the 90% intervals.
    joules_sharpness_90 : float
        Median ratio between the ends of the interval of the joules.
    """

    device: str
    kind: str
    points: int
    watts: float
    watts_coverage_90: float
    joules: float
    joules_coverage_90: float
    joules_sharpness_90: float


def joules_rows(points: Sequence[JoulesPoint]) -> list[JoulesRow]:
    """Return the accuracy by device and kind, by number of devices, and of all."""
    groups: dict[tuple[str, str], list[JoulesPoint]] = {}
    for point in points:
        power = point.measured
        count = "1 device" if power.devices == 1 else f"{power.devices} devices"
        for group in ((power.device.id, power.kind), (power.device.id, "all"), (count, "all"), ("all", "all")):
            groups.setdefault(group, []).append(point)
    all_points = groups.pop(("all", "all"))
    return [*(_row(*group, groups[group]) for group in sorted(groups)), _row("all", "all", all_points)]


def _row(device: str, kind: str, points: Sequence[JoulesPoint]) -> JoulesRow:
    return JoulesRow(
        device=device,
        kind=kind,
        points=len(points),
        watts=float(np.median([abs(point.error) for point in points])),
        watts_coverage_90=float(np.mean([point.is_inside for point in points])),
        joules=float(np.median([abs(point.joules_error) for point in points])),
        joules_coverage_90=float(np.mean([point.joules_inside for point in points])),
        joules_sharpness_90=sharpness([point.low_j for point in points], [point.high_j for point in points]),
    )

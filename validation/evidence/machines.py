"""Published speeds of llama.cpp, MLX and ExLlama as evidence, beside forecasts without their device."""

from __future__ import annotations

from pathlib import Path

from paleo_lite.calibration.posterior import Observation
from paleo_lite.engines.records import BACKENDS
from paleo_lite.machines import find_device
from paleo_lite.own_machines.causes import KIND, PROMPT, TOKEN, local_traits, shares_of_causes
from paleo_lite.own_machines.step import BackendConstants, interval_of

from ..local.fit import contents_of, fit, make_constants, predict_s
from ..local.hold_out import PHASES, LocalForecast, deviation_of, hold_out_sources
from ..local.published import read_rows
from .groups import Grouped


def measured_machines(data: Path) -> list[Grouped]:
    """Return the published speeds, with the machine that each is of."""
    rows = read_rows(data)
    grouped: list[Grouped] = []
    for backend in BACKENDS:
        of_backend = [row for row in rows if row.backend == backend]
        forecasts: dict[str, list[LocalForecast]] = {}
        constants_without: dict[str, BackendConstants] = {}
        for device in dict.fromkeys(row.device for row in of_backend):
            constants = make_constants(backend, fit(backend, [row for row in of_backend if row.device != device]))
            constants_without[device] = constants
            forecasts[device] = [
                LocalForecast(row, predict_s(row, constants)) for row in of_backend if row.device == device
            ]
        by_source = hold_out_sources(backend, of_backend)
        for device, constants in constants_without.items():
            elsewhere = [each for other, each_own in forecasts.items() if other != device for each in each_own]
            elsewhere += [each for each in by_source if each.row.device != device]
            deviations = {phase: deviation_of(phase, elsewhere) for phase in PHASES}
            grouped += [_grouped(each, constants, deviations[each.row.phase]) for each in forecasts[device]]
    return grouped


def _grouped(forecast: LocalForecast, constants: BackendConstants, deviation: float) -> Grouped:
    """Return a measured speed beside its forecast, with the interval that errors on other devices lead to."""
    row = forecast.row
    device = find_device(row.device)
    traits = local_traits(contents_of(row.network, row.weights, row.backend), device, row.backend, row.source)
    shares = shares_of_causes(constants, lambda moved: predict_s(row, moved))
    figure = TOKEN if row.phase == "decode" else PROMPT
    situation = f"{row.network} {row.weights}"
    interval = interval_of(forecast.seconds, deviation)
    observation = Observation(KIND, figure, situation, traits, row.seconds, forecast.seconds, shares, interval)
    return Grouped((row.source, row.backend, row.device, str(row.gpus)), observation)

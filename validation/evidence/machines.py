"""Published speeds of llama.cpp, MLX and ExLlama as evidence, beside forecasts without their device."""

from __future__ import annotations

from pathlib import Path

from paleo_lite.calibration.posterior import Observation
from paleo_lite.engines.records import BACKENDS
from paleo_lite.own_machines.causes import KIND, PROMPT, TOKEN, shares_of_causes
from paleo_lite.own_machines.step import interval_of

from ..local.fit import contents_of, fit, make_constants, predict_s
from ..local.published import read_rows
from .groups import Grouped


def measured_machines(data: Path) -> list[Grouped]:
    """Return the published speeds, with the machine that each is of."""
    rows = read_rows(data)
    found = []
    for backend in BACKENDS:
        own = [row for row in rows if row.backend == backend]
        for device in dict.fromkeys(row.device for row in own):
            constants = make_constants(backend, fit(backend, [row for row in own if row.device != device]))
            for row in own:
                if row.device != device:
                    continue
                traits = {
                    "source": row.source,
                    "engine": backend,
                    "device": device,
                    "format": contents_of(row.network, row.weights, row.backend).weights,
                    "network": row.network,
                }
                shares = shares_of_causes(constants, lambda moved, row=row: predict_s(row, moved))  # type: ignore[misc]
                forecast_s = predict_s(row, constants)
                is_token = row.phase == "decode"
                deviation = constants.deviation if is_token else constants.prompt_deviation
                observation = Observation(
                    KIND, TOKEN if is_token else PROMPT, f"{row.network} {row.weights}", traits, row.seconds,
                    forecast_s, shares, interval_of(forecast_s, deviation),
                )  # fmt: skip
                found.append(Grouped((row.source, backend, device, str(row.gpus)), observation))
    return found

"""Writing of the constants of llama.cpp, MLX and ExLlama."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec
import numpy as np

from paleo_lite.engines.records import BACKENDS
from paleo_lite.files import write_atomically
from paleo_lite.own_machines.step import LocalConstants

from .fit import PIPELINE, fit, make_constants
from .hold_out import (
    PHASES,
    deviation_of,
    hold_out_devices,
    hold_out_makers,
    hold_out_sources,
    makers_of,
    mean_over_devices,
)
from .published import read_rows

FILE = "llama_cpp.json"
SOURCES = (
    "XiongjieDai/GPU-Benchmarks-on-LLM-Inference aa72e0e",
    "geerlingguy/ai-benchmarks bdf9441",
    "kyuz0/amd-strix-halo-toolboxes d1a34be",
    "Published speeds of llama.cpp",
)
OF_MANY_MAKERS = ("vulkan",)
"""Backends for devices of any maker; CUDA, Metal and ROCm are for those of one."""


def ship_local(data: Path, folder: Path) -> Iterator[tuple[str, str]]:
    """Fit all backends and write their constants; yield the name of each with its errors on held-out devices."""
    rows = read_rows(data)
    constants = {}
    for backend in BACKENDS:
        of_backend = [row for row in rows if row.backend == backend]
        forecasts = hold_out_devices(backend, of_backend)
        pooled = [*forecasts, *hold_out_sources(backend, of_backend)]
        deviations = {phase: deviation_of(phase, pooled) for phase in PHASES}
        constants[backend] = make_constants(
            backend, fit(backend, of_backend), deviations["decode"], deviations["prompt"]
        )
        of_others = [each.log_ratio for each in hold_out_makers(backend, of_backend) if each.row.phase == "prompt"]
        if backend in OF_MANY_MAKERS and of_others:
            constants[backend] = msgspec.structs.replace(
                constants[backend],
                makers=makers_of(of_backend),
                other_maker_deviation=float(np.sqrt(np.mean(np.square(of_others)))),
            )
        errors = [
            f"{phase} {mean_over_devices([each for each in forecasts if each.row.phase == phase]):.1%}"
            for phase in deviations
        ]
        yield f"local {backend}", f"devices held out: {', '.join(errors)}"
    shipped = msgspec.json.encode(LocalConstants(constants, PIPELINE, SOURCES))
    write_atomically(folder / FILE, msgspec.json.format(shipped, indent=1) + b"\n")

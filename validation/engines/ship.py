"""Fit the constants of engines, kernels first and servers second, and write them to the folder that the package ships.

The second fit needs the first: servers are explained by kernels alone times factors of company.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec

from paleo_lite.engines import constants
from paleo_lite.files import write_atomically

from .deviations import source_biases, with_first_token_deviations, with_source_deviations
from .fit import fit_cell, fit_constants
from .served import with_served
from .servers import published_servers
from .steps import fit_steps, is_fitted, parts_of
from .tables import published_kernels

SOURCES = (
    "ai-dynamo/aiconfigurator, tables of kernels and servers (aiconfigurator-core 0.12.0)",
    "ML.ENERGY Benchmark v3, vLLM 0.11.1",
    "inference-sim/training, loads of vLLM 0.15",
    "Published serving results, validation/serving/published.csv",
    "ROCm/vllm, latencies and throughput of MI300X",
    "Liger-Kernel, norms",
    "cudnn-frontend, norms",
)
"""Sources, with the names of ``calibrations/LICENSES.md``."""


def ship_engines(data: Path, folder: Path) -> Iterator[tuple[str, str]]:
    """Fit kernels and servers, and write the constants into a folder."""
    fits = [(timed.cell, fit_cell(timed)) for timed in published_kernels(data)]
    alone = fit_constants(fits)
    servers = [server for server in published_servers(data) if is_fitted(server)]
    parts = [parts_of(server, alone) for server in servers]
    biases = source_biases(parts, alone)
    fitted = with_first_token_deviations(fit_steps(parts, alone), parts, alone)
    fitted = msgspec.structs.replace(with_source_deviations(fitted, biases), sources=SOURCES)
    fitted = with_served(fitted)
    write_atomically(folder / constants.FILE, msgspec.json.encode(fitted))
    constants.engine_constants.cache_clear()
    errors = f"{fitted.spread.step:.1%} off, {fitted.spread.source:.1%} between sources"
    yield "engines", f"{len(fits)} tables of kernels, {len(servers)} servers, {errors}"

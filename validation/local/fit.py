"""Fit of the constants of llama.cpp, MLX and ExLlama by backend, to published speeds."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import numpy as np
from numpy.typing import ArrayLike
from scipy.optimize import least_squares

from paleo_lite.architectures import find_network
from paleo_lite.engines.records import LOCAL_ENGINES
from paleo_lite.own_machines.contents import GROUPS, Contents, read_contents
from paleo_lite.own_machines.step import BackendConstants, prompt_s, token_s

from .published import LocalMeasurement, device_of

NAMES = (
    "share", "cache_share", "unpack_wide", "unpack_legacy", "unpack_k", "unpack_table", "unpack_mxfp4",
    "block_s", "eff_wide", "eff_legacy", "eff_k", "eff_table", "eff_mxfp4", "eff_attention", "expert_rows",
)  # fmt: skip
TYPICAL = {
    "cuda": (0.85, 0.7, 0.07, 0.12, 0.12, 0.09, 0.09, 6e-5, 0.40, 0.40, 0.38, 0.35, 0.35, 0.2, 16.0),
    "metal": (0.8, 0.6, 0.04, 0.06, 0.055, 0.045, 0.045, 8e-5, 0.68, 0.62, 0.58, 0.5, 0.5, 0.3, 16.0),
    "rocm": (0.75, 0.6, 0.07, 0.1, 0.1, 0.08, 0.08, 1e-4, 0.4, 0.4, 0.38, 0.35, 0.35, 0.1, 16.0),
    "vulkan": (0.8, 0.6, 0.07, 0.12, 0.1, 0.08, 0.08, 8e-5, 0.25, 0.3, 0.25, 0.22, 0.22, 0.1, 16.0),
    "mlx": (0.85, 0.6, 0.05, 0.1, 0.1, 0.1, 0.1, 8e-5, 0.7, 0.65, 0.65, 0.6, 0.6, 0.3, 16.0),
    "exllama": (0.85, 0.7, 0.07, 0.15, 0.15, 0.15, 0.15, 6e-5, 0.5, 0.45, 0.45, 0.45, 0.45, 0.2, 16.0),
    "cpu": (0.7, 0.5, 0.2, 0.3, 0.24, 0.1, 0.3, 5e-5, 0.4, 0.7, 0.5, 0.3, 0.3, 0.3, 4.0),
}
"""Values before any measurement, of the order of what reviews of llama.cpp print."""
DEVIATION = np.array([0.15, 0.3, 0.4, 0.4, 0.4, 0.5, 0.5, 0.5, 0.3, 0.3, 0.3, 0.4, 0.4, 0.5, 0.5])
PIPELINE = 0.6

# Standard deviations of the logarithm of a time: of a row by itself, and of all rows of a phase that a source measured
# on a device (its version of the program, its way of measuring, its heat).
NOISE, SHARED_NOISE = 0.12, 0.15

BLOCK_CORES = {"mlx": 32.0}
"""Cores of the device for which ``block_s`` holds, of backends whose waits grow with the cores."""

OF_OTHER_ENGINES = ("mlx", "exllama")
"""Backends that are programs of their own."""


@cache
def contents_of(network: str, weights: str, backend: str | None = None) -> Contents:
    """Return the contents of a network under the program of a backend, by default llama.cpp."""
    engine = LOCAL_ENGINES[backend if backend in OF_OTHER_ENGINES else "llama.cpp"]
    return read_contents(find_network(network), weights, None, engine).merged()


def rounded(values: ArrayLike) -> list[float]:
    """Return values with the six digits that are shipped."""
    return [float(f"{value:.6g}") for value in np.asarray(values)]


def make_constants(
    backend: str, theta: ArrayLike, deviation: float = 0.1, prompt_deviation: float = 0.2
) -> BackendConstants:
    """Return the constants of a backend from logarithms in the order of `NAMES`."""
    deviation, prompt_deviation = rounded((deviation, prompt_deviation))
    value = dict(zip(NAMES, rounded(np.exp(theta))))
    return BackendConstants(
        value["share"], value["cache_share"], {group: value[f"unpack_{group}"] for group in GROUPS}, value["block_s"],
        {group: value[f"eff_{group}"] for group in GROUPS}, value["eff_attention"], value["expert_rows"],
        deviation, prompt_deviation, BLOCK_CORES.get(backend, 0.0),
    )  # fmt: skip


def predict_s(row: LocalMeasurement, constants: BackendConstants) -> float:
    """Return the seconds of a row."""
    contents, device = contents_of(row.network, row.weights, row.backend), device_of(row.device)
    if row.phase == "decode":
        return token_s(contents, device, constants, row.context + row.tokens / 2 * (row.context == 0))
    return prompt_s(
        contents, device, constants, row.tokens, cached=row.context, largest_share=1 / row.gpus, pipeline=PIPELINE
    )


def whitening_of(rows: Sequence[LocalMeasurement]) -> np.ndarray:
    """Return the matrix that makes the errors of rows independent, with variance 1.

    What a source measured on a device errs together: thirty of its rows do not outweigh one of each of ten others.
    """
    keys = [(row.source, row.device, row.phase) for row in rows]
    is_shared = np.array([[key == other for other in keys] for key in keys])
    covariance = NOISE**2 * np.eye(len(rows)) + SHARED_NOISE**2 * is_shared
    return np.asarray(np.linalg.inv(np.linalg.cholesky(covariance)))


def fit(backend: str, rows: Sequence[LocalMeasurement]) -> np.ndarray:
    """Return the logarithms of the constants: the rows, and what is typical."""
    typical, whitening = np.log(TYPICAL[backend]), whitening_of(rows)

    def residuals(theta: np.ndarray) -> np.ndarray:
        constants = make_constants(backend, theta)
        errors = whitening @ [np.log(predict_s(row, constants) / row.seconds) for row in rows]
        return np.array([*errors, *((theta - typical) / DEVIATION)])

    return np.asarray(least_squares(residuals, typical, loss="soft_l1", diff_step=1e-3, max_nfev=30).x)

"""Fit the constants of kernels to published tables: first each cell, then the effects that cells have in common.

A cell's constants minimise the errors of log time under a robust loss, with a weak prior around typical values, because
a table may not determine all of them. The variances of the effects then maximise the likelihood of the cells' constants
(`paleo_lite.engines.constants`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from scipy.optimize import least_squares, minimize

from paleo_lite.engines.constants import EFFECTS, Cell, CellFit, ClassFit, EngineConstants, same_effects, traits_of
from paleo_lite.engines.formulas import KERNEL_CLASSES
from paleo_lite.machines import find_device
from paleo_lite.timing.intervals import Z_90

from .priors import PRIORS
from .tables import TimedKernels

LOSS_SCALE = 0.15
"""Relative error from which the loss grows linearly instead of quadratically."""

MOST_ROWS = 2000
"""Rows of a cell that are fitted, drawn at random."""

EFFECTIVE_ROWS = 100
"""Independent errors that a table is worth: errors of similar shapes are alike."""

SMALLEST_DEVIATION = SMALLEST_SCATTER = 0.03
SCATTER_DEVIATION = 0.1
"""Standard deviation of the logarithm of a scatter that follows from so many independent errors."""

SMALLEST_VARIANCE = 1e-4


def kernel_times(timed: TimedKernels, theta: Any) -> Any:
    """Return the times of the formula at some constants."""
    kernels = KERNEL_CLASSES[timed.cell.kernels]
    shapes = dict(timed.shapes)
    if kernels.sizes is not None:
        shapes["sizes"] = kernels.sizes(**{name: shapes.pop(name) for name in kernels.sizes._fields if name in shapes})
    if timed.rates is None:
        return kernels.time_s(theta, **shapes)
    return kernels.time_s(theta, timed.rates, **shapes)


def draw_rows(timed: TimedKernels, count: int = MOST_ROWS) -> TimedKernels:
    """Return at most so many rows, drawn at random."""
    total = len(timed.time_s)
    if total <= count:
        return timed
    chosen = np.sort(np.random.default_rng(0).permutation(total)[:count])
    shapes = {name: value[chosen] if np.ndim(value) else value for name, value in timed.shapes.items()}
    return timed._replace(shapes=shapes, time_s=timed.time_s[chosen])


def fit_cell(all_rows: TimedKernels) -> CellFit:
    """Fit the constants of a cell."""
    timed = draw_rows(all_rows)
    expected = [PRIORS[timed.cell.kernels][name] for name in KERNEL_CLASSES[timed.cell.kernels].parameters]
    typical, spread = np.log([each.typical for each in expected]), np.array([each.deviation for each in expected])
    weight = LOSS_SCALE * np.sqrt(len(timed.time_s) / EFFECTIVE_ROWS)

    def residuals(theta: Any) -> Any:
        errors = np.log(kernel_times(timed, theta) / timed.time_s)
        return np.concatenate([errors, weight * (theta - typical) / spread])

    solution = least_squares(residuals, typical, loss="soft_l1", f_scale=LOSS_SCALE, x_scale=spread)
    errors = np.log(kernel_times(timed, solution.x) / timed.time_s)
    scatter = max(1.4826 * float(np.median(np.abs(errors))), SMALLEST_SCATTER)
    slopes = solution.jac[: len(errors)]  # those of the measurements: the prior is added as it is
    precision = slopes.T @ slopes / scatter**2 * min(EFFECTIVE_ROWS / len(errors), 1.0)
    covariance = np.linalg.inv(precision + np.diag(1 / spread**2))
    deviation = np.maximum(np.sqrt(np.diag(covariance)), SMALLEST_DEVIATION)
    spread_of_errors = max(float(np.quantile(np.abs(errors), 0.9)) / Z_90, SMALLEST_SCATTER)
    cell = timed.cell
    return CellFit(
        gpu=cell.gpu,
        engine=cell.engine,
        format=cell.format,
        theta=tuple(round(float(value), 4) for value in (*solution.x, np.log(spread_of_errors))),
        deviation=tuple(round(float(value), 4) for value in (*deviation, SCATTER_DEVIATION)),
        measurements=len(all_rows.time_s),
        error=round(float(np.median(np.abs(np.expm1(errors)))), 4),
    )


def fit_class(name: str, cells: Sequence[CellFit]) -> ClassFit:
    """Choose the variances of the effects from the constants of the cells of a class."""
    kernels = KERNEL_CLASSES[name]
    traits = [traits_of(find_device(cell.gpu), cell.engine, cell.format) for cell in cells]
    shared = same_effects(traits, traits)
    matrices = np.stack([shared[effect] for effect in EFFECTS])
    estimates = np.array([cell.theta for cell in cells])
    errors = np.array([cell.deviation for cell in cells]) ** 2
    means, variances = [], []
    parameters = (*kernels.parameters, "scatter")
    for index in range(len(parameters)):
        y, noise = estimates[:, index], errors[:, index]
        start = np.full(len(EFFECTS), np.log(max(float(np.var(y)), 1e-3) / len(EFFECTS)))

        def loss(logs: Any, y: Any = y, noise: Any = noise, start: Any = start) -> float:
            covariance = np.tensordot(np.exp(logs), matrices, 1) + np.diag(noise)
            factor = np.linalg.cholesky(covariance)
            ones = np.linalg.solve(factor, np.ones(len(y)))
            scaled = np.linalg.solve(factor, y)
            mean = ones @ scaled / (ones @ ones)
            rest = scaled - mean * ones
            # A weak prior keeps variances apart from zero where few cells differ in an effect.
            return float(0.5 * rest @ rest + np.log(np.diag(factor)).sum() + 0.05 * ((logs - start) ** 2).sum())

        solution = minimize(
            loss, start, method="L-BFGS-B", bounds=[(np.log(SMALLEST_VARIANCE), np.log(4.0))] * len(start)
        )
        fitted = np.exp(solution.x)
        covariance = np.tensordot(fitted, matrices, 1) + np.diag(noise)
        inverse = np.linalg.inv(covariance)
        means.append(float(inverse.sum(axis=0) @ y / inverse.sum()))
        variances.append(fitted)
    by_effect = np.array(variances).T
    return ClassFit(
        parameters=parameters,
        mean=tuple(round(value, 4) for value in means),
        variances={effect: tuple(round(float(v), 5) for v in row) for effect, row in zip(EFFECTS, by_effect)},
        cells=tuple(cells),
    )


def fit_constants(cells: Iterable[tuple[Cell, CellFit]]) -> EngineConstants:
    """Fit the effects of all classes of kernels."""
    by_class: dict[str, list[CellFit]] = {}
    for cell, fitted in cells:
        by_class.setdefault(cell.kernels, []).append(fitted)
    return EngineConstants({name: fit_class(name, fits) for name, fits in by_class.items()})

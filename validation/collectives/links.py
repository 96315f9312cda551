"""Calibrations of links for `calibrations/links`, fitted to published collectives."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from paleo_lite.distributed.link_calibrations import FORMAT, LinkCalibration, OperationFit
from paleo_lite.machines import read_links

from .fit import by_operation, fit_link, predict_held_out, scatter_of, seconds_of, size_folds, worker_folds
from .published import FILES, PLATFORMS, MeasuredExchange


def inputs_of(folder: Path) -> list[str]:
    """Return the names of the files that are read, with their SHA-256."""
    return [f"{file} sha256 {hashlib.sha256((folder / file).read_bytes()).hexdigest()}" for file in FILES]


def link_calibrations(exchanges: Sequence[MeasuredExchange], inputs: list[str]) -> dict[str, LinkCalibration]:
    """Return the calibrations of all platforms by name."""
    links = read_links().link
    operations: dict[str, dict[str, OperationFit]] = defaultdict(dict)
    for (name, operation), group in by_operation(exchanges).items():
        fit = calibrate_operation(group, links[PLATFORMS[name].link].bandwidth_bytes_per_s)
        operations[name][operation] = fit
    return {
        name: LinkCalibration(
            format=FORMAT,
            link=PLATFORMS[name].link,
            per_direction=links[PLATFORMS[name].link].per_direction.value,
            platform=PLATFORMS[name].description,
            software=PLATFORMS[name].software,
            sources=[PLATFORMS[name].source],
            operations=fits,
            inputs=inputs,
            stands_for_link=PLATFORMS[name].is_default_for_link,
        )
        for name, fits in operations.items()
    }


def calibrate_operation(exchanges: Sequence[MeasuredExchange], bandwidth_bytes_per_s: float) -> OperationFit:
    """Fit an operation of a platform, and compute its held-out errors."""
    link = fit_link(exchanges, exchanges[0].platform, bandwidth_bytes_per_s)
    measured = seconds_of(exchanges)
    errors: list[float | None] = []
    scatter = 0.0
    for folds in (size_folds(exchanges), worker_folds(exchanges)):
        if not folds:
            errors.append(None)
            continue
        predicted, _ = predict_held_out(exchanges, bandwidth_bytes_per_s, folds)
        errors.append(round(float(np.mean(np.abs(predicted / measured - 1))), 3))
        scatter = scatter or scatter_of(predicted, measured)
    sizes = [each.message_bytes for each in exchanges]
    return OperationFit(
        start_s=_rounded(link.start_s),
        latency_s=_rounded(link.latency_s),
        ramp_s=_rounded(link.ramp_s),
        switch_s=_rounded(link.switch_s),
        small_share=_rounded(link.small_share),
        workers=[count for count, _ in link.ppp_at],
        ppp=[_rounded(share) for _, share in link.ppp_at],
        points=len(exchanges),
        smallest_bytes=min(sizes),
        largest_bytes=max(sizes),
        scatter=_rounded(scatter, 2),
        held_out_sizes=errors[0] or 0.0,
        held_out_workers=errors[1],
    )


def _rounded(value: float, digits: int = 3) -> float:
    """Round to digits that do not depend on the processor and exceed the accuracy of the measurements."""
    return float(f"{value:.{digits}g}")

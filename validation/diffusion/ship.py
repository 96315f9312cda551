"""Writing of the constants of pipelines."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec
import numpy as np

from paleo_lite.files import write_atomically
from paleo_lite.timing.diffusion import FILE, DiffusionConstants, diffusion_constants

from .fit import PicturePieces, fit_one_device, fit_split, hold_out, hold_out_split, pieces_of, split_pieces_of
from .published import mlenergy_rows

HEAD_SHARE = 0.1
"""Share of the calibrated time of attention that depends on the head size, where that time holds."""

OTHER_DEVIATION = 0.15
"""Deviation on devices that are not measured, beside the uncertainty of their calibration."""


def ship_pictures(data: Path, folder: Path) -> Iterator[tuple[str, str]]:
    """Fit the constants to ML.ENERGY's batches and write them; yield their names with the errors of held-out models."""
    rows = list(mlenergy_rows(data))
    constants, ratios = fit_constants([pieces_of(row) for row in rows if row.gpus == 1])
    yield "pipelines on one device", f"models held out: {mean_error(ratios):.1%}"
    measured = [split_pieces_of(row, constants) for row in rows if row.gpus > 1]
    ratios = hold_out_split(measured, lambda row: row.pipeline)
    numbers = {name: _round(value) for name, value in fit_split(measured).items()}
    sequence = msgspec.structs.replace(constants.sequence, **numbers, deviation=_round(_deviation(ratios)))
    write_constants(msgspec.structs.replace(constants, sequence=sequence), folder / FILE)
    yield "pipelines on several devices", f"models held out: {mean_error(ratios):.1%}"


def fit_constants(measured: list[PicturePieces]) -> tuple[DiffusionConstants, dict[str, list[float]]]:
    """Return the constants of one device, and predicted over measured times by held-out model."""
    ratios = hold_out(measured, lambda row: row.pipeline)
    constants = DiffusionConstants(
        **{name: _round(value) for name, value in fit_one_device(measured).items()},
        head_share=HEAD_SHARE,
        deviation=_round(_deviation(ratios)),
        other_deviation=OTHER_DEVIATION,
        measured=tuple(sorted({pieces.row.gpu for pieces in measured})),
        sequence=diffusion_constants().sequence,
        sources=("ML.ENERGY Benchmark v3",),
    )
    return constants, ratios


def mean_error(ratios: dict[str, list[float]]) -> float:
    """Return the mean absolute relative error of predicted over measured times."""
    return float(np.abs(np.concatenate(list(ratios.values())) - 1).mean())


def _deviation(ratios: dict[str, list[float]]) -> float:
    """Return the root of the mean square logarithm, each group with the same weight."""
    return float(np.sqrt(np.mean([np.mean(np.log(values) ** 2) for values in ratios.values()])))


def _round(value: float) -> float:
    return float(f"{value:.4g}")


def write_constants(constants: DiffusionConstants, path: Path) -> None:
    """Write the constants as TOML."""
    lines = ["# Fitted to published batches by python -m validation ship; docs/pipelines.md explains them."]
    numbers = msgspec.to_builtins(constants)
    sequence = numbers.pop("sequence")
    for name, value in numbers.items():
        text = "[" + ", ".join(f'"{item}"' for item in value) + "]" if isinstance(value, (tuple, list)) else repr(value)
        lines.append(f"{name} = {text}")
    lines += ["", "[sequence]", *(f"{name} = {value!r}" for name, value in sequence.items())]
    write_atomically(path, ("\n".join(lines) + "\n").encode())

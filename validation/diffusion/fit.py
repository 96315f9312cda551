"""Fit of the constants of pipelines, and their error on what is held out.

``python -m validation.diffusion.fit FOLDER`` reads the published batches in ``FOLDER/engines``, prints the error with
each model and each device held out, and that of sources which the fit does not use, and writes
``calibrations/diffusion.toml``. The constants are the same for all devices, and each multiplies a sum over the layers
of the calibrated model, so that one evaluation of each batch is enough for all fits.

The form was chosen on pictures with one device held out, among constants by generation or per cycle for each class of
work, sums or root sums of squares, and with or without a factor on products; it is judged on videos, on other sources
and on several devices. That attention pads heads, and is no faster than other products, follows from its kernels, which
were timed alone on A100 and L40S (``modern/attention_modern.csv.gz``).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
from scipy.optimize import least_squares

import paleo_lite as pl
from paleo_lite.counting.kinds import class_of
from paleo_lite.counting.kinds.products import MATRIX_CLASSES
from paleo_lite.errors import PaleoError
from paleo_lite.files import write_atomically
from paleo_lite.machines import find_device
from paleo_lite.timing.calibrated import CalibratedModel, rates_of
from paleo_lite.timing.diffusion import FILE, DiffusionConstants, cycles_per_s, diffusion_constants, padded_heads
from paleo_lite.timing.offload import peer_bandwidth_bytes_per_s
from paleo_lite.timing.parameters import NAMES
from paleo_lite.timing.pipeline_prediction import PipelinePrediction
from paleo_lite.timing.sequence_parallel import self_attentions

from .published import Row, mlenergy_rows, project_rows, user_rows

CALIBRATIONS = Path(__file__).parent.parent.parent / "calibrations"

PRIOR = {
    "flops_per_cycle": (np.log(2048.0), 0.3),  # of Ampere's matrix instructions, on every generation since
    "scores_per_cycle": (np.log(8.0), 0.7),  # half of the 16 exponentials of the special-function units
    "bytes_per_cycle": (np.log(10.0), 0.7),
    "row_cycles": (np.log(100.0), 1.5),
    "host_s": (np.log(6e-6), 0.3),
}
"""Mean and deviation of the logarithm of each constant."""

HEAD_SHARE = 0.1
"""Share of the calibrated time of attention that depends on the head size, where that time holds."""

OTHER_DEVIATION = 0.15
"""Deviation on devices that are not measured, beside the uncertainty of their calibration."""

RESIDUAL = 0.1
"""Expected deviation of the logarithm of the times."""

SEQUENCE_PRIOR = {
    "attention_s": (np.log(200e-6), 1.5),
    "all_to_all_s": (np.log(50e-6), 1.5),
    "ring_step_s": (np.log(100e-6), 1.5),
    "bandwidth_share": (np.log(0.6), 1.5),
    "merge_bytes": (np.log(30.0), 1.5),
}
"""Mean and deviation of the logarithm of the constants of splitting the sequence."""


class Pieces(NamedTuple):
    """Seconds of a batch's denoiser under the calibrated model by class of work, and what the constants multiply."""

    row: Row  # the measured batch
    # Matrix products and convolutions; everything else of the denoiser but attention; text encoders and decoder.
    products_s: float
    between_s: float
    rest_s: float
    # FLOPs that attention executes, and per cycle at most; its scores; bytes of what is between products; rows of
    # layer norms.
    attention_flops: float
    largest_flops_per_cycle: float
    scores: float
    between_bytes: float
    rows: float
    cycles_per_s: float  # cycles of all multiprocessors
    kernels: float  # kernels that the host launches


def ask(row: Row) -> PipelinePrediction:
    """Predict a measured batch."""
    prediction = pl.predict(
        row.pipeline,
        gpu=row.gpu,
        precision=row.precision,
        execution=row.execution,
        attention=row.attention,
        steps=row.steps,
        image_size=f"{row.width}x{row.height}",
        frames=row.frames if row.frames > 1 else None,
        images=row.images,
        ulysses=row.ulysses,
        ring=row.ring,
    )
    assert isinstance(prediction, PipelinePrediction)
    return prediction


def predicted_s(row: Row, prediction: PipelinePrediction) -> float:
    """Return the predicted seconds of what was measured: a batch, or a step of the denoiser."""
    if not row.is_step:
        return prediction.time_s
    return next(part.run_s for part in prediction.parts if part.part.role == "denoiser")


def pieces_of(row: Row) -> Pieces:
    """Return the pieces of a batch on one device, under the calibrated model without the constants of pipelines."""
    from paleo_lite.calibration.choose import choose_model
    from paleo_lite.timing import predict

    prediction = ask(row._replace(ulysses=1, ring=1))
    denoiser = next(part for part in prediction.parts if part.part.role == "denoiser")
    machine, workload = prediction.machine, denoiser.prediction.workload
    model = choose_model(machine.device, row.precision, execution=row.execution)
    plain = predict(workload, machine, model)
    seconds = plain.terms.layers_s[0] / plain.terms.host_slowdown * denoiser.runs
    bytes_moved = workload.work.column("bytes", workload.phase, workload.batch_size)[0] * denoiser.runs
    classes = [class_of(layer) for layer in workload.layers]
    is_attention = np.array([name == "attention" for name in classes])
    is_product = np.array([name in MATRIX_CLASSES for name in classes])
    times = workload.batch_size * denoiser.runs
    attentions = [(index, layer) for index, layer in enumerate(workload.layers) if layer.kind == "attention"]
    scores = sum(prod(layer.inputs[0][:-1]) * layer.inputs[1][-2] for _, layer in attentions)
    flops = sum(
        4 * prod(layer.inputs[0][:-1]) * float(padded_heads(np.array(layer.inputs[0][-1]))) * layer.inputs[1][-2]
        for _, layer in attentions
    )
    rates = rates_of(machine, row.precision)
    assert isinstance(model, CalibratedModel)
    efficiency = float(np.exp(model.theta[NAMES.index("efficiency_gemm")]))
    products_per_s = rates.matrix_per_s * rates.sustained_fraction * efficiency
    rows = sum(prod(layer.outputs[0][:-1]) for layer in workload.layers if layer.kind == "layer_norm")
    return Pieces(
        row=row,
        products_s=float(seconds[is_product & ~is_attention].sum()),
        between_s=float(seconds[~is_product].sum()),
        rest_s=prediction.time_s - denoiser.time_s,
        attention_flops=float(flops) * times,
        largest_flops_per_cycle=products_per_s / cycles_per_s(machine.device),
        scores=float(scores) * times,
        between_bytes=float(bytes_moved[~is_product].sum()),
        rows=float(rows) * times,
        cycles_per_s=cycles_per_s(machine.device),
        kernels=float(denoiser.prediction.kernels or 0) * denoiser.runs,
    )


def time_of(pieces: Pieces, constants: dict[str, float]) -> float:
    """Return the seconds of a batch on one device under some constants."""
    flops_per_cycle = min(constants["flops_per_cycle"], pieces.largest_flops_per_cycle)
    attention = pieces.attention_flops / flops_per_cycle + pieces.scores / constants["scores_per_cycle"]
    attention_s = attention / pieces.cycles_per_s
    moving_s = pieces.between_bytes / constants["bytes_per_cycle"] / pieces.cycles_per_s
    between_s = float(np.hypot(pieces.between_s, moving_s))
    rows_s = constants["row_cycles"] * pieces.rows / pieces.cycles_per_s
    device_s = attention_s + pieces.products_s + between_s + rows_s
    return float(np.hypot(device_s, pieces.kernels * constants["host_s"])) + pieces.rest_s


def fit_one_device(measured: Sequence[Pieces]) -> dict[str, float]:
    """Fit the constants.

    Every pipeline on every device has the weight of two measurements, as its batch sizes share their error.
    """
    weights = _weights([(pieces.row.pipeline, pieces.row.gpu) for pieces in measured])
    return _fit(measured, PRIOR, weights, time_of)


def _fit(
    measured: Sequence[Any],
    prior: dict[str, tuple[float, float]],
    weights: Any,
    seconds: Callable[[Any, dict[str, float]], float],
) -> dict[str, float]:
    """Return the constants of the least squares of the logarithms of times and constants."""
    means, deviations = np.array(list(prior.values())).T

    def residuals(values: Any) -> Any:
        constants = dict(zip(prior, np.exp(values)))
        times = np.array([seconds(pieces, constants) for pieces in measured])
        errors = np.log(times / [pieces.row.time_s for pieces in measured])
        return np.concatenate([weights * errors / RESIDUAL, (values - means) / deviations])

    return dict(zip(prior, map(float, np.exp(least_squares(residuals, means).x))))


def _weights(groups: Sequence[Any]) -> Any:
    """Return the square roots of weights that give every group the same sum, that of two measurements."""
    sizes = {group: groups.count(group) for group in set(groups)}
    return np.array([np.sqrt(2 / sizes[group]) for group in groups])


def hold_out(measured: Sequence[Pieces], group: Callable[[Row], str]) -> dict[str, list[float]]:
    """Return predicted over measured times by group, each from a fit to the other groups."""
    return _hold_out(measured, group, fit_one_device, time_of)


def _hold_out(
    measured: Sequence[Any],
    group: Callable[[Row], str],
    fit: Callable[[Sequence[Any]], dict[str, float]],
    seconds: Callable[[Any, dict[str, float]], float],
) -> dict[str, list[float]]:
    ratios: dict[str, list[float]] = {}
    for name in sorted({group(pieces.row) for pieces in measured}):
        constants = fit([pieces for pieces in measured if group(pieces.row) != name])
        for pieces in measured:
            if group(pieces.row) == name:
                ratios.setdefault(name, []).append(seconds(pieces, constants) / pieces.row.time_s)
    return ratios


# Several devices


class SplitPieces(NamedTuple):
    """What the constants of splitting the sequence multiply in a batch."""

    row: Row  # the measured batch
    # Denoiser on one device, its host, and the other parts.
    device_s: float
    host_s: float
    rest_s: float
    attentions: float  # number of attentions over the sequence
    exchanged_bytes: float  # bytes of one of queries, keys, values and results, of all devices
    # Rates of the device.
    link_bytes_per_s: float
    bandwidth_bytes_per_s: float


def split_pieces_of(row: Row) -> SplitPieces:
    """Return the pieces of a batch on several devices, under the constants of one device."""
    prediction = ask(row._replace(ulysses=1, ring=1))
    denoiser = next(part for part in prediction.parts if part.part.role == "denoiser")
    terms, device = denoiser.prediction.terms, prediction.device
    total_s = float(terms.layers_s.sum()) * denoiser.runs
    device_s = total_s / terms.host_slowdown
    attentions = self_attentions(denoiser.prediction.layers)
    elements = sum(prod(layer.inputs[0]) for layer in attentions) * denoiser.prediction.batch_size
    return SplitPieces(
        row,
        device_s,
        float(np.sqrt(max(total_s**2 - device_s**2, 0.0))),
        prediction.time_s - denoiser.time_s,
        len(attentions) * denoiser.runs,
        2.0 * elements * denoiser.runs,
        peer_bandwidth_bytes_per_s(device) or np.nan,
        device.bandwidth_bytes_per_s,
    )


def split_time_of(pieces: SplitPieces, constants: dict[str, float]) -> float:
    """Return the seconds of a batch on several devices; the formula is that of `sequence_parallel`."""
    ulysses, ring, devices = pieces.row.ulysses, pieces.row.ring, pieces.row.gpus
    own_bytes = pieces.exchanged_bytes / devices
    link = pieces.link_bytes_per_s * constants["bandwidth_share"]
    device_s = pieces.device_s / devices + 4 * own_bytes * (ulysses - 1) / ulysses / link
    device_s += own_bytes * (ring - 1) / link
    device_s += constants["merge_bytes"] * own_bytes / 2 * (ring - 1) / pieces.bandwidth_bytes_per_s
    per_attention_s = constants["attention_s"] + (ring - 1) * constants["ring_step_s"]
    per_attention_s += 4 * constants["all_to_all_s"] * (ulysses > 1)
    return float(np.hypot(device_s, pieces.host_s + pieces.attentions * per_attention_s)) + pieces.rest_s


def fit_split(measured: Sequence[SplitPieces]) -> dict[str, float]:
    """Fit the constants of splitting the sequence."""
    weights = _weights([(pieces.row.pipeline, pieces.row.gpu, pieces.row.gpus) for pieces in measured])
    return _fit(measured, SEQUENCE_PRIOR, weights, split_time_of)


def hold_out_split(measured: Sequence[SplitPieces], group: Callable[[Row], str]) -> dict[str, list[float]]:
    """Return predicted over measured times by group, each from a fit to the other groups."""
    return _hold_out(measured, group, fit_split, split_time_of)


# Report


def fit_constants(folder: Path) -> DiffusionConstants:
    """Fit all constants to ML.ENERGY's benchmark, and print the errors of what is held out."""
    measured = [pieces_of(row) for row in mlenergy_rows(folder) if row.gpus == 1]
    by_model = hold_out(measured, lambda row: row.pipeline)
    _print("one device, model held out", by_model)
    _print("one device, device held out", hold_out(measured, lambda row: row.gpu))
    _print_videos_of_the_other_device(measured)
    fitted = {name: _round(value) for name, value in fit_one_device(measured).items()}
    return DiffusionConstants(
        **fitted,
        head_share=HEAD_SHARE,
        deviation=_round(_deviation(by_model)),
        other_deviation=OTHER_DEVIATION,
        measured=tuple(sorted({pieces.row.gpu for pieces in measured})),
        sequence=diffusion_constants().sequence,
        sources=("ML.ENERGY Benchmark v3",),
    )


def _print_videos_of_the_other_device(measured: Sequence[Pieces]) -> None:
    """Print the errors of videos on each device, from a fit to pictures on the other ones."""
    ratios = {}
    for gpu in sorted({pieces.row.gpu for pieces in measured}):
        others = [pieces for pieces in measured if pieces.row.gpu != gpu and pieces.row.frames == 1]
        constants = fit_one_device(others)
        videos = [pieces for pieces in measured if pieces.row.gpu == gpu and pieces.row.frames > 1]
        ratios[gpu] = [time_of(pieces, constants) / pieces.row.time_s for pieces in videos]
    _print("videos of a device, fitted to pictures of the others", ratios)


def fit_sequence(folder: Path, constants: DiffusionConstants) -> DiffusionConstants:
    """Fit the constants of several devices, given those of one, and print the errors of what is held out."""
    measured = [split_pieces_of(row) for row in mlenergy_rows(folder) if row.gpus > 1]
    by_model = hold_out_split(measured, lambda row: row.pipeline)
    _print("two to eight devices, model held out", by_model)
    _print("two to eight devices, device held out", hold_out_split(measured, lambda row: row.gpu))
    numbers = {name: _round(value) for name, value in fit_split(measured).items()}
    sequence = msgspec.structs.replace(constants.sequence, **numbers, deviation=_round(_deviation(by_model)))
    return msgspec.structs.replace(constants, sequence=sequence)


def _deviation(ratios: dict[str, list[float]]) -> float:
    """Return the root of the mean square logarithm, each group with the same weight."""
    return float(np.sqrt(np.mean([np.mean(np.log(values) ** 2) for values in ratios.values()])))


def _round(value: float) -> float:
    return float(f"{value:.4g}")


def _print(title: str, ratios: dict[str, list[float]]) -> None:
    """Print the mean error by group and of all."""
    errors = {name: np.mean(np.abs(np.array(values) - 1)) for name, values in ratios.items()}
    listed = ", ".join(f"{name} {error:.1%}" for name, error in errors.items())
    every = np.concatenate([np.abs(np.array(values) - 1) for values in ratios.values()])
    print(f"{title}: {every.mean():.1%} in the mean of {len(every)} ({listed})")


def report(folder: Path) -> None:
    """Print error and coverage of the shipped constants, by source."""
    users = [best for best, _ in user_rows(folder)]
    is_nvidia = {gpu: find_device(gpu).vendor == "NVIDIA" for gpu in {row.gpu for row in users}}
    sources = {
        "ML.ENERGY, one device (fitted)": [row for row in mlenergy_rows(folder) if row.gpus == 1],
        "ML.ENERGY, two to eight (fitted)": [row for row in mlenergy_rows(folder) if row.gpus > 1],
        "tables of projects (not fitted)": list(project_rows(folder)),
        "users of NVIDIA's cards, upper fifth (not fitted)": [row for row in users if is_nvidia[row.gpu]],
        "users of other cards, upper fifth (not fitted)": [row for row in users if not is_nvidia[row.gpu]],
    }
    for title in list(sources)[:2]:
        joules = [ask(row).energy_j / (row.watts * row.time_s) - 1 for row in sources[title]]  # type: ignore[operator]
        print(f"{title}: joules {np.mean(np.abs(joules)):.1%} off in the mean")
    for title, rows in sources.items():
        errors, inside, widths = _errors(rows)
        print(
            f"{title}: {np.mean(errors):.1%} in the mean, {np.median(errors):.1%} in the median of {len(errors)}, "
            f"{np.mean(inside):.0%} inside 90% intervals of a ratio of {np.median(widths):.2f}"
        )


def _errors(rows: Iterable[Row]) -> tuple[list[float], list[bool], list[float]]:
    """Return relative errors, whether each time is inside its interval, and the ratios of the ends of the intervals."""
    errors, inside, widths = [], [], []
    for row in rows:
        try:
            prediction = ask(row)
        except PaleoError as error:
            print(f"left out: {row.pipeline} on {row.gpu}: {error}")
            continue
        time_s = predicted_s(row, prediction)
        if prediction.interval is None:
            print(f"left out: {row.pipeline} on {row.gpu}: there is only a bound")
            continue
        low, high = (end / prediction.time_s * time_s for end in prediction.interval)
        errors.append(abs(time_s / row.time_s - 1))
        inside.append(low <= row.time_s <= high)
        widths.append(high / low)
    return errors, inside, widths


def write_constants(constants: DiffusionConstants, path: Path = CALIBRATIONS / FILE) -> None:
    """Write the constants as TOML."""
    lines = ["# Fitted to published batches by python -m validation.diffusion.fit; docs/pipelines.md explains them."]
    numbers = msgspec.to_builtins(constants)
    sequence = numbers.pop("sequence")
    for name, value in numbers.items():
        text = "[" + ", ".join(f'"{item}"' for item in value) + "]" if isinstance(value, (tuple, list)) else repr(value)
        lines.append(f"{name} = {text}")
    lines += ["", "[sequence]", *(f"{name} = {value!r}" for name, value in sequence.items())]
    write_atomically(path, ("\n".join(lines) + "\n").encode())


def main() -> None:
    """Fit, print and write the constants."""
    if len(sys.argv) != 2:
        sys.exit("usage: python -m validation.diffusion.fit FOLDER")
    folder = Path(sys.argv[1])
    constants = fit_constants(folder)
    write_constants(constants)
    diffusion_constants.cache_clear()
    write_constants(fit_sequence(folder, constants))
    diffusion_constants.cache_clear()
    report(folder)


if __name__ == "__main__":
    main()

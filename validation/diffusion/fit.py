"""Fit of the constants of pipelines to published batches.

The constants are the same for all devices, and each multiplies a sum over the layers of the calibrated model, so that
one evaluation of each batch is enough for all fits.

The form was chosen on pictures with one device held out, among constants by generation or per cycle for each class of
work, sums or root sums of squares, and with or without a factor on products; it is judged on videos, on other sources
and on several devices. That attention pads heads, and is no faster than other products, follows from its kernels, which
were timed alone on A100 and L40S (``modern/attention_modern.csv.gz``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any, NamedTuple

import numpy as np
from scipy.optimize import least_squares

from paleo_lite.api.pipelines import resolve_pipeline
from paleo_lite.api.question import PictureOptions, Question
from paleo_lite.architectures.pipelines.sampling import find_pipeline
from paleo_lite.counting.kinds import class_of
from paleo_lite.counting.kinds.products import MATRIX_CLASSES
from paleo_lite.machines import Machine
from paleo_lite.timing import TimeModel
from paleo_lite.timing.calibrated import CalibratedModel, rates_of
from paleo_lite.timing.diffusion import DiffusionConstants, cycles_per_s, padded_heads
from paleo_lite.timing.offload import peer_bandwidth_bytes_per_s
from paleo_lite.timing.parameters import NAMES
from paleo_lite.timing.pipeline_prediction import PipelinePrediction
from paleo_lite.timing.pipeline_run import PipelineRun
from paleo_lite.timing.pipelines import predict_pipeline
from paleo_lite.timing.sequence_parallel import self_attentions

from .published import PictureMeasurement

PRIOR = {
    "flops_per_cycle": (np.log(2048.0), 0.3),  # of Ampere's matrix instructions, on every generation since
    "scores_per_cycle": (np.log(8.0), 0.7),  # half of the 16 exponentials of the special-function units
    "bytes_per_cycle": (np.log(10.0), 0.7),
    "row_cycles": (np.log(100.0), 1.5),
    "host_s": (np.log(6e-6), 0.3),
}
"""Mean and deviation of the logarithm of each constant."""

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


class PicturePieces(NamedTuple):
    """Seconds of a batch's denoiser under the calibrated model by class of work, and what the constants multiply."""

    row: PictureMeasurement  # the measured batch
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


def resolved(row: PictureMeasurement) -> tuple[PipelineRun, Machine, Callable[..., TimeModel]]:
    """Return the run, the machine and the time models of a measured batch."""
    pipeline = find_pipeline(row.pipeline)
    assert pipeline is not None
    question = Question(
        row.pipeline,
        row.gpu,
        precision=row.precision,
        execution=row.execution,
        attention=row.attention,
        batch_size=row.images,
        image_size=f"{row.width}x{row.height}",
        pictures=PictureOptions(
            steps=row.steps,
            frames=row.frames if row.frames > 1 else None,
            ulysses=row.ulysses,
            ring=row.ring,
        ),
    )
    return resolve_pipeline(pipeline, question)


def ask(row: PictureMeasurement, constants: DiffusionConstants | None = None) -> PipelinePrediction:
    """Predict a measured batch, by default with the shipped constants."""
    return predict_pipeline(*resolved(row), constants)


def predicted_s(row: PictureMeasurement, prediction: PipelinePrediction) -> float:
    """Return the predicted seconds of what was measured: a batch, or a step of the denoiser."""
    if not row.is_step:
        return prediction.time_s
    return next(part.run_s for part in prediction.parts if part.part.role == "denoiser")


def pieces_of(row: PictureMeasurement) -> PicturePieces:
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
    return PicturePieces(
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


def time_of(pieces: PicturePieces, constants: dict[str, float]) -> float:
    """Return the seconds of a batch on one device under some constants."""
    flops_per_cycle = min(constants["flops_per_cycle"], pieces.largest_flops_per_cycle)
    attention = pieces.attention_flops / flops_per_cycle + pieces.scores / constants["scores_per_cycle"]
    attention_s = attention / pieces.cycles_per_s
    moving_s = pieces.between_bytes / constants["bytes_per_cycle"] / pieces.cycles_per_s
    between_s = float(np.hypot(pieces.between_s, moving_s))
    rows_s = constants["row_cycles"] * pieces.rows / pieces.cycles_per_s
    device_s = attention_s + pieces.products_s + between_s + rows_s
    return float(np.hypot(device_s, pieces.kernels * constants["host_s"])) + pieces.rest_s


def fit_one_device(measured: Sequence[PicturePieces]) -> dict[str, float]:
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


def hold_out(measured: Sequence[PicturePieces], group: Callable[[PictureMeasurement], str]) -> dict[str, list[float]]:
    """Return predicted over measured times by group, each from a fit to the other groups."""
    return _hold_out(measured, group, fit_one_device, time_of)


def _hold_out(
    measured: Sequence[Any],
    group: Callable[[PictureMeasurement], str],
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

    row: PictureMeasurement  # the measured batch
    # Denoiser on one device, its host, and the other parts.
    device_s: float
    host_s: float
    rest_s: float
    attentions: float  # number of attentions over the sequence
    exchanged_bytes: float  # bytes of one of queries, keys, values and results, of all devices
    # Rates of the device.
    link_bytes_per_s: float
    bandwidth_bytes_per_s: float


def split_pieces_of(row: PictureMeasurement, constants: DiffusionConstants) -> SplitPieces:
    """Return the pieces of a batch on several devices, under the constants of one device."""
    prediction = ask(row._replace(ulysses=1, ring=1), constants)
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


def hold_out_split(
    measured: Sequence[SplitPieces], group: Callable[[PictureMeasurement], str]
) -> dict[str, list[float]]:
    """Return predicted over measured times by group, each from a fit to the other groups."""
    return _hold_out(measured, group, fit_split, split_time_of)

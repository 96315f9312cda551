"""Fit of the constants of pipelines, and their error on what is held out.

``python -m validation.diffusion.fit FOLDER`` reads the published batches in ``FOLDER/engines``, prints the error with
each model and each device held out, and that of sources which the fit does not use, and writes
``calibrations/diffusion.toml``. The factors of a generation scale the time of the calibrated model by class of work, so
that one evaluation of each batch is enough for all fits. With a device held out its generation has no factors of its
own: those of the other generation stand in.
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
from paleo_lite.errors import PaleoError
from paleo_lite.files import write_atomically
from paleo_lite.timing.diffusion import FILE, DiffusionConstants, Generation, diffusion_constants
from paleo_lite.timing.features import CLASSES, features_of
from paleo_lite.timing.offload import peer_bandwidth_bytes_per_s
from paleo_lite.timing.pipelines import PipelinePrediction
from paleo_lite.timing.sequence_parallel import self_attentions

from .published import Row, mlenergy_rows, project_rows, user_rows

CALIBRATIONS = Path(__file__).parent.parent.parent / "calibrations"

NEUTRAL = Generation(attention=1.0, products=1.0, memory=1.0, head_share=0.0, deviation=0.15)
"""Factors with which the times of the calibrated model are unchanged."""

MICROSECONDS = 1e-6
GENERATIONS = ("9", "10")
"""Compute capabilities of the devices of ML.ENERGY's benchmark."""

PRIOR = {
    "attention": (np.log(1.35), 0.5),
    "products": (np.log(1.4), 0.25),
    "memory": (np.log(1.6), 0.5),
}
"""Mean and deviation of the logarithm of each factor of a generation."""

SHARED_PRIOR = {"head_share": (0.2, 0.5), "row_cycles": (np.log(100.0), 1.5), "host_s": (np.log(6e-6), 0.3)}
"""The same of the constants that all generations share; the share itself, not its logarithm."""

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
    """Seconds of a batch's parts of the denoiser under the calibrated model, and what the other constants multiply.

    Attributes
    ----------
    row : Row
        The measured batch.
    generation : str
        First number of the device's compute capability.
    attention_s, short_attention_s : float
        Attention, and the same times 128 / head size.
    products_s, memory_s, rest_s : float
        Matrix products and convolutions; everything else of the denoiser; text encoders and decoder.
    row_s : float
        Seconds of the rows of layer norms per cycle.
    kernels : float
        Kernels that the host launches.
    """

    row: Row
    generation: str
    attention_s: float
    short_attention_s: float
    products_s: float
    memory_s: float
    rest_s: float
    row_s: float
    kernels: float


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
    seconds = plain.terms.layers_s.sum(axis=0) / plain.terms.host_slowdown * denoiser.runs
    features = features_of(workload)
    classes = np.full(len(seconds), -1)
    classes[features.position[:, 1]] = features.work_class.ravel()
    by_class = {name: float(seconds[classes == index].sum()) for index, name in enumerate(CLASSES)}
    attention = by_class.pop("attention")
    products = sum(by_class[name] for name in by_class if name == "gemm" or name.startswith("conv"))
    layers = list(enumerate(workload.layers))
    short = sum(seconds[index] * 128 / layer.inputs[0][-1] for index, layer in layers if layer.kind == "attention")
    rows = sum(prod(layer.outputs[0][:-1]) for _, layer in layers if layer.kind == "layer_norm")
    clock_hz = machine.device.clock_hz("boost") or 1.5e9
    cycles_per_s = clock_hz * float(machine.device.cores.multiprocessors.value)
    return Pieces(
        row=row,
        generation=machine.device.capability.split(".")[0],
        attention_s=attention,
        short_attention_s=float(short),
        products_s=products,
        memory_s=sum(by_class.values()) - products,
        rest_s=prediction.time_s - denoiser.time_s,
        row_s=rows * workload.batch_size * denoiser.runs / cycles_per_s,
        kernels=float(denoiser.prediction.kernels or 0) * denoiser.runs,
    )


def time_of(pieces: Pieces, shared: dict[str, float], factors: dict[str, float]) -> float:
    """Return the seconds of a batch on one device under some constants."""
    share = shared["head_share"]
    attention_s = (1 - share) * pieces.attention_s + share * pieces.short_attention_s
    device_s = factors["attention"] * attention_s + factors["products"] * pieces.products_s
    device_s += factors["memory"] * pieces.memory_s + shared["row_cycles"] * pieces.row_s
    return float(np.hypot(device_s, pieces.kernels * shared["host_s"])) + pieces.rest_s


Constants = tuple[dict[str, float], dict[str, dict[str, float]]]
"""The shared constants, and the factors by generation."""


def fit_one_device(measured: Sequence[Pieces]) -> Constants:
    """Fit the shared constants and the factors of the generations that were measured.

    Every pipeline on every device has the weight of one measurement per batch size at most, as its batch sizes share
    their error.
    """
    generations = sorted({pieces.generation for pieces in measured})
    weights = _weights([(pieces.row.pipeline, pieces.row.gpu) for pieces in measured])
    priors = [*SHARED_PRIOR.values(), *(prior for _ in generations for prior in PRIOR.values())]
    means, deviations = np.array(priors).T

    def constants(values: Any) -> Constants:
        numbers = [float(value) for value in values]
        shared = dict(zip(SHARED_PRIOR, [numbers[0], *np.exp(numbers[1 : len(SHARED_PRIOR)])]))
        factors = np.exp(numbers[len(SHARED_PRIOR) :]).reshape(len(generations), len(PRIOR))
        return shared, {name: dict(zip(PRIOR, map(float, row))) for name, row in zip(generations, factors)}

    def residuals(values: Any) -> Any:
        shared, factors = constants(values)
        times = [time_of(pieces, shared, factors[pieces.generation]) for pieces in measured]
        errors = np.log(np.array(times) / [pieces.row.time_s for pieces in measured])
        return np.concatenate([weights * errors / RESIDUAL, (values - means) / deviations])

    return constants(least_squares(residuals, means).x)


def _weights(groups: Sequence[Any]) -> Any:
    """Return the square roots of weights that give every group the same sum, that of two measurements."""
    sizes = {group: groups.count(group) for group in set(groups)}
    return np.array([np.sqrt(2 / sizes[group]) for group in groups])


def hold_out(measured: Sequence[Pieces], group: Callable[[Row], str]) -> dict[str, list[float]]:
    """Return predicted over measured times by group, each from a fit to the other groups."""
    ratios: dict[str, list[float]] = {}
    for name in sorted({group(pieces.row) for pieces in measured}):
        shared, factors = fit_one_device([pieces for pieces in measured if group(pieces.row) != name])
        any_factors = next(iter(factors.values()))
        for pieces in measured:
            if group(pieces.row) == name:
                time_s = time_of(pieces, shared, factors.get(pieces.generation, any_factors))
                ratios.setdefault(name, []).append(time_s / pieces.row.time_s)
    return ratios


# Several devices


class SplitPieces(NamedTuple):
    """What the constants of splitting the sequence multiply in a batch.

    Attributes
    ----------
    row : Row
        The measured batch.
    device_s, host_s, rest_s : float
        Denoiser on one device, its host, and the other parts.
    attentions : float
        Number of attentions over the sequence.
    exchanged_bytes : float
        Bytes of one of queries, keys, values and results, of all devices.
    link_bytes_per_s, bandwidth_bytes_per_s : float
        Rates of the device.
    """

    row: Row
    device_s: float
    host_s: float
    rest_s: float
    attentions: float
    exchanged_bytes: float
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
    means, deviations = np.array(list(SEQUENCE_PRIOR.values())).T

    def residuals(values: Any) -> Any:
        constants = dict(zip(SEQUENCE_PRIOR, np.exp(values)))
        times = np.array([split_time_of(pieces, constants) for pieces in measured])
        errors = np.log(times / [pieces.row.time_s for pieces in measured])
        return np.concatenate([weights * errors / RESIDUAL, (values - means) / deviations])

    return dict(zip(SEQUENCE_PRIOR, map(float, np.exp(least_squares(residuals, means).x))))


def hold_out_split(measured: Sequence[SplitPieces], group: Callable[[Row], str]) -> dict[str, list[float]]:
    """Return predicted over measured times by group, each from a fit to the other groups."""
    ratios: dict[str, list[float]] = {}
    for name in sorted({group(pieces.row) for pieces in measured}):
        constants = fit_split([pieces for pieces in measured if group(pieces.row) != name])
        for pieces in measured:
            if group(pieces.row) == name:
                ratios.setdefault(name, []).append(split_time_of(pieces, constants) / pieces.row.time_s)
    return ratios


# Report


def fit_constants(folder: Path) -> DiffusionConstants:
    """Fit all constants to ML.ENERGY's benchmark, and print the errors of what is held out."""
    rows = list(mlenergy_rows(folder))
    measured = [pieces_of(row) for row in rows if row.gpus == 1]
    shared, factors = fit_one_device(measured)
    by_model = hold_out(measured, lambda row: row.pipeline)
    _print("one device, model held out", by_model)
    _print("one device, device held out", hold_out(measured, lambda row: row.gpu))
    deviation = _round(_deviation(by_model))
    before = diffusion_constants()
    return msgspec.structs.replace(
        before,
        row_cycles=_round(shared["row_cycles"]),
        host_s=_round(shared["host_s"]),
        sources=("ML.ENERGY Benchmark v3",),
        generations={
            name: Generation(
                **{key: _round(value) for key, value in factors[name].items()},
                head_share=_round(shared["head_share"]),
                deviation=deviation,
                is_fitted=True,
            )
            for name in GENERATIONS
        },
    )


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
    sources = {
        "ML.ENERGY, one device (fitted)": [row for row in mlenergy_rows(folder) if row.gpus == 1],
        "ML.ENERGY, two to eight (fitted)": [row for row in mlenergy_rows(folder) if row.gpus > 1],
        "tables of projects (not fitted)": list(project_rows(folder)),
        "users, upper fifth (not fitted)": users,
    }
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
        assert prediction.interval is not None
        low, high = (end / prediction.time_s * time_s for end in prediction.interval)
        errors.append(abs(time_s / row.time_s - 1))
        inside.append(low <= row.time_s <= high)
        widths.append(high / low)
    return errors, inside, widths


def write_constants(constants: DiffusionConstants, path: Path = CALIBRATIONS / FILE) -> None:
    """Write the constants as TOML."""
    lines = ["# Fitted to published batches by python -m validation.diffusion.fit; docs/pipelines.md explains them."]
    tables: list[str] = []
    numbers = msgspec.to_builtins(constants)
    for name in ("row_cycles", "host_s", "fused_memory"):
        lines.append(f"{name} = {numbers[name]!r}")
    lines.append("sources = [" + ", ".join(f'"{name}"' for name in constants.sources) + "]")
    records = {"sequence": numbers["sequence"], "other": numbers["other"]}
    records |= {f"generations.{name}": record for name, record in numbers["generations"].items()}
    for name, record in records.items():
        values = [
            f"{key} = {str(value).lower() if isinstance(value, bool) else repr(value)}" for key, value in record.items()
        ]
        tables.append("\n".join([f"[{name}]", *values]))
    write_atomically(path, ("\n".join(lines) + "\n\n" + "\n\n".join(tables) + "\n").encode())


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

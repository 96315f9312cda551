"""Fit of the constants of training to published steps, and their error on held-out steps."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache, cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from paleo_lite.architectures.model_config import read_config
from paleo_lite.architectures.network import SequenceOptions
from paleo_lite.calibration.accuracy import interval_accuracy, relative_errors
from paleo_lite.calibration.choose import choose_model
from paleo_lite.distributed.clusters import EXPECTED, ClusterScores, cluster_prior
from paleo_lite.distributed.job import Job
from paleo_lite.distributed.links import Topology
from paleo_lite.distributed.parallel_3d import train_3d_parallel
from paleo_lite.distributed.platforms import parse_topology
from paleo_lite.distributed.scale import predict_step
from paleo_lite.distributed.settings import Settings
from paleo_lite.extras import require
from paleo_lite.files import write_atomically
from paleo_lite.machines import Machine, find_device
from paleo_lite.timing.blocks import TRAINING_FILE, TrainingConstants, use_training_constants
from paleo_lite.timing.training_options import TrainingOptions
from paleo_lite.timing.workload import Workload

from .published import TrainedStep, trained_steps

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

PRIOR: dict[str, tuple[float, float]] = {
    "efficiency_gemm": (0.8, 0.15),
    "efficiency_attention": (1.0, 0.15),
    "factor_data_gradient": (1.0, 0.03),
    "factor_weight_gradient": (1.0, 0.03),
    "overhead_s": (33e-6, 0.4),
    "overhead_backward_s": (9e-6, 0.4),
    "share_other": (0.8, 0.2),
}
"""Prior of each constant: median, and standard deviation of the logarithm. The efficiency of matrix products follows
that of libraries; a kernel of attention takes as long in a step as alone; the overheads of the host follow those of
other networks (`paleo_lite.calibration.prior`). The gradients of a matrix product cost as much as the product. The
share of the bandwidth is relative to the device's calibrated share: a single share for all devices increases the error
on GB200 by two percentage points, and the device's own share increases that on llm-foundry by three."""

PRIOR_OF_EXPOSED_SHARDING = (0.7, 0.4)
"""Prior of the exposed fraction of the communication of sharded parameters: median, and deviation of the logarithm."""

SCATTER = 0.07
"""Standard deviation of the logarithm of measured over predicted step times."""

MAX_STEPS_PER_GROUP = 150
"""Number of steps of a source on a device family that a fit uses, evenly spaced over its rows."""

EFFECTIVE_STEPS_PER_GROUP = 15
"""Total weight of the steps of a source on a device family, whose model errors are correlated."""

GENERATION = "9"
"""Compute capability of the generation whose share of the rates in eager PyTorch is fitted after the other constants:
Hopper, whose kernels are so short that gaps between them matter. Compiled steps on it show no such share."""

SHARE_OF_GENERATION = 0.5
"""Part of the difference between its steps and the model that counts as the generation's. One source has fitted steps
on Hopper, and its own error is expected to be as large (`SCATTER`)."""

SHARES = np.arange(0.8, 1.21, 0.01)
"""Shares of the generation that a fit compares."""


class HeldOutTraining(msgspec.Struct, frozen=True):
    """Errors of constants on the held-out steps of a source, as fractions."""

    split: str  # property by which the steps were split
    fitted_to: str  # steps that the constants were fitted to
    source: str
    points: int
    # Mean and median absolute relative error.
    mape: float
    median: float
    # Fraction of steps inside their 90% interval, and mean relative width of the intervals.
    coverage_90: float
    width_90: float
    sharpness_90: float  # median ratio between the ends of the intervals
    constant_mfu: float  # mean absolute relative error of assuming the mean MFU of the fitted steps for all steps


class TimedSteps:
    """Published steps with cached jobs, to be predicted with any constants."""

    def __init__(self, steps: Sequence[TrainedStep]) -> None:
        self.steps = steps
        self.measured_s = np.array([step.time_s for step in steps])
        self._jobs: dict[tuple[str, int, str, str, bool], Job] = {}

    def predict(self, constants: TrainingConstants) -> Floats:
        """Return the seconds of every step on the expected cluster, shape (steps,)."""
        rows = []
        for step, job in self.jobs_with(constants):
            machine, settings = cluster_prior().cluster_at(ClusterScores(*[EXPECTED] * 4), *topology_and_settings(step))
            rows.append(float(train_3d_parallel(job, machine, step.batch_size, settings).time_s))
        return np.array(rows)

    def forecast(self, constants: TrainingConstants) -> tuple[Floats, Floats, Floats]:
        """Return the seconds of every step as `scale` predicts them, and the ends of their 90% intervals."""
        rows = []
        for step, job in self.jobs_with(constants):
            prediction = predict_step(job, *topology_and_settings(step), step.batch_size, "3d", cluster_prior())
            assert prediction.interval is not None
            rows.append((float(prediction.time_s), *prediction.interval))
        time_s, low_s, high_s = np.array(rows).T
        return time_s, low_s, high_s

    def select(self, chosen: Sequence[int]) -> TimedSteps:
        """Return a subset of the steps that shares the cached jobs."""
        part = TimedSteps([self.steps[index] for index in chosen])
        part._jobs = self._jobs
        return part

    @cached_property
    def mfu(self) -> Floats:
        """MFU of every step, with 6 N + 12 L h s FLOPs per token (Chowdhery et al. 2022, appendix B)."""
        rows = []
        for step in self.steps:
            fields = msgspec.json.decode(step.config)
            layers = fields.get("n_layer") or fields["num_hidden_layers"]
            hidden = fields.get("n_embd") or fields["hidden_size"]
            flops = (6e9 * step.billions + 12 * layers * hidden * step.length) * step.length * step.batch_size
            peak = Machine(find_device(step.gpu)).peak(step.precision).per_s
            rows.append(flops / (peak * step.workers * step.time_s))
        return np.array(rows)

    @property
    def mean_mfu(self) -> float:
        """Mean over sources of the median MFU of their steps."""
        sources = np.array([step.source for step in self.steps])
        return float(np.mean([np.median(self.mfu[sources == source]) for source in set(sources)]))

    def jobs_with(self, constants: TrainingConstants) -> list[tuple[TrainedStep, Job]]:
        """Return every step with its job under the given constants."""
        job_by_id: dict[int, Job] = {}
        rows = []
        for step in self.steps:
            job = self._job(step)
            if id(job) not in job_by_id:
                job_by_id[id(job)] = job.with_time_model(use_training_constants(job.model, constants))
            rows.append((step, job_by_id[id(job)]))
        return rows

    def _job(self, step: TrainedStep) -> Job:
        key = step.config, step.length, step.gpu, step.precision, step.fused_loss
        if key not in self._jobs:
            precision, options = TrainingOptions(
                "adam", mixed_precision=True, fused_loss=step.fused_loss
            ).split_precision(step.precision)
            device = find_device(step.gpu)
            network = read_config(
                step.config.encode(), f"{step.model}.json", None, SequenceOptions(step.length, phase="training")
            )
            workload = Workload(network, precision, phase="training", training=options)
            model = choose_model(device, precision, products=options.products)
            self._jobs[key] = Job(workload, Machine(device), model)
        return self._jobs[key]


def topology_and_settings(step: TrainedStep) -> tuple[Topology, Settings]:
    return _machine(step.topology, step.workers), Settings(parallel=step.split)


@cache
def _machine(topology: str, workers: int) -> Topology:
    return parse_topology(topology).with_workers(workers)


def fit(timed: TimedSteps, scatter: float = SCATTER) -> TrainingConstants:
    """Fit the constants to steps with a prior and a robust loss (soft L1) on the relative error.

    Raises
    ------
    MissingExtra
        If scipy is not installed.
    """
    least_squares = require("scipy.optimize", "fitting", "calibrate").least_squares
    chosen: list[int] = []
    weights: list[float] = []
    groups = [(step.source, step.gpu.split("-")[0]) for step in timed.steps]
    for group in sorted(set(groups)):
        indices = [index for index, own_group in enumerate(groups) if own_group == group]
        number = min(MAX_STEPS_PER_GROUP, len(indices))
        for position in np.linspace(0, len(indices) - 1, number):
            chosen.append(indices[round(position)])
        weight = min(EFFECTIVE_STEPS_PER_GROUP / number, 1.0)
        weights += [weight**0.5] * number
    part = timed.select(chosen)
    median, deviation = (np.array(values) for values in zip(*PRIOR.values(), PRIOR_OF_EXPOSED_SHARDING))
    measured = np.log(part.measured_s)

    def residuals(log_change: Floats) -> Floats:
        predicted = np.log(part.predict(_constants(median * np.exp(log_change))))
        errors = (predicted - measured) / scatter
        soft = np.sign(errors) * np.sqrt(2 * (np.sqrt(1 + errors**2) - 1))  # its square is soft L1
        return np.concatenate([soft * weights, log_change / deviation])

    solution = least_squares(residuals, np.zeros(len(median)), diff_step=0.01, x_scale=deviation, max_nfev=6)
    posterior_deviation = np.sqrt(np.diag(np.linalg.inv(solution.jac.T @ solution.jac)))
    constants = _constants(median * np.exp(solution.x), posterior_deviation, scatter, part)
    return with_generation_share(timed, constants)


def with_generation_share(timed: TimedSteps, constants: TrainingConstants) -> TrainingConstants:
    """Return the constants with the share of the rates that products and attention reach in steps on Hopper.

    It is that with the smallest median error, half-way back to 1 (`SHARE_OF_GENERATION`).
    """
    is_of_generation = [find_device(step.gpu).capability.startswith(GENERATION) for step in timed.steps]
    part = timed.select(np.flatnonzero(is_of_generation).tolist())
    if not part.steps:
        return constants
    errors = []
    for share in SHARES:
        shared = msgspec.structs.replace(constants, share_by_generation={GENERATION: float(share)})
        errors.append(abs(float(np.median(np.log(part.predict(shared) / part.measured_s)))))
    share = float(SHARES[int(np.argmin(errors))]) ** SHARE_OF_GENERATION
    return msgspec.structs.replace(constants, share_by_generation={GENERATION: share})


def _constants(
    values: Floats, deviation: Floats | None = None, scatter: float = SCATTER, part: TimedSteps | None = None
) -> TrainingConstants:
    steps = part.steps if part else ()
    return TrainingConstants(
        constants=dict(zip(PRIOR, map(float, values))),
        deviation=dict(zip(PRIOR, map(float, np.zeros(len(values)) if deviation is None else deviation))),
        exposed_sharding=min(float(values[-1]), 1.0),
        scatter=scatter,
        points=len(steps),
        devices=sorted({step.gpu for step in steps}),
        sources=sorted({step.source for step in steps}),
    )


# Splits --------------------------------------------------------------------------------------------------------------

SIZES = ("below 0.5 B", "0.5 to 2 B", "2 to 8 B", "above 8 B")


def size_of(step: TrainedStep) -> str:
    """Return the name of the range of parameters that a network belongs to."""
    return SIZES[sum(step.billions >= edge for edge in (0.5, 2, 8))]


def splits(steps: Sequence[TrainedStep]) -> Iterator[tuple[str, str, list[int], list[int]]]:
    """Yield the name of each split, what its constants are fitted to, and indices of the fitted and judged steps."""

    def partition(is_judged: Sequence[bool]) -> tuple[list[int], list[int]]:
        judged = np.array(is_judged)
        return np.flatnonzero(~judged).tolist(), np.flatnonzero(judged).tolist()

    for source in dict.fromkeys(step.source for step in steps):
        yield "source", source, *partition([step.source != source for step in steps])
    yield "gpu", "A100", *partition(["a100" not in step.gpu for step in steps])
    yield "gpu", "all but H100", *partition(["h100" in step.gpu for step in steps])
    for size in SIZES:
        yield "size", f"all but {size}", *partition([size_of(step) == size for step in steps])
    yield "nodes", "one node", *partition([step.workers > 8 for step in steps])
    shared = [step.split.tensor * step.split.pipeline > 1 for step in steps]
    yield "parallelism", "no matrix or stages shared", *partition(shared)


def validate_training(steps: Sequence[TrainedStep]) -> tuple[list[HeldOutTraining], list[tuple[TrainedStep, float]]]:
    """Fit and judge every split.

    Returns
    -------
    list of HeldOutTraining
        A row for each split and judged source.
    list of (TrainedStep, float)
        The steps of held-out sources with their predicted seconds.
    """
    timed, rows, pairs = TimedSteps(steps), [], []
    for split, fitted_to, fitted_indices, judged_indices in splits(steps):
        if not fitted_indices or not judged_indices:
            continue
        fitted, judged = timed.select(fitted_indices), timed.select(judged_indices)
        predicted = judged.forecast(fit(fitted))
        mfu = fitted.mean_mfu
        for source in dict.fromkeys(step.source for step in judged.steps):
            here = np.array([step.source == source for step in judged.steps])
            rows.append(_row(split, fitted_to, source, judged, here, predicted, mfu))
        if split == "source":
            pairs += list(zip(judged.steps, map(float, predicted[0])))
    return rows, pairs


def _row(
    split: str, fitted_to: str, source: str, judged: TimedSteps, here: NDArray[np.bool_],
    predicted: tuple[Floats, Floats, Floats], mfu: float,
) -> HeldOutTraining:  # fmt: skip
    measured = judged.measured_s[here]
    time, low, high = (seconds[here] for seconds in predicted)
    errors = relative_errors(time / measured - 1)
    constant = np.abs(judged.mfu[here] / mfu - 1)
    return HeldOutTraining(
        split,
        fitted_to,
        source,
        points=len(measured),
        mape=errors["mape"],
        median=errors["median"],
        **interval_accuracy(measured, low, high),
        width_90=float(np.mean((high - low) / time)),
        constant_mfu=float(constant.mean()),
    )


def ship_training(data: Path, folder: Path) -> Iterator[tuple[str, str]]:
    """Fit the constants to all steps, and write them with the errors on held-out steps."""
    steps = trained_steps(data).steps
    rows, _ = validate_training(steps)
    errors = []
    for split in dict.fromkeys(row.split for row in rows):
        mean = np.mean([row.mape for row in rows if row.split == split])
        errors.append(f"{split} {mean:.0%}")
    held_out = ", ".join(errors)
    constants = rounded(msgspec.structs.replace(fit(TimedSteps(steps)), held_out=held_out))
    write_atomically(folder / TRAINING_FILE, _HEAD + msgspec.toml.encode(constants))
    yield "training", f"{constants.points} steps; held out: {held_out}"


_HEAD = b"# Fitted by paleo-lite to steps of language models; every field is explained in docs/transformers.md.\n"


def rounded(constants: TrainingConstants) -> TrainingConstants:
    """Return the constants rounded to four digits, so that the same data produce the same file."""
    return msgspec.structs.replace(
        constants,
        constants={name: float(f"{value:.4g}") for name, value in constants.constants.items()},
        exposed_sharding=float(f"{constants.exposed_sharding:.3g}"),
        share_by_generation={name: float(f"{share:.3g}") for name, share in constants.share_by_generation.items()},
        deviation={name: float(f"{value:.3g}") for name, value in constants.deviation.items()},
    )

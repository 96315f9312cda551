"""Suggestion of the measurements that would most narrow a prediction's interval, before any of them is made.

With d = d log(step) / d theta of the target step, C the covariance of theta, and m the same derivatives of a candidate
step, measuring the candidate reduces the variance d^T C d, whatever the measured time, by::

    (d^T C m)^2 / (m^T C m + s^2)

s is the scatter of single measurements. For several targets the mean reduction counts. Several measurements are chosen
greedily, each after those before it: Bayesian I-optimal design (Chaloner and Verdinelli 1995). Because measuring takes
time, the candidate with the largest reduction per second is chosen, with `SETUP_S` as the fixed cost of a measurement.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, ClassVar

import msgspec
import numpy as np

from ..architectures import find_network
from ..counting.work import UNFUSED_EXECUTIONS, passes_of
from ..errors import BadValue
from ..machines import Device, Machine
from ..result import Result
from ..timing.calibrated import CalibratedModel, residual_variance
from ..timing.intervals import DIRECT_PRECISIONS, interval_of
from ..timing.models import RooflineModel
from ..timing.prediction import Prediction
from ..timing.workload import Workload
from ..units import element_bytes
from .pool import POOL_SCATTER
from .prior import FIT_SCATTER

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

SETUP_S = 60.0
"""Fixed seconds per measurement, to start the software and build the network. On held-out devices, 10 instead of 60
makes the error after two suggested measurements 1 to 5 points worse: short steps alone are not informative enough."""

NETWORKS = (
    "alexnet",
    "convnext_tiny",
    "densenet121",
    "efficientnet_b0",
    "googlenet",
    "inception_v3",
    "mnasnet1_0",
    "mobilenet_v2",
    "regnet_y_400mf",
    "resnet18",
    "resnet50",
    "resnext50_32x4d",
    "shufflenet_v2_x1_0",
    "squeezenet1_1",
    "swin_t",
    "vgg11",
    "vgg16",
    "vit_b_16",
)
"""Networks that may be suggested: a small one of each shipped family that `paleo-lite measure` can run."""

SMALL_NETWORKS = ("alexnet", "mnasnet1_0", "resnet18", "squeezenet1_1", "vgg11")
"""Networks of `NETWORKS` that are counted within milliseconds."""

BATCH_SIZES = (1, 16, 128)
"""Batch sizes that may be suggested."""

PHASES = ("inference", "training")
"""Phases that may be suggested."""

TYPICAL_NETWORKS = (
    "resnet50",
    "vgg16",
    "mobilenet_v2",
    "densenet121",
    "resnext50_32x4d",
    "efficientnet_b0",
    "vit_b_16",
)
"""Target networks if none is given, at the batch sizes of `TYPICAL_BATCHES`."""

TYPICAL_BATCHES = (1, 32)


class Suggestion(msgspec.Struct, frozen=True):
    """A step to measure."""

    network: str
    batch_size: int
    phase: str
    time_s: float  # expected time of the step
    measuring_s: float  # time to measure it, without the setup
    # Upper end over lower end of the target's interval after this and the previous measurements; the geometric
    # mean for a typical set.
    factor: float
    # The interval in seconds, if the target takes the expected time; None for a typical set.
    interval: tuple[float, float] | None

    @property
    def step(self) -> str:
        """The step as an argument of `paleo-lite measure`: ``resnet18:16:inference``."""
        return f"{self.network}:{self.batch_size}:{self.phase}"


class Suggestions(Result, msgspec.Struct, frozen=True):
    """Suggested measurements in the order in which to make them."""

    _page: ClassVar[str] = "paleo_lite.reporting.calibrations:suggestions_page"

    gpu: str
    precision: str
    network: str | None  # target network; None for a typical set
    batch_size: int | None
    phase: str
    time_s: float | None  # expected time of the target step
    factor: float  # upper end over lower end of the target's interval before any suggested measurement
    interval: tuple[float, float] | None
    suggestions: list[Suggestion]
    known: str  # label of the model that the prediction rests on so far
    candidates: int  # number of candidate steps

    @property
    def command(self) -> str:
        """Command that makes the measurements."""
        steps = " ".join(suggestion.step for suggestion in self.suggestions)
        precision = "" if self.precision == "fp32" else f" --precision {self.precision}"
        return f"paleo-lite measure {steps} --device cuda --gpu {self.gpu}{precision} -o measured.csv"


def suggest(
    model: CalibratedModel,  # current model: pooled, or fitted to measurements
    machine: Machine,
    targets: Sequence[Workload],  # steps to predict: one, or a typical set in one precision
    count: int,  # number of measurements to suggest
    # Steps that could be measured; default: `candidate_steps`. A single target is not a candidate itself.
    candidates: Sequence[Workload] | None = None,
) -> Suggestions:
    """Suggest the measurements that most narrow the interval of a prediction.

    Raise BadValue if there are fewer than `count` candidates.
    """
    first, is_single = targets[0], len(targets) == 1
    if candidates is None:
        candidates = candidate_steps(machine.device, first.precision, first.execution)
    if is_single:
        candidates = [step for step in candidates if _step_key(step) != _step_key(first)]
    if not 1 <= count <= len(candidates):
        raise BadValue(f"{count} measurements cannot be suggested: the number must be between 1 and {len(candidates)}")
    target_terms = [model.evaluate(workload, machine) for workload in targets]
    target_s = float(target_terms[0].time_s)
    target_slopes = np.array([terms.slopes for terms in target_terms])
    candidate_terms = [model.evaluate(workload, machine) for workload in candidates]
    candidates_s = np.array([terms.time_s for terms in candidate_terms])
    candidate_slopes = np.array([terms.slopes for terms in candidate_terms])

    lowest_s = 0.0
    if first.precision in DIRECT_PRECISIONS:
        lowest_s = min(target_s, float(RooflineModel().evaluate(first, machine).time_s))

    def interval_with(covariance: Floats, residual: float) -> tuple[float, tuple[float, float] | None]:
        """Return the factor and interval of the targets for a covariance and a residual variance."""
        variances = np.einsum("np,pq,nq->n", target_slopes, covariance, target_slopes) + residual
        low, high = interval_of(target_s, float(np.mean(np.sqrt(variances))))
        interval = (max(float(low), lowest_s), float(high)) if is_single else None
        return float(high / low), interval

    measuring_s = measuring_time_s(candidates_s)
    suggestions = []
    for index, covariance in choose_measurements(model.covariance, candidate_slopes, target_slopes, measuring_s, count):
        step = candidates[index]
        factor, interval = interval_with(covariance, _variance_of_own_measurements(model))
        suggestions.append(
            Suggestion(
                network=step.network.name,
                batch_size=step.batch_size,
                phase=step.phase,
                time_s=float(candidates_s[index]),
                measuring_s=float(measuring_s[index]),
                factor=factor,
                interval=interval,
            )
        )
    factor, interval = interval_with(model.covariance, model.residual_variance)
    has_one_batch_size = len({step.batch_size for step in targets}) == 1
    return Suggestions(
        gpu=machine.device.id,
        precision=first.precision,
        network=first.network.name if is_single else None,
        batch_size=first.batch_size if has_one_batch_size else None,
        phase=first.phase,
        time_s=target_s if is_single else None,
        factor=factor,
        interval=interval,
        suggestions=suggestions,
        known=model.label,
        candidates=len(candidates),
    )


def measuring_time_s(times_s: Floats) -> Floats:
    """Return the seconds that it takes to measure steps on a GPU, from their expected times."""
    from ..measurement.clock import RISE_S, Effort  # not needed by `most_informative_measurement`, so imported here

    effort = Effort(warm_up_s=RISE_S)
    return np.array([effort.estimate_s(float(time_s)) for time_s in times_s])


def choose_measurements(
    covariance: Floats,  # of the logarithms of the parameters, shape (parameters, parameters)
    slopes: Floats,  # d log(step) / d theta of the candidates, shape (candidates, parameters)
    targets: Floats,  # d log(step) / d theta of the targets, shape (steps, parameters)
    measuring_s: Floats,  # seconds that measuring each candidate takes, shape (candidates,)
    count: int,
) -> Iterator[tuple[int, Floats]]:
    """Choose measurements greedily, one after another.

    Yield the index of each chosen candidate, and the covariance after this and the previous measurements.
    """
    is_available = np.ones(len(slopes), dtype=bool)
    for _ in range(count):
        shared = covariance @ slopes.T
        variances = np.einsum("np,pn->n", slopes, shared) + POOL_SCATTER**2
        reductions = np.mean((targets @ shared) ** 2, axis=0) / variances
        index = int(np.argmax(np.where(is_available, reductions / (SETUP_S + measuring_s), -1.0)))
        is_available[index] = False
        covariance = covariance - np.outer(shared[:, index], shared[:, index]) / variances[index]
        yield index, covariance


def candidate_steps(device: Device, precision: str, execution: str = "eager") -> list[Workload]:
    """Return the steps of `NETWORKS` that fit into a device's memory."""
    phases = PHASES if execution in UNFUSED_EXECUTIONS else PHASES[:1]
    steps = []
    for name in NETWORKS:
        workload = Workload(find_network(name), precision, execution=execution)
        for phase in phases:
            for batch_size in BATCH_SIZES:
                step = workload.with_changes(phase=phase, batch_size=batch_size)
                if fits_half_of_memory(step, device):
                    steps.append(step)
    return steps


def most_informative_measurement(prediction: Prediction) -> tuple[Workload, tuple[float, float]] | None:
    """Find the measurement that would most narrow a prediction's interval, and the interval in seconds after it.

    The candidates are steps of small networks, and of the predicted network at another batch size. Only networks that
    are counted quickly are tried, because every uncertain prediction shows the result. The interval is that if the step
    takes the expected time. None if the model cannot learn from measurements, no candidate fits into memory, or the
    workload is not executed eagerly, as `paleo-lite measure` does.
    """
    workload, model, slopes = prediction.workload, prediction.model, prediction.terms.slopes
    if not isinstance(model, CalibratedModel) or slopes is None or workload.execution != "eager":
        return None
    has_backward = any(name.startswith("backward") for name in passes_of(workload.phase))
    phase = "training" if has_backward else "inference"
    names = list(SMALL_NETWORKS)
    if workload.network.name in NETWORKS and workload.network.name not in names:
        names.append(workload.network.name)
    steps = []
    for name in names:
        candidate = Workload(find_network(name), workload.precision, 1, phase)
        for batch_size in BATCH_SIZES[:2]:
            step = candidate.with_changes(batch_size=batch_size)
            if _step_key(step) != _step_key(workload) and fits_half_of_memory(step, prediction.device):
                steps.append(step)
    if not steps:
        return None
    candidate_slopes = np.array([model.evaluate(step, prediction.machine).slopes for step in steps])
    no_time_s = np.zeros(len(steps))
    index, covariance = next(choose_measurements(model.covariance, candidate_slopes, slopes[None], no_time_s, 1))
    deviation = float(np.sqrt(slopes @ covariance @ slopes + _variance_of_own_measurements(model)))
    return steps[index], interval_of(prediction.time_s, deviation)


def _variance_of_own_measurements(model: CalibratedModel) -> float:
    """Return the variance of log time that is not due to parameters, once users have measured their own device.

    The pool's scatter is that of unknown sources; for users' own measurements it is the one that a fit expects.
    """
    is_fitted = model.learned_fraction is not None and model.learned_fraction.any()
    return residual_variance(model.scatter if is_fitted else FIT_SCATTER)


def fits_half_of_memory(step: Workload, device: Device) -> bool:
    """Return whether a step needs at most half of a device's memory, by a faster estimate than `timing.memory`.

    Inference needs the weights and four times the largest activation; training needs the weights, all activations, and
    the gradients of both.
    """
    work = step.work
    weights, activations = int(work.parameters.sum()), work.activations_per_sample
    if step.phase == "inference":
        elements = weights + 4 * int(activations.max(initial=0)) * step.batch_size
    else:
        elements = 2 * weights + 2 * int(activations.sum()) * step.batch_size
    return elements * element_bytes(step.precision) <= device.memory_bytes / 2


def typical_steps(precision: str, phase: str, batch_size: int | None) -> list[Workload]:
    """Return the target steps if no network is given."""
    batch_sizes = (batch_size,) if batch_size else TYPICAL_BATCHES
    steps = []
    for name in TYPICAL_NETWORKS:
        workload = Workload(find_network(name), precision, phase=phase)
        steps += [workload.with_changes(batch_size=size) for size in batch_sizes]
    return steps


def _step_key(workload: Workload) -> tuple[str, int, str]:
    return workload.network.name, workload.batch_size, workload.phase

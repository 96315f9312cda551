"""Which measurements would narrow a prediction most, and by how much: known before any of them is made.

With d = d log(step) / d theta of the step asked about, C the covariance of theta, and m the same derivatives of a step
that could be measured, a measurement takes from the variance d^T C d, whatever time it gives::

    (d^T C m)^2 / (m^T C m + s^2)

s is how much single measurements scatter. Of several steps asked about the mean counts, and of several measurements
each is chosen after the ones before it: Bayesian I-optimal design (Chaloner and Verdinelli 1995), greedily. Measuring
takes time; what narrows most per second is chosen, with `START_S` for what any measurement takes besides.
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
from ..timing.models import interval_of
from ..timing.prediction import Prediction
from ..timing.workload import Workload
from ..units import element_bytes
from .choose import SCATTER
from .prior import SCATTER as FIT_SCATTER

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

START_S = 60.0
"""Seconds of a measurement besides the timing: starting the software, making the network. On held-out devices, 10
instead of 60 makes what two suggested measurements leave 1 to 5 points worse: short steps alone do not tell enough."""

NETWORKS = (
    "alexnet", "convnext_tiny", "densenet121", "efficientnet_b0", "googlenet", "inception_v3", "mnasnet1_0",
    "mobilenet_v2", "regnet_y_400mf", "resnet18", "resnet50", "resnext50_32x4d", "shufflenet_v2_x1_0", "squeezenet1_1",
    "swin_t", "vgg11", "vgg16", "vit_b_16",
)  # fmt: skip
"""What may be suggested: of each family of shipped networks a small one, which `measure` can run."""

SMALL = ("alexnet", "mnasnet1_0", "resnet18", "squeezenet1_1", "vgg11")
"""Those of them that are counted within milliseconds."""

BATCH_SIZES = (1, 16, 128)
PHASES = ("inference", "training")
"""Of the steps that may be suggested."""

TYPICAL = ("resnet50", "vgg16", "mobilenet_v2", "densenet121", "resnext50_32x4d", "efficientnet_b0", "vit_b_16")
"""What is asked about where no network is named, at batch sizes of `TYPICAL_BATCHES`."""

TYPICAL_BATCHES = (1, 32)


class Suggestion(msgspec.Struct, frozen=True):
    """A step to measure.

    Attributes
    ----------
    time_s : float
        What it is expected to take.
    measuring_s : float
        What timing it takes, without starting.
    factor : float
        Upper end over lower end of the interval of what was asked about, once this and the ones before it are measured;
        of a typical set the geometric mean.
    interval : tuple of float, or None
        The interval itself, in seconds, if the step asked about takes what is expected; None of a typical set.
    """

    network: str
    batch_size: int
    phase: str
    time_s: float
    measuring_s: float
    factor: float
    interval: tuple[float, float] | None

    @property
    def step(self) -> str:
        """As `paleo-lite measure` takes it: ``resnet18:16:inference``."""
        return f"{self.network}:{self.batch_size}:{self.phase}"


class Suggestions(Result, msgspec.Struct, frozen=True):
    """The measurements that narrow an answer most, in the order in which to make them.

    Attributes
    ----------
    network : str or None
        What is asked about; None of a typical set.
    time_s : float or None
        What the step asked about is expected to take.
    factor : float
        Upper end over lower end of its interval before anything is measured.
    known : str
        What the answer rests on so far.
    candidates : int
        How many steps were chosen from.
    """

    _page: ClassVar[str] = "paleo_lite.reporting.calibrations:suggestions_page"

    gpu: str
    precision: str
    network: str | None
    batch_size: int | None
    phase: str
    time_s: float | None
    factor: float
    interval: tuple[float, float] | None
    suggestions: list[Suggestion]
    known: str
    candidates: int

    @property
    def command(self) -> str:
        """What measures them."""
        steps = " ".join(suggestion.step for suggestion in self.suggestions)
        precision = "" if self.precision == "fp32" else f" --precision {self.precision}"
        return f"paleo-lite measure {steps} --device cuda --gpu {self.gpu}{precision} -o measured.csv"


def suggest(
    model: CalibratedModel,
    machine: Machine,
    asked: Sequence[Workload],
    count: int,
    candidates: Sequence[Workload] | None = None,
) -> Suggestions:
    """The measurements that narrow an answer most.

    Parameters
    ----------
    model : CalibratedModel
        What is known so far: pooled, or fitted to measurements.
    asked : sequence of Workload
        What is asked about: one step, or a typical set in one precision.
    count : int
        How many measurements.
    candidates : sequence of Workload, optional
        What could be measured; without them `candidate_steps`. A step that is asked about is none.

    Raises
    ------
    BadValue
        If there are fewer candidates.
    """
    first, is_single = asked[0], len(asked) == 1
    if candidates is None:
        candidates = candidate_steps(machine.device, first.precision, first.execution)
    candidates = [step for step in candidates if not is_single or _key(step) != _key(first)]
    if not 1 <= count <= len(candidates):
        raise BadValue(f"{count} measurements cannot be suggested: name 1 to {len(candidates)}")
    terms = [model.evaluate(workload, machine) for workload in (*asked, *candidates)]
    times, slopes = np.array([term.time_s for term in terms]), np.array([term.slopes for term in terms])
    asked_s, targets = float(times[0]), slopes[: len(asked)]
    times, slopes = times[len(asked) :], slopes[len(asked) :]

    def narrowed(covariance: Floats, own: float) -> tuple[float, tuple[float, float] | None]:
        deviation = float(np.mean(np.sqrt(np.einsum("np,pq,nq->n", targets, covariance, targets) + own)))
        low, high = interval_of(asked_s, deviation)
        return float(high / low), (float(low), float(high)) if is_single else None

    measuring_s, suggestions = measuring(times), []
    for place, covariance in choose(model.covariance, slopes, targets, measuring_s, count):
        taken = float(times[place]), float(measuring_s[place])
        suggestions.append(Suggestion(*_key(candidates[place]), *taken, *narrowed(covariance, _own_variance(model))))
    factor, interval = narrowed(model.covariance, model.residual_variance)
    sizes = {step.batch_size for step in asked}
    return Suggestions(
        machine.device.id, first.precision, first.network.name if is_single else None,
        first.batch_size if len(sizes) == 1 else None, first.phase, asked_s if is_single else None, factor, interval,
        suggestions, model.label, len(candidates),
    )  # fmt: skip


def measuring(times_s: Floats) -> Floats:
    """Seconds that timing steps on a GPU takes, by what they are expected to take."""
    from ..measurement.clock import RISE_S, Effort  # with what times, and only then

    effort = Effort(warm_up_s=RISE_S)
    return np.array([effort.takes_s(float(time_s)) for time_s in times_s])


def choose(
    covariance: Floats, slopes: Floats, targets: Floats, measuring_s: Floats, count: int
) -> Iterator[tuple[int, Floats]]:
    """Choose measurements one after another; gives the place of each, and the covariance with it and those before.

    Parameters
    ----------
    covariance : ndarray, shape (parameters, parameters)
        Of the logarithms of the parameters.
    slopes : ndarray, shape (candidates, parameters)
        d log(step) / d theta of what could be measured.
    targets : ndarray, shape (steps, parameters)
        The same of what is asked about.
    measuring_s : ndarray, shape (candidates,)
    """
    left = np.ones(len(slopes), dtype=bool)
    for _ in range(count):
        shared = covariance @ slopes.T
        variances = np.einsum("np,pn->n", slopes, shared) + SCATTER**2
        narrowed = np.mean((targets @ shared) ** 2, axis=0) / variances
        place = int(np.argmax(np.where(left, narrowed / (START_S + measuring_s), -1.0)))
        left[place] = False
        covariance = covariance - np.outer(shared[:, place], shared[:, place]) / variances[place]
        yield place, covariance


def candidate_steps(device: Device, precision: str, execution: str = "eager") -> list[Workload]:
    """Steps of `NETWORKS` that fit into a device's memory."""
    ones = [Workload(find_network(name), precision, execution=execution) for name in NETWORKS]
    phases = PHASES if execution in UNFUSED_EXECUTIONS else PHASES[:1]
    steps = [one.with_changes(phase=phase, batch_size=size) for one in ones for phase in phases for size in BATCH_SIZES]
    return [step for step in steps if surely_fits(step, device)]


def narrowest(prediction: Prediction) -> tuple[Workload, tuple[float, float]] | None:
    """The one measurement that would narrow a prediction most, and the interval then, if the time is as expected.

    Of small networks, and of the network itself at another batch size, so that a prediction does not wait for it. None
    where the model does not learn, nothing fits, or what was asked runs as `measure` does not: under an engine.
    """
    asked, model, slopes = prediction.workload, prediction.model, prediction.terms.slopes
    if not isinstance(model, CalibratedModel) or slopes is None or asked.execution != "eager":
        return None
    phase = PHASES[any(name.startswith("backward") for name in passes_of(asked.phase))]
    names = dict.fromkeys((*SMALL, *(name for name in NETWORKS if name == asked.network.name)))
    ones = [Workload(find_network(name), asked.precision, 1, phase) for name in names]
    steps = [
        one.with_changes(batch_size=size)
        for one in ones
        for size in BATCH_SIZES[:2]
        if (one.network.name, size, phase) != (asked.network.name, asked.batch_size, asked.phase)
    ]
    steps = [step for step in steps if surely_fits(step, prediction.device)]
    if not steps:
        return None
    candidates = np.array([model.evaluate(step, prediction.machine).slopes for step in steps])
    place, covariance = next(choose(model.covariance, candidates, slopes[None], np.zeros(len(steps)), 1))
    deviation = float(np.sqrt(slopes @ covariance @ slopes + _own_variance(model)))
    return steps[place], interval_of(prediction.time_s, deviation)


def _own_variance(model: CalibratedModel) -> float:
    """Variance of a prediction besides that of the parameters, once something was measured by oneself.

    The pool's scatter is that of sources that nobody knows; one's own is what a fit expects.
    """
    return residual_variance(
        model.scatter if model.learned_fraction is not None and model.learned_fraction.any() else FIT_SCATTER
    )


def surely_fits(step: Workload, device: Device) -> bool:
    """Whether half of a device's memory holds a step: coarser than `timing.memory`, and known at once.

    At inference the weights and four of the largest activations; in training all activations, weights, and gradients
    of both.
    """
    work = step.work
    weights, activations = int(work.parameters.sum()), work.activations_per_sample
    if step.phase == "inference":
        numbers = weights + 4 * int(activations.max(initial=0)) * step.batch_size
    else:
        numbers = 2 * weights + 2 * int(activations.sum()) * step.batch_size
    return numbers * element_bytes(step.precision) <= device.memory_bytes / 2


def typical_steps(precision: str, phase: str, batch_size: int | None = None) -> list[Workload]:
    """What is asked about where no network is named."""
    sizes = (batch_size,) if batch_size else TYPICAL_BATCHES
    networks = [Workload(find_network(name), precision, phase=phase) for name in TYPICAL]
    return [one.with_changes(batch_size=size) for one in networks for size in sizes]


def _key(workload: Workload) -> tuple[str, int, str]:
    return workload.network.name, workload.batch_size, workload.phase

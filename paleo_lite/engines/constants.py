"""Constants of the kernels of engines on devices: fits to measured kernels, and what they say about anything else.

The constants of a cell (a class of kernels on a device, under an engine, in a format) are, in logarithms, the sum of a
mean and of random effects: of the format, of the engine, of both together, of the generation of devices, of the kind of
memory, of the chip, of the device, of engine, format and generation together (which decide the library of kernels that
an engine calls), and of the cell itself. Each effect has a variance per constant, which was chosen
by maximum likelihood over all fitted cells (`validation.engines.fit`). A cell with measurements of its own has nearly
its fitted constants; any other one gets those of its format, engine and generation with a wider interval: the
best linear unbiased prediction of a mixed model (Henderson 1975; kriging).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache, cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import numpy as np

from ..files import read_shipped
from ..machines import Device, find_device

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

FILE = "engines.json"
"""File of the fitted constants, in the folder of calibrations."""


class Cell(msgspec.Struct, frozen=True, order=True):
    """A class of kernels on a device, under an engine, in a format."""

    kernels: str  # one of `paleo_lite.engines.formulas.KERNEL_CLASSES`
    gpu: str  # device
    engine: str
    format: str  # format of the operands


class CellTraits(NamedTuple):
    """What cells may have in common."""

    # As in `Cell`.
    engine: str
    format: str
    # Id, chip, generation (`generation_of`) and kind of memory of the device.
    device: str
    chip: str
    generation: str
    memory: str


EFFECTS: dict[str, Callable[[CellTraits], object]] = {
    "format": lambda traits: traits.format,
    "engine": lambda traits: traits.engine,
    "engine and format": lambda traits: (traits.engine, traits.format),
    "generation": lambda traits: traits.generation,
    "generation and format": lambda traits: (traits.generation, traits.format),
    "memory": lambda traits: traits.memory,
    "chip": lambda traits: traits.chip,
    "device": lambda traits: traits.device,
    "engine, format and generation": lambda traits: (traits.engine, traits.format, traits.generation),
    "cell": lambda traits: traits,
}
"""Effects, with what two cells must have in common to share one."""


def generation_of(device: Device) -> str:
    """Return the architecture and the major compute capability of a device, for which libraries have kernels.

    A B200 and an RTX PRO 6000 are both Blackwell, but their tensor cores have different instructions.
    """
    return f"{device.architecture} {device.capability.partition('.')[0]}".strip()


def traits_of(device: Device, engine: str, form: str) -> CellTraits:
    """Return the traits of a cell on a device."""
    memory = f"{device.vendor} {device.memory.family}"
    return CellTraits(engine, form, device.id, device.chip, generation_of(device), memory)


class CellFit(msgspec.Struct, frozen=True):
    """Constants fitted to the measurements of a cell."""

    # The cell.
    gpu: str
    engine: str
    format: str
    # Logarithms of the constants, and of the relative scatter of single kernels around their formula.
    theta: tuple[float, ...]
    deviation: tuple[float, ...]  # standard deviations of `theta`
    measurements: int  # number of measurements
    error: float  # median relative error of the fit


class ClassFit(msgspec.Struct, frozen=True):
    """All fitted cells of a class of kernels, and the variances of the effects."""

    parameters: tuple[str, ...]  # names of the constants, and ``scatter``
    mean: tuple[float, ...]  # mean of their logarithms
    variances: dict[str, tuple[float, ...]]  # variance of each effect, by constant
    cells: tuple[CellFit, ...]


class KernelConstants(NamedTuple):
    """Constants of a class of kernels in a cell."""

    theta: Floats  # logarithms of the constants
    deviation: Floats  # their standard deviations
    scatter: float  # relative scatter of single kernels


def same_effects(cells: Sequence[CellTraits], other_cells: Sequence[CellTraits]) -> dict[str, Floats]:
    """Return for each effect the matrix that is 1 where two cells share it, shape (cells, other cells)."""
    matrices = {}
    for name, key in EFFECTS.items():
        numbers: dict[object, int] = {}
        left, right = (
            np.array([numbers.setdefault(key(traits), len(numbers)) for traits in side], dtype=np.int64)
            for side in (cells, other_cells)
        )
        matrices[name] = (left[:, np.newaxis] == right).astype(np.float64)
    return matrices


def predict_constants(fit: ClassFit, traits: CellTraits, cell_traits: Sequence[CellTraits]) -> KernelConstants:
    """Return the best linear unbiased prediction of a cell's constants, by its traits and those of fitted cells."""
    between = same_effects(cell_traits, cell_traits)
    towards = same_effects([traits], cell_traits)
    shape = (len(fit.cells), len(fit.mean))
    estimates = np.array([cell.theta for cell in fit.cells]).reshape(shape)
    errors = np.array([cell.deviation for cell in fit.cells]).reshape(shape) ** 2
    theta, deviation = np.empty(len(fit.mean)), np.empty(len(fit.mean))
    for index, mean in enumerate(fit.mean):
        covariance = np.diag(errors[:, index])
        cross = np.zeros(len(fit.cells))
        total = 0.0
        for name in EFFECTS:
            variance = fit.variances[name][index]
            covariance += variance * between[name]
            cross += variance * towards[name][0]
            total += variance
        weights = np.linalg.solve(covariance, cross)
        theta[index] = mean + weights @ (estimates[:, index] - mean)
        deviation[index] = np.sqrt(max(float(total - weights @ cross), 0.0))
    return KernelConstants(theta[:-1], deviation[:-1], float(np.exp(theta[-1])))


class Company(msgspec.Struct, frozen=True):
    """Slowdown of kernels in a server relative to isolated kernels; logarithms, summed over all matching entries.

    In a captured graph launches overlap with the kernels before them; tokens of real text choose fewer experts than
    random ones; devices of a group wait for each other.
    """

    kernels: str  # class of kernels; empty for all of them
    # Engine, format and generation (`generation_of`) of devices; empty for all of them.
    engine: str
    format: str
    generation: str
    # Whether the iteration computes prompts: it is longer than the launches, limited by arithmetic rather than by
    # memory, and not a captured graph.
    is_prompt: bool
    launch: float  # logarithm of the factor of the shortest kernel
    work: float  # logarithm of the factor of all other time


class Host(msgspec.Struct, frozen=True):
    """Time of an engine's host."""

    iteration_s: float  # per iteration: scheduling and preparation of the inputs
    logit_s: float  # per iteration and logit of a decoding sequence: greedy sampling and streaming
    request_s: float  # per request, from the sending until the scheduler knows it
    request_token_s: float  # per token of the prompt, in the closed loops of benchmarks
    # Additional iterations that a request waits in the closed loops of benchmarks, where engines look for new
    # requests, or send tokens, only now and then. Open loops show no such wait.
    request_iterations: float
    # Standard deviation of the logarithm of a time to first token that nothing else explains.
    first_token_deviation: float
    # Besides `logit_s`, where clients sample from a nucleus (top-p or top-k), for which all logits are sorted.
    nucleus_logit_s: float = 0.0
    interval_factor: float = 2.5  # ends of the 90% interval of the time per iteration, relative to that time
    # Per request and kernel of its prompt's iteration, in the closed loops of benchmarks: engines launch these kernels
    # one by one. Times per token show that iterations with prompts do not take so much longer.
    request_kernel_s: float = 0.0
    # Per request and layer of experts of its prompt's iteration, besides, in the same loops: what the host does to
    # start such a layer, which takes TensorRT-LLM's tuner of kernels a millisecond (its pull request 13116).
    request_expert_s: float = 0.0


class Learned(msgspec.Struct, frozen=True, eq=False):
    """What measurements of similar servers leave uncertain of the logarithms of the factors of causes."""

    causes: tuple[str, ...]  # as `paleo_lite.engines.causes.CAUSES`, and others
    # Covariances after and before the measurements.
    after: Any
    before: Any
    row_variances: dict[str, float]  # variance of the logarithm of a time that no cause explains, by figure

    def variances(self, figure: str, shares: Mapping[str, Any]) -> tuple[Any, Any]:
        """Return the variances of the logarithm of a figure after and before, by the shares of causes in it."""
        shared_causes = [cause for cause in self.causes if cause in shares]
        at = np.ix_(*[[self.causes.index(cause) for cause in shared_causes]] * 2)
        vectors = np.array(np.broadcast_arrays(*(shares[cause] for cause in shared_causes)), dtype=np.float64)
        after, before = (
            np.einsum("i...,ij,j...->...", vectors, np.asarray(matrix)[at], vectors) + self.row_variances[figure]
            for matrix in (self.after, self.before)
        )
        return after, before


class ServerSpread(msgspec.Struct, frozen=True):
    """Standard deviations of the logarithm of a step of a server that kernels do not explain."""

    step: float  # of a server by itself
    source: float  # of what all servers of one source have in common: versions, options, text, clients

    @property
    def variance(self) -> float:
        """Variance of the logarithm of a step."""
        return self.step**2 + self.source**2


class MeasuredServers(msgspec.Struct, frozen=True):
    """Engine, device and kind of networks of which servers were measured."""

    engine: str
    gpu: str  # ID of the device
    has_experts: bool


class EngineConstants(msgspec.Struct, frozen=True, dict=True):
    """Constants of all classes of kernels, and of steps and servers."""

    classes: dict[str, ClassFit]  # fitted cells by the name of the class
    company: tuple[Company, ...] = ()  # kernels in a server relative to kernels alone
    hosts: dict[str, Host] = {}  # time of the host by engine
    spread: ServerSpread = ServerSpread(0.1, 0.0)  # of steps of all servers
    dense_spread: ServerSpread = ServerSpread(0.1, 0.0)  # of steps of networks without experts
    measured: tuple[MeasuredServers, ...] = ()  # servers whose steps the deviations are of
    # Generations of which servers were measured, but no kernels, with the standard deviation of the logarithm of a
    # step: their kernels are those of other generations times the factors of `company`.
    served: dict[str, float] = {}
    sources: tuple[str, ...] = ()  # sources of the measurements
    learned: Learned | None = None  # what measured servers say of this one, of which `company` and `hosts` know already

    def served_deviation(self, device: Device) -> float | None:
        """Return the deviation of a step on a device of which only servers were measured; None for others."""
        return self.served.get(generation_of(device))

    def step_variance(self, of_kernels: Any, device: Device, engine: str, *, has_experts: bool) -> Any:
        """Return the variance of the logarithm of a step of a server, by that of its kernels.

        The deviation of measured steps contains the errors of their kernels. Under the same engine, on the same device
        and with networks of the same kind, kernels add no more to it than it is itself.
        """
        spread = self.spread if has_experts else self.dense_spread
        if MeasuredServers(engine, device.id, has_experts) in self.measured:
            of_kernels = np.minimum(of_kernels, spread.step**2)
        return of_kernels + spread.variance

    def company_of(self, kernels: str, device: Device, engine: str, form: str, is_prompt: bool) -> tuple[float, float]:
        """Return the factors of the shortest kernel and of all other time of kernels in a server."""
        launch = work = 0.0
        generation = generation_of(device)
        for entry in self.company:
            if entry.is_prompt != is_prompt:
                continue
            pairs = (
                (entry.kernels, kernels),
                (entry.engine, engine),
                (entry.format, form),
                (entry.generation, generation),
            )
            if all(expected in ("", actual) for expected, actual in pairs):
                launch, work = launch + entry.launch, work + entry.work
        return float(np.exp(launch)), float(np.exp(work))

    @cached_property
    def constants_by_cell(self) -> dict[tuple[str, ...], KernelConstants]:
        """Constants that were asked for, by class of kernels, device, engine and format."""
        return {}

    @cached_property
    def _cell_traits(self) -> dict[str, list[CellTraits]]:
        return {}

    def of(self, kernels: str, device: Device, engine: str, form: str) -> KernelConstants:
        """Return the constants of a class of kernels on a device, under an engine, in a format."""
        key = (kernels, device.id, engine, form)
        if key not in self.constants_by_cell:
            traits = traits_of(device, engine, form)
            self.constants_by_cell[key] = predict_constants(self.classes[kernels], traits, self._traits_of(kernels))
        return self.constants_by_cell[key]

    def _traits_of(self, kernels: str) -> list[CellTraits]:
        """Return the traits of the fitted cells of a class of kernels."""
        if kernels not in self._cell_traits:
            cells = self.classes[kernels].cells
            self._cell_traits[kernels] = [traits_of(find_device(cell.gpu), cell.engine, cell.format) for cell in cells]
        return self._cell_traits[kernels]


@cache
def engine_constants() -> EngineConstants:
    """Return the shipped constants."""
    return read_shipped(FILE, EngineConstants)

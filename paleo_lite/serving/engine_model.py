"""Time model of the kernels of an engine, and the decision whether they or the layers of a network are timed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, ClassVar, NamedTuple

import msgspec
import numpy as np

from ..counting import GENERATION_PHASES
from ..counting.work import ENGINE
from ..engines.activity import kernel_activities, kernel_flops, moved_bytes
from ..engines.division import ONE_DEVICE, LinkedDevices
from ..engines.kernels import AttentionKernel, CountedKernel, Kernel
from ..engines.placed import KERNEL_MODEL, NEEDS_KERNELS, engine_speaks_for
from ..engines.records import ENGINES, KERNEL_ENGINES, USUAL_ENGINE
from ..engines.routing import UNIFORM
from ..errors import BadValue
from ..formats import FORMATS, format_of_weights
from ..machines import Device, Machine, PeakRate
from ..timing.activity import Activity
from ..timing.intervals import INTERVAL_LEVEL, NORMAL_QUANTILES
from ..timing.memory import usable_bytes
from ..timing.models import CALIBRATED
from ..timing.terms import LaunchedKernels, RequestedOutputs, Terms, Times
from ..timing.workload import UnderEngine
from .iteration import Iteration, iteration_of
from .learned import KIND as SERVER
from .learned import engine_traits, learned_constants

if TYPE_CHECKING:
    from ..architectures import Network
    from ..calibration.evidence_file import EvidenceCalibration
    from ..engines.constants import EngineConstants
    from ..timing import Workload
    from ..timing.broadcast import BatchedStack
    from ..timing.memory import Memory


class EngineOptions(NamedTuple):
    """What a question says of an engine and of its kernels; None where it says nothing."""

    # An engine of `KERNEL_ENGINES`, or how layers are fused, which asks for the times of layers.
    execution: str | None = None
    policy: str | None = None  # the engine, where no execution is given
    kv_cache: str | None = None  # format of the KV cache; None: the precision, but at least 16 bits
    expert_load: float | None = None  # exponent of the popularity of experts


def choose_engine(
    network: Network,
    device: Device,
    phase: str,
    precision: str,
    options: EngineOptions | None = None,
    *,
    # Whether something else asks for the times of layers: a time model, a calibration, a unit.
    is_by_layers: bool,
) -> UnderEngine | None:
    """Return the engine whose kernels are timed; None if the layers of the network are timed one by one.

    Kernels are those of vLLM unless another engine is asked for, where engines' kernels were measured: in prefill and
    decode of a network from a config, on NVIDIA's GPUs from Ampere on and Intel's Xe2, in 16 bits and fewer. Raise
    BadValue if something is asked of an engine where no kernels are timed.
    """
    execution, policy, kv_cache, expert_load = options or EngineOptions()
    if policy in ENGINES and policy not in KERNEL_ENGINES:
        raise BadValue(f"`--engine {policy}` is for `serve` and `local`, which place its layers")
    names_engine = execution in KERNEL_ENGINES
    if names_engine and policy not in (None, execution):
        raise BadValue(f"give only one engine: {execution} or {policy}")
    is_by_layers = is_by_layers or not (execution is None or names_engine)
    is_generating = phase in GENERATION_PHASES
    if is_generating and not is_by_layers and engine_speaks_for(network, precision, device):
        name = execution if execution is not None else policy or USUAL_ENGINE
        load = UNIFORM if expert_load is None else expert_load
        return UnderEngine(name, choose_cache_format(kv_cache, precision), load)
    is_asked_by_option = {
        f"--engine {execution}": names_engine,
        "--engine": policy is not None,
        "--kv-cache": kv_cache is not None,
        "--expert-load": expert_load is not None,
    }
    for option, is_asked in is_asked_by_option.items():
        if is_asked and not is_generating:
            raise BadValue(f"`{option}` is for `--phase prefill` and `decode`, not for {phase}")
        if is_asked and names_engine:
            raise BadValue(f"`{option}` {NEEDS_KERNELS}: give `--execution {ENGINE}`, with which layers are timed")
        if is_asked:
            raise BadValue(f"`{option}` {NEEDS_KERNELS} and without `--execution`")
    return None


def asks_for_layers(time_model: str | None, *others: object) -> bool:
    """Return whether a time model or other options that only layers know ask for the times of layers.

    Those are a PPP, a calibration, an implementation of attention, or a unit, for which no kernels were measured.
    """
    return time_model not in (None, CALIBRATED) or any(option is not None for option in others)


def choose_cache_format(kv_cache: str | None, precision: str) -> str:
    """Return the format of the KV cache: the given one, or the precision, but at least 16 bits."""
    if kv_cache is None:
        return precision if format_of_weights(None, precision) is None else "bf16"
    names = [name for name, stored in FORMATS.items() if stored.mixture is None]
    if kv_cache not in names:
        raise BadValue(f"`--kv-cache` must be one of {', '.join(names)} (got {kv_cache!r})")
    return kv_cache


class KernelTerms(Terms, frozen=True, eq=False, kw_only=True):
    """Seconds of the kernels of an engine."""

    ends_s: dict[float, tuple[float, float]]  # intervals of the time by level; empty for a bound

    def interval(self, level: float = INTERVAL_LEVEL) -> tuple[float, float] | None:
        """Return the interval that contains the time with the probability `level`; None for a bound."""
        return self.ends_s.get(level)


class EngineModel(msgspec.Struct, frozen=True):
    """Time model of workloads under an engine: the kernels that it launches, with constants fitted to measured ones."""

    name: ClassVar[str] = "kernels"
    ppp: ClassVar[None] = None
    needs_bytes: ClassVar[bool] = True
    uses_memory: ClassVar[bool] = True
    uses_convention_count: ClassVar[bool] = False
    notes: ClassVar[tuple[str, ...]] = ()
    power_constants: ClassVar[None] = None

    is_bound: bool = False  # whether kernels take no longer than the data sheet allows, and the host no time
    evidence: EvidenceCalibration | None = None  # what measured servers say; None without any
    label: str = ""  # of the evidence, as text

    @property
    def description(self) -> str:
        """Name of the model, with what calibrates it."""
        return f"{KERNEL_MODEL}; {self.label}" if self.label else KERNEL_MODEL

    @classmethod
    def by_servers(cls, evidence: EvidenceCalibration, workload: Workload, device: Device) -> EngineModel:
        """Return the model with what measured servers say of an engine on a device."""
        assert workload.engine is not None
        traits = engine_traits(workload, device, workload.engine.name)
        return cls(evidence=evidence, label=evidence.describe_distance(SERVER, traits))

    def constants_of(
        self, workload: Workload, device: Device, devices: LinkedDevices = ONE_DEVICE
    ) -> EngineConstants | None:
        """Return the constants that measured servers lead to; None without any."""
        if self.evidence is None or workload.engine is None:
            return None
        return learned_constants(self.evidence, engine_traits(workload, device, workload.engine.name, devices))

    @property
    def is_forecast(self) -> bool:
        """Whether the model forecasts a time."""
        return not self.is_bound

    @property
    def bound_model(self) -> EngineModel:
        """Model of the lower bound: the same kernels at the rates of the data sheet."""
        return EngineModel(is_bound=True)

    def peak(self, machine: Machine, precision: str) -> PeakRate:
        """Return the peak rate of matrix products."""
        return machine.peak(precision)

    def formula(self, compute: str = "FLOPs / peak", memory: str = "bytes / bandwidth") -> str:
        """Return the formula in one line."""
        return f"shortest kernel + ({compute} ^(1 + s) + {memory} ^(1 + s))^(1 / (1 + s))"

    def memory(self, workload: Workload, machine: Machine) -> Memory:
        """Return the peak memory under the engine: weights, activations and the cache of all sequences."""
        return iteration_of(workload, machine.device).memory()

    def largest_batch(self, workload: Workload, machine: Machine) -> int | None:
        """Return the largest batch size that fits into the usable memory; None if not even one sample does."""
        iteration = iteration_of(workload, machine.device)
        usable = usable_bytes(machine.device)

        def fits(sequences: int) -> bool:
            return msgspec.structs.replace(iteration, sequences=sequences).memory().total_bytes <= usable

        if not fits(1):
            return None
        largest = 1
        while fits(2 * largest):
            largest *= 2
        step = largest
        while step > 1:
            step //= 2
            if fits(largest + step):
                largest += step
        return largest

    def evaluate(self, workload: Workload, machine: Machine) -> Terms:
        """Time the kernels of a workload; see `paleo_lite.timing.models.TimeModel.evaluate`."""
        constants = self.constants_of(workload, machine.device)
        iteration = iteration_of(workload, machine.device, constants=constants, is_bound=self.is_bound)
        step, load = iteration.step, iteration.load
        merged = merge_kernels(iteration.kernels)
        activities = kernel_activities(step, merged, load)
        unlimited_s = np.array([counted.count * float(step.kernel_s(counted.kernel, load)) for counted in merged])
        arithmetic_s, memory_s = (
            np.array([float(getattr(activity, term)) for activity in activities])
            for term in ("arithmetic_s", "memory_s")
        )
        return KernelTerms(
            ("inference",),
            compute_s=arithmetic_s[np.newaxis],
            memory_s=memory_s[np.newaxis],
            layers_s=unlimited_s[np.newaxis] / float(iteration.speed),
            overhead_s=float(iteration.host_s),
            deviation=None if self.is_bound else float(iteration.deviation),
            floor_s=np.maximum(unlimited_s - arithmetic_s - memory_s, 0.0)[np.newaxis],
            launched=_launched(iteration, merged, activities),
            ends_s={} if self.is_bound else {level: _ends_s(iteration, level) for level in NORMAL_QUANTILES},
        )

    def evaluate_many(self, stack: BatchedStack, machine: Machine, precision: str, outputs: RequestedOutputs) -> Times:
        """Raise an error: a stack has layers, and no kernels."""
        raise TypeError("kernels are timed by `paleo_lite.serving.iteration`, for many batch sizes at once")


def _ends_s(iteration: Iteration, level: float) -> tuple[float, float]:
    """Return the interval that contains the time of a pass with the probability `level`."""
    low_s, high_s = iteration.interval(iteration.kernels_s, level)
    return float(low_s), float(high_s)


def merge_kernels(kernels: Sequence[CountedKernel]) -> list[CountedKernel]:
    """Return each kernel once, with its count in all blocks; none of those that other kernels do the work of."""
    counts: Counter[Kernel] = Counter()
    for counted in kernels:
        counts[counted.kernel] += counted.count
    merged = [CountedKernel(kernel, count) for kernel, count in counts.items()]
    return [counted for counted in merged if counted.launches]


def _launched(
    iteration: Iteration, kernels: Sequence[CountedKernel], activities: Sequence[Activity]
) -> LaunchedKernels:
    """Return names, counts and activities of kernels."""
    load, step = iteration.load, iteration.step
    kinds = [counted.kernel.name for counted in kernels]
    names = [_name_of(counted.kernel) for counted in kernels]
    return LaunchedKernels(
        names=tuple(_distinct(names)),
        kinds=tuple(kinds),
        launches=np.array([counted.launches for counted in kernels]),
        flops=np.array([counted.count * kernel_flops(counted.kernel, load) for counted in kernels]),
        bytes=np.array([counted.count * moved_bytes(step, counted.kernel, load) for counted in kernels]),
        activity=Activity(*(np.array(seconds, dtype=np.float64) for seconds in zip(*activities, strict=True))),
        cache_bytes_per_sequence=iteration.cache_bytes_per_sequence,
        speed=float(iteration.speed),
    )


def _name_of(kernel: Kernel) -> str:
    """Return the name of a kernel, of attention with its window or the length of its chunks."""
    if not isinstance(kernel, AttentionKernel):
        return kernel.name
    if kernel.chunk is not None:
        return f"{kernel.name}, chunks of {kernel.chunk:,}"
    return kernel.name if kernel.window is None else f"{kernel.name}, window {kernel.window:,}"


def _distinct(names: Sequence[str]) -> Iterator[str]:
    """Yield names with a number from the second of the same name on: ``norm``, ``norm (2)``."""
    seen: Counter[str] = Counter()
    for name in names:
        seen[name] += 1
        yield name if seen[name] == 1 else f"{name} ({seen[name]})"

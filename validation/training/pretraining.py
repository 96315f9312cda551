"""Published pre-training with Megatron-Bridge on H100, B200, GB200 and GB300: reader, and fit of the stack.

The tables are ``today/training_megatron_bridge.csv`` and, of GB300, ``modern/transformer_training.csv``
(NVIDIA-NeMo/Megatron-Bridge, Apache-2.0). Networks are the shipped ones of the same name. Mixtures are trained with
balanced experts. A configuration is listed once for each release of the software, which gets faster. What the tables
leave out, the recipes of the runs say: ``recipes.csv`` has the exchange of tokens, its overlap, the precision of
attention, the loss and the recomputation of the mixtures (``scripts/performance/configs`` of the same repository).
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from paleo_lite.architectures import find_network
from paleo_lite.architectures.network import SequenceOptions
from paleo_lite.calibration.choose import choose_model
from paleo_lite.distributed.clusters import EXPECTED, ClusterScores, cluster_prior
from paleo_lite.distributed.job import Job
from paleo_lite.distributed.links import Topology
from paleo_lite.distributed.parallel_3d import train_3d_parallel
from paleo_lite.distributed.parallel_config import ParallelConfig
from paleo_lite.distributed.platforms import find_computer
from paleo_lite.distributed.scale import predict_step
from paleo_lite.distributed.settings import Settings
from paleo_lite.errors import BadFile
from paleo_lite.extras import require
from paleo_lite.files import write_atomically
from paleo_lite.machines import Machine, find_device
from paleo_lite.timing.blocks import STACK_FILE, StackConstants, TrainingConstants, stack_constants
from paleo_lite.timing.expert_kernels import TUNED_KERNELS, available_expert_kernels
from paleo_lite.timing.training_options import TrainingOptions
from paleo_lite.timing.workload import Workload

from ..tables import rows_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

TABLE = "today/training_megatron_bridge.csv"
TABLE_OF_GB300 = "modern/transformer_training.csv"

NETWORKS = {
    "LLAMA3_70B": "llama-3-70b",
    "LLAMA3.1_405B": "llama-3.1-405b",
    "DeepSeekV3": "deepseek-v3",
    "DeepSeekV4 Flash": "deepseek-v4-flash",
    "GPT OSS 120B": "gpt-oss-120b",
    "Kimi_K2": "kimi-k2",
    "Qwen3_30B_a3B": "qwen3-30b-a3b",
    "Qwen3_235B_a22B": "qwen3-235b-a22b",
    "Nemotron_3_Nano": "nemotron-3-nano-30b-a3b",
    "Nemotron_3_Super": "nemotron-3-super-120b-a12b",
}
"""Shipped networks by their names in the tables."""

PLATFORMS = {"DGX-H100": "dgx-h100", "DGX-B200": "dgx-b200", "DGX-GB200": "gb200-nvl72", "GB300": "gb300-nvl72"}

RECIPES = Path(__file__).with_name("recipes.csv")

OVERLAPPED_EXCHANGE = 0.9
"""Hidden share of the exchange of tokens that recipes overlap with the passes of another micro-batch
(``moe_a2a_overlap``)."""

FIRST_FUSED = "26.06"
"""First release of the container with fused kernels of experts (`TUNED_KERNELS`)."""

SCATTER = 0.1
"""Standard deviation of the logarithm of measured over predicted step times in the fit."""

HELD_OUT_SCATTER = 0.07
"""Part of that of intervals which the uncertainty of the constants and of the cluster does not explain: with it 95% of
the steps on held-out devices are inside 90% intervals (98% with 0.1, 93% with 0.05, but 67% on H100)."""


class Pretraining(msgspec.Struct, frozen=True):
    """A published step of pre-training.

    Attributes
    ----------
    release : str
        Release of the container.
    network, platform, device : str
        Names of the shipped records.
    precision : str
        As `--precision` takes it.
    workers, batch_size, length : int
        Devices, global batch in sequences, tokens per sequence.
    parallel : ParallelConfig
    fused_loss : bool or None
        Whether the loss is one kernel; None for the default of the stack.
    time_s : float
        Measured seconds per step.
    """

    release: str
    network: str
    platform: str
    device: str
    precision: str
    workers: int
    batch_size: int
    length: int
    parallel: ParallelConfig
    fused_loss: bool | None
    time_s: float

    def without_release(self) -> Pretraining:
        """Return the step without what only its release of the software tells, the kernels of experts."""
        return msgspec.structs.replace(self, parallel=msgspec.structs.replace(self.parallel, expert_kernels=""))

    def without_recipe(self) -> Pretraining:
        """Return the step without what neither the degrees of parallelism nor the batch tell."""
        parallel = msgspec.structs.replace(
            self.parallel,
            expert_kernels="",
            dispatch="",
            expert_overlap=None,
            attention=None,
            recompute="",
            recompute_modules=(),
        )
        return msgspec.structs.replace(self, parallel=parallel, fused_loss=None)

    @property
    def is_mixture(self) -> bool:
        """Whether the network is a mixture of experts."""
        return bool(self.parallel.expert_kernels)

    @property
    def configuration(self) -> tuple[object, ...]:
        """What was run, apart from the release of the software."""
        return (self.network, self.device, self.precision, self.workers, self.batch_size, self.length, self.parallel,
                self.fused_loss)  # fmt: skip


class Tables(msgspec.Struct, frozen=True):
    """Steps that were read, and the number of omitted rows by reason."""

    steps: list[Pretraining]
    left_out: dict[str, int]


def pretraining_steps(folder: Path) -> Tables:
    """Read the steps of both tables."""
    of_gb300 = [
        row
        for row in rows_of(folder / TABLE_OF_GB300)
        if row["gpu"] == "GB300" and "Pre-Training" in row["software"] and "Megatron-Bridge" in row["source"]
    ]
    tables: list[tuple[str, Callable[[dict[str, str]], Pretraining], list[dict[str, str]]]] = [
        (TABLE, _step, list(rows_of(folder / TABLE))),
        (TABLE_OF_GB300, _step_on_gb300, of_gb300),
    ]
    steps = []
    left_out: dict[str, int] = {}
    for name, read_row, rows in tables:
        for row in rows:
            model = row["model"]
            if model not in NETWORKS:
                reason = f"{model}: no shipped network"
                left_out[reason] = left_out.get(reason, 0) + 1
                continue
            try:
                steps.append(read_row(row))
            except (KeyError, ValueError, csv.Error) as error:
                raise BadFile(f"{folder / name}: a row cannot be read: {error}") from None
    return Tables(steps, left_out)


def _integer(row: dict[str, str], name: str) -> int:
    return int(float(row[name] or 1))


def _step(row: dict[str, str]) -> Pretraining:
    sharded = int(row["fsdp"] or 0) > 1
    parallel = _parallel(row, "tensor", "pipeline", "virtual", "context", "expert", "micro_batch", sharded)
    tokens_per_s = float(row["tokens_per_s_per_gpu"]) * int(row["gpus"])
    length, batch_size = int(row["sequence"]), int(row["global_batch"])
    return _make(row, row["container"], PLATFORMS[row["system"]], int(row["gpus"]), batch_size, length, parallel,
                 batch_size * length / tokens_per_s)  # fmt: skip


def _step_on_gb300(row: dict[str, str]) -> Pretraining:
    one_rank = _integer(row, "tp") == _integer(row, "pp") == _integer(row, "ep") == 1
    parallel = _parallel(row, "tp", "pp", "vpp", "cp", "ep", "micro_batch", one_rank)
    tokens_per_s = float(row["tokens_per_s_per_gpu"]) * int(row["n_gpus"])
    length, batch_size = int(row["seq_len"]), int(row["global_batch_seqs"])
    release = row["software"].split()[1]
    return _make(row, release, PLATFORMS["GB300"], int(row["n_gpus"]), batch_size, length, parallel,
                 batch_size * length / tokens_per_s)  # fmt: skip


def _parallel(
    row: dict[str, str], tensor: str, pipeline: str, virtual: str, context: str, expert: str, micro_batch: str,
    sharded: bool,
) -> ParallelConfig:  # fmt: skip
    tensor_parallel, stages = _integer(row, tensor), _integer(row, pipeline)
    return ParallelConfig(
        tensor_parallel,
        stages,
        _integer(row, virtual) if stages > 1 else 1,
        tensor_parallel > 1,
        _integer(row, micro_batch),
        zero_stage=3 if sharded else 1,
        context=_integer(row, context),
        expert=_integer(row, expert),
    )


def _make(
    row: dict[str, str], release: str, platform: str, workers: int, batch_size: int, length: int,
    parallel: ParallelConfig, time_s: float,
) -> Pretraining:  # fmt: skip
    computer = find_computer(platform)
    assert computer is not None
    network, precision = NETWORKS[row["model"]], row["precision"].lower()
    kernels = _expert_kernels(release, network, length, computer.device, precision)
    recipe = _find_recipe(network, computer.device, precision, parallel, kernels)
    parallel = msgspec.structs.replace(parallel, expert_kernels=kernels)
    if recipe is not None:
        parallel = _follow_recipe(parallel, recipe)
    return Pretraining(
        release, network, platform, computer.device, precision, workers, batch_size, length, parallel,
        False if recipe is not None and recipe["fused_loss"] == "no" else None, time_s,
    )  # fmt: skip


def _find_recipe(
    network: str, device: str, precision: str, parallel: ParallelConfig, kernels: str
) -> dict[str, str] | None:
    """Return the row of the recipes for a run, that for the kernels of its release where there are two."""
    wanted = (network, device, precision, str(parallel.expert), str(parallel.micro_batch_size))
    names = ("network", "device", "precision", "expert", "micro_batch")
    matching = [row for row in _recipes() if tuple(row[name] for name in names) == wanted]
    of_release = [row for row in matching if row["expert_kernels"] in ("", kernels)]
    return next(iter(of_release or matching), None)


@cache
def _recipes() -> list[dict[str, str]]:
    return list(rows_of(RECIPES))


def _follow_recipe(parallel: ParallelConfig, recipe: dict[str, str]) -> ParallelConfig:
    modules = () if recipe["recompute"] == "none" else tuple(recipe["recompute"].split())
    return msgspec.structs.replace(
        parallel,
        expert_kernels=recipe["expert_kernels"] or parallel.expert_kernels,
        dispatch=recipe["dispatch"],
        expert_overlap=OVERLAPPED_EXCHANGE if recipe["overlap"] == "yes" else None,
        attention=recipe["attention"] or None,
        recompute="selective" if modules else "none",
        recompute_modules=modules,
    )


def _expert_kernels(release: str, network: str, length: int, device: str, precision: str) -> str:
    """Return the kernels of experts that a release of the container used; empty without experts."""
    job = _job(network, length, device, precision, None)
    workload = job.workload
    available = available_expert_kernels(workload.network.layers, workload.options.recipe, job.machine.device)
    if release >= FIRST_FUSED and "fused" in available:
        return "fused"
    return "separate" if available else ""


@cache
def _job(network: str, length: int, device: str, precision: str, fused_loss: bool | None) -> Job:
    tensors, options = TrainingOptions("adam", mixed_precision=True, fused_loss=fused_loss).split_precision(precision)
    built = find_network(network, options=SequenceOptions(length, phase="training"))
    machine = find_device(device)
    workload = Workload(built, tensors, phase="training", training=options)
    return Job(workload, Machine(machine), choose_model(machine, tensors, products=options.products))


def job_of(step: Pretraining) -> Job:
    """Return the job of a step, with the shipped constants."""
    return _job(step.network, step.length, step.device, step.precision, step.fused_loss)


def topology_of(step: Pretraining) -> Topology:
    """Return the devices of a step."""
    return _topology(step.platform, step.workers)


@cache
def _topology(platform: str, workers: int) -> Topology:
    computer = find_computer(platform)
    assert computer is not None
    return computer.topology(workers).with_workers(workers)


def predict_times(steps: Sequence[Pretraining], constants: StackConstants | None = None) -> Floats:
    """Return the seconds of every step on the expected cluster, shape (steps,)."""
    jobs: dict[int, Job] = {}
    times_s: dict[tuple[object, ...], float] = {}
    for step in steps:
        if step.configuration in times_s:
            continue
        job = job_of(step)
        if constants is not None:
            job = jobs.setdefault(id(job), job.with_stack_constants(constants))
        topology, settings = cluster_prior().cluster_at(
            ClusterScores.uniform(EXPECTED), topology_of(step), Settings(parallel=step.parallel)
        )
        times_s[step.configuration] = float(train_3d_parallel(job, topology, step.batch_size, settings).time_s)
    return np.array([times_s[step.configuration] for step in steps])


class PretrainingForecast(msgspec.Struct, frozen=True):
    """A step with its forecast.

    Attributes
    ----------
    step : Pretraining
    time_s, low_s, high_s, memory_bytes : float
        PretrainingForecast with its 90% interval, and memory of the fullest device.
    """

    step: Pretraining
    time_s: float
    low_s: float
    high_s: float
    memory_bytes: float

    @property
    def error(self) -> float:
        """Forecast over measured time, minus 1."""
        return self.time_s / self.step.time_s - 1

    @property
    def is_inside(self) -> bool:
        """Whether the measured time is in the interval."""
        return self.low_s <= self.step.time_s <= self.high_s


def forecast(steps: Sequence[Pretraining], constants: StackConstants | None = None) -> list[PretrainingForecast]:
    """Return the steps with their forecasts, as `scale` makes them."""
    predictions: dict[tuple[object, ...], tuple[float, float, float, float]] = {}
    jobs: dict[int, Job] = {}
    forecasts = []
    for step in steps:
        if step.configuration not in predictions:
            job = job_of(step)
            if constants is not None:
                job = jobs.setdefault(id(job), job.with_stack_constants(constants))
            topology, settings = topology_of(step), Settings(parallel=step.parallel)
            predicted = predict_step(job, topology, settings, step.batch_size, "3d", cluster_prior())
            assert predicted.interval is not None and predicted.memory_bytes is not None
            predictions[step.configuration] = (
                float(predicted.time_s),
                *predicted.interval,
                float(predicted.memory_bytes),
            )
        forecasts.append(PretrainingForecast(step, *predictions[step.configuration]))
    return forecasts


# Fit -----------------------------------------------------------------------------------------------------------------

PRIOR: dict[str, tuple[float, float]] = {
    "efficiency_gemm": (0.9, 0.04),
    "efficiency_attention": (0.8, 0.15),
    "overhead_s": (15e-6, 0.8),
    "share_other": (0.6, 0.25),
    "fp8": (0.88, 0.1),
    "mxfp8": (0.85, 0.1),
    "nvfp4": (0.62, 0.15),
    "separate": (0.9, 0.15),
    "fused": (0.95, 0.15),
    "expert_launch_s": (6e-6, 0.4),
    "expert_host_s": (20e-6, 0.8),
    "half_expert_size": (500.0, 0.8),
    "state_space_dual": (0.2, 0.6),
    "exposed_tensor": (0.4, 0.5),
    "exposed_expert": (0.5, 0.5),
    "exposed_sharding": (0.5, 0.5),
}
"""Prior of each constant: median, and standard deviation of the logarithm. Products in narrow numbers reach the shares
of kernels timed alone on H100 and B200, ``engines/gemm.csv.gz``."""


def constants_of(values: Floats, points: int = 0, deviation: Floats | None = None) -> StackConstants:
    """Return the constants with these values, in the order of `PRIOR`."""
    by_name = dict(zip(PRIOR, map(float, values)))
    shipped = stack_constants()
    kernels = {name: by_name.get(name, value) for name, value in shipped.kernels.constants.items()}
    deviations = dict(shipped.kernels.deviation)
    if deviation is not None:
        deviations |= {name: float(d) for name, d in zip(PRIOR, deviation) if name in deviations}
    return StackConstants(
        kernels=TrainingConstants(
            constants=kernels, deviation=deviations, scatter=HELD_OUT_SCATTER, points=points, devices=[], sources=[],
            exposed_sharding=min(by_name["exposed_sharding"], 1.0),
        ),
        relative_efficiency={name: by_name[name] for name in ("fp8", "mxfp8", "nvfp4")},
        kind_efficiency={name: by_name[name] for name in ("state_space_dual",)},
        expert_efficiency={name: by_name[name] for name in TUNED_KERNELS},
        expert_launch_s=by_name["expert_launch_s"],
        expert_host_s=by_name["expert_host_s"],
        half_expert_size=by_name["half_expert_size"],
        tensor_overlap=max(1 - by_name["exposed_tensor"], 0.0),
        expert_overlap=max(1 - by_name["exposed_expert"], 0.0),
    )  # fmt: skip


@cache
def used_constants(step: Pretraining) -> tuple[int, ...]:
    """Return the places in `PRIOR` of the constants that the time of a step depends on."""
    parallel = step.parallel
    used = {"efficiency_gemm", "efficiency_attention", "overhead_s", "share_other", step.precision}
    used |= {layer.kind for layer in job_of(step).workload.network.layers}
    if step.is_mixture:
        used |= {parallel.expert_kernels, "half_expert_size", "expert_launch_s", "expert_host_s"}
    if parallel.tensor > 1:
        used.add("exposed_tensor")
    if parallel.expert > 1:
        used.add("exposed_expert")
    if parallel.zero_stage == 3:
        used.add("exposed_sharding")
    return tuple(place for place, name in enumerate(PRIOR) if name in used)


class KnownTimes:
    """Predicted seconds of steps by the constants that they depend on.

    A fit changes one constant at a time, on which half of the steps do not depend, and fits to overlapping steps start
    at the same constants.
    """

    def __init__(self) -> None:
        self._times: dict[tuple[object, ...], float] = {}

    def predict(self, steps: Sequence[Pretraining], values: Floats) -> Floats:
        """Return the seconds of every step with constants in the order of `PRIOR`, shape (steps,)."""
        keys = [(step.configuration, *values[list(used_constants(step))]) for step in steps]
        unknown = {key: step for key, step in zip(keys, steps) if key not in self._times}
        predicted = predict_times(list(unknown.values()), constants_of(values))
        self._times.update(zip(unknown, map(float, predicted)))
        return np.array([self._times[key] for key in keys])


def fit(steps: Sequence[Pretraining], known: KnownTimes | None = None) -> StackConstants:
    """Fit the constants with a prior and a robust loss (soft L1). The rows of a configuration are correlated.

    Fits that are given the same known times share them.

    Raises
    ------
    MissingExtra
        If scipy is not installed.
    """
    least_squares = require("scipy.optimize", "fitting", "calibrate").least_squares
    median, spread = np.array(list(PRIOR.values())).T
    measured = np.log([step.time_s for step in steps])
    configurations = [step.configuration for step in steps]
    weights = np.array([configurations.count(configuration) ** -0.25 for configuration in configurations])
    known = known or KnownTimes()

    def residuals(change: Floats) -> Floats:
        errors = (np.log(known.predict(steps, median * np.exp(change))) - measured) / SCATTER
        soft = np.sign(errors) * np.sqrt(2 * (np.sqrt(1 + errors**2) - 1))  # its square is soft L1
        return np.concatenate([soft * weights, change / spread])

    solution = least_squares(residuals, np.zeros(len(median)), diff_step=0.02, x_scale=spread, max_nfev=6, ftol=1e-3)
    deviation = np.sqrt(np.diag(np.linalg.inv(solution.jac.T @ solution.jac)))
    constants = constants_of(median * np.exp(solution.x), len(steps), deviation)
    devices = sorted({step.device for step in steps})
    kernels = msgspec.structs.replace(constants.kernels, devices=devices, sources=["Megatron-Bridge"])
    return msgspec.structs.replace(constants, kernels=kernels)


_HEAD = b"# Fitted by paleo-lite to published pre-training; every field is explained in docs/training.md.\n"


def rounded(constants: StackConstants) -> StackConstants:
    """Return the constants rounded, so that the same data produce the same file."""

    def round_values(values: dict[str, float], digits: int) -> dict[str, float]:
        return {name: float(f"{value:.{digits}g}") for name, value in values.items()}

    kernels = msgspec.structs.replace(
        constants.kernels,
        constants=round_values(constants.kernels.constants, 4),
        deviation=round_values(constants.kernels.deviation, 3),
        exposed_sharding=float(f"{constants.kernels.exposed_sharding:.3g}"),
    )
    return msgspec.structs.replace(
        constants,
        kernels=kernels,
        relative_efficiency=round_values(constants.relative_efficiency, 3),
        kind_efficiency=round_values(constants.kind_efficiency, 3),
        expert_efficiency=round_values(constants.expert_efficiency, 3),
        expert_launch_s=float(f"{constants.expert_launch_s:.3g}"),
        expert_host_s=float(f"{constants.expert_host_s:.3g}"),
        half_expert_size=float(f"{constants.half_expert_size:.3g}"),
        tensor_overlap=float(f"{constants.tensor_overlap:.3g}"),
        expert_overlap=float(f"{constants.expert_overlap:.3g}"),
    )


def write_constants(constants: StackConstants, folder: Path) -> None:
    """Write the constants of the stack to a folder of calibrations."""
    write_atomically(folder / STACK_FILE, _HEAD + msgspec.toml.encode(rounded(constants)))

"""Changes of a training run on several devices with which it fits into memory."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from ..counting.kinds import count_experts, is_grouped_product
from ..counting.work import MEGATRON
from ..errors import PaleoError
from ..timing.memory import usable_bytes
from ..units import format_si
from .clusters import Cluster
from .job import Job
from .links import Topology
from .parallel_config import ParallelConfig
from .parallel_layout import MIN_TOKENS_PER_CONTEXT_DEVICE
from .scale import predict_step
from .settings import Settings
from .strategies import STRATEGIES

_MOST_SHOWN = 3

_PAIRS_WITH_A_THIRD = 8
"""Pairs of changes, of those that need least memory, that are tried with a third where none is enough."""

_SIZES = re.compile(r"(?<=--micro-batch )\d+|(?<=--accumulation )\d+")
"""Sizes of micro-batches in a change, or their number."""

_HELD_BYTES = 4
"""Bytes of a weight and its gradient in 16 bits."""

_SHARDING_OF_DIVISIONS = "zero-1"
"""How `train` shards the state of the optimizer with tensor or expert parallelism unless it is told otherwise."""


class _Change(NamedTuple):
    """A change of a run, as the command line writes it."""

    option: str
    parallel: Mapping[str, Any] = {}  # fields of `ParallelConfig`
    training: Mapping[str, Any] = {}  # fields of the options of training
    division: Mapping[str, Any] = {}  # strategy and tensor-parallel devices of a network that is divided by layers

    def goes_with(self, other: _Change) -> bool:
        """Return whether both may be made at once."""
        pairs = ((self.parallel, other.parallel), (self.training, other.training), (self.division, other.division))
        return all(fields.keys().isdisjoint(others) for fields, others in pairs)


def _joined(several: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the fields of several changes."""
    return {name: value for fields in several for name, value in fields.items()}


class _Run(NamedTuple):
    """A training run on several devices."""

    job: Job
    topology: Topology
    settings: Settings
    global_batch: int
    strategy: str
    states_size: bool  # whether the size of micro-batches is asked for, which may make up the batch
    fixes_batch: bool  # whether the batch of all devices is asked for

    def size_option(self, size: int) -> str:
        """Return the option that sets the size of micro-batches, with the batch that they no longer make up."""
        is_made_up = self.states_size and not self.fixes_batch
        batch = f" --batch-size {self.global_batch // self.topology.workers}" if is_made_up else ""
        return f"--micro-batch {size}{batch}"

    def changed(self, changes: tuple[_Change, ...]) -> tuple[str, _Run]:
        """Return the run with changes, and their options; raise PaleoError for options that do not go together."""
        parallel, training, division = map(
            _joined, zip(*((change.parallel, change.training, change.division) for change in changes))
        )
        options = " ".join(change.option for change in changes)
        config, settings, job = self.settings.parallel, self.settings, self.job
        divides = not parallel.keys().isdisjoint(("tensor", "expert", "pipeline", "context"))
        if config is not None and divides and "sharding" not in parallel and config.zero_stage == 0:
            parallel["sharding"] = _SHARDING_OF_DIVISIONS
            options += f" --strategy {_SHARDING_OF_DIVISIONS}"
        if training:
            changed_options = msgspec.structs.replace(job.workload.options, **training)
            job = Job(job.workload.with_changes(training=changed_options), job.machine, job.model)
        if parallel:
            settings = msgspec.structs.replace(
                settings, parallel=msgspec.structs.replace(config or ParallelConfig(), **parallel)
            )
        if "tensor" in division:
            settings = msgspec.structs.replace(settings, tensor=division["tensor"])
        strategy = division.get("strategy", self.strategy)
        return options, self._replace(job=job, settings=settings, strategy=strategy)

    def memory_with(self, changes: tuple[_Change, ...]) -> tuple[str, _Run, float] | None:
        """Return the options of changes, the run with them and the bytes of a device; None if they do not go together.

        Neither do changes of which the memory is unknown.
        """
        try:
            options, changed = self.changed(changes)
            memory_bytes = changed.step(None).memory_bytes
        except PaleoError:  # the change is incompatible with the network, the batch or the other options
            return None
        return None if memory_bytes is None else (options, changed, float(memory_bytes))

    def step(self, cluster: Cluster | None) -> Any:
        """Return the step of the run."""
        return predict_step(self.job, self.topology, self.settings, self.global_batch, self.strategy, cluster)


class _Fitting(NamedTuple):
    """Changes with which a run fits, sorted by its time."""

    time_s: float
    memory_bytes: float  # of a device
    options: str
    offloads: bool  # whether the host takes a part of the state


def fitting_note(
    job: Job,
    topology: Topology,
    settings: Settings,
    global_batch: int,
    strategy: str,
    cluster: Cluster | None = None,  # knowledge of similar clusters
    *,
    states_size: bool = False,  # whether the size of micro-batches is asked for, which may make up the batch
    fixes_batch: bool = False,  # whether the batch of all devices is asked for
) -> str:
    """Return the note that says which changes of a step make it fit, up to three together, the fastest first."""
    run = _Run(job, topology, settings, global_batch, strategy, states_size, fixes_batch)
    possible = _changes_of_blocks if STRATEGIES[strategy].divides_blocks else _changes_of_layers
    changes = list(possible(run))
    pairs = [(change, other) for index, change in enumerate(changes) for other in changes[index + 1 :]]
    pairs = [(change, other) for change, other in pairs if change.goes_with(other)]
    fitting: list[_Fitting] = []
    too_large_bytes: list[float] = []
    enough: set[str] = set()  # options that need no other one
    smallest: list[tuple[float, tuple[_Change, ...]]] = []  # pairs that do not fit, with their bytes

    def try_together(combinations: Iterable[tuple[_Change, ...]]) -> None:
        """Add the combinations of changes that fit, and the bytes of those that do not."""
        for together in combinations:
            if any(change.option in enough for change in together):
                continue
            tried = run.memory_with(together)
            if tried is None:
                continue
            options, changed, memory_bytes = tried
            if memory_bytes > usable_bytes(job.machine.device):
                too_large_bytes.append(memory_bytes)
                if len(together) == 2:
                    smallest.append((memory_bytes, together))
                continue
            offloads = any("offload" in change.training for change in together)
            fitting.append(_Fitting(float(changed.step(cluster).time_s), memory_bytes, options, offloads))
            enough.update(change.option for change in together if len(together) == 1)

    try_together([*((change,) for change in changes), *pairs])
    if STRATEGIES[strategy].divides_blocks and all(change.offloads for change in fitting):
        divisions, larger_bytes = _fitting_divisions(run, cluster)
        fitting += divisions
        too_large_bytes += larger_bytes
    if not fitting:
        smallest.sort(key=lambda pair: pair[0])
        try_together(_triples([pair for _, pair in smallest[:_PAIRS_WITH_A_THIRD]], changes))
    if fitting:
        shown: dict[str, str] = {}  # of each change the size of micro-batches with which it is fastest
        for time_s, memory, options, _ in sorted(fitting):
            described = f"`{options}` ({format_si(memory, 'B', 3)} and {format_si(time_s, 's', 3)} per step)"
            shown.setdefault(_SIZES.sub("", options), described)
        return f"fits with {', or '.join(list(shown.values())[:_MOST_SHOWN])}"
    parts = ["smaller micro-batches, recomputation, sharding"]
    stages = ""
    if STRATEGIES[strategy].divides_blocks and _context_degree(run, settings.parallel or ParallelConfig()) > 1:
        parts.append("context parallelism")
    if STRATEGIES[strategy].divides_blocks:
        parts += ["tensor parallelism", "expert parallelism"] if job.workload.has_experts else ["tensor parallelism"]
        stages = ", nor with stages of tensor-parallel devices" if topology.workers > 1 else ""
    least = f" (the least is {format_si(min(too_large_bytes), 'B', 3)})" if too_large_bytes else ""
    other = "use more devices, or ask `--advise` for other divisions" if topology.workers > 1 else "use more devices"
    third = ", nor with a third beside those that need least"
    return f"it does not fit with any two of {', '.join(parts)} and offloading{third}{stages}: {other}{least}"


def _triples(pairs: Iterable[tuple[_Change, ...]], changes: Sequence[_Change]) -> Iterator[tuple[_Change, ...]]:
    """Iterate over pairs of changes with a third one that goes with both, each combination once."""
    known: set[frozenset[str]] = set()
    for pair in pairs:
        for third in changes:
            options = frozenset(change.option for change in (*pair, third))
            if len(options) == 3 and options not in known and all(change.goes_with(third) for change in pair):
                known.add(options)
                yield (*pair, third)


def _fitting_divisions(run: _Run, cluster: Cluster | None) -> tuple[list[_Fitting], list[float]]:
    """Return divisions into stages of tensor-parallel devices that fit.

    Those with the fewest devices per replica come first, up to as many as a note shows. The second list has the bytes
    of those that do not fit.
    """
    fitting: list[_Fitting] = []
    too_large_bytes: list[float] = []
    available_bytes = usable_bytes(run.job.machine.device)
    for change in _divisions(run, available_bytes):
        tried = run.memory_with((change,))
        if tried is None:
            continue
        options, changed, memory_bytes = tried
        if memory_bytes > available_bytes:
            too_large_bytes.append(memory_bytes)
            continue
        fitting.append(_Fitting(float(changed.step(cluster).time_s), memory_bytes, options, offloads=False))
        if len(fitting) == _MOST_SHOWN:
            break
    return fitting, too_large_bytes


def _divisions(run: _Run, available_bytes: float) -> Iterator[_Change]:
    """Yield stages of tensor-parallel devices under Megatron-LM, those with the fewest devices per replica first.

    Those are left out of which weights and gradients in 16 bits alone exceed the memory.
    """
    config, workers, network = run.settings.parallel or ParallelConfig(), run.topology.workers, run.job.workload.network
    experts = count_experts(network.layers)
    of_experts = sum(layer.parameters for layer in network.layers if is_grouped_product(layer))
    defaults: dict[str, object] = {"micro_batches": 0, "micro_batch_size": 1} if config.micro_batches == 1 else {}
    size = f" {run.size_option(1)}" if defaults and run.states_size else ""
    tensors = [n for n in range(config.tensor, run.topology.devices_per_node + 1) if workers % n == 0]
    stages = [n for n in range(config.pipeline, network.blocks + 1) if workers % n == 0]
    pairs = [(tensor, pipeline) for tensor in tensors for pipeline in stages if workers % (tensor * pipeline) == 0]
    for tensor, pipeline in sorted(pairs, key=lambda pair: (pair[0] * pair[1], pair[1])):
        sharing = workers // pipeline
        expert = math.gcd(sharing, experts)
        held = (network.parameters - of_experts) / tensor + of_experts / expert
        is_frozen = run.job.workload.options.lora_rank > 0
        if pipeline == 1 or (not is_frozen and _HELD_BYTES * held / pipeline > available_bytes):
            continue
        sequence = " --communication sequence-parallel=yes" if tensor > 1 else ""
        of_tensor = f"--tensor {tensor} " if tensor > 1 else ""
        of_experts_option = f" --expert-parallel {expert}" if expert > 1 else ""
        yield _Change(
            f"{of_tensor}--pipeline {pipeline}{of_experts_option}{sequence} --execution {MEGATRON}{size}",
            {
                "tensor": tensor, "pipeline": pipeline, "expert": expert, "sequence_parallel": tensor > 1,
                "execution": MEGATRON, **defaults,
            },
        )  # fmt: skip


def _changes_of_blocks(run: _Run) -> Iterator[_Change]:
    """Yield the changes that a run of a network in blocks does not have yet."""
    config, workers = run.settings.parallel or ParallelConfig(), run.topology.workers
    if config.recompute not in ("full", "offload"):
        yield _Change("--recompute full", {"recompute": "full", "recompute_modules": ()})
    # Sharding and tensor parallelism have other defaults than plain replicas: the note states the stack, and their
    # micro-batches have one sample.
    execution = "" if config.execution == ParallelConfig().execution else f" --execution {config.execution}"
    defaults: dict[str, object] = {"micro_batches": 0, "micro_batch_size": 1} if config.micro_batches == 1 else {}
    size = f" {run.size_option(1)}" if defaults and run.states_size else ""
    if config.zero_stage < 3 and workers > config.tensor * config.pipeline * config.context:
        yield _Change(f"--strategy full-shard{execution}{size}", {"sharding": "full-shard", **defaults})
    tensor = min(run.topology.devices_per_node, workers)
    if config.tensor < tensor:
        yield _Change(
            f"--tensor {tensor} --communication sequence-parallel=yes{execution}{size}",
            {"tensor": tensor, "sequence_parallel": True, **defaults},
        )
    context = _context_degree(run, config)
    if context > config.context:
        yield _Change(f"--context-parallel {context}{execution}{size}", {"context": context, **defaults})
    yield from _expert_changes(run, config, defaults, size)
    micro_batch = config.micro_batch_size
    replicas = max(workers // (config.tensor * config.pipeline * config.context), 1)
    if config.micro_batches:  # their number is given, and not their size
        micro_batch = run.global_batch // (replicas * config.micro_batches)
    while micro_batch > 1:
        micro_batch //= 2
        if config.micro_batches > 1:
            number = run.global_batch // (replicas * micro_batch)
            size = f" {run.size_option(micro_batch)}" if run.states_size else ""
            yield _Change(f"--accumulation {number}{size}", {"micro_batch_size": 1, "micro_batches": number})
        else:
            yield _Change(run.size_option(micro_batch), {"micro_batch_size": micro_batch, "micro_batches": 0})
    if run.job.workload.options.offload == "none":
        yield _Change("--offload cpu", training={"offload": "cpu"})


def _context_degree(run: _Run, config: ParallelConfig) -> int:
    """Return the most devices of a node that may divide each sequence; 1 for short ones."""
    tokens = run.job.workload.network.tokens or 0
    sharing = run.topology.workers // (config.tensor * config.pipeline)
    most = min(run.topology.devices_per_node, sharing, tokens // MIN_TOKENS_PER_CONTEXT_DEVICE)
    return max((n for n in range(2, most + 1) if sharing % n == 0 and tokens % n == 0), default=1)


def _expert_changes(run: _Run, config: ParallelConfig, defaults: dict[str, object], size: str) -> Iterator[_Change]:
    """Yield the largest expert parallelism, under the software of the run and under Megatron-LM's fused kernels.

    Long sequences are divided as well under the latter.

    `defaults` and `size` are the fields and the option of the micro-batches of a run that is no longer one of replicas.
    """
    experts = count_experts(run.job.workload.network.layers)
    sharing = run.topology.workers // config.pipeline
    degree = math.gcd(sharing, experts)
    if degree <= config.expert:
        return
    fields = {"expert": degree, **defaults}
    context = _context_degree(run, config)
    if context > config.context:
        yield _Change(
            f"--context-parallel {context} --expert-parallel {degree} --execution {MEGATRON}{size}",
            {**fields, "context": context, "execution": MEGATRON},
        )
    if config.execution == MEGATRON:
        yield _Change(f"--expert-parallel {degree}{size}", fields)
        return
    yield _Change(f"--expert-parallel {degree} --execution {config.execution}{size}", fields)
    yield _Change(f"--expert-parallel {degree} --execution {MEGATRON}{size}", {**fields, "execution": MEGATRON})


def _changes_of_layers(run: _Run) -> Iterator[_Change]:
    """Yield the changes that a run does not have yet of a network that is divided layer by layer."""
    options, strategy, tensor = run.job.workload.options, STRATEGIES[run.strategy], run.settings.tensor
    has_replicas = run.topology.workers > tensor  # among which the state may be sharded
    for name, other in STRATEGIES.items():
        replicates = name == "data" and not strategy.divides_batch
        if other.zero_stage <= strategy.zero_stage and not replicates:
            continue
        if has_replicas:
            yield _Change(f"--strategy {name}", division={"strategy": name})
        if tensor > 1:
            yield _Change(f"--strategy {name} --tensor 1", division={"strategy": name, "tensor": 1})
    if options.checkpointing == "none":
        yield _Change("--recompute sqrt", training={"checkpointing": "sqrt"})
        if not run.job.workload.network.blocks:  # which several devices would divide then
            yield _Change("--recompute full", training={"checkpointing": "block"})
    samples = run.global_batch * tensor // run.topology.workers
    number = 2 * options.accumulation
    while number <= samples:
        size = f" {run.size_option(samples // number)}" if run.states_size else ""
        yield _Change(f"--accumulation {number}{size}", training={"accumulation": number})
        number *= 2
    if options.offload == "none":
        yield _Change("--offload cpu", training={"offload": "cpu"})

"""Comparison of all strategies and collectives for a number of devices, with the best one and the reasons."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from ..counting.work import MEGATRON
from ..errors import BadValue
from ..text import format_plural
from ..timing.budget import Budget
from ..timing.memory import usable_bytes
from ..units import format_si
from .blocks import fuses_loss, uses_tuned_stack
from .clusters import Cluster
from .collectives import COLLECTIVES
from .fitting import fitting_note
from .job import Job
from .links import Topology
from .megatron_options import describe_adapters, megatron_options
from .parallel_config import STACKS, ParallelConfig
from .parallel_layout import candidate_configs
from .scale import predict_step, scale
from .settings import ScaledBatch, Settings
from .step_plan import plan_step
from .strategies import STRATEGIES, Strategy
from .table import ScaleRow

SIMILAR_TIME = 0.02
"""Relative difference of step times below which the simpler strategy is preferred."""

ADVISED_CONFIGS = 6
"""Number of parallel configurations in an answer."""


class StrategyAdvice(NamedTuple):
    """Ranked strategies for one cluster."""

    rows: list[ScaleRow]  # each strategy with its fastest collective: those that fit into memory first, fastest first
    why: str  # explanation of the first row, in one sentence
    refused: dict[str, str]  # strategies that are impossible here, with the reason


def advise(
    job: Job,
    topology: Topology,
    workers: int,
    batch: ScaledBatch,
    *,
    settings: Settings | None = None,
    budget: Budget | None = None,
    collectives: Sequence[str] = (),
    cluster: Cluster | None = None,
) -> StrategyAdvice:
    """Compare all strategies and collectives on a number of devices.

    Left out are bounds, which are not executable, and butterfly mixing, which does not exchange all gradients. Among
    strategies within 2% of the fastest, the simplest one comes first. The collective of `settings`, if set, is the only
    one tried; otherwise `collectives` are, by default all that the strategy supports. The other arguments are as for
    `scale`. Raise BadValue if no strategy is possible.
    """
    settings = settings or Settings()
    if job.workload.network.blocks and workers > 1:
        return _compare_configs(job, topology, workers, batch, settings, budget, cluster)
    requested = [settings.collective] if settings.collective else list(collectives)
    fastest: list[ScaleRow] = []
    refused: dict[str, str] = {}
    for name, strategy in STRATEGIES.items():
        if strategy.is_bound or strategy.divides_blocks:
            continue
        candidates = _candidate_collectives(strategy, requested)
        if not candidates:
            refused[name] = f"does not support {', '.join(requested)}"
        if workers == 1:
            candidates = [None]
        rows: list[ScaleRow] = []
        for collective in candidates:
            try:
                rows += scale(
                    job,
                    topology,
                    [workers],
                    batch,
                    strategy=name,
                    settings=msgspec.structs.replace(settings, collective=collective),
                    budget=budget,
                    cluster=cluster,
                )
            except BadValue as error:
                refused[name] = str(error)
                break
        if rows:
            fastest.append(min(rows, key=lambda row: row.time_s))
    if not fastest:
        raise BadValue("no strategy is possible: " + "; ".join(dict.fromkeys(refused.values())))
    fastest = _rank(fastest)
    if fastest[0].fits is False:
        machines, best = topology.with_workers(workers), fastest[0].strategy
        note = fitting_note(job, machines, settings, batch.of_all(workers), best, cluster)
        where = f"no strategy fits into the memory of {job.machine.device.name}"
        why = f"{where}; without `--advise` it {note}" if note.startswith("fits") else f"{where}: {note}"
        return StrategyAdvice(fastest, why, refused)
    return StrategyAdvice(fastest, _explain(fastest), refused)


def _candidate_collectives(strategy: Strategy, requested: Sequence[str]) -> list[str | None]:
    """Return the collectives to try; an unknown one is kept, for `scale` to refuse it."""
    if not strategy.collectives:
        return [None]
    if not requested:
        return list(strategy.collectives)
    return [name for name in requested if name in strategy.collectives or name not in COLLECTIVES]


def _compare_configs(
    job: Job,
    topology: Topology,
    workers: int,
    batch: ScaledBatch,
    settings: Settings,
    budget: Budget | None,
    cluster: Cluster | None,
) -> StrategyAdvice:
    """Compare all parallel configurations of a network of equal blocks.

    All are ranked without the cluster's effects, and the best of them again with these effects, which may change the
    order.
    """
    machines = topology.with_workers(workers)
    global_batch = batch.of_all(workers)
    stated = dict(settings.stated)
    configs: Iterable[ParallelConfig] = [settings.parallel] if settings.parallel else []
    if settings.parallel is None:
        is_tuned = uses_tuned_stack(job, ParallelConfig(execution=stated.get("execution", MEGATRON)))
        candidates = candidate_configs(job.workload.network, machines, is_tuned, job.workload.engine is not None)
        configs = _with_stated(candidates, stated)
    fitting, too_large = _fitting_configs(job, machines, global_batch, settings, configs)
    best_configs = fitting[: 2 * ADVISED_CONFIGS]
    other_stacks: list[ParallelConfig] = []
    if settings.parallel is None and "execution" not in stated and job.workload.phase == "training":
        other_stacks = _other_stacks(best_configs[0])

    def predict_row(config: ParallelConfig) -> ScaleRow:
        (row,) = scale(
            job,
            topology,
            [workers],
            batch,
            strategy="3d",
            settings=msgspec.structs.replace(settings, parallel=config),
            budget=budget,
            cluster=cluster,
        )
        description, *notes = row.notes
        return msgspec.structs.replace(row, strategy=description, collective="", notes=tuple(notes), parallel=config)

    predicted = sorted(
        ((predict_row(config), config) for config in best_configs), key=lambda pair: (not pair[0].fits, pair[0].time_s)
    )
    if predicted[0][1].execution == MEGATRON and job.workload.phase == "training":
        note = _describe_for_megatron(job, machines, global_batch, settings, predicted[0][1])
        first = msgspec.structs.replace(predicted[0][0], notes=(*predicted[0][0].notes, note))
        predicted[0] = (first, predicted[0][1])
    rows = [row for row, _ in predicted[: ADVISED_CONFIGS - len(other_stacks)]]
    of_other_stacks = [predict_row(config) for config in other_stacks]
    rows += of_other_stacks
    rows.sort(key=lambda row: (not row.fits, row.time_s))
    best = rows[0]
    too_large += sum(not row.fits for row in of_other_stacks)
    fits = len(fitting) + sum(bool(row.fits) for row in of_other_stacks)
    why = (
        f"{best.strategy}: {best.exposed_s / best.time_s:.0%} of the step is exposed communication; "
        f"the best of {format_plural(fits, 'configuration')} that fit{'s' if fits == 1 else ''}, "
        f"{too_large} {'does' if too_large == 1 else 'do'} not fit"
    )
    return StrategyAdvice(rows, why, {})


def _with_stated(configs: Iterable[ParallelConfig], stated: Mapping[str, Any]) -> list[ParallelConfig]:
    """Return configurations with the stated fields, each once; raise BadValue if none of them may have these."""
    found: dict[ParallelConfig, None] = {}
    reason: BadValue | None = None
    for config in configs:
        try:
            changed = msgspec.structs.replace(config, **stated)
            if "tensor" in stated and "sequence_parallel" not in stated:
                changed = msgspec.structs.replace(changed, sequence_parallel=changed.tensor > 1)
            found[changed] = None
        except BadValue as error:
            reason = error
    if not found and reason is not None:
        raise reason
    return list(found)


def _fitting_configs(
    job: Job, machines: Topology, global_batch: int, settings: Settings, configs: Iterable[ParallelConfig]
) -> tuple[list[ParallelConfig], int]:
    """Return the configurations that fit into memory, the fastest first, and the number of those that are too large.

    Raise BadValue if none fits.
    """
    available_bytes = usable_bytes(job.machine.device)
    fitting: list[tuple[float, ParallelConfig]] = []
    reasons: list[str] = []
    too_large, least_bytes = 0, math.inf
    for config in configs:
        try:
            step = predict_step(job, machines, msgspec.structs.replace(settings, parallel=config), global_batch, "3d")
        except BadValue as error:
            reasons.append(str(error))
            continue
        if step.memory_bytes is not None and step.memory_bytes <= available_bytes:
            fitting.append((float(step.time_s), config))
        else:
            too_large += 1
            least_bytes = min(least_bytes, step.memory_bytes or math.inf)
    if not fitting:
        reason = "there are no candidates"
        if too_large:
            reason = (
                f"{too_large} do not fit into memory (the least is {format_si(least_bytes, 'B', 3)} of "
                f"{format_si(available_bytes, 'B', 3)} usable): without `--advise` a note names what fits, if "
                "anything does, such as `--offload cpu`"
            )
        elif reasons:
            reason = reasons[0]
        raise BadValue(f"no parallel configuration is possible: {reason}")
    fitting.sort(key=lambda pair: pair[0])
    return [config for _, config in fitting], too_large


def _describe_for_megatron(
    job: Job, topology: Topology, batch_size: int, settings: Settings, config: ParallelConfig
) -> str:
    """Return a note with the options of Megatron-LM that choose a configuration."""
    plan = plan_step(job, topology, batch_size, msgspec.structs.replace(settings, parallel=config))
    tokens = job.workload.network.tokens or 1
    counts = tuple(stage.counts for stage in plan.layout.stages)
    training = job.workload.options
    options = megatron_options(
        plan.config, batch_size, tokens, counts, training.recipe, training.optimizer, fuses_loss(job, plan.config)
    )
    return f"options of Megatron-LM: {options}{describe_adapters(training.lora_rank)}"


def _other_stacks(config: ParallelConfig) -> list[ParallelConfig]:
    """Return a configuration with each of the other software stacks that may have it."""
    others = []
    for execution in STACKS:
        try:
            changed = msgspec.structs.replace(config, execution=execution)
        except BadValue:  # kernels of experts, or modules to recompute, that the stack lacks
            continue
        if changed != config:
            others.append(changed)
    return others


def _rank(rows: list[ScaleRow]) -> list[ScaleRow]:
    """Sort rows: those that fit first, then by throughput, but the simplest first among those close to the fastest."""
    ordered = sorted(rows, key=lambda row: (not row.fits, -row.throughput_per_s))
    fastest = ordered[0]
    simplicity = {name: rank for rank, name in enumerate(STRATEGIES)}
    limit_s = fastest.time_s * (1 + SIMILAR_TIME)
    similar = [row for row in ordered if row.fits == fastest.fits and row.time_s <= limit_s]
    similar.sort(key=lambda row: simplicity[row.strategy])
    return similar + [row for row in ordered if row not in similar]


RANKINGS = ("time", "joules")
"""What advice ranks strategies by."""


def rank_by_energy(advice: StrategyAdvice) -> StrategyAdvice:
    """Return the advice with those strategies first that fit and need the least energy per sample.

    Raise BadValue if the power of the devices is unknown.
    """
    usual = advice.rows[0]
    if any(row.energy_per_sample_j is None for row in advice.rows):
        raise BadValue("`--advise joules` needs devices of a known power: give `--advise time`")
    rows = sorted(advice.rows, key=lambda row: (not row.fits, row.energy_per_sample_j))
    best = rows[0]
    if best is usual:
        return StrategyAdvice(rows, f"{advice.why}; it needs the least energy, too", advice.refused)
    assert best.energy_per_sample_j is not None and usual.energy_per_sample_j is not None
    saved = 1 - best.energy_per_sample_j / usual.energy_per_sample_j
    difference = usual.time_s / best.time_s - 1  # of two equal within the uncertainty the simpler one is usual
    why = (
        f"{best.strategy}: {format_si(best.energy_per_sample_j, 'J', 3)} per sample, {saved:.1%} less than "
        f"{usual.strategy}, which takes {abs(difference):.1%} {'more' if difference > 0 else 'less'} time"
    )
    return StrategyAdvice(rows, why, advice.refused)


def _explain(rows: list[ScaleRow]) -> str:
    """Return a sentence that explains why the first row is recommended."""
    best = rows[0]
    name = best.strategy + (f" with {best.collective}" if best.collective else "")
    explanation = f"{name}: {best.exposed_s / best.time_s:.0%} of the step is exposed communication"
    too_large = [row.strategy for row in rows if row.fits is False]
    if too_large:
        explanation += f"; {', '.join(too_large)} would not fit"
    if len(rows) == 1 or not rows[1].fits:
        return explanation
    second = rows[1]
    difference = second.time_s / best.time_s - 1
    if difference <= 0:
        return f"{explanation}; {second.strategy} is {-difference:.1%} faster, within the uncertainty, but less simple"
    explanation += f"; {second.strategy} takes {difference:.1%} longer, limited by {second.limited_by}"
    reversed_clusters = _clusters_with_reversed_order(best, second)
    for cluster in reversed_clusters:
        explanation += f"; on {cluster} cluster {second.strategy} is faster"
    if reversed_clusters:
        explanation += f": {best.strategy} and {second.strategy} are equal within the uncertainty"
    return explanation


def _clusters_with_reversed_order(best: ScaleRow, second: ScaleRow) -> list[str]:
    """Return the clusters, ``a better`` or ``a worse``, on which the second strategy is faster.

    Both strategies would run on the same cluster, so that the ends of their intervals are compared in pairs.
    """
    if best.cluster_interval is None or second.cluster_interval is None:
        return []
    ends = zip(("a better", "a worse"), best.cluster_interval, second.cluster_interval)
    return [cluster for cluster, best_s, second_s in ends if second_s < best_s]

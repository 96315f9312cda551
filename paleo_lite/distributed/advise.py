"""Advice: every strategy and collective tried for a number of devices, the best named, and why."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from ..errors import BadValue
from ..timing.memory import usable_bytes
from .clusters import Cluster
from .collectives import COLLECTIVES
from .job import Job, Settings, Split
from .links import Topology
from .parallel_3d import all_splits
from .scale import NO_WORKER, over_what_runs, scale, step_of
from .strategies import STRATEGIES
from .table import Budget, ScaleRow

NEAR = 0.02


class Advice(NamedTuple):
    """What was tried and what came of it.

    Attributes
    ----------
    rows : list of ScaleRow
        Per strategy the fastest collective; what fits first, fastest first.
    why : str
        A sentence on the first.
    refused : dict of str to str
        Strategies that are impossible here, and why.
    """

    rows: list[ScaleRow]
    why: str
    refused: dict[str, str]


def advise(
    job: Job,
    topology: Topology,
    workers: int,
    batch_size: int,
    *,
    scaling: str = "weak",
    settings: Settings | None = None,
    budget: Budget | None = None,
    collectives: Sequence[str] = (),
    cluster: Cluster | None = None,
) -> Advice:
    """Try all strategies and collectives on a number of devices.

    Bounds are not plans, and butterfly mixing does not exchange everything: both are left out. Where two strategies are
    within 2% of each other the one listed earlier, which is the simpler one, comes first.

    Parameters
    ----------
    job, topology, batch_size, scaling, budget, cluster
        As for `scale`.
    settings : Settings, optional
        Its collective, where it has one, is the only one tried.
    collectives : sequence of str
        The ones to try; without any all that apply.

    Raises
    ------
    BadValue
        If no strategy is possible.
    """
    settings = settings or Settings()
    if job.workload.network.blocks and workers > 1:
        return _of_splits(job, topology, workers, batch_size, scaling, settings, budget, cluster)
    asked = [settings.collective] if settings.collective else list(collectives)
    fastest: list[ScaleRow] = []
    refused: dict[str, str] = {}
    for name, strategy in STRATEGIES.items():
        if strategy.is_bound or strategy.in_blocks:
            continue
        known = strategy.collectives
        tried = [way for way in (asked or known) if way in known or way not in COLLECTIVES] if known else [None]
        if not tried:
            refused[name] = f"does not exchange by {', '.join(asked)}"
        rows: list[ScaleRow] = []
        for collective in tried if workers > 1 else [None]:
            one = msgspec.structs.replace(settings, collective=collective)
            try:
                rows += scale(
                    job, topology, [workers], batch_size, scaling=scaling, strategy=name, settings=one, budget=budget,
                    cluster=cluster,
                )  # fmt: skip
            except BadValue as error:
                refused[name] = str(error)
                break
        if rows:
            fastest.append(min(rows, key=lambda row: row.time_s))
    if not fastest:
        raise BadValue("no strategy is possible: " + "; ".join(dict.fromkeys(refused.values())))
    if all(any(note.startswith(NO_WORKER) for note in row.notes) for row in fastest if row.fits):
        fastest = over_what_runs(fastest)  # all over the simplest
    fastest = _ranked(fastest)
    return Advice(fastest, _why(fastest, job), refused)


SHOWN = 6
"""Splits that advice shows: the best, and the five next."""


def _of_splits(
    job: Job, topology: Topology, workers: int, batch_size: int, scaling: str, settings: Settings,
    budget: Budget | None, cluster: Cluster | None,
) -> Advice:  # fmt: skip
    """Every split of a network of equal blocks, ranked without the cluster's interval; the best of them with it."""
    machine, total = topology.with_workers(workers), batch_size * (workers if scaling == "weak" else 1)
    tried: list[tuple[float, Split]] = []
    reasons: dict[str, str] = {}
    too_large = 0
    for split in [settings.split] if settings.split else all_splits(job.workload.network, machine):
        try:
            step = step_of(job, machine, msgspec.structs.replace(settings, split=split), total, "together")
        except BadValue as error:
            reasons[str(error)] = ""
            continue
        if step.memory_bytes is not None and step.memory_bytes <= usable_bytes(job.machine.device):
            tried.append((float(step.time_s), split))
        else:
            too_large += 1
    if not tried:
        why = f"{too_large} do not fit into memory" if too_large else next(iter(reasons), "there is none")
        raise BadValue(f"no split is possible: {why}")
    tried.sort(key=lambda pair: pair[0])
    rows = []
    for _, split in tried[: 2 * SHOWN]:  # on a cluster as it is expected the order may be another
        one = msgspec.structs.replace(settings, split=split)
        row = scale(
            job, topology, [workers], batch_size, scaling=scaling, strategy="together", settings=one, budget=budget,
            cluster=cluster,
        )[0]  # fmt: skip
        notes = tuple(note for note in row.notes[1:] if not note.startswith(NO_WORKER))
        rows.append(msgspec.structs.replace(row, strategy=row.notes[0], collective="", notes=notes))
    rows = sorted(rows, key=lambda row: row.time_s)[:SHOWN]
    why = f"{rows[0].strategy}: {rows[0].exposed_s / rows[0].time_s:.0%} of the step waits for exchanges; "
    why += f"the best of {len(tried)} splits that fit, {too_large} do not"
    return Advice(rows, why, {})


def _ranked(rows: list[ScaleRow]) -> list[ScaleRow]:
    """What fits first, then by throughput; of those within 2% of the fastest the simplest first."""
    ordered = sorted(rows, key=lambda row: (not row.fits, -row.throughput_per_s))
    first = ordered[0]
    places = {name: place for place, name in enumerate(STRATEGIES)}
    near = [row for row in ordered if row.fits == first.fits and row.time_s <= first.time_s * (1 + NEAR)]
    near.sort(key=lambda row: places[row.strategy])
    return near + [row for row in ordered if row not in near]


def _why(rows: list[ScaleRow], job: Job) -> str:
    best = rows[0]
    if not best.fits:
        return (
            f"no strategy fits into the memory of {job.machine.device.name}: "
            "use smaller batches, checkpointing or more devices"
        )
    named = best.strategy + (f" with {best.collective}" if best.collective else "")
    because = f"{best.exposed_s / best.time_s:.0%} of the step waits for exchanges"
    losers = [row.strategy for row in rows if row.fits is False]
    if losers:
        because += f"; {', '.join(losers)} would not fit"
    if len(rows) == 1 or not rows[1].fits:
        return f"{named}: {because}"
    second = rows[1]
    gap = second.time_s / best.time_s - 1
    if gap <= 0:
        return f"{named}: {because}; {second.strategy} cannot be told apart from it, {-gap:.1%} faster and less simple"
    said = f"{named}: {because}; {second.strategy} takes {gap:.1%} longer, limited by {second.limited_by}"
    turned = _reversed(best, second)
    apart = f": {best.strategy} and {second.strategy} cannot be told apart" if turned else ""
    return said + "".join(f"; on {which} cluster {second.strategy} is faster" for which in turned) + apart


def _reversed(best: ScaleRow, second: ScaleRow) -> list[str]:
    """On which clusters the second is faster: both would run on the same one, so that their ends compare in pairs."""
    if best.cluster_interval is None or second.cluster_interval is None:
        return []
    pairs = zip(("a better", "a worse"), best.cluster_interval, second.cluster_interval)
    return [which for which, first_s, second_s in pairs if second_s < first_s]

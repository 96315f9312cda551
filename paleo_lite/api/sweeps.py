"""Whole design spaces: `sweep` and `best`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import msgspec

from ..architectures import network_names
from ..calibration.choose import choose_model
from ..counting import PHASES
from ..distributed.collectives import COLLECTIVES
from ..errors import BadValue
from ..machines import list_devices
from ..sweeps.best import Best, find_best
from ..sweeps.run import Sweep, run_sweep
from ..sweeps.space import AUTOMATIC, ROWS_UNASKED, Space, parse_names, parse_numbers
from ..units import PRECISION_BYTES, parse_quantity
from .question import Paths, asked, paths_of

Names = str | Sequence[str]
"""Names, or one text with commas; ``"all"`` where there is a list of them."""

Numbers = str | int | Sequence[int]
"""Numbers, one, or a range: ``"1,2,4"``, ``"1:1024:x2"``."""


class _Written(msgspec.Struct, frozen=True):
    networks: Names
    gpus: Names
    output: str | Path


class SweepQuestion(_Written, frozen=True, kw_only=True):
    """What `sweep` is asked; see there."""

    precisions: Names = "fp32"
    phases: Names = "inference"
    batch_sizes: Numbers = 1
    sequence_lengths: Numbers = ()
    time_models: Names = AUTOMATIC
    ppp: float | None = None
    workers: Numbers = 1
    strategies: Names = "data"
    scalings: Names = "strong"
    links: Names = ()
    collectives: Names = ()
    optimizer: str = "sgd"
    samples: float | str = 1e6
    price: float | str | None = None
    power: float | str | None = None
    hardware_files: Paths = ()
    force: bool = False
    yes: bool = False
    dry_run: bool = False
    jobs: int | None = None
    scheduler: str | None = None
    on_done: Callable[[int, int], None] | None = None


@partial(asked, SweepQuestion)
def sweep(question: SweepQuestion) -> Sweep | Space:
    """Predict every combination of networks, devices, batch sizes, ... into a file.

    What is infeasible is kept with its reason. What is interrupted goes on from where it was: give the same call.

    Parameters
    ----------
    networks, gpus, precisions, phases : names
        A sequence, a text with commas, or ``"all"``.
    output : path
        ``.parquet`` or ``.csv``; `force` replaces one that is there.
    batch_sizes, workers : numbers
        A number, a sequence, or a range such as ``"1:1024:x2"``. A batch size is that of all workers together, or per
        worker for weak scaling.
    sequence_lengths : numbers
        Tokens of a sequence, of networks that read them: shipped, from a config, or exported for many lengths. Without
        any, as many as each network says. In ``decode`` the tokens in the cache.
    time_models : names
        ``auto`` (what `paleo_lite.predict` takes), or of `paleo_lite.timing.TIME_MODELS`.
    ppp : float, optional
        For the model ``ppp``.
    strategies, scalings, links, collectives : names
        How several workers share the work; without collectives the fastest.
    optimizer : str
        Update rule of training.
    samples : float or str
        What hours, cost and energy are for.
    price, power : float or str, optional
        USD per hour and watts of one device, in place of those on record.
    hardware_files : path, or sequence of paths
    yes : bool
        Run also what has more combinations than `paleo_lite.sweeps.space.ROWS_UNASKED`.
    dry_run : bool
        Only say how many combinations there are.
    jobs : int, optional
        Processes, one per core without it.
    scheduler : str, optional
        A Dask scheduler's address, whose workers compute.
    on_done : callable, optional
        Called with the number of chunks done and of all.

    Returns
    -------
    Sweep, or for a dry run Space

    Raises
    ------
    PaleoError
        One of its classes: an impossible space, an output that is there already, a missing extra.
    """
    further, workers = paths_of(question.hardware_files), parse_numbers(question.workers, "workers")
    if question.links and workers == (1,):
        raise BadValue("--links join several workers: give --workers, such as --workers 1,2,4,8")
    lengths = parse_numbers(question.sequence_lengths, "sequence lengths") if question.sequence_lengths else (None,)
    collectives = parse_names(question.collectives, "collectives", list(COLLECTIVES)) if question.collectives else ("",)
    space = Space(
        networks=parse_names(question.networks, "networks", network_names()),
        gpus=parse_names(question.gpus, "GPUs", [device.id for device in list_devices(further)]),
        precisions=parse_names(question.precisions, "precisions", list(PRECISION_BYTES)),
        phases=parse_names(question.phases, "phases", list(PHASES)),
        batch_sizes=parse_numbers(question.batch_sizes, "batch sizes"),
        sequence_lengths=lengths,
        time_models=parse_names(question.time_models, "time models"),
        workers=workers,
        strategies=parse_names(question.strategies, "strategies"),
        scalings=parse_names(question.scalings, "scalings"),
        links=parse_names(question.links, "links") if question.links else ("",),
        collectives=collectives,
        ppp=question.ppp,
        optimizer=question.optimizer,
        samples=parse_quantity(question.samples, ""),
        price_usd_per_h=None if question.price is None else parse_quantity(question.price, "USD/h"),
        power_w=None if question.power is None else parse_quantity(question.power, "W"),
        hardware_files=tuple(str(path.absolute()) for path in further),
    ).resolved()
    space.check()
    if question.dry_run:
        return space
    if space.size > ROWS_UNASKED and not question.yes:
        raise BadValue(
            f"the sweep has {space.size:,} combinations ({space.describe()}), which take about {space.hours():,.3g} "
            f"core hours and {space.gigabytes():,.3g} GB: narrow it, or say --yes"
        )
    return run_sweep(
        space, Path(question.output), choose_model, jobs=question.jobs, scheduler=question.scheduler,
        force=question.force, progress=question.on_done,
    )  # fmt: skip


def best(
    file: str | Path,
    *,
    minimise: str | None = None,
    maximise: str | None = None,
    pareto: Names = (),
    where: str | None = None,
    bounds: bool = False,
    top: int = 10,
    sample: int = 0,
) -> Best:
    """Find the best rows of a sweep's file: of those that are feasible, and forecasts.

    Parameters
    ----------
    file : path
    minimise, maximise : str, optional
        A column: ``cost``, ``time_s``, ``hours``, ``throughput_per_s``, ...
    pareto : names
        Columns of a Pareto front: rows that no other beats in all of them.
    where : str, optional
        A condition, such as ``"time_s < 0.1 and (gpu == k80 or workers >= 4)"``.
    bounds : bool
        Rank bounds of the data sheet among forecasts, too.
    top : int
        How many rows at most.
    sample : int
        How many of the other rows a chart shows behind a front.

    Returns
    -------
    Best

    Raises
    ------
    PaleoError
        One of its classes: not a sweep's file, an unknown column, no row that fits.
    """
    columns = parse_names(pareto, "columns") if pareto else ()
    return find_best(
        Path(file), minimise=minimise, maximise=maximise, where=where, pareto=columns, bounds=bounds, top=top,
        sample=sample,
    )  # fmt: skip

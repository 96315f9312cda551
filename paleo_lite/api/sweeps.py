"""Public functions `sweep` and `best`: predictions of all combinations of a design space, and its best rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from ..architectures import network_names
from ..calibration.choose import choose_model
from ..counting import PHASES
from ..distributed.collectives import COLLECTIVES
from ..distributed.strategies import resolve_strategy
from ..errors import BadValue
from ..machines import list_devices
from ..sweeps.best import Best, find_best
from ..sweeps.run import Sweep, run_sweep
from ..sweeps.space import AUTOMATIC, MAX_UNCONFIRMED_ROWS, Space, parse_names, parse_numbers
from ..units import PRECISION_BYTES, parse_quantity
from .arguments import Paths, to_paths

Names = str | Sequence[str]
"""A sequence of names, or a text of names separated by commas; ``"all"`` selects all names of a known list."""

Numbers = str | int | Sequence[int]
"""An integer, a sequence of integers, or a text such as ``"1,2,4"`` or ``"1:1024:x2"``."""


def sweep(
    networks: Names,
    gpus: Names,
    output: str | Path,
    *,
    precisions: Names = "fp32",
    phases: Names = "inference",
    batch_sizes: Numbers = 1,
    sequence_lengths: Numbers | None = None,
    time_models: Names = AUTOMATIC,
    ppp: float | None = None,
    workers: Numbers = 1,
    strategies: Names = "data",
    scalings: Names = "strong",
    links: Names = (),
    collectives: Names = (),
    optimizer: str = "sgd",
    samples: float | str = 1e6,
    price: float | str | None = None,
    power: float | str | None = None,
    hardware_files: Paths = (),
    force: bool = False,
    yes: bool = False,
    dry_run: bool = False,
    jobs: int | None = None,
    scheduler: str | None = None,
    on_done: Callable[[int, int], None] | None = None,
) -> Sweep | Space:
    """Predict all combinations of networks, devices, batch sizes and other parameters, and write them to a file.

    The row of an infeasible combination states the reason. To resume an interrupted sweep, call the function again with
    the same arguments.

    Parameters
    ----------
    networks, gpus, precisions, phases : names
        A sequence of names, a text with commas, or ``"all"``.
    output : path
        ``.parquet`` or ``.csv`` file; an existing file is replaced only with `force`.
    batch_sizes, workers : numbers
        An integer, a sequence, or a range such as ``"1:1024:x2"``. The batch size is the global one for strong scaling
        and per worker for weak scaling.
    sequence_lengths : numbers, optional
        Tokens per sequence; in phase ``decode``, tokens in the KV cache (default: the length of each network). Valid
        for language models that are shipped, described by a config, or exported for several lengths.
    time_models : names
        ``default`` (as chosen by `paleo_lite.predict`) or names of `paleo_lite.timing.TIME_MODELS`.
    ppp : float, optional
        Platform percent of peak as a fraction, for the time model ``ppp``.
    strategies, scalings, links, collectives : names
        Parallelism, scaling, links between workers, and collectives (default: the fastest), as for `paleo_lite.scale`.
    optimizer : str
        Optimizer of training.
    samples : float or str
        Number of samples that hours, cost and energy refer to.
    price, power : float or str, optional
        US dollars per hour and watts of one device, instead of its recorded price and the power model.
    hardware_files : path, or sequence of paths
        TOML files of additional devices.
    force : bool
        Replace an existing output file.
    yes : bool
        Run even if there are more than `paleo_lite.sweeps.space.MAX_UNCONFIRMED_ROWS` combinations.
    dry_run : bool
        Return the design space without running the sweep.
    jobs : int, optional
        Number of processes (default: one per core).
    scheduler : str, optional
        Address of a Dask scheduler, such as ``tcp://host:8786``; the sweep runs on its workers.
    on_done : callable, optional
        Function that is called with the number of completed chunks and the total number of chunks.

    Returns
    -------
    Sweep, or Space for a dry run

    Raises
    ------
    PaleoError
        If a name is unknown, the output file exists, the sweep is too large, or an extra is missing.
    """
    hardware_paths = to_paths(hardware_files)
    worker_counts = parse_numbers(workers, "workers")
    if links and worker_counts == (1,):
        raise BadValue("`--link` needs several workers: give `--workers`, such as `--workers 1,2,4,8`")
    if sequence_lengths:
        lengths: tuple[int | None, ...] = parse_numbers(sequence_lengths, "sequence lengths")
    else:
        lengths = (None,)
    strategy_names = tuple(resolve_strategy(name) for name in parse_names(strategies, "strategies"))
    space = Space(
        networks=parse_names(networks, "networks", network_names()),
        gpus=parse_names(gpus, "GPUs", [device.id for device in list_devices(hardware_paths)]),
        precisions=parse_names(precisions, "precisions", list(PRECISION_BYTES)),
        phases=parse_names(phases, "phases", list(PHASES)),
        batch_sizes=parse_numbers(batch_sizes, "batch sizes"),
        sequence_lengths=lengths,
        time_models=parse_names(time_models, "time models"),
        workers=worker_counts,
        strategies=strategy_names,
        scalings=parse_names(scalings, "scalings"),
        links=parse_names(links, "links") if links else ("",),
        collectives=parse_names(collectives, "collectives", list(COLLECTIVES)) if collectives else ("",),
        ppp=ppp,
        optimizer=optimizer,
        samples=parse_quantity(samples, ""),
        price_usd_per_h=None if price is None else parse_quantity(price, "USD/h"),
        power_w=None if power is None else parse_quantity(power, "W"),
        hardware_files=tuple(str(path.absolute()) for path in hardware_paths),
    ).resolve_names()
    space.check()
    if dry_run:
        return space
    if space.size > MAX_UNCONFIRMED_ROWS and not yes:
        raise BadValue(
            f"the sweep has {space.size:,} combinations ({space.describe()}), which take about {space.hours():,.3g} "
            f"core hours and {space.gigabytes():,.3g} GB: reduce it, or confirm with `--yes`"
        )
    return run_sweep(space, Path(output), choose_model, jobs=jobs, scheduler=scheduler, force=force, progress=on_done)


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
    """Find the best feasible rows of a sweep, or its Pareto front.

    Parameters
    ----------
    file : path
        Output file of `sweep`.
    minimise, maximise : str, optional
        Column to minimise or maximise, such as ``cost``, ``time_s``, ``hours`` or ``throughput_per_s``.
    pareto : names
        Columns of a Pareto front: rows that no other row dominates in all of these columns.
    where : str, optional
        Filter condition, such as ``"time_s < 0.1 and (gpu == k80 or workers >= 4)"``.
    bounds : bool
        Include rows with times that are lower bounds (default: rank forecasts only).
    top : int
        Maximum number of rows.
    sample : int
        Number of further rows that a chart shows as background.

    Returns
    -------
    Best

    Raises
    ------
    PaleoError
        If the file is not the output of a sweep, a column is unknown, or no row matches.
    """
    columns = parse_names(pareto, "columns") if pareto else ()
    return find_best(
        Path(file),
        minimise=minimise,
        maximise=maximise,
        where=where,
        pareto=columns,
        bounds=bounds,
        top=top,
        sample=sample,
    )

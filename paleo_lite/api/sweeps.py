"""Public functions `sweep` and `best`: predictions of all combinations of a design space, and its best rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

from ..architectures import network_names
from ..architectures.pipelines.sampling import find_pipeline
from ..calibration.choose import choose_model
from ..counting import PHASES
from ..distributed.collectives import COLLECTIVES
from ..distributed.strategies import resolve_strategy
from ..errors import BadValue
from ..machines import find_device, list_devices
from ..machines.prices import CHEAPEST, find_cloud_name
from ..machines.registry import parse_power_limit
from ..serving.requests import parse_rate
from ..sweeps.best import Best, find_best
from ..sweeps.pictures import PictureSpace
from ..sweeps.run import AnySpace, Sweep, run_sweep
from ..sweeps.serving import ServingSpace
from ..sweeps.space import AUTOMATIC, MAX_UNCONFIRMED_ROWS, Space, parse_names, parse_numbers
from ..timing.budget import check_one_price, parse_price
from ..timing.energy import with_power_limit
from ..timing.facility import make_facility
from ..units import PRECISION_BYTES, parse_quantity
from .arguments import Paths, to_paths
from .prediction import predict
from .serve import serve

Names = str | Sequence[str]
"""A sequence of names, or a text of names separated by commas; ``"all"`` selects all names of a known list."""

Rates = str | float | Sequence[float]
"""A number of requests per second, a sequence, or a text such as ``"2,5,10"``."""

Powers = str | float | Sequence[float | str]
"""A number of watts, a sequence of powers, or a text such as ``"150W,200W"``."""

Numbers = str | int | Sequence[int]
"""An integer, a sequence of integers, or a text such as ``"1,2,4"`` or ``"1:1024:x2"``."""


def sweep(
    networks: Names,
    gpus: Names,
    output: str | Path,
    *,
    precisions: Names | None = None,
    phases: Names = "inference",
    batch_sizes: Numbers = 1,
    sequence_lengths: Numbers | None = None,
    power_limits: Powers | None = None,
    clocks: Names | None = None,
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
    price_of: str | None = None,
    power: float | str | None = None,
    rates: Rates | None = None,
    concurrencies: Numbers | None = None,
    tensor: Numbers | None = None,
    expert_parallel: Numbers | None = None,
    attention_data_parallel: Numbers | None = None,
    expert_load: str | None = None,
    pipeline: Numbers | None = None,
    replicas: Numbers | None = None,
    weights: Names | None = None,
    kv_cache: str | None = None,
    input_tokens: int | str | None = None,
    output_tokens: int | str | None = None,
    policy: str | None = None,
    num_requests: int | None = None,
    seed: int | None = None,
    image_sizes: Names | None = None,
    steps: Numbers | None = None,
    frames: Numbers | None = None,
    ulysses: Numbers | None = None,
    ring: Numbers | None = None,
    executions: Names | None = None,
    offloads: Names | None = None,
    hardware_files: Paths = (),
    force: bool = False,
    yes: bool = False,
    dry_run: bool = False,
    jobs: int | None = None,
    scheduler: str | None = None,
    on_done: Callable[[int, int], None] | None = None,
) -> Sweep | AnySpace:
    """Predict all combinations of networks, devices, batch sizes and other parameters, and write them to a file.

    The row of an infeasible combination states the reason. To resume an interrupted sweep, call the function again with
    the same arguments.

    Parameters
    ----------
    networks, gpus, precisions, phases : names
        A sequence of names, a text with commas, or ``"all"``. The default precision is fp32, of servers bf16.
    output : path
        ``.parquet`` or ``.csv`` file; an existing file is replaced only with `force`.
    batch_sizes, workers : numbers
        An integer, a sequence, or a range such as ``"1:1024:x2"``. The batch size is the global one for strong scaling
        and per worker for weak scaling.
    sequence_lengths : numbers, optional
        Tokens per sequence; in phase ``decode``, tokens in the KV cache (default: the length of each network). Valid
        for language models that are shipped, described by a config, or exported for several lengths.
    power_limits : powers, optional
        Power limits of every device, such as ``"300W"``, ``"150W,200W"`` or numbers of watts (default: that of the data
        sheet, which a higher limit does not change).
    clocks : names, optional
        Clocks of every device: ``"base"``, ``"boost"`` or locked ones, ``"1.2GHz,1.5GHz"`` (default: those of the data
        files).
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
    price_of : str, optional
        Cloud whose prices are used, ``"AWS"`` or ``"cheapest"``; costs on devices that it does not list are unknown.
    rates : number, sequence of numbers, or str, optional
        Requests per second: the sweep simulates servers of language models, as `paleo_lite.serve` does, and the
        parameters of steps (from `phases` to `collectives`, and `power`) do not apply.
    concurrencies : numbers, optional
        The same with this many users, each of whom sends a request when the previous one is answered.
    tensor, pipeline, replicas : numbers, optional
        Devices of a stage, pipeline stages of a replica, and replicas of a server.
    expert_parallel, attention_data_parallel : numbers, optional
        Groups of the devices of a stage that divide the experts, and that compute attention for sequences of their own;
        1 by default. Values that do not divide the devices give rows with the reason.
    weights : names, optional
        Formats of the weights of a server; by default the precision.
    expert_load, kv_cache, input_tokens, output_tokens, policy, num_requests, seed
        As for `paleo_lite.serve`.
    image_sizes, executions, offloads : names, optional
        For pipelines for pictures and videos: sizes such as ``"1024,1024x768"``, executions, and placements of
        parameters. `batch_sizes` are then pictures or videos in a batch, and `samples` those that hours, cost and
        energy refer to.
    steps, frames, ulysses, ring : numbers, optional
        The same: denoising steps, frames of a video, and devices that split the sequence.
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
    Sweep, or Space, ServingSpace or PictureSpace for a dry run

    Raises
    ------
    PaleoError
        If a name is unknown, the output file exists, the sweep is too large, or an extra is missing.
    """
    hardware_paths = to_paths(hardware_files)
    check_one_price(price, price_of)
    if price_of is not None and price_of != CHEAPEST:
        find_cloud_name(price_of)  # raises UnknownName
    server_options = {
        "--tensor": tensor,
        "--expert-parallel": expert_parallel,
        "--attention-data-parallel": attention_data_parallel,
        "--expert-load": expert_load,
        "--pipeline": pipeline,
        "--replicas": replicas,
        "--weights": weights,
        "--kv-cache": kv_cache,
        "--input-tokens": input_tokens,
        "--output-tokens": output_tokens,
        "--engine": policy,
        "--num-requests": num_requests,
        "--seed": seed,
    }
    picture_options = {
        "--image-size": image_sizes,
        "--steps": steps,
        "--frames": frames,
        "--ulysses": ulysses,
        "--ring": ring,
        "--execution": executions,
        "--offload": offloads,
    }
    step_options = {
        "--phase": phases != "inference",
        "--batch-size": str(batch_sizes) != "1",
        "--sequence-length": sequence_lengths is not None,
        "--time-model": time_models != AUTOMATIC,
        "--ppp": ppp is not None,
        "--workers": str(workers) != "1",
        "--strategy": strategies != "data",
        "--scaling": scalings != "strong",
        "--collective": bool(collectives),
        "--power": power is not None,
    }
    not_of_pictures = {
        **step_options,
        "--batch-size": False,
        "--clock": clocks is not None,
        "--link": bool(links),
        "--optimizer": optimizer != "sgd",
    }
    shared: dict[str, Any] = {
        "gpus": parse_names(gpus, "GPUs", [device.id for device in list_devices(hardware_paths)]),
        "power_limits_w": (None,) if power_limits is None else _parse_each(power_limits, parse_power_limit),
        "price_usd_per_h": None if price is None else parse_price(price),
        "price_of": price_of,
        "hardware_files": tuple(str(path.absolute()) for path in hardware_paths),
    }
    space: AnySpace
    answer: Callable[..., Any]
    first_network = parse_names(networks, "networks")[0]
    if find_pipeline(first_network) is not None:
        of_servers = {**server_options, "--weights": None, "--rate": rates, "--concurrency": concurrencies}
        _refuse({option: value is not None for option, value in of_servers.items()}, "pictures and videos")
        _refuse(not_of_pictures, "pictures and videos")
        space = PictureSpace(
            networks=parse_names(networks, "networks"),
            precisions=parse_names("bf16" if precisions is None else precisions, "precisions", list(PRECISION_BYTES)),
            weights=parse_names(weights, "weights") if weights else ("",),
            executions=("eager",) if executions is None else parse_names(executions, "--execution"),
            offloads=("none",) if offloads is None else parse_names(offloads, "--offload"),
            image_sizes=(None,) if image_sizes is None else parse_names(image_sizes, "--image-size"),
            batch_sizes=parse_numbers(batch_sizes, "batch sizes"),
            steps=(None,) if steps is None else parse_numbers(steps, "--steps"),
            frames=(None,) if frames is None else parse_numbers(frames, "--frames"),
            ulysses=parse_numbers(ulysses or 1, "--ulysses"),
            ring=parse_numbers(ring or 1, "--ring"),
            samples=parse_quantity(samples, ""),
            **shared,
        ).resolve_names()
        answer = predict
    elif rates is None and concurrencies is None:
        _refuse_options_of_others(server_options, picture_options)
        space = Space(
            networks=parse_names(networks, "networks", network_names()),
            clocks=parse_names(clocks, "clocks") if clocks else (None,),
            precisions=parse_names("fp32" if precisions is None else precisions, "precisions", list(PRECISION_BYTES)),
            phases=parse_names(phases, "phases", list(PHASES)),
            batch_sizes=parse_numbers(batch_sizes, "batch sizes"),
            sequence_lengths=parse_numbers(sequence_lengths, "sequence lengths") if sequence_lengths else (None,),
            time_models=parse_names(time_models, "time models"),
            workers=parse_numbers(workers, "workers"),
            strategies=tuple(resolve_strategy(name) for name in parse_names(strategies, "strategies")),
            scalings=parse_names(scalings, "scalings"),
            links=parse_names(links, "links") if links else ("",),
            collectives=parse_names(collectives, "collectives", list(COLLECTIVES)) if collectives else ("",),
            ppp=ppp,
            optimizer=optimizer,
            samples=parse_quantity(samples, ""),
            power_w=None if power is None else parse_quantity(power, "W"),
            **shared,
        ).resolve_names()
        answer = choose_model
    else:
        _refuse(step_options, "servers")
        _refuse({option: value is not None for option, value in picture_options.items()}, "servers")
        space = ServingSpace(
            networks=parse_names(networks, "networks"),
            clocks=parse_names(clocks, "clocks") if clocks else (None,),
            precisions=parse_names("bf16" if precisions is None else precisions, "precisions"),
            weights=parse_names(weights, "weights") if weights else ("",),
            tensor=parse_numbers(tensor or 1, "tensor degrees"),
            expert_parallel=parse_numbers(expert_parallel or 1, "expert-parallel degrees"),
            attention_data_parallel=parse_numbers(attention_data_parallel or 1, "attention-data-parallel degrees"),
            expert_load=expert_load or "uniform",
            pipeline=parse_numbers(pipeline or 1, "pipeline degrees"),
            replicas=parse_numbers(replicas or 1, "replicas"),
            rates=(None,) if rates is None else _parse_each(rates, parse_rate),
            concurrencies=(None,) if concurrencies is None else parse_numbers(concurrencies, "users"),
            input_tokens="1024" if input_tokens is None else str(input_tokens),
            output_tokens="256" if output_tokens is None else str(output_tokens),
            kv_cache=kv_cache,
            policy=policy or "vllm",
            num_requests=num_requests,
            seed=seed or 0,
            link=_single_link(links),
            **shared,
        ).resolve_names()
        answer = serve
    space.check()
    for gpu, limit_w in product(space.gpus, space.power_limits_w):
        if limit_w is not None:
            with_power_limit(find_device(gpu, hardware_paths), limit_w)
    if dry_run:
        return space
    if space.size > MAX_UNCONFIRMED_ROWS and not yes:
        raise BadValue(
            f"the sweep has {space.size:,} combinations ({space.describe()}), which take about {space.hours():,.3g} "
            f"core hours and {space.gigabytes():,.3g} GB: reduce it, or confirm with `--yes`"
        )
    return run_sweep(space, Path(output), answer, jobs=jobs, scheduler=scheduler, force=force, progress=on_done)


def _refuse(given: Mapping[str, bool], kind: str) -> None:
    """Refuse options that do not apply to a kind of sweep."""
    for option, is_given in given.items():
        if is_given:
            hint = ", or `--rate` and `--concurrency`" if kind == "servers" else ""
            raise BadValue(f"`{option}` does not apply to {kind}: leave it out{hint}")


def _refuse_options_of_others(server_options: Mapping[str, Any], picture_options: Mapping[str, Any]) -> None:
    """Refuse the options of servers and of pipelines in a sweep over steps."""
    for option, value in server_options.items():
        if value is not None:
            raise BadValue(f"`{option}` is for servers: give `--rate` or `--concurrency` as well")
    for option, value in picture_options.items():
        if value is not None:
            raise BadValue(f"`{option}` is for pipelines for pictures and videos, such as flux.1-dev")


def _parse_each(
    values: float | str | Sequence[float | str], parse: Callable[[float | str], float]
) -> tuple[float, ...]:
    """Return the parsed values of a single one, of a sequence, or of a text with commas."""
    if isinstance(values, (int, float)):
        return (parse(values),)
    parts = values.split(",") if isinstance(values, str) else values
    return tuple(parse(part) for part in parts)


def _single_link(links: Names) -> str | None:
    """Return the link of all servers; None for the fastest of each device."""
    if not links:
        return None
    names = parse_names(links, "links")
    if len(names) > 1:
        raise BadValue(f"a sweep over servers has one `--link` for all of them (got {', '.join(names)})")
    return names[0]


def best(
    file: str | Path,
    *,
    minimise: str | None = None,
    by: str | None = None,
    maximise: str | None = None,
    pareto: Names = (),
    where: str | None = None,
    bounds: bool = False,
    electricity: float | str | None = None,
    carbon_intensity: float | str | None = None,
    pue: float | None = None,
    host_watts: float | str | None = None,
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
    by : {"joules", "cost"}, optional
        What to minimise: the energy or the cost, in whichever column the sweep has for it.
    pareto : names
        Columns of a Pareto front: rows that no other row dominates in all of these columns.
    where : str, optional
        Filter condition, such as ``"time_s < 0.1 and (gpu == k80 or workers >= 4)"``.
    bounds : bool
        Include rows with times that are lower bounds (default: rank forecasts only).
    electricity, carbon_intensity, pue, host_watts
        As for `predict`: adds the columns ``site_energy_j``, ``electricity_usd`` and ``co2_g`` of the energy in a row.
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
        by=by,
        maximise=maximise,
        where=where,
        pareto=columns,
        bounds=bounds,
        top=top,
        sample=sample,
        facility=make_facility(electricity, carbon_intensity, pue, host_watts),
    )

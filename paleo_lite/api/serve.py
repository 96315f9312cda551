"""`serve`: a language model under traffic: latencies, throughput, saturation, cost and energy."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ..architectures import Network, find_network
from ..architectures.network import SequenceOptions
from ..errors import BadQuantity, BadValue, UnknownName
from ..formats import FORMATS, format_of_weights, split_format
from ..local import LLAMA_CPP
from ..machines import Device, find_device
from ..serving.engine_model import choose_cache_format
from ..timing.facility import make_facility
from ..units import parse_quantity
from .arguments import Paths, to_paths
from .question import Question
from .resolve import resolve_network, resolve_question
from .serve_locally import check_policy, place_locally

if TYPE_CHECKING:
    from ..calibration.store import Calibration
    from ..distributed.links import Topology
    from ..machines import Price
    from ..serving.answers import Serving
    from ..serving.deployment import Deployment
    from ..serving.requests import Lengths, Traffic
    from ..serving.slo import Objective

DEFAULT_REQUESTS = 1000
"""Requests of an open loop."""

REQUESTS_PER_USER = 10
"""Requests of a closed loop per user, as benchmarks send them (InferenceX, aiperf), if `FEWEST_REQUESTS` are fewer."""

FEWEST_REQUESTS = 200
"""Fewest requests of a closed loop, so that percentiles exist."""

TENSOR_DEGREES = (1, 2, 4, 8)
"""Tensor-parallel degrees that `advise` tries."""

PIPELINE_DEGREES = (2, 4)
"""Pipeline degrees that `advise` tries, at the largest tensor degree, on a device on which nothing else fits."""


def serve(
    network: str | Network,
    *,
    gpu: str | Device | Sequence[str] | None = None,
    platform: str | None = None,
    link: str | None = None,
    workers: int | None = None,
    tensor: int | None = None,
    expert_parallel: int | None = None,
    attention_data_parallel: int | None = None,
    expert_load: str = "uniform",
    pipeline: int | None = None,
    replicas: int | None = None,
    prefill_workers: int = 0,
    precision: str = "bf16",
    weights: str | None = None,
    kv_cache: str | None = None,
    input_tokens: int | str = 1024,
    output_tokens: int | str = 256,
    rate: float | str | None = None,
    concurrency: int | None = None,
    requests: str | Path | None = None,
    num_requests: int | None = None,
    arrivals: str = "poisson",
    seed: int = 0,
    policy: str = "vllm",
    max_batched_tokens: int | None = None,
    max_sequences: int | None = None,
    chunked_prefill: int | None = None,
    block_size: int | None = None,
    memory_fraction: float | None = None,
    receive_interval: int | None = None,
    overhead: float | str | None = None,
    prefix_hit_rate: float = 0.0,
    draft_length: int = 0,
    acceptance: float = 0.0,
    draft: str | Network | None = None,
    slo: str | None = None,
    advise: bool = False,
    by: str = "cost",
    price: float | str | None = None,
    price_of: str | None = None,
    electricity: float | str | None = None,
    carbon_intensity: float | str | None = None,
    pue: float | None = None,
    host_watts: float | str | None = None,
    time_model: str | None = None,
    calibration: str | Calibration | None = None,
    clock: str | None = None,
    power_limit: float | str | None = None,
    unit: str | None = None,
    hardware_files: Paths = (),
) -> Serving:
    """Predict latencies, throughput, saturation rate, cost and energy of a language model that serves requests.

    Continuous batching is simulated iteration by iteration on the iteration times of the time model.

    Parameters
    ----------
    network : str or Network
        Language model built from a config, such as ``"llama-3-8b"``.
    gpu : str, Device or sequence of str, optional
        Device; may be omitted if `platform` names it. With `advise` several: ``["h100-sxm", "a100-sxm-80gb"]``.
    platform : str, optional
        Computer that gives device, links and price: ``"p5.48xlarge"``.
    link : str, optional
        Link between the devices of a replica; by default that of the platform, or the fastest link of the device.
    workers : int, optional
        Number of devices; replicas are ``workers / (tensor * pipeline)``.
    tensor : int, optional
        Devices of a stage, by default 1, which divide all matrices among themselves.
    expert_parallel : int, optional
        Groups of the devices of a stage that divide the experts of a mixture among themselves, by default 1.
    attention_data_parallel : int, optional
        Groups of the devices of a stage that compute attention and dense parts for sequences of their own, by default
        1; with as many groups as devices, nothing but the experts is divided.
    expert_load : str
        Distribution of tokens over experts: ``"uniform"``, or ``"power-law:1.2"`` with an exponent
        (`paleo_lite.engines.routing`); the device with the most rows makes all others wait.
    pipeline : int, optional
        Pipeline stages of a replica, by default 1; a replica has ``tensor * pipeline`` devices.
    replicas : int, optional
        Replicas, which take requests in turn; by default as many as `workers` allow, or 1.
    prefill_workers : int
        How many of the replicas compute prompts only, and send keys and values to the others.
    precision : str
        Precision of the arithmetic.
    weights : str, optional
        Format in which matrices are stored, one of `paleo_lite.formats.FORMATS`; by default the precision.
    kv_cache : str, optional
        Format of the KV cache, one of `paleo_lite.formats.FORMATS`; by default the precision, but at least 16 bits.
    input_tokens, output_tokens : int or str
        Tokens of a prompt and of an answer: ``1024``, a normal distribution ``"1024:256"`` (mean and standard
        deviation), or the name of a data set, one of `paleo_lite.serving.requests.DATASETS`.
    rate : float or str, optional
        Requests per second of an open loop; ``"inf"`` sends all requests at once.
    concurrency : int, optional
        Users of a closed loop, each of whom sends a request when the previous one is answered.
    requests : str or Path, optional
        CSV file with the columns ``arrival_s``, ``input_tokens`` and ``output_tokens``, instead of a rate.
    num_requests : int, optional
        Number of requests; by default 1000 per replica, or 10 per user and at least 200.
    arrivals : {"poisson", "fixed"}
        Arrival process of `rate`.
    seed : int
        Seed of arrivals and lengths.
    policy : {"vllm", "vllm-0.13", "vllm-0.7", "vllm-0.5", "tensorrt-llm", "sglang", "sglang-0.3", "llama.cpp"}
        Engine with the defaults of the following options, one of `paleo_lite.serving.engines.ENGINES`.
    max_batched_tokens, max_sequences : int, optional
        Tokens per iteration, and sequences at the same time.
    chunked_prefill : int, optional
        Tokens of prompts per iteration, into which longer prompts are split; 0 for whole prompts.
    block_size : int, optional
        Tokens per block of the KV cache.
    memory_fraction : float, optional
        Fraction of the memory for weights, activations and cache (vLLM, SGLang), or of the free memory for the cache
        (TensorRT-LLM).
    receive_interval : int, optional
        Decoding iterations from one look for new requests to the next (SGLang's ``--scheduler-recv-interval``, and
        ``--num-scheduler-steps`` of vLLM 0.6 and 0.7).
    overhead : float or str, optional
        Time per iteration in which the device waits for scheduler and sampling: ``"1 ms"``.
    prefix_hit_rate : float
        Fraction of every prompt that the prefix cache holds, 0 to 1.
    draft_length : int
        Tokens that speculative decoding drafts per iteration.
    acceptance : float
        Probability that a drafted token is accepted.
    draft : str or Network, optional
        Draft network; by default drafting takes no time on the device, as with n-grams.
    slo : str, optional
        Objectives, such as ``"ttft=500ms,tpot.p99=50ms"`` (p90 unless a percentile is given): the highest rate that
        meets them is computed.
    advise : bool
        Rank devices, tensor degrees, weights and batch limits, of mixtures of experts also expert-parallel and
        attention-data-parallel degrees, with pipelines on devices on which nothing else fits, and find the cheapest
        that meets `slo` at `rate`.
    by : {"cost", "joules"}
        What `advise` ranks by: the cost of a token, or its energy.
    price : float or str, optional
        US dollars per hour of one device; by default that of the platform, or the rental price on record.
    price_of : str, optional
        Cloud whose price of the device is used, ``"AWS"`` or ``"cheapest"``, instead of `price`.
    electricity, carbon_intensity, pue, host_watts
        As for `predict`, for the energy at the meter of a million tokens, its cost and its CO2.
    time_model, calibration, clock, power_limit, unit, hardware_files
        As for `predict`.

    Returns
    -------
    Serving
        With ``latencies``, ``figures``, ``to_dict()``, ``to_frame()``.

    Raises
    ------
    PaleoError
        For an unknown name, an invalid value, or a network that does not fit.

    Examples
    --------
    >>> import paleo_lite as pl
    >>> result = pl.serve("llama-3-8b", gpu="h100-sxm", input_tokens=1024, output_tokens=256, rate=5)
    >>> result.latencies["ttft_s"]["p50"].value < 0.2
    True
    """
    from ..distributed.links import device_link
    from ..engines.routing import parse_expert_load
    from ..machines.prices import choose_price
    from ..serving.answers import answer
    from ..serving.deployment import Deployment, tensor_group
    from ..serving.engines import find_engine, with_fitted_host
    from ..serving.iteration_times import ModelOnDevice
    from ..serving.pipeline import connect_stages
    from ..serving.placement import check_undivided, with_kernels
    from ..serving.requests import parse_lengths
    from ..serving.simulator import Options, Speculation

    precision, weights = split_format(precision, weights)
    _check_ranking(by, advise)
    check_policy(
        policy,
        tensor=tensor,
        pipeline=pipeline,
        expert_parallel=expert_parallel,
        attention_data_parallel=attention_data_parallel,
        expert_load=parse_expert_load(expert_load) or None,
        prefill_workers=prefill_workers,
        draft=draft,
        draft_length=draft_length,
        advise=advise,
        precision=None if format_of_weights(None, precision) is None else precision,
        time_model=time_model,
        calibration=calibration,
        clock=clock,
        unit=unit,
        power_limit=power_limit,
        memory_fraction=memory_fraction,
    )
    inputs = parse_lengths(input_tokens, "--input-tokens", is_input=True)
    outputs = parse_lengths(output_tokens, "--output-tokens", is_input=False)
    rate_per_s = None if rate is None else parse_rate(rate)
    objectives = _parse_objectives(slo, requests)
    cache_format = "f16" if policy == LLAMA_CPP else choose_cache_format(kv_cache, precision)
    price_usd_per_h = _parse_one_price(price, price_of)
    topology, platform_price = _find_topology(platform, link, workers)
    devices = _device_names(gpu, topology, several=advise)
    decoder, draft_decoder = _find_decoder(network), _find_draft(draft, draft_length)
    division = (
        _check_degree(expert_parallel, "--expert-parallel"),
        _check_degree(attention_data_parallel, "--attention-data-parallel"),
    )

    def make_deployment(
        device_name: str | Device,
        tensor_degree: int,
        stages: int,
        replica_count: int,
        weight_format: str | None,
        division: tuple[int, int] = division,
    ) -> Deployment:
        def place(one: Network) -> ModelOnDevice:
            workload, machine, model = resolve_question(
                Question(
                    one,
                    _find_device_under_limit(device_name, hardware_files, power_limit),
                    precision=precision,
                    phase="decode",
                    time_model=time_model,
                    clock=clock,
                    unit=unit,
                    calibration=calibration,
                    weights=weight_format,
                ),
                is_by_layers=stages > 1,
            )
            group = tensor_group(machine.device, tensor_degree, link, topology, division[1])
            stage_link = None if topology is not None or stages == 1 else link or device_link(machine.device)
            connected = connect_stages(stages, tensor_degree, device_link=stage_link, topology=topology)
            placed = ModelOnDevice(workload, machine, model, group, cache_format, connected)
            if workload.engine is None:
                check_undivided(*division, machine.device, stages, parse_expert_load(expert_load))
                return placed
            return with_kernels(
                placed,
                policy,
                experts=division[0],
                attention_data=division[1],
                alpha=parse_expert_load(expert_load),
            )

        on_device = (
            place_locally(decoder, find_device(device_name, to_paths(hardware_files)), weight_format, kv_cache)
            if policy == LLAMA_CPP
            else place(decoder)
        )
        engine = find_engine(
            policy,
            on_device.machine.device,
            max_batched_tokens=max_batched_tokens,
            max_sequences=max_sequences,
            chunked_prefill=chunked_prefill,
            block_tokens=block_size,
            memory_fraction=memory_fraction,
            receive_interval=receive_interval,
            overhead_s=None if overhead is None else parse_quantity(overhead, "s", unit_required=True),
        )
        if overhead is None:
            engine = with_fitted_host(engine, on_device.kernels)
        listing = None
        if price_usd_per_h is None:
            listing = choose_price(on_device.machine.device, price_of, platform_price)
        return Deployment(
            on_device,
            engine,
            replicas=replica_count,
            prefill_workers=prefill_workers if replica_count > 1 else 0,
            options=Options(prefix_hit_rate, Speculation(draft_length, acceptance)),
            draft=None if draft_decoder is None else place(draft_decoder),
            price_usd_per_h=price_usd_per_h if listing is None else listing.usd_per_h,
            listing=listing,
            facility=make_facility(electricity, carbon_intensity, pue, host_watts),
        )

    tensor_degree, stages = _check_degree(tensor, "--tensor"), _check_degree(pipeline, "--pipeline")
    replica_count = _count_replicas(workers, tensor_degree * stages, replicas)
    if prefill_workers and replica_count < 2:
        raise BadValue("`--prefill-workers` needs at least 2 replicas: give `--replicas` or `--workers`")
    if advise:
        return _advise(
            make_deployment,
            [find_device(name, to_paths(hardware_files)) for name in devices],
            inputs,
            outputs,
            precision=precision,
            tensor=tensor,
            pipeline=pipeline,
            division=None if expert_parallel is None and attention_data_parallel is None else division,
            weights=weights,
            topology=topology,
            rate_per_s=rate_per_s,
            concurrency=concurrency,
            objectives=objectives,
            seed=seed,
            num_requests=num_requests,
            arrivals=arrivals,
            by=by,
        )
    deployment = make_deployment(devices[0], tensor_degree, stages, replica_count, weights)
    traffic, description = _make_traffic(
        inputs, outputs, rate_per_s, concurrency, requests, num_requests, arrivals, seed, deployment
    )
    prepared = deployment.prepare(traffic)
    result = answer(prepared, traffic, description)
    return _with_highest_rate(result, prepared, objectives, inputs, outputs, seed) if objectives else result


def _check_ranking(by: str, advise: bool) -> None:
    """Raise an error if there is no such ranking, or nothing to rank."""
    from ..serving.candidates import RANKINGS

    if by not in RANKINGS:
        raise UnknownName("ranking", by, RANKINGS)
    if by != "cost" and not advise:
        raise BadValue("`--by` is for `--advise`, which ranks deployments")


def _find_topology(platform: str | None, link: str | None, workers: int | None) -> tuple[Topology | None, Price | None]:
    """Return the topology of a platform and its price per device; None where it has none."""
    from ..distributed.platforms import Computer, find_platform

    if platform is None:
        return None, None
    if link is not None:
        raise BadValue("give only one of `--link` and `--platform`")
    computer = find_platform(platform)
    price = computer.price_of_device if isinstance(computer, Computer) else None
    return computer.topology(workers or 0), price


def _find_device_under_limit(device: str | Device, hardware_files: Paths, power_limit: float | str | None) -> Device:
    """Return a device, with the requested power limit if there is one."""
    from ..timing.energy import with_power_limit

    found = find_device(device, to_paths(hardware_files))
    return found if power_limit is None else with_power_limit(found, power_limit)


def _parse_objectives(slo: str | None, requests: str | Path | None) -> tuple[Objective, ...]:
    """Return the objectives; they need distributions of lengths, from which requests at other rates are drawn."""
    from ..serving.slo import parse_slo

    if slo is None:
        return ()
    if requests is not None:
        raise BadValue("`--slo` needs distributions of lengths, not `--requests`")
    return parse_slo(slo)


def _parse_one_price(price: float | str | None, price_of: str | None) -> float | None:
    """Return the given price per hour; None if there is none.

    Raises
    ------
    BadValue
        If the price of a cloud is asked for as well.
    """
    from ..timing.budget import check_one_price, parse_price

    check_one_price(price, price_of)
    return None if price is None else parse_price(price)


def parse_rate(rate: float | str) -> float:
    """Return requests per second from a number or a text such as ``"5"``, ``"5/s"`` or ``"inf"``."""
    text = str(rate).strip().removesuffix("/s")
    if text == "inf":
        return math.inf
    try:
        return parse_quantity(text, "")
    except BadQuantity:
        raise BadValue(f"`--rate` must be a number of requests per second or inf (got {rate!r})") from None


def _find_decoder(name: str | Network) -> Network:
    """Return a language model as it computes one token per sequence."""
    if not (isinstance(name, str) and ":" in name):  # a factory or a folder is checked when it is traced
        network = find_network(name) if isinstance(name, str) else name
        if not network.is_language_model:
            raise BadValue(f"`serve` needs a language model that writes text, which {network.name} is not")
    return resolve_network(name, None, (), SequenceOptions(phase="decode"))


def _find_draft(draft: str | Network | None, draft_length: int) -> Network | None:
    """Return the draft network of speculative decoding, if there is one."""
    if draft is None:
        return None
    if not draft_length:
        raise BadValue("`--draft` needs `--draft-length`, the tokens drafted per iteration")
    return _find_decoder(draft)


def _device_names(
    gpu: str | Device | Sequence[str] | None, topology: Topology | None, *, several: bool
) -> list[str | Device]:
    """Return the devices, of which a text may name several, separated by commas."""
    names: list[str | Device]
    if gpu is None:
        names = [topology.device] if topology is not None and topology.device is not None else []
    elif isinstance(gpu, str):
        names = [part.strip() for part in gpu.split(",") if part.strip()]
    elif isinstance(gpu, Device):
        names = [gpu]
    else:
        names = list(gpu)
    if not names:
        raise BadValue("`serve` needs a device: give `--gpu`, or a `--platform` that names it")
    if len(names) > 1 and not several:
        raise BadValue(f"several devices need `--advise` (got {', '.join(map(str, names))})")
    return names


def _check_degree(degree: int | None, option: str) -> int:
    """Return a degree of parallelism, 1 if it is not given."""
    if degree is None:
        return 1
    if isinstance(degree, bool) or not isinstance(degree, int) or degree < 1:
        raise BadValue(f"`{option}` must be an integer >= 1 (got {degree!r})")
    return degree


def _count_replicas(workers: int | None, replica_devices: int, replicas: int | None) -> int:
    """Return the number of replicas of so many devices each."""
    if workers is None:
        return replicas or 1
    if workers % replica_devices:
        raise BadValue(
            f"`--workers` must be a multiple of the devices of a replica, tensor times pipeline degree: "
            f"{replica_devices} (got {workers})"
        )
    if replicas is not None and replicas * replica_devices != workers:
        raise BadValue(
            f"`--workers` must be replicas times tensor times pipeline degree, {replicas * replica_devices} "
            f"(got {workers})"
        )
    return workers // replica_devices


def _make_traffic(
    inputs: Lengths,
    outputs: Lengths,
    rate_per_s: float | None,
    concurrency: int | None,
    requests: str | Path | None,
    num_requests: int | None,
    arrivals: str,
    seed: int,
    deployment: Deployment,
) -> tuple[Traffic, str]:
    """Return the traffic and its description."""
    from ..serving.requests import generate_traffic, read_trace

    if requests is not None:
        if rate_per_s is not None or concurrency is not None or num_requests is not None:
            raise BadValue("`--requests` gives the traffic: leave `--rate`, `--concurrency` and `--num-requests` out")
        path = Path(requests)
        traffic = read_trace(path)
        return traffic, f"{len(traffic):,} requests of {path.name}"
    count = num_requests
    if count is None and concurrency is not None:
        count = max(FEWEST_REQUESTS * deployment.replicas, REQUESTS_PER_USER * concurrency)
    elif count is None:
        count = DEFAULT_REQUESTS * deployment.replicas
    traffic = generate_traffic(
        inputs,
        outputs,
        count=count,
        rate_per_s=rate_per_s,
        concurrency=concurrency,
        arrivals=arrivals,
        seed=seed,
        drift_apart=deployment.engine.mixes_phases,
    )
    # A closed loop begins in the middle of its users' first answers.
    whole = slice(traffic.warm_up if traffic.warm_up < len(traffic) else 0, None)
    mean_input = float(traffic.input_tokens[whole].mean())
    mean_output = float(traffic.output_tokens[whole].mean())
    lengths = f"{mean_input:,.0f} input and {mean_output:,.0f} output tokens"
    if concurrency is not None:
        users = "1 user" if concurrency == 1 else f"{concurrency:,} users"
        return traffic, f"{users}, {lengths}"
    assert rate_per_s is not None
    if math.isinf(rate_per_s):
        return traffic, f"{count:,} requests at once, {lengths}"
    return traffic, f"{rate_per_s:,g} requests/s ({arrivals}), {lengths}"


def _with_highest_rate(
    result: Serving,
    prepared: object,
    objectives: tuple[Objective, ...],
    inputs: Lengths,
    outputs: Lengths,
    seed: int,
) -> Serving:
    """Return the result with the highest rate that meets the objectives."""
    from msgspec import structs

    from ..serving.deployment import Prepared
    from ..serving.slo import highest_rate

    assert isinstance(prepared, Prepared)
    highest = highest_rate(prepared, objectives, inputs, outputs, seed)
    described = [objective.describe() for objective in objectives]
    return structs.replace(result, slo={"objectives": described, "highest_requests_per_s": highest})


def _formats_to_try(weights: str | None, precision: str, device: Device) -> tuple[str | None, ...]:
    """Return the formats of weights that `advise` tries: the given one, or that of the precision, fp8 and nvfp4.

    Formats wider than the precision are left out, and nvfp4 where the device has no peak in fp4.
    """
    if weights is not None:
        return (weights,)
    formats: list[str | None] = [None]
    bits = FORMATS[precision].bits
    if bits > FORMATS["fp8"].bits:
        formats.append("fp8")
    if bits > FORMATS["nvfp4"].bits and any(peak.precision == "fp4" for peak in device.peaks):
        formats.append("nvfp4")
    return tuple(formats)


def _advise(
    make_deployment: Callable[..., Deployment],
    devices: Sequence[Device],
    inputs: Lengths,
    outputs: Lengths,
    *,
    precision: str,
    tensor: int | None,
    pipeline: int | None,
    division: tuple[int, int] | None,
    weights: str | None,
    topology: Topology | None,
    rate_per_s: float | None,
    concurrency: int | None,
    objectives: tuple[Objective, ...],
    seed: int,
    num_requests: int | None,
    arrivals: str,
    by: str,
) -> Serving:
    """Return the answer of the cheapest deployment, with the ranking of all."""
    from functools import partial

    from msgspec import structs

    from ..engines.placed import possible_divisions
    from ..serving.advise import rank_deployments
    from ..serving.answers import answer
    from ..serving.candidates import describe_parallelism

    degrees: tuple[int, ...] = TENSOR_DEGREES if tensor is None else (tensor,)
    if topology is not None:
        degrees = tuple(degree for degree in degrees if degree <= topology.devices_per_node) or degrees

    def attempt(
        device: Device, degree: int, stages: int, weight_format: str | None, pair: tuple[int, int]
    ) -> tuple[str, Callable[[], Deployment]]:
        """Return the description of a deployment of one replica, and the function that makes it."""
        parallelism = describe_parallelism(degree, *pair, stages)
        make = partial(make_deployment, device, degree, stages, 1, weight_format, pair)
        return f"{device.id}, {parallelism}, weights {weight_format or precision}", make

    deployments: dict[str, Callable[[], Deployment]] = {}
    fallbacks: dict[str, dict[str, Callable[[], Deployment]]] = {}
    for device in devices:
        formats = _formats_to_try(weights, precision, device)
        deployments |= dict(
            attempt(device, degree, pipeline or 1, weight_format, division or (1, 1))
            for degree in degrees
            for weight_format in formats
        )
        if pipeline is None:
            fallbacks[device.id] = dict(
                attempt(device, degrees[-1], stages, weight_format, division or (1, 1))
                for stages in PIPELINE_DEGREES
                for weight_format in formats
            )

    def further_divisions(deployment: Deployment) -> dict[str, Callable[[], Deployment]]:
        """Return the same deployment with experts or attention divided in other ways."""
        placed = deployment.on_device
        if placed.kernels is None:
            return {}
        device, weight_format = placed.machine.device, placed.workload.weights
        return dict(
            attempt(device, placed.tensor, placed.pipeline.degree, weight_format, pair)
            for pair in possible_divisions(placed.workload.layers, placed.tensor)
        )

    advice = rank_deployments(
        deployments,
        inputs,
        outputs,
        variants=further_divisions if division is None else None,
        fallbacks=fallbacks,
        objectives=objectives,
        rate_per_s=rate_per_s,
        seed=seed,
        by=by,
    )
    if not advice.candidates:
        raise BadValue(f"no deployment fits: {'; '.join(f'{name}: {why}' for name, why in advice.refused.items())}")
    chosen = advice.best or advice.candidates[0]
    weight_format = None if chosen.weights == precision else chosen.weights
    deployment = make_deployment(
        chosen.gpu,
        chosen.tensor,
        chosen.pipeline,
        chosen.replicas,
        weight_format,
        (chosen.expert_parallel, chosen.attention_data_parallel),
    )
    if rate_per_s is None and concurrency is None:
        concurrency = chosen.batch_limit
    limited = structs.replace(deployment, engine=structs.replace(deployment.engine, max_sequences=chosen.batch_limit))
    traffic, description = _make_traffic(
        inputs, outputs, rate_per_s, concurrency, None, num_requests, arrivals, seed, limited
    )
    notes = []
    if objectives and advice.best is None:
        notes.append("no deployment meets the objectives; shown is the cheapest per token")
    result = answer(limited.prepare(traffic), traffic, description, notes=notes)
    described = {"objectives": [objective.describe() for objective in objectives], "highest_requests_per_s": None}
    return structs.replace(result, advice=advice, slo=described if objectives else None)

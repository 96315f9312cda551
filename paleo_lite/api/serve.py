"""`serve`: a language model under traffic: latencies, throughput, saturation, cost and energy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ..architectures import Network
from ..errors import BadValue, UnknownName
from ..formats import format_of_weights, split_format
from ..machines import Device, Price, find_device
from ..units import parse_quantity
from .arguments import Paths, to_paths

if TYPE_CHECKING:
    from ..calibration.store import Calibration
    from ..distributed.links import Topology
    from ..serving.answers import Serving
    from ..serving.slo import Objective


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
    precision: str | None = None,
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
    sampling: str = "nucleus",
    overhead: float | str | None = None,
    prefix_hit_rate: float = 0.0,
    draft_length: int = 0,
    acceptance: float = 0.0,
    draft: str | Network | None = None,
    slo: str | None = None,
    advise: bool = False,
    by: str = "cost",
    headroom: float = 0.1,
    price: float | str | None = None,
    price_of: str | None = None,
    listings: Mapping[str, Price | None] | None = None,
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
    precision : str, optional
        Precision of the arithmetic; by default bf16, or that of `weights` where the device computes in it.
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
    policy : {"vllm", "tensorrt-llm", "sglang", "llama.cpp", "vllm-0.16", ...}
        Engine with the defaults of the following options, one of `paleo_lite.engines.records.SERVERS`.
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
    sampling : {"nucleus", "greedy"}
        How clients let the server choose tokens: from a nucleus (top-p or top-k, which sorts all logits), as the
        settings of most networks do, or the most likely one, as most clients of benchmarks do. It changes times under
        vLLM, whose host was fitted to servers under both.
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
    from ..engines.records import LOCAL_ENGINES
    from ..engines.routing import parse_expert_load
    from ..serving.answers import answer
    from ..serving.candidates import Criteria
    from ..serving.engine_model import choose_cache_format
    from ..serving.iteration import NUCLEUS, SAMPLINGS
    from ..serving.placement import Division
    from ..serving.products import USUAL_PRECISION
    from ..serving.requests import Demand, parse_lengths, parse_rate
    from ..serving.simulator import SimulationOptions, Speculation
    from ..serving.slo import with_highest_rate
    from ..timing.facility import make_facility
    from .deployments import Deployments, check_policy, find_decoder, find_draft, find_topology

    if precision is not None:
        precision, weights = split_format(precision, weights)
    _check_ranking(by, advise)
    if sampling not in SAMPLINGS:
        raise UnknownName("sampling", sampling, SAMPLINGS)
    if overhead is not None and sampling != NUCLEUS:
        raise BadValue("give only one of sampling and overhead of `--engine-settings`, which includes it")
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
        precision=None if precision is None or format_of_weights(None, precision) is None else precision,
        time_model=time_model,
        calibration=calibration,
        clock=clock,
        unit=unit,
        memory_fraction=memory_fraction,
        sampling=None if sampling == NUCLEUS else sampling,
    )
    demand = Demand(
        parse_lengths(input_tokens, "--input-tokens", is_input=True),
        parse_lengths(output_tokens, "--output-tokens", is_input=False),
        rate_per_s=None if rate is None else parse_rate(rate),
        concurrency=concurrency,
        trace=None if requests is None else Path(requests),
        num_requests=num_requests,
        arrivals=arrivals,
        seed=seed,
    )
    objectives = _parse_objectives(slo, requests)
    price_usd_per_h = _parse_one_price(price, price_of)
    topology, platform_price = find_topology(platform, link, workers)
    devices = _device_names(gpu, topology, several=advise)
    deployments = Deployments(
        decoder=find_decoder(network),
        draft=find_draft(draft, draft_length),
        precision=precision,
        cache_format=choose_cache_format(None if policy in LOCAL_ENGINES else kv_cache, precision or USUAL_PRECISION),
        kv_cache=kv_cache,
        policy=policy,
        sampling=sampling,
        settings={
            "max_batched_tokens": max_batched_tokens,
            "max_sequences": max_sequences,
            "chunked_prefill": chunked_prefill,
            "block_tokens": block_size,
            "memory_fraction": memory_fraction,
            "receive_interval": receive_interval,
            "overhead_s": None if overhead is None else parse_quantity(overhead, "s", unit_required=True),
        },
        expert_load=parse_expert_load(expert_load),
        options=SimulationOptions(prefix_hit_rate, Speculation(draft_length, acceptance)),
        link=link,
        topology=topology,
        price_usd_per_h=price_usd_per_h,
        price_of=price_of,
        listings=listings,
        platform_price=platform_price,
        facility=make_facility(electricity, carbon_intensity, pue, host_watts),
        power_limit=power_limit,
        time_model=time_model,
        calibration=calibration,
        clock=clock,
        unit=unit,
        hardware_files=hardware_files,
    )
    division = Division(
        _check_degree(tensor, "--tensor"),
        _check_degree(pipeline, "--pipeline"),
        _check_degree(expert_parallel, "--expert-parallel"),
        _check_degree(attention_data_parallel, "--attention-data-parallel"),
    )
    replica_count = _count_replicas(workers, division.devices, replicas)
    if prefill_workers and replica_count < 2:
        raise BadValue("`--prefill-workers` needs at least 2 replicas: give `--replicas` or `--workers`")
    if advise:
        from .serve_advice import Given
        from .serve_advice import advise as find_best

        given = Given(
            weights=weights,
            tensor=tensor,
            pipeline=pipeline,
            divides_experts_or_attention=expert_parallel is not None or attention_data_parallel is not None,
            expert_parallel=division.expert_parallel,
            attention_data_parallel=division.attention_data_parallel,
        )
        found = [find_device(name, to_paths(hardware_files)) for name in devices]
        return find_best(deployments, found, given, demand, objectives, Criteria(by, headroom))
    deployment = deployments.make(
        devices[0], division, weights, replicas=replica_count, prefill_workers=prefill_workers
    )
    traffic, description = demand.traffic(deployment.replicas, mixes_phases=deployment.engine.mixes_phases)
    if traffic.hashes is not None and prefix_hit_rate:
        raise BadValue(
            "`--prefix-hit-rate` is for requests without hash_ids: those of this trace say which prefixes are common"
        )
    prepared = deployment.prepare(traffic)
    result = answer(prepared, traffic, description)
    return with_highest_rate(result, prepared, objectives, demand) if objectives else result


def _check_ranking(by: str, advise: bool) -> None:
    """Raise an error if there is no such ranking, or nothing to rank."""
    from ..serving.candidates import RANKINGS

    if by not in RANKINGS:
        raise UnknownName("ranking", by, RANKINGS)
    if by != "cost" and not advise:
        raise BadValue("`--by` is for `--advise`, which ranks deployments")


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

"""Answers about a deployment: latencies, throughput, cache, queue, saturation, cost and energy, with intervals."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import date
from typing import Any, ClassVar

import msgspec
import numpy as np

from ..architectures.families.network import NEXT_TOKEN_LAYERS
from ..timing.answer import Answer
from ..timing.intervals import Z_90
from ..timing.notes import clock_notes, published_weights_note, setting_notes
from ..timing.power import MIN_FRACTION
from ..units import format_hours, format_si
from .cache import fixed_cache_note
from .candidates import DeploymentAdvice
from .classes import ClassAnswer, RequestClass, answer_classes
from .deployment import LEVELS, Deployment, PreparedDeployment
from .drafting import drafting_notes
from .elastic import Count, Elasticity, count_lives, paid_seconds
from .energy import Drawn, draw_power_of_all
from .kernel_timer import KernelTime, time_decode_kernels
from .launch import launch, to_launch
from .outcomes import Outcome, request_latencies, summarize
from .pools import Simulated
from .prefill_pool import PrefillPool, describe_prefill
from .prefix_cache import prefix_hit_rate
from .requests import Traffic
from .saturation import saturate_levels
from .steady import MeasuredSpan, steady_span, whole_span, work_in


class Figure(msgspec.Struct, frozen=True):
    """A figure with its 90% interval.

    Attributes
    ----------
    value : float or None
        Expected value; None if it does not exist, such as the time per output token of answers of one token.
    low, high : float or None
        Ends of the interval; None if the time model gives none.
    """

    value: float | None
    low: float | None = None
    high: float | None = None


class Serving(Answer, msgspec.Struct, frozen=True, eq=False):
    """Prediction of a deployment under traffic.

    Attributes
    ----------
    network, gpu, gpu_name, precision, weights, kv_cache, engine : str
        The deployment.
    engine_limits : str
        Limits of the engine as text.
    tensor, pipeline, replicas, prefill_workers, devices : int
        Devices of a stage, stages of a replica, replicas, those of the prefill pool beside them, and all devices.
    traffic : str
        The traffic as text.
    requests : int
        Number of simulated requests.
    duration_s : float
        Time from the first arrival to the last answer.
    latencies : dict of str to dict of str to Figure
        For each of `LATENCIES`: mean, p50, p90 and p99.
    figures : dict of str to Figure
        Further figures, see `FIGURES`.
    weights_bytes, activations_bytes, cache_bytes : float
        Memory of one device; with a pipeline of the stage with the least room for the cache.
    cache_tokens : int
        Tokens that the cache of one replica holds.
    model : str
        The time model as text.
    is_forecast : bool
        Whether the time model forecasts; otherwise all figures are bounds.
    overhead_s : float
        Overhead of the engine per iteration.
    slo : dict or None
        Objectives and the highest rate that meets them.
    advice : DeploymentAdvice or None
        Ranked deployments.
    notes : tuple of str
        Remarks for the user.
    sources : tuple of str
        Sources of the engine's defaults.
    expert_parallel, attention_data_parallel : int
        Groups of the devices of a stage that divide the experts, and that compute attention for sequences of their own.
    launch_command : str or None
        The engine's own command for a replica; None if the engine cannot be launched like this.
    kernels : list of KernelTime or None
        Kernels of a decode iteration at the mean number of sequences and their mean context, the longest first; None if
        the layers are timed one by one.
    offered_requests_per_s : float or None
        Mean rate at which requests arrive; None where they do not arrive at a rate.
    price_usd_per_h : float or None
        Price of one device per hour; None if it is unknown.
    price_cloud : str or None
        Cloud that asks this price; None if it was given.
    prefill_pool : PrefillPool or None
        Replicas that compute prompts only; None where every replica does both.
    prefix_hit_rates : tuple of float or None
        Share of the prompts' tokens that the prefix cache of each replica has; None where nothing is known of prefixes.
    classes : tuple of ClassAnswer or None
        What each class of requests experiences; None without classes.
    replica_counts : tuple of Count or None
        Number of replicas that serve, and that start, from each time on at which it changes; None of those that stay.
    longest_request : int or None
        Tokens of a request, with its answer, for which the launch command starts its servers, because their cache does
        not hold one of all positions of the network; None without such a limit.
    """

    _page: ClassVar[str] = "paleo_lite.reporting.serving:serving_page"
    time_of: ClassVar[str] = "request"
    fits: ClassVar[bool] = True  # what does not fit has no prediction

    network: str
    gpu: str
    gpu_name: str
    precision: str
    weights: str
    kv_cache: str
    engine: str
    engine_limits: str
    tensor: int
    pipeline: int
    replicas: int
    prefill_workers: int
    devices: int
    traffic: str
    requests: int
    duration_s: float
    latencies: dict[str, dict[str, Figure]]
    figures: dict[str, Figure]
    weights_bytes: float
    activations_bytes: float
    cache_bytes: float
    cache_tokens: int
    model: str
    is_forecast: bool
    overhead_s: float
    slo: dict[str, Any] | None = None
    advice: DeploymentAdvice | None = None
    notes: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()
    expert_parallel: int = 1
    attention_data_parallel: int = 1
    launch_command: str | None = None
    kernels: list[KernelTime] | None = None
    offered_requests_per_s: float | None = None
    price_usd_per_h: float | None = None
    price_cloud: str | None = None
    prefill_pool: PrefillPool | None = None
    prefix_hit_rates: tuple[float, ...] | None = None
    longest_request: int | None = None
    replica_counts: tuple[Count, ...] | None = None
    classes: tuple[ClassAnswer, ...] | None = None

    @property
    def usd_per_h(self) -> float | None:
        """Price of all devices per hour; None if it is unknown."""
        return None if self.price_usd_per_h is None else self.price_usd_per_h * self.devices

    @property
    def is_overloaded(self) -> bool:
        """Whether requests arrive faster than they can be answered, so that their queue grows without end."""
        capacity = self.figures.get("saturation_requests_per_s")
        if self.offered_requests_per_s is None or capacity is None or capacity.value is None:
            return False
        return self.offered_requests_per_s > capacity.value

    @property
    def exceeds_workers(self) -> bool:
        """Whether this has more devices than advice may use, because no deployment on so few carries the traffic."""
        allowed = None if self.advice is None else self.advice.devices
        return allowed is not None and self.devices > allowed

    @property
    def execution(self) -> str:
        """Name of the engine."""
        return self.engine

    @property
    def time_s(self) -> float | None:
        """Median end-to-end latency of a request in seconds."""
        return self.latencies["latency_s"]["p50"].value

    @property
    def interval(self) -> tuple[float, float] | None:
        """90% interval of the median latency; None for models without intervals."""
        latency = self.latencies["latency_s"]["p50"]
        return None if latency.low is None or latency.high is None else (latency.low, latency.high)

    @property
    def bound_s(self) -> float | None:
        """Median latency where it is a bound; None of a forecast, for which no bound is simulated."""
        return None if self.is_forecast else self.time_s

    @property
    def throughput_per_s(self) -> float | None:
        """Requests per second of all devices."""
        return self.figures["requests_per_s"].value

    @property
    def tokens_per_s(self) -> float | None:
        """Output tokens per second of all devices."""
        return self.figures["output_tokens_per_s"].value

    @property
    def memory_bytes(self) -> float:
        """Bytes on a device of weights, activations and cache."""
        return self.weights_bytes + self.activations_bytes + self.cache_bytes

    @property
    def power_w(self) -> float | None:
        """Average power of a device while iterations run, in watts; None if unknown."""
        return self.figures["watts_per_gpu"].value

    @property
    def energy_j(self) -> float | None:
        """Energy of all devices per request in joules, waiting included; None if their power is unknown."""
        return self.figures["joules_per_request"].value


FIGURES = {
    "output_tokens_per_s": "output tokens per second",
    "total_tokens_per_s": "input and output tokens per second",
    "output_tokens_per_s_per_gpu": "output tokens per second and GPU",
    "output_tokens_per_s_per_user": "output tokens per second and user",
    "requests_per_s": "requests per second",
    "saturation_requests_per_s": "saturation rate, requests per second",
    "saturation_tokens_per_s": "output tokens per second at saturation",
    "mean_sequences": "mean number of decoding sequences per replica",
    "cache_occupancy": "mean share of the cache in use",
    "peak_cache_occupancy": "largest share of the cache in use",
    "preemptions": "preempted requests",
    "utilisation": "share of the time in iterations",
    "usd_per_million_output_tokens": "US dollars per million output tokens",
    "watts_per_gpu": "average power per GPU while iterations run, in W",
    "joules_per_request": "energy of all GPUs per request in J, waiting included",
    "joules_per_million_output_tokens": "joules of all GPUs per million output tokens, waiting included",
}
"""Figures of a deployment, with their meaning.

They are rows of its table and keys of its JSON, not columns, which are in the registry `reporting.columns`.
"""

SITE_FIGURES = {
    "site_joules_per_million_output_tokens": "joules at the meter per million output tokens",
    "electricity_usd_per_million_output_tokens": "US dollars of electricity per million output tokens",
    "co2_g_per_million_output_tokens": "grams of CO2 per million output tokens",
}
"""Figures of a deployment in a facility that the user describes, with their meaning."""

ELASTIC_FIGURES = {
    "mean_replicas": "replicas that are paid for, in the mean",
    "most_replicas": "most replicas that serve at a time",
    "restarted_requests": "requests that were sent again after a failure",
}
"""Figures of a deployment whose replicas come and go, with their meaning."""

EXPERTS_WITHOUT_ADAPTERS = "LoRA adapters are those of attention and of dense layers: of experts none are modelled"
ADAPTER_FIGURES = {
    "adapter_loads_per_request": "adapters that are copied to a slot, per request",
    "adapter_wait": "share of the time in iterations in which requests wait for a slot alone",
}
"""Figures of a deployment with LoRA adapters, with their meaning."""

PREFIX_FIGURES = {"prefix_hit_rate": "share of the prompts' tokens that the prefix cache has"}
"""Figures of a deployment whose requests state their prefixes, with their meaning."""

ALL_FIGURES = FIGURES | SITE_FIGURES | PREFIX_FIGURES | ELASTIC_FIGURES | ADAPTER_FIGURES
"""All figures of a deployment, with their meaning."""

ENERGY_FIGURES = (
    "watts_per_gpu",
    "joules_per_request",
    "joules_per_million_output_tokens",
    *SITE_FIGURES,
)
"""Figures whose intervals include that of the power."""


def measure_figures(
    simulated: Simulated,
    deployment: Deployment,
    input_tokens: int,
    span: MeasuredSpan | None = None,  # part of the simulation that is measured; None for all of it
) -> dict[str, float | None]:
    """Return the figures of a simulation except those at saturation."""
    outcomes = simulated.outcomes
    span = span or whole_span(outcomes)
    replicas = _mean_replicas(simulated, deployment, span)
    requests = sum(len(outcome.finish_s) for outcome in outcomes)
    mean_output = sum(int(outcome.output_tokens.sum()) for outcome in outcomes) / requests
    work = work_in(outcomes, span)
    latencies = request_latencies(outcomes)
    tokens_per_s = span.requests_per_s * mean_output
    answered_tokens = tokens_per_s * span.seconds
    mean_tpot_s = float(latencies["tpot_s"].mean()) if len(latencies["tpot_s"]) else None
    blocks = sum(outcome.blocks for outcome in outcomes)
    drawn = draw_power_of_all(outcomes, deployment, input_tokens, span, simulated.prefill, replicas)
    return {
        "output_tokens_per_s": tokens_per_s,
        "total_tokens_per_s": span.requests_per_s * (mean_output + input_tokens / requests),
        "output_tokens_per_s_per_gpu": tokens_per_s / (deployment.devices * replicas / deployment.replicas),
        "output_tokens_per_s_per_user": 1 / mean_tpot_s if mean_tpot_s else None,
        "requests_per_s": span.requests_per_s,
        "mean_sequences": work.sequence_s / work.busy_s if work.busy_s else None,
        "cache_occupancy": work.cached_block_s / (span.seconds * blocks),
        "peak_cache_occupancy": max(outcome.peak_blocks / outcome.blocks for outcome in outcomes),
        "preemptions": float(sum(outcome.preemptions for outcome in outcomes)),
        "utilisation": min(work.busy_s / (span.seconds * replicas), 1.0),  # sums are rounded
        "usd_per_million_output_tokens": _usd_per_million(deployment, tokens_per_s, replicas),
        "watts_per_gpu": drawn and drawn.watts,
        "joules_per_request": drawn and drawn.energy_j / (span.requests_per_s * span.seconds),
        "joules_per_million_output_tokens": drawn and drawn.energy_j / answered_tokens * 1e6,
        **_site_figures(deployment, drawn, span.seconds, answered_tokens),
        **_prefix_figures(outcomes, input_tokens),
        **_elastic_figures(simulated, deployment, replicas),
        **_adapter_figures(simulated, deployment, requests),
    }  # fmt: skip


def _adapter_figures(simulated: Simulated, deployment: Deployment, requests: int) -> dict[str, float | None]:
    """Return the figures of LoRA adapters; none without adapters."""
    if deployment.adapters is None:
        return {}
    pools = simulated.prefill or simulated.outcomes
    waited_s, busy_s = (sum(getattr(one, name) for one in pools) for name in ("adapter_wait_s", "busy_s"))
    return {
        "adapter_loads_per_request": sum(outcome.adapter_loads for outcome in pools) / requests,
        "adapter_wait": waited_s / busy_s,
    }


def _mean_replicas(simulated: Simulated, deployment: Deployment, span: MeasuredSpan) -> float:
    """Return the number of replicas that are paid for, in the mean over a span."""
    if deployment.elasticity is None:
        return deployment.replicas
    return paid_seconds(simulated.lives, span.start_s, span.end_s) / span.seconds


def _elastic_figures(simulated: Simulated, deployment: Deployment, replicas: float) -> dict[str, float | None]:
    """Return the figures of replicas that come and go; none of those that stay."""
    if deployment.elasticity is None:
        return {}
    most = max(count.serving for count in count_lives(simulated.lives))
    return {"mean_replicas": replicas, "most_replicas": most, "restarted_requests": float(simulated.restarted)}


def _prefix_figures(outcomes: Sequence[Outcome], input_tokens: int) -> dict[str, float]:
    """Return the figures of the prefix cache; none where nothing is known of prefixes."""
    found = [outcome.found_tokens for outcome in outcomes if outcome.found_tokens is not None]
    return {"prefix_hit_rate": sum(found) / input_tokens} if found else {}


def _hit_rates(outcomes: Sequence[Outcome]) -> tuple[float, ...] | None:
    """Return the share of the prompts' tokens that each replica has found; None where nothing is known of prefixes."""
    rates = [
        outcome.found_tokens / outcome.input_tokens
        for outcome in outcomes
        if outcome.found_tokens is not None and outcome.input_tokens
    ]
    return tuple(rates) or None


def _site_figures(
    deployment: Deployment, drawn: Drawn | None, duration_s: float, output_tokens: float
) -> dict[str, float | None]:
    """Return the figures of energy at the meter; none where the facility is not described or the power is unknown."""
    if deployment.facility is None or drawn is None:
        return {}
    site = deployment.facility.site_energy(drawn.energy_j, deployment.devices * duration_s)
    amounts = zip(SITE_FIGURES, (site.energy_j, site.usd, site.co2_g), strict=True)
    return {name: amount / output_tokens * 1e6 for name, amount in amounts if amount is not None}


def _usd_per_million(deployment: Deployment, tokens_per_s: float, replicas: float) -> float | None:
    """Return the price of a million tokens, of so many of the replicas in the mean."""
    usd_per_h = deployment.usd_per_h
    return None if usd_per_h is None else usd_per_h * replicas / deployment.replicas / 3600 / tokens_per_s * 1e6


def answer(
    prepared: PreparedDeployment,
    traffic: Traffic,
    description: str,  # the traffic as text
    *,
    notes: Sequence[str] = (),  # remarks for the user
    classes: Sequence[RequestClass] = (),  # those of the traffic
    saturation: bool = True,  # whether to compute the saturation rate
) -> Serving:
    """Simulate traffic at the expected iteration times and at both ends of their interval."""
    deployment = prepared.deployment
    has_interval = bool(prepared.tables.relative_low)
    levels = LEVELS if has_interval else ("expected",)
    outcomes: dict[str, Sequence[Outcome]] = {}
    latencies: dict[str, dict[str, dict[str, float | None]]] = {}
    figures: dict[str, dict[str, float | None]] = {}
    input_tokens = int(traffic.input_tokens.sum())
    saturated = saturate_levels(prepared.lasting, traffic, levels) if saturation else {}
    for level in levels:
        simulated = prepared.simulate(traffic, level)
        outcomes[level] = simulated.outcomes
        arrays = request_latencies(simulated.outcomes)
        latencies[level] = {name: summarize(values) for name, values in arrays.items()}
        span = steady_span(simulated.outcomes, traffic.rate_per_s, saturated[level][0] if level in saturated else None)
        figures[level] = measure_figures(simulated, deployment, input_tokens, span)
        if level in saturated:
            requests_per_s, tokens_per_s = saturated[level]
            figures[level]["saturation_requests_per_s"] = requests_per_s
            figures[level]["saturation_tokens_per_s"] = tokens_per_s
        if level == "expected":
            expected, expected_span = simulated, span
    on_device = deployment.on_device
    timer = deployment.timer
    workload, device = on_device.workload, on_device.machine.device
    rate_per_s = traffic.rate_per_s
    all_notes = _notes_of(prepared, traffic, figures["expected"], notes)
    added = {name: Z_90 * deviation for name, deviation in prepared.latency_deviations.items()}
    shown = {
        name: _figure([figures[level][name] for level in levels]) for name in ALL_FIGURES if name in figures["expected"]
    }
    replicas = _mean_replicas(expected, deployment, expected_span)
    drawn = draw_power_of_all(expected.outcomes, deployment, input_tokens, expected_span, expected.prefill, replicas)
    if drawn is not None:
        below, above = math.log(drawn.watts / drawn.low_w), math.log(drawn.high_w / drawn.watts)
        shown |= {name: _widen(shown[name], below, above) for name in ENERGY_FIGURES if name in shown}
        shown["watts_per_gpu"] = _at_most(shown["watts_per_gpu"], device.power_w)
    launchable = to_launch(prepared, traffic)
    launched = launch(launchable)
    all_notes += launched.notes
    all_notes += deployment.price_notes(date.today())
    return Serving(
        network=workload.network.name,
        gpu=device.id,
        gpu_name=device.name,
        precision=workload.precision,
        weights=timer.weights,
        kv_cache=on_device.kv_cache,
        engine=deployment.engine.name,
        engine_limits=deployment.engine.describe(deployment.on_device.attention_data),
        tensor=on_device.tensor,
        pipeline=on_device.pipeline.degree,
        replicas=deployment.replicas,
        prefill_workers=0 if deployment.prefill is None else deployment.prefill.replicas,
        devices=deployment.devices,
        traffic=description,
        requests=len(traffic),
        duration_s=whole_span(expected.outcomes).seconds,
        latencies={
            name: {
                part: _widen(
                    _figure([latencies[level][name][part] for level in levels]),
                    below=added.get(name, 0.0),
                    above=added.get(name, 0.0),
                )
                for part in parts
            }
            for name, parts in latencies["expected"].items()
        },
        figures=shown,
        weights_bytes=prepared.room.weights_bytes,
        activations_bytes=prepared.room.activations_bytes,
        cache_bytes=prepared.room.cache_bytes,
        cache_tokens=prepared.room.tokens,
        model=timer.description,
        is_forecast=timer.is_forecast,
        overhead_s=deployment.engine.overhead_s,
        notes=tuple(all_notes),
        sources=deployment.engine.sources,
        expert_parallel=on_device.experts,
        attention_data_parallel=on_device.attention_data,
        launch_command=launched.command,
        kernels=time_decode_kernels(on_device, figures["expected"]["mean_sequences"] or 1.0, mean_context(traffic)),
        offered_requests_per_s=rate_per_s,
        price_usd_per_h=None if deployment.usd_per_h is None else deployment.usd_per_h / deployment.devices,
        prefix_hit_rates=_hit_rates(expected.prefill or expected.outcomes),
        classes=answer_classes(classes, outcomes) if classes else None,
        replica_counts=tuple(count_lives(expected.lives)) or None,
        longest_request=launchable.longest_request,
        prefill_pool=describe_prefill(
            prepared,
            traffic,
            expected.prefill,
            expected_span,
            launched.prefill_command,
            None if launchable.prefill is None else launchable.prefill.longest_request,
        ),
        price_cloud=None if deployment.listing is None else deployment.listing.cloud or None,
    )


def _notes_of(
    prepared: PreparedDeployment, traffic: Traffic, figures: dict[str, float | None], notes: Sequence[str]
) -> list[str]:
    """Return given notes, and those on the traffic and on what is simulated, but not on its launch."""
    deployment = prepared.deployment
    on_device, timer = deployment.on_device, deployment.timer
    context = mean_context(traffic)
    network_notes = on_device.decode_workload(max(round(context), 1)).network.notes
    if deployment.options.speculation.heads == "mtp":  # these layers draft
        network_notes = tuple(note for note in network_notes if not note.startswith(NEXT_TOKEN_LAYERS))
    requested = _setting_notes(prepared, figures["mean_sequences"] or 1.0)
    published = published_weights_note(on_device.workload)
    if published is not None:
        requested.append(published)
    if deployment.adapters is not None and on_device.workload.has_experts:
        requested.append(EXPERTS_WITHOUT_ADAPTERS)
    all_notes = list(
        dict.fromkeys((*notes, *requested, *drafting_notes(prepared, context), *network_notes, *timer.notes))
    )
    all_notes += _device_notes(prepared, traffic)
    all_notes += _adapter_notes(deployment, figures)
    if deployment.elasticity is not None:
        all_notes += _elastic_notes(prepared, deployment.elasticity)
    if traffic.hashes is not None and traffic.sessions is None:
        all_notes.append(
            f"{prefix_hit_rate(traffic.hashes):.1%} of the blocks of these prompts were in earlier ones: replicas that "
            "take requests in turn, and caches that evict, find fewer"
        )
    rate_per_s = traffic.rate_per_s
    capacity_per_s = figures.get("saturation_requests_per_s")
    if rate_per_s is not None and capacity_per_s is not None and rate_per_s > capacity_per_s:
        all_notes.insert(
            0,
            f"{rate_per_s:.3g} requests/s exceed the saturation rate of {capacity_per_s:.3g}: the queue grows as long "
            "as requests arrive, and latencies depend on the number of requests",
        )
    return all_notes


LONG_ADAPTER_WAIT = 0.1
"""Share of the time in which requests wait for slots of adapters above which a note says so."""


def _adapter_notes(deployment: Deployment, figures: dict[str, float | None]) -> list[str]:
    """Return a note where slots of adapters are what requests wait for."""
    waiting, adapters = figures.get("adapter_wait"), deployment.adapters
    if adapters is None or waiting is None or waiting < LONG_ADAPTER_WAIT:
        return []
    slot = format_si(deployment.adapter_cost.slot_bytes, "B", 3)
    return [
        f"in {waiting:.0%} of the time requests wait for a slot of an adapter, not for a place or the cache: give more "
        f"adapter-slots in `--engine-settings` ({adapters.slots} now, each takes {slot} per device)"
    ]


def _elastic_notes(prepared: PreparedDeployment, elasticity: Elasticity) -> list[str]:
    """Return notes on the start of replicas that come and go, and on how often they fail."""
    notes = []
    start_s = elasticity.start_s
    if start_s is None:
        start_s = prepared.start.seconds
        notes.append(prepared.start.describe())
    mean_s = elasticity.failures.mean_s
    if mean_s is not None:
        of_replica_s = mean_s / prepared.deployment.on_device.devices
        serving = of_replica_s / (of_replica_s + start_s)
        notes.append(f"a replica fails every {format_hours(of_replica_s / 3600)}, and serves {serving:.3%} of the time")
    return notes


def mean_context(traffic: Traffic) -> float:
    """Return the mean tokens in the cache of a sequence over all its decode iterations."""
    contexts = traffic.input_tokens + traffic.output_tokens / 2
    return float(np.average(contexts, weights=traffic.output_tokens))


def _figure(values: Sequence[float | None]) -> Figure:
    """Return the figure with values at low, expected and high iteration times, or at the expected ones only."""
    if len(values) == 1:
        return Figure(_finite(values[0]))
    low, value, high = values
    if low is None or high is None or value is None:
        return Figure(_finite(value))
    return Figure(_finite(value), min(low, value, high), max(low, value, high))


def _device_notes(prepared: PreparedDeployment, traffic: Traffic) -> list[str]:
    """Return notes on the cache of the devices, and on a group that one device would beat."""
    notes = []
    fixed_cache = fixed_cache_note(prepared.room)
    if fixed_cache is not None:
        notes.append(fixed_cache)
    deployment = prepared.deployment
    tensor = deployment.on_device.tensor
    prompt = deployment.timer.prompt_activity(max(float(traffic.input_tokens.mean()), 1.0))
    if tensor > 1 and prompt.links_s > (tensor - 1) * (prompt.arithmetic_s + prompt.memory_s):
        notes.append(
            f"prompts take longer on {tensor} devices than on one: all-reduces take longer than the products that "
            "`--tensor` saves"
        )
    return notes


def _setting_notes(prepared: PreparedDeployment, sequences: float) -> list[str]:
    """Return notes on a requested clock or power limit."""
    on_device = prepared.deployment.on_device
    speeds = prepared.tables.limited_speed
    if not speeds:
        return setting_notes(on_device.machine, on_device.model)
    device, speed = on_device.machine.device, speeds[max(round(sequences), 1)]
    note = f"the power limit {device.power_w:g} W "
    if speed <= MIN_FRACTION:
        note += f"is too low for {device.name} ({device.rated_power_w:g} W): the times assume {speed:.0%} of its speed"
    else:
        note += f"leaves {speed:.0%} of the speed of a decode step with {sequences:.3g} sequences"
    return [*clock_notes(on_device.machine), note]


def _widen(figure: Figure, below: float, above: float) -> Figure:
    """Return a figure whose interval includes another, independent cause; the logarithms add up in quadrature.

    `below` and `above` are the logarithms of the figure over its ends by the other cause.
    """
    if not figure.value or not (below or above):
        return figure
    low, high = (math.log(end / figure.value) if end else 0.0 for end in (figure.low, figure.high))
    value = figure.value
    return Figure(value, value * math.exp(-math.hypot(low, below)), value * math.exp(math.hypot(high, above)))


def _at_most(figure: Figure, limit: float | None) -> Figure:
    """Return a figure whose interval ends at a limit."""
    if figure.high is None or limit is None:
        return figure
    return Figure(figure.value, figure.low, min(figure.high, limit))


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None

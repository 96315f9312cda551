"""Answers about a deployment: latencies, throughput, cache, queue, saturation, cost and energy, with intervals."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import date
from typing import Any, ClassVar, NamedTuple

import msgspec

from ..timing.answer import Answer
from .candidates import DeploymentAdvice
from .classes import ClassAnswer, RequestClass, answer_classes
from .deployment import Deployment
from .elastic import Count, count_lives
from .energy import draw_power_of_all
from .figures import (
    ALL_FIGURES,
    ENERGY_FIGURES,
    hit_rates,
    mean_replicas,
    measure_figures,
)
from .intervals import Figure, Latencies, at_most, join_latencies, make_figure, summarize_latencies, widen
from .kernel_timer import KernelTime, time_decode_kernels
from .latencies import simulate_causes
from .launch import launch, to_launch
from .notes import (
    front_end_notes,
    in_step_notes,
    notes_of,
    queue_notes,
    rounds_notes,
    short_run_notes,
    stall_notes,
    streaming_notes,
    unsteady_notes,
)
from .outcomes import share_within
from .pools import Simulated
from .prefill_pool import PrefillPool, describe_prefill
from .prepared import PreparedDeployment
from .requests import Traffic
from .saturation import saturate_levels
from .steady import MeasuredSpan, steady_span, whole_span


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
    shortened_requests : int
        Those of them whose answers are shorter than asked for, so that users do not stay in step; rates count each as
        its share of a whole answer.
    duration_s : float
        Time from the first arrival to the last answer.
    latencies : dict of str to dict of str to Figure
        For each of `LATENCIES`: mean, p50, p90 and p99.
    figures : dict of str to Figure
        Further figures, see `serving.figures.FIGURES`.
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
        the layers are timed one by one, or answers have one token, so that nothing decodes.
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
    shortened_requests: int = 0
    classes: tuple[ClassAnswer, ...] | None = None

    @property
    def usd_per_h(self) -> float | None:
        """Price of all devices per hour; None if it is unknown."""
        return None if self.price_usd_per_h is None else self.price_usd_per_h * self.devices

    @property
    def exceeds_saturation(self) -> bool:
        """Whether requests arrive faster than they can be answered."""
        capacity = self.figures.get("saturation_requests_per_s")
        if self.offered_requests_per_s is None or capacity is None or capacity.value is None:
            return False
        return self.offered_requests_per_s > capacity.value

    @property
    def is_overloaded(self) -> bool:
        """Whether requests arrive faster than they can be answered, so that their queue grows without end."""
        return self.exceeds_saturation and self.refused_share is None  # otherwise what would wait is refused

    @property
    def refused_share(self) -> float | None:
        """Share of the requests that are refused; None where nothing can be."""
        refused = self.figures.get("refused_requests")
        return None if refused is None else refused.value

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
    def usd_per_million(self) -> float | None:
        """Cost of a million output tokens in US dollars; None for a bound, and without a price."""
        return self.figures["usd_per_million_output_tokens"].value if self.is_forecast else None

    @property
    def usd_per_million_requests(self) -> float | None:
        """Cost of a million requests in US dollars; None for a bound, and without a price."""
        return super().usd_per_million

    def with_common_fields(self, fields: dict[str, Any]) -> dict[str, Any]:
        """Return the documented JSON: the common fields with those of servers between them."""
        return super().with_common_fields({**fields, "usd_per_million_requests": self.usd_per_million_requests})

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


class _AtLevel(NamedTuple):
    """Traffic at one level of the iteration times."""

    simulated: Simulated
    span: MeasuredSpan  # in which throughputs are measured
    latencies: Latencies
    figures: dict[str, float | None]


def answer(
    prepared: PreparedDeployment,
    traffic: Traffic,
    description: str,  # the traffic as text
    *,
    notes: Sequence[str] = (),  # remarks for the user
    classes: Sequence[RequestClass] = (),  # those of the traffic
    # Limits of ``ttft``, ``tpot`` or ``latency``, within which goodput counts requests.
    limits_s: Sequence[tuple[str, float]] = (),
    saturation: bool = True,  # whether to compute the saturation rate
) -> Serving:
    """Simulate traffic at the expected iteration times and at both ends of their interval."""
    deployment = prepared.deployment
    levels = prepared.levels
    saturated = saturate_levels(prepared.lasting, traffic, levels) if saturation else {}
    expected = _simulate_level(prepared, traffic, "expected", saturated.get("expected"), limits_s)
    has_steady_part = expected.span != whole_span(expected.simulated.outcomes)
    at_levels = {
        level: expected
        if level == "expected"
        else _simulate_level(prepared, traffic, level, saturated.get(level), limits_s, has_steady_part=has_steady_part)
        for level in levels
    }
    simulated = expected.simulated
    outcomes = {level: at_level.simulated.outcomes for level, at_level in at_levels.items()}
    causes = simulate_causes(prepared, traffic, {level: at_level.latencies for level, at_level in at_levels.items()})
    refused = {level: _refused_classes(traffic, at_level.simulated) for level, at_level in at_levels.items()}
    on_device = deployment.on_device
    timer = deployment.timer
    workload, device = on_device.workload, on_device.machine.device
    launchable = to_launch(prepared, traffic)
    launched = launch(launchable)
    all_notes = [
        *_traffic_notes(prepared, traffic, expected, notes, has_saturation=saturation),
        *launched.notes,
        *deployment.price_notes(date.today()),
    ]
    return Serving(
        network=workload.network.name,
        gpu=device.id,
        gpu_name=device.name,
        precision=workload.precision,
        weights=timer.weights,
        kv_cache=on_device.kv_cache,
        engine=deployment.engine.name,
        engine_limits=deployment.engine.describe(deployment.on_device.division.attention_data_parallel),
        tensor=on_device.tensor,
        pipeline=on_device.pipeline.degree,
        replicas=deployment.replicas,
        prefill_workers=0 if deployment.prefill is None else deployment.prefill.replicas,
        devices=deployment.devices,
        traffic=description,
        requests=len(traffic),
        shortened_requests=traffic.shortened_requests,
        duration_s=whole_span(simulated.outcomes).seconds,
        latencies=join_latencies(expected.latencies, causes, prepared.latency_deviations(traffic)),
        figures=_figures_of(at_levels, deployment, traffic),
        weights_bytes=prepared.room.weights_bytes,
        activations_bytes=prepared.room.activations_bytes,
        cache_bytes=prepared.room.cache_bytes,
        cache_tokens=prepared.room.tokens,
        model=timer.description,
        is_forecast=timer.is_forecast,
        overhead_s=deployment.engine.overhead_s,
        notes=tuple(all_notes),
        sources=deployment.engine.sources,
        expert_parallel=on_device.division.expert_parallel,
        attention_data_parallel=on_device.division.attention_data_parallel,
        launch_command=launched.command,
        kernels=_decode_kernels(deployment, traffic, expected.figures["mean_sequences"] or 1.0),
        offered_requests_per_s=traffic.rate_per_s,
        price_usd_per_h=None if deployment.usd_per_h is None else deployment.usd_per_h / deployment.devices,
        prefix_hit_rates=hit_rates(simulated.prefill or simulated.outcomes),
        classes=answer_classes(classes, outcomes, refused) if classes else None,
        replica_counts=tuple(count_lives(simulated.lives)) or None,
        longest_request=launchable.longest_request,
        prefill_pool=describe_prefill(
            prepared,
            traffic,
            simulated,
            expected.span,
            launched.prefill_command,
            None if launchable.prefill is None else launchable.prefill.longest_request,
        ),
        price_cloud=None if deployment.listing is None else deployment.listing.cloud or None,
    )


def _traffic_notes(
    prepared: PreparedDeployment, traffic: Traffic, expected: _AtLevel, notes: Sequence[str], *, has_saturation: bool
) -> list[str]:
    """Return the remarks on the traffic and how it was served, after some that are there already."""
    found = notes_of(prepared, traffic, expected.figures, notes)
    if prepared.deployment.admission is not None:
        found += short_run_notes(traffic, expected.latencies["latency_s"]["p50"])
    elif has_saturation:
        saturation_per_s = expected.figures["saturation_requests_per_s"]
        answered_per_s = whole_span(expected.simulated.outcomes).requests_per_s
        found += unsteady_notes(prepared, traffic, saturation_per_s)
        found += rounds_notes(traffic, answered_per_s, saturation_per_s)
    found += front_end_notes(prepared, traffic, expected.latencies["ttft_s"]["p50"])
    found += streaming_notes(prepared, traffic, expected.figures["output_tokens_per_s"])
    found += in_step_notes(prepared, traffic, expected.latencies["ttft_s"]["p90"])
    found += stall_notes(prepared, traffic)
    if prepared.deployment.elasticity is None and prepared.deployment.admission is None:
        found += queue_notes(expected.simulated.outcomes, expected.latencies["ttft_s"]["mean"])
    return found


def _decode_kernels(deployment: Deployment, traffic: Traffic, sequences: float) -> list[KernelTime] | None:
    """Return the kernels of a decode iteration of some sequences; None where nothing decodes."""
    if int(traffic.output_tokens.max()) == 1:
        return None
    adapters = None if deployment.adapters is None else (deployment.adapter_cost, deployment.adapters.slots)
    return time_decode_kernels(deployment.on_device, sequences, traffic.mean_context, adapters)


def _simulate_level(
    prepared: PreparedDeployment,
    traffic: Traffic,
    level: str,
    saturated: tuple[float, float] | None,  # requests and tokens per second at saturation; None where not computed
    limits_s: Sequence[tuple[str, float]],
    *,
    has_steady_part: bool | None = None,  # whether the figures are of a part of the run; None to look for one
) -> _AtLevel:
    """Return what requests experience at one level of the iteration times."""
    simulated = prepared.simulate(traffic, level)
    latencies = summarize_latencies(simulated)
    refuses = prepared.deployment.admission is not None  # so that no queue grows without end
    # With refusals answers end in rounds: a part of the run may hold more of them than the rest.
    rate_per_s = None if refuses or has_steady_part is False else traffic.rate_per_s
    span = steady_span(simulated.outcomes, rate_per_s, saturated, needs_answers=not has_steady_part)
    figures = measure_figures(simulated, prepared.deployment, int(traffic.input_tokens.sum()), span)
    if refuses and limits_s:
        figures["goodput_requests_per_s"] = span.requests_per_s * share_within(simulated.outcomes, limits_s)
    if saturated is not None:
        figures["saturation_requests_per_s"], figures["saturation_tokens_per_s"] = saturated
    return _AtLevel(simulated, span, latencies, figures)


def _refused_classes(traffic: Traffic, simulated: Simulated) -> list[int]:
    """Return the class of each request that is refused."""
    return [] if traffic.classes is None else traffic.classes[list(simulated.refused)].tolist()


def _figures_of(levels: dict[str, _AtLevel], deployment: Deployment, traffic: Traffic) -> dict[str, Figure]:
    """Return the further figures with intervals; those of energy are also as uncertain as the power of the devices."""
    simulated, span, _, measured = levels["expected"]
    present = [name for name in ALL_FIGURES if name in measured]
    figures = {name: make_figure([level.figures[name] for level in levels.values()]) for name in present}
    replicas = mean_replicas(simulated, deployment, span)
    input_tokens = int(traffic.input_tokens.sum())
    drawn = draw_power_of_all(simulated.outcomes, deployment, input_tokens, span, simulated.prefill, replicas)
    if drawn is None:
        return figures
    below, above = math.log(drawn.watts / drawn.low_w), math.log(drawn.high_w / drawn.watts)
    figures |= {name: widen(figures[name], below, above) for name in ENERGY_FIGURES if name in figures}
    limit_w = deployment.on_device.machine.device.power_w
    return figures | {"watts_per_gpu": at_most(figures["watts_per_gpu"], limit_w)}

"""Figures of a deployment under traffic: what they mean, how they are measured in a simulation, and their intervals."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from .deployment import Deployment
from .elastic import count_lives, paid_seconds
from .energy import Drawn, draw_power_of_all
from .outcomes import Outcome, request_latencies
from .pools import Simulated
from .steady import MeasuredSpan, count_answers, whole_span, work_in

FIGURES = {
    "output_tokens_per_s": "output tokens per second",
    "total_tokens_per_s": "input and output tokens per second",
    "output_tokens_per_s_per_gpu": "output tokens per second and GPU",
    "output_tokens_per_s_per_user": "output tokens per second and user",
    "requests_per_s": "requests per second in the long run",
    # All requests over the time from the first arrival to the last answer, as `vllm bench serve` and
    # `sglang.bench_serving` count; only of requests that arrive at a rate, as that of others is the figure above.
    "run_requests_per_s": "requests per second of the whole run",
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

ADAPTER_FIGURES = {
    "adapter_loads_per_request": "adapters that are copied to a slot, per request",
    "adapter_wait": "share of the time in iterations in which requests wait for a slot alone",
}
"""Figures of a deployment with LoRA adapters, with their meaning."""

ADMISSION_FIGURES = {
    "refused_requests": "share of the requests that are refused",
    "goodput_requests_per_s": "goodput: requests per second within all objectives",
}
"""Figures of a deployment that refuses requests, with their meaning."""

PREFIX_FIGURES = {"prefix_hit_rate": "share of the prompts' tokens that the prefix cache has"}
"""Figures of a deployment whose requests state their prefixes, with their meaning."""

ALL_FIGURES = FIGURES | SITE_FIGURES | PREFIX_FIGURES | ELASTIC_FIGURES | ADMISSION_FIGURES | ADAPTER_FIGURES
"""All figures of a deployment, with their meaning."""


OF_POOL = ("mean_sequences", "cache_occupancy", "peak_cache_occupancy", "preemptions", "utilisation")
"""Figures of split pools that are of the decode pool alone."""


def describe_figure(name: str, present: Collection[str], *, is_split: bool) -> str:
    """Return the meaning of a figure of an answer that has some figures, and whether it is one of split pools.

    Without a rate in the long run beside it, the rate of an answer is that of the whole run: of users, of requests at
    once, and where requests may be refused.
    """
    if name == "requests_per_s" and "run_requests_per_s" not in present:
        return FIGURES["run_requests_per_s"]
    if is_split and name in OF_POOL:
        return f"{ALL_FIGURES[name]}, decode pool"
    return ALL_FIGURES[name]


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
    whole_run = whole_span(outcomes)
    span = span or whole_run
    replicas = mean_replicas(simulated, deployment, span)
    requests = sum(len(outcome.finish_s) for outcome in outcomes)
    if simulated.refused:
        input_tokens = sum(outcome.input_tokens for outcome in outcomes)
    mean_output = sum(int(outcome.output_tokens.sum()) for outcome in outcomes) / count_answers(outcomes)
    work = work_in(outcomes, span)
    latencies = request_latencies(outcomes)
    tokens_per_s = span.output_tokens_per_s or span.requests_per_s * mean_output
    answered_tokens = tokens_per_s * span.seconds
    mean_tpot_s = float(latencies["tpot_s"].mean()) if len(latencies["tpot_s"]) else None
    blocks = sum(outcome.blocks for outcome in outcomes)
    drawn = draw_power_of_all(outcomes, deployment, input_tokens, span, simulated.prefill, replicas)
    return {
        "output_tokens_per_s": tokens_per_s,
        "total_tokens_per_s": tokens_per_s + span.requests_per_s * input_tokens / requests,
        "output_tokens_per_s_per_gpu": tokens_per_s / (deployment.devices * replicas / deployment.replicas),
        "output_tokens_per_s_per_user": 1 / mean_tpot_s if mean_tpot_s else None,
        "requests_per_s": span.requests_per_s,
        **({} if span == whole_run else {"run_requests_per_s": whole_run.requests_per_s}),
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
        **_admission_figures(simulated, deployment, requests),
        **_adapter_figures(simulated, deployment, requests),
    }  # fmt: skip


def _admission_figures(simulated: Simulated, deployment: Deployment, requests: int) -> dict[str, float | None]:
    """Return the share of the requests that are refused; none where nothing is."""
    if deployment.admission is None:
        return {}
    refused = len(simulated.refused)
    return {"refused_requests": refused / (refused + requests)}


def _adapter_figures(simulated: Simulated, deployment: Deployment, requests: int) -> dict[str, float | None]:
    """Return the figures of LoRA adapters; none without adapters."""
    if deployment.adapters is None:
        return {}
    pools = simulated.prefill or simulated.outcomes
    waited_s, busy_s = (sum(getattr(outcome, name) for outcome in pools) for name in ("adapter_wait_s", "busy_s"))
    return {
        "adapter_loads_per_request": sum(outcome.adapter_loads for outcome in pools) / requests,
        "adapter_wait": waited_s / busy_s,
    }


def mean_replicas(simulated: Simulated, deployment: Deployment, span: MeasuredSpan) -> float:
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
    found_tokens = [outcome.found_tokens for outcome in outcomes if outcome.found_tokens is not None]
    return {"prefix_hit_rate": sum(found_tokens) / input_tokens} if found_tokens else {}


def hit_rates(outcomes: Sequence[Outcome]) -> tuple[float, ...] | None:
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

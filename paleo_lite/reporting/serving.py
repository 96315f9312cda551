"""Document of a deployment under traffic: latencies, throughput, memory, and ranked deployments."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from ..engines.division import Division
from ..serving.answers import Serving
from ..serving.candidates import (
    RANKINGS,
    SHOWN_CANDIDATES,
    Candidate,
    DeploymentAdvice,
    is_ranked_by_figure,
    prices_of,
)
from ..serving.classes import ClassAnswer
from ..serving.elastic import Count
from ..serving.figures import ALL_FIGURES, describe_figure
from ..serving.intervals import Figure
from ..serving.kernel_timer import KernelTime
from ..serving.outcomes import LATENCIES
from ..serving.prefill_pool import PrefillPool
from ..serving.price_basis import describe_prices
from ..text import format_plural
from ..units import format_number, format_si
from .columns import find_column, part_column, select_columns
from .document import Document, Table, raw_table
from .formats import format_percent, format_time_short

PERCENTAGES = (
    "cache_occupancy",
    "peak_cache_occupancy",
    "utilisation",
    "prefix_hit_rate",
    "adapter_wait",
    "refused_requests",
)
"""Figures that are fractions."""


NEARLY_ALWAYS = 0.9
"""Share of the time in iterations above which a pool that is not overloaded would be taken for one that is."""

SHOWN_COUNTS = 24
"""Changes of the number of replicas that are shown."""

SHOWN_REFUSALS = 4
"""Deployments that were not simulated whose reasons are shown."""

DEGREES = select_columns("expert_parallel", "attention_data_parallel", "pipeline")
"""Columns of degrees of parallelism that are left out where all deployments have 1."""


def serving_page(serving: Serving, top: int | None = None) -> Document:
    """Return the document of a deployment under traffic; of ranked ones with the `top` ones."""
    figures, latencies = serving.figures, serving.latencies
    kind = "" if serving.is_forecast else " (bound from the data sheet)"
    per_token = ""
    if latencies["tpot_s"]["p50"].value is not None:  # an answer of one token has no next one
        per_token = f"{_show(latencies['tpot_s']['p50'], format_time_short)} per token (p50), "
    title = (
        f"{_describe_shortage(serving)}{_describe_overload(serving)}{serving.network} on {_describe_devices(serving)}, "
        f"{_describe_formats(serving)}, {serving.engine}, {serving.traffic}: "
        f"time to first token {_show(latencies['ttft_s']['p50'], format_time_short)}, "
        f"{per_token}{_show(figures['output_tokens_per_s'], format_number)} tokens/s{kind}"
    )
    content: list[Any] = [_latency_table(serving), _figure_table(serving)]
    if serving.classes is not None:
        content.insert(1, _class_table(serving.classes))
    if serving.replica_counts is not None:
        content.append(_replica_table(serving.replica_counts))
    if serving.advice is not None:
        content.insert(0, _candidate_table(serving, top))
    if serving.kernels is not None:
        content.append(_kernel_table(serving, serving.kernels))
    return Document(
        title, _facts(serving), content, _notes(serving), data=lambda: _data(serving), commands=_commands(serving)
    )


def _describe_shortage(serving: Serving) -> str:
    """Return the beginning of a headline that says that no deployment fits into the devices; empty if one does."""
    if serving.advice is None or not serving.exceeds_workers:
        return ""
    allowed = format_plural(serving.advice.devices or 0, "device")
    return f"DOES NOT FIT into {allowed}, which is all that `--workers` allows; the nearest needs {serving.devices}: "


def _describe_overload(serving: Serving) -> str:
    """Return the beginning of a headline that says which requests are not answered; empty if all are."""
    at_most = ""
    if serving.exceeds_saturation:
        at_most = _show(serving.figures["saturation_requests_per_s"], format_number)
    if serving.is_overloaded:
        return f"OVERLOADED, at most {at_most} requests/s are answered and the queue grows: "
    share = serving.refused_share
    if share is None or not (share or at_most):
        return ""
    refused = f"REFUSES {format_percent(share)} of the requests"
    return f"{refused}, and in the long run what exceeds {at_most} requests/s: " if at_most else f"{refused}: "


def _commands(serving: Serving) -> list[tuple[str, str]]:
    """Return the commands that launch the deployment, or ask for the recommended one alone, with their purpose."""
    commands = []
    if serving.advice is not None and serving.advice.command is not None:
        commands.append(("Ask for the recommended deployment alone", serving.advice.command))
    pool = serving.prefill_pool
    if pool is not None and pool.launch_command is not None:
        commands.append((_launch_purpose(pool.engine, pool.replicas, "prefill pool"), pool.launch_command))
    if serving.launch_command is not None:
        role = "" if pool is None else "decode pool"
        commands.append((_launch_purpose(serving.engine, serving.replicas, role), serving.launch_command))
    return commands


def _launch_purpose(engine: str, replicas: int, role: str) -> str:
    """Return what a command launches, such as ``Launch under vllm, for each of 2 replicas of the prefill pool``."""
    if role:
        number = "the replica" if replicas == 1 else f"each of {replicas} replicas"
        return f"Launch under {engine}, for {number} of the {role}"
    return f"Launch under {engine}" + ("" if replicas == 1 else f", for each of {replicas} replicas")


def _describe_devices(serving: Serving) -> str:
    """Return number and name of the devices, of each pool where they have different ones."""
    pool = serving.prefill_pool
    if pool is not None and pool.gpu != serving.gpu:
        decode_devices = serving.devices - pool.devices
        return f"{pool.devices} x {pool.gpu_name} for prompts and {decode_devices} x {serving.gpu_name}"
    name = f"{serving.devices} x {serving.gpu_name}" if serving.devices > 1 else serving.gpu_name
    return name if _has_constant_replicas(serving) else f"up to {name}"


def _has_constant_replicas(serving: Serving) -> bool:
    """Return whether the number of replicas is constant."""
    counts = serving.replica_counts
    return counts is None or all(count.serving + count.starting in (0, serving.replicas) for count in counts)


def _describe_formats(serving: Serving) -> str:
    """Return the precision, and the format of the weights where it is another one."""
    has_other = serving.weights.split()[0] != serving.precision
    return f"{serving.precision} with weights in {serving.weights}" if has_other else serving.precision


def _describe_memory(pool: Serving | PrefillPool, per_device: str = "per device") -> str:
    """Return the memory of a device, and the tokens that the cache of a replica holds."""
    return (
        f"{per_device} weights {format_si(pool.weights_bytes, 'B', 3)}, activations "
        f"{format_si(pool.activations_bytes, 'B', 3)}, cache {format_si(pool.cache_bytes, 'B', 3)} "
        f"for {pool.cache_tokens:,} tokens"
    )


def _describe_transfer(pool: PrefillPool) -> str:
    """Return the time from one pool to the other, and what it consists of."""
    sent = f"for {format_si(pool.transferred_bytes, 'B', 3)} over {pool.transfer_link}"
    parts = {
        sent: pool.transfer_bytes_s,
        "to read its blocks": pool.transfer_blocks_s,
        "of messages": pool.transfer_messages_s,
        "of iterations of the decode pool": pool.transfer_iterations_s,
    }
    shown = ", ".join(f"{format_si(seconds, 's', 3)} {what}" for what, seconds in parts.items() if seconds)
    return f"{format_si(pool.transfer_s, 's', 3)} for a prompt: {shown}"


def _show(figure: Figure, show: Callable[[float], str]) -> str:
    return "-" if figure.value is None else show(figure.value)


def _interval(figure: Figure, show: Callable[[float], str]) -> str | None:
    if figure.low is None or figure.high is None:
        return None
    return f"{show(figure.low)} to {show(figure.high)}"


def _advice_facts(serving: Serving) -> list[tuple[str, str]]:
    """Return the objectives, which of them are missed, and the recommendation."""
    facts = []
    if serving.slo is not None:
        objectives = ", ".join(serving.slo["objectives"])
        highest = serving.slo["highest_requests_per_s"]
        if serving.advice is None:
            arrivals = serving.slo["arrivals"]
            text = f"not met at any rate with {arrivals}"
            if highest is not None:
                text = f"up to {format_number(highest)} requests/s{_describe_ends(serving)} with {arrivals}"
            facts.append(("objectives", f"{objectives}: {text}"))
        else:
            facts.append(("objectives", objectives))
        if serving.slo["missed"]:
            facts.append(("MISSED", f"{', '.join(serving.slo['missed'])} with this traffic"))
    if serving.advice is not None and serving.exceeds_workers:
        needed = format_plural(serving.devices, "device")
        facts.append(("MISSED", f"{needed}, of which `--workers` allows {serving.advice.devices}"))
    if serving.advice is not None and serving.advice.best is not None:
        advice = serving.advice
        is_known = is_ranked_by_figure(advice.candidates, advice.by, has_rate=advice.rate_per_s is not None)
        kind = RANKINGS[advice.by].best if is_known else "fewest devices"
        facts.append((kind, _describe(serving.advice.best, advice)))
    if serving.advice is not None:
        facts.append(("prices", describe_prices(prices_of(serving.advice))))
    return facts


def _describe_ends(serving: Serving) -> str:
    """Return the interval of the highest rate that meets the objectives, in brackets; empty without one."""
    interval = None if serving.slo is None else serving.slo["highest_interval"]
    if interval is None:
        return ""
    return f" ({format_number(interval[0])} to {format_number(interval[1])} at 90%)"


def _facts(serving: Serving) -> list[tuple[str, str]]:
    facts = _advice_facts(serving)
    saturation = serving.figures.get("saturation_requests_per_s")
    if saturation is not None and saturation.value is not None:
        interval = _interval(saturation, format_number)
        at_90 = f" ({interval} at 90%)" if interval else ""
        facts.append(("saturation", f"{format_number(saturation.value)} requests/s{at_90}"))
    parallelism = "1 device"
    if serving.devices > 1:
        replicas = "replica" if serving.replicas == 1 else "replicas"
        division = Division(serving.tensor, serving.pipeline, serving.expert_parallel, serving.attention_data_parallel)
        parallelism = f"{division.describe()}, {serving.replicas} {replicas}"
    pool = serving.prefill_pool
    if pool is not None:
        prompts = Division(pool.tensor, pool.pipeline, pool.expert_parallel, pool.attention_data_parallel)
        number = f"{pool.replicas} {'replica' if pool.replicas == 1 else 'replicas'}"
        busy = f"in iterations {format_percent(pool.utilisation)} of the time"
        if pool.utilisation > NEARLY_ALWAYS and not serving.is_overloaded:
            busy += ", which compute more prompts at once under more load"
        facts.append(("prefill pool", f"{pool.gpu}, {pool.engine}, {prompts.describe()}, {number}, {busy}"))
        facts.append(("transfer", _describe_transfer(pool)))
    if pool is not None:
        parallelism = f"{serving.gpu}, {serving.engine}, {parallelism}"
    facts.append(("parallelism" if pool is None else "decode pool", parallelism))
    facts.append(("weights", f"{serving.weights}, KV cache {serving.kv_cache}"))
    per_device = "per device of the fullest stage" if serving.pipeline > 1 else "per device"
    if pool is None:
        facts.append(("memory", _describe_memory(serving, per_device)))
    else:
        facts.append(("prefill memory", _describe_memory(pool)))
        facts.append(("decode memory", _describe_memory(serving, per_device)))
    hit_rate = serving.figures.get("prefix_hit_rate")
    if hit_rate is not None and hit_rate.value is not None:
        prefix_cache = f"{format_percent(hit_rate.value)} of the prompts' tokens found"
        rates = serving.prefix_hit_rates or ()
        if len(rates) > 1:
            prefix_cache += f", by replica {format_percent(min(rates))} to {format_percent(max(rates))}"
        facts.append(("prefix cache", prefix_cache))
    facts.append(("engine", f"{serving.engine}: {serving.engine_limits}"))
    facts.append(("overhead", f"{format_si(serving.overhead_s, 's', 3)} per iteration"))
    simulated = f"{format_plural(serving.requests, 'request')} in {format_si(serving.duration_s, 's', 3)}"
    if serving.shortened_requests:
        simulated += f", {serving.shortened_requests:,} of them with shortened answers, which rates count in part"
    facts.append(("simulated", simulated))
    facts.append(("time model", serving.model))
    return facts


def _latency_table(serving: Serving) -> Table:
    rows: list[dict[str, Any]] = []
    for name, label in LATENCIES.items():
        parts = serving.latencies[name]
        row: dict[str, Any] = {"latency": label, "interval": _interval(parts["p50"], format_time_short)}
        row.update({part: figure.value for part, figure in parts.items()})
        rows.append(row)
    of_median = find_column("interval", title="p50 at 90%", show=str)  # of one of the figures of the row
    columns = select_columns("latency", "mean", "p50", of_median, "p90", "p99", drop=("interval", "mean"), short=True)
    return Table("Latency of a request", columns, rows)


def _figure_table(serving: Serving) -> Table:
    rows = []
    for name in ALL_FIGURES:
        figure = serving.figures.get(name)
        if figure is None or figure.value is None:
            continue
        show = format_percent if name in PERCENTAGES else format_number
        label = describe_figure(name, serving.figures, is_split=serving.prefill_pool is not None)
        rows.append({"figure": label, "value": show(figure.value), "interval": _interval(figure, show)})
    value, interval = find_column("value", left=False), find_column("interval", show=str)  # in the units of the figures
    columns = select_columns("figure", value, interval, drop=("interval",))
    return Table("Throughput, cache and cost", columns, rows)


def _class_table(classes: Sequence[ClassAnswer]) -> Table:
    rows = [{name: getattr(answered, name) for name in ClassAnswer.__struct_fields__} for answered in classes]
    columns = [
        part_column("name", str).replace(title="class", left=True),
        part_column("priority", str),
        part_column("requests", format_number),
        *(
            part_column(f"{latency}_{part}_s", format_time_short).replace(title=f"{latency}\n{part}")
            for latency in ("ttft", "tpot", "latency")
            for part in ("p50", "p90")
        ),
    ]
    if any(answered.limits for answered in classes):
        columns.append(part_column("limits", str).replace(left=True))
        columns.append(part_column("within", format_percent).replace(title="within\nlimits"))
    return Table("Classes of requests", columns, rows)


def _replica_table(counts: Sequence[Count]) -> Table:
    shown = counts[:SHOWN_COUNTS]
    rows = [{"time_s": count.time_s, "serving": count.serving, "starting": count.starting} for count in shown]
    title = "Replicas over time"
    if len(counts) > len(shown):
        title += f" ({len(shown)} of {len(counts)} changes; --format json has all)"
    columns = [
        find_column("time_s", title="from"),  # when the numbers begin
        part_column("serving", format_number),
        part_column("starting", format_number),
    ]
    return Table(title, columns, rows)


def _kernel_table(serving: Serving, kernels: Sequence[KernelTime]) -> Table:
    rows = [{name: getattr(kernel, name) for name in KernelTime.__struct_fields__} for kernel in kernels]
    launches = find_column("launches", show=format_number)  # a mean
    columns = select_columns(find_column("kernel", key="name"), launches, "time_s", "share", short=True)
    sequences = max(round(serving.figures["mean_sequences"].value or 1.0), 1)
    batch = format_plural(sequences, "sequence")
    total_s = sum(kernel.time_s for kernel in kernels)
    return Table(f"Kernels of a decode step with {batch}: {format_time_short(total_s)}", columns, rows)


def _candidate_table(serving: Serving, top: int | None) -> Table:
    """Return the table of ranked deployments, of which the first `SHOWN_CANDIDATES` at most are known in order."""
    assert serving.advice is not None
    advice, ranking = serving.advice, RANKINGS[serving.advice.by]
    candidates = _within_devices(advice)
    shown = [candidate for candidate in candidates if candidate.is_on_front or candidate.meets_objectives]
    ranked = ranking.figure(has_rate=advice.rate_per_s is not None)
    rows = [_row(candidate) for candidate in shown[: min(top or SHOWN_CANDIDATES, SHOWN_CANDIDATES)]]
    columns = select_columns(
        "is_chosen",
        "gpu",
        "tensor",
        *[column for column in DEGREES if any(getattr(candidate, column.key) > 1 for candidate in candidates)],
        "weights",
        "batch_limit",
        *[name for name in POOLS_AND_DRAFTS if any(getattr(candidate, name) is not None for candidate in candidates)],
        find_column("output_tokens_per_s_per_gpu", key="tokens_per_s_per_gpu"),
        find_column("output_tokens_per_s_per_user", key="tokens_per_s_per_user"),
        "replicas",
        "memory_bytes",
        "power_w",
        *(name for name in RANKED if name == ranked or any(row[name] is not None for row in rows)),
        *(["missed"] if any(row["missed"] for row in rows) else []),
        "is_on_front",
        drop=(
            "memory_bytes",
            "power_w",
            "is_on_front",
            *(name for name in RANKED if name != ranked),
            "replicas",
            "tokens_per_s_per_user",
        ),  # the ranked one, and what is missed, stay
        short=True,
    )
    simulated = f"{len(rows)} of {len(candidates)}"
    too_large = len(advice.candidates) - len(candidates) + len(advice.too_large)
    if too_large:
        simulated += f", without {too_large:,} that need more than {format_plural(advice.devices or 0, 'device')}"
    if advice.left_out:
        left_out = format_plural(len(advice.left_out), "other")
        simulated += f", and without {left_out} that bounds show to be neither among these nor on the front"
    if advice.splits_estimated:
        simulated += f"; split pools: the best of {advice.splits_estimated:,} pairs"
    order = ranking.order
    if advice.rate_per_s is not None:
        order = ranking.order_at_rate.format(rate=f"{format_number(advice.rate_per_s)} requests/s")
    if not is_ranked_by_figure(candidates, advice.by, has_rate=advice.rate_per_s is not None):
        order = f"as no {ranking.needs} is known those of the fewest devices"
    choice = "* is chosen" if advice.best is not None else "none is chosen: each misses something"
    load = "in short simulations at full load" if advice.rate_per_s is None else "at full load, not at the rate"
    return Table(f"Deployments, {order} first, tokens {load} ({simulated}; {choice})", columns, rows)


def _within_devices(advice: DeploymentAdvice) -> list[Candidate]:
    """Return the candidates that have no more devices than are allowed; all of them if none has."""
    if advice.devices is None:
        return advice.candidates
    return [candidate for candidate in advice.candidates if candidate.devices <= advice.devices] or advice.candidates


POOLS_AND_DRAFTS = ("prefill", "draft")
"""Columns of what only some deployments have."""

RANKED = (
    "usd_per_million_output_tokens",
    "joules_per_million_output_tokens",
    "rate_joules_per_million_output_tokens",
    "usd_per_h",
)
"""Columns of the figures by which deployments are ranked."""


def _row(candidate: Candidate) -> dict[str, Any]:
    row = {name: getattr(candidate, name) for name in Candidate.__struct_fields__}
    chosen = {name: getattr(candidate, name) for name in POOLS_AND_DRAFTS}
    return {**row, **{name: None if choice is None else choice.describe() for name, choice in chosen.items()}}


def _describe(candidate: Candidate, advice: DeploymentAdvice) -> str:
    text = f"{candidate.replicas} x {candidate.gpu} {candidate.parallelism()}, "
    if candidate.prefill is not None:
        text = f"{candidate.prefill.describe()} for prompts, {text}"
    text += f"weights {candidate.weights}, "
    if candidate.draft is not None:
        text += f"drafts {candidate.draft.describe()}, "
    text += f"at most {format_plural(candidate.batch_limit, 'sequence')}"
    if candidate.usd_per_h is not None:
        text += f": {format_number(candidate.usd_per_h)} USD/h"
    ranked = RANKINGS[advice.by].figure(has_rate=advice.rate_per_s is not None)
    if RANKINGS[advice.by].needs == "power" and getattr(candidate, ranked) is not None:
        text += f", {format_number(getattr(candidate, ranked) / 1e3)} kJ per 1M tokens"
    if candidate.low_requests_per_s is not None and advice.rate_per_s is not None:
        free = 1 - advice.rate_per_s / candidate.low_of_all_per_s
        text += f", {free:.0%} of the lower end of saturation free"
    return text


def _notes(serving: Serving) -> list[str]:
    notes = list(serving.notes)
    if serving.advice is not None:
        refused = [f"not simulated: {names}: {reason}" for reason, names in _by_reason(serving.advice.refused)]
        notes += refused[:SHOWN_REFUSALS]
        if len(refused) > SHOWN_REFUSALS:
            notes.append(f"not simulated: {len(refused) - SHOWN_REFUSALS} further deployments, listed by --format json")
    return notes


def _by_reason(refused: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield each reason once, with the deployments that it applies to."""
    names: dict[str, list[str]] = {}
    for name, reason in refused.items():
        names.setdefault(reason, []).append(name)
    for reason, several in names.items():
        yield reason, "; ".join(several)


def _data(serving: Serving) -> Table:
    """Return one row per figure with its interval, or one per deployment if they were ranked."""
    if serving.advice is not None:
        return raw_table([_row(candidate) for candidate in serving.advice.candidates])
    rows = []
    for name, parts in serving.latencies.items():
        for part, figure in parts.items():
            rows.append({"figure": f"{name}_{part}", "value": figure.value, "low": figure.low, "high": figure.high})
    for name, figure in serving.figures.items():
        rows.append({"figure": name, "value": figure.value, "low": figure.low, "high": figure.high})
    return raw_table(rows)

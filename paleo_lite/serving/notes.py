"""Notes on a deployment under traffic: what is assumed, and what limits it."""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec
import numpy as np

from ..architectures.families.network import NEXT_TOKEN_LAYERS
from ..architectures.network import DECODER_ALONE
from ..timing.notes import clock_notes, published_weights_note, setting_notes
from ..timing.power import MIN_FRACTION
from ..units import format_hours, format_number, format_si
from .cache import CacheRoom
from .deployment import Deployment, have_connector, why_apart
from .elastic import Elasticity
from .iteration_times import ScheduledTokens
from .latencies import STALL_S
from .lengths import Lengths
from .options import Speculation
from .outcomes import Outcome, request_latencies
from .prefix_cache import prefix_hit_rate
from .prepared import PreparedDeployment
from .requests import MAX_REQUESTS, Traffic, generators_of, requests_of_loop
from .speech import speech_notes
from .stores import host_link_notes
from .timed_engine import undivided_iteration_s

_FIXED_SHARE = 0.05
"""Share of a sequence's cache that does not grow with its length, above which the number of tokens says little."""

EXPERTS_WITHOUT_ADAPTERS = "LoRA adapters are those of attention and of dense layers: of experts none are modelled"


def notes_of(
    prepared: PreparedDeployment, traffic: Traffic, figures: dict[str, float | None], notes: Sequence[str]
) -> list[str]:
    """Return given notes, and those on the traffic and on what is simulated, but not on its launch."""
    deployment = prepared.deployment
    on_device, timer = deployment.on_device, deployment.timer
    context = traffic.mean_context
    network_notes = on_device.decode_workload(max(round(context), 1)).network.notes
    requested = _setting_notes(prepared, figures["mean_sequences"] or 1.0)
    if deployment.options.speculation.heads == "mtp":
        others = tuple(note for note in network_notes if not note.startswith(NEXT_TOKEN_LAYERS))
        if others == network_notes:
            requested.append(
                f"the config of {on_device.workload.network.name} has no layers that predict further tokens: "
                "`draft=mtp` needs weights that were trained with them"
            )
        network_notes = others  # these layers draft
    published = published_weights_note(on_device.workload)
    if published is not None:
        requested.append(published)
    if deployment.adapters is not None and on_device.workload.has_experts:
        requested.append(EXPERTS_WITHOUT_ADAPTERS)
    if on_device.workload.network.is_speech_model:
        requested += speech_notes(on_device.workload.network)
        network_notes = tuple(note for note in network_notes if note != DECODER_ALONE)  # a server has both
    all_notes = list(
        dict.fromkeys((*notes, *requested, *drafting_notes(prepared, context), *network_notes, *timer.notes))
    )
    all_notes += _device_notes(prepared, traffic)
    all_notes += _adapter_notes(deployment, figures)
    if deployment.elasticity is not None:
        all_notes += _elastic_notes(prepared, traffic, deployment.elasticity)
    if traffic.hashes is not None and traffic.sessions is None:
        all_notes.append(
            f"{prefix_hit_rate(traffic.hashes):.1%} of the blocks of these prompts were in earlier ones: replicas that "
            "take requests in turn, and caches that evict, find fewer"
        )
    rate_per_s = traffic.rate_per_s
    capacity_per_s = figures.get("saturation_requests_per_s")
    refused = figures.get("refused_requests")
    if refused:
        all_notes.insert(
            0,
            f"{refused:.1%} of the requests are refused: latencies are those of the others, from the first request on",
        )
    is_endless = deployment.admission is None
    if rate_per_s is not None and capacity_per_s is not None and rate_per_s > capacity_per_s and is_endless:
        all_notes.insert(
            0,
            f"{format_number(rate_per_s)} requests/s exceed the saturation rate of {capacity_per_s:.3g}: the queue "
            "grows as long as requests arrive, and latencies depend on the number of requests",
        )
    return all_notes


LONG_ADAPTER_WAIT = 0.1
"""Share of the time in which requests wait for slots of adapters above which a note says so."""


SETTLED = 10
"""Multiple of the time of a median answer after which throughput no longer depends on the first requests."""


QUEUED = 2
"""How many times as long an answer takes in the long run, when queues are full, as in the first rounds, at most."""


def short_run_notes(traffic: Traffic, median_s: float | None) -> list[str]:
    """Return a note where requests that may be refused arrive for too short a time; `median_s` is that of an answer.

    Answers that begin together at first end together for some rounds.
    """
    arriving_s = float(traffic.arrival_s.max())
    if median_s is None or not 0 < arriving_s < SETTLED * median_s:
        return []
    count = _round_up(QUEUED * len(traffic) * SETTLED * median_s / arriving_s)
    more = _more_requests(traffic, f"`--num-requests {count}`, or more,")
    return [
        f"requests arrive for {arriving_s:.3g} s, and an answer takes {median_s:.3g} s: throughput and the share that "
        f"is refused are those of the first rounds; {more}"
    ]


def _more_requests(traffic: Traffic, option: str) -> str:
    """Return how to see the long run: by an option, unless the requests are those of a trace."""
    if traffic.is_trace:
        return "the trace is too short for the long run"
    return f"give {option} for the long run"


def _round_up(count: float) -> int:
    """Return a number with two digits that is not smaller."""
    step: int = 10 ** max(math.floor(math.log10(count)) - 1, 0)
    return math.ceil(count / step) * step


RELAXATIONS = 4.0
"""Relaxation times after which a queue is within 2% (e^-4) of its steady state."""


def unsteady_notes(prepared: PreparedDeployment, traffic: Traffic, saturation_per_s: float | None) -> list[str]:
    """Return a note where requests arrive at so nearly the saturation rate that their queue is not steady yet.

    The relaxation time of a queue with drawn arrivals and servings of equal length, in servings, is
    1 / (2.8 (1 - sqrt(share))^2) (Odoni and Roth 1983, An empirical investigation of the transient behavior of
    stationary queueing systems).
    """
    rate_per_s = traffic.rate_per_s
    if rate_per_s is None or not saturation_per_s or rate_per_s >= saturation_per_s:
        return []
    share = rate_per_s / saturation_per_s
    of_replica = RELAXATIONS / (2.8 * (1 - math.sqrt(share)) ** 2)
    needed = of_replica * prepared.deployment.replicas
    if len(traffic) >= needed or traffic.follows is not None or np.ptp(np.diff(traffic.arrival_s)) < EQUAL_GAPS_S:
        return []
    more = _more_requests(traffic, f"`--num-requests {_round_up(needed)}`")
    if needed > MAX_REQUESTS and not traffic.is_trace:
        more = f"not even the {MAX_REQUESTS:,} that can be simulated reach the long run"
    return [
        f"at {share:.1%} of the saturation rate the queue still grows after {len(traffic):,} requests, and so do "
        f"latencies: {more}"
    ]


MATERIAL_SHARE = 0.1
"""Share of a first token's time from which on its part that only users of closed loops wait is named."""


def front_end_notes(prepared: PreparedDeployment, traffic: Traffic, ttft_s: float | None) -> list[str]:
    """Return a note on what requests of a closed loop wait for in front of the engine, beside those at a rate."""
    engine = prepared.engine if prepared.prefill is None else prepared.prefill.engine
    added_s = engine.request_kernels_s + engine.request_token_s * float(traffic.input_tokens.mean())
    if traffic.concurrency is None or not ttft_s or added_s < MATERIAL_SHARE * ttft_s:
        return []
    return [
        f"first tokens include {format_si(added_s, 's', 3)} in front of the engine that benchmarks of users who send "
        "the next request after an answer show, and those of a rate do not"
    ]


STREAMED_SHARE = 0.8
"""Share of the tokens that a process can stream from which on clients wait for it."""


def streaming_notes(prepared: PreparedDeployment, traffic: Traffic, tokens_per_s: float | None) -> list[str]:
    """Return a note where answers have nearly as many tokens per second as the process that streams them can send."""
    engine = prepared.engine
    if prepared.prefill is not None or not engine.response_s or not tokens_per_s:
        return []
    most_per_s = engine.stream_interval / engine.response_s
    if tokens_per_s < STREAMED_SHARE * most_per_s * prepared.deployment.replicas:
        return []
    who = "users wait for it"
    if traffic.concurrency is None:
        who = "clients that stream answers over HTTP would wait for it, and latencies and rates leave it out"
    return [
        f"one process of a server of {engine.program} streams all answers, at most {most_per_s:,.0f} tokens per "
        f"second: {who}; `--engine-settings stream-interval=N` sends N tokens together"
    ]


def stall_notes(prepared: PreparedDeployment, traffic: Traffic) -> list[str]:
    """Return a note on the stall of pools that are not warm, which the intervals of split pools contain."""
    if prepared.prefill is None or len(prepared.levels) == 1:
        return []
    requests = len(traffic.counted)
    of_each = format_si(STALL_S / requests, "s", 3)
    return [
        f"the upper ends of the mean time to first token and latency contain a stall of {STALL_S:g} s at the first "
        f"requests, {of_each} of each of {requests:,}, of split pools that compile kernels then: of warm pools they "
        "are lower, and medians and other quantiles do not contain it"
    ]


UNEVEN = 4
"""Multiple of the time for which requests wait before the middle replica from which on another one has a queue of its
own: between 1.1 and 1.2 where a router spreads the load, 9 and more where prompts meet in one replica."""


def queue_notes(outcomes: Sequence[Outcome], ttft_s: float | None) -> list[str]:
    """Return a note where requests wait before one replica of several much longer than before the others.

    Which prompts meet there is chance: over six random orders of the prompts of a published benchmark with eight
    replicas, the mean time to first token is 5.5 to 15 s.
    """
    waits_s = sorted(float(np.mean(outcome.admitted_s - outcome.arrival_s)) for outcome in outcomes)
    longest_s, others_s = waits_s[-1], waits_s[:-1]
    if len(others_s) < 2 or longest_s < UNEVEN * waits_s[len(waits_s) // 2]:
        return []
    if not ttft_s or longest_s / len(outcomes) < MATERIAL_SHARE * ttft_s:
        return []
    return [
        f"before one of {len(outcomes)} replicas requests wait {longest_s:.3g} s in the mean, before the others "
        f"{others_s[0]:.3g} to {others_s[-1]:.3g} s: times to first token depend on which prompts meet there, which is "
        "chance"
    ]


EQUAL_GAPS_S = 1e-9
"""Difference of the gaps between arrivals up to which they are equal, so that no queue grows below saturation."""

IN_ROUNDS = 1.1
"""Multiple of the saturation rate from which on a simulation that answers more says why."""


def rounds_notes(traffic: Traffic, answered_per_s: float, saturation_per_s: float | None) -> list[str]:
    """Return a note where more requests were answered than the saturation rate allows in the long run.

    Equal answers that begin together end together. The prompts that follow share iterations, of which one rank of
    attention data parallelism alone would let all others wait.
    """
    if saturation_per_s is None or answered_per_s <= IN_ROUNDS * saturation_per_s:
        return []
    lengths = "answers of one length" if np.ptp(traffic.output_tokens) == 0 else "answers"
    return [
        f"{answered_per_s:.3g} requests/s were answered from the first request to the last answer: {lengths} that "
        "begin together end together, and the prompts that follow share iterations; the saturation rate of "
        f"{saturation_per_s:.3g} is that of answers that end at different times"
    ]


USUAL_DEVIATION = 0.5
"""Standard deviation of the answers of users, relative to their mean.

It is about 0.9 of Azure's conversations (a normal distribution of logarithms through the median and the quantile of 95%
of `paleo_lite.serving.lengths.DATASETS`); answers that end at a limit deviate less.
"""

IN_STEP = 1.5
"""Ratio of the times to first token with equal and with drawn answers above which a note says so."""

MOST_DRAWN = 20_000
"""Requests of a simulation up to which it is repeated with drawn answers."""


def in_step_notes(prepared: PreparedDeployment, traffic: Traffic, ttft_s: float | None) -> list[str]:
    """Return a note where first tokens of a closed loop are late only because its answers are equally long.

    `ttft_s` is the ninth decile of the times to first token. The simulation is repeated with drawn answers, at the
    expected times alone.
    """
    deployment, outputs = prepared.deployment, traffic.output_tokens[traffic.counted]
    users, answer_tokens = traffic.concurrency, int(outputs[0])
    is_equal = int(np.ptp(outputs)) == 0 and answer_tokens > 1 and traffic.follows is None and not traffic.is_trace
    if not is_equal or users is None or users <= deployment.replicas or not ttft_s or len(traffic) > MOST_DRAWN:
        return []
    deviation = max(round(USUAL_DEVIATION * answer_tokens), 1)
    lengths, _ = generators_of(deployment.options.seed)
    drawn = msgspec.structs.replace(
        traffic,
        output_tokens=Lengths(answer_tokens, deviation).draw(len(traffic), lengths),
        left_out=None,
        repeats_after=requests_of_loop(users),
    )
    drawn_s = request_latencies(prepared.run(drawn))["ttft_s"]
    drawn_ttft_s = float(np.quantile(drawn_s, 0.9))
    if ttft_s < IN_STEP * drawn_ttft_s:
        return []
    return [
        "answers of equal length keep users in step, as in benchmarks, so that their prompts wait for each other: with "
        f"`--output-tokens {answer_tokens}:{deviation}` first tokens come after {format_si(drawn_ttft_s, 's', 3)} "
        f"instead of {format_si(ttft_s, 's', 3)} (p90), and `--advise` may need fewer devices"
    ]


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


def _elastic_notes(prepared: PreparedDeployment, traffic: Traffic, elasticity: Elasticity) -> list[str]:
    """Return notes on the start of replicas that come and go, and on how often they fail."""
    notes = []
    fail_at_s, last_s = elasticity.failures.at_s, float(traffic.arrival_s.max())
    if fail_at_s is not None and fail_at_s > last_s:
        more = "" if traffic.is_trace else ", or more `--num-requests`"
        notes.append(
            f"requests arrive for {last_s:.3g} s, and no replica fails in that time: give an earlier fail-at in "
            f"`--scaling`{more}"
        )
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


def _host_notes(deployment: Deployment) -> list[str]:
    """Return a note where a tier of the cache or adapters are read over a link that is only assumed."""
    computing = deployment.prefill or deployment  # the replicas that look for prompts in the tiers
    adapters = deployment.adapters
    readers = []
    if any(store.is_read_by_devices and not store.has_own_bandwidth for store in computing.stores):
        readers.append(computing)
    if adapters is not None and adapters.slots < adapters.count:
        readers += [computing, deployment]
    return list(dict.fromkeys(note for pool in readers for note in host_link_notes(pool.on_device.machine.device)))


def _device_notes(prepared: PreparedDeployment, traffic: Traffic) -> list[str]:
    """Return notes on the cache of the devices, on pools of two engines, and on a group that one device would beat."""
    notes = []
    fixed_cache = _fixed_cache_note(prepared.room)
    if fixed_cache is not None:
        notes.append(fixed_cache)
    deployment = prepared.deployment
    notes += _host_notes(deployment)
    if deployment.prefill is not None and not have_connector(deployment.prefill, deployment):
        notes.append(
            f"no connector is known that brings keys and values from {deployment.prefill.engine.program} to "
            f"{deployment.engine.program}: both pools are timed as if there were one, without its reads of blocks"
        )
    apart = "" if deployment.prefill is None else why_apart(deployment.prefill, deployment)
    if apart:
        notes.append(f"{apart}: both pools are timed as if one fabric joined them")
    tensor = deployment.on_device.tensor
    prompt = deployment.timer.prompt_activity(max(float(traffic.input_tokens.mean()), 1.0))
    is_pipeline = deployment.on_device.pipeline.degree > 1  # whose stages send prompts on, too
    if tensor > 1 and not is_pipeline and prompt.links_s > (tensor - 1) * (prompt.arithmetic_s + prompt.memory_s):
        notes.append(
            f"prompts take longer on {tensor} devices than on one: all-reduces take longer than the products that "
            "`--tensor` saves"
        )
    return notes


def _fixed_cache_note(room: CacheRoom) -> str | None:
    """Return that the tokens of a cache depend on the lengths of requests; None if they hardly do."""
    if room.fixed_bytes <= _FIXED_SHARE * room.sequence_bytes:
        return None
    return (
        f"the cache has room for {room.tokens / room.sequence_tokens:,.0f} sequences of {room.sequence_tokens:,} "
        f"tokens, the mean of these requests: {format_si(room.fixed_bytes, 'B', 3)} of each do not grow with its "
        "length (states, windows, keys of an encoder), so that shorter requests leave room for fewer tokens"
    )


def _setting_notes(prepared: PreparedDeployment, sequences: float) -> list[str]:
    """Return notes on a requested clock or power limit."""
    on_device = prepared.deployment.on_device
    speeds = prepared.tables.limited_speed
    if not speeds:
        return setting_notes(on_device.machine, on_device.model)
    device, speed = on_device.machine.device, speeds[max(round(sequences), 1)]
    if device.requested_power_limit_w is None:
        return clock_notes(on_device.machine)
    note = f"the power limit {device.power_w:g} W "
    if speed <= MIN_FRACTION:
        note += f"is too low for {device.name} ({device.rated_power_w:g} W): the times assume {speed:.0%} of its speed"
    else:
        note += f"leaves {speed:.0%} of the speed of a decode step with {sequences:.3g} sequences"
    return [*clock_notes(on_device.machine), note]


def most_sequences_that_pay(prepared: PreparedDeployment, context: float) -> int:
    """Return the largest number of sequences at which drafting decodes faster than one token per iteration does.

    At few sequences the weights are read once for all drafted tokens; at many the products limit, and tokens that are
    not accepted take their time from others. 0 if drafting never pays.
    """
    times, engine, options = prepared.at_level("expected")
    speculation = options.speculation
    largest = 0
    for sequences in _batches(engine.max_sequences):
        scheduled = ScheduledTokens(sequences, sequences * context)
        plain_s = undivided_iteration_s(times, engine, Speculation(), scheduled)
        drafting_s = undivided_iteration_s(times, engine, speculation, scheduled)
        if drafting_s / speculation.tokens_per_iteration < plain_s:
            largest = sequences
    return largest


def _batches(largest: int) -> list[int]:
    """Return numbers of sequences up to the largest one, in steps of 12%."""
    batches = [1]
    while batches[-1] < largest:
        batches.append(min(max(batches[-1] + 1, round(1.12 * batches[-1])), largest))
    return batches


def drafting_notes(prepared: PreparedDeployment, context: float) -> tuple[str, ...]:
    """Return notes on the batch size up to which drafting is faster; none with pipeline parallelism."""
    if not prepared.deployment.options.speculation.draft_length or prepared.tables.pipeline > 1:
        return ()
    most = most_sequences_that_pay(prepared, context)
    if not most:
        return ("drafting does not pay at any number of sequences: leave `--speculation` out",)
    if most >= prepared.engine.max_sequences:
        return (f"drafting pays up to the {most:,} sequences that run at the same time in a replica",)
    return (f"drafting pays up to about {most:,} sequences per replica; more of them decode faster without it",)

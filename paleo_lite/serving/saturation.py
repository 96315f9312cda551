"""The saturation rate of a deployment: the requests per second that it sustains in the long run, however many wait.

Requests without common beginnings all arrive at once. The first answers are as long as those are that a server has in
progress at any time: if all were whole, equal ones would end together for ever, which they do in no long run but that
of a benchmark whose lengths are constant. Where caches are to be found again, a flood would be another server: no
prompt finds what is computed later, and sessions lose their turns. So users of a closed loop send those requests, whose
caches are warm when the rate is taken; there are as many of them as give the highest rate, since caches of too many
evict each other. Requests of a trace, of which there are no more, are repeated for as many users, with prefixes of
their own each time; those of a workload come again by themselves, if they do.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from .outcomes import Outcome
from .prefix_cache import BlocksOfRequests
from .prepared import PreparedDeployment
from .requests import Traffic
from .steady import middle_span

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
    Ints = NDArray[np.int64]

Rates = tuple[float, float]
"""Requests and output tokens per second."""

SATURATION_REQUESTS, FEWEST_ROUNDS = 4, 3
"""Requests of the simulation of saturation, as a multiple of those that run at the same time: usually, and at least.

Between the first and the last of them is a whole round then; half a round would be that of the answers that are short
because they were in progress (with 2.5 rounds of 4,096 places 30% too fast).
"""

MAX_SATURATION_REQUESTS = 20_000
"""Requests of a replica up to which there are as many as usual."""

FIRST_USERS = 32
"""Users per replica with whom the search for the highest rate begins."""

ROUNDS_OF_USERS = 4
"""Requests of a user of a workload without sessions at least.

Caches are warm after two, the third is measured, the last drains.
"""

ROUNDS_OF_PROMPTS = 8
"""The same where prompts are repeated as often as that takes, of which three rounds are measured.

Prompts of which two of three are found have 46.8 requests/s then, be they 3, 30 or 300, and 44.4 to 49.6 with four
rounds (Llama 3 8B, H100).
"""

REQUESTS_OF_USER = 16
"""Requests of a user of sessions at least, so that most of them are sent by users who came later than the first."""

LEAST_GAIN = 1.02
"""Ratio of the rates of twice the users and of the users from which more of them are tried."""

WARM, DRAINING = 0.5, 0.875
"""Shares of the answers after which caches are taken to be warm, and before which none of the users has left."""


def saturate_levels(prepared: PreparedDeployment, traffic: Traffic, levels: Sequence[str]) -> dict[str, Rates]:
    """Return requests and output tokens per second when requests always wait, at some levels of iteration times."""
    prepared = prepared.for_crowd(traffic)
    if _has_common_prompts(traffic, prepared.room.block_tokens):
        users, expected = _find_users(prepared, traffic)
        return {
            level: expected if level == "expected" else _rates_of_users(prepared, traffic, users, level)
            for level in levels
        }
    if _waits_for_adapters(prepared, traffic):
        return {level: _rates_with_adapters(prepared, traffic, level) for level in levels}
    running = _count_running(prepared, traffic)
    flood = _flood(prepared, traffic, running)
    answer_tokens = float(traffic.output_tokens[traffic.counted].mean())
    return {
        level: _rates_of_flood(outcomes, running, answer_tokens)
        for level, outcomes in zip(levels, _in_turn(prepared).flood(flood, levels))
    }


def saturate(prepared: PreparedDeployment, traffic: Traffic) -> Rates:
    """Return requests and output tokens per second when requests always wait, as is expected."""
    return saturate_levels(prepared, traffic, ["expected"])["expected"]


def _flood(prepared: PreparedDeployment, traffic: Traffic, running: int) -> Traffic:
    """Return requests that all come at once, of whom so many run at the same time in each replica."""
    index = _repeated(prepared, traffic, running)
    outputs = traffic.output_tokens[index]
    if prepared.prefill is None:  # from a pool of prompts they come one after the other
        first = running * prepared.deployment.replicas
        outputs[:first] = in_progress(outputs[:first], prepared.deployment.options.seed)
    adapters = None if traffic.adapters is None else traffic.adapters[index]
    return Traffic(np.zeros(len(index)), traffic.input_tokens[index], outputs, adapters=adapters)


def _waits_for_adapters(prepared: PreparedDeployment, traffic: Traffic) -> bool:
    """Return whether not all adapters are in memory at the same time."""
    adapters = prepared.deployment.adapters
    return traffic.adapters is not None and adapters is not None and adapters.slots < adapters.count


def _repeated(prepared: PreparedDeployment, traffic: Traffic, running: int) -> Ints:
    """Return the numbers of the requests that a flood has, of which so many run at the same time in each replica."""
    wanted = min(SATURATION_REQUESTS * running, MAX_SATURATION_REQUESTS)
    count = math.ceil(max(wanted, FEWEST_ROUNDS * running, 64)) * prepared.deployment.replicas
    counted = traffic.counted
    return counted[np.arange(count) % len(counted)]


def _rates_of_flood(outcomes: Sequence[Outcome], running: int, answer_tokens: float) -> Rates:
    """Return the rates of replicas, each of which has one of its own, from the mean tokens of an answer.

    In the long run all requests are answered. In the span of a few rounds those with long answers are not yet: their
    tokens were 9% too few with a deviation of 200 of 256 tokens, and requests per second 1% off those of 60 rounds.
    """
    spans = [middle_span([outcome], min(running, len(outcome.finish_s) // 2)) for outcome in outcomes]
    requests_per_s = sum(span.requests_per_s for span in spans)
    return requests_per_s, requests_per_s * answer_tokens


def _in_turn(prepared: PreparedDeployment) -> PreparedDeployment:
    """Return a deployment that gets requests as soon as they are sent, in this order and however many at a time."""
    engine = msgspec.structs.replace(
        prepared.engine,
        request_overhead_s=0.0,
        request_token_s=0.0,
        request_kernels_s=0.0,
        request_iterations=0.0,
        receive_interval=1,
        response_s=0.0,
    )
    prefill = None if prepared.prefill is None else _in_turn(prepared.prefill)
    return msgspec.structs.replace(prepared, engine=engine, prefill=prefill)


def _count_running(prepared: PreparedDeployment, traffic: Traffic) -> int:
    """Return the requests of a replica that run at the same time while others wait, by its places and its cache.

    In the mean a request has half of its answer, and what its engine reserves of the other half.
    """
    engine, counted = prepared.engine, traffic.counted
    prompt = float(traffic.input_tokens[counted].mean()) * (1 - prepared.deployment.options.prefix_hit_rate)
    answer = float(traffic.output_tokens[counted].mean())
    held = prompt + (1 + engine.reserved_output) / 2 * answer
    return max(min(engine.max_sequences, int(prepared.room.tokens / held)), 1)


def in_progress(output_tokens: Ints, seed: int = 0) -> Ints:
    """Return what is left of answers in progress at any time: a share of each that is left to chance.

    Answers that end one by one, as evenly as possible, would be another server: some end in one iteration, and what
    follows them is computed together.
    """
    shares = np.random.default_rng(seed).uniform(size=len(output_tokens))
    remaining: Ints = np.maximum(np.rint(output_tokens * shares), 1).astype(np.int64)
    return remaining


def _rates_with_adapters(prepared: PreparedDeployment, traffic: Traffic, level: str) -> Rates:
    """Return the rates of requests that all come at once, whose adapters are in memory one after the other."""
    assert traffic.adapters is not None
    index = _repeated(prepared, traffic, _count_running(prepared, traffic))
    flood = Traffic(
        np.zeros(len(index)),
        traffic.input_tokens[index],
        traffic.output_tokens[index],
        adapters=traffic.adapters[index],
    )
    requests_per_s = tokens_per_s = 0.0
    for outcome in prepared.run(flood, level):
        finish_s = float(outcome.finish_s.max())
        requests_per_s += len(outcome.finish_s) / finish_s
        tokens_per_s += float(outcome.output_tokens.sum()) / finish_s
    return requests_per_s, tokens_per_s


def _has_common_prompts(traffic: Traffic, block_tokens: int) -> bool:
    """Return whether prompts find what others have computed: those of sessions, and of which two begin alike."""
    if traffic.follows is not None:
        return True
    if traffic.hashes is None:
        return False
    firsts = [hashes[0] for hashes in BlocksOfRequests(traffic, block_tokens).hashes if hashes]
    return len(set(firsts)) < len(firsts)


def _find_users(prepared: PreparedDeployment, traffic: Traffic) -> tuple[int, Rates]:
    """Return as many users as give the highest rate, and their rates."""
    replicas = prepared.deployment.replicas
    most = prepared.engine.max_sequences * replicas
    if traffic.follows is None and traffic.sessions is not None:  # as many requests as were asked for
        most = max(min(most, len(traffic.counted) // ROUNDS_OF_USERS), 1)
    first = min(FIRST_USERS * replicas, most)
    best = (first, _rates_of_users(prepared, traffic, first))
    more = [min(first << step, most) for step in range(1, most.bit_length()) if first << step < 2 * most]
    fewer = [first >> step for step in range(1, first.bit_length())]
    for others in (more, fewer):
        for users in others:
            rates = _rates_of_users(prepared, traffic, users)
            if rates[0] < LEAST_GAIN * best[1][0]:
                break
            best = (users, rates)
        if best[0] != first:
            break
    return best


def _rates_of_users(prepared: PreparedDeployment, traffic: Traffic, users: int, level: str = "expected") -> Rates:
    """Return requests and output tokens per second of users of a closed loop, once caches are warm."""
    closed = _closed_loop(traffic, users, prepared.deployment.options.seed)
    if traffic.follows is None:  # a place stays empty for no longer than in a flood
        prepared = _in_turn(prepared)
        first, last = _whole_rounds(len(closed), users)
    else:
        first, last = (int(len(closed) * share) for share in (WARM, DRAINING))
    finish_s, tokens = _in_order(prepared.run(closed, level, answers=last + 1))
    ends_s = finish_s[[first, last]]
    begin, end = np.searchsorted(finish_s, ends_s, side="right") - 1  # of answers that end together, all or none
    return _rates_between(finish_s, tokens, int(begin), int(end))


def _whole_rounds(requests: int, users: int) -> tuple[int, int]:
    """Return the answers between which each user gets one, or several, when caches are warm and none has left."""
    last = requests - users
    rounds = max(int(last - WARM * requests) // users, 1)
    return last - rounds * users, last


def _closed_loop(traffic: Traffic, users: int, seed: int) -> Traffic:
    """Return the requests as users of a closed loop send them, who do not all begin at the same time."""
    if traffic.follows is not None:
        copies = -(-REQUESTS_OF_USER * users // len(traffic))
        return _begin_anywhere(_repeat_sessions(traffic, copies), users, seed)
    rounds = ROUNDS_OF_PROMPTS if traffic.sessions is None else ROUNDS_OF_USERS
    repeated = _repeat_prompts(traffic, copies=-(-rounds * users // len(traffic.counted)))
    outputs = repeated.output_tokens.copy()
    outputs[:users] = in_progress(outputs[:users], seed)
    return msgspec.structs.replace(repeated, output_tokens=outputs, concurrency=users)


def _repeat_prompts(traffic: Traffic, copies: int) -> Traffic:
    """Return several copies of requests that are not of sessions, each with prefixes of its own.

    So each finds what the requests find.
    """
    assert traffic.hashes is not None
    index = np.tile(traffic.counted, copies)
    hashes = [traffic.hashes[request] for request in traffic.counted.tolist()]
    return Traffic(
        np.zeros(len(index)),
        traffic.input_tokens[index],
        traffic.output_tokens[index],
        hashes=tuple(_rename(prompt, copy) for copy in range(copies) for prompt in hashes),
        hashed_tokens=traffic.hashed_tokens,
        adapters=None if traffic.adapters is None else traffic.adapters[index],
        is_trace=traffic.is_trace,
    )


def _rename(prompt: Sequence[int], copy: int) -> tuple[int, ...]:
    """Return the hashes of a prompt in a copy of its traffic."""
    return tuple(block + (copy << 64) for block in prompt)


def _repeat_sessions(traffic: Traffic, copies: int) -> Traffic:
    """Return several copies of sessions, each with prefixes of its own but for those that sessions have in common."""
    assert traffic.hashes is not None and traffic.follows is not None
    assert traffic.wait_s is not None and traffic.sessions is not None
    if copies == 1:
        return msgspec.structs.replace(traffic, arrival_s=np.zeros(len(traffic)))
    texts, text_of = _longest_texts(traffic)
    shared = _blocks_of_several(texts, [int(traffic.sessions[request]) for request in texts])
    count, sessions = len(traffic), int(traffic.sessions.max()) + 1
    follows, hashes = [], []
    for copy in range(copies):
        follows.append(np.where(traffic.follows < 0, -1, traffic.follows + copy * count))
        renamed = {
            request: tuple(block if block in shared else block + (copy << 64) for block in text)
            for request, text in texts.items()
        }
        hashes += [renamed[text][: len(prompt)] for text, prompt in zip(text_of, traffic.hashes)]
    return Traffic(
        np.zeros(copies * count),
        np.tile(traffic.input_tokens, copies),
        np.tile(traffic.output_tokens, copies),
        hashes=tuple(hashes),
        hashed_tokens=traffic.hashed_tokens,
        follows=np.concatenate(follows),
        wait_s=np.tile(traffic.wait_s, copies),
        sessions=np.concatenate([traffic.sessions + copy * sessions for copy in range(copies)]),
    )


def _longest_texts(traffic: Traffic) -> tuple[dict[int, tuple[int, ...]], list[int]]:
    """Return the hashes of requests that no later one of their session continues, and which of these each begins.

    A turn contains all that was said before, so that what is done to the blocks of a session's last one is done to all.
    """
    assert traffic.hashes is not None and traffic.follows is not None
    text_of = list(range(len(traffic)))
    for request, before in reversed(list(enumerate(traffic.follows.tolist()))):
        if before >= 0 and text_of[before] == before:
            text = traffic.hashes[text_of[request]]
            if text[: len(traffic.hashes[before])] == traffic.hashes[before]:
                text_of[before] = text_of[request]
    return {request: traffic.hashes[request] for request in dict.fromkeys(text_of)}, text_of


def _blocks_of_several(texts: Mapping[int, Sequence[int]], sessions: Sequence[int]) -> set[int]:
    """Return the blocks that texts of several sessions have in common."""
    owner: dict[int, int] = {}
    shared = set()
    for text, session in zip(texts.values(), sessions):
        for block in text:
            if owner.setdefault(block, session) != session:
                shared.add(block)
    return shared


def _begin_anywhere(traffic: Traffic, users: int, seed: int = 0) -> Traffic:
    """Return the requests of users of whom the first are anywhere in their sessions, as they are later on."""
    assert traffic.follows is not None and traffic.wait_s is not None and traffic.sessions is not None
    starts = np.flatnonzero(traffic.follows < 0)
    lengths = np.diff(np.append(starts, len(traffic)))
    skipped = np.zeros(len(starts), dtype=np.int64)
    skipped[:users] = np.random.default_rng(seed).integers(lengths[:users])
    place = np.arange(len(traffic)) - np.repeat(starts, lengths)  # of a request in its session
    is_kept = place >= np.repeat(skipped, lengths)
    kept_requests = np.flatnonzero(is_kept)
    begins = place[kept_requests] == np.repeat(skipped, lengths)[kept_requests]
    number = np.cumsum(is_kept) - 1  # of a request among those that are kept
    assert traffic.hashes is not None
    return Traffic(
        traffic.arrival_s[kept_requests],
        traffic.input_tokens[kept_requests],
        traffic.output_tokens[kept_requests],
        concurrency=users,
        hashes=tuple(traffic.hashes[request] for request in kept_requests.tolist()),
        hashed_tokens=traffic.hashed_tokens,
        follows=np.where(begins, -1, number[np.maximum(traffic.follows[kept_requests], 0)]),
        wait_s=np.where(begins, 0.0, traffic.wait_s[kept_requests]),
        sessions=traffic.sessions[kept_requests],
    )


def _rates_between(finish_s: Floats, tokens: Ints, begin: int, end: int) -> Rates:
    """Return the rates between two answers in the order of their end."""
    span_s = finish_s[end] - finish_s[begin]
    if span_s <= 0:
        begin, span_s = 0, finish_s[end]
    return float((end - begin) / span_s), float(tokens[begin:end].sum() / span_s)


def _in_order(outcomes: Sequence[Outcome]) -> tuple[Floats, Ints]:
    """Return when answers end, in order, and their tokens; those that are not known are last."""
    finish_s = np.concatenate([outcome.finish_s for outcome in outcomes])
    tokens = np.concatenate([outcome.output_tokens for outcome in outcomes])
    order = np.argsort(finish_s)
    return finish_s[order], tokens[order]

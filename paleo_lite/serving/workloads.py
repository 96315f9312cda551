"""Workloads of sessions, whose prompts have beginnings in common, made as load generators make them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from ..errors import BadQuantity, BadValue, UnknownName
from ..units import parse_quantity
from .requests import Traffic, begin_apart, generators_of, scale_to_rate

HASHED_TOKENS = 64
"""Tokens of a block of prompts, of which whole ones are found again: blocks of engines have 1 to 64."""

MOST_TURNS = 1000


class Prompts(NamedTuple):
    """Requests before they have times of arrival."""

    inputs: list[int]
    outputs: list[int]
    hashes: list[tuple[int, ...]]  # of prompt and answer
    follows: list[int]  # request whose answer each waits for; -1 for none
    sessions: list[int]
    burst: int = 1  # requests that are sent at the same time


class WorkloadKind(NamedTuple):
    """A kind of workload."""

    defaults: dict[str, float]  # settings; those in seconds end with ``_s``
    make: Callable[[Mapping[str, Any], int, np.random.Generator], Prompts]
    description: str


def _blocks(key: int, first: int, tokens: int) -> tuple[int, ...]:
    """Return hashes of the whole blocks up to some tokens that only texts of one key have, from one block on."""
    return tuple((key << 32) + number for number in range(first, tokens // HASHED_TOKENS))


def _shared_prefix(settings: Mapping[str, Any], count: int, generator: np.random.Generator) -> Prompts:
    """Make prompts of groups that have a system prompt in common.

    As inference-perf does: the prompts are shuffled once, and sent in this order again and again.
    """
    groups, prompts = settings["groups"], settings["prompts"]
    order = generator.permutation(groups * prompts)
    tokens = settings["system"] + settings["question"]
    hashes, sessions = [], []
    for request in range(count):
        prompt = int(order[request % len(order)])
        group = prompt // prompts
        system = _blocks(1 + group, 0, settings["system"])
        hashes.append(system + _blocks(1 + groups + prompt, len(system), tokens))
        sessions.append(group)
    return Prompts([tokens] * count, [settings["output"]] * count, hashes, [-1] * count, sessions)


def _conversation(settings: Mapping[str, Any], count: int, generator: np.random.Generator) -> Prompts:
    """Make sessions whose every prompt is all that was said before, and a new question or the result of a tool.

    As SGLang's bench_multiturn does: history, answers and questions of constant lengths, and more clients than requests
    under way, of which the next one is drawn at random, after a barrier only when all of a round are answered.
    """
    turns, system = settings["turns"], settings["system"]
    prompts = Prompts([], [], [], [], [])
    common = _blocks(0, 0, system)
    for request in range(count):
        session, turn = divmod(request, turns)
        history = system + turn * (settings["question"] + settings["output"])
        prompt = history + settings["question"]
        prompts.inputs.append(prompt)
        prompts.outputs.append(settings["output"])
        prompts.hashes.append(common + _blocks(1 + session, len(common), prompt + settings["output"]))
        prompts.follows.append(request - 1 if turn else -1)
        prompts.sessions.append(session)
    return prompts


def _best_of(settings: Mapping[str, Any], count: int, generator: np.random.Generator) -> Prompts:
    """Make prompts that are sent several times at once."""
    samples, prompt = settings["samples"], settings["prompt"]
    hashes = [_blocks(1 + request // samples, 0, prompt) for request in range(count)]
    sessions = [request // samples for request in range(count)]
    return Prompts([prompt] * count, [settings["output"]] * count, hashes, [-1] * count, sessions, samples)


WORKLOADS = {
    "shared-prefix": WorkloadKind(
        {"groups": 150, "prompts": 5, "system": 6000, "question": 1200, "output": 1000}, _shared_prefix,
        "groups of prompts with a common beginning, again and again, as inference-perf sends them",
    ),
    "conversation": WorkloadKind(
        {"turns": 10, "clients": 0, "system": 0, "question": 512, "output": 256, "think_s": 0.0, "barrier": 0},
        _conversation,
        "sessions whose prompts contain all that was said before",
    ),
    "agent": WorkloadKind(
        {"turns": 20, "clients": 0, "system": 8000, "question": 1000, "output": 200, "tool_s": 2.0}, _conversation,
        "sessions that wait for the seconds of a tool, whose results are the questions",
    ),
    "best-of": WorkloadKind(
        {"samples": 8, "prompt": 1000, "output": 500}, _best_of, "every prompt several times at once",
    ),
}  # fmt: skip
"""Kinds of workloads by name."""


class SessionWorkload(NamedTuple):
    """A workload with all its settings."""

    kind: str
    settings: Mapping[str, Any]

    def describe(self) -> str:
        """Return the workload as text, without settings of 0."""
        settings = [
            f"{name.removesuffix('_s')} {value:g}{' s' if name.endswith('_s') else ''}"
            for name, value in self.settings.items()
            if value
        ]
        return ", ".join([self.kind, *settings])

    @property
    def wait_s(self) -> float:
        """Seconds from an answer to the next request of its session."""
        return float(self.settings.get("think_s", self.settings.get("tool_s", 0.0)))

    def traffic(
        self,
        count: int,
        *,
        rate_per_s: float | None,
        concurrency: int | None,
        arrivals: str,
        seed: int,
        drift_apart: bool = True,
    ) -> Traffic:
        """Return so many requests; at a rate sessions start as often as their requests make the rate.

        Arrivals, and the first answers of users who `drift_apart`, are those of requests without anything in common.
        Users whose every prompt is sent several times at once stay in step.
        """
        generator = np.random.default_rng(np.random.SeedSequence(seed))
        _, arrivals_generator = generators_of(seed)
        prompts = WORKLOADS[self.kind].make(self.settings, count, generator)
        follows = np.array(prompts.follows, dtype=np.int64)
        begins = follows < 0
        has_sessions = not begins.all()
        arrival_s = np.zeros(count)
        if rate_per_s is not None and np.isfinite(rate_per_s):
            starts = int(np.ceil(begins.sum() / prompts.burst))
            per_start = count / starts
            gaps_s = np.full(starts, per_start / rate_per_s)
            if arrivals == "poisson":
                gaps_s = arrivals_generator.exponential(1.0, starts) * per_start / rate_per_s
            start_s = scale_to_rate(np.cumsum(gaps_s) - gaps_s[0], rate_per_s / per_start)
            arrival_s[begins] = np.repeat(start_s, prompts.burst)[: begins.sum()]
        output_tokens, left_out = np.array(prompts.outputs, dtype=np.int64), None
        if concurrency is not None and not has_sessions and prompts.burst == 1:
            output_tokens, left_out = begin_apart(
                output_tokens, concurrency, arrivals_generator, drift_apart=drift_apart
            )
        return Traffic(
            arrival_s,
            np.array(prompts.inputs, dtype=np.int64),
            output_tokens,
            concurrency,
            left_out,
            hashes=tuple(prompts.hashes),
            hashed_tokens=HASHED_TOKENS,
            follows=follows if has_sessions else None,
            wait_s=np.where(begins, 0.0, self.wait_s) if has_sessions else None,
            sessions=np.array(prompts.sessions, dtype=np.int64),
            clients=self.settings.get("clients") or None,
            has_rounds=bool(self.settings.get("barrier")),
        )


def parse_workload(text: str) -> SessionWorkload:
    """Parse a workload such as ``shared-prefix:groups=150,system=6000``; what is left out has its default.

    Raise UnknownName for an unknown kind or setting, and BadValue for a value that is not in its range.
    """
    name, _, listed = str(text).strip().partition(":")
    if name not in WORKLOADS:
        raise UnknownName("workload", name, WORKLOADS)
    settings: dict[str, Any] = dict(WORKLOADS[name].defaults)
    names = {key.removesuffix("_s"): key for key in settings}
    for part in filter(None, listed.split(",")):
        key, _, value = part.strip().partition("=")
        if key not in names:
            raise UnknownName(f"setting of `--workload {name}`", key, names)
        settings[names[key]] = _parse_setting(name, names[key], value)
    return SessionWorkload(name, settings)


def _parse_setting(workload: str, key: str, value: str) -> float:
    """Return the value of a setting: an integer, or seconds, also as a number without a unit."""
    is_seconds = key.endswith("_s")
    least = 0 if is_seconds or key in ("system", "clients", "barrier") else 1
    try:
        number = _parse_seconds(value) if is_seconds else int(value)
    except (ValueError, BadQuantity):
        number = -1
    most = MOST_TURNS if key in ("turns", "samples") else 10_000_000
    if not least <= number <= most:
        name, kind = key.removesuffix("_s"), "seconds" if is_seconds else "an integer"
        raise BadValue(f"`--workload {workload}`, {name}: must be {kind} from {least} to {most:,} (got {value!r})")
    return number


def _parse_seconds(value: str) -> float:
    """Return the seconds of ``5``, ``5s`` or ``500ms``; raise BadQuantity for any other text."""
    try:
        return float(value)
    except ValueError:
        return parse_quantity(value, "s")

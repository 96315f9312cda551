"""Classes of requests: their shares, lengths, priorities and limits, and what each of them experiences.

Engines admit waiting requests of a lower number of priority first, and where the cache is full give up a request of the
highest number (vLLM's `--scheduling-policy priority`; SGLang's `--enable-priority-scheduling` also interrupts running
requests, which is not simulated).
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from ..errors import BadQuantity, BadValue
from ..units import LARGEST, format_si, parse_quantity
from .lengths import Lengths, parse_lengths
from .outcomes import Outcome, request_latencies, share_within, summarize
from .requests import Traffic, begin_apart, generators_of, requests_of_loop

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]

LIMITED = {"ttft": "ttft_s", "tpot": "tpot_s", "latency": "latency_s"}
"""Latencies that a class may have a limit of."""


class RequestClass(msgspec.Struct, frozen=True):
    """Requests of one kind."""

    name: str
    share: float = 1.0  # of the requests, relative to the shares of the other classes
    priority: int = 0  # lower ones are admitted first
    inputs: Lengths | None = None  # tokens of prompts; None for those of all
    outputs: Lengths | None = None
    limits_s: tuple[tuple[str, float], ...] = ()  # latency, one of `LIMITED`, with its limit


CLASSES = "classes:"
"""Beginning of a workload that divides requests into classes."""


def parse_classes(text: str) -> list[RequestClass]:
    """Parse classes such as ``classes:chat.share=0.7,chat.ttft=500ms,batch.share=0.3,batch.priority=1``.

    Raise BadValue if a setting is unknown, or its value not in its range.
    """
    settings: dict[str, dict[str, str]] = {}
    for part in text.removeprefix(CLASSES).split(","):
        named, equals, value = part.strip().partition("=")
        name, dot, key = named.partition(".")
        if not (name and dot and equals):
            raise BadValue(f"`--workload classes` has settings such as chat.share=0.7 (got {part!r})")
        settings.setdefault(name, {})[key] = value
    return [_make_class(name, class_settings) for name, class_settings in settings.items()]


def _make_class(name: str, settings: Mapping[str, str]) -> RequestClass:
    """Return a class of some settings."""
    readers: dict[str, Callable[[str], Any]] = {
        "share": _read_share,
        "priority": _read_priority,
        "input": lambda value: parse_lengths(value, "--workload classes, input", is_input=True),
        "output": lambda value: parse_lengths(value, "--workload classes, output", is_input=False),
        **{latency: lambda value: parse_quantity(value, "s", unit_required=True) for latency in LIMITED},
    }
    values: dict[str, Any] = {}
    for key, value in settings.items():
        if key not in readers:
            raise BadValue(f"class {name!r} of `--workload` has no setting {key!r}; it has {', '.join(readers)}")
        try:
            values[key] = readers[key](value)
        except (ValueError, BadQuantity) as error:
            raise BadValue(f"class {name!r} of `--workload`, {key}: {error}") from None
    return RequestClass(
        name,
        share=values.get("share", 1.0),
        priority=values.get("priority", 0),
        inputs=values.get("input"),
        outputs=values.get("output"),
        limits_s=tuple((latency, values[latency]) for latency in LIMITED if latency in values),
    )


def _read_share(value: str) -> float:
    """Return a share; raise ValueError with what is wrong."""
    try:
        share = float(value)
    except ValueError:
        share = math.nan
    if not 0 < share <= LARGEST:
        bound = f"at most {LARGEST:g}" if share > LARGEST else "a number > 0"
        raise ValueError(f"must be {bound} (got {value!r})")
    return share


def _read_priority(value: str) -> int:
    """Return a priority; raise ValueError with what is wrong."""
    if not re.fullmatch(r"-?\d{1,9}", value.strip()):
        raise ValueError(f"must be an integer, of which lower ones are admitted first (got {value!r})")
    return int(value)


def with_classes(traffic: Traffic, classes: Sequence[RequestClass], seed: int, *, drift_apart: bool = True) -> Traffic:
    """Return traffic whose requests belong to classes by chance, with the lengths of each class.

    Users of a closed loop begin as without classes: apart if the lengths of all requests are equal, and they
    `drift_apart`.
    """
    generator = np.random.default_rng(np.random.SeedSequence(seed).spawn(3)[2])
    shares = np.array([request_class.share for request_class in classes])
    drawn = generator.choice(len(classes), size=len(traffic), p=shares / shares.sum())
    inputs, outputs = traffic.input_tokens.copy(), traffic.output_tokens.copy()
    has_own_lengths = any(each.inputs is not None or each.outputs is not None for each in classes)
    if has_own_lengths and traffic.left_out is not None:
        outputs[:] = outputs.max()  # all are equal, except those that users began with
    for number, request_class in enumerate(classes):
        members = np.flatnonzero(drawn == number)
        if request_class.inputs is not None:
            inputs[members] = request_class.inputs.draw(len(members), generator)
        if request_class.outputs is not None:
            outputs[members] = request_class.outputs.draw(len(members), generator)
    priorities = np.array([request_class.priority for request_class in classes], dtype=np.int64)[drawn]
    if has_own_lengths and traffic.concurrency is not None:
        left_out, repeats_after = None, 0
        if len(np.unique(inputs)) == len(np.unique(outputs)) == 1:
            _, arrivals_generator = generators_of(seed)
            outputs, left_out = begin_apart(outputs, traffic.concurrency, arrivals_generator, drift_apart=drift_apart)
        else:
            repeats_after = requests_of_loop(traffic.concurrency)
        traffic = msgspec.structs.replace(traffic, left_out=left_out, repeats_after=repeats_after)
    return msgspec.structs.replace(
        traffic, input_tokens=inputs, output_tokens=outputs, classes=drawn.astype(np.int64), priorities=priorities
    )


class ClassAnswer(msgspec.Struct, frozen=True):
    """What the requests of a class experience.

    Attributes
    ----------
    name : str
        Name of the class.
    priority : int
        Its priority, of which lower ones are admitted first.
    requests : int
        Number of simulated requests.
    ttft_p50_s, ttft_p90_s, tpot_p50_s, tpot_p90_s, latency_p50_s, latency_p90_s, queue_p90_s : float or None
        Time to first token, time per output token, end-to-end latency and waiting for admission in seconds.
    limits : str
        Limits of the latencies as text; empty without any.
    within : float or None
        Share of the requests within all limits; None without limits.
    within_low, within_high : float or None
        The same with the iteration times at the ends of their interval.
    """

    name: str
    priority: int
    requests: int
    ttft_p50_s: float | None
    ttft_p90_s: float | None
    tpot_p50_s: float | None
    tpot_p90_s: float | None
    latency_p50_s: float | None
    latency_p90_s: float | None
    queue_p90_s: float | None
    limits: str = ""
    within: float | None = None
    within_low: float | None = None
    within_high: float | None = None


def answer_classes(
    classes: Sequence[RequestClass],
    outcomes: Mapping[str, Sequence[Outcome]],
    refused_of: Mapping[str, Sequence[int]],  # classes of the refused requests, which are within no limits
) -> tuple[ClassAnswer, ...]:
    """Return what each class experiences, by the outcomes of each level of iteration times."""
    answers = []
    for number, request_class in enumerate(classes):
        of_class = {level: _of_class(several, number) for level, several in outcomes.items()}
        arrays = request_latencies(of_class["expected"])
        parts = {name: summarize(values) for name, values in arrays.items()}
        shares = {}
        if request_class.limits_s:
            for level, several in of_class.items():
                answered = sum(len(outcome.finish_s) for outcome in several)
                refused = list(refused_of[level]).count(number)
                share = share_within(several, request_class.limits_s)
                shares[level] = share * answered / (answered + refused) if refused else share
        within = sorted(shares.values())
        answers.append(
            ClassAnswer(
                request_class.name,
                request_class.priority,
                len(arrays["ttft_s"]),
                ttft_p50_s=parts["ttft_s"]["p50"],
                ttft_p90_s=parts["ttft_s"]["p90"],
                tpot_p50_s=parts["tpot_s"]["p50"],
                tpot_p90_s=parts["tpot_s"]["p90"],
                latency_p50_s=parts["latency_s"]["p50"],
                latency_p90_s=parts["latency_s"]["p90"],
                queue_p90_s=parts["queue_s"]["p90"],
                limits=", ".join(f"{name} <= {format_si(limit_s, 's')}" for name, limit_s in request_class.limits_s),
                within=shares.get("expected"),
                within_low=within[0] if len(within) > 1 else None,
                within_high=within[-1] if len(within) > 1 else None,
            )
        )
    return tuple(answers)


def _of_class(outcomes: Sequence[Outcome], number: int) -> list[Outcome]:
    """Return the outcomes with the requests of a class only."""
    chosen = []
    for outcome in outcomes:
        assert outcome.classes is not None
        is_member = outcome.classes == number
        if outcome.left_out is not None:
            is_member &= ~outcome.left_out
        chosen.append(
            msgspec.structs.replace(
                outcome,
                left_out=None,
                **{
                    name: getattr(outcome, name)[is_member]
                    for name in ("arrival_s", "admitted_s", "first_token_s", "finish_s", "output_tokens")
                },
            )
        )
    return chosen

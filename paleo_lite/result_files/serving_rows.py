"""Rows of servers under load, made alike for every client: mean concurrency, recomputed time per token, and doubts.

Checks that hold whatever tool wrote the file: by Little's law, requests per second times the time of a request is the
mean concurrency; the time per token follows from whole requests and first tokens; the lengths are those that came.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from ..units import format_number, format_si
from .findings import Findings
from .quantities import QUANTITIES
from .text import product, ratio

TOLERATED = 0.15
"""Share by which a reported time per token may differ from the recomputed one."""

_TOLERATED_LENGTH = 0.05
_LEAST_SHARE = 0.67  # of the concurrency asked; below, ramp-up and drain are a third of the run
_SHORTEST_RUN_S = 20.0
_PRINTED_DIGITS = 2  # behind the point, of the rates that clients print
_NO_STREAM = "the server did not stream: times of tokens are not known"


def add_server(findings: Findings, doubts: tuple[str, ...] = (), **values: Any) -> None:
    """Add a row of a server.

    The values are those of `quantities`; `tpot_reported_s` is the reported mean time per token, `input_total` and
    `output_total` are tokens of all requests, and `requests_asked` is the number of requests that the client was to
    send. Means of lengths, mean concurrency and time per token are computed.
    """
    totals = {side: values.pop(f"{side}_total", None) for side in ("input", "output")}
    at_once, requests_asked = values.pop("at_once", False), values.pop("requests_asked", None)
    counted = ratio(values.get("requests"), values.get("duration_s"))
    if counted is not None and values.get("requests_per_s") == round(counted, _PRINTED_DIGITS):
        values["requests_per_s"] = counted  # printed with few digits: 0.13 of 0.1287
    wrong_duration = _contradicted_duration(values)
    _add_means(values, totals, None if wrong_duration else values.get("duration_s"))
    row_doubts = [*doubts, *_take_time_per_token(values)]
    if values.get("concurrency") is None:
        whole_s = values.get("e2e_median_s") if values.get("e2e_s") is None else values["e2e_s"]
        values["concurrency"] = product(values.get("requests_per_s"), whole_s)
    row_doubts += _doubts_of(values, at_once) + _doubts_of_answers(values, requests_asked)
    contradictions = [*([] if wrong_duration is None else [wrong_duration]), *_contradictions(values)]
    row_doubts += [contradiction.sentence for contradiction in contradictions]
    contradicted = dict.fromkeys(name for contradiction in contradictions for name in contradiction.figures)
    findings.add("server", tuple(row_doubts), tuple(contradicted), **values)


def _add_means(values: dict[str, Any], totals: dict[str, float | None], duration_s: float | None) -> None:
    """Add mean lengths and rates that follow from the tokens of all requests; without a duration no rate does."""
    requests = values.get("requests")
    computed: dict[str, Any] = {"requests_per_s": ratio(requests, duration_s)}
    for side, total in totals.items():
        computed[f"{side}_tokens"] = ratio(total, requests)
        computed[f"{side}_tokens_per_s"] = ratio(total, duration_s)
    values.update({name: value for name, value in computed.items() if values.get(name) is None})
    if values.get("tokens_per_s") is None:
        into, out = values.get("input_tokens_per_s"), values.get("output_tokens_per_s")
        values["tokens_per_s"] = None if into is None or out is None else into + out


def _take_time_per_token(values: dict[str, Any]) -> list[str]:
    """Add the time per token that whole requests and first tokens give, or else the reported one.

    Return the doubt if they differ. The time of whole requests is added where the others are reported.
    """
    output = values.get("output_tokens")
    steps = None if output is None or output <= 1 else output - 1
    reported, ttft_s, e2e_s = (values.get(name) for name in ("tpot_reported_s", "ttft_s", "e2e_s"))
    recomputed = None if e2e_s is None or ttft_s is None or ttft_s > e2e_s else ratio(e2e_s - ttft_s, steps)
    if recomputed is not None and reported is not None and abs(reported - recomputed) > TOLERATED * recomputed:
        values["tpot_s"] = recomputed
        return [
            f"the time per token is reported as {1e3 * reported:.4g} ms, and whole requests and first tokens give "
            f"{1e3 * recomputed:.4g} ms, which is taken"
        ]
    values["tpot_s"] = recomputed if reported is None else reported
    if e2e_s is None and reported is not None and ttft_s is not None and steps is not None:
        values["e2e_s"] = ttft_s + reported * steps
    return []


def _doubts_of_answers(values: dict[str, Any], requests_asked: float | None) -> list[str]:
    """Return the doubt about the number of answered requests, if there is one."""
    requests = values.get("requests")
    if requests is None:
        return []
    if requests_asked is not None and requests > requests_asked:
        return [f"{requests:,g} requests were answered, and {requests_asked:,g} were to be sent: {_IS_WRONG}"]
    if requests == 0:
        return ["no request was answered, so that no figure of the file can have been measured"]
    if requests_asked is not None and not values.get("failed") and requests < requests_asked:
        return [f"{requests_asked - requests:,g} of {requests_asked:,g} requests were not answered"]
    return []


def _doubts_of(values: dict[str, Any], at_once: bool) -> list[str]:
    """Return what makes a row of a server doubtful."""
    doubts = []
    concurrency, limit, requests = (values.get(name) for name in ("concurrency", "concurrency_limit", "requests"))
    if concurrency and limit and 0 < concurrency < _LEAST_SHARE * limit:
        doubts.append(
            f"the mean concurrency is {concurrency:.3g} of the {limit:g} asked: ramp-up and drain make up "
            f"{1 - concurrency / limit:.0%} of the run"
        )
    elif concurrency and limit and concurrency > (1 + TOLERATED) * limit:
        doubts.append(
            f"the mean concurrency is {concurrency:.3g}, above the {limit:g} asked: the times of requests or their "
            "number are wrong"
        )
    elif limit and requests and requests < 4 * limit:
        doubts.append(
            f"{requests:g} requests at a concurrency of {limit:g} are a short run: ramp-up and drain count in all means"
        )
    duration_s = values.get("duration_s")
    if duration_s is not None and duration_s < 0:
        doubts.append(f"the duration is given as {duration_s:.3g} s, which no run takes: its times or rates are wrong")
    elif duration_s == 0:
        doubts.append("the duration is given as 0 s: the run was not measured, and rates in the file are wrong")
    elif duration_s and duration_s < _SHORTEST_RUN_S:
        doubts.append(f"the run took {duration_s:.3g} s, which is too short for a steady state")
    for side, name in (("input", "prompts"), ("output", "answers")):
        requested, came = values.get(f"{side}_tokens_asked"), values.get(f"{side}_tokens")
        if requested and came and abs(came - requested) > _TOLERATED_LENGTH * requested:
            doubts.append(f"the {name} have {came:,.4g} tokens on average where {requested:,g} were asked for")
    # Where all come at once, half of them are in the server on average; a client may hold back what it issues.
    is_held_back = bool(concurrency and requests and concurrency < requests / 4)
    if at_once and not limit and not is_held_back:
        doubts.append("all requests came at once, so that latencies are mostly time in a queue")
    if values.get("failed"):
        doubts.append(f"{values['failed']:g} requests failed")
    if values.get("itl_s") == 0 or values.get("tpot_s") == 0:
        length = values.get("output_tokens")
        is_single = length is not None and length <= 1
        reason = "answers of one token have no time per token" if is_single else _NO_STREAM
        doubts.append(reason)
    return doubts


class _Contradiction(NamedTuple):
    """Figures of a row of which one is wrong."""

    sentence: str
    figures: tuple[str, ...]


def _contradicted_duration(values: dict[str, Any]) -> _Contradiction | None:
    """Return that the requests of a row did not come at the stated rate in the stated time; None if they did."""
    requests, duration_s, stated = (values.get(name) for name in ("requests", "duration_s", "requests_per_s"))
    expected = ratio(requests, duration_s)
    if not stated or not expected or abs(stated / expected - 1) <= TOLERATED:
        return None
    sentence = (
        f"{requests:,g} requests in {format_si(duration_s, 's')} are {format_number(expected)} requests/s, and "
        f"{_format_figure('requests_per_s', stated)}: {_IS_WRONG}"
    )
    return _Contradiction(sentence, ("requests", "duration_s", "requests_per_s"))


class _Order(NamedTuple):
    """Two figures of a row of which one cannot be above the other."""

    smaller: str
    larger: str
    otherwise: str  # what it means if it is

    def check(self, values: dict[str, Any]) -> _Contradiction | None:
        """Return the contradiction if the figures of a row are in another order; None if they are not."""
        small, large = values.get(self.smaller), values.get(self.larger)
        if small is None or large is None or small <= (1 + _ROUNDING) * large:
            return None
        pair = f"{_format_figure(self.smaller, small)} is above {_format_figure(self.larger, large)}"
        # A mean above the 99th percentile is skewed, not wrong.
        figures = (self.smaller, self.larger) if self.otherwise == _IS_WRONG else ()
        return _Contradiction(f"{pair}: {self.otherwise}", figures)


_ROUNDING = 0.01
_IS_WRONG = "one of them is wrong"
_IS_SKEWED = "a few requests took very long, or one of them is wrong"
_ORDERS = (
    _Order("output_tokens_per_s", "tokens_per_s", _IS_WRONG),
    _Order("input_tokens_per_s", "tokens_per_s", _IS_WRONG),
    _Order("ttft_s", "e2e_s", _IS_WRONG),
    _Order("ttft_median_s", "e2e_median_s", _IS_WRONG),
    *(_Order(f"{name}_s", f"{name}_p99_s", _IS_SKEWED) for name in ("ttft", "itl", "e2e")),
    _Order("tpot_reported_s", "tpot_p99_s", _IS_SKEWED),
    *(_Order(f"{name}_median_s", f"{name}_p99_s", _IS_WRONG) for name in ("ttft", "tpot", "itl", "e2e")),
)


def _contradictions(values: dict[str, Any]) -> list[_Contradiction]:
    """Return what figures of a row contradict each other, whatever tool wrote them."""
    contradictions = [found for order in _ORDERS if (found := order.check(values)) is not None]
    requests_per_s = values.get("requests_per_s")
    for side, name in (("input", "prompts"), ("output", "answers")):
        stated, tokens = values.get(f"{side}_tokens_per_s"), values.get(f"{side}_tokens")
        expected = product(requests_per_s, tokens)
        if stated and expected and requests_per_s and abs(stated / expected - 1) > TOLERATED:
            sentence = (
                f"{_format_figure('requests_per_s', requests_per_s)} with {name} of {tokens:,.4g} tokens are "
                f"{expected:,.4g} tokens/s, and {_format_figure(f'{side}_tokens_per_s', stated)}: {_IS_WRONG}"
            )
            figures = ("requests_per_s", f"{side}_tokens", f"{side}_tokens_per_s")
            contradictions.append(_Contradiction(sentence, figures))
    per_token_s, whole_s, tokens = (values.get(name) for name in ("tpot_reported_s", "e2e_s", "output_tokens"))
    writing_s = None if not tokens or tokens <= 1 else product(per_token_s, tokens - 1)
    if values.get("ttft_s") is None and per_token_s and writing_s and whole_s and writing_s > (1 + TOLERATED) * whole_s:
        sentence = (
            f"{_format_figure('tpot_reported_s', per_token_s)} for {tokens:,.4g} tokens is "
            f"{format_si(writing_s, 's')}, which is above {_format_figure('e2e_s', whole_s)}: {_IS_WRONG}"
        )
        contradictions.append(_Contradiction(sentence, ("tpot_reported_s", "e2e_s")))
    return contradictions


def _format_figure(name: str, value: float) -> str:
    """Return the title and the value of a figure: ``first token 1.2 s``, ``5,120 output tokens/s``."""
    quantity = QUANTITIES[name]
    if quantity.unit == "s":
        return f"{quantity.title} {format_si(value, 's')}"
    return f"{format_number(value)} {quantity.title}"

"""Cards: the main figures of a result on each device, in a few lines that are the same for all kinds of question."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import streamlit as st

from ..calibration.ratios import AnyPrediction
from ..distributed.pictures import PictureScaling
from ..distributed.table import ScaleTable
from ..own_machines.advise import LocalAdvice
from ..own_machines.predict import LocalPrediction
from ..reinforcement.answer import RlAnswer
from ..reporting.answers import memory_fact
from ..reporting.formats import format_3_digits, format_time_short
from ..reporting.local import describe_blocks, devices_of
from ..reporting.side_by_side import describe_bounds
from ..serving.answers import Serving
from ..sweeps.comparison import Comparison
from ..text import format_plural
from ..timing import Prediction
from ..timing.pipeline_prediction import PipelinePrediction
from ..units import format_interval, format_number, format_si
from .failures import Failure
from .show import escape_markdown, say
from .uploads import devices

CARDS_AT_MOST = 12
"""Cards that are shown; the table below has all results."""

BOUND_LINE = "a bound from the data sheet, not a forecast"


class Card(NamedTuple):
    """What a card says."""

    device: str
    unit: str  # what the main figure is: "per token"
    figure: str
    lines: Sequence[str] = ()
    problem: str = ""


_TIMED = {"decode": "per token", "prefill": "to the first token", "training": "per step", "inference": "per pass"}
"""What the time of a phase is."""


def _lines(*lines: str | None) -> list[str]:
    """Return the lines that have text."""
    return [line for line in lines if line]


def _at_90(interval: tuple[float, float] | None) -> str | None:
    return None if interval is None else f"{format_interval(interval)} at 90%"


def _prediction_card(prediction: Prediction) -> Card:
    settings = [] if prediction.batch_size == 1 else [f"batch {prediction.batch_size:,}"]
    per_s = prediction.throughput_per_s
    counted = "tokens" if prediction.phase == "decode" else "samples"
    run = prediction.run
    amount = None
    if run is not None:
        cost = "" if run.cost_usd is None else f", {format_number(run.cost_usd)} USD"
        amount = f"the whole run: {format_number(run.hours)} hours{cost}"
    fit = prediction.memory
    return Card(
        prediction.machine.name,
        ", ".join([_TIMED.get(prediction.phase, f"per {prediction.phase} pass"), *settings]),
        format_time_short(prediction.time_s),
        _lines(
            None if prediction.is_forecast else BOUND_LINE,
            _at_90(prediction.interval),
            None if per_s is None else f"{format_number(per_s)} {counted}/s",
            amount,
            describe_bounds(prediction) if prediction.is_forecast else None,
        ),
        "" if fit is None or fit.fits else memory_fact(fit)[1],
    )


def _pipeline_card(prediction: PipelinePrediction) -> Card:
    memory = prediction.memory
    needed, usable = format_si(memory.total_bytes, "B", 3), format_si(memory.usable_bytes, "B", 3)
    batch = "" if prediction.batch_size == 1 else f"batch of {prediction.batch_size} "
    return Card(
        prediction.machine.name,
        f"per {batch}{prediction.made}{'' if prediction.batch_size == 1 else 's'}",
        format_time_short(prediction.time_s),
        _lines(
            None if prediction.is_forecast else BOUND_LINE,
            _at_90(prediction.interval),
            f"{format_number(3600 * prediction.throughput_per_s)} {prediction.made}s per hour",
            f"memory: {needed} of {usable} usable" if memory.fits else None,
        ),
        "" if memory.fits else f"DOES NOT FIT, needs {needed} of {usable} usable",
    )


def _serving_card(serving: Serving) -> Card:
    def figure(name: str, text: str) -> str | None:
        value = serving.figures[name].value if name in serving.figures else None
        return None if value is None else f"{format_number(value)} {text}"

    alarm = "OVERLOADED: requests arrive faster than they are answered" if serving.exceeds_saturation else ""
    if serving.advice is not None and serving.exceeds_workers:
        alarm = f"DOES NOT FIT into {format_plural(serving.advice.devices or 0, 'device')}"
    per_token, first = serving.latencies["tpot_s"]["p50"], serving.latencies["ttft_s"]["p50"]
    interval = None if per_token.low is None or per_token.high is None else (per_token.low, per_token.high)
    prefix = "" if serving.devices == 1 else f"{serving.devices} x "
    return Card(
        f"{prefix}{serving.gpu_name}",
        "per token (median)",
        "-" if per_token.value is None else format_time_short(per_token.value),
        _lines(
            None if serving.is_forecast else BOUND_LINE,
            _at_90(interval),
            None if first.value is None else f"{format_time_short(first.value)} to the first token",
            figure("output_tokens_per_s", "tokens/s"),
            figure("saturation_requests_per_s", "requests/s at most"),
            figure("usd_per_million_output_tokens", "USD per million tokens"),
        ),
        alarm,
    )


def _rl_card(answer: RlAnswer) -> Card:
    needed = None if answer.memory_bytes is None else format_si(answer.memory_bytes, "B", 3)
    return Card(
        f"{answer.devices} x {answer.gpu_name}",
        f"per step of {answer.algorithm}",
        format_time_short(answer.time_s),
        _lines(
            _at_90(answer.interval),
            f"{format_number(answer.tokens_per_s_per_device)} tokens/s per device",
            None if answer.usd_per_step is None else f"{format_number(answer.usd_per_step)} USD per step",
            f"limited by {answer.limited_by}",
        ),
        f"DOES NOT FIT, needs {needed} per device" if answer.fits is False else "",
    )


def _local_card(prediction: LocalPrediction) -> Card:
    low_s, high_s = prediction.token_interval_s
    return Card(
        devices_of(prediction),
        f"in {prediction.weights}",
        f"{format_3_digits(1 / prediction.token_s)} tokens/s",
        _lines(
            f"{format_3_digits(1 / high_s)} to {format_3_digits(1 / low_s)} at 90%",
            f"{format_3_digits(prediction.prompt_tokens_per_s)} tokens/s of the prompt",
            f"blocks: {describe_blocks(prediction)}",
            f"context of up to {prediction.largest_context:,} tokens",
        ),
    )


def _scaling_card(table: ScaleTable) -> Card:
    row = table.rows[0] if table.why else table.rows[-1]  # recommendations are ranked, the best first
    hours = None
    if row.hours is not None:
        cost = "" if row.cost_usd is None else f", {format_number(row.cost_usd)} USD"
        hours = f"the whole run: {format_number(row.hours)} hours{cost}"
    workers = format_plural(row.workers, "device")
    per_s = row.throughput_per_s
    return Card(
        table.gpu_name,
        f"{_TIMED[table.phase]}, {workers}",
        format_time_short(row.time_s),
        _lines(
            f"{row.strategy} parallelism" if table.why else None,
            None if table.is_forecast else BOUND_LINE,
            _at_90(row.interval),
            f"{format_number(per_s)} {'tokens' if table.phase == 'decode' else 'samples'}/s",
            hours,
            None if row.workers == 1 else f"efficiency {row.efficiency:.0%}, limited by {row.limited_by}",
        ),
        "DOES NOT FIT into the memory of a device" if row.fits is False else "",
    )


def _picture_scaling_card(scaling: PictureScaling) -> Card:
    row = scaling.found[-1]
    card = _pipeline_card(row.prediction)
    return card._replace(unit=f"{card.unit}, {format_plural(row.devices, 'device')}")


_CARDS: Mapping[type, Callable[[Any], Card]] = {
    Prediction: _prediction_card,
    PipelinePrediction: _pipeline_card,
    Serving: _serving_card,
    LocalPrediction: _local_card,
    RlAnswer: _rl_card,
    ScaleTable: _scaling_card,
    PictureScaling: _picture_scaling_card,
}
"""The card of each class of results that has one; several results have one each."""


def _parts(result: Any) -> Sequence[Any]:
    """Return the results that a comparison consists of."""
    if isinstance(result, Comparison):
        return result.answers
    if isinstance(result, LocalAdvice):
        return result.rows
    return [result]


def cards_of(answers: Mapping[str, Any]) -> Iterator[Card]:
    """Yield the cards of the answers on some devices, or of one comparison."""
    for gpu, answer in answers.items():
        if isinstance(answer, Failure):
            yield Card(devices()[gpu].name, "", "", problem=answer.reason)
            continue
        for part in _parts(answer):
            make = _CARDS.get(type(part))
            if make is not None:
                yield make(part)


def show_cards(cards: Sequence[Card]) -> None:
    """Show cards beside one another, as many as the width has room for."""
    with st.container(horizontal=True, gap="small", key="cards"):
        for card in cards[:CARDS_AT_MOST]:
            with st.container(border=True):
                _show_card(card)
    if len(cards) > CARDS_AT_MOST:
        st.caption(f"The first {CARDS_AT_MOST} of {len(cards)} results; the table has all.")


def _show_card(card: Card) -> None:
    if card.figure:
        st.metric(escape_markdown(card.device), card.figure)
        st.caption(say(card.unit))
    else:
        st.markdown(escape_markdown(card.device))
    if card.problem:
        st.error(say(card.problem))
    if card.lines:
        st.markdown("  \n".join(map(say, card.lines)))


def predictions_of(result: Any) -> list[AnyPrediction]:
    """Return the predictions of a comparison, or the only one."""
    return [part for part in _parts(result) if isinstance(part, (Prediction, PipelinePrediction))]

"""Chart of a language model on one's own machine: tokens per second of answers and prompts, by device or format."""

from __future__ import annotations

from typing import Any

from ...own_machines.advise import LocalAdvice
from ...own_machines.predict import LocalPrediction
from ...text import format_plural
from ..local import devices_of
from .marks import NUMBER_FORMAT
from .render import SERIES, altair, inline_data

ROWS_AT_MOST = 30
"""Rows of a ranking that fit on a screen."""

_WHOLE, _PARTLY = "all on the device", "part on the host"
_WIDTH = 300


def local_chart(answer: LocalAdvice | LocalPrediction) -> Any:
    """Draw tokens per second with their 90% intervals: of answers on the left, of prompts on the right.

    A ranking has a row per device, or per format of one device; of a long one the best are drawn.
    """
    alt = altair()
    predictions = answer.rows if isinstance(answer, LocalAdvice) else (answer,)
    by_formats = isinstance(answer, LocalAdvice) and answer.by == "formats"
    rows = [_row_of(prediction, by_formats) for prediction in predictions[:ROWS_AT_MOST]]
    names, present = [_WHOLE, _PARTLY], {row["group"] for row in rows}
    shown = [name for name in names if name in present]
    colours = [SERIES[names.index(name)] for name in shown]
    shapes = [("circle", "square")[names.index(name)] for name in shown]
    legend = alt.Legend(orient="bottom") if len(shown) > 1 else None
    colour = alt.Color("group:N", title=None, legend=legend, scale=alt.Scale(domain=shown, range=colours))
    shape = alt.Shape("group:N", title=None, legend=legend, scale=alt.Scale(domain=shown, range=shapes))
    base = alt.Chart(inline_data(rows)).encode(
        y=alt.Y("name:N", sort=[row["name"] for row in rows], title=None, axis=alt.Axis(labelLimit=420))
    )
    panels = []
    for key, title in (("answer", "tokens per second of an answer"), ("prompt", "tokens per second of a prompt")):
        axis, scale = alt.Axis(format=NUMBER_FORMAT), alt.Scale(zero=True)
        tooltip = [
            alt.Tooltip("name:N", title="row"),
            alt.Tooltip(f"{key}:Q", format=".4~r", title=title),
            alt.Tooltip(f"{key}_low:Q", format=".4~r", title="from, at 90%"),
            alt.Tooltip(f"{key}_high:Q", format=".4~r", title="to"),
            alt.Tooltip("group:N", title="weights"),
        ]
        spread = base.mark_rule(strokeWidth=3, opacity=0.4).encode(
            x=alt.X(f"{key}_low:Q", title=title, axis=axis, scale=scale), x2=alt.X2(f"{key}_high:Q"), color=colour
        )
        x = alt.X(f"{key}:Q", title=title, axis=axis, scale=scale)
        dots = base.mark_point(filled=True, size=60, opacity=1).encode(x=x, color=colour, shape=shape, tooltip=tooltip)
        text = base.mark_text(align="center", dy=-9, fontSize=9).encode(x=x, text=alt.Text(f"{key}_label:N"))
        panels.append(alt.layer(spread, dots, text).properties(width=_WIDTH, height={"step": 26}))
    title = alt.Title(_title(predictions, by_formats), subtitle=_subtitle(predictions, len(rows)))
    return alt.hconcat(*panels, spacing=20).properties(title=title)


def _row_of(prediction: LocalPrediction, by_formats: bool) -> dict[str, Any]:
    """Return the row of a prediction: rates with the ends of their intervals."""
    low_s, high_s = prediction.token_interval_s
    prompt_low_s, prompt_high_s = prediction.prompt_interval_s
    return {
        "name": prediction.weights if by_formats else devices_of(prediction),
        "group": _WHOLE if prediction.is_whole else _PARTLY,
        "answer": prediction.tokens_per_s,
        "answer_low": 1 / high_s,
        "answer_high": 1 / low_s,
        "answer_label": f"{prediction.tokens_per_s:.3g}",
        "prompt": prediction.prompt_tokens_per_s,
        "prompt_low": prediction.prompt_tokens / prompt_high_s,
        "prompt_high": prediction.prompt_tokens / prompt_low_s,
        "prompt_label": f"{prediction.prompt_tokens_per_s:,.0f}",
    }


def _title(predictions: tuple[LocalPrediction, ...], by_formats: bool) -> str:
    """Return what the first row says."""
    best = predictions[0]
    if len(predictions) == 1:
        return f"{best.network} in {best.weights} on {devices_of(best)}"
    if by_formats:
        verdict = "is the best format that fits" if best.is_whole else "is the fastest; none fits wholly"
        return f"{best.network} on {devices_of(best)}: {best.weights} {verdict}"
    return f"{best.network} in {best.weights}: {devices_of(best)} is the fastest"


def _subtitle(predictions: tuple[LocalPrediction, ...], drawn: int) -> list[str]:
    """Return what all rows have in common, and how many are drawn."""
    first = predictions[0]
    lines = [
        f"{first.execution}, one request, answers behind {format_plural(first.context, 'token')}, "
        f"prompts of {first.prompt_tokens:,}; lines: 90% intervals"
    ]
    if drawn < len(predictions):
        lines.append(f"the best {drawn} of {len(predictions)}")
    return lines

"""Documents of language models on one's own machine."""

from __future__ import annotations

from typing import Any

from ..gguf_types import DIFFERING_TOKENS
from ..own_machines.advise import LocalAdvice
from ..own_machines.energy import LocalEnergy
from ..own_machines.predict import LocalPrediction
from ..text import format_plural
from ..units import format_number, format_si
from .answers import format_at_90
from .columns import find_column, select_columns
from .document import Document, Table

DEFAULT_TOP = 20
"""Rows of a ranking, unless another number is given."""


def local_page(prediction: LocalPrediction) -> Document:
    """Return the document of a prediction under llama.cpp."""
    rate, prompt_rate = prediction.tokens_per_s, prediction.prompt_tokens_per_s
    headline = (
        f"{prediction.network} in {prediction.weights} on {devices_of(prediction)}, {prediction.execution}: "
        f"{rate:.1f} tokens/s"
    )
    low_s, high_s = prediction.token_interval_s
    slow_s, fast_s = prediction.prompt_interval_s[1], prediction.prompt_interval_s[0]
    on_device = prediction.weight_bytes + prediction.cache_bytes + prediction.buffer_bytes
    facts = [
        (
            "answer",
            f"{rate:.1f} tokens/s ({1 / high_s:.1f} to {1 / low_s:.1f} at 90%) behind "
            f"{format_plural(prediction.context, 'token')}",
        ),
        (
            "prompt",
            f"{prompt_rate:,.0f} tokens/s ({prediction.prompt_tokens / slow_s:,.0f} to "
            f"{prediction.prompt_tokens / fast_s:,.0f} at 90%): {format_si(prediction.prompt_s, 's')} for "
            f"{prediction.prompt_tokens:,} tokens",
        ),
        ("per token", f"{format_si(prediction.token_s, 's')}{format_at_90(prediction.token_interval_s)}"),
        ("blocks", describe_blocks(prediction)),
        (
            "memory",
            f"{format_si(on_device, 'B')} of {format_si(prediction.usable_bytes, 'B')} usable: weights "
            f"{format_si(prediction.weight_bytes, 'B')}, cache {format_si(prediction.cache_bytes, 'B')} in "
            f"{prediction.kv_cache}, buffers {format_si(prediction.buffer_bytes, 'B')}",
        ),
        ("host memory", format_si(prediction.host_bytes, "B")),
        ("largest context", f"{prediction.largest_context:,} tokens"),
    ]
    facts += _energy_facts(prediction.energy)
    facts.append(("backend", prediction.backend))
    if prediction.cpu is not None:
        facts.append(("processor", prediction.cpu))
    return Document(headline, facts, [], prediction.notes)


def describe_blocks(prediction: LocalPrediction) -> str:
    """Return how many blocks are on the devices, and whose experts are not."""
    text = f"{prediction.gpu_blocks} of {prediction.blocks} on the device{'s' if prediction.gpus > 1 else ''}"
    if prediction.cpu_expert_blocks:
        text += f", without the experts of {prediction.cpu_expert_blocks}"
    return text


def _energy_facts(energy: LocalEnergy | None) -> list[tuple[str, str]]:
    """Return the facts about watts, energy and cost."""
    if energy is None:
        return [("power", "unknown: no measurements of this kind of device")]
    low_w, high_w = energy.token_interval_w
    facts = [
        (
            "power",
            f"{energy.token_w:,.0f} W ({low_w:,.0f} to {high_w:,.0f} at 90%) while it writes, {energy.prompt_w:,.0f} W "
            "while it reads a prompt",
        ),
        (
            "energy",
            f"{format_number(energy.kwh_per_million_tokens)} kWh per million tokens of answers, "
            f"{format_number(energy.kwh_per_million_prompt_tokens)} of prompts",
        ),
    ]
    if energy.usd_per_million_tokens is not None and energy.usd_per_million_prompt_tokens is not None:
        facts.append(
            (
                "electricity",
                f"{format_number(energy.usd_per_million_tokens)} USD per million tokens of answers, "
                f"{format_number(energy.usd_per_million_prompt_tokens)} of prompts",
            )
        )
    if energy.co2_g_per_million_tokens is not None:
        facts.append(("CO2", f"{format_si(energy.co2_g_per_million_tokens, 'g')} per million tokens of answers"))
    return facts


_COLUMNS = select_columns(
    find_column("gpu", key="device"), "weights", "file_bytes", "differing_tokens", "placement", "best_weights",
    "tokens_per_s", "slowest_tokens_per_s", "fastest_tokens_per_s", "prompt_tokens_per_s", "largest_context",
    "memory_bytes", "power_w", "energy_j", find_column("token_electricity_usd", key="usd_per_million_tokens"),
    drop=(
        "energy_j", "memory_bytes", "usd_per_million_tokens", "power_w", "slowest_tokens_per_s",
        "fastest_tokens_per_s", "differing_tokens", "largest_context", "prompt_tokens_per_s",
    ),
    short=True,
)  # fmt: skip


def advice_page(advice: LocalAdvice, top: int | None = None) -> Document:
    """Return the document of a ranking, with its `top` rows; by default `DEFAULT_TOP`."""
    rows = [_row_of(prediction, best) for prediction, best in zip(advice.rows, advice.best_weights, strict=True)]
    unused = ("best_weights", "device") if advice.by == "formats" else ("weights", "file_bytes", "differing_tokens")
    columns = [column for column in _COLUMNS if column.key not in unused]
    table = Table(advice.by.capitalize(), columns, rows, sortable=True)
    table = table.drop_empty_columns("tokens_per_s").head(top or DEFAULT_TOP, "the best ")
    return Document(_headline(advice), [], [table], advice.notes)


def _headline(advice: LocalAdvice) -> str:
    """Return the title, which answers the question."""
    best, behind = advice.rows[0], f"behind {format_plural(advice.context, 'token')}"
    rate = f"{best.tokens_per_s:.1f} tokens/s"
    if advice.by == "formats":
        question = f"{advice.network} on {devices_of(best)}"
        if best.is_whole:
            return f"{question}: {best.weights} is the best format that fits, {rate} {behind}"
        return f"{question}: no format fits wholly; {best.weights} is the fastest, {rate} {behind}"
    wholly = sum(row.is_whole for row in advice.rows)
    return (
        f"{advice.network} in {best.weights}: {wholly} of {len(advice.rows)} devices hold it wholly; "
        f"{devices_of(best)} is the fastest, {rate} {behind}"
    )


def devices_of(prediction: LocalPrediction) -> str:
    """Return the devices of a prediction as text: ``2 x rtx3090``; several kinds have their numbers in the name."""
    if len(prediction.split) > 1:
        return prediction.device
    return f"{prediction.gpus} x {prediction.device}" if prediction.gpus > 1 else prediction.device


def _row_of(prediction: LocalPrediction, best_weights: str | None) -> dict[str, Any]:
    """Return a row of the ranking."""
    low_s, high_s = prediction.token_interval_s
    return {
        **prediction.row(),
        "device": devices_of(prediction),
        "weights": prediction.weights,
        "file_bytes": prediction.file_bytes,
        "differing_tokens": DIFFERING_TOKENS.get(prediction.weights),
        "placement": _short_placement(prediction),
        "best_weights": best_weights,
        "slowest_tokens_per_s": 1 / high_s,
        "fastest_tokens_per_s": 1 / low_s,
        "prompt_tokens_per_s": prediction.prompt_tokens_per_s,
        "largest_context": prediction.largest_context,
        "usd_per_million_tokens": None if prediction.energy is None else prediction.energy.usd_per_million_tokens,
    }


def _short_placement(prediction: LocalPrediction) -> str:
    if prediction.is_whole:
        return "all"
    if prediction.cpu_expert_blocks:
        return f"all but experts of {prediction.cpu_expert_blocks}/{prediction.blocks}"
    return f"{prediction.gpu_blocks}/{prediction.blocks} blocks"

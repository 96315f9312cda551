"""Documents of language models on one's own machine."""

from __future__ import annotations

from typing import Any

from ..gguf_types import DIFFERING_TOKENS
from ..own_machines.advise import LocalAdvice
from ..own_machines.energy import LocalEnergy
from ..own_machines.predict import LocalPrediction
from ..units import format_number, format_si
from .answers import format_at_90
from .columns import find_column, select_columns
from .document import Document, Table

DEFAULT_TOP = 20
"""Rows of a ranking, unless another number is given."""


def local_page(found: LocalPrediction) -> Document:
    """Return the document of a prediction under llama.cpp."""
    rate, prompt_rate = found.tokens_per_s, found.prompt_tokens_per_s
    headline = f"{found.network} in {found.weights} on {devices_of(found)}, {found.execution}: {rate:.1f} tokens/s"
    low_s, high_s = found.token_interval_s
    slow_s, fast_s = found.prompt_interval_s[1], found.prompt_interval_s[0]
    on_device = found.weight_bytes + found.cache_bytes + found.buffer_bytes
    facts = [
        ("answer", f"{rate:.1f} tokens/s ({1 / high_s:.1f} to {1 / low_s:.1f} at 90%) behind {found.context:,} tokens"),
        (
            "prompt",
            f"{prompt_rate:,.0f} tokens/s ({found.prompt_tokens / slow_s:,.0f} to {found.prompt_tokens / fast_s:,.0f} "
            f"at 90%): {format_si(found.prompt_s, 's')} for {found.prompt_tokens:,} tokens",
        ),
        ("per token", f"{format_si(found.token_s, 's')}{format_at_90(found.token_interval_s)}"),
        ("blocks", _describe_blocks(found)),
        (
            "memory",
            f"{format_si(on_device, 'B')} of {format_si(found.usable_bytes, 'B')} usable: weights "
            f"{format_si(found.weight_bytes, 'B')}, cache {format_si(found.cache_bytes, 'B')} in {found.kv_cache}, "
            f"buffers {format_si(found.buffer_bytes, 'B')}",
        ),
        ("host memory", format_si(found.host_bytes, "B")),
        ("largest context", f"{found.largest_context:,} tokens"),
    ]
    facts += _energy_facts(found.energy)
    facts.append(("backend", found.backend))
    if found.cpu is not None:
        facts.append(("processor", found.cpu))
    return Document(headline, facts, [], found.notes)


def _describe_blocks(found: LocalPrediction) -> str:
    """Return what is on the device."""
    text = f"{found.gpu_blocks} of {found.blocks} on the device"
    if found.cpu_expert_blocks:
        text += f", without the experts of {found.cpu_expert_blocks}"
    return text


def _energy_facts(energy: LocalEnergy | None) -> list[tuple[str, str]]:
    """Return the facts about watts, energy and cost."""
    if energy is None:
        return [("power", "unknown: no measurements of this kind of device")]
    low_w, high_w = energy.token_interval_w
    facts = [
        (
            "power",
            f"{energy.token_w:.0f} W ({low_w:.0f} to {high_w:.0f} at 90%) while it writes, {energy.prompt_w:.0f} W "
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
    rows = [_row_of(found, best) for found, best in zip(advice.rows, advice.best_weights, strict=True)]
    one = ("best_weights", "device") if advice.by == "formats" else ("weights", "file_bytes", "differing_tokens")
    columns = [column for column in _COLUMNS if column.key not in one]
    table = Table(advice.by.capitalize(), columns, rows, sortable=True)
    table = table.drop_empty_columns("tokens_per_s").head(top or DEFAULT_TOP, "the best ")
    return Document(_headline(advice), [], [table], advice.notes)


def _headline(advice: LocalAdvice) -> str:
    """Return the title, which answers the question."""
    best, behind = advice.rows[0], f"behind {advice.context:,} tokens"
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


def devices_of(found: LocalPrediction) -> str:
    """Return the devices of a prediction as text: ``2 x rtx3090``."""
    return f"{found.gpus} x {found.device}" if found.gpus > 1 else found.device


def _row_of(found: LocalPrediction, best_weights: str | None) -> dict[str, Any]:
    """Return a row of the ranking."""
    low_s, high_s = found.token_interval_s
    return {
        **found.row(),
        "device": devices_of(found),
        "weights": found.weights,
        "file_bytes": found.file_bytes,
        "differing_tokens": DIFFERING_TOKENS.get(found.weights),
        "placement": _short_placement(found),
        "best_weights": best_weights,
        "slowest_tokens_per_s": 1 / high_s,
        "fastest_tokens_per_s": 1 / low_s,
        "prompt_tokens_per_s": found.prompt_tokens_per_s,
        "largest_context": found.largest_context,
        "usd_per_million_tokens": None if found.energy is None else found.energy.usd_per_million_tokens,
    }


def _short_placement(found: LocalPrediction) -> str:
    if found.is_whole:
        return "all"
    if found.cpu_expert_blocks:
        return f"all but experts of {found.cpu_expert_blocks}/{found.blocks}"
    return f"{found.gpu_blocks}/{found.blocks} blocks"

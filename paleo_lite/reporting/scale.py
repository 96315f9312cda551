"""Document of a scaling prediction: one row per number of workers, or per strategy."""

from __future__ import annotations

from typing import NamedTuple

from ..distributed.scale import NO_SINGLE_WORKER, SMALLER_SINGLE_WORKER
from ..distributed.strategies import STRATEGIES
from ..distributed.table import ScaleRow, ScaleTable
from ..result import LOWER_BOUND_FACT
from ..text import format_plural
from ..timing.facility import JOULES_PER_KWH, SiteEnergy
from ..units import format_hours, format_number, format_si
from ..version import __version__
from .answers import format_at_90, format_shortage, join_notes, site_text
from .columns import find_column, option_column, select_columns
from .document import (
    Column,
    Document,
    Table,
)


class _PhaseTerms(NamedTuple):
    """Wording for one phase: the unit of time, and the unit of work."""

    per_step: str
    samples: str


_PHASE_TERMS = {
    "training": _PhaseTerms("per step", "samples"),
    "prefill": _PhaseTerms("to the first token", "prompts"),
    "decode": _PhaseTerms("per token", "tokens"),
}


def scale_page(table: ScaleTable, top: int | None = None) -> Document:
    """Return the document of a scaling prediction, with at most `top` of the strategies that advice compares."""
    columns = _columns(table)
    values = [{column.key: getattr(row, column.key) for column in columns} for row in table.rows]
    rows = Table("", columns, values).drop_empty_columns()
    shown = rows
    if table.why and top is not None and top < len(table.rows):
        shown = rows.replace(title="Strategies").head(top, "the best ")
    commands = [("Ask for the recommended strategy alone", table.command)] if table.command else []
    return Document(
        _headline(table), _facts(table), [shown], _notes(table), lambda: _csv_table(table, rows), commands=commands
    )


def _facts(table: ScaleTable) -> list[tuple[str, str]]:
    facts = [("machine", table.topology)] + [("link", link) for link in table.links]
    answer = _row_of_headline(table) if table.rows else None
    if table.is_forecast and answer is not None and answer.bound_s is not None:
        facts.append((LOWER_BOUND_FACT, f"{format_si(answer.bound_s, 's')} (data sheets)"))
    facts.append(("time model", table.model))
    if table.execution is not None:
        facts.append(("execution", table.execution))
    if table.usable_bytes is not None:
        memory = f"{format_si(table.usable_bytes, 'B')} usable of each device"
        if answer is not None and answer.memory_bytes is not None:
            memory = f"{format_si(answer.memory_bytes, 'B')} at the peak, of {memory}"
        facts.append(("memory", memory))
    if table.images is not None:
        samples = "images" if answer is None or answer.tokens is None else "sequences"
        amount = f"{format_si(table.images)} {samples}, {table.epochs:g} epoch{'' if table.epochs == 1 else 's'}"
        unstated = "price unknown" if table.price_usd_per_h is None else f"{table.price_usd_per_h:g} USD/h"
        facts.append(("hours and cost", f"for {amount}; a device: {table.price or unstated}"))
    if table.is_forecast and answer is not None and answer.energy_j is not None and answer.power_w is not None:
        workers = _count_workers(answer.workers)
        energy = f"{format_si(answer.energy_j, 'J', 3)} per step of {workers}"
        facts.append(("energy", f"{energy}, {format_si(answer.power_w, 'W', 3)} per device, of the devices alone"))
        if answer.site is not None and table.facility is not None:
            text = f"{site_text(answer.site, table.facility.describe())}, per step of {workers}"
            if answer.run is not None:
                text += f"; {_site_of_run(answer.site, answer.run.steps)} in the whole run"
            facts.append(("at the meter", text))
    return facts


def _site_of_run(site: SiteEnergy, steps: int) -> str:
    """Return the energy of a run at the meter, its price and its CO2, from those of a step."""
    parts = [f"{format_number(site.energy_j * steps / JOULES_PER_KWH)} kWh"]
    if site.usd is not None:
        parts.append(f"{format_number(site.usd * steps)} USD of electricity")
    if site.co2_g is not None:
        parts.append(f"{format_number(site.co2_g * steps / 1e3)} kg of CO2")
    return ", ".join(parts)


def _notes(table: ScaleTable) -> list[str]:
    """Return the notes; a note that several rows share is listed once, with the names of these rows."""
    of_speed_ups = () if _has_speed_ups(table) else (NO_SINGLE_WORKER, SMALLER_SINGLE_WORKER)
    notes = [("", note) for note in table.notes]
    for row in table.rows:
        name = row.strategy if table.why else _count_workers(row.workers)
        notes += [(name, note) for note in row.notes if not note.startswith(of_speed_ups)]
    notes += [("left out", f"{name}: {reason}") for name, reason in table.refused.items()]
    return join_notes(notes)


def _count_workers(workers: int) -> str:
    return f"{workers} worker{'' if workers == 1 else 's'}"


def _csv_table(table: ScaleTable, rows: Table) -> Table:
    """Return the rows of CSV output, each with the time model and the version."""
    origin = {"time_model": table.model, "version": __version__}
    columns = [*rows.columns, *(option_column(name) for name in origin)]
    return rows.replace(columns=columns, rows=[{**row, **origin} for row in rows.rows])


def _row_of_headline(table: ScaleTable) -> ScaleRow:
    """Return the recommended row, or that with the most workers; with a deadline, the fewest that end in time."""
    if table.why:
        return table.rows[0]  # recommendations are ranked, best first
    in_time = [row for row in table.rows if row.in_time]
    return min(in_time, key=lambda row: row.workers) if in_time else table.rows[-1]


def _headline(table: ScaleTable) -> str:
    """Return the answer in one line."""
    terms = _PHASE_TERMS[table.phase]
    head = f"{table.network} on {table.gpu_name}, {table.precision} {table.phase}"
    if table.phase == "training":
        head += f", {table.scaling} scaling"
    head += f", batch {table.batch_size}"
    if table.scaling == "weak":
        head += " per worker"
    assumed = f"; assumed: {', '.join(table.assumptions)}" if table.assumptions else ""
    if table.why:
        bound = "" if table.is_forecast else " (bounds from the data sheets)"
        workers = format_plural(table.rows[0].workers, "worker")
        return f"{head}, {workers}{bound}: {table.why}{_describe_run(table.rows[0])}{assumed}"
    last = _row_of_headline(table)
    if table.phase == "training" and not STRATEGIES[last.strategy].divides_blocks:
        head += f", {last.strategy}"
    time = f"{format_si(last.time_s, 's')} {terms.per_step}"
    if not table.is_forecast:
        time = f"at least {time} (bound from the data sheets)"
    else:
        time += format_at_90(last.interval)
    answer = f"{_count_workers(last.workers)}: {time}, {format_number(last.throughput_per_s)} {terms.samples}/s"
    if last.fits is not False and (last.baseline_workers != last.workers or last.workers == 1):
        baseline = "one worker" if last.baseline_workers == 1 else f"{last.baseline_workers} workers"
        efficiency = f"efficiency {last.efficiency:.1%}"
        if last.efficiency_interval is not None:
            low, high = last.efficiency_interval
            efficiency += f", {low:.0%} to {high:.0%} at 90%"
        answer += f", speed-up {last.speedup / last.baseline_workers:.4g} over {baseline} ({efficiency})"
    answer += _describe_run(last)
    if last.fits is False and last.memory_bytes is not None and table.usable_bytes is not None:
        answer += format_shortage(last.memory_bytes, table.usable_bytes)
    return f"{head}: {answer}{assumed}"


def _describe_run(row: ScaleRow) -> str:
    """Return the end of a headline that says how long a run takes and what it costs; empty without a run."""
    if row.hours is None:
        return ""
    cost = "" if row.cost_usd is None else f" and costs {_format_cost(row.cost_usd)} USD"
    return f"; the run takes {format_hours(row.hours)}{cost}"


def _format_cost(usd: float) -> str:
    """Format a cost in whole dollars, and a small one with three digits."""
    return f"{usd:,.0f}" if usd >= 10 else f"{usd:.3g}"


def _has_speed_ups(table: ScaleTable) -> bool:
    """Return whether rows have another baseline than themselves, and one of them fits into memory."""
    compared = any(row.baseline_workers != row.workers or row.workers == 1 for row in table.rows)
    return compared and any(row.fits is not False for row in table.rows)


def _columns(table: ScaleTable) -> list[Column]:
    """Return the columns that apply to the phase and have a value in some row."""
    terms = _PHASE_TERMS[table.phase]
    hidden = {"workers", "batch_size"} if table.why else {"strategy", "fits"}
    if all(row.fits is not False for row in table.rows):
        hidden.add("fits")
    if table.phase != "training":
        hidden |= {"hidden_s", "update_s"}
    if table.phase == "decode":
        hidden.add("tokens_per_s")  # equals the samples per second: a step gives one token per sequence
    if not any(row.input_s for row in table.rows):
        hidden.add("input_s")
    if not table.is_forecast:
        hidden.add("bound_s")
    if not _has_speed_ups(table):
        hidden |= {"speedup", "efficiency"}
    if not any(row.collective for row in table.rows):
        hidden.add("collective")
    dropped_first = ("efficiency",) if table.ranked_by == "joules" else ("kwh_per_million",)
    columns = select_columns(
        "workers", "batch_size", "strategy", "fits", "compute_s", "exposed_s", "hidden_s", "update_s", "input_s",
        "time_s", "interval", "bound_s", find_column("throughput_per_s", title=f"{terms.samples}\nper s"), "speedup",
        find_column("scaling_efficiency", key="efficiency"), find_column("device_flops_per_s", key="flops_per_s"),
        "mfu", "tokens_per_s", "kwh_per_million", "usd_per_million", "memory_bytes", "hours", "in_time", "kwh",
        "cost_usd", "collective", "limited_by",
        drop=(
            *dropped_first, "flops_per_s", "mfu", "usd_per_million", "kwh", "collective", "update_s", "hidden_s",
            "bound_s", "memory_bytes", "throughput_per_s", "tokens_per_s", "compute_s", "batch_size", "exposed_s",
            "speedup",
        ),
        short=True,
    )  # fmt: skip
    return [column for column in columns if column.key not in hidden]

"""Document of a step of reinforcement learning: phases, rollouts, trainer, memory, cost, and ranked divisions."""

from __future__ import annotations

from typing import Any

from ..reinforcement.answer import RlAnswer, RlRow
from ..reinforcement.step import PHASES
from ..result import LOWER_BOUND_FACT
from ..text import format_plural
from ..units import format_interval, format_number, format_si
from .answers import site_text
from .columns import find_column, select_columns
from .document import Document, Table, raw_table
from .formats import format_bytes_short, format_percent

SHOWN_DIVISIONS = 15


def rl_page(answer: RlAnswer, **options: Any) -> Document:
    """Return the document of a step."""
    low_s, high_s = answer.interval
    title = (
        f"{answer.network}, a step of {answer.algorithm} on {answer.devices} x {answer.gpu_name}, {answer.framework}: "
        f"{format_si(answer.time_s, 's', 3)} ({format_interval((low_s, high_s))} at 90%), "
        f"{format_number(answer.tokens_per_s_per_device)} tokens/s per device"
    )
    if answer.fits is False:
        title = f"{title}; DOES NOT FIT"
    content = [_phase_table(answer)]
    if answer.divisions:
        content.insert(0, _division_table(answer))
    if answer.rollouts is not None:
        content.append(_rollout_table(answer))
    commands = [("Settings in the words of the framework", answer.settings)] if answer.settings else []
    if answer.command is not None:
        commands.insert(0, ("Ask for the recommended division alone", answer.command))
    return Document(title, _facts(answer), content, list(answer.notes), data=lambda: _data(answer), commands=commands)


def _facts(answer: RlAnswer) -> list[tuple[str, str]]:
    """Return the facts above the tables."""
    facts = [(LOWER_BOUND_FACT, f"{format_si(answer.bound_s, 's', 3)} (arithmetic at the peak)")]
    facts.append(("limited by", answer.limited_by))
    facts.append(
        (
            "step",
            f"{_describe_samples(answer)} of {answer.mean_tokens:,.0f} tokens on average, "
            f"{format_plural(answer.updates, 'update')}",
        )
    )
    where = "trainer and engines take turns on all devices"
    if answer.rollouts is None:
        where = "all train, on given responses"
    elif not answer.is_colocated:
        where = f"{answer.trainer_devices} devices train, {answer.rollout_devices} generate"
        if answer.steps_off:
            where += f" at the same time, {format_plural(answer.steps_off, 'step')} off"
    facts.append(("devices", where))
    # The configuration states every execution but the usual one.
    stated = answer.trainer.replace(":", ",").split(", ")
    execution = "" if answer.execution in stated else f"{answer.execution}, "
    facts.append(("trainer", f"{execution}{answer.precision}, {answer.trainer}"))
    memory = "unknown" if answer.trainer_bytes is None else format_si(answer.trainer_bytes, "B", 3)
    memory += " per device in the update"
    if answer.rollouts is not None:
        memory += f", {format_si(answer.rollout_bytes, 'B', 3)} in the rollouts"
    facts.append(("memory", memory))
    facts.append(
        (
            "imbalance",
            f"the slowest rank takes {answer.imbalance:.2f} times as long as one of equal samples; stages wait for "
            f"{format_percent(answer.bubble)} of an update",
        )
    )
    if answer.tensors:
        gathered = f"{format_si(answer.gathered_bytes, 'B', 3)} gathered in fp32, " if answer.gathered_bytes else ""
        sent = f"{format_si(answer.transferred_bytes, 'B', 3)} in {answer.tensors:,} tensors to the engines"
        facts.append(("weights", gathered + sent))
    facts += _amounts(answer)
    facts.append(("time model", answer.model))
    return facts


def _describe_samples(answer: RlAnswer) -> str:
    """Return how many samples a step has, as text; of preferred pairs, how many sequences these are."""
    if answer.sequences == answer.samples:
        return format_plural(answer.samples, "sample")
    return f"{format_plural(answer.samples, 'pair')}, {answer.sequences:,} sequences"


def _amounts(answer: RlAnswer) -> list[tuple[str, str]]:
    """Return cost and energy of a step, and of all steps."""
    facts = []
    if answer.usd_per_step is not None:
        facts.append(("cost", f"{format_number(answer.usd_per_step)} USD per step"))
    if answer.energy_j is not None and answer.power_w is not None:
        facts.append(
            (
                "energy",
                f"{format_si(answer.energy_j, 'J', 3)} per step, {format_si(answer.power_w, 'W', 3)} per device",
            )
        )
    if answer.site is not None and answer.facility is not None:
        facts.append(("at the meter", site_text(answer.site, answer.facility.describe())))
    if answer.totals is not None:
        totals = answer.totals
        parts = [f"{format_number(totals.hours)} h"]
        if totals.usd is not None:
            parts.append(f"{format_number(totals.usd)} USD")
        if totals.kwh is not None:
            parts.append(f"{format_number(totals.kwh)} kWh")
        facts.append((format_plural(totals.steps, "step"), ", ".join(parts)))
    return facts


def _phase_table(answer: RlAnswer) -> Table:
    """Return the table of phases."""
    rows = []
    for name, seconds in answer.phases.items():
        exposed_s = answer.exposed[name]
        rows.append(
            {"phase": PHASES[name], "time_s": seconds, "exposed_s": exposed_s, "share": exposed_s / answer.time_s}
        )
    of_step = find_column("of_step_s", key="exposed_s")
    columns = select_columns(find_column("phase", wrap=True), "time_s", of_step, "share", bars=("share",), short=True)
    return Table("Phases of a step", columns, rows)


def _rollout_table(answer: RlAnswer) -> Table:
    """Return the table of the rollouts."""
    rollouts = answer.rollouts
    assert rollouts is not None
    figures = {
        "engines": f"{rollouts.engines:,}",
        "samples per engine": f"{rollouts.samples_per_engine:,}",
        "live sequences of an engine, at most": format_number(rollouts.most_live),
        "live sequences of an engine, mean": format_number(rollouts.mean_live),
        "time with fewer than half of them": format_percent(rollouts.tail_share),
        "iterations": f"{rollouts.iterations:,}",
        "weights per device": format_bytes_short(rollouts.weights_bytes),
        "cache per device": format_bytes_short(rollouts.cache_bytes),
    }
    rows = [{"figure": name, "value": value} for name, value in figures.items()]
    return Table("Rollouts", select_columns("figure", find_column("value", left=False)), rows)


def _division_table(answer: RlAnswer) -> Table:
    """Return the table of ranked divisions."""
    columns = select_columns(
        "rollout_workers",
        "rollout_tensor",
        "tensor",
        "pipeline",
        "context_parallel",
        "expert_parallel",
        "steps_off",
        "time_s",
        "trainer_s",
        "rollouts_s",
        "trainer_bytes",
        drop=("context_parallel", "trainer_bytes", "trainer_s", "rollouts_s"),
        short=True,
    )
    shown = [_row(division) for division in answer.divisions[:SHOWN_DIVISIONS]]
    return Table(f"Divisions, the fastest first ({len(shown)} of {len(answer.divisions)})", columns, shown)


def _row(division: RlRow) -> dict[str, Any]:
    return {name: getattr(division, name) for name in RlRow.__struct_fields__}


def _data(answer: RlAnswer) -> Table:
    """Return one row per phase, or one per division if they were ranked."""
    if answer.divisions:
        return raw_table([_row(division) for division in answer.divisions])
    rows = [
        {"phase": name, "time_s": seconds, "exposed_s": answer.exposed[name]} for name, seconds in answer.phases.items()
    ]
    return raw_table(rows)

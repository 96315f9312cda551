"""An input pipeline to look at: its stages, the rules of thumb, the remedies."""

from __future__ import annotations

from typing import Any

from ..input_pipeline.feeding import Fed
from ..input_pipeline.remedies import Remedy, Rule
from ..result import BOUND
from ..timing import Prediction
from ..units import format_si, say_interval
from .document import (
    Column,
    Document,
    Table,
    say_bandwidth,
    say_percent,
    say_time_briefly,
    say_whole_percent,
    say_yes_or_no,
)


def feeding_dict(
    fed: Fed,
    subject: dict[str, Any],
    prediction: Prediction,
    rules: tuple[Rule, ...],
    remedies: tuple[Remedy, ...],
    plan: tuple[Remedy, ...],
) -> dict[str, Any]:
    """What ``--format json`` prints."""
    feeding, interval = fed.feeding, prediction.interval
    return {
        **subject,
        "batch_size": feeding.batch_size,
        "sample_bytes": feeding.sample_bytes,
        "decoded_bytes": feeding.decoded_bytes,
        "access": feeding.access if feeding.store is not None else None,
        "workers": feeding.workers,
        "devices": feeding.devices,
        "pinned": feeding.pinned,
        "prefetch": feeding.prefetch,
        "stages": _stage_rows(fed),
        "bottleneck": fed.bottleneck.name,
        "throughput_per_s": fed.throughput_per_s,
        "utilisation": fed.utilisation,
        "compute_s": fed.compute_s,
        "compute_interval": None if interval is None else list(interval),
        "compute_bound_s": prediction.bound_s,
        "is_forecast": prediction.is_forecast,
        "waiting_s": fed.waiting_s,
        "needed": {
            "samples_per_s": feeding.wanted_per_s,
            "storage_bytes_per_s": fed.needed_bytes_per_s,
            "workers": fed.needed_workers,
        },
        "rules": [{"rule": rule.rule, "found": rule.found, "holds": rule.holds} for rule in rules],
        "remedies": [_remedy_row(remedy) for remedy in remedies],
        "plan": [_remedy_row(remedy) for remedy in plan],
    }


def feeding_page(
    fed: Fed,
    subject: str,
    prediction: Prediction,
    rules: tuple[Rule, ...],
    remedies: tuple[Remedy, ...],
    plan: tuple[Remedy, ...],
    notes: tuple[str, ...],
) -> Document:
    """The page of an input pipeline.

    Parameters
    ----------
    subject : str
        Network and device in words.
    prediction : Prediction
        Of the device's own work on a batch.
    rules, remedies, plan
        As `input_pipeline.remedies` gives them.
    notes : tuple of str
        Where the rates come from.
    """
    limits = "the device itself limits it" if fed.bottleneck.name == "device" else f"{_limit(fed)} limits it"
    most = "" if prediction.is_forecast else "at most "
    headline = (
        f"{subject}: {most}{fed.throughput_per_s:,.0f} samples/s, the device works {fed.utilisation:.1%} of the time; "
    )
    return Document(
        headline + limits,
        _facts(fed, prediction),
        [_stage_table(fed), _rule_table(rules), _remedy_table(remedies)],
        [_plan_note(fed, plan), *notes],
    )


def _limit(fed: Fed) -> str:
    return {"storage": "storage", "network": "the network", "decode": "decoding on the CPU", "copy": "the copy"}[
        fed.bottleneck.name
    ]


def _facts(fed: Fed, prediction: Prediction) -> list[tuple[str, str]]:
    feeding = fed.feeding
    together = "stages side by side, buffers between them" if feeding.prefetch else "one stage after the other"
    if feeding.prefetch and not feeding.pinned:
        together += ", but copies from pageable memory take turns with the device's work"
    needed = f"{feeding.wanted_per_s:,.0f} samples/s"
    if fed.needed_bytes_per_s is not None:
        needed += f", {format_si(fed.needed_bytes_per_s, 'B/s')} from storage"
    if fed.needed_workers is not None:
        needed += f", {fed.needed_workers} workers"
    interval, each, idle = "", "", "a device that never waits"
    if prediction.interval is not None:
        interval = f" ({say_interval(prediction.interval)} at 90%)"
    if feeding.devices > 1:
        each, idle = " on each device", "devices that never wait"
    return [
        ("sample", f"{format_si(feeding.sample_bytes, 'B')} stored, {format_si(feeding.decoded_bytes, 'B')} copied"),
        ("stages", together),
        (
            "a batch",
            f"of {feeding.batch_size}{each}: {say_time_briefly(fed.compute_s)} at work{interval}, "
            f"{say_time_briefly(fed.waiting_s)} waiting for it",
        ),
        (BOUND, f"{say_time_briefly(prediction.bound_s)} at work by the data sheet"),
        ("needed", f"for {idle}: {needed}"),
    ]


def _stage_rows(fed: Fed) -> list[dict[str, Any]]:
    return [
        {
            "stage": stage.name,
            "what": stage.what,
            "workers": stage.workers,
            "per_s": stage.per_s,
            "bytes_per_s": stage.bytes_per_s,
            "beside": stage.beside,
            "busy": fed.throughput_per_s / stage.per_s,
            "bottleneck": stage is fed.bottleneck,
        }
        for stage in fed.stages
    ]


def _stage_table(fed: Fed) -> Table:
    columns = [
        Column("stage", "stage", left=True),
        Column("what", "what", left=True, fold=True),
        Column("workers", "workers"),
        Column("per_s", "samples/s", "{:,.0f}".format),
        Column("bytes_per_s", "bytes/s", say_bandwidth),
        Column("beside", "beside\nothers", say_yes_or_no, left=True),
        Column("busy", "busy", say_whole_percent),
    ]
    return Table("Stages, each on its own", columns, _stage_rows(fed))


def _rule_table(rules: tuple[Rule, ...]) -> Table:
    columns = [
        Column("rule", "rule", left=True, fold=True),
        Column("found", "here", left=True, fold=True),
        Column("holds", "holds", say_yes_or_no, left=True),
    ]
    return Table("Rules of thumb", columns, [{"rule": r.rule, "found": r.found, "holds": r.holds} for r in rules])


def _remedy_row(remedy: Remedy) -> dict[str, Any]:
    return {
        "remedy": remedy.name,
        "what": remedy.what,
        "throughput_per_s": remedy.after.throughput_per_s,
        "gain": remedy.gain,
        "utilisation": remedy.after.utilisation,
        "bottleneck": remedy.after.bottleneck.name,
    }


def _remedy_table(remedies: tuple[Remedy, ...]) -> Table:
    columns = [
        Column("remedy", "remedy", left=True, fold=True),
        Column("what", "what", left=True, fold=True),
        Column("throughput_per_s", "samples/s", "{:,.0f}".format),
        Column("gain", "gain", lambda gain: "none" if abs(gain - 1) < 0.0005 else f"{gain:.2f} x"),
        Column("utilisation", "device\nworks", say_percent),
        Column("bottleneck", "then\nlimits", left=True),
    ]
    return Table("Remedies, each alone", columns, [_remedy_row(remedy) for remedy in remedies])


def _plan_note(fed: Fed, plan: tuple[Remedy, ...]) -> str:
    if fed.utilisation >= 0.9:
        return "the device is fed: only a faster device, or less work for it, makes it faster"
    if not plan:
        return "no remedy on this node helps"
    names = ", then ".join(f"{step.name} ({step.what})" for step in plan)
    return f"one on top of the other: {names}: the device works {plan[-1].after.utilisation:.1%} of the time"

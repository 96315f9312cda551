"""JSON and document of an input pipeline: stages, rules of thumb, remedies."""

from __future__ import annotations

from typing import Any

from ..input_pipeline.feeding import PipelineThroughput
from ..input_pipeline.remedies import Remedy, RuleOfThumb
from ..result import LOWER_BOUND_FACT
from ..text import format_plural
from ..timing import Prediction
from ..units import format_rate, format_si
from .answers import format_at_90
from .columns import find_column, select_columns
from .document import Document, Table
from .formats import format_time_short


def feeding_dict(
    fed: PipelineThroughput,
    subject: dict[str, Any],
    prediction: Prediction,
    rules: tuple[RuleOfThumb, ...],
    remedies: tuple[Remedy, ...],
    plan: tuple[Remedy, ...],
) -> dict[str, Any]:
    """Return the JSON of an input pipeline."""
    feeding, interval = fed.pipeline, prediction.interval
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
            "samples_per_s": feeding.demand_per_s,
            "storage_bytes_per_s": fed.needed_bytes_per_s,
            "workers": fed.needed_workers,
        },
        "rules": [{"rule": rule.rule, "found": rule.observed, "holds": rule.holds} for rule in rules],
        "remedies": [_remedy_row(remedy) for remedy in remedies],
        "plan": [_remedy_row(remedy) for remedy in plan],
    }


def feeding_page(
    fed: PipelineThroughput,
    subject: str,  # name of the network and the device
    prediction: Prediction,  # time of the computation of a batch on the device
    rules: tuple[RuleOfThumb, ...],  # result of `input_pipeline.remedies`, as `remedies` and `plan`
    remedies: tuple[Remedy, ...],
    plan: tuple[Remedy, ...],
    notes: tuple[str, ...],  # sources of the rates
) -> Document:
    """Return the document of an input pipeline."""
    limit = "" if prediction.is_forecast else "at most "
    headline = (
        f"{subject}: {limit}{format_rate(fed.throughput_per_s)} samples/s, device utilisation {fed.utilisation:.1%}; "
        f"bottleneck: {_BOTTLENECKS[fed.bottleneck.name]}"
    )
    return Document(
        headline,
        _facts(fed, prediction),
        [_stage_table(fed), _rule_table(rules), _remedy_table(remedies)],
        [_plan_note(fed, plan), *notes],
    )


_BOTTLENECKS = {
    "device": "the device",
    "storage": "storage",
    "network": "the network",
    "decode": "decoding on the CPU",
    "copy": "the copy to the device",
}


def _facts(fed: PipelineThroughput, prediction: Prediction) -> list[tuple[str, str]]:
    feeding = fed.pipeline
    schedule = "pipelined, with buffers between stages" if feeding.prefetch else "sequential"
    if feeding.prefetch and not feeding.pinned:
        schedule += ", but copies from pageable memory do not overlap with computation"
    demand = f"{format_rate(feeding.demand_per_s)} samples/s"
    if fed.needed_bytes_per_s is not None:
        demand += f", {format_si(fed.needed_bytes_per_s, 'B/s')} from storage"
    if fed.needed_workers is not None:
        demand += f", {format_plural(fed.needed_workers, 'worker')}"
    per_device = " per device" if feeding.devices > 1 else ""
    return [
        ("sample", f"{format_si(feeding.sample_bytes, 'B')} stored, {format_si(feeding.decoded_bytes, 'B')} copied"),
        ("stages", schedule),
        (
            "batch",
            f"{feeding.batch_size}{per_device}: {format_time_short(fed.compute_s)} computing"
            f"{format_at_90(prediction.interval)}, "
            f"{format_time_short(fed.waiting_s)} waiting for input",
        ),
        (LOWER_BOUND_FACT, f"{format_time_short(prediction.bound_s)} computing (data sheet)"),
        ("needed", f"{demand} for full utilisation"),
    ]


def _stage_rows(fed: PipelineThroughput) -> list[dict[str, Any]]:
    return [
        {
            "stage": stage.name,
            "what": stage.description,
            "workers": stage.workers,
            "per_s": stage.per_s,
            "bytes_per_s": stage.bytes_per_s,
            "beside": stage.runs_concurrently,
            "busy": fed.throughput_per_s / stage.per_s,
            "bottleneck": stage is fed.bottleneck,
        }
        for stage in fed.stages
    ]


def _stage_table(fed: PipelineThroughput) -> Table:
    columns = select_columns(
        "stage",
        find_column("description", key="what"),
        "workers",
        find_column("throughput_per_s", key="per_s"),
        "bytes_per_s",
        "beside",
        find_column("busy_share", key="busy"),
    )
    return Table("Stages in isolation", columns, _stage_rows(fed))


def _rule_table(rules: tuple[RuleOfThumb, ...]) -> Table:
    columns = select_columns("rule", "found", "holds")
    return Table("Rules of thumb", columns, [{"rule": r.rule, "found": r.observed, "holds": r.holds} for r in rules])


def _remedy_row(remedy: Remedy) -> dict[str, Any]:
    return {
        "remedy": remedy.name,
        "what": remedy.description,
        "throughput_per_s": remedy.after.throughput_per_s,
        "gain": remedy.gain,
        "utilisation": remedy.after.utilisation,
        "bottleneck": remedy.after.bottleneck.name,
    }


def _remedy_table(remedies: tuple[Remedy, ...]) -> Table:
    columns = select_columns(
        "remedy", find_column("description", key="what"), "throughput_per_s", "gain", "utilisation", "bottleneck"
    )
    return Table("Remedies, each applied alone", columns, [_remedy_row(remedy) for remedy in remedies])


def _plan_note(fed: PipelineThroughput, plan: tuple[Remedy, ...]) -> str:
    if fed.utilisation >= 0.9:
        return "input is not the bottleneck: only a faster device or less computation increases throughput"
    if not plan:
        return "no remedy on this node helps"
    steps = ", then ".join(f"{step.name} ({step.description})" for step in plan)
    return f"combined: {steps}: device utilisation {plan[-1].after.utilisation:.1%}"

"""Documents of pipelines: a prediction with time and memory of each part, counts, and several devices."""

from __future__ import annotations

from typing import Any

from ..architectures.pipelines.counts import PRODUCTS, PipelineCounts
from ..distributed.pictures import PictureScaling
from ..result import LOWER_BOUND_FACT
from ..text import format_plural
from ..timing.models import describe_model
from ..timing.pipeline_prediction import PipelinePrediction
from ..units import format_interval, format_number, format_si
from .answers import format_at_90, format_power, format_shortage, price_facts, site_facts
from .columns import find_column, part_column, select_columns
from .document import Document, Table
from .formats import format_bytes, format_percent
from .networks import cost_facts
from .predictions import run_fact

_PLACEMENTS = {
    "none": "with all parts on the device",
    "model": "with one part at a time",
    "sequential": "with one layer at a time",
}


def pipeline_page(prediction: PipelinePrediction, memory: bool = False) -> Document:
    """Return the document of a pipeline's prediction, with `memory` its peak memory by the placement of parameters."""
    tables = [_part_table(prediction)]
    if memory:
        tables.append(_memory_table(prediction))
    return Document(
        title=pipeline_headline(prediction), facts=_facts(prediction), content=tables, notes=prediction.notes
    )


def pipeline_headline(prediction: PipelinePrediction) -> str:
    """Return the answer in one line."""
    sampling = prediction.sampling
    size = f"{sampling.width}x{sampling.height}"
    if prediction.pipeline.is_video:
        size += f", {format_plural(sampling.frames, 'frame')}"
    steps = format_plural(sampling.steps, "step")
    devices = "" if prediction.split.devices == 1 else f"{prediction.split.devices} x "
    formats = prediction.precision
    if prediction.weights != formats:
        formats += f" with weights in {prediction.weights}"
    situation = f"{prediction.network} on {devices}{prediction.machine.name}, {formats}, {size}, {steps}"
    if sampling.images > 1:
        situation += f", batch of {sampling.images}"
    time = format_si(prediction.time_s, "s")
    if not prediction.is_forecast:
        return f"{situation}: at least {time} (bound from the data sheet)"
    answer = f"{situation}: {time}{format_at_90(prediction.interval)}"
    if sampling.images > 1:
        answer += f", {format_si(prediction.time_per_image_s, 's')} per {prediction.made}"
    if not prediction.memory.fits:
        answer += format_shortage(prediction.memory.total_bytes, prediction.memory.usable_bytes)
        answer += "".join(f"; fits with `{remedy.options}`" for remedy in prediction.memory.remedies)
    return answer


def _facts(prediction: PipelinePrediction) -> list[tuple[str, str]]:
    sampling, memory = prediction.sampling, prediction.memory
    facts = []
    if prediction.is_forecast:
        facts.append((LOWER_BOUND_FACT, f"{format_si(prediction.bound_s, 's')} (data sheet)"))
        facts.append(("MFU", f"{prediction.mfu:.1%} of peak FLOP/s"))
    facts.append(("rate", f"{format_number(3600 * prediction.throughput_per_s)} {prediction.made}s per hour"))
    facts.append(("time model", describe_model(prediction.model)))
    guided = {"batch": "in one batch of twice the size", "calls": "in two runs of the denoiser per step"}
    if prediction.pipeline.guided == "none":
        guidance = "distilled into the denoiser: one run per step"
    elif sampling.guidance > 1:
        guidance = f"{sampling.guidance:g}, {guided[prediction.pipeline.guided]}"
    else:
        guidance = "none"
    facts.append(("guidance", guidance))
    if sampling.computed_steps < sampling.steps:
        facts.append(("caching", f"{sampling.computed_steps} of {sampling.steps} steps are computed"))
    tiles = sum(part.runs for part in prediction.parts if part.part.role == "decoder" and part.part.tile)
    if sampling.tiled:
        facts.append(("decoder", "one tile: the picture is no larger" if tiles == 1 else f"{tiles} tiles that overlap"))
    if prediction.split.devices > 1:
        split = prediction.split
        text = f"Ulysses {split.ulysses} x ring {split.ring} in the denoiser; other parts on each device"
        if split.guidance > 1:
            text = f"{split.guidance} groups for guidance, each {text}"
        facts.append(("sequence", text))
    facts.append(("counted", f"{format_si(prediction.macs, 'MAC', 5)}; {format_si(prediction.parameters)} parameters"))
    if prediction.amount is None:
        facts += price_facts(prediction)
    else:
        facts.append(run_fact(prediction.amount, f"{format_number(prediction.amount.samples)} {prediction.made}s"))
    if prediction.is_forecast and prediction.energy_j is not None:
        energy = f"{format_si(prediction.energy_j, 'J')} of the devices alone"
        if sampling.images > 1:
            energy += f", {format_si(prediction.energy_j / sampling.images, 'J')} per {prediction.made}"
        facts.append(("energy", f"{energy}, {format_power(prediction)} per device on average"))
        facts += site_facts(prediction)
    if "80" in prediction.intervals:
        facts.append(("at 80%", format_interval(prediction.intervals["80"])))
    memory_text = f"{format_bytes(memory.total_bytes)} of {format_bytes(memory.usable_bytes)} usable"
    memory_text += f" {_PLACEMENTS[prediction.run.offload]}"
    if not memory.fits:
        memory_text = f"DOES NOT FIT, {memory_text}; {memory_remedy(prediction)}"
    elif memory.largest_batch is not None:
        memory_text += f"; largest batch {memory.largest_batch:,}"
    facts.append(("peak memory", memory_text))
    return facts


def memory_remedy(prediction: PipelinePrediction) -> str:
    """Return what would make a pipeline fit that is too large for the memory."""
    memory = prediction.memory
    if memory.remedies:
        fastest = memory.remedies[0]
        size = format_bytes(fastest.total_bytes)
        return f"fits with `{fastest.options}`: {size}, {fastest.time_ratio:.3g} times as long"
    fitting = [name for name, size in memory.by_offload.items() if size <= memory.usable_bytes]
    remedy = f"fits with --offload {fitting[0]}" if fitting else "fits with no --offload alone"
    if not prediction.sampling.tiled and any(part.tile for part in prediction.pipeline.decoders):
        return f"--tiled decodes in less memory; {remedy}"
    return remedy


def _part_table(prediction: PipelinePrediction) -> Table:
    """Return runs, time and parameters by part."""
    rows = prediction.rows()
    total = {
        "part": "total",
        "time_s": prediction.time_s,
        "share": 1.0,
        "energy_j": prediction.energy_j,
        "parameters_bytes": prediction.memory.parameters_bytes,
    }
    has_transfers = any(row["transfer_s"] for row in rows)
    columns = select_columns(
        "part",
        find_column("network", wrap=True),
        "runs",
        "samples",
        find_column("run_macs", key="macs"),
        "run_s",
        *(["transfer_s"] if has_transfers else []),
        "time_s",
        "share",
        *(["energy_j"] if prediction.is_forecast and prediction.energy_j is not None else []),
        "parameters_bytes",
        drop=("parameters_bytes", "macs", "run_s"),
        bars=("share",),
    )
    return Table("Time by part", columns, rows, [total])


def _memory_table(prediction: PipelinePrediction) -> Table:
    rows = [
        {
            "offload": name,
            "placement": _PLACEMENTS[name],
            "total_bytes": size,
            "fits": size <= prediction.memory.usable_bytes,
        }
        for name, size in prediction.memory.by_offload.items()
    ]
    columns = select_columns(
        "offload",
        find_column("offload_placement", key="placement"),
        find_column("memory_bytes", key="total_bytes"),
        "fits",
    )
    return Table("Peak memory", columns, rows)


def counts_page(counts: PipelineCounts) -> Document:
    """Return the document of a pipeline's counts."""
    sampling, total = counts.sampling, counts.total
    size = f"{sampling.width}x{sampling.height}"
    if counts.pipeline.is_video:
        size += f", {format_plural(sampling.frames, 'frame')}"
    steps = format_plural(sampling.steps, "step")
    title = (
        f"{counts.pipeline.name}, {size}, {steps}: {format_si(total['all_macs'], 'MAC', 5)}, "
        f"{format_si(total['parameters'])} parameters"
    )
    columns = select_columns(
        "part",
        "network",
        "runs",
        "samples",
        find_column("run_macs", key="macs"),
        find_column("macs", key="all_macs"),
        *(part_column(name, format_percent) for name in PRODUCTS),
        "parameters",
        "layers",
        drop=("layers", "samples", "parameters", "macs"),
    )
    facts = []
    tables = [Table("Share of products by part", columns, counts.rows(), [{"part": "total", **total}])]
    if counts.on is not None and counts.by_kind is not None:
        facts += cost_facts(counts.on, counts.surroundings)
        total_cost = {"part": "total", **counts.on}
        costs = select_columns("part", "network", "time_s", "energy_j")
        tables.append(Table("Time and energy by part", costs, counts.rows(), [total_cost]))
        tables.append(_kind_table(counts.by_kind, counts.on))
    return Document(title, facts, tables)


def _kind_table(kinds: dict[str, dict[str, Any]], total: dict[str, Any]) -> Table:
    """Return time and energy by kind of layer over all parts, most joules first."""
    columns = select_columns("kind", "time_s", "share", "energy_j")
    rows = [{"kind": kind, **entry} for kind, entry in kinds.items()]
    return Table("Time and energy by kind of layer", columns, rows, [{"kind": "total", **total, "share": 1.0}])


def scaling_page(scaling: PictureScaling) -> Document:
    """Return the document of a pipeline on several numbers of devices."""
    prediction = scaling.one
    rows = scaling.rows()
    columns = select_columns(
        find_column("devices", key="workers"),
        "replicas",
        "guidance",
        "ulysses",
        "ring",
        "time_s",
        "speedup",
        find_column("scaling_efficiency", key="efficiency"),
        "low_s",
        "high_s",
        find_column("throughput_per_s", title=f"{prediction.made}s\nper s"),
        "hours",
        "cost_usd",
        "kwh",
        "energy_j",
        "memory_bytes",
        drop=("memory_bytes", "energy_j", "kwh", "throughput_per_s", "low_s", "high_s"),
    )
    best = min(rows, key=lambda row: row["time_s"])
    title = (
        f"{pipeline_headline(prediction)}; on {format_plural(best['workers'], 'device')} "
        f"{format_si(best['time_s'], 's')}, {format_number(best['speedup'])} times as fast"
    )
    facts = [("time model", describe_model(prediction.model))]
    amount = scaling.found[0].amount
    if amount is not None:
        price = "" if amount.price is None else f"; a device: {amount.price}"
        facts.append(("hours and cost", f"for {format_si(amount.samples)} {prediction.made}s{price}"))
    table = Table("Time by number of devices", columns, rows).drop_empty_columns()
    return Document(title, facts, [table], notes=scaling.notes)

"""Documents of a prediction: summary, time by kind of layer, slowest layers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..counting import GENERATION_PHASES
from ..counting.work import MIXED_EXECUTIONS
from ..machines.device import CLOCKS
from ..result import LOWER_BOUND_FACT
from ..text import format_plural
from ..timing import Prediction, describe_model
from ..timing.layer_rows import sum_by_kind
from ..timing.notes import slows_under_power_limit
from ..timing.power import convolution_fraction, limited_fraction
from ..units import format_interval, format_number, format_si, parse_quantity
from ..version import __version__
from .answers import (
    describe_fitting,
    format_at_90,
    format_power,
    format_shortage,
    memory_fact,
    memory_tables,
    price_facts,
    site_facts,
)
from .columns import find_column, select_columns
from .document import Document, Table, raw_table

if TYPE_CHECKING:
    from ..timing.budget import TrainingRun

WIDE_INTERVAL = 2.5
"""Ratio of the ends of an interval above which a measurement that would narrow it is suggested."""

COUNT_UNITS = {"macs": "MAC", "pthflops": "op", "lu2017": "op"}
"""Unit of each convention that does not count FLOPs."""


def prediction_page(
    prediction: Prediction,
    top: int | None = 10,  # number of slowest layers to list; None lists all layers in the order of execution
    memory: bool = False,  # whether to list the peak memory by part
) -> Document:
    """Return the document of a prediction."""
    layers = list(prediction.rows())
    tables = []
    if prediction.launched is not None:
        tables.append(kernel_table(prediction))
    elif layers:
        tables.append(_kind_table(prediction, layers))
        if top is not None:
            layers = sorted(layers, key=lambda row: -row["time_s"])[:top]
        if layers:
            tables.append(layer_table(prediction, layers))
    facts = [*_time_facts(prediction), *_model_facts(prediction)]
    if prediction.interval is not None and prediction.interval[1] > WIDE_INTERVAL * prediction.interval[0]:
        facts += _suggestion_facts(prediction)
    if prediction.memory is not None:
        facts.append(memory_fact(prediction.memory))
        tables += memory_tables(prediction.memory, by_part=memory)
    facts += price_facts(prediction) if prediction.run is None else [run_fact(prediction.run)]
    return Document(
        title=headline(prediction),
        facts=facts,
        content=tables,
        notes=prediction.notes,
        data=lambda: _csv_table(prediction),
    )


def _kind_table(prediction: Prediction, layers: list[dict[str, Any]]) -> Table:
    """Return time, FLOPs and bytes by kind of layer, of a forecast also its energy."""
    energy_j = prediction.layers_energy_j if prediction.is_forecast else None
    by_kind = sum_by_kind(layers, energy_j, prediction.time_s)
    rows = [{"kind": kind, **entry} for kind, entry in by_kind.items()]
    rows += _overhead_rows(prediction, "overhead")
    total = {
        "kind": "total",
        "layers": len(prediction.names),
        "flops": prediction.flops,
        "bytes": prediction.bytes,
        "time_s": prediction.time_s,
        "energy_j": prediction.energy_j if prediction.is_forecast else None,
        "share": 1.0,
    }
    columns = select_columns(
        "kind",
        "layers",
        find_column("flops", title=_count_title(prediction)),
        "bytes",
        "time_s",
        "energy_j",
        "share",
        drop=("energy_j",),
        bars=("share",),
    )
    if not prediction.is_forecast:
        columns = [column for column in columns if column.key != "energy_j"]
    return Table("Time by kind of layer", columns, rows, [total], name="time")


def kernel_table(prediction: Prediction) -> Table:
    """Return launches, FLOPs, bytes, time and energy of the kernels of an engine by their name, longest first."""
    bounds: dict[str, str] = {}
    for row in sorted(prediction.rows(), key=lambda row: row["time_s"]):
        bounds[row["kind"]] = row["bound"]
    rows = [{"kind": kind, "bound": bounds[kind], **entry} for kind, entry in prediction.by_kind().items()]
    rows += _overhead_rows(prediction, "host of the engine")
    sums: dict[str, Any] = {key: sum(row.get(key, 0) for row in rows) for key in ("launches", "flops", "bytes")}
    total = {"kind": "total", **sums, "time_s": prediction.time_s, "energy_j": prediction.energy_j, "share": 1.0}
    columns = select_columns(
        find_column("kernel", key="kind"),
        "launches",
        "flops",
        "bytes",
        "time_s",
        "energy_j",
        "share",
        "bound",
        drop=("bound", "energy_j", "launches"),
        bars=("share",),
    )
    return Table("Time by kernel", columns, rows, [total], name="time")


def _overhead_rows(prediction: Prediction, name: str) -> list[dict[str, Any]]:
    """Return the row of the overhead of a step, if there is any."""
    if not prediction.terms.overhead_s:
        return []
    share = prediction.terms.overhead_s / prediction.time_s
    overhead = {"kind": name, "time_s": prediction.terms.overhead_s, "share": share}
    energy_j = prediction.layers_energy_j
    if energy_j is not None and prediction.energy_j is not None:
        overhead["energy_j"] = prediction.energy_j - float(energy_j.sum())
    return [overhead]


def _count_title(prediction: Prediction) -> str:
    return "FLOPs" if prediction.convention == "flops" else "count"


def _time_facts(prediction: Prediction) -> list[tuple[str, str]]:
    """Return the facts about time: tokens, the whole board, the bound, passes, MFU."""
    facts = _generation_facts(prediction) if prediction.phase in GENERATION_PHASES else []
    bound = f"{format_si(prediction.bound_s, 's')} (data sheet)"
    board = prediction.board
    if board is not None:
        gpus = "both GPUs" if board["devices"] == 2 else f"all {board['devices']} GPUs"
        throughput = board["throughput_per_s"]
        if throughput is not None:
            text = f"{format_number(throughput)} samples/s with an independent batch on each GPU"
            facts.append(("whole board", text))
        bound += f"; {format_si(board['bound_s'], 's')} if {gpus} shared one batch"
    if prediction.is_forecast:
        facts.append((LOWER_BOUND_FACT, bound))
    if len(prediction.terms.passes) > 1:
        passes = ", ".join(f"{name} {format_si(time_s, 's')}" for name, time_s in prediction.passes_s.items() if time_s)
        waiting = sum(prediction.waiting_s.values()) / prediction.time_s
        if waiting > 0.05:
            passes += f"; {waiting:.0%} waiting for the host"
        facts.append(("passes", passes))
    if prediction.is_forecast and prediction.mfu is not None:
        text = f"{prediction.mfu:.1%} of peak FLOP/s"
        if prediction.recomputed_fraction and prediction.hfu is not None:
            text += f"; HFU, with those that are computed again, {prediction.hfu:.1%}"
        facts.append(("MFU", text))
    return facts


def _generation_facts(prediction: Prediction) -> list[tuple[str, str]]:
    """Return the facts about text generation: time per token, KV cache, precision of the weights."""
    figures = prediction.generation_dict()
    assert figures is not None
    time, batch_size = format_si(prediction.time_s, "s"), prediction.batch_size
    facts = []
    if prediction.phase == "prefill":
        sequences = f", for all {batch_size} sequences" if batch_size > 1 else ""
        facts.append(("time to first token", f"{time}{sequences}"))
    else:
        per_sequence = ""
        if batch_size > 1:
            per_sequence = f"; {_format_token_rate(figures['tokens_per_s_per_sequence'])} per sequence"
        facts.append(("time per token", f"{time}{per_sequence}"))
    lengths = prediction.workload.network.lengths
    cached_tokens = lengths.keys if lengths else 0
    cache = format_si(figures["cache_bytes_per_sequence"], "B")
    facts.append(("KV cache", f"{cache} per sequence of {cached_tokens:,} tokens"))
    if figures["compute_bound_from_batch"]:
        limit = f"compute-bound from batch size {figures['compute_bound_from_batch']:,} (data sheet)"
        facts.append(("weights", f"{figures['weights']}; {limit}"))
    return facts


def _clock_facts(prediction: Prediction) -> list[tuple[str, str]]:
    """Return the sustained clock if it differs from that of the peak: under a power limit, or on a boosting board."""
    # The constants of an engine's kernels were measured at the clocks that devices hold.
    if prediction.launched is not None or not slows_under_power_limit(prediction.model):
        return []
    clock, limit_w = prediction.peak.clock, prediction.device.power_w
    clock_hz = prediction.device.clock_hz(clock) if clock in CLOCKS else parse_quantity(clock, "Hz")  # type: ignore[arg-type]
    if clock_hz is None or limit_w is None:
        return []
    fraction = prediction.sustained_fraction
    if abs(fraction - 1) < 0.005:
        return []
    sustained, listed = format_si(fraction * clock_hz, "Hz", 3), format_si(clock_hz, "Hz", 3)
    if fraction > 1:
        return [("clock", f"{sustained} in matrix products, above the {listed} of the data sheet")]
    kernels = ""
    limited = limited_fraction(prediction.device)
    if fraction < 0.995 * limited:
        kernels = " in matrix products"
        in_convolutions = limited * convolution_fraction(prediction.device, prediction.peak)
        if in_convolutions < 0.995:
            kernels += f", {format_si(in_convolutions * clock_hz, 'Hz', 3)} in convolutions"
    return [("clock", f"{sustained} of {listed}{kernels} ({limit_w:g} W limit)")]


def _format_token_rate(per_s: float) -> str:
    return f"{per_s:,.0f} tokens/s" if per_s >= 1000 else f"{per_s:.4g} tokens/s"


def _model_facts(prediction: Prediction) -> list[tuple[str, str]]:
    """Return the inputs of the prediction: time model, rates and counts."""
    bandwidth = format_si(prediction.bandwidth_bytes_per_s, "B/s")
    unit = COUNT_UNITS.get(prediction.convention, "FLOP")
    counted = format_si(prediction.flops, unit, 5)
    if prediction.launched is not None and prediction.convention == "flops":
        counted += " by the kernels, which leave out what a mask hides"
    elif prediction.convention != "given":
        counted += f" ({prediction.convention} convention)"
    if prediction.macs is not None and prediction.launched is None:
        counted += f", {format_si(prediction.macs, 'MAC', 5)}"
    if prediction.bytes is not None:
        counted += f", {format_si(prediction.bytes, 'B')} moved"
    facts = [
        ("time model", describe_model(prediction.model)),
        ("peak", prediction.peak.describe()),
        *_clock_facts(prediction),
        ("memory", f"{bandwidth} peak bandwidth, {prediction.device.memory.type}"),
        ("counted", counted),
    ]
    if prediction.is_forecast and prediction.energy_j is not None:
        energy = format_si(prediction.energy_j, "J")
        facts.append(("energy", f"{energy} of the device alone, {format_power(prediction)} on average"))
        facts += site_facts(prediction)
    if prediction.bytes:
        intensity = f"{prediction.intensity:.3g} {unit}/byte (ridge point {prediction.ridge_point:.3g})"
        facts.append(("intensity", intensity))
    if prediction.launched is not None:
        facts.append(
            ("engine", f"{prediction.execution}: {format_plural(prediction.kernels or 0, 'kernel')} on the device")
        )
    elif prediction.execution != "eager":
        if prediction.execution in MIXED_EXECUTIONS:
            counted_bytes = "bytes include the casts"
        else:
            counted_bytes = "bytes between fused layers are not counted"
        facts.append(("execution", f"{prediction.execution}: {prediction.kernels} kernels, {counted_bytes}"))
    if "80" in prediction.intervals:
        facts.append(("at 80%", format_interval(prediction.intervals["80"])))
    if prediction.parameters is not None:
        facts.append(("parameters", format_si(prediction.parameters)))
    return facts


def _suggestion_facts(prediction: Prediction) -> list[tuple[str, str]]:
    """Return the measurement that would narrow the prediction's interval most, as one fact or none."""
    from ..architectures.catalog import network_names

    if prediction.network not in network_names():
        return []  # the command would not know it by its name
    from ..calibration.suggest import most_informative_measurement  # counts further networks: only for wide intervals

    suggestion = most_informative_measurement(prediction)
    if suggestion is None:
        return []
    step, interval = suggestion
    measurement = f"{step.network.name}, {step.phase}, batch {step.batch_size}"
    command = (
        f"paleo-lite calibrate --suggest 3 --gpu {prediction.device.id} --precision {prediction.workload.precision}"
    )
    command += f" --network {prediction.network}"
    if prediction.batch_size != 1:
        command += f" --batch-size {prediction.batch_size}"
    if prediction.phase != "inference":
        command += f" --phase {prediction.phase}"
    return [("narrower", f"{format_interval(interval)} after measuring {measurement}: {command}")]


def headline(prediction: Prediction) -> str:
    """Return the answer in one line."""
    batch = "" if prediction.batch_size == 1 else f", batch {prediction.batch_size}"
    answer = f"{prediction.network} on {prediction.machine.name}, {prediction.precision} {prediction.phase}{batch}: "
    time = format_si(prediction.time_s, "s")
    if prediction.is_forecast:
        answer += time + format_at_90(prediction.interval)
        if prediction.throughput_per_s is not None and prediction.phase not in GENERATION_PHASES:
            answer += f", {format_number(prediction.throughput_per_s)} samples/s"
        tokens = prediction.tokens_per_s
        if tokens is not None:
            answer += f", {_format_token_rate(tokens)}"
    else:
        answer += f"at least {time} (bound from the data sheet)"
    fit = prediction.memory
    if fit is not None and not fit.fits:
        answer += f"{format_shortage(fit.memory.total_bytes, fit.usable_bytes)}; {describe_fitting(fit)}"
    return answer


def layer_table(prediction: Prediction, rows: list[dict[str, Any]]) -> Table:
    """Return a table of layers."""
    layers = []
    for row in rows:
        share = row["time_s"] / prediction.time_s if prediction.time_s else 0.0
        layers.append({**row, "share": share})
    columns = select_columns(
        find_column("layer", key="name"),
        "kind",
        find_column("flops", title=_count_title(prediction)),
        "bytes",
        "time_s",
        "share",
        "bound",
        drop=("share", "bytes", "kind"),
    )
    title = "Layers"
    if len(rows) < len(prediction.names):
        title = f"Slowest layers, {len(rows)} of {len(prediction.names)}"
    return Table(title, columns, layers)


def run_fact(run: TrainingRun, amount: str | None = None) -> tuple[str, str]:
    """Return the fact about hours, cost and energy of an amount, by default of steps of training."""
    parts = [f"{format_number(run.hours)} hours"]
    intervals = [run.hours_interval]
    if run.cost_usd is not None:
        parts.append(f"{format_number(run.cost_usd)} USD")
        intervals.append(run.cost_interval)
    if run.kwh is not None:
        parts.append(f"{format_number(run.kwh)} kWh")
        intervals.append(run.kwh_interval)
    texts = []
    for part, interval in zip(parts, intervals):
        between = "" if interval is None else f" ({format_number(interval[0])} to {format_number(interval[1])})"
        texts.append(part + between)
    price = "" if run.price is None else f"; at {run.price}"
    return "whole run", f"{amount or format_plural(run.steps, 'step')}: {', '.join(texts)}{price}"


def _csv_table(prediction: Prediction) -> Table:
    """Return the rows of CSV output: layers and overhead, which add up to the time; each names fit and calibration."""
    if not prediction.names:
        figures = prediction.to_dict()
        return raw_table([{key: value for key, value in figures.items() if not isinstance(value, (dict, list))}])
    origin = {
        "memory_bytes": prediction.memory_bytes,
        "fits": prediction.fits,
        "calibration": prediction.calibration,
        "version": __version__,
    }
    columns = ["name", "kind", "flops", "bytes", "time_s", "bound_s", "bound", *origin]
    if prediction.launched is not None:
        columns.insert(2, "launches")
    return raw_table([{**row, **origin} for row in prediction.steps()], columns)

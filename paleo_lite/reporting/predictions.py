"""Predictions to look at: the summary, time by kind, the slowest layers, peak memory, and the arithmetic of a layer."""

from __future__ import annotations

from math import exp
from typing import TYPE_CHECKING, Any

import msgspec

from ..counting import GENERATING
from ..counting.work import MIXED
from ..timing import Prediction, describe
from ..timing.generating import generating_dict, tokens_per_s
from ..units import format_si, say_interval, say_number
from ..version import __version__
from .document import Column, Document, Table, raw_table, say_count, say_percent, say_size, say_time, say_yes_or_no

if TYPE_CHECKING:
    from ..counting import Layer
    from ..counting.algorithms import Algorithm
    from ..timing.memory import MemoryFit

WIDE = 2.5
"""Upper end over lower end of an interval above which a prediction says what would narrow it."""

_UNITS = {"macs": "MAC", "pthflops": "op", "lu2017": "op"}
"""What a convention counts, where that is not FLOPs."""

_MEANINGS = {
    "parameters": "weights, and running statistics of batch norms",
    "gradients": "of the weights",
    "optimizer": "state that stays from step to step",
    "activations": "saved for the backward pass",
    "inputs": "what the network is given",
    "cache": "keys and values of every token so far",
    "workspace": "results not saved and gradients of activations, at the peak",
}


def prediction_page(prediction: Prediction, top: int | None = 10, memory: bool = False) -> Document:
    """The page of a prediction.

    Parameters
    ----------
    top : int or None
        How many of the slowest layers to list; None lists all in the order of execution.
    memory : bool
        Whether to show the peak memory by part in a table.
    """
    layers, by_kind = list(prediction.rows()), prediction.by_kind()
    total = {
        "kind": "total", "layers": len(prediction.names), "flops": prediction.flops, "bytes": prediction.bytes,
        "time_s": prediction.time_s, "share": 1.0,
    }  # fmt: skip
    tables = []
    if layers:
        kinds = [{"kind": kind, **entry} for kind, entry in by_kind.items()]
        if prediction.terms.overhead_s:
            share = prediction.terms.overhead_s / prediction.time_s
            kinds.append({"kind": "overhead", "time_s": prediction.terms.overhead_s, "share": share})
        columns = [
            Column("kind", "kind", left=True),
            Column("layers", "layers"),
            Column("flops", "count" if prediction.convention != "flops" else "FLOPs", format_si),
            Column("bytes", "bytes", say_size),
            Column("time_s", "time", say_time),
            Column("share", "share", say_percent, bar=True),
        ]
        tables.append(Table("Time by kind of layer", columns, kinds, [total]))
        table = layer_table(prediction, layers if top is None else sorted(layers, key=lambda row: -row["time_s"])[:top])
        if table.rows:
            tables.append(table)
    facts = [*_time_facts(prediction), *_facts(prediction)]
    if prediction.interval is not None and prediction.interval[1] > WIDE * prediction.interval[0]:
        facts += _narrower(prediction)
    if prediction.memory is not None:
        facts.append(memory_fact(prediction.memory))
        tables += memory_tables(prediction.memory, by_part=memory)
    return Document(
        title=headline(prediction),
        facts=facts,
        content=tables,
        notes=prediction.notes,
        data=lambda: _data(prediction),
    )


def _time_facts(prediction: Prediction) -> list[tuple[str, str]]:
    """What a step comes to: tokens, all devices of a board, what the data sheet allows, passes, share of the peak."""
    facts, board = _generated(prediction) if prediction.phase in GENERATING else [], prediction.board
    at_least = f"{format_si(prediction.bound_s, 's')} by the data sheet"
    if board is not None:
        rate, every = board["throughput_per_s"], "both" if board["devices"] == 2 else f"all {board['devices']}"
        if rate is not None:
            facts.append((f"{every} at once", f"{say_number(rate)} samples per second, each with its own batch"))
        at_least += f"; {format_si(board['bound_s'], 's')} if {every} could share one batch"
    if prediction.is_forecast:
        facts.append(("at least", at_least))
    if len(prediction.terms.passes) > 1:
        passes = ", ".join(f"{name} {format_si(took, 's')}" for name, took in prediction.passes_s.items() if took)
        waiting = sum(prediction.waiting_s.values()) / prediction.time_s
        facts.append(("passes", passes + (f"; {waiting:.0%} waiting for the host" if waiting > 0.05 else "")))
    if prediction.is_forecast and prediction.mfu is not None:
        facts.append(("MFU", f"{prediction.mfu:.1%} of peak FLOP/s"))
    return facts


def _generated(prediction: Prediction) -> list[tuple[str, str]]:
    """What is asked of a network that writes text."""
    known = generating_dict(prediction)
    assert known is not None
    time, batch = format_si(prediction.time_s, "s"), prediction.batch_size
    facts = []
    if prediction.phase == "prefill":
        facts.append(("first token", f"{time} after the prompt" + (", of every sequence" if batch > 1 else "")))
    else:
        every = f", of each of {batch} sequences {_tokens(known['tokens_per_s_per_sequence'])}" if batch > 1 else ""
        facts.append(("a token", f"every {time}{every}"))
    lengths = prediction.workload.network.lengths
    keys = lengths.keys if lengths else 0
    facts.append(("cache", f"{format_si(known['cache_bytes_per_sequence'], 'B')} a sequence of {keys:,} tokens"))
    if known["compute_bound_from_batch"]:
        turns = f"by the data sheet compute-bound from a batch of {known['compute_bound_from_batch']:,} on"
        facts.append(("weights", f"{known['weights']}, their products {turns}"))
    return facts


def _tokens(per_s: float) -> str:
    return f"{per_s:,.0f} tokens per second" if per_s >= 1000 else f"{per_s:.4g} tokens per second"


def _facts(prediction: Prediction) -> list[tuple[str, str]]:
    """What the time follows from: model, rates and counts."""
    bandwidth = format_si(prediction.bandwidth_bytes_per_s, "B/s")
    unit = _UNITS.get(prediction.convention, "FLOP")
    counted = format_si(prediction.flops, unit, 5)
    if prediction.convention != "given":
        counted += f" ({prediction.convention} convention)"
    if prediction.macs is not None and prediction.bytes is not None:
        counted += f", {format_si(prediction.macs, 'MAC', 5)}, {format_si(prediction.bytes, 'B')} moved"
    facts = [
        ("time model", describe(prediction.model)),
        ("peak", prediction.peak.describe()),
        ("memory", f"{bandwidth} peak bandwidth, {prediction.device.memory.type}"),
        ("counted", counted),
    ]
    if prediction.bytes:
        ridge = f"the ridge point of this peak is {prediction.ridge_point:.3g}"
        facts.append(("intensity", f"{prediction.intensity:.3g} {unit} per byte; {ridge}"))
    if prediction.execution != "eager":
        bytes_ = "with the casts" if prediction.execution in MIXED else "without the bytes between fused layers"
        facts.append(("execution", f"{prediction.execution}: {prediction.kernels} kernels, {bytes_}"))
    if "80" in prediction.intervals:
        facts.append(("at 80%", say_interval(prediction.intervals["80"])))
    if prediction.parameters is not None:
        facts.append(("parameters", format_si(prediction.parameters)))
    return facts


def _narrower(prediction: Prediction) -> list[tuple[str, str]]:
    """Which one measurement would narrow a prediction, and to what, should it come true: a fact, or none."""
    from ..calibration.suggest import narrowest  # counts further networks: only where somebody is unsure

    if (found := narrowest(prediction)) is None:
        return []
    step, interval = found
    said = f"{step.network.name}, {step.phase}, batch {step.batch_size}"
    more = f"--gpu {prediction.device.id} --precision {prediction.precision} --network {prediction.network}"
    more += "" if prediction.batch_size == 1 else f" --batch-size {prediction.batch_size}"
    more += "" if prediction.phase == "inference" else f" --phase {prediction.phase}"
    return [("narrower", f"{say_interval(interval)} once {said} is measured: paleo-lite calibrate --suggest 3 {more}")]


def headline(prediction: Prediction) -> str:
    """The answer in one line."""
    batch = "" if prediction.batch_size == 1 else f", batch {prediction.batch_size}"
    answer = f"{prediction.network} on {prediction.machine.name}, {prediction.precision} {prediction.phase}{batch}: "
    time, fit = format_si(prediction.time_s, "s"), prediction.memory
    if prediction.is_forecast:
        answer += time
        if prediction.interval is not None:
            answer += f" ({say_interval(prediction.interval)} at 90%)"
        if prediction.throughput_per_s is not None and prediction.phase not in GENERATING:
            answer += f", {say_number(prediction.throughput_per_s)} samples per second"
        if prediction.workload.network.lengths is not None and (tokens := tokens_per_s(prediction)) is not None:
            answer += f", {_tokens(tokens)}"
    else:
        answer += f"at least {time}, a bound of the data sheet"
    if fit is not None and not fit.fits:
        need, usable = format_si(fit.memory.total_bytes, "B"), format_si(fit.usable_bytes, "B")
        answer += f"; it does not fit: {need} of memory needed, {usable} usable"
    return answer


def layer_table(prediction: Prediction, rows: list[dict[str, Any]]) -> Table:
    """A table of layers."""
    shown = [{**row, "share": row["time_s"] / prediction.time_s if prediction.time_s else 0.0} for row in rows]
    columns = [
        Column("name", "layer", left=True),
        Column("kind", "kind", left=True, spare=1),
        Column("flops", "FLOPs" if prediction.convention == "flops" else "count", format_si),
        Column("bytes", "bytes", say_size, spare=2),
        Column("time_s", "time", say_time),
        Column("share", "share", say_percent, spare=3),
        Column("bound", "bound by", left=True),
    ]
    title = (
        "Layers" if len(rows) == len(prediction.names) else f"Slowest layers, {len(rows)} of {len(prediction.names)}"
    )
    return Table(title, columns, shown)


def memory_fact(fit: MemoryFit) -> tuple[str, str]:
    """The line of the summary: how much, of how much, and what takes most of it."""
    memory = fit.memory
    largest = sorted(memory.rows(), key=lambda row: -row[1])
    largest_parts = ", ".join(f"{name} {say_size(amount)}" for name, amount in largest[:4] if amount)
    lead = "" if fit.fits else "DOES NOT FIT, "
    text = f"{say_size(memory.total_bytes)} of {say_size(fit.usable_bytes)}: {largest_parts}"
    most = "not even one sample fits" if fit.largest_batch is None else f"largest batch {fit.largest_batch:,}"
    return "peak memory", f"{lead}{text}; {most}"


def memory_tables(fit: MemoryFit, by_part: bool) -> list[Table]:
    """The parts, where they are asked for; the remedies, where it does not fit."""
    tables, total = [], fit.memory.total_bytes
    if by_part:
        meanings = dict(_MEANINGS)
        if fit.optimizer is None:
            meanings["activations"] = "alive at once, at the most"
        else:
            meanings["optimizer"] = f"{fit.optimizer}: {_MEANINGS['optimizer']}"
        parts = [
            {"part": name, "bytes": amount, "share": amount / total, "meaning": meanings[name]}
            for name, amount in fit.memory.rows()
            if amount or name in ("parameters", "activations")
        ]
        columns = [
            Column("part", "part", left=True),
            Column("bytes", "bytes", say_size),
            Column("share", "share", say_percent),
            Column("meaning", "what it is", left=True, spare=1),
        ]
        tables.append(Table("Peak memory", columns, parts, [{"part": "total", "bytes": total, "share": 1.0}]))
    if not fit.fits and fit.remedies:
        columns = [
            Column("name", "remedy", left=True),
            Column("total_bytes", "needs", say_size),
            Column("fits", "fits", say_yes_or_no, left=True),
            Column("largest_batch", "largest batch", say_count),
        ]
        title = f"What would help, most first ({say_size(fit.usable_bytes)} may be used)"
        tables.append(Table(title, columns, [msgspec.structs.asdict(remedy) for remedy in fit.remedies]))
    return tables


def _data(prediction: Prediction) -> Table:
    """What CSV gives: layers and overhead, which add up to the time, each row with what it was computed by."""
    if not prediction.names:
        return raw_table([{k: v for k, v in prediction.to_dict().items() if not isinstance(v, (dict, list))}])
    about = {"calibration": prediction.calibration, "version": __version__}
    columns = ["name", "kind", "flops", "bytes", "time_s", "bound_s", "bound", *about]
    return raw_table([{**row, **about} for row in prediction.steps()], columns)


EXACT = 1e-9


def explain_layer(prediction: Prediction, name: str) -> Document:
    """The arithmetic of one layer with its numbers, pass by pass."""
    index = prediction.layer_index(name)
    facts = [("kind", prediction.kinds[index]), ("bound by", prediction.bound(index))]
    is_fused, carrier = facts[-1][1] == "fused", prediction.workload.work.carrier
    if is_fused and carrier is not None:
        facts.append(("computed", f"in the kernel of {prediction.names[carrier[index]]}"))
    bandwidth, unit = format_si(prediction.bandwidth_bytes_per_s, "B/s"), _UNITS.get(prediction.convention, "FLOP")
    for number, pass_name in enumerate(prediction.terms.passes):
        peak = prediction.peak_of(pass_name, index)
        rate = f"{format_si(peak.per_s, 'FLOP/s')} ({peak.peak.precision} {peak.peak.unit})"
        flops, moved = int(prediction.counts_by_pass[number, index]), int(prediction.bytes_by_pass[number, index])
        terms = prediction.terms
        compute_s, memory_s, time_s = (
            float(seconds[number, index]) for seconds in (terms.compute_s, terms.memory_s, terms.layers_s)
        )
        if is_fused and not time_s:
            continue
        compute, memory, time = (format_si(seconds, "s") for seconds in (compute_s, memory_s, time_s))
        facts += [
            (
                f"{pass_name}: compute",
                f"{flops:,} {unit} / {rate}{_reached(flops / peak.per_s, compute_s)} = {compute}",
            ),
            (
                f"{pass_name}: memory",
                f"{moved:,} B / {bandwidth}{_reached(moved / prediction.bandwidth_bytes_per_s, memory_s)} = {memory}",
            ),
            (f"{pass_name}: time", f"{_joined(prediction, number, index, compute, memory)} = {time}"),
        ]
        if prediction.layers and pass_name in ("inference", "forward"):
            facts += _algorithms(prediction, number, index)
    share = prediction.terms.layers_s[:, index].sum() / prediction.time_s if prediction.time_s else 0.0
    facts.append(("share", f"{share:.1%} of {format_si(prediction.time_s, 's')}"))
    rows = [{"term": term, "arithmetic": arithmetic} for term, arithmetic in facts]
    table = Table("", [Column("term", "term", left=True), Column("arithmetic", "arithmetic", left=True)], rows)
    return Document(f"{name} of {prediction.network} on {prediction.device.name}", facts, (), prediction.notes, table)


def _reached(at_peak_s: float, seconds: float) -> str:
    """The share of peak that a term is reckoned with: a class's efficiency, and what tiles and padding leave of it."""
    share = at_peak_s / seconds if seconds else 1.0
    return "" if abs(share - 1) < EXACT else f" / {share:.4g} reached"


def _joined(prediction: Prediction, number: int, index: int, compute: str, memory: str) -> str:
    """How the terms of a layer make its time, with their numbers."""
    terms, model = prediction.terms, prediction.model
    if terms.floor_s is None:
        return model.formula(compute, memory)
    floor = format_si(float(terms.floor_s[number, index]), "s")
    waits = f" x {terms.waiting:.4g} waiting for the host" if terms.waiting >= 1.0005 else ""
    return f"({compute} ^4 + {memory} ^4 + {floor} shortest kernel ^4)^(1/4){waits}"


def _algorithms(prediction: Prediction, number: int, index: int) -> list[tuple[str, str]]:
    """What each convolution algorithm computes itself, its time at peak, and what share of peak it would reach."""
    from ..counting.algorithms import algorithms_of

    peak, layer = prediction.peak, prediction.layers[index]
    seconds = float(prediction.terms.layers_s[number, index])
    algorithms = algorithms_of(layer, prediction.batch_size, prediction.precision, peak.peak.unit)
    facts = []
    for algorithm in algorithms:
        told = f"{format_si(algorithm.flops, 'FLOP')}, {algorithm.flops / algorithms[0].flops:.3g} of direct; "
        told += f"at peak {format_si(algorithm.flops / peak.per_s, 's')}"
        if prediction.model.is_forecast and seconds:
            told += f"; predicted {algorithm.flops / peak.per_s / seconds:.2f} of peak if this one runs"
        facts.append((f"as {algorithm.name}", told))
    return facts + _efficiency(prediction, layer, algorithms)


def _efficiency(prediction: Prediction, layer: Layer, algorithms: list[Algorithm]) -> list[tuple[str, str]]:
    """What a calibrated efficiency of the direct count means for the other algorithms."""
    theta = getattr(prediction.model, "theta", None)
    if theta is None or len(algorithms) < 2:
        return []
    from ..counting.kinds import class_of
    from ..timing.calibrated import NAMES

    name = f"efficiency_{class_of(layer)}"
    value = float(exp(theta[NAMES.index(name)]))
    others = (f"{value * other.flops / algorithms[0].flops:.2f} of peak if {other.name}" for other in algorithms[1:])
    return [(name, f"{value:.2f} of peak in the direct count = {', '.join(others)}")]

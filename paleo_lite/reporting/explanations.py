"""The arithmetic of one layer or kernel of a prediction, with its numbers: `--explain`."""

from __future__ import annotations

from math import exp
from typing import TYPE_CHECKING

from ..timing import Prediction
from ..timing.models import TwoTermModel
from ..units import format_si
from .columns import select_columns
from .document import Document, Table
from .predictions import COUNT_UNITS

if TYPE_CHECKING:
    from ..counting import Layer
    from ..counting.algorithms import Algorithm

_TOLERANCE = 1e-9


def explain_layer(prediction: Prediction, name: str) -> Document:
    """Return the arithmetic of one layer with its numbers, pass by pass."""
    index = prediction.layer_index(name)
    if prediction.launched is not None:
        return _explain_kernel(prediction, index)
    terms = prediction.terms
    bound = prediction.bound(index)
    is_fused, carrier = bound == "fused", prediction.workload.work.carrier
    facts = [("kind", prediction.kinds[index]), ("bound by", bound)]
    if is_fused and carrier is not None:
        facts.append(("computed", f"in the kernel of {prediction.names[carrier[index]]}"))
    for pass_index, pass_name in enumerate(terms.passes):
        if is_fused and not terms.layers_s[pass_index, index]:
            continue
        facts += _explain_pass(prediction, pass_index, index)
        if prediction.layers and pass_name in ("inference", "forward"):
            facts += _algorithm_facts(prediction, pass_index, index)
    if isinstance(prediction.model, TwoTermModel) and prediction.model.beyond_peak:
        facts.append(("above peak", prediction.model.beyond_peak))
    return _explanation(prediction, index, facts)


def _explanation(prediction: Prediction, index: int, facts: list[tuple[str, str]]) -> Document:
    """Return the document of a layer or kernel, with its share of the time."""
    share = prediction.terms.layers_s[:, index].sum() / prediction.time_s if prediction.time_s else 0.0
    facts.append(("share", f"{share:.1%} of {format_si(prediction.time_s, 's')}"))
    rows = [{"term": term, "arithmetic": arithmetic} for term, arithmetic in facts]
    table = Table("", select_columns("term", "arithmetic"), rows)
    title = f"{prediction.names[index]} of {prediction.network} on {prediction.device.name}"
    return Document(title, facts, (), prediction.notes, table)


def _explain_kernel(prediction: Prediction, index: int) -> Document:
    """Return the terms of a kernel of an engine: arithmetic, traffic and start of all of its launches."""
    row, terms = list(prediction.rows())[index], prediction.terms
    assert terms.floor_s is not None
    parts_s = (terms.compute_s, terms.memory_s, terms.floor_s)
    compute, memory, start = (format_si(float(part_s[0, index]), "s") for part_s in parts_s)
    bandwidth = format_si(prediction.bandwidth_bytes_per_s, "B/s")
    facts = [
        ("bound by", row["bound"]),
        ("launches", f"{row['launches']:,}"),
        ("compute", f"{format_si(row['flops'], 'FLOP')}: {compute}"),
        ("memory", f"{format_si(row['bytes'], 'B')}, {bandwidth} peak bandwidth: {memory}"),
        ("start", start),
        ("time", format_si(row["time_s"], "s")),
        ("at least", f"{format_si(row['bound_s'], 's')} (data sheet)"),
    ]
    return _explanation(prediction, index, facts)


def _explain_pass(prediction: Prediction, pass_index: int, layer_index: int) -> list[tuple[str, str]]:
    """Return the arithmetic of one pass of a layer: compute, memory, and the time that results."""
    terms = prediction.terms
    pass_name = terms.passes[pass_index]
    unit = COUNT_UNITS.get(prediction.convention, "FLOP")
    flops = int(prediction.counts_by_pass[pass_index, layer_index])
    moved_bytes = int(prediction.bytes_by_pass[pass_index, layer_index])
    seconds = terms.compute_s, terms.memory_s
    if isinstance(prediction.model, TwoTermModel):
        seconds = prediction.model.attainable(*seconds, prediction.workload, prediction.machine)
    compute_s, memory_s = (float(term_s[pass_index, layer_index]) for term_s in seconds)
    compute, memory = format_si(compute_s, "s"), format_si(memory_s, "s")
    time = format_si(float(terms.layers_s[pass_index, layer_index]), "s")
    peak = prediction.peak_of(pass_name, layer_index)
    rate = f"{format_si(peak.per_s, 'FLOP/s')} ({peak.peak.precision} {peak.peak.unit})"
    rate += _format_efficiency(flops / peak.per_s, compute_s)
    bandwidth = format_si(prediction.bandwidth_bytes_per_s, "B/s")
    bandwidth += _format_efficiency(moved_bytes / prediction.bandwidth_bytes_per_s, memory_s)
    formula = _time_formula(prediction, pass_index, layer_index, compute, memory)
    return [
        (f"{pass_name}: compute", f"{flops:,} {unit} / {rate} = {compute}"),
        (f"{pass_name}: memory", f"{moved_bytes:,} B / {bandwidth} = {memory}"),
        (f"{pass_name}: time", f"{formula} = {time}"),
    ]


def _format_efficiency(at_peak_s: float, seconds: float) -> str:
    """Return the divisor for the share of peak that the model assumes: class efficiency, tiles and padding."""
    share = at_peak_s / seconds if seconds else 1.0
    return "" if abs(share - 1) < _TOLERANCE else f" / {share:.4g} of peak"


def _time_formula(prediction: Prediction, pass_index: int, layer_index: int, compute: str, memory: str) -> str:
    """Return the formula of a layer's time with its numbers."""
    terms = prediction.terms
    if terms.floor_s is None:
        return prediction.model.formula(compute, memory)
    floor = format_si(float(terms.floor_s[pass_index, layer_index]), "s")
    waiting = f" x {terms.host_slowdown:.4g} waiting for the host" if terms.host_slowdown >= 1.0005 else ""
    return f"({compute} ^4 + {memory} ^4 + {floor} shortest kernel ^4)^(1/4){waiting}"


def _algorithm_facts(prediction: Prediction, pass_index: int, layer_index: int) -> list[tuple[str, str]]:
    """Return FLOPs, time at peak and predicted share of peak of each convolution algorithm for the layer."""
    from ..counting.algorithms import algorithms_of

    peak, layer = prediction.peak, prediction.layers[layer_index]
    seconds = float(prediction.terms.layers_s[pass_index, layer_index])
    algorithms = algorithms_of(layer, prediction.batch_size, prediction.workload.precision, peak.peak.unit)
    facts = []
    for algorithm in algorithms:
        at_peak_s = algorithm.flops / peak.per_s
        relative = algorithm.flops / algorithms[0].flops
        text = f"{format_si(algorithm.flops, 'FLOP')}, {relative:.3g} of direct; {format_si(at_peak_s, 's')} at peak"
        if prediction.model.is_forecast and seconds:
            text += f"; {at_peak_s / seconds:.2f} of peak if this algorithm runs in the predicted time"
        facts.append((f"as {algorithm.name}", text))
    return facts + _algorithm_efficiencies(prediction, layer, algorithms)


def _algorithm_efficiencies(prediction: Prediction, layer: Layer, algorithms: list[Algorithm]) -> list[tuple[str, str]]:
    """Convert the calibrated efficiency, which refers to the direct count, to the other algorithms."""
    theta = getattr(prediction.model, "theta", None)
    if theta is None or len(algorithms) < 2:
        return []
    from ..counting.kinds import class_of
    from ..timing.parameters import NAMES

    name = f"efficiency_{class_of(layer)}"
    value = float(exp(theta[NAMES.index(name)]))
    other_efficiencies = [
        f"{value * other.flops / algorithms[0].flops:.2f} of peak if {other.name}" for other in algorithms[1:]
    ]
    return [(name, f"{value:.2f} of peak with the direct count = {', '.join(other_efficiencies)}")]

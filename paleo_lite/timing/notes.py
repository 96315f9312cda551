"""Notes of a prediction: the caveats of its network, its model, its device and its count."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

from ..architectures.network import DECODER_ALONE
from ..counting import GENERATION_PHASES
from ..counting.kinds import USER_RULES, is_convolution, missing_rules_note, user_rules_note
from ..counting.work import COMPILED
from ..formats import FORMATS
from ..machines import Device, Machine
from ..machines.device import CLOCKS
from ..units import format_si, parse_quantity
from .energy import MEMORY_CLOCK
from .generating import STATIC_BATCH_NOTE
from .models import BoundModel, RooflineModel, TimeModel, kept_in_cache_bytes
from .power import MIN_FRACTION, boost_fraction, limited_fraction, matrix_boost, partners_limit_w
from .prediction import Prediction
from .terms import Terms
from .workload import Workload


class RangedAnswer(Protocol):
    """An answer whose time and power may have intervals."""

    @property
    def time_s(self) -> float: ...
    @property
    def interval(self) -> tuple[float, float] | None: ...
    @property
    def bound_s(self) -> float | None: ...
    @property
    def power_interval_w(self) -> tuple[float, float] | None: ...
    @property
    def notes(self) -> tuple[str, ...]: ...


FASTER_THAN_BOUND = "faster than the bound"
"""Beginning of the notes on a forecast below its bound."""

WIDE_INTERVAL = "the interval is as wide as"
"""Part of the notes on an interval without measurements of the device, which measurements of the question itself make
void."""


LEAST_BELOW_ROOFLINE = 0.98
"""Fraction of the roofline of a data sheet below which caches and clocks are worth a note."""


def notes_of(workload: Workload, machine: Machine, model: TimeModel, terms: Terms) -> tuple[str, ...]:
    """Return the caveats of a prediction: of the network, the model, the machine's figures, and the count."""
    work, device, precision, phase = workload.unfused_work, machine.device, workload.precision, workload.phase
    notes = list(workload.network.notes)
    if workload.engine is not None and DECODER_ALONE in notes:
        notes.remove(DECODER_ALONE)  # an engine holds the encoder, too
    if workload.has_layers:
        notes += model.notes
    peak = machine.peak(precision)
    if device.parts is not None:
        notes.append(
            f"{device.name} is {device.parts.count} devices on one {device.scope}; a program that uses one of them "
            f"runs on {device.parts.device}"
        )
    if peak.peak.unverified:
        notes.append(f"the {peak.describe()} could not be checked against a primary source")
    notes += setting_notes(machine, model, None if terms.launched is None else terms.launched.speed)
    if not workload.has_layers:
        return tuple(notes)
    if phase in GENERATION_PHASES:
        notes.append(STATIC_BATCH_NOTE)
    published = published_weights_note(workload)
    if published is not None:
        notes.append(published)
    is_language_model = phase in GENERATION_PHASES or (phase == "training" and workload.network.blocks)
    if is_language_model and precision == "fp32":
        supported = {peak.precision for peak in device.peaks}
        narrow = [name for name in ("bf16", "fp16") if name in supported]
        if narrow:
            notes.append(f"in fp32; language models are usually run in 16 bits: `--precision {narrow[0]}`")
    if _convolves_in_tf32(workload, device):
        notes.append(
            "in fp32; PyTorch computes convolutions in tf32 on this device, `--precision tf32`, unless "
            "`torch.backends.cudnn.allow_tf32` is set to False"
        )
    if work.convention.unit != "FLOP" and model.uses_convention_count:  # a FLOP count is consistent with the peak
        notes.append(
            f"the {work.convention.name} convention counts a multiply-accumulate as 1, the peak counts it as 2: "
            "compute times are too short by about half"
        )
    if work.unknown:
        notes.append(missing_rules_note(work.unknown))
    if USER_RULES:
        user_note = user_rules_note(work.kinds)
        if user_note:
            notes.append(user_note)
    if terms.launched is not None:
        return tuple(notes)
    vector_peak = machine.vector_peak(precision)
    matrix_peak = model.peak(machine, precision).peak
    if (vector_peak.peak.precision, vector_peak.peak.unit) != (matrix_peak.precision, matrix_peak.unit):
        notes.append(
            f"operations other than convolution, linear, matmul and attention use the {vector_peak.describe()}"
        )
    if terms.host_slowdown > 1.05:
        notes.append(
            f"the device waits for the host to launch kernels: the step takes {terms.host_slowdown:.2g} times as long"
        )
    if isinstance(model, RooflineModel):
        notes += cached_bound_notes(workload, machine, terms)
    return tuple(notes)


_OF_PYTORCH = ("eager", COMPILED)
"""Executions whose convolutions are those of PyTorch, in its default of tf32."""


def _convolves_in_tf32(workload: Workload, device: Device) -> bool:
    """Return whether most of a workload in fp32 are convolutions, which PyTorch computes in tf32 by default.

    cuDNN may use it for convolutions (`torch.backends.cudnn.allow_tf32` is True); products of matrices do not.
    """
    is_of_pytorch = workload.precision == "fp32" and workload.execution in _OF_PYTORCH
    has_tf32 = device.vendor == "NVIDIA" and any(peak.precision == "tf32" for peak in device.peaks)
    if not is_of_pytorch or not has_tf32:
        return False
    macs = workload.unfused_work.column("macs", "inference").sum(axis=0)
    of_convolutions = sum(int(count) for count, layer in zip(macs, workload.layers) if is_convolution(layer))
    return of_convolutions > int(macs.sum()) / 2


def cached_bound_notes(workload: Workload, machine: Machine, terms: Terms) -> list[str]:
    """Return a note on how far the bound is below the roofline, if it is."""
    device = machine.device
    roofline_s = float(RooflineModel().time_s(terms.compute_s, terms.memory_s).sum())
    bound_s = BoundModel().evaluate(workload, machine).time_s
    if bound_s > LEAST_BELOW_ROOFLINE * roofline_s:
        return []
    reasons = []
    if device.memory.l2 is not None and workload.phase not in GENERATION_PHASES:
        reasons.append(f"with activations kept in the L2 cache of {format_si(kept_in_cache_bytes(device) / 2, 'B')}")
    clock = boost_fraction(device, machine.peak(workload.precision))
    if clock > 1:
        reasons.append(f"at a clock {clock:.2f} times that of the data sheet")
    return [
        f"the roofline of {format_si(roofline_s, 's')} moves every activation through memory: {' and '.join(reasons)} "
        f"the bound is {format_si(bound_s, 's')}"
    ]


def setting_notes(machine: Machine, model: TimeModel, speed: float | None = None) -> list[str]:
    """Return notes on a requested clock or power limit that the device does not have, or that changes nothing.

    The speed is what both leave of that of the kernels of an engine; None where layers are timed.
    """
    return [*clock_notes(machine), *limit_notes(machine.device, model, speed)]


def clock_notes(machine: Machine) -> list[str]:
    """Return a note on a requested clock that the device does not have, or at which no kernels were measured."""
    device = machine.device
    boost_hz = device.clock_hz("boost")
    if machine.clock is not None and machine.clock not in CLOCKS and boost_hz is not None:
        clock_hz = parse_quantity(machine.clock, "Hz")
        if clock_hz > boost_hz:
            return [
                f"the clock {format_si(clock_hz, 'Hz')} is above the boost clock of {device.name}, "
                f"{format_si(boost_hz, 'Hz')}: only an overclocked device reaches it"
            ]
    if device.locked_clock < 1:
        return [
            f"kernels were measured at the default clock: at {device.locked_clock:.0%} of it arithmetic slows down in "
            f"proportion, and memory traffic below {MEMORY_CLOCK:.0%}"
        ]
    return []


def limit_notes(device: Device, model: TimeModel, speed: float | None) -> list[str]:
    """Return a note on a requested power limit: what it leaves of the speed, or why it changes nothing."""
    notes: list[str] = []
    limit_w, rated_w = device.requested_power_limit_w, device.rated_power_w
    if limit_w is None:
        return notes
    if not slows_under_power_limit(model):
        notes.append(f"the {model.name} model does not depend on the power limit")
    elif device.rated_power is None or rated_w is None:
        notes.append(f"the power limit changes nothing: that of the data sheet of {device.name} is unknown")
    elif limit_w > rated_w:
        notes.append(
            f"the power limit {limit_w:g} W is above that of the data sheet, {rated_w:g} W: "
            f"the times are those at {rated_w:g} W"
        )
    elif limited_fraction(device) <= MIN_FRACTION:
        notes.append(
            f"the power limit {limit_w:g} W is too low for {device.name} ({rated_w:g} W): "
            f"the times assume {MIN_FRACTION:.0%} of its speed"
        )
    elif speed is not None and device.locked_clock == 1:
        notes.append(f"the power limit {limit_w:g} W leaves {speed:.0%} of the speed of the kernels")
    elif speed is not None:
        notes.append(f"the power limit {limit_w:g} W and the clock leave {speed:.0%} of the speed of the kernels")
    elif limited_fraction(device) < 1:
        notes.append(f"the power limit {limit_w:g} W leaves {limited_fraction(device):.0%} of the speed of the kernels")
    return notes


def published_weights_note(workload: Workload) -> str | None:
    """Return a note on what to ask for if a network at inference has wider weights than its published checkpoint.

    None if it has not, or if the question names a format of the weights.
    """
    publication, network = workload.network.publication, workload.network
    if publication is None or not publication.weights or workload.weights or network.stored_weights is not None:
        return None
    if workload.phase == "training" or FORMATS[publication.weights].bits >= FORMATS[workload.precision].bits:
        return None
    return (
        f"weights have the numbers of {workload.precision}; {publication.publisher} publishes {network.name} in "
        f"{publication.weights}, which `--weights {publication.weights}` asks for"
    )


def slows_under_power_limit(model: TimeModel) -> bool:
    """Return whether the times of a model depend on the power limit; bounds and the ppp model assume the peak clock."""
    return model.is_forecast and model.ppp is None


LEAST_BELOW_BOUND = 0.99
"""Fraction of a bound below which the beginning of an interval is worth a note: an interval may begin at the traffic of
all layers, and the arithmetic of some of them takes a little longer than theirs."""


_TIME_BELOW, _INTERVAL_BELOW, _POWER_ABOVE = (
    "the time is below",
    "the interval begins below",
    "the interval of the power",
)
"""Beginnings of the notes on the range of a time or of the power."""


def without_ranges(notes: Iterable[str]) -> list[str]:
    """Return the notes of an answer whose time and power are not shown."""
    return [note for note in notes if not note.startswith((_TIME_BELOW, _INTERVAL_BELOW, _POWER_ABOVE))]


def range_notes(
    answer: RangedAnswer, device: Device, said: Iterable[str] = (), workloads: Sequence[Workload] = ()
) -> list[str]:
    """Return notes on an interval of the time that begins below the bound, and one of the power above the limit.

    Intervals do not begin below what the memory needs at its bandwidth, and of bounds of arithmetic there is a note
    where they begin below what the highest clock allows. Published times do, too: FLUX.1-dev, compiled, takes an L20
    20.24 s for 28 steps (https://github.com/xlite-dev/flux-faster), and its data sheet 20.54 s. `said` are notes beside
    those of the answer, `workloads` the networks that it times.
    """
    notes = []
    interval, bound_s = answer.interval, answer.bound_s
    is_said = any(note.startswith(FASTER_THAN_BOUND) for note in (*answer.notes, *said))
    if interval is not None and bound_s is not None and not is_said:
        notes += _notes_below_bound(answer.time_s, interval[0], bound_s, device, _why_below_bound(workloads))
    highest_w = partners_limit_w(device)
    power_w = None if highest_w is None else answer.power_interval_w
    if power_w is not None and round(power_w[1]) > round(device.power_w or 0):
        notes.append(
            f"{_POWER_ABOVE} ends above the {device.power_w:g} W of the data sheet: makers of cards sell "
            f"{device.name} with limits up to about {highest_w:.0f} W; `--power-limit` states that of yours"
        )
    return notes


def _notes_below_bound(time_s: float, low_s: float, bound_s: float, device: Device, reason: str) -> list[str]:
    """Return the note on an interval that begins below what a device takes at its highest clock, if it does."""
    if low_s >= LEAST_BELOW_BOUND * bound_s / matrix_boost(device):
        return []
    subject = _TIME_BELOW if time_s < bound_s else _INTERVAL_BELOW
    return [f"{subject} the {format_si(bound_s, 's')} of the data sheet, which is not a strict bound: {reason}"]


def _why_below_bound(workloads: Sequence[Workload]) -> str:
    """Return why the time of some networks may be below its bound."""
    if any(workload.engine is not None and workload.has_experts for workload in workloads):
        return "tokens of real text may choose fewer experts than the random ones of the bound"
    reason = "devices may clock higher, as an L20 with FLUX.1-dev was measured"
    if any(is_convolution(layer) for workload in workloads for layer in workload.layers):
        reason += ", and convolutions may multiply less"
    return reason


def faster_than_bound_note(prediction: Prediction) -> str:
    """Return the reasons why a forecast is below the bound, from the layers whose times are below theirs."""
    from ..counting.algorithms import algorithms_of

    ppp = prediction.model.ppp
    if ppp is not None and ppp > 1:
        return f"{FASTER_THAN_BOUND}: the PPP of {ppp:.4g} is above 1"
    if prediction.launched is not None:
        return f"{FASTER_THAN_BOUND}: {_kernels_faster_than_bound(prediction)}"
    peak, reasons = prediction.peak.peak, dict[str, None]()
    for row, layer in zip(prediction.rows(), prediction.layers):
        if row["time_s"] >= row["bound_s"]:
            continue
        if len(algorithms_of(layer, prediction.batch_size, prediction.workload.precision, peak.unit)) > 1:
            reasons["convolutions by an algorithm with fewer multiplications"] = None
        elif layer.attributes.get("causal"):
            reasons["attention without its masked scores"] = None
        else:
            reasons["clocks above that of the data sheet in measurements of such devices"] = None
    return f"{FASTER_THAN_BOUND}: {'; '.join(reasons)}"


def _kernels_faster_than_bound(prediction: Prediction) -> str:
    """Return the reasons why kernels of an engine are faster than their bounds."""
    reasons, other_names = [], []
    for row in prediction.rows():
        if row["time_s"] >= row["bound_s"]:
            continue
        if row["kind"] == "experts":
            reasons.append(
                f"{row['name']} ({format_si(row['time_s'], 's', 3)} of {format_si(row['bound_s'], 's', 3)}): in the "
                "measured servers tokens of real text chose fewer experts than the random ones of the bound"
            )
        else:
            other_names.append(row["name"])
    if other_names:
        reasons.append(f"{', '.join(other_names)}: in the measured servers kernels overlapped those before them")
    return "; ".join(reasons)
